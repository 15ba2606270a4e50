/* Each allocation of a request fails once, from the accepted connection to the last byte: that request may fail, but the server lives,
 * answers the next one, and loses nothing (the harness counts sessions, the sanitizers memory). */
#include "unit.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "harness.h"

static atomic_llong countdown = -1; /* allocations until the one that fails; below 0: none */
static atomic_bool failed;
static harness h;

static int fail_one(void *user, uint64_t number) {
    (void)user, (void)number;
    if (atomic_load(&countdown) < 0 || atomic_fetch_sub(&countdown, 1) != 0) return 0;
    atomic_store(&failed, true);
    return 1;
}

static int setup(void **state) {
    (void)state;
    log_set_level(LOG_ERROR);        /* every failure is logged */
    mem_set_failure(fail_one, NULL); /* before there are threads */
    const server_options options = {.no_signals = true, .limits = {.write_ms = 2000}};
    harness_open(&h, &options, NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    harness_close(&h);
    return 0;
}

/* Sends the request while allocation n fails and reads the reply once the server is done with it: the client allocates, too. */
static void ask(const char *request, long long n, reply *r) {
    client c;
    atomic_store(&failed, false);
    client_open(&c, h.port);
    atomic_store(&countdown, n);
    client_send_str(&c, request);
    struct pollfd p = {.fd = c.fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    const int idle = harness_wait_idle(&h, 5000);
    atomic_store(&countdown, -1);
    if (idle < 0) fail_msg("allocation %lld: a session is left over", n);
    client_read_reply(&c, r, 5000);
    client_close(&c);
}

static void check_at(const char *path, const char *json) {
    char *request = post_request_to(path, json);
    long long n = 0;
    for (int unharmed = 0; unharmed < 2; n++) {
        reply r;
        ask(request, n, &r);
        if (r.status != 0 && r.status != 200 && r.status != 503) fail_msg("allocation %lld: status %d %s", n, r.status, r.body.data);
        if (!atomic_load(&failed)) {
            assert_int_equal(r.status, 200);
            assert_true(r.whole);
            assert_non_null(strstr(r.body.data, "Paris"));
            unharmed++;
        }
        reply_free(&r);
        assert_true(n < 20000);
    }
    print_message("%lld allocations\n", n - 2);
    assert_true(n > 10);
    mem_free(request);
}

static void check(const char *say, const char *more) {
    char *json = chat_json(say, more);
    check_at("/v1/chat/completions", json);
    mem_free(json);
}

#define TOOLS                                                                                                                              \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":"             \
    "{\"city\":{\"type\":\"string\"}}}}}]"

static void test_whole(void **state) {
    (void)state;
    check("Hm.</think>\n\nParis.", "\"n\":2,\"logit_bias\":{\"5\":1},\"user\":\"u\",\"stop\":[\"zzz\"]");
}

static void test_stream(void **state) {
    (void)state;
    check("Hm.</think>\n\nParis.", "\"stream\":true,\"logprobs\":true,\"top_logprobs\":2,\"stream_options\":{\"include_usage\":true}");
}

static void test_tools(void **state) {
    (void)state;
    check("</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>", TOOLS);
}

/* The first time the form is compiled, then it is there. */
static void test_form(void **state) {
    (void)state;
    static const char form[] =
        "\"stream\":%s,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\","
        "\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],\"additionalProperties\":false}}}";
    for (int stream = 0; stream < 2; stream++) {
        char more[512];
        snprintf(more, sizeof more, form, stream ? "true" : "false");
        check("Hm.</think>\n\n{\"city\":\"Paris\"}", more);
    }
}

static void test_messages(void **state) {
    (void)state;
    static const char form[] =
        "{\"max_tokens\":90,\"stream\":%s,\"thinking\":{\"type\":\"adaptive\"},\"metadata\":{},\"system\":[{\"type\":\"text\","
        "\"text\":\"A\"},{\"type\":\"text\",\"text\":\"B\"}],\"tools\":[{\"name\":\"weather\",\"input_schema\":{}},"
        "{\"type\":\"bash_20250124\",\"name\":\"bash\"}],\"messages\":[{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"Hm\"},{\"type\":\"tool_use\",\"name\":\"weather\",\"input\":{\"a\":1}}]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":\"x\"},{\"type\":\"text\",\"text\":\"Hm.</think>"
        "Paris.<tool_call>\\n<function=weather>\\n<parameter=city>\\nParis\\n</parameter>\\n</function>\\n</tool_call>\"}]}]}";
    for (int stream = 0; stream < 2; stream++) {
        buffer json = {0};
        buffer_printf(&json, form, stream ? "true" : "false");
        check_at("/v1/messages", json.data);
        buffer_free(&json);
    }
}

static void test_responses(void **state) {
    (void)state;
    static const char form[] =
        "{\"stream\":%s,\"include\":[\"reasoning.encrypted_content\",\"message.output_text.logprobs\"],\"top_logprobs\":1,\"tools\":["
        "{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{}}]},"
        "{\"type\":\"custom\",\"name\":\"patch\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"x\"}},"
        "{\"type\":\"web_search\"}],\"instructions\":\"A\",\"input\":[{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":"
        "\"calla-thought:Hm\"},{\"type\":\"custom_tool_call\",\"name\":\"patch\",\"input\":\"x\"},{\"type\":\"custom_tool_call_output\","
        "\"output\":\"y\"},{\"role\":\"user\",\"content\":\"Hm.</"
        "think>Paris.<tool_call>\\n<function=n__weather>\\n<parameter=city>\\nParis\\n"
        "</parameter>\\n</function>\\n</tool_call><tool_call>\\n<function=patch>\\n<parameter=input>\\nz\\n</parameter>\\n</function>\\n"
        "</tool_call>\"}]}";
    for (int stream = 0; stream < 2; stream++) {
        buffer json = {0};
        buffer_printf(&json, form, stream ? "true" : "false");
        check_at("/v1/responses", json.data);
        buffer_free(&json);
    }
}

static void test_text(void **state) {
    (void)state;
    check_at("/v1/completions", "{\"prompt\":[\"<|im_start|>user\\nParis.\",[1,2]],\"echo\":true,\"n\":2,\"stop\":[\"zzz\"]}");
    check_at("/v1/completions", "{\"prompt\":\"<|im_start|>user\\nParis.\",\"echo\":true,\"logprobs\":1,\"stream\":true}");
    check_at("/tokenize", "{\"content\":\"Paris is the capital of France.\",\"with_pieces\":true}");
    check_at("/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Paris?\"}]}");
}

/* Opening the server itself. */
static void test_open(void **state) {
    (void)state;
    const server_options options = {.engine = h.engine, .no_signals = true};
    calla_error err;
    server *s = NULL;
    calla_status rc = CALLA_E_NOMEM;
    for (long long n = 0; rc; n++) {
        atomic_store(&countdown, n);
        rc = server_open(&options, &s, &err);
        assert_true(rc == CALLA_OK || rc == CALLA_E_NOMEM);
        assert_true(n < 1000);
    }
    atomic_store(&countdown, -1);
    server_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),     cmocka_unit_test(test_whole),     cmocka_unit_test(test_stream), cmocka_unit_test(test_tools),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_responses), cmocka_unit_test(test_text),   cmocka_unit_test(test_form),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

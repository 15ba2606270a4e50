/* The requests that Open WebUI makes of an OpenAI server, in the shapes that its source gives them: its list of models, a turn, a turn that goes on
 * behind calls of tools, and the small tasks that it runs beside (titles, tags, follow-ups).  It is not run here. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

#define CHAT "/v1/chat/completions"
#define TOOLS                                                                                                                              \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"search_web\",\"description\":\"Search.\",\"parameters\":{\"type\":"        \
    "\"object\",\"properties\":{\"query\":{\"type\":\"string\"},\"count\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],"        \
    "\"default\":null}},\"required\":[\"query\"]}}}]"
#define CALL "<tool_call>\\n<function=search_web>\\n<parameter=query>\\ncrabs\\n</parameter>\\n</function>\\n</tool_call>"
#define CALLED                                                                                                                             \
    "\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"search_web\",\"arguments\":"            \
    "\"{\\\"query\\\": \\\"crabs\\\"}\"}}]"

static void streamed(const char *json, stream_sum *s) {
    reply r;
    harness_post_to(&h, CHAT, json, &r);
    if (r.status != 200) fail_msg("%s: %d %s", json, r.status, r.body.data);
    stream_read(&r, 0, s);
    reply_free(&r);
    assert_true(s->done_is_last);
    assert_int_equal(s->usages, 1); /* it asks for it whenever it streams */
}

/* The connection is checked by its list of models; without a key the header is empty. */
static void test_models(void **state) {
    (void)state;
    static const char *const keys[] = {"Bearer none", "Bearer "};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        client c;
        reply r;
        char request[256];
        snprintf(request, sizeof request,
                 "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nAccept: */*\r\nConnection: close\r\n\r\n", keys[i]);
        client_open(&c, h.port);
        client_send_str(&c, request);
        client_read_reply(&c, &r, 5000);
        client_close(&c);
        assert_int_equal(r.status, 200);
        json_object *tree = reply_json_body(&r);
        assert_string_equal(json_str(tree, "data.0.object"), "model");
        assert_true(*json_str(tree, "data.0.id"));
        json_object_put(tree);
        reply_free(&r);
    }
}

static void test_a_turn(void **state) {
    (void)state;
    stream_sum s;
    streamed("{\"stream\":true,\"model\":\"scripted\",\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\","
             "\"content\":[{\"type\":\"text\",\"text\":\"Hm.</think>Hi.\",\"cache_control\":{\"type\":\"ephemeral\"}}]}],"
             "\"reasoning\":{\"effort\":\"medium\"},\"stream_options\":{\"include_usage\":true},\"temperature\":0.8,\"stop\":[\"###\"],"
             "\"user\":{\"name\":\"n\",\"id\":\"i\",\"email\":\"e\",\"role\":\"admin\"}}",
             &s);
    assert_string_equal(s.reasoning.data, "Hm.");
    assert_string_equal(s.content.data, "Hi.");
    stream_free(&s);
}

/* Behind the calls of its tools it goes on with the thought written into the content, and the deltas' index in the calls. */
static void test_a_turn_with_tools(void **state) {
    (void)state;
#define BEGIN                                                                                                                              \
    "{\"stream\":true,\"model\":\"scripted\"," TOOLS                                                                                       \
    ",\"stream_options\":{\"include_usage\":true},\"messages\":[{\"role\":\"user\",\"content\":"
    stream_sum s;
    streamed(BEGIN "\"I look.</think>" CALL "\"}]}", &s);
    assert_string_equal(s.calls.data, "search_web({\"query\":\"crabs\"});");
    assert_string_equal(s.finish, "tool_calls");
    stream_free(&s);
    streamed(BEGIN "\"Crabs?\"},{\"role\":\"assistant\",\"content\":\"<think>I look.</think>\"," CALLED "},{\"role\":\"tool\","
                   "\"tool_call_id\":\"call_1\",\"content\":\"Seen.</think>Ten legs.\"}]}",
             &s);
    assert_string_equal(s.content.data, "Ten legs.\n</tool_response>");
    assert_string_equal(s.finish, "stop");
    stream_free(&s);
    /* the prompt is that of a thought which comes back by itself */
    static const char *const thoughts[] = {"\"content\":\"<think>I look.</think>\"", "\"content\":\"\",\"reasoning_content\":\"I look.\""};
    char *prompts[2];
    for (int i = 0; i < 2; i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Crabs?\"},{\"role\":\"assistant\",%s," CALLED "},{\"role\":\"tool\","
                 "\"tool_call_id\":\"call_1\",\"content\":\"Ten\"},{\"role\":\"user\",\"content\":\"Sure?\"}]," TOOLS "}",
                 thoughts[i]);
        json_object *tree = harness_ask(&h, "/apply-template", body, 200, NULL);
        prompts[i] = mem_strndup(json_str(tree, "prompt"), strlen(json_str(tree, "prompt")));
        json_object_put(tree);
    }
    assert_string_equal(prompts[0], prompts[1]);
    assert_non_null(strstr(prompts[0], "<think>\nI look.\n</think>"));
    mem_free(prompts[0]);
    mem_free(prompts[1]);
}

static void test_small_tasks(void **state) {
    (void)state;
    static const char *const limits[] = {"\"max_completion_tokens\":1000,", ""};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        char body[1024];
        snprintf(
            body, sizeof body,
            "{\"model\":\"scripted\",\"messages\":[{\"role\":\"user\",\"content\":\"So.</think>{ \\\"title\\\": \\\"Greeting\\\" }\"}],"
            "\"stream\":false,%s\"metadata\":{\"task\":\"title_generation\",\"task_body\":{\"model\":\"m\",\"messages\":[]},"
            "\"chat_id\":null}}",
            limits[i]);
        json_object *tree = harness_ask(&h, CHAT, body, 200, NULL);
        assert_string_equal(json_str(tree, "choices.0.message.content"), "{ \"title\": \"Greeting\" }");
        json_object_put(tree);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models), cmocka_unit_test(test_a_turn),
                                       cmocka_unit_test(test_a_turn_with_tools), cmocka_unit_test(test_small_tasks)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

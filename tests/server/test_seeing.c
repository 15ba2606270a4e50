/* What can be seen of the server: /metrics, /health, one line of the log for each request and no text of anybody in it. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "harness.h"
#include "support/temp_dir.h"

static harness h;

static void open_server(bool log_prompts) {
    const server_options options = {.no_signals = true, .log_prompts = log_prompts};
    harness_open(&h, &options, NULL);
}

/* ------------------------------------------------------------ metrics ---------------------------------------------------- */

/* The value of a line that begins with name and a space, or -1. */
static double value_of(const char *text, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (!strncmp(at, name, n) && at[n] == ' ') return strtod(at + n + 1, NULL);
    }
    return -1;
}

static char *get_metrics(void) {
    reply r;
    char value[256];
    harness_get(&h, "/metrics", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_header(&r, "Content-Type", value), "text/plain; version=0.0.4; charset=utf-8");
    char *text = mem_strdup(r.body.data);
    reply_free(&r);
    return text;
}

/* Each line is a comment or "name value" or "name{labels} value", each family has its type before it, and buckets grow. */
static void check_form(const char *text) {
    char family[128] = "", line[512];
    double last = 0;
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (const char *at = text; *at; at = strchr(at, '\n') + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (!strncmp(line, "# TYPE ", 7)) {
            char type[16];
            assert_int_equal(sscanf(line, "# TYPE %127s %15s", family, type), 2);
            assert_non_null(strstr("counter gauge histogram", type));
            last = 0;
        }
        if (*line == '#') continue;
        char *value = strrchr(line, ' '), *end;
        assert_non_null(value);
        const double x = strtod(value + 1, &end);
        if (*end || end == value + 1 || strncmp(line, family, strlen(family)) != 0) fail_msg("odd line: %s", line);
        if (!strstr(line, "_bucket{")) continue;
        if (x < last) fail_msg("a bucket holds less than the one before: %s", line);
        last = x;
        if (!strstr(line, "+Inf")) continue;
        char name[160];
        snprintf(name, sizeof name, "%s_count", family);
        assert_true(value_of(text, name) == x);
    }
}

static void chat(const char *say, const char *more, int status) {
    reply r;
    char *json = chat_json(say, more);
    harness_post(&h, json, &r);
    assert_int_equal(r.status, status);
    reply_free(&r);
    mem_free(json);
}

static void test_metrics(void **state) {
    (void)state;
    open_server(false);
    char *text = get_metrics();
    check_form(text);
    assert_true(value_of(text, "calla_completion_tokens_total") == 0);
    assert_true(value_of(text, "calla_engine_up") == 1);
    mem_free(text);
    chat("one two three", "\"enable_thinking\":false", 200);
    chat("@token=30 one two three", "\"enable_thinking\":false,\"stream\":true", 200);
    chat("one two three four", "\"enable_thinking\":false,\"max_tokens\":2", 200);
    chat("@fail=1 one two three", "\"enable_thinking\":false", 503);
    chat("x", "\"max_tokens\":-3", 400);
    reply r;
    harness_get(&h, "/made/up?token=x", &r);
    reply_free(&r);
    client c;
    char *json = chat_json("@endless @token=20 x", "\"stream\":true"), *request = post_request(json);
    client_open(&c, h.port);
    client_send_str(&c, request);
    assert_true(client_wait_for(&c, "\"x", 3000) >= 0);
    client_reset(&c);
    assert_true(harness_wait_idle(&h, 3000) >= 0);
    mem_free(json);
    mem_free(request);
    text = get_metrics();
    check_form(text);
    static const struct {
        const char *name;
        double value;
    } rows[] = {
        {"calla_http_replies_total{route=\"/v1/chat/completions\",code=\"200\"}", 3},
        {"calla_http_replies_total{route=\"/v1/chat/completions\",code=\"400\"}", 1},
        {"calla_http_replies_total{route=\"/v1/chat/completions\",code=\"503\"}", 1},
        {"calla_http_replies_total{route=\"other\",code=\"404\"}", 1},
        {"calla_http_replies_total{route=\"/metrics\",code=\"200\"}", 1},
        {"calla_http_aborted_total{cause=\"client_left\"}", 1},
        {"calla_http_aborted_total{cause=\"client_stuck\"}", 0},
        {"calla_generations_total{finish=\"stop\"}", 2},
        {"calla_generations_total{finish=\"length\"}", 1},
        {"calla_generations_total{finish=\"error\"}", 1},
        {"calla_generations_total{finish=\"aborted\"}", 1},
        {"calla_time_to_first_token_seconds_count", 5},
        {"calla_generation_seconds_count", 5},
        {"calla_queue_seconds_count", 4}, /* of the aborted one nothing more was asked */
        {"calla_requests", 0},
        {"calla_requests_max", 256},
        {"calla_jobs_running", 0},
        {"calla_jobs_running_max", 4},
        {"calla_connections", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value_of(text, rows[i].name) != rows[i].value)
            fail_msg("%s is %g, not %g", rows[i].name, value_of(text, rows[i].name), rows[i].value);
    const double tokens = value_of(text, "calla_completion_tokens_total"), gaps = value_of(text, "calla_time_between_tokens_seconds_count");
    assert_true(tokens >= 12 && gaps == tokens - 5);
    /* The second answer waits 30 ms for each token; the first of them is none. */
    assert_true(value_of(text, "calla_time_between_tokens_seconds_sum") >= 0.08);
    assert_true(value_of(text, "calla_prompt_tokens_total") > 50);
    assert_true(value_of(text, "process_resident_memory_bytes") > 1e6);
    assert_true(value_of(text, "process_cpu_seconds_total") > 0);
    mem_free(text);
    fake_engine_break(h.engine);
    text = get_metrics();
    assert_true(value_of(text, "calla_engine_up") == 0);
    mem_free(text);
    harness_get(&h, "/health", &r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"status\":\"failed\""));
    reply_free(&r);
    harness_close(&h);
}

/* --------------------------------------------------------------- log ----------------------------------------------------- */

static int saved_stderr = -1;

static void redirect_log(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    assert_true(fd >= 0);
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    log_set_level(LOG_INFO);
}

static void restore_log(void) {
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    log_set_level(LOG_WARN);
}

static size_t count_of(const char *text, const char *what) {
    size_t n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) n++;
    return n;
}

#define SECRET "quantum-marmalade"

/* The log of a few requests, all of whose texts hold SECRET; free. */
static char *log_of_requests(bool log_prompts, char *id) {
    char *dir = temp_dir_new(), path[512];
    snprintf(path, sizeof path, "%s/log", dir);
    open_server(log_prompts);
    redirect_log(path);
    reply r;
    char *json = chat_json("@token=5 " SECRET " is said", "\"enable_thinking\":false,\"stop\":[\"zz" SECRET "\"]");
    harness_post(&h, json, &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, SECRET));
    reply_header(&r, "X-Request-Id", id);
    reply_free(&r);
    mem_free(json);
    chat(SECRET, "\"max_tokens\":\"" SECRET "\"", 400);
    chat("@fail=1 a " SECRET " that fails", "\"stream\":true", 200);
    harness_get(&h, "/health?" SECRET, &r);
    reply_free(&r);
    client c;
    json = chat_json("@prompt=1000x20 " SECRET, "\"stream\":true");
    char *request = post_request(json);
    client_open(&c, h.port);
    client_send_str(&c, request);
    assert_true(client_wait_for(&c, "assistant", 3000) >= 0);
    client_reset(&c);
    assert_true(harness_wait_idle(&h, 3000) >= 0);
    mem_free(json);
    mem_free(request);
    harness_close(&h);
    restore_log();
    char *text = slurp_file(dir, "log", NULL);
    temp_dir_remove(dir);
    return text;
}

static void test_log(void **state) {
    (void)state;
    char id[256], line[400];
    char *text = log_of_requests(false, id);
    assert_int_equal(count_of(text, " info  request req_"), 5);
    snprintf(line, sizeof line, "request %s POST /v1/chat/completions 200 ", id);
    const char *first = strstr(text, line);
    assert_non_null(first);
    static const char *const parts[] = {
        " ms id=chatcmpl-", " queue=", " prompt=", " cached=0 ", " prefill=", " tokens=", " decode=", " rate=", " end=stop\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *at = strstr(first, parts[i]);
        if (!at || at > strchr(first, '\n')) fail_msg("no%s in %s", parts[i], first);
    }
    assert_int_equal(count_of(text, "/completions 400 "), 1);
    assert_int_equal(count_of(text, "end=error error=device_failed\n"), 1);
    assert_int_equal(count_of(text, "end=aborted aborted=client_left\n"), 1);
    assert_int_equal(count_of(text, "marmalade"), 0);
    free(text);
    text = log_of_requests(true, id);
    assert_int_equal(count_of(text, SECRET), 3); /* the prompts; the refused one never was one */
    free(text);
}

/* ------------------------------------------------------------- loading --------------------------------------------------- */

static void *run_server(void *user) {
    calla_error err;
    assert_int_equal(server_run(user, &err), CALLA_OK);
    return NULL;
}

/* A server without an engine says so at /health, refuses the rest for a while, and is a server as soon as it has one. */
static void test_loading(void **state) {
    (void)state;
    harness none;
    server *s;
    calla_error err;
    pthread_t thread;
    reply r;
    char value[256];
    open_server(false);
    const server_options options = {.no_signals = true};
    assert_int_equal(server_open(&options, &s, &err), CALLA_OK);
    assert_int_equal(pthread_create(&thread, NULL, run_server, s), 0);
    none = (harness){.port = server_port(s)};
    server_set_progress(s, 0, 0);
    harness_get(&none, "/health", &r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"status\":\"loading\",\"progress\":0.000"));
    reply_free(&r);
    server_set_progress(s, 5000000000u, 20000000000u);
    harness_get(&none, "/health", &r);
    assert_non_null(strstr(r.body.data, "\"progress\":0.250"));
    reply_free(&r);
    static const char *const paths[] = {"/", "/metrics", "/props", "/v1/models"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        harness_get(&none, paths[i], &r);
        assert_int_equal(r.status, 503);
        assert_string_equal(reply_header(&r, "Retry-After", value), "2");
        reply_free(&r);
    }
    harness_post(&none, "{\"messages\":[]}", &r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"loading\""));
    reply_free(&r);
    assert_int_equal(server_set_engine(s, h.engine, &err), CALLA_OK);
    harness_get(&none, "/health", &r);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    char *json = chat_json("Loaded.", "\"enable_thinking\":false");
    harness_post(&none, json, &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "Loaded."));
    reply_free(&r);
    mem_free(json);
    server_stop(s);
    pthread_join(thread, NULL);
    server_close(s);
    /* One that is stopped before it ever had an engine. */
    assert_int_equal(server_open(&options, &s, &err), CALLA_OK);
    assert_int_equal(pthread_create(&thread, NULL, run_server, s), 0);
    server_stop(s);
    pthread_join(thread, NULL);
    server_close(s);
    harness_close(&h);
}

#ifdef __linux__ /* others have no such device */
/* A log that cannot be written is not the server's end. */
static void test_full_disk(void **state) {
    (void)state;
    open_server(true);
    redirect_log("/dev/full");
    chat("Hello.", "\"enable_thinking\":false", 200);
    chat("Hello.", "\"enable_thinking\":false,\"stream\":true", 200);
    harness_close(&h);
    restore_log();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_loading),
#ifdef __linux__
        cmocka_unit_test(test_full_disk),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

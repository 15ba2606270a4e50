/* Who may ask: names of the server, pages of other sites, keys. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "harness.h"
#include "server/keys.h"
#include "support/temp_dir.h"

#define KEY "0123456789abcdef-first"
#define OTHER "another-key-of-this-server"

static char *dir, *key_path;

static int setup(void **state) {
    (void)state;
    static const char text[] = "# keys\r\n\r\n  " KEY "  \r\n\t" OTHER;
    dir = temp_dir_new();
    write_file(dir, "keys", text, sizeof text - 1);
    key_path = mem_alloc(strlen(dir) + 8);
    sprintf(key_path, "%s/keys", dir);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mem_free(key_path);
    temp_dir_remove(dir);
    return 0;
}

/* The reply to a request of these lines, without Content-Length. */
static void ask(harness *h, const char *line, const char *headers, const char *body, reply *r) {
    client c;
    char request[2048];
    snprintf(request, sizeof request, "%s HTTP/1.1\r\n%s", line, headers);
    const size_t n = strlen(request);
    if (body)
        snprintf(request + n, sizeof request - n, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        snprintf(request + n, sizeof request - n, "\r\n");
    client_open(&c, h->port);
    client_send_str(&c, request);
    client_read_reply(&c, r, 5000);
    client_close(&c);
}

static void expect(harness *h, const char *line, const char *headers, int status) {
    reply r;
    ask(h, line, headers, NULL, &r);
    if (r.status != status) fail_msg("%s with %s: status %d, want %d", line, headers, r.status, status);
    reply_free(&r);
}

#define HOST "Host: localhost\r\n"
#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello.\"}],\"enable_thinking\":false}"

static void test_key_file(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *complaint; /* NULL: good */
    } rows[] = {
        {"0123456789abcdef", NULL},
        {"0123456789abcdef\n", NULL},
        {"#x\n#y", "holds no key"},
        {"", "holds no key"},
        {"0123456789abcde\n", "line 1: a key of fewer than 16"},
        {"\n0123456789 abcdef\n", "line 2: a key is made of"},
        {"0123456789abcdef\xc3\xa9\n", "line 1: a key is made of"},
    };
    calla_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        keys *k = NULL;
        write_file(dir, "tried", rows[i].text, strlen(rows[i].text));
        char path[512];
        snprintf(path, sizeof path, "%s/tried", dir);
        const calla_status rc = keys_open(path, &k, &err);
        if (!rc != !rows[i].complaint || (rc && !strstr(err.message, rows[i].complaint))) fail_msg("row %zu: %s", i, err.message);
        if (rc) assert_null(strstr(err.message, "0123456789")); /* what is secret is not printed */
        keys_close(k);
    }
    keys *k = NULL;
    assert_int_equal(keys_open("/nowhere/keys", &k, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/keys"));
    char longest[300];
    memset(longest, 'k', sizeof longest);
    for (size_t n = 254; n < 258; n++) {
        char path[512];
        write_file(dir, "tried", longest, n);
        snprintf(path, sizeof path, "%s/tried", dir);
        assert_int_equal(keys_open(path, &k, &err), n < 256 ? CALLA_OK : CALLA_E_FORMAT);
        if (n >= 256) continue;
        longest[n] = 0;
        assert_true(keys_match(k, longest));
        longest[n] = 'k';
        longest[n + 1] = 0;
        assert_false(keys_match(k, longest));
        longest[n + 1] = 'k';
        longest[299] = 0;
        assert_false(keys_match(k, longest));
        keys_close(k);
    }
}

static void test_keys(void **state) {
    (void)state;
    harness h;
    const server_options options = {.no_signals = true, .key_file = key_path};
    harness_open(&h, &options, NULL);
    static const struct {
        const char *headers;
        bool good;
    } rows[] = {
        {HOST "Authorization: Bearer " KEY "\r\n", true},
        {HOST "authorization: bearer  " OTHER "\r\n", true},
        {HOST "x-api-key: " KEY "\r\n", true},
        {HOST "X-Api-Key: " OTHER "\r\n", true},
        {HOST "x-api-key: wrong\r\nAuthorization: Bearer " KEY "\r\n", true}, /* SDKs send a placeholder beside the real one */
        {HOST "x-api-key: " KEY "\r\nAuthorization: Bearer none\r\n", true},
        {HOST, false},
        {HOST "Authorization: Bearer\r\n", false},
        {HOST "Authorization: Bearer \r\n", false},
        {HOST "Authorization: Basic " KEY "\r\n", false},
        {HOST "Authorization: " KEY "\r\n", false},
        {HOST "x-api-key:\r\n", false},
        {HOST "x-api-key: " KEY "x\r\n", false},
        {HOST "x-api-key: 0123456789abcdef-firs\r\n", false},
        {HOST "x-api-key: # keys\r\n", false},
        {HOST "Cookie: x-api-key=" KEY "\r\n", false},
    };
    static const char *const lines[] = {"GET /v1/models",       "GET /", "HEAD /props", "GET /nothing", "GET /metrics", "GET /v1/models/x",
                                        "OPTIONS /v1/responses"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect(&h, "GET /v1/models", rows[i].headers, rows[i].good ? 200 : 401);
        expect(&h, "GET /health", rows[i].headers, 200);
        expect(&h, "GET /health?x", rows[i].headers, 200);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) expect(&h, lines[i], HOST, 401); /* not even what there is */
    expect(&h, "GET /healthx", HOST, 401);
    expect(&h, "GET //health", HOST, 401);
    expect(&h, "GET /health/", HOST, 401);
    reply r;
    char value[256];
    buffer description = {0};
    server_describe(h.server, &description);
    assert_non_null(strstr(description.data, "curl -N")); /* a line to try, that works */
    assert_non_null(strstr(description.data, " -H 'x-api-key: KEY' "));
    assert_null(strstr(description.data, KEY));
    buffer_free(&description);
    /* Without a key the state, with one also how much is going on. */
    ask(&h, "GET /health", HOST, NULL, &r);
    assert_string_equal(r.body.data, "{\"status\":\"ok\"}");
    reply_free(&r);
    ask(&h, "GET /health", HOST "x-api-key: " KEY "\r\n", NULL, &r);
    assert_non_null(strstr(r.body.data, "\"running\":0"));
    reply_free(&r);
    /* A body is not read, let alone answered. */
    ask(&h, "POST /v1/chat/completions", HOST, CHAT, &r);
    assert_int_equal(r.status, 401);
    assert_string_equal(reply_header(&r, "WWW-Authenticate", value), "Bearer");
    assert_string_equal(reply_header(&r, "Connection", value), "close");
    json_object *tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "error.code"), "invalid_api_key");
    assert_string_equal(json_str(tree, "error.type"), "authentication_error");
    json_object_put(tree);
    reply_free(&r);
    ask(&h, "POST /v1/messages", HOST, CHAT, &r);
    assert_int_equal(r.status, 401);
    tree = reply_json_body(&r);
    assert_string_equal(json_str(tree, "type"), "error");
    assert_string_equal(json_str(tree, "error.type"), "authentication_error");
    json_object_put(tree);
    reply_free(&r);
    assert_int_equal(fake_engine_stats(h.engine).generated, 0);
    ask(&h, "POST /v1/chat/completions", HOST "Authorization: Bearer " KEY "\r\n", CHAT, &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "Hello."));
    reply_free(&r);
    harness_close(&h);
}

/* A server that listens on everything answers to addresses, but to no name that somebody's DNS may point at it. */
static void test_open_to_the_network(void **state) {
    (void)state;
    harness h;
    calla_error err;
    server *s = NULL;
    server_options options = {.no_signals = true, .host = "0.0.0.0", .insecure = true, .allow_hosts = "calla.lan,host.docker.internal"};
    harness_open(&h, &options, NULL);
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"Host: localhost\r\n", 200},
        {"Host: 192.168.1.5:8080\r\n", 200},
        {"Host: [fe80::1]:8080\r\n", 200},
        {"Host: Calla.LAN:80\r\n", 200},
        {"Host: host.docker.internal:8080\r\n", 200},
        {"Host: evil.example\r\n", 403},
        {"Host: calla.lan.evil.example\r\n", 403},
        {"Host: evil.calla.lan\r\n", 403},
        {"Host: lan\r\n", 403},
        {"Host: 1.2.3\r\n", 403},
        {"Host: 192.168.1.5:8080\r\nOrigin: http://192.168.1.5:8080\r\n", 200},
        {"Host: calla.lan\r\nOrigin: https://calla.lan\r\n", 200},
        {"Host: 192.168.1.5:8080\r\nOrigin: http://6.6.6.6\r\n", 403}, /* a page may well be served from an address */
        {"Host: 192.168.1.5:8080\r\nOrigin: http://192.168.1.5:81\r\n", 403},
        {"Host: 192.168.1.5:8080\r\nOrigin: http://evil.example\r\n", 403},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) expect(&h, "GET /health", rows[i].headers, rows[i].status);
    harness_close(&h);

    /* Any name, but pages of other sites are still those. */
    options.allow_hosts = "*";
    harness_open(&h, &options, NULL);
    expect(&h, "GET /health", "Host: evil.example\r\n", 200);
    expect(&h, "GET /health", "Host: a.example\r\nOrigin: https://a.example\r\n", 200);
    expect(&h, "GET /health", "Host: a.example\r\nOrigin: https://evil.example\r\n", 403);
    expect(&h, "GET /health", "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n", 403);
    options.engine = h.engine;
    options.insecure = false;
    assert_int_equal(server_open(&options, &s, &err), CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "--key-file"));
    assert_non_null(strstr(err.message, "--insecure"));
    options.key_file = key_path;
    assert_int_equal(server_open(&options, &s, &err), CALLA_OK);
    server_close(s);
    harness_close(&h);
}

static void check_cors(harness *h, const char *origin, const char *allowed) {
    char headers[256], value[256];
    reply r;
    snprintf(headers, sizeof headers, HOST "Origin: %s\r\n", origin);
    ask(h, "POST /v1/chat/completions", headers, CHAT, &r);
    assert_int_equal(r.status, allowed ? 200 : 403);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), allowed ? allowed : "");
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Credentials", value), "");
    reply_free(&r);
    snprintf(headers, sizeof headers,
             HOST "Origin: %s\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n",
             origin);
    ask(h, "OPTIONS /v1/chat/completions", headers, NULL, &r);
    assert_int_equal(r.status, allowed ? 200 : 403);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), allowed ? allowed : "");
    assert_non_null(strstr(reply_header(&r, "Access-Control-Allow-Headers", value), allowed ? "Authorization" : ""));
    reply_free(&r);
}

static void test_cors(void **state) {
    (void)state;
    harness h;
    server_options options = {.no_signals = true, .cors = "https://app.example,http://dev.example:3000"};
    harness_open(&h, &options, NULL);
    check_cors(&h, "https://app.example", "https://app.example");
    check_cors(&h, "http://dev.example:3000", "http://dev.example:3000");
    check_cors(&h, "http://app.example", NULL);
    check_cors(&h, "https://app.example:444", NULL);
    check_cors(&h, "https://app.example.evil", NULL);
    check_cors(&h, "null", NULL);
    reply r;
    char value[256];
    ask(&h, "GET /health", HOST, NULL, &r); /* no page */
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), "");
    reply_free(&r);
    ask(&h, "GET /nothing", HOST "Origin: https://app.example\r\n", NULL, &r); /* pages may read errors */
    assert_int_equal(r.status, 404);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), "https://app.example");
    reply_free(&r);
    ask(&h, "POST /v1/chat/completions", HOST "Origin: https://app.example\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n", NULL, &r);
    assert_int_equal(r.status, 415);
    reply_free(&r);
    harness_close(&h);

    /* Every page, but with a key: a browser asks beforehand without one, and no page has it by itself. */
    options = (server_options){.no_signals = true, .cors = "*", .key_file = key_path};
    harness_open(&h, &options, NULL);
    expect(&h, "OPTIONS /v1/models", HOST "Origin: https://any.example\r\nAccess-Control-Request-Method: GET\r\n", 200);
    expect(&h, "OPTIONS /v1/models", HOST "Origin: https://any.example\r\n", 401);
    ask(&h, "GET /v1/models", HOST "Origin: https://any.example\r\n", NULL, &r);
    assert_int_equal(r.status, 401);
    assert_string_equal(reply_header(&r, "Access-Control-Allow-Origin", value), "*");
    reply_free(&r);
    expect(&h, "GET /v1/models", HOST "Origin: https://any.example\r\nAuthorization: Bearer " KEY "\r\n", 200);
    expect(&h, "GET /v1/models", "Host: evil.example\r\nOrigin: https://any.example\r\n", 403);
    harness_close(&h);
}

static void test_wrong_options(void **state) {
    (void)state;
    harness h;
    harness_open(&h, NULL, NULL);
    static const struct {
        const char *hosts, *cors, *complaint;
    } rows[] = {
        {"http://calla.lan", NULL, "--allow-host"},
        {"calla.lan:8080", NULL, "\"calla.lan:8080\""},
        {"a,,b", NULL, "\"\""},
        {NULL, "app.example", "--cors"},
        {NULL, "https://app.example/", "\"https://app.example/\""},
        {NULL, "https://a.example, https://b.example", "\" https://b.example\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        calla_error err;
        server *s = NULL;
        const server_options options = {.engine = h.engine, .no_signals = true, .allow_hosts = rows[i].hosts, .cors = rows[i].cors};
        assert_int_equal(server_open(&options, &s, &err), CALLA_E_ARGUMENT);
        if (!strstr(err.message, rows[i].complaint)) fail_msg("row %zu: %s", i, err.message);
    }
    harness_close(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_file), cmocka_unit_test(test_keys),          cmocka_unit_test(test_open_to_the_network),
        cmocka_unit_test(test_cors),     cmocka_unit_test(test_wrong_options),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

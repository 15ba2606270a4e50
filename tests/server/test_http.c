/* The HTTP reader on bytes alone: what is accepted, what is refused with which status, whatever way the bytes are cut. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "server/http.h"

static const http_limits limits = {.url_bytes = 256, .header_bytes = 2048, .headers = 16, .body_bytes = 64};

typedef struct outcome {
    int status; /* 0: complete */
    size_t requests;
    bool complete; /* the last request was read to its end */
    char body[128], target[300];
} outcome;

/* Feeds bytes [n] in pieces of at most `step` and reads as many requests as there are. */
static outcome read_all(const char *bytes, size_t n, size_t step) {
    http_reader r;
    http_reader_init(&r, &limits);
    outcome o = {0};
    size_t at = 0, end = 0;
    for (http_step s = HTTP_STEP_MORE;;) {
        if (s != HTTP_STEP_HEAD && at == n) break;
        if (at == end && s != HTTP_STEP_HEAD) end = at + step < n ? at + step : n;
        size_t used = 0;
        s = http_reader_feed(&r, bytes + at, end - at, &used);
        assert_true(used <= end - at);
        at += used;
        if (s == HTTP_STEP_REFUSED) {
            o.status = r.error.status;
            size_t again = 0;
            assert_int_equal(http_reader_feed(&r, "GET / HTTP/1.1\r\n", 16, &again), HTTP_STEP_REFUSED); /* for good */
            break;
        }
        o.complete = s == HTTP_STEP_DONE;
        if (s == HTTP_STEP_DONE) {
            o.requests++;
            assert_true(r.request.body.n < sizeof o.body);
            memcpy(o.body, r.request.body.n ? r.request.body.data : "", r.request.body.n);
            o.body[r.request.body.n] = 0;
            snprintf(o.target, sizeof o.target, "%s", http_request_target(&r.request));
            http_reader_reset(&r);
        }
    }
    http_reader_free(&r);
    return o;
}

typedef struct sample {
    const char *name, *bytes;
    size_t n; /* 0: strlen */
    int status;
    size_t requests;
    const char *body;
} sample;

#define H "Host: localhost\r\n"
#define POST "POST /v1/chat/completions HTTP/1.1\r\n" H

static const sample samples[] = {
    {"plain", "GET / HTTP/1.1\r\n" H "\r\n", 0, 0, 1, ""},
    {"length", POST "Content-Length: 5\r\n\r\nhello", 0, 0, 1, "hello"},
    {"chunks", POST "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 0, 0, 1, "hello"},
    {"chunks with trailer", POST "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\nHost: evil\r\n\r\n", 0, 0, 1, "he"},
    {"empty header value", "GET / HTTP/1.1\r\nX-Empty:\r\n" H "\r\n", 0, 0, 1, ""},
    {"pipelined", "GET /a HTTP/1.1\r\n" H "\r\n" POST "Content-Length: 2\r\n\r\nhiGET /c HTTP/1.1\r\n" H "\r\n", 0, 0, 3, ""},
    {"empty lines before", "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", 0, 0, 1, ""},
    {"upgrade is ignored", "GET / HTTP/1.1\r\n" H "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n",
     0, 0, 2, ""},
    {"upgrade with body", POST "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi", 0, 0, 1, "hi"},
    {"version 1.0", "GET / HTTP/1.0\r\n\r\n", 0, 0, 1, ""},

    {"length and chunks", POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400, 0, 0},
    {"chunks and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 0, 400, 0, 0},
    {"two lengths", POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 0, 400, 0, 0},
    {"the same length twice", POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 0, 400, 0, 0},
    {"length list", POST "Content-Length: 5, 5\r\n\r\nhello", 0, 400, 0, 0},
    {"length +4", POST "Content-Length: +4\r\n\r\nabcd", 0, 400, 0, 0},
    {"length -1", POST "Content-Length: -1\r\n\r\n", 0, 400, 0, 0},
    {"length beyond 64 bits", POST "Content-Length: 18446744073709551617\r\n\r\n", 0, 400, 0, 0},
    {"length over the limit", POST "Content-Length: 65\r\n\r\n", 0, 413, 0, 0},
    {"chunks over the limit",
     POST "Transfer-Encoding: chunked\r\n\r\n41\r\n0123456789012345678901234567890123456789012345678901234567890123456789", 0, 413, 0, 0},
    {"bare LF", "GET / HTTP/1.1\nHost: localhost\n\n", 0, 400, 0, 0},
    {"bare LF after a header", "GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", 0, 400, 0, 0},
    {"bare CR in a header", "GET / HTTP/1.1\r\n" H "X: a\rY: b\r\n\r\n", 0, 400, 0, 0},
    {"CR before the empty line", "GET / HTTP/1.1\r\n" H "\r\n\rX", 0, 400, 1, 0},
    {"space before the colon", "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 0, 400, 0, 0},
    {"NUL in a value", "GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n", sizeof "GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n" - 1, 400, 0, 0},
    {"NUL in a name", "GET / HTTP/1.1\r\nHo\0st: localhost\r\n\r\n", sizeof "GET / HTTP/1.1\r\nHo\0st: localhost\r\n\r\n" - 1, 400, 0, 0},
    {"xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 0, 501, 0, 0},
    {"gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, 501, 0, 0},
    {"chunked twice", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 501, 0, 0},
    {"chunked in version 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 400, 0, 0},
    {"chunk size overflow", POST "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 0, 400, 0, 0},
    {"chunk size -1", POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 0, 400, 0, 0},
    {"chunk line ended by LF", POST "Transfer-Encoding: chunked\r\n\r\n2\nhe\r\n0\r\n\r\n", 0, 400, 0, 0},
    {"chunk data without CRLF", POST "Transfer-Encoding: chunked\r\n\r\n2\r\nhe0\r\n\r\n", 0, 400, 0, 0},
    {"folded line", "GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", 0, 400, 0, 0},
    {"folded by a tab", "GET / HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n", 0, 400, 0, 0},
    {"space before the first header", "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", 0, 400, 0, 0},
    {"two hosts", "GET / HTTP/1.1\r\n" H "Host: localhost\r\n\r\n", 0, 400, 0, 0},
    {"no host", "GET / HTTP/1.1\r\n\r\n", 0, 400, 0, 0},
    {"no name", "GET / HTTP/1.1\r\n" H ": x\r\n\r\n", 0, 400, 0, 0},
    {"whole URL", "GET http://localhost/ HTTP/1.1\r\n" H "\r\n", 0, 400, 0, 0},
    {"no path", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 0, 400, 0, 0},
    {"proxy", "CONNECT localhost:80 HTTP/1.1\r\n" H "\r\n", 0, 400, 0, 0},
    {"version 2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 505, 0, 0},
    {"version 1.2", "GET / HTTP/1.2\r\n" H "\r\n", 0, 505, 0, 0},
    {"version 0.9", "GET /\r\n\r\n", 0, 505, 0, 0},
    {"not HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9, 400, 0, 0},
    {"unknown method", "FETCH / HTTP/1.1\r\n" H "\r\n", 0, 400, 0, 0},
};

static void test_samples(void **state) {
    (void)state;
    size_t bad = 0;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        const size_t n = s->n ? s->n : strlen(s->bytes);
        for (size_t step = 1; step <= n; step += step < 8 ? 1 : n - step ? n - step : 1) {
            const outcome o = read_all(s->bytes, n, step);
            if (o.status != s->status || o.requests != s->requests || (!s->status && (!o.complete || strcmp(o.body, s->body))))
                bad++, print_error("%s in pieces of %zu: status %d (want %d), %zu requests (want %zu), body \"%s\"\n", s->name, step,
                                   o.status, s->status, o.requests, s->requests, o.body);
        }
    }
    assert_int_equal(bad, 0);
}

/* Repeats `unit` until n bytes are there. */
static size_t fill(char *out, size_t at, size_t n, const char *unit) {
    const size_t len = strlen(unit);
    for (; at + len <= n; at += len) memcpy(out + at, unit, len);
    return at;
}

static void test_limits(void **state) {
    (void)state;
    static char big[1 << 16];
    static const char get[] = "GET /";
    struct {
        const char *head, *unit;
        int status;
    } rows[] = {
        {get, "a", 414},
        {"GET / HTTP/1.1\r\n" H "X: ", "a", 431},
        {"GET / HTTP/1.1\r\n" H, "A: b\r\n", 431},
        {"GET / HTTP/1.1\r\n" H, "Long-Name: long value of a header which is repeated\r\n", 431},
        {"\r\n", "\r\n", 431},
        {POST "Transfer-Encoding: chunked\r\n\r\n1", ";extension=value", 400},
        {POST "Transfer-Encoding: chunked\r\n\r\n0\r\n", "Trailer: value\r\n", 400},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memcpy(big, rows[i].head, strlen(rows[i].head));
        const size_t n = fill(big, strlen(rows[i].head), sizeof big, rows[i].unit);
        const outcome whole = read_all(big, n, n), cut = read_all(big, n, 61);
        if (whole.status != rows[i].status || cut.status != rows[i].status)
            fail_msg("%.20s…%s: %d and %d, want %d", rows[i].head, rows[i].unit, whole.status, cut.status, rows[i].status);
    }
}

static void test_headers(void **state) {
    (void)state;
    static const char bytes[] =
        "POST /path?query=1#x HTTP/1.1\r\nHOST: localhost\r\nX-Tail: a b \t \r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    http_reader r;
    http_reader_init(&r, &limits);
    size_t used = 0, more = 0;
    assert_true(http_reader_idle(&r));
    assert_int_equal(http_reader_feed(&r, bytes, 7, &more), HTTP_STEP_MORE);
    assert_false(http_reader_idle(&r));
    assert_int_equal(http_reader_feed(&r, bytes + more, sizeof bytes - 1 - more, &used), HTTP_STEP_HEAD);
    assert_int_equal(r.request.verb, VERB_POST);
    assert_string_equal(http_request_header(&r.request, "host"), "localhost");
    assert_string_equal(http_request_header(&r.request, "x-tail"), "a b");
    assert_null(http_request_header(&r.request, "x"));
    assert_true(http_request_path_is(&r.request, "/path"));
    assert_false(http_request_path_is(&r.request, "/pat"));
    assert_false(r.request.keep_alive);
    assert_false(r.request.has_body);
    assert_int_equal(http_reader_feed(&r, "", 0, &used), HTTP_STEP_DONE);
    http_reader_reset(&r);
    assert_true(http_reader_idle(&r));
    http_reader_free(&r);
}

/* Bodies of several readers share one budget, and give it back. */
static void test_budget(void **state) {
    (void)state;
    size_t held = 0;
    http_limits shared = limits;
    shared.upload_bytes = 8;
    shared.upload_used = &held;
    static const char five[] = POST "Content-Length: 5\r\n\r\nhello";
    http_reader a, b;
    http_reader_init(&a, &shared);
    http_reader_init(&b, &shared);
    size_t used = 0, at = 0;
    assert_int_equal(http_reader_feed(&a, five, sizeof five - 1, &at), HTTP_STEP_HEAD);
    assert_int_equal(http_reader_feed(&a, five + at, sizeof five - 1 - at, &used), HTTP_STEP_DONE);
    assert_int_equal(held, 5);
    assert_int_equal(http_reader_feed(&b, five, sizeof five - 1, &at), HTTP_STEP_HEAD);
    assert_int_equal(http_reader_feed(&b, five + at, sizeof five - 1 - at, &used), HTTP_STEP_REFUSED);
    assert_int_equal(b.error.status, 503);
    buffer body = http_reader_take_body(&a);
    assert_int_equal(held, 5); /* still held, by its new owner */
    buffer_free(&body);
    http_reader_drop_body(&a);
    assert_int_equal(held, 0);
    http_reader_free(&a);
    http_reader_free(&b);
    assert_int_equal(held, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* fuzz_http.c: bytes of a connection → the HTTP reader.  The first byte says in what pieces they come; the result must not depend on it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct outcome {
    size_t requests, body_bytes, headers;
    bool refused;
} outcome;

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_http: %s\n", what);
    abort();
}

static outcome read_all(const char *bytes, size_t n, size_t piece) {
    static const http_limits limits = {.url_bytes = 200, .header_bytes = 1000, .headers = 12, .body_bytes = 500};
    size_t held = 0;
    http_limits l = limits;
    l.upload_bytes = 1 << 20;
    l.upload_used = &held;
    http_reader r;
    http_reader_init(&r, &l);
    outcome o = {0};
    size_t at = 0, end = 0;
    for (http_step step = HTTP_STEP_MORE; at < n || step == HTTP_STEP_HEAD;) {
        if (at == end && step != HTTP_STEP_HEAD) end = n - at < piece ? n : at + piece;
        size_t used = 0;
        step = http_reader_feed(&r, bytes + at, end - at, &used);
        require(used <= end - at, "more was used than there is");
        require(r.request.text.n <= l.header_bytes + 2 * l.headers + 2, "the headers are over their limit");
        require(r.request.body.n <= l.body_bytes && held == r.request.body.n, "the body is over its limit, or not counted");
        at += used;
        if (step == HTTP_STEP_REFUSED) {
            require(r.error.status >= 400 && r.error.message[0], "refused without a reason");
            o.refused = true;
            break;
        }
        if (step != HTTP_STEP_DONE) continue;
        require(http_request_target(&r.request)[0] == '/', "a target that is no path");
        require(r.request.minor == 0 || http_request_header(&r.request, "host") != NULL, "a request without a host");
        o.requests++;
        o.body_bytes += r.request.body.n;
        o.headers += r.request.n_headers;
        http_reader_reset(&r);
        require(held == 0, "a body is still counted");
    }
    http_reader_free(&r);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    const char *bytes = (const char *)data + 1;
    const outcome whole = read_all(bytes, n - 1, n - 1), cut = read_all(bytes, n - 1, 1u + data[0] % 64u);
    require(whole.requests == cut.requests && whole.body_bytes == cut.body_bytes && whole.headers == cut.headers &&
                whole.refused == cut.refused,
            "another result in other pieces");
    return 0;
}

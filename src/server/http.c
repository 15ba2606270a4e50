/* http.c: see http.h.  llhttp does the grammar; this file adds what it leaves open: limits, folded lines, Host, target form. */
#include "server/http.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* Bytes of chunk framing allowed beside the data: a chunk of one byte costs five more ("1\r\nX\r\n"), and extensions are never used. */
static size_t frame_allowance(const http_reader *r) { return 4096 + 8 * r->request.body.n; }

static http_reader *reader_of(llhttp_t *p) { return p->data; }

static int refuse(http_reader *r, int status, const char *code, const char *message) {
    if (!r->error.status) api_error_set(&r->error, status, code, NULL, "%s", message);
    return -1;
}

static int append_text(http_reader *r, const char *at, size_t n) {
    buffer_append(&r->request.text, at, n);
    return r->request.text.failed ? refuse(r, 503, "out_of_memory", "out of memory for the request's headers") : 0;
}

static int on_url(llhttp_t *p, const char *at, size_t n) {
    http_reader *r = reader_of(p);
    if (r->request.text.n - r->request.target + n > r->limits.url_bytes)
        return refuse(r, 414, NULL, "the request's target is longer than this server reads");
    return append_text(r, at, n);
}

/* Ends the string being read and returns where it began. */
static size_t end_string(http_reader *r) {
    const size_t begin = r->field;
    buffer_append_char(&r->request.text, 0);
    r->field = r->request.text.n;
    return begin;
}

static int on_url_complete(llhttp_t *p) {
    http_reader *r = reader_of(p);
    r->request.target = end_string(r);
    return 0;
}

static int on_header_field(llhttp_t *p, const char *at, size_t n) {
    http_reader *r = reader_of(p);
    if (r->head_done) return 0; /* trailers say nothing that we want to know */
    return append_text(r, at, n);
}

static int on_header_field_complete(llhttp_t *p) {
    http_reader *r = reader_of(p);
    if (r->head_done) return 0;
    http_request *q = &r->request;
    if (q->n_headers == r->limits.headers) return refuse(r, 431, NULL, "the request has more headers than this server reads");
    q->headers[q->n_headers].name = end_string(r);
    if (q->text.failed) return refuse(r, 503, "out_of_memory", "out of memory for the request's headers");
    if (!q->text.data[q->headers[q->n_headers].name]) return refuse(r, 400, NULL, "the request has a header without a name");
    for (char *c = q->text.data + q->headers[q->n_headers].name; *c; c++) *c = (char)tolower((unsigned char)*c);
    return 0;
}

static int on_header_value(llhttp_t *p, const char *at, size_t n) {
    http_reader *r = reader_of(p);
    return r->head_done ? 0 : append_text(r, at, n);
}

static int on_header_value_complete(llhttp_t *p) {
    http_reader *r = reader_of(p);
    if (r->head_done) return 0;
    http_request *q = &r->request;
    const size_t begin = end_string(r);
    if (q->text.failed) return refuse(r, 503, "out_of_memory", "out of memory for the request's headers");
    char *value = q->text.data + begin;
    for (size_t n = strlen(value); n && (value[n - 1] == ' ' || value[n - 1] == '\t');) value[--n] = 0;
    q->headers[q->n_headers++].value = begin;
    return 0;
}

static int check_head(http_reader *r) {
    http_request *q = &r->request;
    if (q->text.failed) return refuse(r, 503, "out_of_memory", "out of memory for the request's headers");
    if (r->llhttp.http_major != 1 || r->llhttp.http_minor > 1) return refuse(r, 505, NULL, "this server speaks HTTP/1.0 and HTTP/1.1");
    if (http_request_target(q)[0] != '/') return refuse(r, 400, NULL, "the request's target must be a path that begins with /");
    size_t hosts = 0, lengths = 0, encodings = 0;
    for (size_t i = 0; i < q->n_headers; i++) {
        const char *name = q->text.data + q->headers[i].name;
        hosts += !strcmp(name, "host");
        lengths += !strcmp(name, "content-length");
        encodings += !strcmp(name, "transfer-encoding");
    }
    if (hosts > 1) return refuse(r, 400, NULL, "the request has two Host headers");
    if (!hosts && q->minor == 1) return refuse(r, 400, NULL, "the request has no Host header");
    if (lengths > 1) return refuse(r, 400, NULL, "the request has two Content-Length headers");
    if (encodings > 1 || (encodings && q->minor == 0)) return refuse(r, 400, NULL, "the request's Transfer-Encoding is not understood");
    const char *encoding = http_request_header(q, "transfer-encoding");
    if (encoding && strcasecmp(encoding, "chunked") != 0) return refuse(r, 501, NULL, "the only Transfer-Encoding understood is chunked");
    if (lengths && r->llhttp.content_length > r->limits.body_bytes)
        return refuse(r, 413, "body_too_large", "the request's body is larger than this server accepts");
    return 0;
}

static int on_headers_complete(llhttp_t *p) {
    http_reader *r = reader_of(p);
    http_request *q = &r->request;
    r->head_done = true;
    q->method = llhttp_method_name((llhttp_method_t)p->method);
    q->verb = p->method == HTTP_GET       ? VERB_GET
              : p->method == HTTP_HEAD    ? VERB_HEAD
              : p->method == HTTP_POST    ? VERB_POST
              : p->method == HTTP_DELETE  ? VERB_DELETE
              : p->method == HTTP_OPTIONS ? VERB_OPTIONS
                                          : VERB_OTHER;
    q->path_n = strcspn(http_request_target(q), "?#"); /* before anything is refused: the path says in which form */
    q->minor = p->http_minor;
    q->keep_alive = llhttp_should_keep_alive(p);
    q->has_body = (p->flags & F_CHUNKED) || p->content_length > 0;
    if (check_head(r)) return -1;
    if (p->method == HTTP_CONNECT) return refuse(r, 405, NULL, "this server is not a proxy");
    p->upgrade = 0; /* an offer to change protocols may be ignored; the request is served as it stands */
    return HPE_PAUSED;
}

static int on_body(llhttp_t *p, const char *at, size_t n) {
    http_reader *r = reader_of(p);
    http_request *q = &r->request;
    if (n > r->limits.body_bytes - q->body.n)
        return refuse(r, 413, "body_too_large", "the request's body is larger than this server accepts");
    if (r->limits.upload_used) {
        if (n > r->limits.upload_bytes - *r->limits.upload_used) {
            refuse(r, 503, "uploads_full", "too many large requests are being received: try again later");
            r->error.retry_after = 5;
            return -1;
        }
        *r->limits.upload_used += n;
        r->counted += n;
    }
    buffer_append(&q->body, at, n);
    return q->body.failed ? refuse(r, 503, "out_of_memory", "out of memory for the request's body") : 0;
}

static int on_message_complete(llhttp_t *p) {
    reader_of(p)->done = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_url_complete = on_url_complete,
    .on_header_field = on_header_field,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

static void begin(http_reader *r) {
    llhttp_init(&r->llhttp, HTTP_REQUEST, &settings);
    r->llhttp.data = r;
    r->error.status = 0;
    r->field = r->head_bytes = r->frame_bytes = r->line_bytes = r->lines = 0;
    r->head_done = r->done = false;
    r->request.n_headers = r->request.target = r->request.path_n = 0;
    r->request.method = NULL;
    buffer_clear(&r->request.text);
}

void http_reader_init(http_reader *r, const http_limits *limits) {
    memset(r, 0, sizeof *r);
    r->limits = *limits;
    if (r->limits.headers > HTTP_MAX_HEADERS) r->limits.headers = HTTP_MAX_HEADERS;
    r->request.body.max = limits->body_bytes;
    begin(r);
}

void http_reader_drop_body(http_reader *r) {
    if (r->limits.upload_used) *r->limits.upload_used -= r->counted;
    r->counted = 0;
    const size_t max = r->request.body.max;
    buffer_free(&r->request.body);
    r->request.body = (buffer){.max = max};
}

buffer http_reader_take_body(http_reader *r) {
    const buffer body = r->request.body;
    r->request.body = (buffer){.max = body.max};
    return body;
}

void http_reader_reset(http_reader *r) {
    http_reader_drop_body(r);
    begin(r);
}

void http_reader_free(http_reader *r) {
    http_reader_drop_body(r);
    buffer_free(&r->request.text);
}

bool http_reader_idle(const http_reader *r) { return !r->head_done && !r->head_bytes; }

/* llhttp joins a folded header line to the one before; others do not, so that the two see different headers.  Looks for a line that
 * begins with white space; only while headers are read.  The empty line that ends them ends the search. */
static bool has_folded_line(http_reader *r, const char *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (data[i] == '\n') {
            if (!r->line_bytes && r->lines) return false;
            r->lines += r->line_bytes > 0;
            r->line_bytes = 0;
        } else if (data[i] != '\r') {
            if (!r->line_bytes && r->lines && (data[i] == ' ' || data[i] == '\t')) return true;
            r->line_bytes++;
        }
    }
    return false;
}

/* What llhttp thought of the bytes up to `used`. */
static http_step judge(http_reader *r, llhttp_errno_t rc, bool head_was_done) {
    if (r->error.status) return HTTP_STEP_REFUSED;
    if (rc == HPE_PAUSED) {
        llhttp_resume(&r->llhttp);
        return r->done ? HTTP_STEP_DONE : HTTP_STEP_HEAD;
    }
    if (rc == HPE_OK && !r->done && r->head_done == head_was_done) return HTTP_STEP_MORE;
    if (rc == HPE_PAUSED_H2_UPGRADE || rc == HPE_INVALID_VERSION)
        refuse(r, 505, NULL, "this server speaks HTTP/1.0 and HTTP/1.1");
    else if (rc == HPE_INVALID_TRANSFER_ENCODING)
        refuse(r, 501, NULL, "the only Transfer-Encoding understood is chunked");
    else {
        const char *reason = llhttp_get_error_reason(&r->llhttp);
        api_error_set(&r->error, 400, NULL, NULL, "the request is not valid HTTP: %s", reason && *reason ? reason : llhttp_errno_name(rc));
    }
    return HTTP_STEP_REFUSED;
}

http_step http_reader_feed(http_reader *r, const char *data, size_t n, size_t *used) {
    *used = 0;
    if (r->error.status) return HTTP_STEP_REFUSED;
    if (r->done) return HTTP_STEP_DONE;
    if (!n && !r->head_done) return HTTP_STEP_MORE;
    const bool head_was_done = r->head_done;
    if (!head_was_done && n > r->limits.header_bytes - r->head_bytes) n = r->limits.header_bytes - r->head_bytes;
    if (!head_was_done && !n) return refuse(r, 431, NULL, "the request's headers are larger than this server reads"), HTTP_STEP_REFUSED;
    if (!head_was_done && has_folded_line(r, data, n))
        return refuse(r, 400, NULL, "the request has a folded header line"), HTTP_STEP_REFUSED;
    const size_t body_before = r->request.body.n;
    const llhttp_errno_t rc = llhttp_execute(&r->llhttp, data, n);
    const char *stopped = rc == HPE_OK ? NULL : llhttp_get_error_pos(&r->llhttp);
    *used = stopped ? (size_t)(stopped - data) : n;
    if (!head_was_done)
        r->head_bytes += *used;
    else
        r->frame_bytes += *used - (r->request.body.n - body_before);
    const http_step step = judge(r, rc, head_was_done);
    if (step == HTTP_STEP_MORE && r->frame_bytes > frame_allowance(r))
        return refuse(r, 400, NULL, "the request's chunks are mostly framing"), HTTP_STEP_REFUSED;
    return step;
}

const char *http_request_header(const http_request *request, const char *name) {
    for (size_t i = 0; i < request->n_headers; i++)
        if (!strcmp(request->text.data + request->headers[i].name, name)) return request->text.data + request->headers[i].value;
    return NULL;
}

const char *http_request_target(const http_request *request) { return request->text.data ? request->text.data + request->target : ""; }

bool http_request_path_is(const http_request *request, const char *path) {
    return strlen(path) == request->path_n && !memcmp(http_request_target(request), path, request->path_n);
}

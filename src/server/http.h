/* http.h: bytes of one HTTP/1 request → http_request.  Knows llhttp; knows neither sockets nor routes.
 *
 * A request is read in two steps so that the caller can refuse it before its body is taken: HTTP_STEP_HEAD when the headers are in,
 * HTTP_STEP_DONE when the body is.  Bytes after a request are never looked at: they are the next request.  What is malformed, doubtful
 * (anything that two parsers could read differently) or over a limit is HTTP_STEP_REFUSED for good: the connection must be closed,
 * since nobody knows where the next request would begin. */
#ifndef CALLA_SERVER_HTTP_H
#define CALLA_SERVER_HTTP_H

#include <llhttp.h>

#include "base/buffer.h"
#include "server/api_error.h"

#define HTTP_MAX_HEADERS 256 /* capacity; http_limits.headers may be lower */

typedef enum http_verb { VERB_GET, VERB_HEAD, VERB_POST, VERB_DELETE, VERB_OPTIONS, VERB_OTHER } http_verb;

typedef struct http_limits {
    size_t url_bytes, header_bytes, headers, body_bytes;
    size_t upload_bytes; /* of all bodies that share upload_used */
    size_t *upload_used; /* counts them; may be NULL */
} http_limits;

typedef struct http_header {
    size_t name, value; /* offsets in http_request.text; the name is in lower case */
} http_header;

typedef struct http_request {
    http_verb verb;
    const char *method; /* its name; NULL until the headers are in */
    size_t target;      /* offset in text: path and query as sent */
    size_t path_n;      /* length of the path part of it */
    uint8_t minor;      /* HTTP/1.minor */
    bool keep_alive;
    bool has_body; /* one is announced, by length or as chunks */
    http_header headers[HTTP_MAX_HEADERS];
    size_t n_headers;
    buffer text; /* NUL-terminated strings */
    buffer body;
} http_request;

typedef enum http_step { HTTP_STEP_MORE, HTTP_STEP_HEAD, HTTP_STEP_DONE, HTTP_STEP_REFUSED } http_step;

typedef struct http_reader {
    http_request request;
    api_error error; /* with HTTP_STEP_REFUSED */
    /* private */
    llhttp_t llhttp;
    http_limits limits;
    size_t field; /* offset in request.text where the string being read begins */
    size_t head_bytes, frame_bytes, counted;
    size_t line_bytes, lines;
    bool head_done, done;
} http_reader;

void http_reader_init(http_reader *r, const http_limits *limits);
void http_reader_free(http_reader *r);
/* Forgets the request and begins a new one. */
void http_reader_reset(http_reader *r);
/* Reads from data [n]; *used bytes were consumed; call again with the rest while there is any, and after
 * HTTP_STEP_HEAD also with none: a request without a body is done then. */
http_step http_reader_feed(http_reader *r, const char *data, size_t n, size_t *used);
/* True before the first byte of a request. */
bool http_reader_idle(const http_reader *r);
/* Frees the body early: it no longer counts as held. */
void http_reader_drop_body(http_reader *r);
/* The body is the caller's from here on (buffer_free); it counts as held until dropped or reset. */
buffer http_reader_take_body(http_reader *r);

/* The value of the header (lower-case name), or NULL; of several, the first. */
const char *http_request_header(const http_request *request, const char *name);
/* Path and query as sent. */
const char *http_request_target(const http_request *request);
bool http_request_path_is(const http_request *request, const char *path);

#endif

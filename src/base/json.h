/* json.h: JSON from outside.  A strict pull reader (the only JSON scanner in calla) and, on top of it, json-c trees.
 *
 * Strict means RFC 8259 and more: valid UTF-8 without encoded surrogates, no raw control characters in strings, no NaN, Infinity,
 * single quotes, comments or trailing commas, integers within 64 bits, nesting at most `max_depth`, nothing after the value.
 * Lone surrogate escapes (\ud800) are accepted and become U+FFFD: agents send them and resend their history.  \u0000 is accepted in
 * strings and refused in keys (a tree's keys are C strings). */
#ifndef CALLA_BASE_JSON_H
#define CALLA_BASE_JSON_H

#include <json-c/json.h>

#include "base/buffer.h"
#include "base/error.h"

#define JSON_MAX_DEPTH 128

typedef enum json_token {
    JSON_END,   /* the whole document was read */
    JSON_ERROR, /* see reader->error */
    JSON_OBJECT_BEGIN,
    JSON_OBJECT_END,
    JSON_ARRAY_BEGIN,
    JSON_ARRAY_END,
    JSON_KEY,    /* text: decoded */
    JSON_STRING, /* text: decoded */
    JSON_NUMBER, /* text: as written; is_integer, integer */
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
} json_token;

typedef struct json_reader {
    const char *data; /* [n], must outlive the reader */
    size_t n, at;     /* at: offset of the next byte to read */
    const char *text; /* [n_text] of a key, string or number; valid until the next call; points into data where nothing was escaped */
    size_t n_text;
    bool is_integer;
    int64_t integer;           /* of an integer in int64 range */
    uint64_t unsigned_integer; /* of an integer in uint64 range */
    bool fits_signed, fits_unsigned;
    char error[160]; /* what is wrong, with the byte offset */
    /* private */
    buffer scratch;
    unsigned depth;
    uint64_t kinds[(JSON_MAX_DEPTH + 63) / 64]; /* bit d: level d is an object */
    unsigned char state;
} json_reader;

void json_reader_init(json_reader *r, const char *data, size_t n);
void json_reader_free(json_reader *r);
json_token json_next(json_reader *r);
/* Skips the value that begins with the token just returned (no-op for scalars).  false on error. */
bool json_skip(json_reader *r, json_token token);

/* The whole document as a json-c tree: key order and the text of non-integers are kept, duplicate keys: the last wins.  JSON null is
 * NULL, also as the root.
 * Errors are CALLA_E_FORMAT and start with `what` (a file's name or "body") and the place. */
calla_status json_parse(const char *data, size_t n, const char *what, json_object **out, calla_error *err);

/* Appends s [n] as a JSON string with quotes, escaping only what JSON demands (as Python's json.dumps(ensure_ascii=False)). */
void json_append_string(buffer *b, const char *s, size_t n);
void json_append_str(buffer *b, const char *s);

#endif

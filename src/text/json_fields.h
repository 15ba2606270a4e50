/* json_fields.h: reading a JSON object by a table of its fields, straight from the pull reader.
 *
 * For files whose every field matters: a field that is missing, stands twice, is unknown or has a value that is not implemented is an
 * error that names it.  Knows nothing of what the fields mean. */
#ifndef CALLA_TEXT_JSON_FIELDS_H
#define CALLA_TEXT_JSON_FIELDS_H

#include "base/json.h"

typedef struct json_source {
    json_reader reader;
    const char *file; /* for messages */
    calla_error *err;
} json_source;

/* Reads the value whose first token was just returned. */
typedef calla_status (*json_read_fn)(void *user, json_source *s, json_token token);

typedef struct json_field {
    const char *name;
    bool required;
    const char *allowed; /* JSON texts of scalars, separated by '|'; NULL: anything, which `read` reads or which is skipped */
    json_read_fn read;
} json_field;

typedef struct json_fields {
    const char *where;        /* the object's place in the file, such as "model"; "": the file itself */
    const json_field *fields; /* [n], n <= 32 */
    size_t n;
    bool open; /* unknown fields are skipped; else they must be null or false, which is what an option that is off looks like */
} json_fields;

/* token is the first of the value, which must be an object. */
calla_status json_read_fields(const json_fields *f, void *user, json_source *s, json_token token);

/* JSON_ERROR's message, or that `expected` is not what stands there. */
calla_status json_unexpected(json_source *s, json_token token, const char *where, const char *expected);

/* Length of the longest beginning of s [n] of at most max bytes that does not cut a character: for messages. */
size_t json_cut(const char *s, size_t n, size_t max);

#endif

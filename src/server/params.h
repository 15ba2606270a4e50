/* params.h: fields of a request's JSON object, read by a table.  A field is honoured, harmless (accepted without effect and named in the
 * x-calla-ignored header of the reply) or refused (it would change the answer, and calla cannot do it).  Fields that no table knows are
 * harmless.  A null is an absent field.  docs/api.md is printed from the same tables. */
#ifndef CALLA_SERVER_PARAMS_H
#define CALLA_SERVER_PARAMS_H

#include <stdbool.h>

#include "base/json.h"
#include "server/api_error.h"

typedef enum param_kind {
    PARAM_HARMLESS,
    PARAM_REFUSED, /* unless harmless(value) */
    PARAM_BOOL,    /* bool at offset */
    PARAM_UINT,    /* uint32_t, min … max */
    PARAM_FLOAT,   /* float, min … max */
    PARAM_CUSTOM   /* read(request, name, value, e) */
} param_kind;

typedef struct param {
    const char *name;
    param_kind kind;
    size_t offset;
    double min, max;
    size_t said_offset; /* a bool that becomes true when the field is there; 0: none */
    bool (*read)(void *request, const char *name, json_object *value, api_error *e);
    bool (*harmless)(json_object *value);
    const char *type; /* of a custom one, for the documentation: "string", "object" … */
    const char *help; /* one line for the documentation; of a refused one: what to do instead, also told to the client */
} param;

typedef struct param_table {
    const char *prefix; /* of the names in messages: "" or "stream_options." */
    const param *rows;  /* [n] */
    size_t n;
    const struct param_table *more; /* looked at for what is not in rows; NULL */
} param_table;

/* Reads all fields of object into request.  Names of fields without effect are appended to ignored, comma-separated.  False with e
 * filled in, e.param naming the field (after prefix), if one has the wrong type or range or is refused. */
bool params_read(const param_table *table, json_object *object, void *request, buffer *ignored, api_error *e);

/* A number without a fraction within min … max. */
bool params_integer(json_object *value, int64_t min, int64_t max, int64_t *out);

/* object.name, or NULL where object is none or has none. */
json_object *params_member(json_object *object, const char *name);
/* value as a string, or NULL where it is none or holds a NUL. */
const char *params_string(json_object *value);

/* Values that ask for nothing, for param.harmless. */
bool params_is_false(json_object *value);
bool params_is_one(json_object *value);   /* the number */
bool params_is_empty(json_object *value); /* an array, an object or a string */

#endif

/* fields.h: reading the fields of a JSON object with checks, every error naming file, field, value and what was expected.
 *
 * Failure sticks: after the first error all reads return the default and change nothing; look at status once at the end.  A field
 * that is null counts as absent. */
#ifndef CALLA_WEIGHTS_FIELDS_H
#define CALLA_WEIGHTS_FIELDS_H

#include "base/error.h"
#include "base/json.h"

typedef struct fields {
    json_object *object; /* borrowed */
    const char *file;    /* as errors print it */
    const char *path;    /* "" or the path of the object with a final dot: "text_config." */
    calla_status status;
    calla_error *err;
} fields;

/* A field's value, borrowed, or NULL. */
json_object *fields_get(const fields *f, const char *name);
/* The field as an object; NULL if absent or after a failure. */
json_object *fields_object(fields *f, const char *name);
/* A whole number in [min, max]; required. */
uint32_t fields_u32(fields *f, const char *name, uint32_t min, uint32_t max);
/* A number in [min, max], `absent` if the field is. */
double fields_number(fields *f, const char *name, double min, double max, double absent);
bool fields_bool(fields *f, const char *name, bool absent);
/* Records that the field must have been `expected`, with status FORMAT (malformed) or UNSUPPORTED. */
void fields_fail(fields *f, calla_status status, const char *name, const char *expected);

/* Only one value is implemented: absent or equal is fine, anything else is CALLA_E_UNSUPPORTED. */
void fields_only_bool(fields *f, const char *name, bool value);
void fields_only_string(fields *f, const char *name, const char *value);

/* value [64] gets the text of v for an error message, cut to fit. */
const char *fields_show(json_object *v, char value[64]);

#endif

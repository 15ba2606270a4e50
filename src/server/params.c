/* params.c: see params.h. */
#include "server/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_IGNORED_BYTES = 512 };

json_object *params_member(json_object *object, const char *name) {
    json_object *value = NULL;
    if (json_object_is_type(object, json_type_object)) json_object_object_get_ex(object, name, &value);
    return value;
}

const char *params_string(json_object *value) {
    if (!json_object_is_type(value, json_type_string)) return NULL;
    const char *s = json_object_get_string(value);
    return strlen(s) == (size_t)json_object_get_string_len(value) ? s : NULL;
}

bool params_is_false(json_object *value) { return json_object_is_type(value, json_type_boolean) && !json_object_get_boolean(value); }

bool params_is_one(json_object *value) {
    return (json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double)) &&
           json_object_get_double(value) == 1;
}

bool params_is_empty(json_object *value) {
    if (json_object_is_type(value, json_type_array)) return !json_object_array_length(value);
    if (json_object_is_type(value, json_type_object)) return !json_object_object_length(value);
    return json_object_is_type(value, json_type_string) && !json_object_get_string_len(value);
}

bool params_integer(json_object *value, int64_t min, int64_t max, int64_t *out) {
    int64_t i;
    if (json_object_is_type(value, json_type_int)) {
        i = json_object_get_int64(value);
    } else if (json_object_is_type(value, json_type_double)) { /* 5.0 */
        const double d = json_object_get_double(value);
        if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || floor(d) != d) return false;
        i = (int64_t)d;
    } else
        return false;
    *out = i;
    return i >= min && i <= max;
}

static bool read_uint(const param *p, const char *name, json_object *value, uint32_t *out, api_error *e) {
    int64_t i = 0;
    if (!params_integer(value, (int64_t)p->min, (int64_t)p->max, &i))
        return api_error_set(e, 400, NULL, name, "%s must be an integer from %lld to %lld", name, (long long)p->min, (long long)p->max);
    *out = (uint32_t)i;
    return true;
}

static bool read_float(const param *p, const char *name, json_object *value, float *out, api_error *e) {
    const bool number = json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    const double d = number ? json_object_get_double(value) : NAN;
    if (!(d >= p->min && d <= p->max)) return api_error_set(e, 400, NULL, name, "%s must be a number from %g to %g", name, p->min, p->max);
    *out = (float)d;
    return true;
}

/* Names come from the client: only what can stand in a header line is repeated there. */
static void note_ignored(buffer *ignored, const char *name) {
    const size_t n = strlen(name);
    if (!n || n > 64 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != n) return;
    if (ignored->n + n + 2 > MAX_IGNORED_BYTES) return;
    if (ignored->n) buffer_append_str(ignored, ", ");
    buffer_append(ignored, name, n);
}

static bool read_one(const param *p, const char *name, json_object *value, void *request, buffer *ignored, api_error *e) {
    void *at = (char *)request + p->offset;
    if (p->said_offset) *(bool *)((char *)request + p->said_offset) = true;
    switch (p->kind) {
    case PARAM_BOOL:
        if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
        *(bool *)at = json_object_get_boolean(value);
        return true;
    case PARAM_UINT: return read_uint(p, name, value, at, e);
    case PARAM_FLOAT: return read_float(p, name, value, at, e);
    case PARAM_CUSTOM: return p->read(request, name, value, e);
    case PARAM_REFUSED:
        if (p->harmless && p->harmless(value)) return true;
        return api_error_set(e, 400, "unsupported_parameter", name, "%s is not supported: %s", name, p->help);
    default: note_ignored(ignored, name); return true;
    }
}

static const param *find(const param_table *table, const char *key) {
    for (; table; table = table->more)
        for (size_t i = 0; i < table->n; i++)
            if (!strcmp(table->rows[i].name, key)) return &table->rows[i];
    static const param unknown = {.kind = PARAM_HARMLESS};
    return &unknown;
}

bool params_read(const param_table *table, json_object *object, void *request, buffer *ignored, api_error *e) {
    json_object_object_foreach(object, key, value) {
        if (!value) continue;
        char name[128];
        snprintf(name, sizeof name, "%s%.100s", table->prefix, key);
        if (!read_one(find(table, key), name, value, request, ignored, e)) return false;
    }
    return true;
}

/* fields.c: see fields.h. */
#include "weights/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *fields_show(json_object *v, char value[64]) {
    const char *s = v ? json_object_to_json_string_ext(v, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE) : "missing";
    if (!s) s = "?"; /* out of memory while printing: the message matters more */
    size_t n = strlen(s);
    if (n >= 64) {
        for (n = 60; n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80;) n--; /* not in the middle of a character */
    }
    snprintf(value, 64, "%.*s%s", (int)n, s, s[n] ? "..." : "");
    return value;
}

json_object *fields_get(const fields *f, const char *name) {
    json_object *v = NULL;
    if (!f->object || !json_object_object_get_ex(f->object, name, &v)) return NULL;
    return v;
}

void fields_fail(fields *f, calla_status status, const char *name, const char *expected) {
    char value[64];
    if (f->status) return;
    fields_show(fields_get(f, name), value);
    f->status = error_set(f->err, status, "%s: %s%s is %s, expected %s", f->file, f->path, name, value, expected);
}

json_object *fields_object(fields *f, const char *name) {
    json_object *v = fields_get(f, name);
    if (f->status || !v) return NULL;
    if (json_object_is_type(v, json_type_object)) return v;
    fields_fail(f, CALLA_E_FORMAT, name, "an object");
    return NULL;
}

uint32_t fields_u32(fields *f, const char *name, uint32_t min, uint32_t max) {
    if (f->status) return min;
    json_object *v = fields_get(f, name);
    if (v && json_object_is_type(v, json_type_int)) {
        const int64_t n = json_object_get_int64(v); /* beyond 2^63 - 1 it saturates: out of range as well */
        if (n >= min && n <= max) return (uint32_t)n;
    }
    char expected[80];
    snprintf(expected, sizeof expected, min == max ? "%u" : "a whole number from %u to %u", min, max);
    fields_fail(f, min == max ? CALLA_E_UNSUPPORTED : CALLA_E_FORMAT, name, expected);
    return min;
}

double fields_number(fields *f, const char *name, double min, double max, double absent) {
    json_object *v = fields_get(f, name);
    if (f->status || !v) return absent;
    if (json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double)) {
        const double x = json_object_get_double(v);
        if (isfinite(x) && x >= min && x <= max) return x;
    }
    char expected[80];
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    fields_fail(f, CALLA_E_FORMAT, name, expected);
    return absent;
}

bool fields_bool(fields *f, const char *name, bool absent) {
    json_object *v = fields_get(f, name);
    if (f->status || !v) return absent;
    if (json_object_is_type(v, json_type_boolean)) return json_object_get_boolean(v);
    fields_fail(f, CALLA_E_FORMAT, name, "true or false");
    return absent;
}

void fields_only_bool(fields *f, const char *name, bool value) {
    if (fields_bool(f, name, value) != value) fields_fail(f, CALLA_E_UNSUPPORTED, name, value ? "true" : "false");
}

void fields_only_string(fields *f, const char *name, const char *value) {
    json_object *v = fields_get(f, name);
    if (f->status || !v) return;
    if (json_object_is_type(v, json_type_string) && !strcmp(json_object_get_string(v), value)) return;
    char expected[80];
    snprintf(expected, sizeof expected, "\"%.70s\"", value);
    fields_fail(f, json_object_is_type(v, json_type_string) ? CALLA_E_UNSUPPORTED : CALLA_E_FORMAT, name, expected);
}

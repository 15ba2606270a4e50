/* template_value.c: values as Python prints them: json.dumps(value, ensure_ascii=False) and str(value); and looking into them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_value.h"

/* text is d.ddde±xx: one more in the last place of its digits; false if all are nines. */
static bool increment_digits(char *text) {
    char *p = strchr(text, 'e');
    while (p-- > text) {
        if (*p == '.') continue;
        if (*p != '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

/* The shortest decimal that reads back as v, v finite and not negative: its digits (no point), and *exponent of the first digit.  Returns
 * their number.  Below a power of two the doubles lie closer, so that the nearest decimal may read back as the one below and the next
 * decimal as v: 2^-44 is 5.684341886080802e-14. */
static int shortest_digits(double v, char digits[20], int *exponent) {
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v) break;
        if (increment_digits(text) && strtod(text, NULL) == v) break;
    }
    int n = 0;
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    *exponent = *p ? atoi(p + 1) : 0;
    return n;
}

/* float.__repr__: plain notation where the first digit's exponent is in -4 … 15, always with a point or an exponent. */
void value_append_float(buffer *out, double v) {
    char digits[20] = "";
    int exponent;
    if (signbit(v)) buffer_append_char(out, '-');
    v = fabs(v);
    const int n = shortest_digits(v, digits, &exponent);
    if (exponent < -4 || exponent > 15) {
        buffer_append_char(out, digits[0]);
        if (n > 1) {
            buffer_append_char(out, '.');
            buffer_append(out, digits + 1, (size_t)(n - 1));
        }
        buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        buffer_append_str(out, "0.");
        for (int i = -1; i > exponent; i--) buffer_append_char(out, '0');
        buffer_append(out, digits, (size_t)n);
    } else {
        for (int i = 0; i <= exponent; i++) buffer_append_char(out, i < n ? digits[i] : '0');
        buffer_append_char(out, '.');
        if (n > exponent + 1)
            buffer_append(out, digits + exponent + 1, (size_t)(n - exponent - 1));
        else
            buffer_append_char(out, '0');
    }
}

void value_append_integer(buffer *out, json_object *value) {
    const int64_t v = json_object_get_int64(value); /* saturates */
    if (v == INT64_MAX)
        buffer_printf(out, "%llu", (unsigned long long)json_object_get_uint64(value));
    else
        buffer_printf(out, "%lld", (long long)v);
}

static void append_object(buffer *out, json_object *value) {
    const char *separator = "";
    buffer_append_char(out, '{');
    json_object_object_foreach(value, key, member) {
        buffer_append_str(out, separator);
        json_append_str(out, key);
        buffer_append_str(out, ": ");
        template_tojson(out, member);
        separator = ", ";
    }
    buffer_append_char(out, '}');
}

static void append_array(buffer *out, json_object *value) {
    const size_t n = json_object_array_length(value);
    buffer_append_char(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i) buffer_append_str(out, ", ");
        template_tojson(out, json_object_array_get_idx(value, i));
    }
    buffer_append_char(out, ']');
}

void template_tojson(buffer *out, json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: buffer_append_str(out, "null"); break;
    case json_type_boolean: buffer_append_str(out, json_object_get_boolean(value) ? "true" : "false"); break;
    case json_type_int: value_append_integer(out, value); break;
    case json_type_double: {
        const double v = json_object_get_double(value);
        if (isinf(v))
            buffer_append_str(out, v < 0 ? "-Infinity" : "Infinity"); /* 1e400 */
        else if (isnan(v))
            buffer_append_str(out, "NaN");
        else
            value_append_float(out, v);
        break;
    }
    case json_type_string: json_append_string(out, json_object_get_string(value), (size_t)json_object_get_string_len(value)); break;
    case json_type_object: append_object(out, value); break;
    case json_type_array: append_array(out, value); break;
    }
}

bool value_append_str(buffer *out, json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: buffer_append_str(out, "None"); return true;
    case json_type_boolean: buffer_append_str(out, json_object_get_boolean(value) ? "True" : "False"); return true;
    case json_type_int: value_append_integer(out, value); return true;
    case json_type_double: {
        const double v = json_object_get_double(value);
        if (isinf(v))
            buffer_append_str(out, v < 0 ? "-inf" : "inf");
        else if (isnan(v))
            buffer_append_str(out, "nan");
        else
            value_append_float(out, v);
        return true;
    }
    case json_type_string: buffer_append(out, json_object_get_string(value), (size_t)json_object_get_string_len(value)); return true;
    default: return false;
    }
}

bool value_is(json_object *value, const char *s) {
    if (!json_object_is_type(value, json_type_string)) return false;
    const size_t n = strlen(s);
    return (size_t)json_object_get_string_len(value) == n && memcmp(json_object_get_string(value), s, n) == 0;
}

json_object *value_get(json_object *value, const char *key) {
    json_object *member = NULL;
    if (json_object_is_type(value, json_type_object)) json_object_object_get_ex(value, key, &member);
    return member;
}

bool value_has(json_object *value, const char *key) {
    return json_object_is_type(value, json_type_object) && json_object_object_get_ex(value, key, NULL);
}

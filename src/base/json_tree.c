/* json_tree.c: json-c trees built from the pull reader, and writing strings.
 *
 * json-c's own parser is not used: it saturates integers beyond 64 bits, accepts NaN and single quotes, and the reader has read the
 * text once already.  What json-c gives is the tree: ordered objects, strings with a length, doubles that keep their text.  Its
 * nodes come from malloc, not from base/memory.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* A scalar as a json-c node; JSON null is NULL there.  false when out of memory. */
static bool new_scalar(const json_reader *r, json_token token, buffer *number, json_object **out) {
    *out = NULL;
    switch (token) {
    case JSON_NULL: return true;
    case JSON_TRUE:
    case JSON_FALSE: *out = json_object_new_boolean(token == JSON_TRUE); break;
    case JSON_STRING: *out = json_object_new_string_len(r->text, (int)r->n_text); break;
    default:
        if (r->is_integer) {
            *out = r->fits_signed ? json_object_new_int64(r->integer) : json_object_new_uint64(r->unsigned_integer);
            break;
        }
        buffer_clear(number);
        buffer_append(number, r->text, r->n_text);
        if (number->failed) return false;
        *out = json_object_new_double_s(strtod(number->data, NULL), number->data);
    }
    return *out != NULL;
}

/* Puts value (owned by this call) where it belongs. */
static bool attach(json_object *parent, const char *key, json_object *value) {
    const int rc = key ? json_object_object_add(parent, key, value) : json_object_array_add(parent, value);
    if (rc < 0) json_object_put(value);
    return rc == 0;
}

/* What a tree may cost: a text of 64 MB would else become one of 17 GB, since an empty object of json-c takes 800 bytes, an array that
 * begins small 150, a scalar about 70. */
enum { MAX_COST = 8 << 20, CONTAINER_COST = 16 };

/* Builds the tree.  `key` holds the key whose value comes next; levels [depth] are the open objects and arrays, each owned by the
 * one before it and the first by *root. */
static bool build(json_reader *r, buffer *key, buffer *number, json_object **root) {
    json_object *levels[JSON_MAX_DEPTH + 1] = {0};
    size_t depth = 0, cost = 0;
    for (;;) {
        const json_token token = json_next(r);
        json_object *value = NULL;
        switch (token) {
        case JSON_END: return true;
        case JSON_ERROR: return false;
        case JSON_OBJECT_END:
        case JSON_ARRAY_END: depth--; continue;
        case JSON_KEY:
            buffer_clear(key);
            buffer_append(key, r->text, r->n_text);
            if (key->failed) return false;
            continue;
        case JSON_OBJECT_BEGIN: value = json_object_new_object(); break;
        case JSON_ARRAY_BEGIN: value = json_object_new_array_ext(1); break; /* else room for 32, which most have not */
        default:
            if (!new_scalar(r, token, number, &value)) return false;
        }
        const bool opens = token == JSON_OBJECT_BEGIN || token == JSON_ARRAY_BEGIN;
        if (opens && !value) return false;
        if ((cost += opens ? CONTAINER_COST : 1) > MAX_COST) {
            snprintf(r->error, sizeof r->error, "too many values");
            json_object_put(value);
            return false;
        }
        if (depth == 0) {
            *root = value;
        } else {
            json_object *parent = levels[depth - 1];
            if (!attach(parent, json_object_is_type(parent, json_type_object) ? key->data : NULL, value)) return false;
        }
        if (opens) levels[depth++] = value;
    }
}

calla_status json_parse(const char *data, size_t n, const char *what, json_object **out, calla_error *err) {
    *out = NULL;
    if (n > INT_MAX) return error_set(err, CALLA_E_LIMIT, "%s: %zu bytes of JSON; at most %d are accepted", what, n, INT_MAX);
    json_reader r;
    buffer key = {.max = n + 1}, number = {.max = n + 1};
    json_object *root = NULL;
    json_reader_init(&r, data, n);
    const bool ok = build(&r, &key, &number, &root);
    calla_status status = CALLA_OK;
    if (!ok) {
        if (r.error[0] && !r.scratch.failed)
            status = error_set(err, CALLA_E_FORMAT, "%s: %s", what, r.error);
        else
            status = error_nomem(err, what);
        json_object_put(root);
        root = NULL;
    }
    json_reader_free(&r);
    buffer_free(&key);
    buffer_free(&number);
    *out = root;
    return status;
}

void json_append_string(buffer *b, const char *s, size_t n) {
    size_t done = 0;
    buffer_append_char(b, '"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        buffer_append(b, s + done, i - done);
        done = i + 1;
        switch (c) {
        case '"': buffer_append_str(b, "\\\""); break;
        case '\\': buffer_append_str(b, "\\\\"); break;
        case '\b': buffer_append_str(b, "\\b"); break;
        case '\f': buffer_append_str(b, "\\f"); break;
        case '\n': buffer_append_str(b, "\\n"); break;
        case '\r': buffer_append_str(b, "\\r"); break;
        case '\t': buffer_append_str(b, "\\t"); break;
        default: buffer_printf(b, "\\u%04x", c);
        }
    }
    buffer_append(b, s + done, n - done);
    buffer_append_char(b, '"');
}

void json_append_str(buffer *b, const char *s) { json_append_string(b, s, strlen(s)); }

/* json_fields.c: see json_fields.h. */
#include "text/json_fields.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

calla_status json_unexpected(json_source *s, json_token token, const char *where, const char *expected) {
    if (token == JSON_ERROR) {
        if (s->reader.scratch.failed) return error_nomem(s->err, s->file);
        return error_set(s->err, CALLA_E_FORMAT, "%s: not JSON: %s", s->file, s->reader.error);
    }
    return error_set(s->err, CALLA_E_FORMAT, "%s: %s is not %s (byte %zu)", s->file, *where ? where : "the file", expected, s->reader.at);
}

size_t json_cut(const char *s, size_t n, size_t max) {
    if (n <= max) return n;
    while (max && ((unsigned char)s[max] & 0xC0) == 0x80) max--;
    return max;
}

/* A scalar as JSON text, cut to fit (also at a NUL); "" for an object or an array. */
static void print_scalar(const json_reader *r, json_token token, char *out, size_t cap) {
    const bool has_text = token == JSON_NUMBER || token == JSON_STRING;
    const int n = has_text && !memchr(r->text, 0, r->n_text) ? (int)json_cut(r->text, r->n_text, cap - 8) : 0;
    switch (token) {
    case JSON_NULL: snprintf(out, cap, "null"); break;
    case JSON_TRUE: snprintf(out, cap, "true"); break;
    case JSON_FALSE: snprintf(out, cap, "false"); break;
    case JSON_NUMBER: snprintf(out, cap, "%.*s", n, r->text); break;
    case JSON_STRING: snprintf(out, cap, (size_t)n == r->n_text ? "\"%.*s\"" : "\"%.*s…", n, r->text); break;
    default: out[0] = 0;
    }
}

static bool is_allowed(const char *allowed, const char *value) {
    const size_t n = strlen(value);
    for (const char *p = allowed; n && p; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, value, n) == 0 && (p[n] == '|' || !p[n])) return true;
    }
    return false;
}

static calla_status refuse_value(json_source *s, const char *where, const char *name, const char *value, const char *allowed) {
    return error_set(s->err, CALLA_E_UNSUPPORTED, "%s: %s%s%s is %s, and calla implements only %s: use the model's own file", s->file,
                     where, *where ? "." : "", name, *value ? value : "an object or array", allowed);
}

static calla_status read_field(const json_fields *f, const json_field *field, void *user, json_source *s) {
    const json_token token = json_next(&s->reader);
    if (token == JSON_ERROR) return json_unexpected(s, token, field->name, "a value");
    if (field->read) return field->read(user, s, token);
    if (field->allowed) {
        char value[96]; /* longer than any allowed one */
        print_scalar(&s->reader, token, value, sizeof value);
        if (!is_allowed(field->allowed, value)) return refuse_value(s, f->where, field->name, value, field->allowed);
    }
    return json_skip(&s->reader, token) ? CALLA_OK : json_unexpected(s, JSON_ERROR, field->name, "a value");
}

static calla_status read_unknown(const json_fields *f, const char *name, json_source *s) {
    const json_token token = json_next(&s->reader);
    if (token == JSON_ERROR) return json_unexpected(s, token, name, "a value");
    if (!f->open && token != JSON_NULL && token != JSON_FALSE)
        return error_set(s->err, CALLA_E_UNSUPPORTED, "%s: %s%s%s is unknown to calla and may change the result: use the model's own file",
                         s->file, f->where, *f->where ? "." : "", name);
    return json_skip(&s->reader, token) ? CALLA_OK : json_unexpected(s, JSON_ERROR, name, "a value");
}

calla_status json_read_fields(const json_fields *f, void *user, json_source *s, json_token token) {
    if (token != JSON_OBJECT_BEGIN) return json_unexpected(s, token, f->where, "an object");
    uint32_t seen = 0;
    while ((token = json_next(&s->reader)) == JSON_KEY) {
        const size_t n = s->reader.n_text;
        char name[NAME_MAX_BYTES]; /* the reader's text does not outlive the next token */
        snprintf(name, sizeof name, "%.*s", (int)json_cut(s->reader.text, n, sizeof name - 1), s->reader.text);
        size_t i = 0;
        while (i < f->n && (strlen(f->fields[i].name) != n || strcmp(f->fields[i].name, name) != 0)) i++;
        if (i < f->n && seen >> i & 1)
            return error_set(s->err, CALLA_E_FORMAT, "%s: %s%s%s stands twice", s->file, f->where, *f->where ? "." : "", name);
        if (i < f->n) seen |= UINT32_C(1) << i;
        const calla_status status = i < f->n ? read_field(f, &f->fields[i], user, s) : read_unknown(f, name, s);
        if (status) return status;
    }
    if (token != JSON_OBJECT_END) return json_unexpected(s, token, f->where, "an object");
    for (size_t i = 0; i < f->n; i++) {
        if (f->fields[i].required && !(seen >> i & 1))
            return error_set(s->err, CALLA_E_FORMAT, "%s: %s%s%s is missing", s->file, f->where, *f->where ? "." : "", f->fields[i].name);
    }
    return CALLA_OK;
}

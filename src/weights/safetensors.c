/* safetensors.c: see safetensors.h.  All arithmetic on numbers of the file is checked for overflow. */
#include "weights/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

typedef struct reader {
    json_reader json;
    const char *file;
    calla_error *err;
    st_tensor *tensors;
    size_t n, cap;
    buffer names;   /* NUL-terminated names, in the order of tensors, whose own name is set when the buffer has stopped growing */
    size_t name_at; /* of the last one */
    uint64_t data_begin, data_bytes;
    bool inside; /* the description of the tensor begun last */
} reader;

uint32_t st_dtype_bytes(const char *name, size_t n, const char **known) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } dtypes[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F64", 8}, {"U8", 1},   {"I8", 1},      {"U16", 2},    {"I16", 2},
                  {"U32", 4},  {"I32", 4}, {"U64", 8}, {"I64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strlen(dtypes[i].name) == n && !memcmp(dtypes[i].name, name, n)) {
            *known = dtypes[i].name;
            return dtypes[i].bytes;
        }
    }
    return 0;
}

bool st_name_valid(const char *name, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) return false;
    }
    return n > 0 && n <= ST_MAX_NAME;
}

/* The name of the tensor being read: the last one appended. */
static const char *current(const reader *r) { return r->names.data + r->name_at; }

__attribute__((format(printf, 2, 3))) static calla_status fail_tensor(reader *r, const char *format, ...) {
    char rule[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(rule, sizeof rule, format, ap);
    va_end(ap);
    return error_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: %s", r->file, current(r), rule);
}

static calla_status fail_json(reader *r, json_token token) {
    if (token != JSON_ERROR) {
        const unsigned long long before = r->json.at + 8;
        if (r->inside) return fail_tensor(r, "its description has a value of the wrong kind");
        return error_set(r->err, CALLA_E_FORMAT, "%s: the header has a value of the wrong kind before byte %llu of the file", r->file,
                         before);
    }
    if (r->json.scratch.failed) return error_nomem(r->err, "a string of a header");
    if (r->inside) return fail_tensor(r, "the header is not valid JSON: %s", r->json.error);
    return error_set(r->err, CALLA_E_FORMAT, "%s: the header is not valid JSON: %s", r->file, r->json.error);
}

static calla_status skip(reader *r) {
    json_token token = json_next(&r->json);
    return token != JSON_ERROR && json_skip(&r->json, token) ? CALLA_OK : fail_json(r, JSON_ERROR);
}

static calla_status fail_dtype(reader *r) {
    bool printable = r->json.n_text < 24;
    for (size_t i = 0; i < r->json.n_text; i++) printable &= r->json.text[i] > ' ' && r->json.text[i] < 0x7F;
    if (!printable) return fail_tensor(r, "unknown dtype");
    return fail_tensor(r, "unknown dtype %.*s", (int)r->json.n_text, r->json.text);
}

/* An array of at most max integers in [0, 2^64); *n is how many. */
static calla_status read_integers(reader *r, const char *what, uint64_t *out, uint32_t max, uint32_t *n) {
    json_token token = json_next(&r->json);
    if (token == JSON_ERROR) return fail_json(r, token);
    if (token != JSON_ARRAY_BEGIN) return fail_tensor(r, "%s is not an array", what);
    for (*n = 0;; (*n)++) {
        token = json_next(&r->json);
        if (token == JSON_ARRAY_END) return CALLA_OK;
        if (token == JSON_ERROR) return fail_json(r, token);
        if (token != JSON_NUMBER || !r->json.is_integer || !r->json.fits_unsigned)
            return fail_tensor(r, "%s holds something that is not a whole number from 0 to 2^64 - 1", what);
        if (*n == max) return fail_tensor(r, "%s holds more than %u numbers", what, max);
        out[*n] = r->json.unsigned_integer;
    }
}

static calla_status check_tensor(reader *r, st_tensor *t, uint32_t element_bytes, const uint64_t offsets[2]) {
    uint64_t bytes = element_bytes;
    for (uint32_t i = 0; i < t->dims; i++) {
        if (!t->shape[i]) return fail_tensor(r, "dimension %u is 0", i);
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes)) return fail_tensor(r, "its dimensions multiply to more than 2^64 bytes");
    }
    if (offsets[0] > offsets[1])
        return fail_tensor(r, "data_offsets [%llu, %llu] begin behind their end", (unsigned long long)offsets[0],
                           (unsigned long long)offsets[1]);
    if (offsets[1] > r->data_bytes)
        return fail_tensor(r, "data_offsets [%llu, %llu] reach past the end of the file, which has %llu bytes of data (is it cut short?)",
                           (unsigned long long)offsets[0], (unsigned long long)offsets[1], (unsigned long long)r->data_bytes);
    if (offsets[1] - offsets[0] != bytes)
        return fail_tensor(r, "data_offsets [%llu, %llu] span %llu bytes, its shape and dtype need %llu", (unsigned long long)offsets[0],
                           (unsigned long long)offsets[1], (unsigned long long)(offsets[1] - offsets[0]), (unsigned long long)bytes);
    t->begin = r->data_begin + offsets[0];
    t->bytes = bytes;
    return CALLA_OK;
}

static calla_status begin_tensor(reader *r) {
    const char *name = r->json.text;
    const size_t n = r->json.n_text;
    if (!st_name_valid(name, n))
        return error_set(r->err, CALLA_E_FORMAT, "%s: a tensor's name is empty, longer than %d bytes or holds a control character", r->file,
                         ST_MAX_NAME);
    if (r->n == ST_MAX_TENSORS) return error_set(r->err, CALLA_E_LIMIT, "%s: more than %d tensors", r->file, ST_MAX_TENSORS);
    r->name_at = r->names.n;
    buffer_append(&r->names, name, n);
    buffer_append_char(&r->names, 0);
    if (r->names.failed || mem_grow(&r->tensors, &r->cap, r->n + 1, sizeof *r->tensors, ST_MAX_TENSORS) < 0)
        return error_nomem(r->err, "a table of tensors");
    r->tensors[r->n++] = (st_tensor){0};
    return CALLA_OK;
}

/* The description of the tensor begun last. */
static calla_status read_tensor(reader *r) {
    st_tensor *t = &r->tensors[r->n - 1];
    uint32_t element_bytes = 0, n_offsets = 0;
    uint64_t offsets[2] = {0, 0};
    bool has_shape = false;
    json_token token = json_next(&r->json);
    if (token == JSON_ERROR) return fail_json(r, token);
    if (token != JSON_OBJECT_BEGIN) return fail_tensor(r, "its description is not an object");
    while ((token = json_next(&r->json)) == JSON_KEY) {
        calla_status status = CALLA_OK;
        const size_t n = r->json.n_text;
        if (n == 5 && !memcmp(r->json.text, "dtype", 5)) {
            token = json_next(&r->json);
            if (token == JSON_ERROR) return fail_json(r, token);
            if (t->dtype) return fail_tensor(r, "dtype is given twice");
            if (token != JSON_STRING) return fail_tensor(r, "dtype is not a string");
            element_bytes = st_dtype_bytes(r->json.text, r->json.n_text, &t->dtype);
            if (!element_bytes) return fail_dtype(r);
        } else if (n == 5 && !memcmp(r->json.text, "shape", 5)) {
            if (has_shape) return fail_tensor(r, "shape is given twice");
            has_shape = true;
            status = read_integers(r, "shape", t->shape, ST_MAX_DIMS, &t->dims);
        } else if (n == 12 && !memcmp(r->json.text, "data_offsets", 12)) {
            if (n_offsets) return fail_tensor(r, "data_offsets is given twice");
            status = read_integers(r, "data_offsets", offsets, 2, &n_offsets);
            if (!status && n_offsets != 2) return fail_tensor(r, "data_offsets must be two numbers");
        } else {
            status = skip(r);
        }
        if (status) return status;
    }
    if (token != JSON_OBJECT_END) return fail_json(r, token);
    if (!t->dtype) return fail_tensor(r, "dtype is missing");
    if (!has_shape) return fail_tensor(r, "shape is missing");
    if (!n_offsets) return fail_tensor(r, "data_offsets is missing");
    return check_tensor(r, t, element_bytes, offsets);
}

static int by_begin(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static calla_status check_unique(const reader *r) {
    const char **names = mem_array(r->n, sizeof *names);
    if (!names) return error_nomem(r->err, "a list of tensor names");
    for (size_t i = 0; i < r->n; i++) names[i] = r->tensors[i].name;
    qsort(names, r->n, sizeof *names, by_name);
    calla_status status = CALLA_OK;
    for (size_t i = 1; i < r->n && !status; i++) {
        if (!strcmp(names[i - 1], names[i]))
            status = error_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: the header lists it twice", r->file, names[i]);
    }
    mem_free(names);
    return status;
}

/* Tensors are sorted by begin (from the start of the file): each must start where the one before ended. */
static calla_status check_cover(const reader *r) {
    uint64_t end = r->data_begin;
    for (size_t i = 0; i < r->n; i++) {
        const st_tensor *t = &r->tensors[i];
        if (t->begin < end)
            return error_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: its data overlap those of tensor %s", r->file, t->name,
                             r->tensors[i - 1].name);
        if (t->begin > end)
            return error_set(r->err, CALLA_E_FORMAT, "%s: tensor %s: the %llu bytes before its data belong to no tensor", r->file, t->name,
                             (unsigned long long)(t->begin - end));
        end = t->begin + t->bytes;
    }
    const uint64_t file_end = r->data_begin + r->data_bytes;
    if (end != file_end)
        return error_set(r->err, CALLA_E_FORMAT, "%s: the last %llu bytes of the file belong to no tensor", r->file,
                         (unsigned long long)(file_end - end));
    return CALLA_OK;
}

static calla_status read_metadata(reader *r) {
    json_token token = json_next(&r->json);
    if (token != JSON_OBJECT_BEGIN) return fail_json(r, token);
    return json_skip(&r->json, token) ? CALLA_OK : fail_json(r, JSON_ERROR);
}

static calla_status read_object(reader *r) {
    calla_status status = CALLA_OK;
    json_token token = json_next(&r->json);
    if (token != JSON_OBJECT_BEGIN) return fail_json(r, token);
    while (!status && (token = json_next(&r->json)) == JSON_KEY) {
        if (r->json.n_text == 12 && !memcmp(r->json.text, "__metadata__", 12)) {
            status = read_metadata(r);
            continue;
        }
        status = begin_tensor(r);
        r->inside = true;
        if (!status) status = read_tensor(r);
        r->inside = false;
    }
    if (!status && token != JSON_OBJECT_END) status = fail_json(r, token);
    if (!status && (token = json_next(&r->json)) != JSON_END) status = fail_json(r, token);
    const char *name = r->names.data;
    for (size_t i = 0; i < r->n && !status; i++, name += strlen(name) + 1) r->tensors[i].name = name;
    return status;
}

calla_status st_header_read(const uint8_t *head, uint64_t n_head, uint64_t file_bytes, const char *file, st_header *out, calla_error *err) {
    *out = (st_header){0};
    if (n_head > file_bytes) n_head = file_bytes;
    if (n_head >= 8 && !memcmp(head, "version ", 8))
        return error_set(err, CALLA_E_FORMAT, "%s: a Git LFS pointer, not the weights themselves: fetch them with `git lfs pull`", file);
    if (n_head < 8)
        return error_set(err, CALLA_E_FORMAT, "%s: %llu bytes are too few for a safetensors file", file, (unsigned long long)file_bytes);
    uint64_t length;
    memcpy(&length, head, 8);
    if (length > ST_MAX_HEADER)
        return error_set(err, CALLA_E_FORMAT, "%s: its header would have %llu bytes, at most %d are allowed: not a safetensors file?", file,
                         (unsigned long long)length, ST_MAX_HEADER);
    if (length > n_head - 8)
        return error_set(err, CALLA_E_FORMAT, "%s: its header has %llu bytes, but only %llu follow: the file is cut short", file,
                         (unsigned long long)length, (unsigned long long)(n_head - 8));
    reader r = {.file = file, .err = err, .data_begin = 8 + length, .data_bytes = file_bytes - 8 - length};
    if (!length || head[8] != '{') return error_set(err, CALLA_E_FORMAT, "%s: its header does not begin with '{'", file);
    json_reader_init(&r.json, (const char *)head + 8, (size_t)length);
    calla_status status = read_object(&r);
    json_reader_free(&r.json);
    if (!status && !r.n) status = error_set(err, CALLA_E_FORMAT, "%s: holds no tensors", file);
    if (!status) status = check_unique(&r);
    if (!status) {
        qsort(r.tensors, r.n, sizeof *r.tensors, by_begin);
        status = check_cover(&r);
    }
    if (status) {
        mem_free(r.tensors);
        buffer_free(&r.names);
        return status;
    }
    *out = (st_header){.tensors = r.tensors, .n = r.n, .data_begin = r.data_begin, .names = buffer_take(&r.names)};
    return CALLA_OK;
}

void st_header_free(st_header *h) {
    mem_free(h->tensors);
    mem_free(h->names);
    *h = (st_header){0};
}

/* index.c: see index.h. */
#include "weights/index.h"

#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "weights/checkpoint.h"

typedef struct reader {
    json_reader json;
    const char *file;
    calla_error *err;
    shard_index *index;
} reader;

static calla_status fail_json(reader *r, json_token token, const char *expected) {
    if (token == JSON_ERROR && r->json.scratch.failed) return error_nomem(r->err, "a string of the index");
    if (token == JSON_ERROR) return error_set(r->err, CALLA_E_FORMAT, "%s: not valid JSON: %s", r->file, r->json.error);
    return error_set(r->err, CALLA_E_FORMAT, "%s: %s", r->file, expected);
}

/* A shard is a file of the same folder: an index must not be able to name any other. */
static bool is_base_name(const char *s, size_t n) {
    static const char end[] = ".safetensors";
    const size_t n_end = sizeof end - 1;
    if (n <= n_end || n > 255 || s[0] == '.' || memcmp(s + n - n_end, end, n_end) != 0) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '/' || s[i] == '\\' || (unsigned char)s[i] < 0x20 || s[i] == 0x7F) return false;
    }
    return true;
}

static calla_status find_shard(reader *r, uint32_t *out) {
    shard_index *x = r->index;
    const char *s = r->json.text;
    const size_t n = r->json.n_text;
    if (x->n) { /* nearly always the same as the one before */
        const uint32_t last = x->entries[x->n - 1].shard;
        if (strlen(x->shards[last]) == n && !memcmp(x->shards[last], s, n)) return *out = last, CALLA_OK;
    }
    for (uint32_t i = 0; i < x->n_shards; i++) {
        if (strlen(x->shards[i]) == n && !memcmp(x->shards[i], s, n)) return *out = i, CALLA_OK;
    }
    if (!is_base_name(s, n))
        return error_set(r->err, CALLA_E_FORMAT, "%s: weight_map: tensor %s: its shard is not a plain *.safetensors file name", r->file,
                         x->names.data + x->entries[x->n].name);
    if (x->n_shards == CHECKPOINT_MAX_SHARDS)
        return error_set(r->err, CALLA_E_LIMIT, "%s: more than %d shards", r->file, CHECKPOINT_MAX_SHARDS);
    if (mem_grow(&x->shards, &x->cap_shards, x->n_shards + 1, sizeof *x->shards, CHECKPOINT_MAX_SHARDS) < 0 ||
        !(x->shards[x->n_shards] = mem_strndup(s, n)))
        return error_nomem(r->err, "a list of shards");
    *out = (uint32_t)x->n_shards++;
    return CALLA_OK;
}

static calla_status read_entry(reader *r) { /* the reader stands behind a key */
    shard_index *x = r->index;
    const size_t n = r->json.n_text;
    if (!st_name_valid(r->json.text, n))
        return error_set(r->err, CALLA_E_FORMAT,
                         "%s: weight_map: a tensor's name is empty, longer than %d bytes or holds a control character", r->file,
                         ST_MAX_NAME);
    if (x->n == ST_MAX_TENSORS) return error_set(r->err, CALLA_E_LIMIT, "%s: more than %d tensors", r->file, ST_MAX_TENSORS);
    if (mem_grow(&x->entries, &x->cap, x->n + 1, sizeof *x->entries, ST_MAX_TENSORS) < 0) return error_nomem(r->err, "a list of tensors");
    x->entries[x->n].name = x->names.n;
    buffer_append(&x->names, r->json.text, n);
    buffer_append_char(&x->names, 0);
    if (x->names.failed) return error_nomem(r->err, "a list of tensors");
    const json_token token = json_next(&r->json);
    if (token != JSON_STRING) return fail_json(r, token, "weight_map: a value is not the name of a file");
    calla_status status = find_shard(r, &x->entries[x->n].shard);
    if (!status) x->n++;
    return status;
}

static calla_status read_object(reader *r) {
    json_token token = json_next(&r->json);
    bool found = false;
    if (token != JSON_OBJECT_BEGIN) return fail_json(r, token, "not a JSON object");
    while ((token = json_next(&r->json)) == JSON_KEY) {
        const bool is_map = r->json.n_text == 10 && !memcmp(r->json.text, "weight_map", 10);
        token = json_next(&r->json);
        if (token == JSON_ERROR) return fail_json(r, token, "");
        if (!is_map) {
            if (!json_skip(&r->json, token)) return fail_json(r, JSON_ERROR, "");
            continue;
        }
        if (found) return error_set(r->err, CALLA_E_FORMAT, "%s: weight_map is given twice", r->file);
        if (token != JSON_OBJECT_BEGIN) return fail_json(r, token, "weight_map is not an object");
        found = true;
        while ((token = json_next(&r->json)) == JSON_KEY) {
            calla_status status = read_entry(r);
            if (status) return status;
        }
        if (token != JSON_OBJECT_END) return fail_json(r, token, "weight_map is malformed");
    }
    if (token != JSON_OBJECT_END) return fail_json(r, token, "malformed");
    if ((token = json_next(&r->json)) != JSON_END) return fail_json(r, token, "something follows the object");
    if (!r->index->n) return error_set(r->err, CALLA_E_FORMAT, "%s: weight_map %s", r->file, found ? "is empty" : "is missing");
    return CALLA_OK;
}

calla_status index_parse(const char *json, size_t n, const char *file, shard_index *out, calla_error *err) {
    *out = (shard_index){0};
    reader r = {.file = file, .err = err, .index = out};
    json_reader_init(&r.json, json, n);
    calla_status status = read_object(&r);
    json_reader_free(&r.json);
    return status;
}

void index_free(shard_index *x) {
    for (size_t i = 0; i < x->n_shards; i++) mem_free(x->shards[i]);
    mem_free(x->shards);
    mem_free(x->entries);
    buffer_free(&x->names);
    *x = (shard_index){0};
}

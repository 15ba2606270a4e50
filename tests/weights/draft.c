/* draft.c: see draft.h. */
#include "draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "support/temp_dir.h"
#include "unit.h"

static uint32_t parse_shape(const char *text, uint64_t shape[8]) {
    uint32_t n = 0;
    for (char *end; *text; text = *end ? end + 1 : end) shape[n++] = strtoull(text, &end, 10);
    return n;
}

static uint64_t dtype_bytes(const char *dtype) { return !strcmp(dtype, "BF16") || !strcmp(dtype, "F16") ? 2 : 4; }

static bool copy_tensor(void *user, const tensor_info *t) {
    draft *d = user;
    assert_true(d->n < DRAFT_MAX);
    draft_tensor *out = &d->tensors[d->n++];
    *out = (draft_tensor){.dims = t->dims, .bytes = t->bytes, .data = malloc(t->bytes)};
    snprintf(out->name, sizeof out->name, "%s", t->name);
    snprintf(out->dtype, sizeof out->dtype, "%s", t->dtype);
    memcpy(out->shape, t->shape, sizeof out->shape);
    memcpy(out->data, t->data, t->bytes);
    return true;
}

draft *draft_open(const char *from) {
    draft *d = calloc(1, sizeof *d);
    weights *w;
    calla_error err;
    if (weights_open(from, &w, &err)) fail_msg("%s", err.message);
    weights_each_tensor(w, copy_tensor, d);
    weights_close(w);
    char *text = slurp_file(from, "config.json", NULL);
    d->config = json_tokener_parse(text);
    free(text);
    d->dir = temp_dir_new();
    return d;
}

void draft_close(draft *d) {
    for (size_t i = 0; i < d->n; i++) free(d->tensors[i].data);
    json_object_put(d->config);
    json_object_put(d->map);
    temp_dir_remove(d->dir);
    free(d->generation);
    free(d);
}

draft_tensor *draft_find(draft *d, const char *name) {
    for (size_t i = 0; i < d->n; i++) {
        if (!strcmp(d->tensors[i].name, name)) return &d->tensors[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

void draft_remove(draft *d, const char *name) {
    draft_tensor *t = draft_find(d, name);
    free(t->data);
    memmove(t, t + 1, (size_t)(d->tensors + --d->n - t) * sizeof *t);
}

draft_tensor *draft_add(draft *d, const char *name, const char *dtype, const char *shape) {
    assert_true(d->n < DRAFT_MAX);
    draft_tensor *t = &d->tensors[d->n++];
    *t = (draft_tensor){0};
    snprintf(t->name, sizeof t->name, "%s", name);
    draft_reshape(d, name, dtype, shape);
    return t;
}

void draft_reshape(draft *d, const char *name, const char *dtype, const char *shape) {
    draft_tensor *t = draft_find(d, name);
    uint64_t bytes = dtype_bytes(dtype);
    t->dims = parse_shape(shape, t->shape);
    for (uint32_t i = 0; i < t->dims; i++) bytes *= t->shape[i];
    uint8_t *data = calloc(1, bytes);
    if (t->data) memcpy(data, t->data, bytes < t->bytes ? bytes : t->bytes);
    free(t->data);
    t->data = data;
    t->bytes = bytes;
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
}

void draft_set(draft *d, const char *path, const char *json) {
    json_object *o = d->config;
    if (!strncmp(path, "text_config.rope_parameters.", 28)) {
        o = json_object_object_get(json_object_object_get(o, "text_config"), "rope_parameters");
        path += 28;
    } else if (!strncmp(path, "text_config.", 12)) {
        o = json_object_object_get(o, "text_config");
        path += 12;
    } else if (!strncmp(path, "quantization.", 13)) { /* names of tensors hold dots: all the rest is one key */
        o = json_object_object_get(o, "quantization");
        path += 13;
    }
    assert_non_null(o);
    if (!json)
        json_object_object_del(o, path);
    else
        json_object_object_add(o, path, json_tokener_parse(json));
}

json_object *draft_right_map(const draft *d) {
    json_object *map = json_object_new_object();
    for (size_t i = 0; i < d->n; i++) {
        char file[64];
        snprintf(file, sizeof file, "model-%u.safetensors", d->tensors[i].shard);
        json_object_object_add(map, d->tensors[i].name, json_object_new_string(file));
    }
    return map;
}

static void write_shard(const draft *d, unsigned shard, const char *name) {
    buffer file = {0};
    uint64_t at = 0, length;
    buffer_append(&file, &(uint64_t){0}, 8);
    buffer_append_str(&file, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < d->n; i++) {
        const draft_tensor *t = &d->tensors[i];
        if (t->shard != shard) continue;
        buffer_printf(&file, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (uint32_t k = 0; k < t->dims; k++) buffer_printf(&file, "%s%llu", k ? "," : "", (unsigned long long)t->shape[k]);
        buffer_printf(&file, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + t->bytes));
        at += t->bytes;
    }
    buffer_append_char(&file, '}');
    length = file.n - 8;
    for (size_t i = 0; i < d->n; i++) {
        if (d->tensors[i].shard == shard) buffer_append(&file, d->tensors[i].data, d->tensors[i].bytes);
    }
    assert_false(file.failed);
    memcpy(file.data, &length, 8);
    write_file(d->dir, name, file.data, file.n);
    buffer_free(&file);
}

void draft_write(draft *d) {
    bool used[10] = {false}, several = d->index;
    temp_dir_clear(d->dir);
    const char *text = json_object_to_json_string_ext(d->config, JSON_C_TO_STRING_PRETTY);
    write_file(d->dir, "config.json", text, strlen(text));
    if (d->generation) write_file(d->dir, "generation_config.json", d->generation, strlen(d->generation));
    for (size_t i = 0; i < d->n; i++) used[d->tensors[i].shard] = true;
    for (unsigned s = 1; s < 10; s++) several |= used[s];
    if (!several) return write_shard(d, 0, "model.safetensors");
    for (unsigned s = 0; s < 10; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%u.safetensors", s);
        if (used[s]) write_shard(d, s, name);
    }
    json_object *index = json_object_new_object();
    json_object_object_add(index, "metadata", json_tokener_parse("{\"total_size\":1}"));
    json_object_object_add(index, "weight_map", d->map ? json_object_get(d->map) : draft_right_map(d));
    text = json_object_to_json_string(index);
    write_file(d->dir, "model.safetensors.index.json", text, strlen(text));
    json_object_put(index);
}

calla_status draft_try(draft *d, weights **w, calla_error *err) {
    weights *opened;
    draft_write(d);
    const calla_status status = weights_open(d->dir, &opened, err);
    if (status) assert_null(opened);
    if (w)
        *w = opened;
    else
        weights_close(opened);
    return status;
}

void draft_refused(draft *d, calla_status status, ...) {
    calla_error err = {0};
    const calla_status got = draft_try(d, NULL, &err);
    va_list words;
    va_start(words, status);
    for (const char *word; (word = va_arg(words, const char *));) {
        if (!strstr(err.message, word)) fail_msg("expected '%s' in: %s (%s)", word, err.message, calla_status_name(got));
    }
    va_end(words);
    if (got != status) fail_msg("expected %s, got %s: %s", calla_status_name(status), calla_status_name(got), err.message);
}

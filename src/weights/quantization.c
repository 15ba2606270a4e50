/* quantization.c: see quantization.h.
 *
 * The block as MLX writes it: {"group_size", "bits", "mode": "affine", "<matrix>": {"group_size", "bits"} | false | true, …}.  An
 * unknown scalar in it is refused: it might change what the codes mean. */
#include "weights/quantization.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "weights/safetensors.h"

static quant_rule read_rule(fields *f) {
    quant_rule rule = {fields_u32(f, "bits", 1, 32), fields_u32(f, "group_size", 1, 1 << 20)};
    if (!f->status && rule.bits != 4 && rule.bits != 8) fields_fail(f, CALLA_E_UNSUPPORTED, "bits", "4 or 8");
    if (!f->status && rule.group != 32 && rule.group != 64 && rule.group != 128)
        fields_fail(f, CALLA_E_UNSUPPORTED, "group_size", "32, 64 or 128");
    fields_only_string(f, "mode", "affine");
    return rule;
}

static void refuse_unknown(fields *f, bool is_block) {
    json_object_object_foreach(f->object, key, value) {
        if (!strcmp(key, "bits") || !strcmp(key, "group_size") || !strcmp(key, "mode") || !value) continue;
        if (is_block && (json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_boolean))) continue;
        if (f->status) return;
        char shown_key[64], shown[64];
        json_object *name = json_object_new_string(key); /* printed with its control characters escaped */
        f->status = error_set(f->err, CALLA_E_UNSUPPORTED, "%s: %s%s is %s: a kind of quantization calla does not know", f->file, f->path,
                              fields_show(name, shown_key), fields_show(value, shown));
        json_object_put(name);
    }
}

static int by_name(const void *a, const void *b) {
    const quant_override *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static calla_status read_override(const fields *block, const char *key, json_object *value, quantization *q) {
    quant_override *o = &q->overrides[q->n];
    char path[2 * ST_MAX_NAME];
    if (!st_name_valid(key, strlen(key)))
        return error_set(block->err, CALLA_E_FORMAT, "%s: %s: a matrix's name is empty, longer than %d bytes or holds a control character",
                         block->file, block->path, ST_MAX_NAME);
    snprintf(path, sizeof path, "%s%s.", block->path, key);
    if (json_object_is_type(value, json_type_boolean)) {
        o->rule = json_object_get_boolean(value) ? q->rule : (quant_rule){16, 0};
    } else {
        fields f = {.object = value, .file = block->file, .path = path, .err = block->err};
        o->rule = read_rule(&f);
        refuse_unknown(&f, false);
        if (f.status) return f.status;
    }
    o->used = false;
    o->name = mem_strdup(key);
    if (!o->name) return error_nomem(block->err, "the quantization table");
    q->n++;
    return CALLA_OK;
}

static calla_status read_block(fields *f, quantization *out) {
    out->present = true;
    fields_only_string(f, "quant_method", "affine"); /* other tools' blocks (fp8, gptq, awq …) carry it: refuse them by their name */
    out->rule = read_rule(f);
    refuse_unknown(f, true);
    if (f->status) return f->status;
    out->overrides = mem_array((size_t)json_object_object_length(f->object), sizeof *out->overrides);
    if (!out->overrides) return error_nomem(f->err, "the quantization table");
    json_object_object_foreach(f->object, key, value) {
        if (!json_object_is_type(value, json_type_object) && !json_object_is_type(value, json_type_boolean)) continue;
        calla_status status = read_override(f, key, value, out);
        if (status) return status;
    }
    qsort(out->overrides, out->n, sizeof *out->overrides, by_name);
    return CALLA_OK;
}

calla_status quantization_read(fields *top, quantization *out) {
    *out = (quantization){0};
    json_object *a = fields_object(top, "quantization"), *b = fields_object(top, "quantization_config");
    if (top->status) return top->status;
    if (a && b && !json_object_equal(a, b))
        return top->status =
                   error_set(top->err, CALLA_E_FORMAT,
                             "%s: quantization and quantization_config differ: which one holds? Make them equal or remove one", top->file);
    if (!a && !b) return CALLA_OK;
    fields f = {.object = a ? a : b, .file = top->file, .path = a ? "quantization." : "quantization_config.", .err = top->err};
    top->status = read_block(&f, out);
    if (top->status) quantization_free(out);
    return top->status;
}

void quantization_free(quantization *q) {
    for (size_t i = 0; i < q->n; i++) mem_free(q->overrides[i].name);
    mem_free(q->overrides);
    *q = (quantization){0};
}

quant_override *quantization_find(const quantization *q, const char *name) {
    size_t low = 0, high = q->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(q->overrides[middle].name, name);
        if (!order) return &q->overrides[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* config.c: see config.h. */
#include "weights/config.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 16, MAX_HEADS = 1 << 10, MAX_VOCABULARY = 1 << 24, MAX_CONTEXT = 1 << 24 };

/* "full_attention" or "linear_attention" for each layer: from layer_types, or every full_attention_interval-th.  MLX reads only the
 * interval and transformers prefers the list: where both are given they must say the same. */
static void read_layer_kinds(fields *f, model_shape *s) {
    const bool has_interval = fields_get(f, "full_attention_interval");
    const uint32_t interval = has_interval ? fields_u32(f, "full_attention_interval", 1, MAX_LAYERS) : 0;
    json_object *types = fields_get(f, "layer_types");
    if (f->status) return;
    if (!types && !has_interval) return fields_fail(f, CALLA_E_FORMAT, "layer_types", "a list (or full_attention_interval)");
    if (types && (!json_object_is_type(types, json_type_array) || json_object_array_length(types) != s->layers))
        return fields_fail(f, CALLA_E_FORMAT, "layer_types", "a list with one entry for each of num_hidden_layers");
    for (uint32_t i = 0; i < s->layers; i++) {
        bool is_attention = interval && i % interval == interval - 1;
        if (types) {
            json_object *t = json_object_array_get_idx(types, i);
            const char *kind = json_object_is_type(t, json_type_string) ? json_object_get_string(t) : "";
            const bool full = !strcmp(kind, "full_attention");
            char name[32];
            snprintf(name, sizeof name, "layer_types[%u]", i);
            if (!full && strcmp(kind, "linear_attention") != 0) {
                char value[64];
                f->status = error_set(f->err, CALLA_E_UNSUPPORTED, "%s: %s%s is %s, expected \"linear_attention\" or \"full_attention\"",
                                      f->file, f->path, name, fields_show(t, value));
                return;
            }
            if (has_interval && full != is_attention) {
                f->status = error_set(f->err, CALLA_E_FORMAT, "%s: %s%s is \"%s\", but full_attention_interval %u says otherwise", f->file,
                                      f->path, name, kind, interval);
                return;
            }
            is_attention = full;
        }
        s->is_attention[i] = is_attention;
        s->kind_index[i] = (uint16_t)(is_attention ? s->attention_layers++ : s->gdn_layers++);
    }
    if (!s->attention_layers || !s->gdn_layers)
        fields_fail(f, CALLA_E_UNSUPPORTED, "layer_types", "at least one layer of each of the two kinds");
}

/* Rotary embedding: in rope_parameters, or (older files) beside the other fields. */
static void read_rope(fields *f, model_shape *s) {
    json_object *rope = fields_object(f, "rope_parameters");
    fields r = {.object = rope ? rope : f->object, .file = f->file, .path = rope ? "text_config.rope_parameters." : f->path, .err = f->err};
    if (f->status) return;
    if (!fields_get(&r, "rope_theta")) fields_fail(&r, CALLA_E_FORMAT, "rope_theta", "a number");
    s->rope_theta = fields_number(&r, "rope_theta", 1.001, 1e12, 1e7);
    if (rope)
        fields_only_string(&r, "rope_type", "default"); /* others (yarn, …) scale the angles */
    else if (fields_get(f, "rope_scaling"))
        fields_fail(f, CALLA_E_UNSUPPORTED, "rope_scaling", "none");
    const double factor = (double)ROTARY_DIM / HEAD_DIM; /* the architecture's default where it is absent */
    f->status = f->status ? f->status : r.status;
    if (rope && fields_number(&r, "partial_rotary_factor", 0, 1, factor) != factor)
        fields_fail(&r, CALLA_E_UNSUPPORTED, "partial_rotary_factor", "0.25");
    f->status = f->status ? f->status : r.status;
    if (fields_number(f, "partial_rotary_factor", 0, 1, factor) != factor)
        fields_fail(f, CALLA_E_UNSUPPORTED, "partial_rotary_factor", "0.25");
}

static void check_variant(fields *f) {
    fields_only_string(f, "model_type", "qwen3_5_moe_text");
    fields_u32(f, "head_dim", HEAD_DIM, HEAD_DIM);
    fields_u32(f, "linear_key_head_dim", GDN_HEAD_DIM, GDN_HEAD_DIM);
    fields_u32(f, "linear_value_head_dim", GDN_HEAD_DIM, GDN_HEAD_DIM);
    fields_u32(f, "linear_conv_kernel_dim", CONV_WIDTH, CONV_WIDTH);
    fields_only_string(f, "hidden_act", "silu");
    fields_only_bool(f, "attention_bias", false);
    fields_only_bool(f, "tie_word_embeddings", false);
    fields_only_bool(f, "attn_output_gate", true);
    fields_only_bool(f, "norm_topk_prob", true); /* absent in the real file, where it is true */
    json_object *dense = fields_get(f, "mlp_only_layers");
    if (dense && !(json_object_is_type(dense, json_type_array) && json_object_array_length(dense) == 0))
        fields_fail(f, CALLA_E_UNSUPPORTED, "mlp_only_layers", "none: every layer has experts");
    if (fields_get(f, "decoder_sparse_step")) fields_u32(f, "decoder_sparse_step", 1, 1);
}

static void read_shape(fields *f, model_shape *s) {
    s->hidden = fields_u32(f, "hidden_size", 1, MAX_WIDTH);
    s->layers = fields_u32(f, "num_hidden_layers", 1, MAX_LAYERS);
    s->vocabulary = fields_u32(f, "vocab_size", 1, MAX_VOCABULARY);
    s->attention_heads = fields_u32(f, "num_attention_heads", 1, MAX_HEADS);
    s->kv_heads = fields_u32(f, "num_key_value_heads", 1, MAX_HEADS);
    s->gdn_key_heads = fields_u32(f, "linear_num_key_heads", 1, MAX_HEADS);
    s->gdn_value_heads = fields_u32(f, "linear_num_value_heads", 1, MAX_GDN_HEADS);
    s->experts = fields_u32(f, "num_experts", 1, MAX_EXPERTS);
    s->top_k = fields_u32(f, "num_experts_per_tok", 1, MAX_TOP_K);
    s->expert_width = fields_u32(f, "moe_intermediate_size", 1, MAX_WIDTH);
    s->shared_width = fields_u32(f, "shared_expert_intermediate_size", 1, MAX_WIDTH);
    s->max_context = fields_u32(f, "max_position_embeddings", 1, MAX_CONTEXT);
    if (!fields_get(f, "rms_norm_eps")) fields_fail(f, CALLA_E_FORMAT, "rms_norm_eps", "a number");
    s->norm_eps = (float)fields_number(f, "rms_norm_eps", 1e-12, 0.1, 1e-6);
    if (f->status) return;
    if (s->attention_heads % s->kv_heads) fields_fail(f, CALLA_E_FORMAT, "num_attention_heads", "a multiple of num_key_value_heads");
    if (s->gdn_value_heads % s->gdn_key_heads)
        fields_fail(f, CALLA_E_FORMAT, "linear_num_value_heads", "a multiple of linear_num_key_heads");
    if (s->top_k > s->experts) fields_fail(f, CALLA_E_FORMAT, "num_experts_per_tok", "at most num_experts");
}

/* eos_token_id: a number, a list of numbers, or nothing. */
static void add_stop_ids(fields *f, uint32_t vocabulary, stop_list *stop) {
    json_object *v = fields_get(f, "eos_token_id");
    if (f->status || !v) return;
    const bool is_list = json_object_is_type(v, json_type_array);
    const size_t n = is_list ? json_object_array_length(v) : 1;
    for (size_t i = 0; i < n && !f->status; i++) {
        json_object *id = is_list ? json_object_array_get_idx(v, i) : v;
        const int64_t value = json_object_is_type(id, json_type_int) ? json_object_get_int64(id) : -1;
        uint32_t known = 0;
        if (value < 0 || value >= vocabulary) return fields_fail(f, CALLA_E_FORMAT, "eos_token_id", "token ids below vocab_size");
        while (known < stop->n && stop->ids[known] != value) known++;
        if (known < stop->n) continue;
        if (stop->n == MAX_STOP_IDS)
            f->status = error_set(f->err, CALLA_E_LIMIT, "%s: eos_token_id: more than %d stop ids", f->file, MAX_STOP_IDS);
        else
            stop->ids[stop->n++] = (int32_t)value;
    }
}

static calla_status read_config(fields *top, model_config *out) {
    fields_only_string(top, "model_type", "qwen3_5_moe");
    fields_only_bool(top, "tie_word_embeddings", false);
    json_object *text = fields_object(top, "text_config");
    if (!text) fields_fail(top, CALLA_E_FORMAT, "text_config", "an object with the dimensions of the text model");
    if (top->status) return top->status;
    fields f = {.object = text, .file = top->file, .path = "text_config.", .err = top->err};
    check_variant(&f);
    read_shape(&f, &out->shape);
    if (!f.status) read_layer_kinds(&f, &out->shape);
    if (!f.status) read_rope(&f, &out->shape);
    if (f.status) return f.status;
    add_stop_ids(top, out->shape.vocabulary, &out->stop);
    if (!top->status) add_stop_ids(&f, out->shape.vocabulary, &out->stop);
    if (top->status || f.status) return top->status ? top->status : f.status;
    return quantization_read(top, &out->quant);
}

static calla_status parse_object(const char *json, size_t n, const char *file, json_object **out, calla_error *err) {
    calla_status status = json_parse(json, n, file, out, err);
    if (status || json_object_is_type(*out, json_type_object)) return status;
    json_object_put(*out);
    return error_set(err, CALLA_E_FORMAT, "%s: not a JSON object", file);
}

calla_status config_parse(const char *json, size_t n, const char *file, model_config *out, calla_error *err) {
    json_object *root;
    *out = (model_config){0};
    calla_status status = parse_object(json, n, file, &root, err);
    if (status) return status;
    fields top = {.object = root, .file = file, .path = "", .err = err};
    status = read_config(&top, out);
    json_object_put(root);
    if (status) config_free(out);
    return status;
}

void config_free(model_config *c) { quantization_free(&c->quant); }

void generation_defaults(sampling_defaults *sampling) {
    *sampling = (sampling_defaults){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

calla_status generation_parse(const char *json, size_t n, const char *file, uint32_t vocabulary, sampling_defaults *sampling,
                              stop_list *stop, calla_error *err) {
    json_object *root;
    generation_defaults(sampling);
    calla_status status = parse_object(json, n, file, &root, err);
    if (status) return status;
    fields f = {.object = root, .file = file, .path = "", .err = err};
    sampling->do_sample = fields_bool(&f, "do_sample", false);
    sampling->temperature = (float)fields_number(&f, "temperature", 0, 100, 1);
    if (fields_get(&f, "top_k")) sampling->top_k = fields_u32(&f, "top_k", 0, INT32_MAX);
    sampling->top_p = (float)fields_number(&f, "top_p", 0, 1, 1);
    sampling->min_p = (float)fields_number(&f, "min_p", 0, 1, 0);
    sampling->repetition_penalty = (float)fields_number(&f, "repetition_penalty", 0.01, 100, 1);
    sampling->presence_penalty = (float)fields_number(&f, "presence_penalty", -100, 100, 0);
    sampling->frequency_penalty = (float)fields_number(&f, "frequency_penalty", -100, 100, 0);
    add_stop_ids(&f, vocabulary, stop);
    json_object_put(root);
    return f.status;
}

/* bind.c: see bind.h.  The exact list of tensors of the architecture, in MLX's names.
 *
 * A matrix M is M.weight (uint32 codes, lowest bits first), M.scales and M.biases (bf16), or M.weight alone in bf16.  Norms may be
 * bf16 or f32.  Raw Hugging Face layout stores RMSNorm gains less 1 and the convolution as [C][1][4]; MLX's converter adds the 1 and
 * transposes to [C][4][1] in one go, so the convolution's shape tells which it is.  (The taps lie in memory alike.) */
#include "weights/bind.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

typedef struct binder { /* failure sticks: after the first error binding does nothing */
    weights *w;
    quantization *quant;
    const char *config_path;
    bool raw_layout;
    calla_status status;
    calla_error *err;
    char prefix[64]; /* of the tensors being bound: "language_model.model.layers.3." */
} binder;

enum { MAX_FULL_NAME = 192 };

typedef struct dims {
    uint32_t n;
    uint64_t d[3];
} dims;

static const char *show_shape(const uint64_t *d, uint32_t n, char out[200]) {
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n; i++) at += (size_t)snprintf(out + at, 200 - at, "%s%llu", i ? "," : "", (unsigned long long)d[i]);
    return out;
}

__attribute__((format(printf, 3, 4))) static void fail_tensor(binder *b, const tensor *t, const char *format, ...) {
    char rule[512];
    va_list ap;
    if (b->status) return;
    va_start(ap, format);
    vsnprintf(rule, sizeof rule, format, ap);
    va_end(ap);
    b->status = error_set(b->err, CALLA_E_FORMAT, "%s: tensor %s: %s", t->file->path, t->info->name, rule);
}

static tensor *find(const binder *b, const char *name, const char *suffix) {
    char full[MAX_FULL_NAME];
    snprintf(full, sizeof full, "%s%s%s", b->prefix, name, suffix);
    return checkpoint_find(b->w->files, full);
}

/* The tensor, marked as used, or NULL after an error. */
static tensor *take(binder *b, const char *name, const char *suffix) {
    if (b->status) return NULL;
    tensor *t = find(b, name, suffix);
    if (t) {
        t->used = t->bound = true;
        b->w->text_bytes += t->info->bytes;
    } else {
        b->status = error_set(b->err, CALLA_E_FORMAT, "%s: tensor %s%s%s: missing", b->w->files->source, b->prefix, name, suffix);
    }
    return t;
}

static bool is_dtype(const tensor *t, const char *dtype) { return !strcmp(t->info->dtype, dtype); }

static void check_shape(binder *b, const tensor *t, dims want, const char *because) {
    bool same = t->info->dims == want.n;
    for (uint32_t i = 0; i < want.n && same; i++) same = t->info->shape[i] == want.d[i];
    char got_text[200], want_text[200];
    if (!same)
        fail_tensor(b, t, "its shape is [%s], expected [%s]%s", show_shape(t->info->shape, t->info->dims, got_text),
                    show_shape(want.d, want.n, want_text), because);
}

static void bind_vec_shape(binder *b, weight_vec *v, const char *name, dims shape, const char *because) {
    const tensor *t = take(b, name, "");
    if (!t) return;
    if (!is_dtype(t, "BF16") && !is_dtype(t, "F32")) return fail_tensor(b, t, "its dtype is %s, expected BF16 or F32", t->info->dtype);
    check_shape(b, t, shape, because);
    if (b->status) return;
    uint32_t n = 1;
    for (uint32_t i = 0; i < shape.n; i++) n *= (uint32_t)shape.d[i];
    *v = (weight_vec){.data = tensor_data(t), .type = is_dtype(t, "F32") ? WEIGHT_F32 : WEIGHT_BF16, .n = n};
}

static void bind_vec(binder *b, weight_vec *v, const char *name, uint32_t n) { bind_vec_shape(b, v, name, (dims){1, {n}}, ""); }

static void bind_norm(binder *b, weight_vec *v, const char *name, uint32_t n) {
    bind_vec(b, v, name, n);
    v->add = b->raw_layout ? 1 : 0;
}

static void bind_conv(binder *b, weight_vec *v, uint32_t channels) {
    const dims raw = {3, {channels, 1, CONV_WIDTH}}, converted = {3, {channels, CONV_WIDTH, 1}};
    bind_vec_shape(b, v, "linear_attn.conv1d.weight", b->raw_layout ? raw : converted,
                   b->raw_layout ? " as in the first layer (raw layout)" : " (or [channels,1,4] in all layers)");
}

/* Shape of one of a matrix's three tensors; stacked matrices have the count in front, also when it is 1. */
static dims mat_dims(bool stacked, uint32_t count, uint32_t rows, uint32_t width) {
    if (stacked) return (dims){3, {count, rows, width}};
    return (dims){2, {rows, width}};
}

static quant_rule find_rule(binder *b, const char *name, const tensor *weight) {
    char full[MAX_FULL_NAME];
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    quant_override *o = quantization_find(b->quant, full);
    if (o) {
        o->used = true;
        return o->rule;
    }
    /* As MLX: without an override a matrix is quantized if it has scales. */
    if (b->quant->present && (find(b, name, ".scales") || is_dtype(weight, "U32"))) return b->quant->rule;
    return (quant_rule){16, 0};
}

static void bind_part(binder *b, const uint8_t **out, const char *name, const char *suffix, dims shape, const char *because) {
    const tensor *t = take(b, name, suffix);
    if (!t) return;
    if (!is_dtype(t, "BF16")) return fail_tensor(b, t, "its dtype is %s, expected BF16", t->info->dtype);
    check_shape(b, t, shape, because);
    *out = tensor_data(t);
}

static void bind_stack(binder *b, weight_mat *m, const char *name, bool stacked, uint32_t count, uint32_t rows, uint32_t cols) {
    const tensor *t = take(b, name, ".weight");
    if (!t) return;
    const quant_rule rule = find_rule(b, name, t);
    *m = (weight_mat){.codes = tensor_data(t), .count = count, .rows = rows, .cols = cols, .bits = rule.bits, .group = rule.group};
    if (rule.bits == 16) {
        if (is_dtype(t, "U32")) return fail_tensor(b, t, "its dtype is U32, but %s says that it is not quantized", b->config_path);
        if (!is_dtype(t, "BF16")) return fail_tensor(b, t, "its dtype is %s, expected BF16 (it is not quantized)", t->info->dtype);
        return check_shape(b, t, mat_dims(stacked, count, rows, cols), " (it is not quantized)");
    }
    char because[96];
    snprintf(because, sizeof because, " for %u inputs of %u bits in groups of %u", cols, rule.bits, rule.group);
    if (cols % rule.group) return fail_tensor(b, t, "its %u inputs are not a multiple of the group size %u", cols, rule.group);
    if (!is_dtype(t, "U32")) return fail_tensor(b, t, "its dtype is %s, expected U32%s", t->info->dtype, because);
    check_shape(b, t, mat_dims(stacked, count, rows, cols / 32 * rule.bits), because);
    const dims groups = mat_dims(stacked, count, rows, cols / rule.group);
    bind_part(b, &m->scales, name, ".scales", groups, because);
    bind_part(b, &m->biases, name, ".biases", groups, because);
}

static void bind_mat(binder *b, weight_mat *m, const char *name, uint32_t rows, uint32_t cols) {
    bind_stack(b, m, name, false, 1, rows, cols);
}

static void bind_gdn(binder *b, layer_weights *l) {
    const model_shape *s = &b->w->shape;
    const uint32_t values = shape_gdn_values(s);
    bind_mat(b, &l->in_qkv, "linear_attn.in_proj_qkv", shape_conv_channels(s), s->hidden);
    bind_mat(b, &l->in_z, "linear_attn.in_proj_z", values, s->hidden);
    bind_mat(b, &l->in_a, "linear_attn.in_proj_a", s->gdn_value_heads, s->hidden);
    bind_mat(b, &l->in_b, "linear_attn.in_proj_b", s->gdn_value_heads, s->hidden);
    bind_conv(b, &l->conv, shape_conv_channels(s));
    bind_vec(b, &l->a_log, "linear_attn.A_log", s->gdn_value_heads);
    bind_vec(b, &l->dt_bias, "linear_attn.dt_bias", s->gdn_value_heads);
    bind_vec(b, &l->gdn_norm, "linear_attn.norm.weight", GDN_HEAD_DIM); /* a plain gain in both layouts */
    bind_mat(b, &l->gdn_out, "linear_attn.out_proj", s->hidden, values);
}

static void bind_attention(binder *b, layer_weights *l) {
    const model_shape *s = &b->w->shape;
    bind_mat(b, &l->q, "self_attn.q_proj", 2 * shape_query_values(s), s->hidden);
    bind_mat(b, &l->k, "self_attn.k_proj", shape_kv_values(s), s->hidden);
    bind_mat(b, &l->v, "self_attn.v_proj", shape_kv_values(s), s->hidden);
    bind_norm(b, &l->q_norm, "self_attn.q_norm.weight", HEAD_DIM);
    bind_norm(b, &l->k_norm, "self_attn.k_norm.weight", HEAD_DIM);
    bind_mat(b, &l->attn_out, "self_attn.o_proj", s->hidden, shape_query_values(s));
}

static void bind_layer(binder *b, uint32_t i) {
    const model_shape *s = &b->w->shape;
    layer_weights *l = &b->w->layer[i];
    snprintf(b->prefix, sizeof b->prefix, "language_model.model.layers.%u.", i);
    bind_norm(b, &l->norm_mixer, "input_layernorm.weight", s->hidden);
    bind_norm(b, &l->norm_moe, "post_attention_layernorm.weight", s->hidden);
    if (s->is_attention[i])
        bind_attention(b, l);
    else
        bind_gdn(b, l);
    bind_mat(b, &l->router, "mlp.gate", s->experts, s->hidden);
    bind_stack(b, &l->expert_gate, "mlp.switch_mlp.gate_proj", true, s->experts, s->expert_width, s->hidden);
    bind_stack(b, &l->expert_up, "mlp.switch_mlp.up_proj", true, s->experts, s->expert_width, s->hidden);
    bind_stack(b, &l->expert_down, "mlp.switch_mlp.down_proj", true, s->experts, s->hidden, s->expert_width);
    bind_mat(b, &l->shared_router, "mlp.shared_expert_gate", 1, s->hidden);
    bind_mat(b, &l->shared_gate, "mlp.shared_expert.gate_proj", s->shared_width, s->hidden);
    bind_mat(b, &l->shared_up, "mlp.shared_expert.up_proj", s->shared_width, s->hidden);
    bind_mat(b, &l->shared_down, "mlp.shared_expert.down_proj", s->hidden, s->shared_width);
}

/* The first convolution decides the layout; bind_conv holds all to it. */
static bool find_raw_layout(binder *b) {
    for (uint32_t i = 0; i < b->w->shape.layers; i++) {
        if (b->w->shape.is_attention[i]) continue;
        snprintf(b->prefix, sizeof b->prefix, "language_model.model.layers.%u.", i);
        const tensor *t = find(b, "linear_attn.conv1d.weight", "");
        return t && t->info->dims == 3 && t->info->shape[1] == 1 && t->info->shape[2] == CONV_WIDTH;
    }
    return false;
}

static bool starts_with(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

static bool is_vision(const char *name) { return starts_with(name, "vision_tower."); }
static bool is_mtp(const char *name) { return starts_with(name, "mtp.") || starts_with(name, "language_model.mtp."); }

/* Tensors of parts that are not run, or left over. */
static void check_rest(binder *b) {
    checkpoint *c = b->w->files;
    for (size_t i = 0; i < c->n && !b->status; i++) {
        tensor *t = &c->tensors[i];
        const char *name = t->info->name;
        if (t->used) continue;
        t->used = true;
        if (is_vision(name))
            b->w->skipped_vision++;
        else if (is_mtp(name))
            b->w->skipped_mtp++;
        else
            fail_tensor(b, t, "not part of this model as %s describes it", b->config_path);
    }
}

/* Overrides of matrices that do not exist do no harm (a file cut down to fewer layers keeps them), and a misspelt name shows
 * itself by the shape of the tensor that it meant. */
static void warn_overrides(const binder *b) {
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < b->quant->n; i++) {
        const quant_override *o = &b->quant->overrides[i];
        if (o->used || is_vision(o->name) || is_mtp(o->name)) continue;
        if (!n++) first = o->name;
    }
    if (n)
        log_warn("%s: the quantization block names %zu matrices that this model does not have (%s ...): ignored", b->config_path, n, first);
}

static calla_status refuse_raw_names(const binder *b) {
    const tensor *t = checkpoint_find(b->w->files, "model.language_model.embed_tokens.weight");
    if (!t) return CALLA_OK;
    return error_set(b->err, CALLA_E_UNSUPPORTED,
                     "%s: tensor %s: a checkpoint in Hugging Face's names and unquantized: convert it to MLX's form first (mlx_lm.convert)",
                     t->file->path, t->info->name);
}

calla_status bind_tensors(weights *w, quantization *quant, const char *config_path, calla_error *err) {
    binder b = {.w = w, .quant = quant, .config_path = config_path, .err = err};
    const model_shape *s = &w->shape;
    calla_status status = refuse_raw_names(&b);
    if (status) return status;
    b.raw_layout = find_raw_layout(&b);
    snprintf(b.prefix, sizeof b.prefix, "language_model.");
    bind_mat(&b, &w->embed, "model.embed_tokens", s->vocabulary, s->hidden);
    bind_mat(&b, &w->lm_head, "lm_head", s->vocabulary, s->hidden);
    bind_norm(&b, &w->final_norm, "model.norm.weight", s->hidden);
    for (uint32_t i = 0; i < s->layers; i++) bind_layer(&b, i);
    check_rest(&b);
    if (!b.status) warn_overrides(&b);
    if (!b.status && w->skipped_vision) log_info("%s: skipped %u vision tensors: images are not supported", w->dir, w->skipped_vision);
    if (!b.status && w->skipped_mtp)
        log_info("%s: skipped %u multi-token-prediction tensors: they are not used yet", w->dir, w->skipped_mtp);
    return b.status;
}

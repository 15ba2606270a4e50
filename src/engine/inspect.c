/* inspect.c: what a model folder holds and what running it would take, as JSON.  Opens weights and tokenizer, allocates no model. */
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "engine/engine.h"

static void key(buffer *b, const char *name) {
    if (b->n && b->data[b->n - 1] != '{' && b->data[b->n - 1] != '[') buffer_append_char(b, ',');
    json_append_str(b, name);
    buffer_append_char(b, ':');
}

static void string(buffer *b, const char *name, const char *value) {
    key(b, name);
    json_append_str(b, value);
}

static void number(buffer *b, const char *name, uint64_t value) {
    key(b, name);
    buffer_printf(b, "%llu", (unsigned long long)value);
}

static void decimal(buffer *b, const char *name, double value) {
    key(b, name);
    buffer_printf(b, "%.7g", value);
}

static void append_shape(buffer *b, const model_shape *s) {
    key(b, "shape");
    buffer_append_char(b, '{');
    const struct {
        const char *name;
        uint32_t value;
    } dims[] = {
        {"hidden", s->hidden},
        {"layers", s->layers},
        {"attention_layers", s->attention_layers},
        {"gdn_layers", s->gdn_layers},
        {"vocabulary_rows", s->vocabulary},
        {"attention_heads", s->attention_heads},
        {"kv_heads", s->kv_heads},
        {"head_dim", HEAD_DIM},
        {"rotary_dim", ROTARY_DIM},
        {"gdn_key_heads", s->gdn_key_heads},
        {"gdn_value_heads", s->gdn_value_heads},
        {"gdn_head_dim", GDN_HEAD_DIM},
        {"conv_width", CONV_WIDTH},
        {"experts", s->experts},
        {"experts_per_token", s->top_k},
        {"expert_width", s->expert_width},
        {"shared_width", s->shared_width},
        {"model_context", s->max_context},
    };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) number(b, dims[i].name, dims[i].value);
    decimal(b, "norm_eps", (double)s->norm_eps);
    decimal(b, "rope_theta", s->rope_theta);
    buffer_append_char(b, '}');
}

/* ---- quantization: how many matrices, and bytes, of each form ---- */

typedef struct form_count {
    uint64_t matrices, bytes;
} form_count;

static const uint32_t form_bits[3] = {4, 8, 16}, form_groups[4] = {0, 32, 64, 128};

static void count_form(form_count counts[3][4], const weight_mat *m) {
    if (!m->codes) return; /* the other kind of layer */
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            if (m->bits != form_bits[i] || m->group != form_groups[j]) continue;
            counts[i][j].matrices += m->count;
            counts[i][j].bytes += weight_mat_bytes(m);
        }
}

static void append_quantization(buffer *b, const weights *w) {
    form_count counts[3][4] = {0};
    count_form(counts, &w->embed);
    count_form(counts, &w->lm_head);
    for (uint32_t l = 0; l < w->shape.layers; l++) {
        const layer_weights *lw = &w->layer[l];
        const weight_mat *mats[] = {&lw->in_qkv,      &lw->in_z,       &lw->in_a,        &lw->in_b,          &lw->gdn_out,
                                    &lw->q,           &lw->k,          &lw->v,           &lw->attn_out,      &lw->router,
                                    &lw->expert_gate, &lw->expert_up,  &lw->expert_down, &lw->shared_router, &lw->shared_gate,
                                    &lw->shared_up,   &lw->shared_down};
        for (size_t i = 0; i < sizeof mats / sizeof *mats; i++) count_form(counts, mats[i]);
    }
    key(b, "quantization");
    buffer_append_char(b, '[');
    bool first = true;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++) {
            if (!counts[i][j].matrices) continue;
            buffer_append_str(b, first ? "{" : ",{");
            first = false;
            number(b, "bits", form_bits[i]);
            number(b, "group", form_groups[j]);
            number(b, "matrices", counts[i][j].matrices);
            number(b, "bytes", counts[i][j].bytes);
            buffer_append_char(b, '}');
        }
    buffer_append_char(b, ']');
}

/* ---- tensors ---- */

typedef struct tensor_sum {
    uint64_t tensors, bytes;
} tensor_sum;

static bool add_tensor(void *user, const tensor_info *t) {
    tensor_sum *sum = user;
    sum->tensors++;
    sum->bytes += t->bytes;
    return true;
}

static void append_tensors(buffer *b, const weights *w) {
    tensor_sum all = {0};
    weights_each_tensor(w, add_tensor, &all);
    key(b, "tensors");
    buffer_append_char(b, '{');
    number(b, "count", all.tensors);
    number(b, "skipped_vision", w->skipped_vision);
    number(b, "skipped_mtp", w->skipped_mtp);
    number(b, "file_bytes", all.bytes);
    number(b, "text_bytes", w->text_bytes);
    number(b, "bytes_per_token", w->token_bytes);
    buffer_append_char(b, '}');
}

static void append_memory(buffer *b, const weights *w, const model_options *mo, uint32_t context_tokens) {
    model_plan plan;
    model_plan_compute(&w->shape, mo, &plan);
    uint64_t cache = plan.bytes[BUF_KV] + plan.bytes[BUF_STATE] + plan.bytes[BUF_CONV];
    key(b, "memory");
    buffer_append_char(b, '{');
    string(b, "device", mo->backend->name);
    number(b, "context_tokens", context_tokens);
    number(b, "sequences", mo->sequences);
    number(b, "batch_rows", mo->batch_rows);
    number(b, "weights_bytes", w->text_bytes);
    number(b, "kv_bytes", plan.bytes[BUF_KV]);
    number(b, "state_bytes", plan.bytes[BUF_STATE] + plan.bytes[BUF_CONV]);
    number(b, "activations_bytes", plan.total_bytes - cache);
    number(b, "total_bytes", w->text_bytes + plan.total_bytes);
    buffer_append_char(b, '}');
}

static void append_text(buffer *b, const weights *w, const calla_text *text) {
    int32_t stop[MAX_STOP_IDS + 1];
    uint32_t n = folder_stop_ids(w, text, stop);
    if (text) number(b, "vocabulary", calla_text_vocabulary(text));
    key(b, "stop_ids");
    buffer_append_char(b, '[');
    for (uint32_t i = 0; i < n; i++) buffer_printf(b, "%s%d", i ? "," : "", stop[i]);
    buffer_append_char(b, ']');
    calla_sampling s = sampling_from_defaults(&w->sampling);
    key(b, "sampling");
    buffer_append_char(b, '{');
    decimal(b, "temperature", (double)s.temperature);
    number(b, "top_k", s.top_k);
    decimal(b, "top_p", (double)s.top_p);
    decimal(b, "min_p", (double)s.min_p);
    decimal(b, "presence_penalty", (double)s.presence_penalty);
    decimal(b, "frequency_penalty", (double)s.frequency_penalty);
    decimal(b, "repetition_penalty", (double)s.repetition_penalty);
    buffer_append_char(b, '}');
}

/* Checkpoints for tests and conversions under way have none. */
static bool has_tokenizer(const weights *w) {
    char *path = path_join(w->dir, "tokenizer.json");
    bool present = !path || access(path, F_OK) == 0; /* without memory opening it will say so */
    mem_free(path);
    return present;
}

static calla_status print(const weights *w, uint32_t context_tokens, char **json, calla_error *err) {
    calla_text *text = NULL;
    const calla_engine_options options = {.context_tokens = context_tokens};
    model_options mo;
    calla_status status = folder_model_options(&options, NULL, &w->shape, &mo, &context_tokens, err);
    if (!status && has_tokenizer(w)) status = folder_open_text(w, &text, err);
    if (status) return status;
    char name[sizeof((calla_engine_info *)NULL)->model_name];
    folder_name(w->dir, name, sizeof name);
    buffer b = {0};
    buffer_append_char(&b, '{');
    string(&b, "model_name", name);
    string(&b, "folder", w->dir);
    append_shape(&b, &w->shape);
    append_quantization(&b, w);
    append_tensors(&b, w);
    append_memory(&b, w, &mo, context_tokens);
    append_text(&b, w, text);
    buffer_append_char(&b, '}');
    calla_text_close(text);
    *json = buffer_take(&b);
    if (*json) return CALLA_OK;
    buffer_free(&b);
    return error_nomem(err, "the description of a model");
}

calla_status calla_inspect(const char *model_dir, uint32_t context_tokens, char **json, calla_error *err) {
    *json = NULL;
    if (!model_dir && !(model_dir = calla_pocket_dir(err))) return CALLA_E_IO;
    weights *w;
    calla_status status = weights_look(model_dir, &w, err);
    if (status) return status;
    status = print(w, context_tokens, json, err);
    weights_close(w);
    return status;
}

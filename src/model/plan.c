/* plan.c: see plan.h. */
#include "model/plan.h"

const char *plan_buffer_name(buffer_id id) {
    static const char *const names[BUF_COUNT] = {
        [BUF_RESIDUAL] = "residual",
        [BUF_MIXER_IN] = "mixer in",
        [BUF_MIXER_OUT] = "mixer out",
        [BUF_MOE_IN] = "moe in",
        [BUF_ROUTE_EXPERT] = "route expert",
        [BUF_ROUTE_WEIGHT] = "route weight",
        [BUF_SHARED] = "shared",
        [BUF_EXPERT] = "expert",
        [BUF_LOGITS] = "logits",
        [BUF_SCRATCH] = "scratch",
        [BUF_KV] = "kv pages",
        [BUF_STATE] = "gdn state",
        [BUF_CONV] = "conv window",
    };
    return names[id];
}

static uint64_t elements(const model_shape *s, const backend_limits *n, buffer_id id) {
    const uint64_t rows = n->rows;
    switch (id) {
    case BUF_RESIDUAL:
    case BUF_MOE_IN: return rows * s->hidden;
    case BUF_MIXER_IN: return rows * shape_mixer_in_values(s);
    case BUF_MIXER_OUT: return rows * shape_mixer_out_values(s);
    case BUF_ROUTE_EXPERT:
    case BUF_ROUTE_WEIGHT: return rows * s->top_k;
    case BUF_SHARED: return rows * (s->shared_width + 1);
    case BUF_EXPERT: return rows * s->top_k * s->expert_width;
    case BUF_LOGITS: return (uint64_t)n->wanted * s->vocabulary;
    case BUF_STATE: return (uint64_t)s->gdn_layers * n->slots * shape_gdn_values(s) * GDN_HEAD_DIM;
    case BUF_CONV: return (uint64_t)s->gdn_layers * n->slots * CONV_HISTORY * shape_conv_channels(s);
    case BUF_KV:
    case BUF_SCRATCH:
    case BUF_COUNT: break;
    }
    return 0;
}

static uint64_t buffer_bytes(const model_shape *s, const backend_vtable *vt, const backend_limits *n, buffer_id id,
                             uint32_t element_bytes) {
    if (id == BUF_SCRATCH) return vt->scratch_bytes(s, n);
    if (id == BUF_KV) return (uint64_t)s->attention_layers * n->pages * 2 * s->kv_heads * kv_block_bytes(n->kv);
    return elements(s, n, id) * element_bytes;
}

uint64_t plan_token_flop(const model_shape *s) {
    const uint64_t H = s->hidden;
    const uint64_t gdn = H * (shape_conv_channels(s) + shape_gdn_values(s) + 2 * s->gdn_value_heads) + shape_gdn_values(s) * H;
    const uint64_t attention = H * (2 * shape_query_values(s) + 2 * shape_kv_values(s)) + shape_query_values(s) * H;
    const uint64_t moe = H * (s->experts + 1) + 3 * H * (s->top_k * s->expert_width + s->shared_width);
    return 2 * (s->gdn_layers * gdn + s->attention_layers * attention + s->layers * moe);
}

uint64_t plan_context_flop(const model_shape *s) { return 2 * 2 * (uint64_t)s->attention_layers * shape_query_values(s); }

void model_plan_compute(const model_shape *s, const model_options *o, model_plan *out) {
    *out = (model_plan){.stages = plan_stages(s)};
    out->limits = (backend_limits){
        .rows = o->batch_rows,
        .segments = o->max_segments,
        .wanted = o->max_wanted > o->max_segments ? o->max_wanted : o->max_segments,
        .samples = o->max_segments,
        .pages = (uint32_t)(((uint64_t)o->kv_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS),
        .slots = 2 * o->sequences,
        .kv = o->kv,
        .threads = o->threads,
        .fast = o->fast,
        .deterministic = o->deterministic,
        .polite = o->polite,
        .without = o->without,
    };
    for (buffer_id id = 0; id < BUF_COUNT; id++) {
        const buffer_want want = o->backend->want(&out->limits, id);
        const uint64_t bytes = buffer_bytes(s, o->backend, &out->limits, id, want.element_bytes);
        out->bytes[id] = (bytes + want.align - 1) / want.align * want.align;
        out->total_bytes += out->bytes[id];
    }
}

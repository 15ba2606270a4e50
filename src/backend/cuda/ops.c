/* ops.c: each composite op as kernels: for a few rows and in exact precision those of step.h, for many rows the prompt's.
 *
 * In the last layer a batch goes on with its wanted rows alone once keys and values of all are projected (row_batch.last); where that leaves
 * few, they take the kernels of few rows.
 *
 * In a prompt, activations between ops are f16 in the scratch buffers, and segments of a few rows (others' decoding beside the prompt)
 * take the mixers of step.h. */
#include "backend/cuda/cuda.h"

static float *f32(const backend *b, buffer_id id) { return b->buf[id]; }

static cuda_kv kv_of(const backend *b, uint32_t layer) {
    const uint64_t page = 2 * b->s->kv_heads * kv_block_bytes(b->limits.kv);
    return (cuda_kv){.layer = (uint8_t *)b->buf[BUF_KV] + b->s->kind_index[layer] * (uint64_t)b->limits.pages * page,
                     .kv_heads = b->s->kv_heads,
                     .f32 = b->limits.kv == CALLA_KV_F32};
}

static step_input norm_input(const backend *b, const float *gain) {
    return (step_input){.source = STEP_NORM, .x = f32(b, BUF_RESIDUAL), .x_stride = b->s->hidden, .gain = gain, .eps = b->s->norm_eps};
}

/* Segments whose delta net runs with the prompt's kernels; and whose attention does, which knows a cache in bf16 only. */
static bool is_long(const backend *b, const batch_segment *seg) { return b->prompt && seg->rows >= CUDA_SEGMENT_ROWS; }
static bool attends_long(const backend *b, const batch_segment *seg) { return is_long(b, seg) && b->limits.kv == CALLA_KV_BF16; }

/* ---- embedding and head ---- */

static void run_embed(backend *b) {
    const step_embed a = {.w = b->weights.embed,
                          .batch = b->on_device,
                          .picked = b->scratch.picked,
                          .residual = f32(b, BUF_RESIDUAL),
                          .rotary = b->scratch.rotary,
                          .rate = b->weights.rotary_rate,
                          .hidden = b->s->hidden,
                          .rows = b->batch->rows};
    step_run_embed(&a, b->stream);
}

static void run_head(backend *b, bool early) {
    if (!b->batch->wanted) return;
    step_head a = {.w = b->weights.head,
                   .in = norm_input(b, b->weights.final_norm),
                   .logits = f32(b, BUF_LOGITS),
                   .vocabulary = b->s->vocabulary,
                   .wanted = b->batch->wanted,
                   .best = b->scratch.best,
                   .counter = b->scratch.counters + b->scratch.counters_n - 1,
                   .batch = b->on_device,
                   .largest = b->largest,
                   .picked = b->scratch.picked};
    a.in.row_of = b->on_device.wanted_row;
    step_run_head(&b->device, &a, early, b->stream);
}

/* ---- mixers ---- */

/* The input projections, as far as their columns lie in first … end - 1. */
static void project_columns(backend *b, const cuda_layer *l, uint32_t first, uint32_t end, bool early) {
    const uint32_t rows = b->batch->rows, H = b->s->hidden, stride = shape_mixer_in_values(b->s);
    if (b->prompt) rows_run_norm_f16(f32(b, BUF_RESIDUAL), l->norm_mixer, b->s->norm_eps, H, rows, b->scratch.input, b->stream);
    for (uint32_t i = 0; i < l->mixer_in.n; i++) {
        const cuda_mat *whole = &l->mixer_in.mat[i];
        const uint32_t column = l->mixer_in.column[i], from = first > column ? first - column : 0,
                       to = end - column < whole->rows ? end - column : whole->rows;
        if (column >= end || from >= to) continue;
        float *out = f32(b, BUF_MIXER_IN) + column + from;
        const step_linear a = {
            .w = cuda_rows_of_mat(*whole, from, to), .in = norm_input(b, l->norm_mixer), .out = out, .out_stride = stride, .rows = rows};
        if (b->prompt)
            cuda_gemm(&a.w, b->scratch.input, H, out, stride, rows, false, b->stream);
        else
            step_run_linear(&b->device, &a, early, b->stream);
    }
}

/* Whether a batch leaves the rows that nobody wants behind: not where so many are wanted that they stay a prompt. */
static bool goes_on_with_last(const backend *b, uint32_t layer) {
    const row_batch *last = b->batch->last;
    return last && layer + 1 == b->s->layers && b->s->is_attention[layer] && !(b->prompt && last->rows >= CUDA_PROMPT_ROWS);
}

static void keep_wanted_rows(backend *b) {
    const uint32_t H = b->s->hidden, rows = b->batch->wanted;
    if (rows) {
        rows_run_gather(b->scratch.rotary, b->on_device.wanted_row, ROTARY_DIM, rows, b->scratch.last_rotary, b->stream);
        rows_run_gather(f32(b, BUF_RESIDUAL), b->on_device.wanted_row, H, rows, b->scratch.gathered, b->stream);
        cuda_ok(b, cudaMemcpyAsync(b->buf[BUF_RESIDUAL], b->scratch.gathered, (uint64_t)rows * H * sizeof(float), cudaMemcpyDeviceToDevice,
                                   b->stream));
    }
    b->whole = b->batch;
    b->whole_on_device = b->on_device;
    b->batch = b->batch->last;
    b->on_device = b->last_on_device;
    b->prompt = false;
}

static void run_mixer_in(backend *b, uint32_t layer, const cuda_layer *l, bool early) {
    const uint32_t all = shape_mixer_in_values(b->s), queries = 2 * shape_query_values(b->s);
    if (!goes_on_with_last(b, layer)) {
        project_columns(b, l, 0, all, early);
        return;
    }
    project_columns(b, l, queries, all, false);
    keep_wanted_rows(b);
    if (b->batch->rows) project_columns(b, l, 0, queries, false);
}

/* The step's output of a segment of few rows, through its gate, to where the prompt's output projection looks for it. */
static void gate_short(backend *b, const step_input *in, uint32_t values, const batch_segment *seg) {
    rows_run_gate_f16(in, values, seg->first_row, seg->rows, b->scratch.mixed, b->stream);
}

static step_input gated_norm_input(const backend *b, const cuda_layer *l) {
    return (step_input){.source = STEP_GATED_NORM,
                        .x = f32(b, BUF_MIXER_OUT),
                        .x_stride = shape_mixer_out_values(b->s),
                        .gain = l->gdn.norm,
                        .gate = f32(b, BUF_MIXER_IN) + shape_conv_channels(b->s),
                        .gate_stride = shape_mixer_in_values(b->s),
                        .eps = b->s->norm_eps};
}

/* In fast precision the mixers of a step give what has gone through the gate. */
static bool gates_early(const backend *b) { return b->limits.fast && !b->prompt; }

static step_input heads_input(const backend *b) {
    return (step_input){.source = STEP_HEADS,
                        .x = f32(b, BUF_MIXER_OUT),
                        .x_stride = shape_mixer_out_values(b->s),
                        .squares = b->scratch.squares,
                        .eps = b->s->norm_eps};
}

static step_input plain_input(const backend *b) {
    return (step_input){.source = STEP_PLAIN, .x = f32(b, BUF_MIXER_OUT), .x_stride = shape_mixer_out_values(b->s)};
}

static step_input gated_input(const backend *b) {
    return (step_input){.source = STEP_GATED,
                        .x = f32(b, BUF_MIXER_OUT),
                        .x_stride = shape_mixer_out_values(b->s),
                        .gate = f32(b, BUF_MIXER_IN),
                        .gate_stride = shape_mixer_in_values(b->s)};
}

static void run_gdn(backend *b, uint32_t layer, const cuda_layer *l, bool early) {
    const model_shape *s = b->s;
    const uint64_t state_n = (uint64_t)shape_gdn_values(s) * GDN_HEAD_DIM, window_n = (uint64_t)CONV_HISTORY * shape_conv_channels(s);
    const uint64_t first = (uint64_t)s->kind_index[layer] * b->limits.slots;
    float *state = f32(b, BUF_STATE) + first * state_n, *window = f32(b, BUF_CONV) + first * window_n;
    const step_gdn a = {.batch = b->on_device,
                        .w = l->gdn,
                        .in = f32(b, BUF_MIXER_IN),
                        .out = f32(b, BUF_MIXER_OUT),
                        .squares = gates_early(b) ? b->scratch.squares : NULL,
                        .state = state,
                        .window = window,
                        .in_stride = shape_mixer_in_values(s),
                        .out_stride = shape_mixer_out_values(s),
                        .segments = b->batch->segments,
                        .most_rows = b->prompt ? CUDA_SEGMENT_ROWS - 1 : 0};
    bool any_short = !b->prompt;
    const step_input gate = gated_norm_input(b, l);
    for (uint32_t g = 0; b->prompt && g < b->batch->segments; g++) any_short |= !is_long(b, &b->batch->segment[g]);
    if (any_short) step_run_gdn(&a, early, b->stream);
    for (uint32_t g = 0; b->prompt && g < b->batch->segments; g++) {
        const batch_segment *seg = &b->batch->segment[g];
        if (!is_long(b, seg)) {
            gate_short(b, &gate, shape_gdn_values(s), seg);
            continue;
        }
        const bool fresh = seg->slot_src == NO_SLOT;
        cuda_gdn_prefill(&l->gdn, a.in + (uint64_t)seg->first_row * a.in_stride, a.in_stride, seg->rows,
                         fresh ? NULL : window + seg->slot_src * window_n, window + seg->slot_dst * window_n,
                         fresh ? NULL : state + seg->slot_src * state_n, state + seg->slot_dst * state_n,
                         b->scratch.mixed + (uint64_t)seg->first_row * shape_gdn_values(s), b->scratch.gdn, b->stream);
    }
}

static void run_attention(backend *b, uint32_t layer, const cuda_layer *l, bool early) {
    const model_shape *s = b->s;
    const row_batch *t = b->batch;
    const uint32_t values = shape_query_values(s);
    step_attention a = {.batch = b->on_device,
                        .kv = kv_of(b, layer),
                        .in = f32(b, BUF_MIXER_IN),
                        .out = f32(b, BUF_MIXER_OUT),
                        .q_gain = l->q_norm,
                        .k_gain = l->k_norm,
                        .rotary = b->scratch.rotary,
                        .partial = b->scratch.partial,
                        .counters = b->scratch.counters + b->limits.rows,
                        .in_stride = shape_mixer_in_values(s),
                        .out_stride = shape_mixer_out_values(s),
                        .heads = s->attention_heads,
                        .rows = t->rows,
                        .segments = t->segments,
                        .most_rows = b->prompt && b->limits.kv == CALLA_KV_BF16 ? CUDA_SEGMENT_ROWS - 1 : 0,
                        .clusters = b->device.clusters,
                        .exact = !b->limits.fast,
                        .gated = gates_early(b),
                        .single = t->rows == t->segments,
                        .norm_eps = s->norm_eps};
    bool any_short = !b->prompt;
    for (uint32_t g = 0; b->prompt && g < t->segments; g++) any_short |= !attends_long(b, &t->segment[g]);
    if (b->whole) {
        step_attention all = a;
        all.batch = b->whole_on_device;
        all.rows = b->whole->rows;
        step_run_attention_write(&all, NULL, b->stream);
        a.rotary = b->scratch.last_rotary;
        a.single = false;
        if (!a.rows) return;
    } else if (!a.single)
        step_run_attention_write(&a, b->prompt ? b->scratch.queries : NULL, b->stream);
    if (any_short) step_run_attention(&a, early, b->stream);
    const step_input gate = gated_input(b);
    for (uint32_t g = 0; b->prompt && g < t->segments; g++) {
        const batch_segment *seg = &t->segment[g];
        if (!attends_long(b, seg)) {
            gate_short(b, &gate, values, seg);
            continue;
        }
        const uint64_t row = seg->first_row;
        cuda_attention_prefill(b->scratch.queries + row * values, a.in + row * a.in_stride + HEAD_DIM, a.in_stride, &a.kv,
                               b->on_device.page_table + seg->first_page, seg->first_position, seg->rows, s->attention_heads,
                               b->scratch.mixed + row * values, b->stream);
    }
}

static void run_mixer_out(backend *b, uint32_t layer, const cuda_layer *l, bool early) {
    const bool attention = b->s->is_attention[layer];
    const uint32_t rows = b->batch->rows, values = attention ? shape_query_values(b->s) : shape_gdn_values(b->s);
    const step_input early_gated = attention ? plain_input(b) : heads_input(b),
                     late_gated = attention ? gated_input(b) : gated_norm_input(b, l);
    const step_linear a = {.w = l->mixer_out,
                           .in = gates_early(b) ? early_gated : late_gated,
                           .out = f32(b, BUF_RESIDUAL),
                           .out_stride = b->s->hidden,
                           .rows = rows,
                           .add = true};
    if (b->prompt)
        cuda_gemm(&a.w, b->scratch.mixed, values, a.out, a.out_stride, rows, true, b->stream);
    else
        step_run_linear(&b->device, &a, early, b->stream);
}

/* ---- experts ---- */

static float *shared_weight(const backend *b) { return f32(b, BUF_SHARED) + (uint64_t)b->limits.rows * b->s->shared_width; }

static step_moe moe_of(const backend *b, const cuda_layer *l) {
    const model_shape *s = b->s;
    return (step_moe){.router = l->router,
                      .shared_router = l->shared_router,
                      .shared_gate = l->shared_gate,
                      .shared_up = l->shared_up,
                      .shared_down = l->shared_down,
                      .gate = l->gate,
                      .up = l->up,
                      .down = l->down,
                      .in = norm_input(b, l->norm_moe),
                      .logits = b->scratch.router_logits,
                      .shared = f32(b, BUF_SHARED),
                      .shared_weight = shared_weight(b),
                      .expert = b->buf[BUF_ROUTE_EXPERT],
                      .weight = b->buf[BUF_ROUTE_WEIGHT],
                      .places = f32(b, BUF_EXPERT),
                      .residual = f32(b, BUF_RESIDUAL),
                      .top_k = s->top_k,
                      .rows = b->batch->rows};
}

static void route_prompt(backend *b, const cuda_layer *l) {
    const model_shape *s = b->s;
    const uint32_t rows = b->batch->rows, H = s->hidden, E = s->experts;
    uint32_t *expert = b->buf[BUF_ROUTE_EXPERT];
    rows_run_norm_f16(f32(b, BUF_RESIDUAL), l->norm_moe, s->norm_eps, H, rows, b->scratch.input, b->stream);
    for (uint32_t i = 0; i < l->routers.n; i++)
        cuda_gemm(&l->routers.mat[i], b->scratch.input, H, b->scratch.router_logits + l->routers.column[i], E + 1, rows, false, b->stream);
    step_run_choose(b->scratch.router_logits, E, s->top_k, rows, expert, b->buf[BUF_ROUTE_WEIGHT], shared_weight(b), b->stream);
    cuda_gemm_swiglu(&l->shared_gate, &l->shared_up, b->scratch.input, H, b->scratch.shared, s->shared_width, rows, b->stream);
    cuda_route_lists(expert, rows, s->top_k, E, &b->scratch.lists, b->stream);
}

static void run_route(backend *b, const cuda_layer *l, bool early) {
    const model_shape *s = b->s;
    const step_moe moe = moe_of(b, l);
    if (step_takes_moe(&b->device, &moe)) {
        step_run_moe_route(&moe, early, b->stream);
        return;
    }
    if (b->prompt) {
        route_prompt(b, l);
        return;
    }
    const step_route a = {.router = l->router,
                          .shared_router = l->shared_router,
                          .shared_gate = l->shared_gate,
                          .shared_up = l->shared_up,
                          .in = norm_input(b, l->norm_moe),
                          .moe_in = f32(b, BUF_MOE_IN),
                          .logits = b->scratch.router_logits,
                          .expert = b->buf[BUF_ROUTE_EXPERT],
                          .weight = b->buf[BUF_ROUTE_WEIGHT],
                          .shared = f32(b, BUF_SHARED),
                          .shared_weight = shared_weight(b),
                          .counters = b->scratch.counters,
                          .top_k = s->top_k,
                          .rows = b->batch->rows};
    step_run_route(&b->device, &a, early, b->stream);
}

static step_experts experts_of(const backend *b, const cuda_layer *l) {
    const model_shape *s = b->s;
    return (step_experts){.gate = l->gate,
                          .up = l->up,
                          .down = l->down,
                          .shared_down = l->shared_down,
                          .moe_in = f32(b, BUF_MOE_IN),
                          .expert = b->buf[BUF_ROUTE_EXPERT],
                          .weight = b->buf[BUF_ROUTE_WEIGHT],
                          .shared = f32(b, BUF_SHARED),
                          .shared_weight = shared_weight(b),
                          .places = f32(b, BUF_EXPERT),
                          .residual = f32(b, BUF_RESIDUAL),
                          .top_k = s->top_k,
                          .rows = b->batch->rows};
}

static void run_expert_in(backend *b, const cuda_layer *l, bool early) {
    const step_experts a = experts_of(b, l);
    const step_moe moe = moe_of(b, l);
    if (step_takes_moe(&b->device, &moe))
        step_run_moe_in(&b->device, &moe, early, b->stream);
    else if (b->prompt)
        cuda_expert_gemm_in(&l->gate, &l->up, b->scratch.input, b->s->hidden, &b->scratch.lists, b->scratch.experts, a.rows, a.top_k,
                            b->stream);
    else
        step_run_experts_in(&b->device, &a, early, b->stream);
}

static void run_expert_out(backend *b, const cuda_layer *l, bool early) {
    const step_experts a = experts_of(b, l);
    const step_moe moe = moe_of(b, l);
    if (step_takes_moe(&b->device, &moe)) {
        step_run_moe_out(&moe, early, b->stream);
        return;
    }
    if (!b->prompt) {
        step_run_experts_out(&b->device, &a, early, b->stream);
        return;
    }
    cuda_expert_gemm_out(&l->down, b->scratch.experts, &b->scratch.lists, a.weight, b->scratch.expert_partial, a.residual, b->s->hidden,
                         a.rows, a.top_k, b->stream);
    cuda_gemm_scaled_add(&l->shared_down, b->scratch.shared, b->s->shared_width, a.shared_weight, a.residual, b->s->hidden, a.rows,
                         b->stream);
}

void cuda_run_op(backend *b, cuda_op op, uint32_t layer, bool early) {
    const cuda_layer *l = &b->weights.layer[layer];
    if (!b->batch->rows && op != OP_MIXER) return; /* behind the keys and values of the last layer, where no row is wanted */
    switch (op) {
    case OP_EMBED: run_embed(b); break;
    case OP_MIXER_IN: run_mixer_in(b, layer, l, early); break;
    case OP_MIXER:
        if (b->s->is_attention[layer])
            run_attention(b, layer, l, early);
        else
            run_gdn(b, layer, l, early);
        break;
    case OP_MIXER_OUT: run_mixer_out(b, layer, l, early); break;
    case OP_ROUTE: run_route(b, l, early); break;
    case OP_EXPERT_IN: run_expert_in(b, l, early); break;
    case OP_EXPERT_OUT: run_expert_out(b, l, early); break;
    case OP_HEAD: run_head(b, early); break;
    }
}

/* moe.c: router, experts and the shared expert (docs/model.md, "MoE").
 *
 * Experts are visited in ascending order, each with the list of rows that chose it, so each expert's weights are widened once per
 * batch; a row's sum is in order of expert index, whatever else is in the batch. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

static float *shared_gate_values(backend *b) { /* [rows], behind [rows][shared width] */
    return (float *)b->buf[BUF_SHARED] + (size_t)b->limits.rows * b->s->shared_width;
}

void ref_route(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const uint32_t H = s->hidden, K = s->top_k, rows = b->batch->rows, width = s->shared_width;
    const float *residual = b->buf[BUF_RESIDUAL];
    float *x = b->buf[BUF_MOE_IN], *logits = b->scratch.rows, *shared = b->buf[BUF_SHARED], *weight = b->scratch.weight;
    ref_load_vec(&l->norm_moe, b->scratch.vec);
    for (uint32_t r = 0; r < rows; r++) ref_rmsnorm(residual + (size_t)r * H, b->scratch.vec, s->norm_eps, H, x + (size_t)r * H);

    ref_linear(&l->router, 0, x, H, logits, s->experts, rows, weight);
    for (uint32_t r = 0; r < rows; r++)
        ref_top_k(logits + (size_t)r * s->experts, s->experts, K, (uint32_t *)b->buf[BUF_ROUTE_EXPERT] + (size_t)r * K,
                  (float *)b->buf[BUF_ROUTE_WEIGHT] + (size_t)r * K);

    ref_linear(&l->shared_router, 0, x, H, shared_gate_values(b), 1, rows, weight);
    for (uint32_t r = 0; r < rows; r++) shared_gate_values(b)[r] = ref_sigmoid(shared_gate_values(b)[r]);
    for (uint32_t o = 0; o < width; o++) {
        ref_weight_row(&l->shared_gate, 0, o, weight);
        for (uint32_t r = 0; r < rows; r++) shared[(size_t)r * width + o] = ref_silu(ref_dot(weight, x + (size_t)r * H, H));
        ref_weight_row(&l->shared_up, 0, o, weight);
        for (uint32_t r = 0; r < rows; r++) shared[(size_t)r * width + o] *= ref_dot(weight, x + (size_t)r * H, H);
    }
}

/* The places r·top_k + i where row r chose expert e as its i-th. */
static uint32_t rows_of_expert(const backend *b, uint32_t e, uint32_t *list) {
    const uint32_t *expert = b->buf[BUF_ROUTE_EXPERT], places = b->batch->rows * b->s->top_k;
    uint32_t n = 0;
    for (uint32_t p = 0; p < places; p++)
        if (expert[p] == e) list[n++] = p;
    return n;
}

void ref_expert_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const uint32_t H = s->hidden, width = s->expert_width;
    const float *x = b->buf[BUF_MOE_IN];
    float *out = b->buf[BUF_EXPERT], *weight = b->scratch.weight;
    for (uint32_t e = 0; e < s->experts; e++) {
        const uint32_t n = rows_of_expert(b, e, b->scratch.list), *list = b->scratch.list;
        for (uint32_t o = 0; n && o < width; o++) {
            ref_weight_row(&l->expert_gate, e, o, weight);
            for (uint32_t i = 0; i < n; i++)
                out[(size_t)list[i] * width + o] = ref_silu(ref_dot(weight, x + (size_t)(list[i] / s->top_k) * H, H));
            ref_weight_row(&l->expert_up, e, o, weight);
            for (uint32_t i = 0; i < n; i++) out[(size_t)list[i] * width + o] *= ref_dot(weight, x + (size_t)(list[i] / s->top_k) * H, H);
        }
    }
}

void ref_expert_out(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const uint32_t H = s->hidden, width = s->expert_width, rows = b->batch->rows;
    const float *in = b->buf[BUF_EXPERT], *route = b->buf[BUF_ROUTE_WEIGHT], *shared = b->buf[BUF_SHARED], *gate = shared_gate_values(b);
    float *sum = b->scratch.rows, *residual = b->buf[BUF_RESIDUAL], *weight = b->scratch.weight;
    memset(sum, 0, (size_t)rows * H * sizeof *sum);
    for (uint32_t e = 0; e < s->experts; e++) {
        const uint32_t n = rows_of_expert(b, e, b->scratch.list), *list = b->scratch.list;
        for (uint32_t o = 0; n && o < H; o++) {
            ref_weight_row(&l->expert_down, e, o, weight);
            for (uint32_t i = 0; i < n; i++)
                sum[(size_t)(list[i] / s->top_k) * H + o] += route[list[i]] * ref_dot(weight, in + (size_t)list[i] * width, width);
        }
    }
    for (uint32_t o = 0; o < H; o++) {
        ref_weight_row(&l->shared_down, 0, o, weight);
        for (uint32_t r = 0; r < rows; r++) {
            const size_t at = (size_t)r * H + o;
            residual[at] += sum[at] + gate[r] * ref_dot(weight, shared + (size_t)r * s->shared_width, s->shared_width);
        }
    }
}

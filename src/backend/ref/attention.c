/* attention.c: gated grouped-query attention over paged K and V (docs/model.md, "Attention mixer").
 *
 * A row sees positions 0 … its own. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

enum { D = HEAD_DIM };

/* Goes on with the wanted rows alone: moves them together in the residual. */
static void keep_wanted_rows(backend *b) {
    const uint32_t H = b->s->hidden;
    float *residual = b->buf[BUF_RESIDUAL];
    for (uint32_t i = 0; i < b->batch->wanted; i++)
        memmove(residual + (size_t)i * H, residual + (size_t)b->batch->wanted_row[i] * H, H * sizeof *residual);
    b->batch = b->batch->last;
}

void ref_attention_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const uint32_t H = s->hidden, stride = shape_mixer_in_values(s), rows = b->batch->rows;
    float *q = b->buf[BUF_MIXER_IN], *k = q + 2 * (size_t)shape_query_values(s), *v = k + shape_kv_values(s);
    ref_mixer_norm(b, l);
    ref_linear(&l->k, 0, b->scratch.rows, H, k, stride, rows, b->scratch.weight);
    ref_linear(&l->v, 0, b->scratch.rows, H, v, stride, rows, b->scratch.weight);
    if (layer + 1 == s->layers && b->batch->last) {
        keep_wanted_rows(b);
        ref_mixer_norm(b, l);
    }
    ref_linear(&l->q, 0, b->scratch.rows, H, q, stride, b->batch->rows, b->scratch.weight);
}

/* K (v = 0) or V (v = 1) of a head in a page of a layer. */
static uint8_t *kv_block(const backend *b, uint32_t layer, uint32_t page, uint32_t v, uint32_t head) {
    const model_shape *s = b->s;
    const uint64_t index = (((uint64_t)s->kind_index[layer] * b->limits.pages + page) * 2 + v) * s->kv_heads + head;
    return (uint8_t *)b->buf[BUF_KV] + index * kv_block_bytes(b->limits.kv);
}

/* Norms and rotates the queries, in place. */
static void rotate_queries(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    float gain[D], cosine[ROTARY_DIM / 2], sine[ROTARY_DIM / 2];
    ref_load_vec(&b->w->layer[layer].q_norm, gain);
    for (uint32_t r = 0; r < b->batch->rows; r++) {
        ref_rope_angles(b->batch->positions[r], s->rope_theta, cosine, sine);
        for (uint32_t h = 0; h < s->attention_heads; h++) {
            float *x = (float *)b->buf[BUF_MIXER_IN] + (size_t)r * shape_mixer_in_values(s) + (size_t)h * 2 * D;
            ref_rmsnorm(x, gain, s->norm_eps, D, x);
            ref_rope(x, cosine, sine);
        }
    }
}

/* Norms and rotates k, and puts k and v into the cache: all rows of the batch, also those that are not wanted. */
static void write_cache(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const row_batch *t = b->whole;
    float k_gain[D], cosine[ROTARY_DIM / 2], sine[ROTARY_DIM / 2];
    ref_load_vec(&b->w->layer[layer].k_norm, k_gain);
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint32_t position = t->positions[r],
                       page = t->page_table[t->segment[t->segment_of[r]].first_page + position / KV_PAGE_TOKENS];
        float *k = (float *)b->buf[BUF_MIXER_IN] + (size_t)r * shape_mixer_in_values(s) + 2 * (size_t)shape_query_values(s),
              *v = k + shape_kv_values(s);
        ref_rope_angles(position, s->rope_theta, cosine, sine);
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            float *x = k + (size_t)h * D;
            ref_rmsnorm(x, k_gain, s->norm_eps, D, x);
            ref_rope(x, cosine, sine);
            ref_kv_store(kv_block(b, layer, page, 0, h), b->limits.kv, position % KV_PAGE_TOKENS, x);
            ref_kv_store(kv_block(b, layer, page, 1, h), b->limits.kv, position % KV_PAGE_TOKENS, v + (size_t)h * D);
        }
    }
}

/* One row and one K/V head: softmax(q·k/16) v for the query heads of its group. */
static void attend(backend *b, uint32_t layer, const uint32_t *pages, uint32_t position, uint32_t head, const float *q, float *out) {
    const model_shape *s = b->s;
    const uint32_t group = s->attention_heads / s->kv_heads;
    const size_t n = (size_t)position + 1;
    float row[D], *scores = b->scratch.scores; /* [group][n] */
    for (size_t t = 0; t < n; t++) {
        ref_kv_load(kv_block(b, layer, pages[t / KV_PAGE_TOKENS], 0, head), b->limits.kv, t % KV_PAGE_TOKENS, row);
        for (uint32_t j = 0; j < group; j++) scores[j * n + t] = ref_dot(q + (size_t)j * 2 * D, row, D) * 0.0625f; /* 1/√256 */
    }
    for (uint32_t j = 0; j < group; j++) {
        float *p = scores + j * n, max = p[0];
        double sum = 0;
        for (size_t t = 1; t < n; t++) max = p[t] > max ? p[t] : max;
        for (size_t t = 0; t < n; t++) sum += p[t] = expf(p[t] - max);
        const float scale = (float)(1 / sum);
        for (size_t t = 0; t < n; t++) p[t] *= scale;
        memset(out + (size_t)j * D, 0, D * sizeof *out);
    }
    for (size_t t = 0; t < n; t++) {
        ref_kv_load(kv_block(b, layer, pages[t / KV_PAGE_TOKENS], 1, head), b->limits.kv, t % KV_PAGE_TOKENS, row);
        for (uint32_t j = 0; j < group; j++) {
            const float p = scores[j * n + t];
            float *o = out + (size_t)j * D;
            for (uint32_t i = 0; i < D; i++) o[i] += p * row[i];
        }
    }
}

void ref_attention_mix(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const uint32_t group = s->attention_heads / s->kv_heads;
    rotate_queries(b, layer);
    write_cache(b, layer);
    for (uint32_t g = 0; g < b->batch->segments; g++) {
        const batch_segment *seg = &b->batch->segment[g];
        for (uint32_t r = seg->first_row; r < seg->first_row + seg->rows; r++) {
            const float *q = (const float *)b->buf[BUF_MIXER_IN] + (size_t)r * shape_mixer_in_values(s);
            float *out = (float *)b->buf[BUF_MIXER_OUT] + (size_t)r * shape_mixer_out_values(s);
            for (uint32_t h = 0; h < s->kv_heads; h++)
                attend(b, layer, b->batch->page_table + seg->first_page, b->batch->positions[r], h, q + (size_t)h * group * 2 * D,
                       out + (size_t)h * group * D);
        }
    }
}

/* out · sigmoid(gate), output projection, residual.  The gate is the second half of each query head's projection. */
void ref_attention_out(backend *b, const layer_weights *l) {
    const model_shape *s = b->s;
    const uint32_t n = shape_query_values(s);
    for (uint32_t r = 0; r < b->batch->rows; r++) {
        const float *o = (const float *)b->buf[BUF_MIXER_OUT] + (size_t)r * shape_mixer_out_values(s);
        const float *q = (const float *)b->buf[BUF_MIXER_IN] + (size_t)r * shape_mixer_in_values(s);
        float *x = b->scratch.rows + (size_t)r * n;
        for (uint32_t i = 0; i < n; i++) x[i] = o[i] * ref_sigmoid(q[(size_t)(i / D) * 2 * D + D + i % D]);
    }
    ref_project_residual(b, &l->attn_out);
}

void ref_attention_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens) {
    for (uint32_t layer = 0; layer < b->s->layers; layer++) {
        if (!b->s->is_attention[layer]) continue;
        for (uint32_t v = 0; v < 2; v++)
            for (uint32_t h = 0; h < b->s->kv_heads; h++)
                ref_kv_copy(kv_block(b, layer, dst, v, h), kv_block(b, layer, src, v, h), b->limits.kv, tokens);
    }
}

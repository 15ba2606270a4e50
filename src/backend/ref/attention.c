/* attention.c: gated grouped-query attention over paged K and V (docs/model.md, "Attention mixer").
 *
 * BUF_KV is [attention layers][pages][k, v][kv heads][page tokens][256] in bf16 or f32.  A row sees positions 0 … its own. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "base/float.h"

enum { D = HEAD_DIM };

void ref_attention_in(backend *b, const layer_weights *l) {
    const model_shape *s = b->s;
    const uint32_t H = s->hidden, stride = shape_mixer_in_values(s), rows = b->batch->rows;
    float *q = b->buf[BUF_MIXER_IN], *k = q + 2 * (size_t)shape_query_values(s), *v = k + shape_kv_values(s);
    ref_mixer_norm(b, l);
    ref_linear(&l->q, 0, b->scratch.rows, H, q, stride, rows, b->scratch.weight);
    ref_linear(&l->k, 0, b->scratch.rows, H, k, stride, rows, b->scratch.weight);
    ref_linear(&l->v, 0, b->scratch.rows, H, v, stride, rows, b->scratch.weight);
}

/* Elements before row 0 of K (v = 0) or V (v = 1) of a head in a page of a layer. */
static size_t kv_offset(const backend *b, uint32_t layer, uint32_t page, uint32_t v, uint32_t head) {
    const model_shape *s = b->s;
    return ((((size_t)s->kind_index[layer] * b->limits.pages + page) * 2 + v) * s->kv_heads + head) * KV_PAGE_TOKENS * D;
}

static void kv_store(backend *b, size_t at, const float *x) {
    if (b->limits.kv == CALLA_KV_F32) {
        memcpy((float *)b->buf[BUF_KV] + at, x, D * sizeof *x);
    } else {
        uint16_t *out = (uint16_t *)b->buf[BUF_KV] + at;
        for (uint32_t i = 0; i < D; i++) out[i] = float_to_bf16(x[i]);
    }
}

/* A cached row as f32: in place, or widened into tmp [256]. */
static const float *kv_load(const backend *b, size_t at, float *tmp) {
    if (b->limits.kv == CALLA_KV_F32) return (const float *)b->buf[BUF_KV] + at;
    const uint16_t *in = (const uint16_t *)b->buf[BUF_KV] + at;
    for (uint32_t i = 0; i < D; i++) tmp[i] = float_from_bf16(in[i]);
    return tmp;
}

/* Norms and rotates q (in place) and k, and puts k and v into the cache. */
static void write_cache(backend *b, uint32_t layer, const batch_segment *seg) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    float q_gain[D], k_gain[D], cosine[ROTARY_DIM / 2], sine[ROTARY_DIM / 2];
    ref_load_vec(&l->q_norm, q_gain);
    ref_load_vec(&l->k_norm, k_gain);
    for (uint32_t i = 0; i < seg->rows; i++) {
        const uint32_t position = seg->first_position + i, page = b->batch->page_table[seg->first_page + position / KV_PAGE_TOKENS];
        float *q = (float *)b->buf[BUF_MIXER_IN] + (size_t)(seg->first_row + i) * shape_mixer_in_values(s);
        float *k = q + 2 * (size_t)shape_query_values(s), *v = k + shape_kv_values(s);
        const size_t row = (size_t)(position % KV_PAGE_TOKENS) * D;
        ref_rope_angles(position, s->rope_theta, cosine, sine);
        for (uint32_t h = 0; h < s->attention_heads; h++) {
            float *x = q + (size_t)h * 2 * D;
            ref_rmsnorm(x, q_gain, s->norm_eps, D, x);
            ref_rope(x, cosine, sine);
        }
        for (uint32_t h = 0; h < s->kv_heads; h++) {
            float *x = k + (size_t)h * D;
            ref_rmsnorm(x, k_gain, s->norm_eps, D, x);
            ref_rope(x, cosine, sine);
            kv_store(b, kv_offset(b, layer, page, 0, h) + row, x);
            kv_store(b, kv_offset(b, layer, page, 1, h) + row, v + (size_t)h * D);
        }
    }
}

/* One row and one K/V head: softmax(q·k/16) v for the query heads of its group. */
static void attend(backend *b, uint32_t layer, const uint32_t *pages, uint32_t position, uint32_t head, const float *q, float *out) {
    const model_shape *s = b->s;
    const uint32_t group = s->attention_heads / s->kv_heads;
    const size_t n = (size_t)position + 1;
    float tmp[D], *scores = b->scratch.scores; /* [group][n] */
    for (size_t t = 0; t < n; t++) {
        const float *k = kv_load(b, kv_offset(b, layer, pages[t / KV_PAGE_TOKENS], 0, head) + t % KV_PAGE_TOKENS * D, tmp);
        for (uint32_t j = 0; j < group; j++) scores[j * n + t] = ref_dot(q + (size_t)j * 2 * D, k, D) * 0.0625f; /* 1/√256 */
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
        const float *v = kv_load(b, kv_offset(b, layer, pages[t / KV_PAGE_TOKENS], 1, head) + t % KV_PAGE_TOKENS * D, tmp);
        for (uint32_t j = 0; j < group; j++) {
            const float p = scores[j * n + t];
            float *o = out + (size_t)j * D;
            for (uint32_t i = 0; i < D; i++) o[i] += p * v[i];
        }
    }
}

void ref_attention_mix(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const uint32_t group = s->attention_heads / s->kv_heads;
    for (uint32_t g = 0; g < b->batch->segments; g++) {
        const batch_segment *seg = &b->batch->segment[g];
        write_cache(b, layer, seg);
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
    const size_t element = b->limits.kv == CALLA_KV_F32 ? 4 : 2;
    uint8_t *kv = b->buf[BUF_KV];
    for (uint32_t layer = 0; layer < b->s->layers; layer++) {
        if (!b->s->is_attention[layer]) continue;
        for (uint32_t v = 0; v < 2; v++)
            for (uint32_t h = 0; h < b->s->kv_heads; h++)
                memcpy(kv + kv_offset(b, layer, dst, v, h) * element, kv + kv_offset(b, layer, src, v, h) * element,
                       (size_t)tokens * D * element);
    }
}

/* ref.h: the reference backend: plain C in float32, slow and obvious, the truth for every other kernel.
 *
 * Each row is computed by the same operations in the same order whatever else is in the batch, so any way of cutting a prompt into
 * chunks, or mixing sequences, gives bit-equal results.  One file per family of ops; all of them see this struct. */
#ifndef CALLA_BACKEND_REF_REF_H
#define CALLA_BACKEND_REF_REF_H

#include "backend/backend.h"
#include "backend/ref/plain.h"

typedef struct ref_scratch { /* views into BUF_SCRATCH */
    float *weight;           /* [max columns]: one dequantized row of a matrix */
    float *vec;              /* [max(conv channels·4, H)]: one vector of weights as f32 */
    float *rows;             /* [rows][max(H, mixer out values)]: input of a projection, or the sum of the experts */
    float *conv;             /* [conv channels]: one row after the convolution */
    float *scores;           /* [query heads per kv head][positions] */
    uint32_t *list;          /* [rows·top_k]: the (row, choice) pairs of one expert */
    void *sample;            /* the sampler's candidates */
} ref_scratch;

struct backend {
    const weights *w;
    const model_shape *s;
    backend_limits limits;
    void *buf[BUF_COUNT];
    uint64_t bytes[BUF_COUNT];
    ref_scratch scratch;
    const row_batch *batch; /* the rows under way */
    const row_batch *whole; /* the batch as begun: `batch` is its `last` from the last layer's mixer on */
    sample_result *results; /* [limits.samples]; of the batch before, until head */
};

/* ---- linear.c ---- */
/* out[r·out_stride + o] = Σ_k W[o][k] x[r·x_stride + k] for `rows` rows. weight: [cols] scratch */
void ref_linear(const weight_mat *m, uint32_t which, const float *x, uint32_t x_stride, float *out, uint32_t out_stride, uint32_t rows,
                float *weight);

/* ---- row.c: what works on single rows ---- */
/* out = x · rsqrt(mean(x²) + eps) ⊙ gain; out may be x */
void ref_rmsnorm(const float *x, const float *gain, float eps, uint32_t n, float *out);
void ref_embed(backend *b);
void ref_head(backend *b);

/* ---- the ops ---- */
void ref_gdn_in(backend *b, const layer_weights *l);
void ref_gdn_mix(backend *b, uint32_t layer);
void ref_gdn_out(backend *b, const layer_weights *l);
void ref_attention_in(backend *b, uint32_t layer);
void ref_attention_mix(backend *b, uint32_t layer);
void ref_attention_out(backend *b, const layer_weights *l);
void ref_attention_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens);
void ref_route(backend *b, uint32_t layer);
void ref_expert_in(backend *b, uint32_t layer);
void ref_expert_out(backend *b, uint32_t layer);

/* Projects normed residual rows into columns of BUF_MIXER_IN: ref_mixer_norm fills scratch.rows [rows][H]. */
void ref_mixer_norm(backend *b, const layer_weights *l);
/* BUF_RESIDUAL += W x for x = scratch.rows [rows][W.cols]. */
void ref_project_residual(backend *b, const weight_mat *m);

#endif

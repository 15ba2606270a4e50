/* plain.h: pure functions of the reference backend: no device, no state.  Other backends call those that need not be faster. */
#ifndef CALLA_BACKEND_REF_PLAIN_H
#define CALLA_BACKEND_REF_PLAIN_H

#include "backend/backend.h"

/* ---- linear.c ---- */
/* out [cols]: row `row` of matrix `which` as f32: scale · code + bias. */
void ref_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out);
/* Σ a_i b_i in 16 partial sums that are added pairwise, then the tail: the order depends on n alone. */
float ref_dot(const float *a, const float *b, uint32_t n);

/* ---- plain.c ---- */
void ref_load_vec(const weight_vec *v, float *out /* [n] */);
float ref_sigmoid(float x);
float ref_silu(float x);
float ref_softplus(float x);
/* cosine, sine [32] of position · theta^(−2j/64); angles in double, since positions go to 262,143 */
void ref_rope_angles(uint32_t position, double theta, float *cosine, float *sine);
/* Row t of a block of the cache (backend.h) as f32, and back: bf16 and 8 bits round to nearest. */
void ref_kv_load(const uint8_t *block, calla_kv kv, uint32_t t, float out[HEAD_DIM]);
void ref_kv_store(uint8_t *block, calla_kv kv, uint32_t t, const float x[HEAD_DIM]);
/* Copies rows 0 … n - 1. */
void ref_kv_copy(uint8_t *dst, const uint8_t *src, calla_kv kv, uint32_t n);
/* Rotates pairs (j, j + 32), j < 32, of x. */
void ref_rope(float *x, const float *cosine, const float *sine);
/* expert, weight [k]: the k largest of logits [n] (ties: lowest index), and the softmax over them.  Overwrites logits. */
void ref_top_k(float *logits, uint32_t n, uint32_t k, uint32_t *expert, float *weight);

#endif

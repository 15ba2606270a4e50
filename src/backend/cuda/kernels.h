/* kernels.h: the border between the CUDA backend's host code (C) and its kernels (.cu): weights and batch as the device sees them, and
 * one launch function per kernel.
 *
 * All pointers named below are device pointers unless said otherwise.  A launch enqueues on `stream` and returns; errors are sticky and
 * found by the host code at the end of the step.  Nothing here allocates.  Sizes that a launch takes as arguments fix the grid only;
 * what changes from step to step is read from the batch on the device. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_H
#define CALLA_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights ----
 *
 * y = W x is computed on tensor cores with W as the A operand: mma.m16n8k16 has 16 outputs as rows, and wgmma m64nNk16 takes the very
 * same fragments from registers, 16 outputs per warp.  So codes are stored as A fragments.  A tile is 16 outputs × 64 inputs; tiles of a
 * row of tiles follow each other along the inputs:
 *
 *     tile (r, c) of matrix e starts at codes + ((e·row_tiles + r)·col_tiles + c) · tile_bytes
 *
 * 4 bits: 512 bytes; lane L of a warp owns the 16 bytes at 16·L.  Its word j (of 4) belongs to the k16 step j.  With g = L/4, t = L%4,
 * nibble n (lowest first) is register a[n%4], half n/4, so that a[i] = (word >> 4·i) & 0x000F000F, two codes in two halves:
 *     output 16·r + g + 8·(n%4 & 1),  input 64·c + 16·j + 2·t + n/4 + 8·(n%4 >> 1)
 * 8 bits: 1024 bytes: a 4-bit tile of the low nibbles and one of the high nibbles.
 * 16 bits: 2048 bytes: for each step j, 32 lanes · 16 bytes, the registers a[0..3] in bf16.
 *
 * Inputs keep their natural order, so activations are plain rows.  w = scale · code + bias; scale (low half) and bias (high half) are
 * bf16 in one word:
 *
 *     scales[(((e·row_tiles + r)·col_tiles + c)·subs + sub)·16 + output%16],  subs = 1: groups of 64 (and 128, each twice), 2: of 32
 *
 * Outputs and inputs beyond rows and cols are padding: codes, scales and biases 0. */
typedef struct cuda_mat {
    const uint4 *codes;
    const uint32_t *scales; /* NULL with 16 bits */
    uint32_t count;         /* stacked matrices (experts) */
    uint32_t rows, cols;    /* outputs, inputs as they are used */
    uint32_t row_tiles, col_tiles;
    uint32_t bits, subs;
} cuda_mat;

#ifdef __cplusplus
#define CUDA_FN static __host__ __device__ inline
#else
#define CUDA_FN static inline
#endif
CUDA_FN uint32_t cuda_tile_bytes(uint32_t bits) { return bits * 128u; }

/* ---- the batch on the device: arrays at fixed addresses, copied there before each step ---- */

typedef struct cuda_counts {
    uint32_t rows, segments, wanted, samples;
    uint32_t tokens;     /* ids at or above are padding and never picked */
    uint32_t largest_at; /* in step_head.largest, of this step's */
} cuda_counts;

typedef struct cuda_batch {
    const cuda_counts *counts;
    const int32_t *ids;           /* [rows]; -1 - k: picked[k] */
    const uint32_t *positions;    /* [rows] */
    const uint32_t *segment_of;   /* [rows] */
    const batch_segment *segment; /* [segments] */
    const uint32_t *page_table;
    const uint32_t *wanted_row; /* [wanted] */
    const uint32_t *sample_of;  /* [samples] */
} cuda_batch;

/* ---- paged K and V: [attention layers][pages][k, v][kv heads][KV_PAGE_TOKENS][HEAD_DIM] ---- */

typedef struct cuda_kv {
    void *layer;       /* page 0 of this layer */
    uint32_t kv_heads; /* elements of a page: 2·kv_heads·KV_PAGE_TOKENS·HEAD_DIM */
    bool f32;          /* else bf16; the prefill kernels are called with bf16 only */
} cuda_kv;

/* ---- prefill: batches of many rows with f16 activations and f32 sums ----
 *
 * f16 and bf16 are uint16_t here; what is too large for f16 becomes 65504.  Rows are [rows][stride] with a stride that is a multiple of 8
 * elements and 16-byte aligned. */

/* out[r][o] = or += Σ_k W[o][k] x[r][k] for r < rows and o < w->rows. */
void cuda_gemm(const cuda_mat *w, const uint16_t *x, uint32_t x_stride, float *out, uint32_t out_stride, uint32_t rows, bool add,
               cudaStream_t stream);
/* out[r][o] = silu(gate x) · (up x), f16: the shared expert's first half.  Gate and up have the same shape, bits and subs, here and
 * below. */
void cuda_gemm_swiglu(const cuda_mat *gate, const cuda_mat *up, const uint16_t *x, uint32_t x_stride, uint16_t *out, uint32_t out_stride,
                      uint32_t rows, cudaStream_t stream);
/* residual[r][o] += scale[r] · Σ_k W[o][k] x[r][k]: the shared expert's second half, scaled by its gate. */
void cuda_gemm_scaled_add(const cuda_mat *w, const uint16_t *x, uint32_t x_stride, const float *scale, float *residual, uint32_t out_stride,
                          uint32_t rows, cudaStream_t stream);

/* Rows of each expert by counting sort, all on the device.  A place is row·top_k + i. */
typedef struct cuda_expert_rows {
    uint32_t *first;   /* [experts + 1]: where an expert's places begin in place[] */
    uint32_t *place;   /* [rows·top_k] ordered by expert, ascending within one */
    uint32_t *slot_of; /* [rows·top_k]: the index into place[] of each place */
    uint32_t *blocks;  /* the work list of the grouped GEMMs, as their own file defines it; cuda_expert_block_bytes */
} cuda_expert_rows;
uint64_t cuda_expert_block_bytes(uint32_t experts, uint32_t max_rows, uint32_t top_k);
void cuda_route_lists(const uint32_t *expert /* [rows][top_k] */, uint32_t rows, uint32_t top_k, uint32_t experts,
                      const cuda_expert_rows *lists, cudaStream_t stream);

/* out[s][o] = silu(gate_e x) · (up_e x), f16, for each slot s of place[]: x is row place[s]/top_k of [rows][x_stride], e the expert to
 * whose places s belongs.  out [rows·top_k][w->rows]. */
void cuda_expert_gemm_in(const cuda_mat *gate, const cuda_mat *up, const uint16_t *x, uint32_t x_stride, const cuda_expert_rows *lists,
                         uint16_t *out, uint32_t rows, uint32_t top_k, cudaStream_t stream);
/* residual[r][o] += Σ_i weight[r][i] · (down_e in[slot_of[r·top_k + i]]), in a fixed order (results must repeat).  partial: room for
 * [rows·top_k][H] f16 or f32 as the kernel likes: cuda_expert_partial_bytes. */
uint64_t cuda_expert_partial_bytes(uint32_t max_rows, uint32_t top_k, uint32_t hidden);
void cuda_expert_gemm_out(const cuda_mat *down, const uint16_t *in, const cuda_expert_rows *lists, const float *weight, void *partial,
                          float *residual, uint32_t residual_stride, uint32_t rows, uint32_t top_k, cudaStream_t stream);

/* One segment of many rows: softmax(q k / 16) v · sigmoid(gate), causal, over the cache, which already holds this segment's keys.
 * q [rows][heads][HEAD_DIM] bf16, normed and rotated, not scaled; `gate` f32: value i of head h of row r at
 * gate[r·gate_stride + 2·h·HEAD_DIM + i].  out [rows][heads·HEAD_DIM] f16.  q, gate, out point at the segment's first row; pages at the
 * segment's part of the page table. */
void cuda_attention_prefill(const uint16_t *q, const float *gate, uint32_t gate_stride, const cuda_kv *kv, const uint32_t *pages,
                            uint32_t first_position, uint32_t rows, uint32_t heads, uint16_t *out, cudaStream_t stream);

/* One segment of many rows through conv, delta rule (chunked) and gated norm.
 * in [rows][in_stride] f32: qkv | z | a | b, in_stride a multiple of 4.  conv_src, conv_dst [3][channels] f32 windows, oldest first, and
 * state_src, state_dst [value heads][128 key][128 value] f32: source NULL is all zeros; source and destination are never the same.
 * out [rows][value heads·128] f16: rmsnorm(o)·norm · silu(z), the input of the output projection.
 * scratch: cuda_gdn_scratch_bytes. */
typedef struct cuda_gdn_weights {
    const float *conv;    /* [channels][4], tap 3 is the newest */
    const float *decay;   /* [value heads]: exp(A_log) */
    const float *dt_bias; /* [value heads] */
    const float *norm;    /* [128] */
    uint32_t key_heads, value_heads;
    float norm_eps;
} cuda_gdn_weights;
uint64_t cuda_gdn_scratch_bytes(uint32_t key_heads, uint32_t value_heads, uint32_t max_rows);
void cuda_gdn_prefill(const cuda_gdn_weights *w, const float *in, uint32_t in_stride, uint32_t rows, const float *conv_src, float *conv_dst,
                      const float *state_src, float *state_dst, uint16_t *out, void *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* attention.cuh: what the kernels of single rows' attention share: where keys and values lie, how they get there, and how a row's keys
 * are cut into splits and their sums put together. */
#ifndef CALLA_BACKEND_CUDA_ATTENTION_CUH
#define CALLA_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t MAX_GROUP = STEP_MAX_GROUP, LEAST_SPLIT = 128;
constexpr uint32_t PARTIAL = HEAD_DIM + 2; /* of a split and head: Σ p v, then the maximum score and Σ p */

__device__ __forceinline__ size_t page_elements(const cuda_kv &kv) { return (size_t)2 * kv.kv_heads * KV_PAGE_TOKENS * HEAD_DIM; }

/* Elements before K (v = 0) or V (v = 1) of a head at a position. */
__device__ __forceinline__ size_t kv_at(const cuda_kv &kv, uint32_t page, uint32_t v, uint32_t head, uint32_t position) {
    return page * page_elements(kv) + ((size_t)(v * kv.kv_heads + head) * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS) * HEAD_DIM;
}

/* A head of a row, by a warp: lane has values lane + 32·i. */
__device__ __forceinline__ void load_head(const float *x, float (&out)[8]) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) out[i] = __ldcg(x + threadIdx.x % WARP + WARP * i);
}

/* A warp norms and rotates a head: the pairs (j, j + 32), j < 32, are a lane's first two. */
__device__ __forceinline__ void norm_rotate(float (&x)[8], const float *gain, const float *rotary, float eps) {
    const uint32_t lane = threadIdx.x % WARP;
    float squares = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) squares += x[i] * x[i];
    const float scale = rsqrtf(sum_lanes<32>(squares) * (1.0f / HEAD_DIM) + eps);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) x[i] *= scale * gain[lane + WARP * i];
    const float c = rotary[lane], s = rotary[ROTARY_DIM / 2 + lane], a = x[0], b = x[1];
    x[0] = a * c - b * s;
    x[1] = b * c + a * s;
}

__device__ __forceinline__ uint16_t to_bf16(float x) { return (uint16_t)bf16_pair(x, 0.0f); }

__device__ __forceinline__ void store_kv(const cuda_kv &kv, size_t at, const float (&x)[8]) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        if (kv.f32)
            static_cast<float *>(kv.layer)[at + lane + WARP * i] = x[i];
        else
            static_cast<uint16_t *>(kv.layer)[at + lane + WARP * i] = to_bf16(x[i]);
    }
}

/* Key and value of one row and head, by one warp each: `v` says which. */
__device__ inline void write_key_or_value(const step_attention &a, uint32_t row, uint32_t page, uint32_t position, uint32_t head,
                                          uint32_t v) {
    float x[8];
    load_head(a.in + (size_t)row * a.in_stride + (2 * (size_t)a.heads + v * a.kv.kv_heads + head) * HEAD_DIM, x);
    if (!v) norm_rotate(x, a.k_gain, a.rotary + (size_t)row * ROTARY_DIM, a.norm_eps);
    store_kv(a.kv, kv_at(a.kv, page, v, head, position), x);
}

/* A row's keys are cut into splits of equal size, as few as `least` keys: at most `most`. */
__device__ __forceinline__ uint32_t split_keys(uint32_t keys, uint32_t most, uint32_t least) {
    const uint32_t per = (keys + most - 1) / most;
    return per < least ? least : (per + 31) / 32 * 32;
}

/* The gates of a row's heads from `head` on; NULL: the output is not gated here. */
__device__ __forceinline__ const float *gates_of(const step_attention &a, uint32_t row, uint32_t head) {
    return a.gated ? a.in + (size_t)row * a.in_stride + (size_t)head * 2 * HEAD_DIM + HEAD_DIM : nullptr;
}

__device__ __forceinline__ float gate_of(const float *gates, uint32_t head, uint32_t value) {
    return gates ? sigmoid(gates[(size_t)head * 2 * HEAD_DIM + value]) : 1.0f;
}

/* The last block of a row and K/V head: all splits' sums into out; a warp weighs the splits of a head, then a thread has the same value of
 * all heads, whose loads do not wait for each other. */
template <uint32_t THREADS>
__device__ inline void add_splits(const float *partial, uint32_t splits, uint32_t group, const float *gates, float *out) {
    __shared__ float weight[MAX_GROUP][STEP_MAX_SPLITS];
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t head = threadIdx.x / WARP; head < group; head += THREADS / WARP) {
        constexpr uint32_t EACH = STEP_MAX_SPLITS / WARP;
        float most[EACH], sum[EACH], all = -INFINITY, total = 0;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t s = lane + i * WARP;
            const float *p = partial + ((size_t)s * group + head) * PARTIAL + HEAD_DIM;
            most[i] = s < splits ? __ldcg(p) : -INFINITY;
            sum[i] = s < splits ? __ldcg(p + 1) : 0.0f;
            all = fmaxf(all, most[i]);
        }
        all = max_lanes<32>(all);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            most[i] = expf(most[i] - all);
            total += most[i] * sum[i];
        }
        total = sum_lanes<32>(total);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) weight[head][lane + i * WARP] = most[i] / total;
    }
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < HEAD_DIM; d += THREADS) {
        float value[MAX_GROUP] = {};
#pragma unroll 4
        for (uint32_t s = 0; s < splits; s++) {
#pragma unroll
            for (uint32_t j = 0; j < MAX_GROUP; j++)
                if (j < group) value[j] += weight[j][s] * __ldcg(partial + ((size_t)s * group + j) * PARTIAL + d);
        }
#pragma unroll
        for (uint32_t j = 0; j < MAX_GROUP; j++)
            if (j < group) out[(size_t)j * HEAD_DIM + d] = value[j] * gate_of(gates, j, d);
    }
}

void run_attention_bf16(const step_attention *a, bool early, cudaStream_t stream); /* attention_bf16.cu */

} // namespace calla

#endif

/* attention.cuh: what the kernels of single rows' attention share: where keys and values lie, how they get there, and how a row's keys
 * are cut into splits and their sums put together. */
#ifndef CALLA_BACKEND_CUDA_ATTENTION_CUH
#define CALLA_BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t MAX_GROUP = 8, LEAST_SPLIT = 128;
constexpr uint32_t PARTIAL = HEAD_DIM + 2; /* of a split and head: Σ p v, then the maximum score and Σ p */

__device__ __forceinline__ size_t page_elements(const cuda_kv &kv) { return (size_t)2 * kv.kv_heads * KV_PAGE_TOKENS * HEAD_DIM; }

/* Elements before K (v = 0) or V (v = 1) of a head at a position. */
__device__ __forceinline__ size_t kv_at(const cuda_kv &kv, uint32_t page, uint32_t v, uint32_t head, uint32_t position) {
    return page * page_elements(kv) + ((size_t)(v * kv.kv_heads + head) * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS) * HEAD_DIM;
}

/* A warp norms and rotates a head: lane has values lane + 32·i; the pairs (j, j + 32), j < 32, are its first two. */
__device__ __forceinline__ void norm_rotate(const float *x, const float *gain, const float *rotary, float eps, float (&out)[8]) {
    const uint32_t lane = threadIdx.x % WARP;
    float squares = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        out[i] = x[lane + WARP * i];
        squares += out[i] * out[i];
    }
    const float scale = rsqrtf(sum_lanes<32>(squares) * (1.0f / HEAD_DIM) + eps);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) out[i] *= scale * gain[lane + WARP * i];
    const float c = rotary[lane], s = rotary[ROTARY_DIM / 2 + lane], a = out[0], b = out[1];
    out[0] = a * c - b * s;
    out[1] = b * c + a * s;
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
    const uint32_t lane = threadIdx.x % WARP;
    const float *k = a.in + (size_t)row * a.in_stride + 2 * (size_t)a.heads * HEAD_DIM + head * HEAD_DIM;
    float x[8];
    if (v) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) x[i] = k[a.kv.kv_heads * HEAD_DIM + lane + WARP * i];
    } else {
        norm_rotate(k, a.k_gain, a.rotary + (size_t)row * ROTARY_DIM, a.norm_eps, x);
    }
    store_kv(a.kv, kv_at(a.kv, page, v, head, position), x);
}

/* A row's keys are cut into splits of equal size, as few as LEAST_SPLIT keys: at most `most`. */
__device__ __forceinline__ uint32_t split_keys(uint32_t keys, uint32_t most) {
    const uint32_t per = (keys + most - 1) / most;
    return per < LEAST_SPLIT ? LEAST_SPLIT : (per + 31) / 32 * 32;
}

/* The gates of a row's heads from `head` on; NULL: the output is not gated here. */
__device__ __forceinline__ const float *gates_of(const step_attention &a, uint32_t row, uint32_t head) {
    return a.gated ? a.in + (size_t)row * a.in_stride + (size_t)head * 2 * HEAD_DIM + HEAD_DIM : nullptr;
}

__device__ __forceinline__ float gate_of(const float *gates, uint32_t head, uint32_t value) {
    return gates ? sigmoid(gates[(size_t)head * 2 * HEAD_DIM + value]) : 1.0f;
}

/* The last block of a row and K/V head: all splits' sums into out; a warp weighs the splits of a head, then a thread has one of the 256
 * values of all heads, whose loads do not wait for each other. */
__device__ inline void add_splits(const float *partial, uint32_t splits, uint32_t group, const float *gates, float *out) {
    __shared__ float weight[MAX_GROUP][STEP_MAX_SPLITS];
    const uint32_t lane = threadIdx.x % WARP, head = threadIdx.x / WARP;
    if (head < group) {
        float most[2], sum[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t s = lane + i * WARP;
            const float *p = partial + ((size_t)s * group + head) * PARTIAL + HEAD_DIM;
            most[i] = s < splits ? __ldcg(p) : -INFINITY;
            sum[i] = s < splits ? __ldcg(p + 1) : 0.0f;
        }
        const float all = max_lanes<32>(fmaxf(most[0], most[1]));
        const float w0 = expf(most[0] - all), w1 = expf(most[1] - all), total = sum_lanes<32>(w0 * sum[0] + w1 * sum[1]);
        weight[head][lane] = w0 / total;
        weight[head][lane + WARP] = w1 / total;
    }
    __syncthreads();
    float value[MAX_GROUP] = {};
#pragma unroll 4
    for (uint32_t s = 0; s < splits; s++) {
#pragma unroll
        for (uint32_t j = 0; j < MAX_GROUP; j++)
            if (j < group) value[j] += weight[j][s] * __ldcg(partial + ((size_t)s * group + j) * PARTIAL + threadIdx.x);
    }
#pragma unroll
    for (uint32_t j = 0; j < MAX_GROUP; j++)
        if (j < group) out[(size_t)j * HEAD_DIM + threadIdx.x] = value[j] * gate_of(gates, j, threadIdx.x);
}

void run_attention_bf16(const step_attention *a, bool early, cudaStream_t stream); /* attention_bf16.cu */

} // namespace calla

#endif

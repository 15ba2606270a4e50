/* candidate.cuh: a candidate's key, which is its place in the order of all, and its weight, bit for bit as in ref/sample.c. */
#ifndef CALLA_BACKEND_CUDA_CANDIDATE_CUH
#define CALLA_BACKEND_CUDA_CANDIDATE_CUH

#include "backend/cuda/device.cuh"

namespace calla {

__device__ __forceinline__ float sane(float x) { return x != x ? -INFINITY : fminf(x, 3.402823466e38f) + 0.0f; }

/* Ascending keys: larger logits, then lower ids (ref/sample.c). */
__device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
    const uint32_t u = __float_as_uint(x), ascending = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)~ascending << 32 | id;
}

__device__ __forceinline__ float key_logit(uint64_t key) {
    const uint32_t ascending = ~(uint32_t)(key >> 32);
    return __uint_as_float(ascending >> 31 ? ascending & 0x7FFFFFFFu : ~ascending);
}

/* sample_exp of ref/sample.h: each product and sum rounded by itself. */
__device__ __forceinline__ float exact_exp(float z) {
    if (!(z >= -28.0f)) return 0.0f;
    const float round = 12582912.0f;
    const float n = __fsub_rn(__fadd_rn(__fmul_rn(z, 1.44269504f), round), round);
    float r = __fsub_rn(z, __fmul_rn(n, 0x1.62e4p-1f));
    r = __fsub_rn(r, __fmul_rn(n, 0x1.7f7d1cp-20f));
    const float taylor[7] = {0x1.6c16c2p-10f, 0x1.111112p-7f, 0x1.555556p-5f, 0x1.555556p-3f, 0.5f, 1.0f, 1.0f};
    float e = 0x1.a01a02p-13f;
    for (float t : taylor) e = __fadd_rn(__fmul_rn(e, r), t);
    return __uint_as_float(__float_as_uint(e) + ((uint32_t)(int32_t)n << 23));
}

__device__ __forceinline__ uint64_t fixed(float weight) { return __float2ull_rz(weight * 0x1p40f); }

__device__ __forceinline__ uint64_t share(float part, uint64_t total) {
    const uint64_t p = __float2ull_rz(part * 0x1p24f);
    return p * (total >> 24) + (p * (total & 0xFFFFFF) >> 24);
}

/* Of a candidate of this logit; 0: it cannot be drawn. */
__device__ __forceinline__ float weight_of(float logit, float largest, float temperature) {
    return exact_exp(__fdiv_rn(__fsub_rn(logit, largest), temperature));
}

} // namespace calla

#endif

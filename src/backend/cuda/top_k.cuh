/* top_k.cuh: the router's choice among experts, by one warp or by a block. */
#ifndef CALLA_BACKEND_CUDA_TOP_K_CUH
#define CALLA_BACKEND_CUDA_TOP_K_CUH

#include "backend/cuda/device.cuh"

namespace calla {

/* Larger numbers have larger keys; NaN has the smallest but 0, which means taken or absent. */
__device__ __forceinline__ uint32_t key_of(float x) {
    if (x != x) return 1;
    const uint32_t u = __float_as_uint(x + 0.0f); /* -0 is 0 */
    return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key); }

constexpr uint32_t TOP_K_HELD = 8, TOP_K_EXPERTS = TOP_K_HELD * WARP; /* what the lanes of a warp hold in registers */

struct top_choice { /* of lane k: the k-th best of `rounds`, and its softmax weight among them */
    uint32_t expert;
    float weight;
};

constexpr uint32_t TOP_K_MOST = 16; /* rounds */
struct alignas(16) choose_share {
    uint64_t lane[WARP], candidate[TOP_K_MOST * TOP_K_HELD + 2], chosen[TOP_K_MOST], threshold;
};

/* Keys and lower indices [rounds], the best first, to choices; by a warp. */
__device__ __forceinline__ top_choice weigh_choices(const uint64_t *chosen, uint32_t rounds) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint64_t own = lane < rounds ? chosen[lane] : 0;
    const float e = lane < rounds ? expf(value_of((uint32_t)(own >> 32)) - value_of((uint32_t)(chosen[0] >> 32))) : 0.0f;
    return {UINT32_MAX - (uint32_t)own, e / sum_lanes<32>(e)};
}

/* How many of values [n, rounded up to two] are larger. */
__device__ __forceinline__ uint32_t count_larger(const uint64_t *values, uint32_t n, uint64_t than) {
    uint32_t larger = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < n; i += 2) {
        const ulonglong2 v = *reinterpret_cast<const ulonglong2 *>(values + i);
        larger += (v.x > than) + (v.y > than);
    }
    return larger;
}

/* The `rounds` largest of logits [experts ≤ TOP_K_EXPERTS], ties to the lowest index.  Not one after the other, which takes as many rounds
 * of a hundred cycles or more: whoever is among them is at least as large as the rounds-th best lane's best, and held by one of these lanes;
 * those are few, and their places follow from counting. */
__device__ __forceinline__ top_choice warp_choose(const float *logits, uint32_t experts, uint32_t rounds, choose_share &h) {
    const uint32_t lane = threadIdx.x % WARP;
    uint64_t held[TOP_K_HELD], best = 0; /* key, then the lower index; 0: none */
#pragma unroll
    for (uint32_t i = 0; i < TOP_K_HELD; i++) {
        const uint32_t e = lane + i * WARP;
        held[i] = e < experts ? (uint64_t)key_of(__ldcg(logits + e)) << 32 | (UINT32_MAX - e) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < TOP_K_HELD; i++) best = held[i] > best ? held[i] : best;
    h.lane[lane] = best;
    __syncwarp();
    const uint32_t place = count_larger(h.lane, WARP, best);
    if (place == rounds - 1 && best) h.threshold = best;
    __syncwarp();
    const uint64_t threshold = h.threshold;
    uint32_t n = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOP_K_HELD; i++) {
        const bool takes = place < rounds && held[i] >= threshold;
        const uint32_t all = __ballot_sync(0xFFFFFFFFu, takes);
        if (takes) h.candidate[n + (uint32_t)__popc((int)(all & ((1u << lane) - 1)))] = held[i];
        n += (uint32_t)__popc((int)all);
    }
    if (lane == 0) h.candidate[n] = 0;
    __syncwarp();
    for (uint32_t i = lane; i < n; i += WARP) {
        const uint64_t own = h.candidate[i];
        const uint32_t k = count_larger(h.candidate, n, own);
        if (k < rounds) h.chosen[k] = own;
    }
    __syncwarp();
    return weigh_choices(h.chosen, rounds);
}

/* One of the choices, by a block whose threads have a logit each: every warp ranks its own, and the best of all warps are ranked once more.
 * Two meetings of the block, but the way from the logits to the expert is half as long as a single warp's. */
struct alignas(16) block_choice {
    uint64_t candidate[TOP_K_MOST * TOP_K_HELD]; /* [rank among its 32][which 32] */
    uint32_t key[TOP_K_EXPERTS], expert;
};

/* key: of an expert, 0 behind the last; a warp ranks 32 neighbours.  All meet before the best are ranked. */
__device__ __forceinline__ void rank_in_warp(uint32_t key, uint32_t expert, uint32_t choice, block_choice &h) {
    const uint32_t lane = threadIdx.x % WARP, group = expert / WARP;
    h.key[expert] = key;
    __syncwarp();
    uint32_t rank = (uint32_t)__popc((int)(__match_any_sync(0xFFFFFFFFu, key) & ((1u << lane) - 1))); /* equal ones before it */
#pragma unroll
    for (uint32_t i = 0; i < WARP; i += 4) {
        const uint4 v = *reinterpret_cast<const uint4 *>(&h.key[group * WARP + i]);
        rank += (v.x > key) + (v.y > key) + (v.z > key) + (v.w > key);
    }
    if (rank <= choice) h.candidate[rank * TOP_K_HELD + group] = (uint64_t)key << 32 | (UINT32_MAX - expert);
}

/* h.expert is the choice-th best, ties to the lowest index; all meet before they read it. */
__device__ __forceinline__ void find_choice(uint32_t choice, block_choice &h) {
    const uint32_t n = (choice + 1) * TOP_K_HELD;
    if (threadIdx.x >= n) return;
    const uint64_t own = h.candidate[threadIdx.x];
    if (count_larger(h.candidate, n, own) == choice) h.expert = UINT32_MAX - (uint32_t)own;
}

} // namespace calla

#endif

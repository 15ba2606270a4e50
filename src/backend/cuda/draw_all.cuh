/* draw_all.cuh: a draw from all tokens of a row (no top_k), by one block.
 *
 * Weights are whole numbers, so their sums are the same in any order, and nothing needs to be sorted: top-p, min-p and the draw itself each ask
 * which candidate, in the order of keys, is the first with which the sum of weights reaches a goal.  Nearly always it is among the few
 * thousand best, which are sorted anyway; else the key is found bit by bit, with a pass over the row for each. */
#ifndef CALLA_BACKEND_CUDA_DRAW_ALL_CUH
#define CALLA_BACKEND_CUDA_DRAW_ALL_CUH

#include "backend/cuda/candidate.cuh"
#include "backend/cuda/sampling.h"

namespace calla {

constexpr uint32_t CHOICE_THREADS = 1024, CANDIDATES = 4096, CHOICE_KEYS = CANDIDATES / CHOICE_THREADS /* of a thread */;

struct draw_row {   /* what the block knows */
    const float *x; /* [tokens] adjusted logits */
    uint32_t tokens;
    float largest, temperature;
    const uint64_t *keys; /* [n] the best, sorted, in shared memory */
    uint32_t n;
};

struct reached { /* the candidate, and the sum of weights up to it, its own too */
    uint64_t key, sum;
};

/* Σ of all threads' values; before: of those of lower threads.  All threads call it. */
__device__ __forceinline__ uint64_t sum_block(uint64_t value, uint64_t &before) {
    __shared__ uint64_t warp_sum[CHOICE_THREADS / WARP];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint64_t sum = value, all = 0;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        const uint64_t other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        sum += lane >= step ? other : 0;
    }
    before = sum - value;
    __syncthreads(); /* the last sum has been read */
    if (lane == WARP - 1) warp_sum[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < CHOICE_THREADS / WARP; w++) {
        before += w < warp ? warp_sum[w] : 0;
        all += warp_sum[w];
    }
    return all;
}

__device__ __forceinline__ uint64_t fixed_weight(const draw_row &r, float logit) {
    return fixed(weight_of(logit, r.largest, r.temperature));
}

/* Σ of the weights of all candidates up to a key. */
__device__ __forceinline__ uint64_t sum_up_to(const draw_row &r, uint64_t key) {
    uint64_t sum = 0, unused;
    for (uint32_t id = threadIdx.x; id < r.tokens; id += CHOICE_THREADS) {
        const float v = sane(r.x[id]);
        if (key_of(v, id) <= key) sum += fixed_weight(r, v); /* -infinity has none */
    }
    return sum_block(sum, unused);
}

/* The first candidate with which the sum reaches goal, which is at least 1 and at most the sum of all.  All threads call it. */
__device__ reached reach(const draw_row &r, uint64_t goal) {
    __shared__ reached found;
    uint64_t weight[CHOICE_KEYS], own = 0, sum;
    for (uint32_t i = 0; i < CHOICE_KEYS; i++) {
        const uint32_t at = threadIdx.x * CHOICE_KEYS + i;
        weight[i] = at < r.n ? fixed_weight(r, key_logit(r.keys[at])) : 0;
        own += weight[i];
    }
    const uint64_t known = sum_block(own, sum);
    for (uint32_t i = 0; i < CHOICE_KEYS; i++) {
        if (sum < goal && sum + weight[i] >= goal) found = {r.keys[threadIdx.x * CHOICE_KEYS + i], sum + weight[i]};
        sum += weight[i];
    }
    if (known < goal) {
        uint64_t key = 0;
        for (uint64_t bit = 1ull << 63; bit; bit >>= 1) {
            if (bit <= UINT32_MAX && bit >= r.tokens) continue; /* no id has it */
            if (sum_up_to(r, key | (bit - 1)) < goal) key |= bit;
        }
        sum = sum_up_to(r, key);
        if (threadIdx.x == 0) found = {key, sum};
    }
    __syncthreads();
    const reached result = found;
    __syncthreads(); /* before the next one is */
    return result;
}

/* The id that is drawn; total: the sum of all weights; likely: of those of at least min_p. */
__device__ int32_t draw_all(const draw_row &r, const sampling_job &j, uint64_t total, uint64_t likely) {
    const uint64_t first = fixed(1.0f), enough = share(j.top_p, total); /* the best one is always kept */
    uint64_t kept = j.top_p < 1.0f ? reach(r, enough ? enough : 1).sum : total;
    if (likely < first) likely = first;
    if (kept > likely) kept = likely;
    return (int32_t)(uint32_t)reach(r, share(j.uniform, kept) + 1).key;
}

} // namespace calla

#endif

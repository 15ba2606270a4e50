/* sampling.cu: see sampling.h.
 *
 * Sorting a whole row for the sake of its best few would take longer than the step.  A row is cut into spans, and the largest of each is
 * kept: the k-th largest of these is a bound that the k best of the row do not stay below, and hardly anything else comes up to it.  What
 * does is gathered from the spans that have any, sorted, cut and drawn from, by one block.  Without top_k (draw_all.cuh) what the 256 largest
 * spans bound is gathered, and a pass over the row sums all weights. */
#include "backend/cuda/draw_all.cuh"
#include "backend/cuda/sampling.h"

namespace calla {

constexpr uint32_t SPAN_THREADS = 256;
constexpr uint64_t NO_KEY = ~0ull;
static_assert(SAMPLING_SPANS == CHOICE_THREADS, "a thread takes a span's key");

__device__ __forceinline__ uint32_t span_width(uint32_t tokens) {
    return (tokens + SAMPLING_SPANS * WARP - 1) / (SAMPLING_SPANS * WARP) * WARP;
}

/* A warp: one span of a sample's row.  COPY: first takes the logits that the mask allows. */
template <bool COPY> __global__ void __launch_bounds__(SPAN_THREADS) span_kernel(const __grid_constant__ sampling_step a) {
    const sampling_job &j = a.jobs[blockIdx.y];
    if (j.wanted == SAMPLING_NOT_HERE) return;
    const uint32_t span = blockIdx.x * (SPAN_THREADS / WARP) + threadIdx.x / WARP, width = span_width(j.tokens);
    const uint32_t *mask = j.mask ? reinterpret_cast<const uint32_t *>(a.jobs) + j.mask : NULL;
    const float *from = a.logits + (size_t)j.wanted * a.vocabulary;
    float *x = a.adjusted + (size_t)blockIdx.y * a.vocabulary, largest = -INFINITY;
    const uint32_t end = min((span + 1) * width, j.tokens);
    for (uint32_t id = span * width + threadIdx.x % WARP; id < end; id += WARP) {
        if (COPY) x[id] = !mask || mask[id / 32] >> id % 32 & 1 ? from[id] : -INFINITY;
        largest = fmaxf(largest, sane(x[id]));
    }
    largest = max_lanes<32>(largest);
    if (threadIdx.x % WARP == 0) a.largest[blockIdx.y * SAMPLING_SPANS + span] = largest;
}

/* Block: a sample's penalties, one kind after the other.  What the mask has taken away stays so: nothing is added to -infinity. */
__global__ void __launch_bounds__(CHOICE_THREADS) penalty_kernel(const __grid_constant__ sampling_step a) {
    const sampling_job &j = a.jobs[blockIdx.x];
    if (j.wanted == SAMPLING_NOT_HERE) return;
    const int32_t *words = reinterpret_cast<const int32_t *>(a.jobs), *seen = words + j.seen, *counts = words + j.counts,
                  *bias = words + j.bias;
    float *x = a.adjusted + (size_t)blockIdx.x * a.vocabulary;
    for (uint32_t i = threadIdx.x; i < j.n_seen; i += CHOICE_THREADS) {
        const uint32_t id = (uint32_t)seen[i];
        if (id < j.tokens) x[id] = x[id] > 0 ? __fdiv_rn(x[id], j.repetition) : __fmul_rn(x[id], j.repetition);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < j.n_counts; i += CHOICE_THREADS) {
        const uint32_t id = (uint32_t)counts[2 * i], count = (uint32_t)counts[2 * i + 1];
        if (id < j.tokens && count) x[id] = __fsub_rn(__fsub_rn(x[id], j.presence), __fmul_rn(j.frequency, (float)count));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < j.n_bias; i += CHOICE_THREADS) {
        const uint32_t id = (uint32_t)bias[2 * i];
        if (id < j.tokens) x[id] = __fadd_rn(x[id], __int_as_float(bias[2 * i + 1]));
    }
}

/* A warp: the weights of one span of a row from all of which is drawn. */
__global__ void __launch_bounds__(SPAN_THREADS) weight_kernel(const __grid_constant__ sampling_step a) {
    const sampling_job &j = a.jobs[blockIdx.y];
    if (j.wanted == SAMPLING_NOT_HERE || j.top_k) return;
    const uint32_t span = blockIdx.x * (SPAN_THREADS / WARP) + threadIdx.x / WARP, width = span_width(j.tokens), lane = threadIdx.x % WARP;
    const float *x = a.adjusted + (size_t)blockIdx.y * a.vocabulary, *of_spans = a.largest + blockIdx.y * SAMPLING_SPANS;
    float largest = -INFINITY;
    for (uint32_t i = lane; i < SAMPLING_SPANS; i += WARP) largest = fmaxf(largest, of_spans[i]);
    largest = max_lanes<32>(largest);
    unsigned long long total = 0, likely = 0;
    const uint32_t end = min((span + 1) * width, j.tokens);
    for (uint32_t id = span * width + lane; id < end && largest > -INFINITY; id += WARP) {
        const float weight = weight_of(sane(x[id]), largest, j.temperature);
        total += fixed(weight);
        likely += weight < j.min_p ? 0 : fixed(weight);
    }
    for (int step = WARP / 2; step; step /= 2) {
        total += __shfl_xor_sync(0xFFFFFFFFu, total, step);
        likely += __shfl_xor_sync(0xFFFFFFFFu, likely, step);
    }
    if (lane == 0) a.weights[blockIdx.y * SAMPLING_SPANS + span] = {total, likely};
}

/* Bitonic, of a power of two of keys in shared memory; all threads of the block. */
__device__ void sort_keys(uint64_t *keys, uint32_t n) {
    for (uint32_t size = 2; size <= n; size *= 2)
        for (uint32_t far = size / 2; far; far /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n / 2; i += CHOICE_THREADS) {
                const uint32_t low = i / far * far * 2 + i % far, high = low + far;
                const uint64_t x = keys[low], y = keys[high];
                if ((x > y) == !(low & size)) keys[low] = y, keys[high] = x;
            }
        }
    __syncthreads();
}

/* The slow way, where thousands reach the bound (a row of equal logits): one pass over the row for each of the best. */
__device__ uint32_t extract(const float *x, uint32_t tokens, uint32_t top_k, uint64_t *keys) {
    __shared__ uint64_t least[CHOICE_THREADS / WARP];
    uint64_t last = 0;
    for (uint32_t k = 0; k < top_k; k++) {
        uint64_t mine = NO_KEY;
        for (uint32_t id = threadIdx.x; id < tokens; id += CHOICE_THREADS) {
            const float v = sane(x[id]);
            const uint64_t key = key_of(v, id);
            if (v > -INFINITY && (k == 0 || key > last)) mine = min(mine, key);
        }
        for (int step = WARP / 2; step; step /= 2) mine = min(mine, (uint64_t)__shfl_xor_sync(0xFFFFFFFFu, mine, step));
        __syncthreads();
        if (threadIdx.x % WARP == 0) least[threadIdx.x / WARP] = mine;
        __syncthreads();
        last = NO_KEY;
        for (uint32_t w = 0; w < CHOICE_THREADS / WARP; w++) last = min(last, least[w]);
        if (last == NO_KEY) return k;
        if (threadIdx.x == 0) keys[k] = last;
    }
    return top_k;
}

/* One thread: the index of the candidate that is drawn, of n with these weights, as in ref/sample.c. */
__device__ uint32_t draw(const sampling_job &j, const float *weight, uint32_t n) {
    uint64_t total = 0, kept_total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += fixed(weight[i]);
    const uint64_t enough = j.top_p < 1.0f ? share(j.top_p, total) : total;
    uint32_t kept = 0;
    while (kept < n && (kept == 0 || kept_total < enough)) {
        if (kept > 0 && weight[kept] < j.min_p) break;
        kept_total += fixed(weight[kept++]);
    }
    const uint64_t target = share(j.uniform, kept_total);
    for (uint32_t i = 0; i < kept; i++) {
        sum += fixed(weight[i]);
        if (sum > target) return i;
    }
    return 0;
}

/* Block: a sample. */
__global__ void __launch_bounds__(CHOICE_THREADS) choice_kernel(const __grid_constant__ sampling_step a) {
    __shared__ uint64_t spans[SAMPLING_SPANS], keys[CANDIDATES];
    __shared__ float weight[SAMPLING_TOP_K];
    __shared__ uint32_t gathered;
    const sampling_job &j = a.jobs[blockIdx.x];
    if (j.wanted == SAMPLING_NOT_HERE) return;
    const uint32_t t = threadIdx.x, width = span_width(j.tokens);
    const float *x = a.adjusted + (size_t)blockIdx.x * a.vocabulary, most = a.largest[blockIdx.x * SAMPLING_SPANS + t];
    spans[t] = most > -INFINITY ? key_of(most, t) : NO_KEY;
    if (t == 0) gathered = 0;
    sort_keys(spans, SAMPLING_SPANS);
    /* all that is as large as the last of the top_k largest spans' largest */
    const uint64_t worst = spans[(j.top_k ? j.top_k : SAMPLING_TOP_K) - 1] | 0xFFFFFFFFu;
    for (uint32_t s = t / WARP; s < SAMPLING_SPANS && spans[s] != NO_KEY && spans[s] <= worst; s += CHOICE_THREADS / WARP) {
        const uint32_t span = (uint32_t)spans[s], end = min((span + 1) * width, j.tokens);
        for (uint32_t id = span * width + t % WARP; id < end; id += WARP) {
            const float v = sane(x[id]);
            const uint64_t key = key_of(v, id);
            if (!(v > -INFINITY) || key > worst) continue;
            const uint32_t at = atomicAdd(&gathered, 1);
            if (at < CANDIDATES) keys[at] = key;
        }
    }
    __syncthreads();
    uint32_t n = gathered;
    if (n > CANDIDATES && !j.top_k) {
        n = 0;
    } else if (n > CANDIDATES) {
        n = extract(x, j.tokens, j.top_k, keys);
    } else {
        uint32_t all = 2;
        while (all < n) all *= 2;
        for (uint32_t i = n + t; i < all; i += CHOICE_THREADS) keys[i] = NO_KEY;
        sort_keys(keys, all);
    }
    __syncthreads();
    int32_t id = -1;
    if (!j.top_k && spans[0] != NO_KEY) {
        const sampling_weights w = a.weights[blockIdx.x * SAMPLING_SPANS + t];
        uint64_t unused;
        const uint64_t total = sum_block(w.total, unused), likely = sum_block(w.likely, unused);
        id = draw_all({x, j.tokens, key_logit(spans[0]), j.temperature, keys, n}, j, total, likely);
    } else if (j.top_k) {
        n = min(n, j.top_k);
        if (t < n && j.top_k > 1) weight[t] = weight_of(key_logit(keys[t]), key_logit(keys[0]), j.temperature);
        __syncthreads();
        if (t == 0 && n) id = (int32_t)(uint32_t)keys[j.top_k > 1 ? draw(j, weight, n) : 0];
    }
    if (t == 0) a.picked[blockIdx.x] = a.chosen[blockIdx.x] = id;
}

} // namespace calla

using namespace calla;

void sampling_run(const sampling_step *a, cudaStream_t stream) {
    const dim3 spans(SAMPLING_SPANS / (SPAN_THREADS / WARP), a->samples);
    launch(span_kernel<true>, spans, SPAN_THREADS, 0, false, stream, *a);
    if (a->lists) {
        launch(penalty_kernel, dim3(a->samples), CHOICE_THREADS, 0, false, stream, *a);
        launch(span_kernel<false>, spans, SPAN_THREADS, 0, false, stream, *a);
    }
    if (a->all) launch(weight_kernel, spans, SPAN_THREADS, 0, false, stream, *a);
    launch(choice_kernel, dim3(a->samples), CHOICE_THREADS, 0, false, stream, *a);
}

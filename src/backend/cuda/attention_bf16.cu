/* attention_bf16.cu: attention of single rows over a cache in bf16, on tensor cores: the query heads of a group are the rows of A.
 *
 * A block has a split of a row's keys for one K/V head; its warps take tiles of 16 keys in turn, each with sums of its own, which meet at
 * the end.  mma.m16n8k16 twice over:
 *  - scores: A = queries, rows 0 … 7 bf16(q) of the heads, rows 8 … 15 the rest q - bf16(q); B = 8 keys.  The order of the 256 values in
 *    the sum is free, so a lane (g, t) reads 16 bytes of key g at values 32·b + 8·t and has the B registers of two steps.
 *  - output: A = weights (heads × 16 keys), whose registers are those in which the scores came out; B = values of 16 keys, for which a
 *    lane reads 16 bytes, values 64·c + 8·g … + 7, of keys 2t, 2t + 1, 2t + 8, 2t + 9.
 * The weights enter as bf16 and, for exact precision, what that leaves. */
#include "backend/cuda/attention.cuh"

namespace calla {

namespace {

constexpr uint32_t D = HEAD_DIM, THREADS = 256, WARPS = THREADS / WARP, TILE = 16, STEPS = D / 16;
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct alignas(16) share {
    union {
        float q[MAX_GROUP][D]; /* normed and rotated, by log2(e)/16 */
        float out[WARPS][MAX_GROUP][D];
    };
    uint4 a[STEPS][WARP]; /* queries as A fragments */
    float max[WARPS][MAX_GROUP], sum[WARPS][MAX_GROUP];
    float most[MAX_GROUP], total[MAX_GROUP]; /* over the warps */
};

/* Values d … d + 3 of a head, as pairs: bf16 and the rest. */
__device__ __forceinline__ void split_query(const float *q, uint32_t &hi0, uint32_t &hi1, uint32_t &lo0, uint32_t &lo1) {
    const float4 v = *reinterpret_cast<const float4 *>(q);
    hi0 = bf16_pair(v.x, v.y), hi1 = bf16_pair(v.z, v.w);
    lo0 = bf16_pair(v.x - bf16_low(hi0), v.y - bf16_high(hi0)), lo1 = bf16_pair(v.z - bf16_low(hi1), v.w - bf16_high(hi1));
}

__device__ __forceinline__ void prepare_queries(const step_attention &a, uint32_t row, uint32_t head, uint32_t group, share &h) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (uint32_t j = warp; j < MAX_GROUP; j += WARPS) {
        float x[8] = {};
        if (j < group)
            norm_rotate(a.in + (size_t)row * a.in_stride + (size_t)(head * group + j) * 2 * D, a.q_gain,
                        a.rotary + (size_t)row * ROTARY_DIM, a.norm_eps, x);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) h.q[j][lane + WARP * i] = x[i] * (LOG2E / 16.0f); /* 1/√256; powers of two later */
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < STEPS * WARP; i += THREADS) {
        const uint32_t step = i / WARP, g = i % WARP / 4, t = i % 4;
        uint4 f;
        split_query(&h.q[g][step / 2 * 32 + 8 * t + step % 2 * 4], f.x, f.z, f.y, f.w);
        h.a[step][i % WARP] = f;
    }
    __syncthreads();
}

/* Scores of 8 keys, of which this lane reads key g at `key`: of head g and keys 2t, 2t + 1. */
__device__ __forceinline__ float2 score_keys(const uint16_t *key, const share &h) {
    const uint32_t lane = threadIdx.x % WARP;
    float d[4] = {}, e[4] = {}; /* two sums, so that one does not wait for the other */
    uint4 k[STEPS / 2];
#pragma unroll
    for (uint32_t b = 0; b < STEPS / 2; b++) k[b] = *reinterpret_cast<const uint4 *>(key + b * 32 + lane % 4 * 8);
#pragma unroll
    for (uint32_t b = 0; b < STEPS / 2; b++) {
        const uint4 q0 = h.a[2 * b][lane], q1 = h.a[2 * b + 1][lane];
        mma_bf16(d, q0.x, q0.y, q0.z, q0.w, k[b].x, k[b].y);
        mma_bf16(e, q1.x, q1.y, q1.z, q1.w, k[b].z, k[b].w);
    }
    return make_float2(d[0] + d[2] + (e[0] + e[2]), d[1] + d[3] + (e[1] + e[3]));
}

/* out += weights · values of 16 keys; lower, upper: of keys 2t, 2t + 1 and 2t + 8, 2t + 9. */
__device__ __forceinline__ void add_values(const uint16_t *const (&value)[4], uint32_t lower, uint32_t upper, uint32_t lower_rest,
                                           uint32_t upper_rest, bool exact, float (&out)[32][2]) {
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        uint4 v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) v[i] = *reinterpret_cast<const uint4 *>(value[i] + c * 64);
        const uint32_t word[4][4] = {{v[0].x, v[0].y, v[0].z, v[0].w},
                                     {v[1].x, v[1].y, v[1].z, v[1].w},
                                     {v[2].x, v[2].y, v[2].z, v[2].w},
                                     {v[3].x, v[3].y, v[3].z, v[3].w}};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t halves = i % 2 ? 0x7632 : 0x5410;
            const uint32_t b0 = __byte_perm(word[0][i / 2], word[1][i / 2], halves),
                           b1 = __byte_perm(word[2][i / 2], word[3][i / 2], halves);
            mma_bf16_upper(out[c * 8 + i], lower, upper, b0, b1);
            if (exact) mma_bf16_upper(out[c * 8 + i], lower_rest, upper_rest, b0, b1);
        }
    }
}

struct warp_sums { /* of head g; sum: of this lane's keys */
    float max, sum, out[32][2];
};

/* Keys and values of a tile into L2 before the wait, since earlier steps wrote them.  (Two tiles ahead in the loop it cost a third.) */
__device__ __forceinline__ void prefetch_tile(const step_attention &a, const uint32_t *pages, uint32_t head, uint32_t key0, uint32_t end) {
    if (key0 >= end) return;
    const uint32_t lane = threadIdx.x % WARP;
    const uint16_t *page = static_cast<const uint16_t *>(a.kv.layer) + pages[key0 / KV_PAGE_TOKENS] * page_elements(a.kv);
    const uint16_t *keys = page + ((size_t)head * KV_PAGE_TOKENS + key0 % KV_PAGE_TOKENS) * D,
                   *values = keys + (size_t)a.kv.kv_heads * KV_PAGE_TOKENS * D;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) { /* 64 lines of 128 bytes each */
        prefetch_l2(keys + (lane + i * WARP) * 64);
        prefetch_l2(values + (lane + i * WARP) * 64);
    }
}

/* A tile of 16 keys from position key0 on; keys from `end` on do not count. */
__device__ __forceinline__ void attend_tile(const step_attention &a, const uint32_t *pages, uint32_t head, uint32_t key0, uint32_t end,
                                            const share &h, warp_sums &w) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint16_t *page = static_cast<const uint16_t *>(a.kv.layer) + pages[key0 / KV_PAGE_TOKENS] * page_elements(a.kv);
    const uint16_t *keys = page + (size_t)head * KV_PAGE_TOKENS * D, *values = keys + (size_t)a.kv.kv_heads * KV_PAGE_TOKENS * D;
    const auto row_of = [&](uint32_t i) {
        return (size_t)(min(key0 + i, end - 1) % KV_PAGE_TOKENS) * D;
    }; /* what lies behind may be anything */
    const float2 s0 = score_keys(keys + row_of(g), h), s1 = score_keys(keys + row_of(8 + g), h);
    float s[4] = {s0.x, s0.y, s1.x, s1.y};
    const uint32_t at[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
    float most = w.max;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (key0 + at[i] >= end) s[i] = -INFINITY;
        most = fmaxf(most, s[i]);
    }
    most = max_lanes<4>(most); /* finite: the first key of a tile counts */
    const float scale = exp2f(w.max - most);
    float p[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) p[i] = exp2f(s[i] - most);
    const uint32_t lower = bf16_pair(p[0], p[1]), upper = bf16_pair(p[2], p[3]);
    const bool exact = a.exact;
    const uint32_t lower_rest = bf16_pair(p[0] - bf16_low(lower), p[1] - bf16_high(lower));
    const uint32_t upper_rest = bf16_pair(p[2] - bf16_low(upper), p[3] - bf16_high(upper));
    w.max = most;
    w.sum = w.sum * scale + (exact ? p[0] + p[1] + p[2] + p[3] : bf16_low(lower) + bf16_high(lower) + bf16_low(upper) + bf16_high(upper));
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) w.out[i][0] *= scale, w.out[i][1] *= scale;
    const uint16_t *const value[4] = {values + row_of(at[0]) + 8 * g, values + row_of(at[1]) + 8 * g, values + row_of(at[2]) + 8 * g,
                                      values + row_of(at[3]) + 8 * g};
    add_values(value, lower, upper, lower_rest, upper_rest, exact, w.out);
}

/* The warps' sums, weighed, into shared memory; all meet. */
__device__ __forceinline__ void meet(warp_sums &w, share &h) {
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    w.sum = sum_lanes<4>(w.sum);
    if (t == 0) h.max[warp][g] = w.max, h.sum[warp][g] = w.sum;
    __syncthreads();
    float most = -INFINITY;
    for (uint32_t i = 0; i < WARPS; i++) most = fmaxf(most, h.max[i][g]);
    const float weight = exp2f(w.max - most);
    if (warp == 0 && t == 0) {
        float total = 0;
        for (uint32_t i = 0; i < WARPS; i++) total += h.sum[i][g] * exp2f(h.max[i][g] - most);
        h.most[g] = most, h.total[g] = total;
    }
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) h.out[warp][g][i / 8 * 64 + 8 * (2 * t + j) + i % 8] = w.out[i][j] * weight;
    __syncthreads();
}

/* Block (split, K/V head, row). */
__global__ void __launch_bounds__(THREADS, 1) attention_bf16_kernel(const __grid_constant__ step_attention a) {
    extern __shared__ uint4 shared[];
    share &h = *reinterpret_cast<share *>(shared);
    const uint32_t row = blockIdx.z, head = blockIdx.y, group = a.heads / a.kv.kv_heads, warp = threadIdx.x / WARP;
    launch_dependents();
    if (row >= a.batch.counts->rows) return;
    const batch_segment seg = a.batch.segment[a.batch.segment_of[row]];
    if (a.most_rows && seg.rows > a.most_rows) return;
    const uint32_t *pages = a.batch.page_table + seg.first_page, position = a.batch.positions[row], n = position + 1;
    const uint32_t per = split_keys(n, gridDim.x), splits = (n + per - 1) / per, first = blockIdx.x * per, last = min(first + per, n);
    if (first >= n) return;
    const uint32_t mine = first + warp * TILE;
    constexpr uint32_t STRIDE = WARPS * TILE;
    prefetch_tile(a, pages, head, mine, last);
    prefetch_tile(a, pages, head, mine + STRIDE, last);
    wait_inputs();
    if (a.single && last == n && warp < 2) write_key_or_value(a, row, pages[position / KV_PAGE_TOKENS], position, head, warp);
    prepare_queries(a, row, head, group, h);
    warp_sums w;
    w.max = -INFINITY, w.sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) w.out[i][0] = w.out[i][1] = 0;
    for (uint32_t key0 = mine; key0 < last; key0 += STRIDE) attend_tile(a, pages, head, key0, last, h, w);
    meet(w, h);
    const uint32_t d = threadIdx.x;
    const float *gates = gates_of(a, row, head * group);
    float *out = a.out + (size_t)row * a.out_stride + (size_t)head * group * D;
    float *all = a.partial + (size_t)(row * a.kv.kv_heads + head) * gridDim.x * group * PARTIAL,
          *own = all + (size_t)blockIdx.x * group * PARTIAL;
#pragma unroll 2
    for (uint32_t j = 0; j < group; j++) {
        const float most = h.most[j], sum = h.total[j];
        float value = 0;
#pragma unroll
        for (uint32_t i = 0; i < WARPS; i++) value += h.out[i][j][d];
        if (splits == 1) {
            out[(size_t)j * D + d] = value / sum * gate_of(gates, j, d);
            continue;
        }
        own[j * PARTIAL + d] = value;
        if (d == 0) own[j * PARTIAL + D] = most * LN2, own[j * PARTIAL + D + 1] = sum;
    }
    if (splits > 1 && is_last_block(a.counters + row * a.kv.kv_heads + head, splits)) add_splits(all, splits, group, gates, out);
}

} // namespace

void run_attention_bf16(const step_attention *a, bool early, cudaStream_t stream) {
    const dim3 grid(step_attention_splits(a->rows), a->kv.kv_heads, a->rows);
    launch(attention_bf16_kernel, grid, THREADS, sizeof(share), early, stream, *a);
}

} // namespace calla

cudaError_t attention_prepare(void) {
    return cudaFuncSetAttribute(calla::attention_bf16_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(calla::share));
}

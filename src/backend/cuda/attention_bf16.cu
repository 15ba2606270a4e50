/* attention_bf16.cu: attention of single rows over a cache in bf16, on tensor cores: the query heads of a group are the rows of A.
 *
 * A block has a split of a row's keys for one K/V head; its warps take tiles of 16 keys in turn, each with sums of its own, which meet at
 * the end.  A warp has a tile of keys and one of values on their way to shared memory: the first come before the wait, since earlier steps
 * wrote them.  mma.m16n8k16 twice over:
 *  - scores: A = queries, rows 0 … 7 bf16(q) of the heads, rows 8 … 15 the rest q - bf16(q); B = 8 keys.  The order of the 256 values in
 *    the sum is free, so a lane (g, t) reads 16 bytes of key g at values 32·b + 8·t and has the B registers of two steps.
 *  - output: A = weights (heads × 16 keys), whose registers are those in which the scores came out; B = values of 16 keys, for which a
 *    lane reads 16 bytes, values 64·c + 8·g … + 7, of keys 2t, 2t + 1, 2t + 8, 2t + 9.
 * The weights enter as bf16 and, for exact precision, what that leaves.
 *
 * Splits are put together in two ways.  Where the device has clusters, eight neighbouring blocks read each other's sums, each of them those
 * of one head: up to CLUSTER_KEYS keys there is one cluster, and nothing goes through memory.  Of several clusters the last puts together
 * what they left; without clusters the last block does so for all splits. */
#include "backend/cuda/attention.cuh"

namespace calla {

namespace {

constexpr uint32_t D = HEAD_DIM, WARPS = 4, THREADS = WARPS * WARP, TILE = 16, STEPS = D / 16, CLUSTER = 8, CLUSTER_KEYS = 2048;
constexpr uint32_t UNITS = D * 2 / 16;                                                /* 16 bytes of a cached row */
constexpr uint32_t HEADS_OF_WARP = MAX_GROUP / WARPS, VALUES_OF_THREAD = D / THREADS; /* of one head */
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
static_assert(CLUSTER == MAX_GROUP, "a block of a cluster puts one head together");
static_assert(VALUES_OF_THREAD == 2 && UNITS == WARP, "");

struct alignas(16) share {
    union {
        uint4 tile[WARPS][2][TILE][UNITS];     /* keys, values; of a row its units in the order of swizzle */
        float out[WARPS][4][MAX_GROUP][D / 2]; /* the first half: of each warp */
    };
    union {
        float q[MAX_GROUP][D];    /* normed and rotated, by log2(e)/16 */
        float part[MAX_GROUP][D]; /* of the block */
    };
    uint4 a[STEPS][WARP]; /* queries as A fragments */
    uint4 own[2][UNITS];  /* key and value of the row itself */
    float max[WARPS][MAX_GROUP], sum[WARPS][MAX_GROUP];
    float most[MAX_GROUP], total[MAX_GROUP]; /* over the warps */
};

/* Where unit u of row i of a tile stands: no two lanes that read at once meet in a bank, neither four units of two rows each (scores) nor
 * two of four each (output). */
__device__ __forceinline__ uint32_t swizzle(uint32_t i, uint32_t u) { return u ^ ((i / 2 % 4) ^ (i % 2 * 2)) * 2; }

/* ---- clusters ---- */

__device__ __forceinline__ void cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* A float, or two, that stand at p in this block's shared memory, from block `rank` of the cluster. */
__device__ __forceinline__ float load_of(const float *p, uint32_t rank) {
    float x = 0;
#if __CUDA_ARCH__ >= 900
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
#endif
    return x;
}
__device__ __forceinline__ float2 load2_of(const float *p, uint32_t rank) {
    float2 x = make_float2(0, 0);
#if __CUDA_ARCH__ >= 900
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
#endif
    return x;
}

/* ---- queries ---- */

/* Values d … d + 3 of a head, as pairs: bf16 and the rest. */
__device__ __forceinline__ void split_query(const float *q, uint32_t &hi0, uint32_t &hi1, uint32_t &lo0, uint32_t &lo1) {
    const float4 v = *reinterpret_cast<const float4 *>(q);
    hi0 = bf16_pair(v.x, v.y), hi1 = bf16_pair(v.z, v.w);
    lo0 = bf16_pair(v.x - bf16_low(hi0), v.y - bf16_high(hi0)), lo1 = bf16_pair(v.z - bf16_low(hi1), v.w - bf16_high(hi1));
}

/* The queries as fragments, and in the block that `writes` the row's own key and value, to the cache and to h.own.  All that is read of the
 * row is asked for at once. */
__device__ __forceinline__ void prepare(const step_attention &a, const float *in, uint32_t row, uint32_t head, uint32_t group, bool writes,
                                        uint32_t page, uint32_t position, share &h) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float *rotary = a.rotary + (size_t)row * ROTARY_DIM;
    float x[HEADS_OF_WARP][8], own[8];
#pragma unroll
    for (uint32_t i = 0; i < HEADS_OF_WARP; i++) {
        const uint32_t j = warp + i * WARPS;
        load_head(in + (size_t)(head * group + min(j, group - 1)) * 2 * D, x[i]);
    }
    if (writes && warp < 2) load_head(in + (2 * (size_t)a.heads + warp * a.kv.kv_heads + head) * D, own);
#pragma unroll
    for (uint32_t i = 0; i < HEADS_OF_WARP; i++) {
        norm_rotate(x[i], a.q_gain, rotary, a.norm_eps);
        const uint32_t j = warp + i * WARPS;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            h.q[j][lane + WARP * k] = j < group ? x[i][k] * (LOG2E / 16.0f) : 0.0f; /* 1/√256; powers of two later */
    }
    if (writes && warp < 2) {
        if (warp == 0) norm_rotate(own, a.k_gain, rotary, a.norm_eps);
        store_kv(a.kv, kv_at(a.kv, page, warp, head, position), own);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) reinterpret_cast<uint16_t *>(h.own[warp])[lane + WARP * k] = to_bf16(own[k]);
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

/* ---- tiles of 16 keys ---- */

struct row_keys { /* of one row and K/V head */
    const uint16_t *layer;
    const uint32_t *pages;
    size_t page_elements, head_elements, value_elements;
    uint32_t last, own; /* one past the split's keys; the row's own position if this step writes it here, else none */
};

__device__ __forceinline__ uint32_t page_of(const row_keys &k, uint32_t key0) { return key0 < k.last ? k.pages[key0 / KV_PAGE_TOKENS] : 0; }

/* Keys (which = 0) or values of a tile on their way; of a tile that is not there an empty group.  Rows behind the last repeat it: their
 * weights are 0, and 0 times what stands there must be 0.  The row's own come later (own_rows). */
__device__ __forceinline__ void fetch_tile(const row_keys &k, uint32_t which, uint32_t key0, uint32_t page, uint4 (&tile)[TILE][UNITS]) {
    const uint32_t lane = threadIdx.x % WARP;
    if (key0 < k.last) {
        const uint16_t *from = k.layer + page * k.page_elements + k.head_elements + which * k.value_elements + lane * 8;
#pragma unroll 4
        for (uint32_t i = 0; i < TILE; i++) {
            const uint32_t position = min(key0 + i, k.last - 1);
            if (position != k.own) copy_async(&tile[i][swizzle(i, lane)], from + (size_t)(position % KV_PAGE_TOKENS) * D);
        }
    }
    copy_commit();
}

__device__ __forceinline__ void own_rows(const row_keys &k, uint32_t key0, const uint4 (&own)[UNITS], uint4 (&tile)[TILE][UNITS]) {
    const uint32_t lane = threadIdx.x % WARP;
    if (key0 + TILE <= k.own) return;
#pragma unroll 1
    for (uint32_t i = k.own - min(k.own, key0); i < TILE; i++) tile[i][swizzle(i, lane)] = own[lane];
}

/* Scores of keys first … first + 7 of a tile, of which key(i, u) is unit u of key i: of head g and keys 2t, 2t + 1. */
template <typename Key> __device__ __forceinline__ float2 score_keys(Key key, uint32_t first, const share &h) {
    const uint32_t lane = threadIdx.x % WARP, i = first + lane / 4;
    float d[4] = {}, e[4] = {}; /* two sums, so that one does not wait for the other */
    uint4 k[STEPS / 2];
#pragma unroll
    for (uint32_t b = 0; b < STEPS / 2; b++) k[b] = key(i, 4 * b + lane % 4);
#pragma unroll
    for (uint32_t b = 0; b < STEPS / 2; b++) {
        const uint4 q0 = h.a[2 * b][lane], q1 = h.a[2 * b + 1][lane];
        mma_bf16(d, q0.x, q0.y, q0.z, q0.w, k[b].x, k[b].y);
        mma_bf16(e, q1.x, q1.y, q1.z, q1.w, k[b].z, k[b].w);
    }
    return make_float2(d[0] + d[2] + (e[0] + e[2]), d[1] + d[3] + (e[1] + e[3]));
}

/* out += weights · values of 16 keys; lower, upper: of keys 2t, 2t + 1 and 2t + 8, 2t + 9. */
template <bool EXACT, typename Value>
__device__ __forceinline__ void add_values(Value value, uint32_t lower, uint32_t upper, uint32_t lower_rest, uint32_t upper_rest,
                                           float (&out)[32][2]) {
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        uint4 v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) v[i] = value(2 * t + i % 2 + i / 2 * 8, 8 * c + g);
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
            if (EXACT) mma_bf16_upper(out[c * 8 + i], lower_rest, upper_rest, b0, b1);
        }
    }
}

struct warp_sums { /* of head g; sum: of this lane's keys */
    float max, sum, out[32][2];
};

struct tile_weights { /* of keys 2t, 2t + 1 and 2t + 8, 2t + 9, in bf16, and what that leaves */
    uint32_t lower, upper, lower_rest, upper_rest;
};

/* From scores to weights; what was summed before is scaled as they are. */
template <bool EXACT>
__device__ __forceinline__ tile_weights weigh_tile(const row_keys &k, uint32_t key0, float2 s0, float2 s1, warp_sums &w) {
    const uint32_t t = threadIdx.x % 4;
    float s[4] = {s0.x, s0.y, s1.x, s1.y};
    const uint32_t at[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
    float most = w.max;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (key0 + at[i] >= k.last) s[i] = -INFINITY;
        most = fmaxf(most, s[i]);
    }
    most = max_lanes<4>(most); /* finite: the first key of a tile counts */
    const float scale = exp2f(w.max - most);
    float p[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) p[i] = exp2f(s[i] - most);
    const uint32_t lower = bf16_pair(p[0], p[1]), upper = bf16_pair(p[2], p[3]);
    const uint32_t lower_rest = bf16_pair(p[0] - bf16_low(lower), p[1] - bf16_high(lower));
    const uint32_t upper_rest = bf16_pair(p[2] - bf16_low(upper), p[3] - bf16_high(upper));
    w.max = most;
    w.sum = w.sum * scale + (EXACT ? p[0] + p[1] + p[2] + p[3] : bf16_low(lower) + bf16_high(lower) + bf16_low(upper) + bf16_high(upper));
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) w.out[i][0] *= scale, w.out[i][1] *= scale;
    return {lower, upper, lower_rest, upper_rest};
}

/* The tile from position key0 on, whose keys and values are on their way; then those of `next` are. */
template <bool EXACT> __device__ __forceinline__ void attend_tile(const row_keys &k, uint32_t key0, uint32_t next, share &h, warp_sums &w) {
    const uint32_t warp = threadIdx.x / WARP, page = page_of(k, next);
    uint4(&keys)[TILE][UNITS] = h.tile[warp][0], (&values)[TILE][UNITS] = h.tile[warp][1];
    copy_wait<1>();
    own_rows(k, key0, h.own[0], keys);
    __syncwarp();
    const auto key = [&](uint32_t i, uint32_t u) { return keys[i][swizzle(i, u)]; };
    const float2 s0 = score_keys(key, 0, h), s1 = score_keys(key, 8, h);
    __syncwarp(); /* all have taken them */
    fetch_tile(k, 0, next, page, keys);
    const tile_weights p = weigh_tile<EXACT>(k, key0, s0, s1, w);
    copy_wait<1>();
    own_rows(k, key0, h.own[1], values);
    __syncwarp();
    add_values<EXACT>([&](uint32_t i, uint32_t u) { return values[i][swizzle(i, u)]; }, p.lower, p.upper, p.lower_rest, p.upper_rest,
                      w.out);
    __syncwarp();
    fetch_tile(k, 1, next, page, values);
}

/* ---- sums ---- */

/* The warps' sums, weighed, into h.part, most and total; all meet. */
__device__ __forceinline__ void meet(warp_sums &w, share &h) {
    const uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    float *own = &h.out[warp][0][0][0]; /* [MAX_GROUP][D], where the warp's own tiles were */
    w.sum = sum_lanes<4>(w.sum);
    if (t == 0) h.max[warp][g] = w.max, h.sum[warp][g] = w.sum;
    copy_wait<0>();
    __syncthreads();
    float most = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++) most = fmaxf(most, h.max[i][g]);
    const float weight = exp2f(w.max - most); /* 0 of a warp without keys */
    if (warp == 0 && t == 0) {
        float total = 0;
#pragma unroll
        for (uint32_t i = 0; i < WARPS; i++) total += h.sum[i][g] * exp2f(h.max[i][g] - most);
        h.most[g] = most, h.total[g] = total;
    }
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) own[g * D + i / 8 * 64 + 8 * (2 * t + j) + i % 8] = w.out[i][j] * weight;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < MAX_GROUP * D / 4 / THREADS; i++) {
        const uint32_t at = (threadIdx.x + i * THREADS) * 4;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < WARPS; j++) {
            const float4 v = *reinterpret_cast<const float4 *>(&h.out[j][0][0][0] + at);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        *reinterpret_cast<float4 *>(&h.part[0][0] + at) = sum;
    }
}

struct head_sum { /* of a head: two values of a thread, Σp, and the maximum that they are relative to, of powers of two */
    float2 value;
    float most, total;
};

/* One head over the cluster's blocks that have keys; all of them meet before. */
__device__ __forceinline__ head_sum sum_cluster(uint32_t j, uint32_t blocks, const share &h) {
    float most[CLUSTER], total[CLUSTER];
    float2 value[CLUSTER];
    head_sum s = {make_float2(0, 0), -INFINITY, 0};
#pragma unroll
    for (uint32_t b = 0; b < CLUSTER; b++) {
        if (b >= blocks) continue;
        most[b] = load_of(&h.most[j], b), total[b] = load_of(&h.total[j], b);
        value[b] = load2_of(&h.part[j][VALUES_OF_THREAD * threadIdx.x], b);
    }
#pragma unroll
    for (uint32_t b = 0; b < CLUSTER; b++)
        if (b < blocks) s.most = fmaxf(s.most, most[b]);
#pragma unroll
    for (uint32_t b = 0; b < CLUSTER; b++) {
        if (b >= blocks) continue;
        const float weight = exp2f(most[b] - s.most);
        s.total += weight * total[b];
        s.value.x += weight * value[b].x, s.value.y += weight * value[b].y;
    }
    return s;
}

/* One head over what the clusters left. */
__device__ __forceinline__ head_sum sum_partials(const float *partial, uint32_t n, uint32_t group, uint32_t j) {
    constexpr uint32_t MOST = STEP_MAX_SPLITS / CLUSTER;
    float most[MOST], total[MOST];
    float2 value[MOST];
    head_sum s = {make_float2(0, 0), -INFINITY, 0};
#pragma unroll
    for (uint32_t b = 0; b < MOST; b++) {
        if (b >= n) continue;
        const float *of = partial + ((size_t)b * group + j) * PARTIAL;
        most[b] = __ldcg(of + D), total[b] = __ldcg(of + D + 1);
        value[b] = __ldcg(reinterpret_cast<const float2 *>(of) + threadIdx.x);
    }
#pragma unroll
    for (uint32_t b = 0; b < MOST; b++)
        if (b < n) s.most = fmaxf(s.most, most[b]);
#pragma unroll
    for (uint32_t b = 0; b < MOST; b++) {
        if (b >= n) continue;
        const float weight = exp2f(most[b] - s.most);
        s.total += weight * total[b];
        s.value.x += weight * value[b].x, s.value.y += weight * value[b].y;
    }
    return s;
}

/* How a row's keys fall to the blocks along x. */
struct key_split {
    uint32_t per, splits; /* keys of a block; blocks that have any */
};

template <bool CLUSTERS> __device__ __forceinline__ key_split split_of(uint32_t keys) {
    const uint32_t blocks = CLUSTERS && keys <= CLUSTER_KEYS ? CLUSTER : gridDim.x, per = split_keys(keys, blocks, WARPS * TILE);
    return {per, (keys + per - 1) / per};
}

/* Block (split, K/V head, row). */
template <bool EXACT, bool CLUSTERS>
__global__ void __launch_bounds__(THREADS, 2) attention_bf16_kernel(const __grid_constant__ step_attention a) {
    extern __shared__ uint4 shared[];
    share &h = *reinterpret_cast<share *>(shared);
    const uint32_t row = blockIdx.z, head = blockIdx.y, group = a.heads / a.kv.kv_heads, warp = threadIdx.x / WARP;
    launch_dependents();
    if (row >= a.batch.counts->rows) return;
    const uint32_t position = a.batch.positions[row], n = position + 1;
    const batch_segment seg = a.batch.segment[a.batch.segment_of[row]];
    if (a.most_rows && seg.rows > a.most_rows) return;
    const key_split split = split_of<CLUSTERS>(n);
    const uint32_t first = blockIdx.x * split.per, base = blockIdx.x / CLUSTER * CLUSTER;
    if (CLUSTERS ? base >= split.splits : first >= n) return; /* of a cluster all stay */
    const uint32_t last = min(first + split.per, n);
    const bool writes = a.single && last == n && first < n;
    const uint32_t *pages = a.batch.page_table + seg.first_page;
    const row_keys k = {static_cast<const uint16_t *>(a.kv.layer),
                        pages,
                        page_elements(a.kv),
                        (size_t)head * KV_PAGE_TOKENS * D,
                        (size_t)a.kv.kv_heads * KV_PAGE_TOKENS * D,
                        last,
                        writes ? position : UINT32_MAX - TILE};
    const uint32_t mine = first + warp * TILE;
    constexpr uint32_t STRIDE = WARPS * TILE;
    if (!a.single) wait_inputs(); /* the kernel in front writes some of them */
    const uint32_t first_page = page_of(k, mine);
    fetch_tile(k, 0, mine, first_page, h.tile[warp][0]);
    fetch_tile(k, 1, mine, first_page, h.tile[warp][1]);
    /* the gates of what this thread has in the end */
    const float *gates = gates_of(a, row, head * group);
    float *out = a.out + (size_t)row * a.out_stride + (size_t)head * group * D;
    const uint32_t j = blockIdx.x % CLUSTER, value = VALUES_OF_THREAD * threadIdx.x;
    const float *in = a.in + (size_t)row * a.in_stride;
    float2 gate = make_float2(1, 1);
    have(in), have(gates), have(out);
    wait_inputs();
    if (CLUSTERS && gates && j < group) gate = __ldcg(reinterpret_cast<const float2 *>(gates + (size_t)j * 2 * D + value));
    if (first < n) {
        prepare(a, in, row, head, group, writes, pages[position / KV_PAGE_TOKENS], position, h);
        warp_sums w;
        w.max = -INFINITY, w.sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < 32; i++) w.out[i][0] = w.out[i][1] = 0;
#pragma unroll 1
        for (uint32_t key0 = mine; key0 < last; key0 += STRIDE) attend_tile<EXACT>(k, key0, key0 + STRIDE, h, w);
        meet(w, h);
    }
    if constexpr (CLUSTERS) {
        if (gates) gate = make_float2(sigmoid(gate.x), sigmoid(gate.y));
        cluster_arrive();
        cluster_wait();
        head_sum s = {};
        if (j < group) s = sum_cluster(j, min(CLUSTER, split.splits - base), h);
        cluster_arrive(); /* the others' shared memory has been read */
        bool has = j < group;
        if (split.splits > CLUSTER && has) {
            const uint32_t clusters = (split.splits + CLUSTER - 1) / CLUSTER;
            float *all = a.partial + (size_t)(row * a.kv.kv_heads + head) * (gridDim.x / CLUSTER) * group * PARTIAL,
                  *own = all + ((size_t)(base / CLUSTER) * group + j) * PARTIAL;
            *reinterpret_cast<float2 *>(own + value) = s.value;
            if (threadIdx.x == 0) own[D] = s.most, own[D + 1] = s.total;
            has = is_last_block(a.counters + (row * a.kv.kv_heads + head) * MAX_GROUP + j, clusters);
            if (has) s = sum_partials(all, clusters, group, j);
        }
        if (has)
            *reinterpret_cast<float2 *>(out + (size_t)j * D + value) =
                make_float2(s.value.x / s.total * gate.x, s.value.y / s.total * gate.y);
        cluster_wait();
    } else {
        __syncthreads();
        float *all = a.partial + (size_t)(row * a.kv.kv_heads + head) * gridDim.x * group * PARTIAL,
              *own = all + (size_t)blockIdx.x * group * PARTIAL;
        for (uint32_t i = threadIdx.x; i < group * D; i += THREADS) {
            const uint32_t jj = i / D, d = i % D;
            if (split.splits == 1)
                out[i] = h.part[jj][d] / h.total[jj] * gate_of(gates, jj, d);
            else
                own[jj * PARTIAL + d] = h.part[jj][d];
            if (d == 0 && split.splits > 1) own[jj * PARTIAL + D] = h.most[jj] * LN2, own[jj * PARTIAL + D + 1] = h.total[jj];
        }
        if (split.splits > 1 && is_last_block(a.counters + (row * a.kv.kv_heads + head) * MAX_GROUP, split.splits))
            add_splits<THREADS>(all, split.splits, group, gates, out);
    }
}

template <bool EXACT> void run(const step_attention *a, bool early, cudaStream_t stream) {
    const uint32_t splits = step_attention_splits(a->rows);
    if (a->clusters && splits >= CLUSTER) {
        /* No more than run at once: a few that have to wait for the others double the time. */
        const uint32_t fit = a->clusters / (a->kv.kv_heads * a->rows), n = fit < 1 ? 1 : fit < splits / CLUSTER ? fit : splits / CLUSTER;
        launch_clusters(attention_bf16_kernel<EXACT, true>, CLUSTER, dim3(n * CLUSTER, a->kv.kv_heads, a->rows), THREADS, sizeof(share),
                        early, stream, *a);
    } else
        launch(attention_bf16_kernel<EXACT, false>, dim3(splits, a->kv.kv_heads, a->rows), THREADS, sizeof(share), early, stream, *a);
}

} // namespace

void run_attention_bf16(const step_attention *a, bool early, cudaStream_t stream) {
    a->exact ? run<true>(a, early, stream) : run<false>(a, early, stream);
}

} // namespace calla

cudaError_t attention_prepare(cuda_device *d) {
    using namespace calla;
    cudaError_t e = allow_shared(attention_bf16_kernel<true, true>, sizeof(share));
    if (!e) e = allow_shared(attention_bf16_kernel<true, false>, sizeof(share));
    if (!e) e = allow_shared(attention_bf16_kernel<false, true>, sizeof(share));
    if (!e) e = allow_shared(attention_bf16_kernel<false, false>, sizeof(share));
    int has = 0;
    if (!e) e = cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0);
    if (e || !has) return e;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER), config.blockDim = dim3(THREADS), config.dynamicSmemBytes = sizeof(share);
    config.attrs = &attribute, config.numAttrs = 1;
    int n = 0;
    e = cudaOccupancyMaxActiveClusters(&n, attention_bf16_kernel<true, true>, &config);
    d->clusters = (uint32_t)n;
    return e;
}

/* attention_step.cu: attention of single rows over paged K and V (docs/model.md, "Attention mixer"), in float32; a cache in bf16 is the
 * business of attention_bf16.cu.  Also the cache's writing for batches of many rows.
 *
 * A row's keys are cut into splits, a block for each of them and each K/V head; it serves all query heads of the group, so that a key is
 * read once.  The block that comes last adds up the splits.  Where every segment has one row, the split that holds the row's own
 * position first writes its key and value into the cache. */
#include "backend/cuda/attention.cuh"

namespace calla {

constexpr uint32_t D = HEAD_DIM, THREADS = 256, WARPS = THREADS / WARP, CHUNK = 256;

/* Block: a row. */
__global__ void __launch_bounds__(THREADS) attention_write_kernel(const __grid_constant__ step_attention a, uint16_t *queries) {
    const uint32_t row = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t position = a.batch.positions[row];
    const batch_segment &seg = a.batch.segment[a.batch.segment_of[row]];
    const uint32_t page = a.batch.page_table[seg.first_page + position / KV_PAGE_TOKENS];
    for (uint32_t i = warp; i < 2 * a.kv.kv_heads; i += WARPS) write_key_or_value(a, row, page, position, i / 2, i % 2);
    if (!queries) return;
    for (uint32_t h = warp; h < a.heads; h += WARPS) {
        float x[8];
        load_head(a.in + (size_t)row * a.in_stride + (size_t)h * 2 * D, x);
        norm_rotate(x, a.q_gain, a.rotary + (size_t)row * ROTARY_DIM, a.norm_eps);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) queries[((size_t)row * a.heads + h) * D + lane + WARP * i] = to_bf16(x[i]);
    }
}

/* Eight values of a cached row from value i on. */
__device__ __forceinline__ void load_kv8(const cuda_kv &kv, size_t at, float (&x)[8]) {
    if (kv.f32) {
        const float4 *p = reinterpret_cast<const float4 *>(static_cast<const float *>(kv.layer) + at);
        const float4 a = p[0], b = p[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        const uint4 v = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(kv.layer) + at);
        x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
        x[4] = bf16_low(v.z), x[5] = bf16_high(v.z), x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
    }
}

struct alignas(16) attention_share {
    float q[MAX_GROUP][D]; /* by 1/16 */
    float p[MAX_GROUP][CHUNK];
    float max[MAX_GROUP], sum[MAX_GROUP], scale[MAX_GROUP]; /* scale: of what was summed before this chunk */
};

/* Scores of a chunk's keys into h.p: a thread has one key. */
__device__ void score_chunk(const step_attention &a, const uint32_t *pages, uint32_t head, uint32_t group, uint32_t key, bool has,
                            attention_share &h) {
    float dot[MAX_GROUP] = {};
    if (has) {
        const size_t at = kv_at(a.kv, pages[key / KV_PAGE_TOKENS], 0, head, key);
        for (uint32_t i = 0; i < D; i += 8) {
            float k[8];
            load_kv8(a.kv, at + i, k);
#pragma unroll
            for (uint32_t j = 0; j < MAX_GROUP; j++) {
                if (j >= group) break;
                const float4 q0 = *reinterpret_cast<const float4 *>(&h.q[j][i]), q1 = *reinterpret_cast<const float4 *>(&h.q[j][i + 4]);
                dot[j] += q0.x * k[0] + q0.y * k[1] + q0.z * k[2] + q0.w * k[3] + q1.x * k[4] + q1.y * k[5] + q1.z * k[6] + q1.w * k[7];
            }
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < MAX_GROUP; j++) h.p[j][threadIdx.x] = has ? dot[j] : -INFINITY;
}

/* Scores of one query head to weights, by one warp; moves the running maximum and sum on. */
__device__ void weigh_chunk(uint32_t j, attention_share &h) {
    const uint32_t lane = threadIdx.x % WARP;
    float most = -INFINITY, sum = 0;
    for (uint32_t i = lane; i < CHUNK; i += WARP) most = fmaxf(most, h.p[j][i]);
    const float before = h.max[j];
    most = fmaxf(max_lanes<32>(most), before);
    for (uint32_t i = lane; i < CHUNK; i += WARP) {
        const float p = expf(h.p[j][i] - most);
        h.p[j][i] = p;
        sum += p;
    }
    sum = sum_lanes<32>(sum);
    __syncwarp();
    if (lane != 0) return;
    h.scale[j] = expf(before - most); /* 0 for the first chunk */
    h.max[j] = most;
    h.sum[j] = h.sum[j] * h.scale[j] + sum;
}

__device__ float value_at(const cuda_kv &kv, size_t at) {
    return kv.f32 ? static_cast<const float *>(kv.layer)[at] : __uint_as_float((uint32_t)static_cast<const uint16_t *>(kv.layer)[at] << 16);
}

/* Block (split, K/V head, row). */
__global__ void __launch_bounds__(THREADS) attention_step_kernel(const __grid_constant__ step_attention a) {
    __shared__ attention_share h;
    const uint32_t row = blockIdx.z, head = blockIdx.y, group = a.heads / a.kv.kv_heads, warp = threadIdx.x / WARP,
                   lane = threadIdx.x % WARP;
    launch_dependents();
    if (row >= a.batch.counts->rows) return;
    const batch_segment seg = a.batch.segment[a.batch.segment_of[row]];
    if (a.most_rows && seg.rows > a.most_rows) return;
    const uint32_t *pages = a.batch.page_table + seg.first_page, position = a.batch.positions[row], n = position + 1;
    const uint32_t per = split_keys(n, gridDim.x, LEAST_SPLIT), splits = (n + per - 1) / per, first = blockIdx.x * per,
                   last = min(first + per, n);
    if (first >= n) return;
    wait_inputs();
    for (uint32_t j = warp; j < group; j += WARPS) {
        float x[8];
        load_head(a.in + (size_t)row * a.in_stride + (size_t)(head * group + j) * 2 * D, x);
        norm_rotate(x, a.q_gain, a.rotary + (size_t)row * ROTARY_DIM, a.norm_eps);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) h.q[j][lane + WARP * i] = x[i] * 0.0625f; /* 1/√256 */
    }
    if (a.single && last == n && warp < 2) write_key_or_value(a, row, pages[position / KV_PAGE_TOKENS], position, head, warp);
    if (threadIdx.x < MAX_GROUP) h.max[threadIdx.x] = -INFINITY, h.sum[threadIdx.x] = 0;
    float acc[MAX_GROUP] = {}; /* of value threadIdx.x */
    for (uint32_t begin = first; begin < last; begin += CHUNK) {
        __syncthreads();
        score_chunk(a, pages, head, group, begin + threadIdx.x, begin + threadIdx.x < last, h);
        __syncthreads();
        for (uint32_t j = warp; j < group; j += WARPS) weigh_chunk(j, h);
        __syncthreads();
#pragma unroll
        for (uint32_t j = 0; j < MAX_GROUP; j++)
            if (j < group) acc[j] *= h.scale[j];
        const uint32_t end = min(CHUNK, last - begin);
#pragma unroll 4
        for (uint32_t i = 0; i < end; i++) {
            const uint32_t key = begin + i;
            const float v = value_at(a.kv, kv_at(a.kv, pages[key / KV_PAGE_TOKENS], 1, head, key) + threadIdx.x);
#pragma unroll
            for (uint32_t j = 0; j < MAX_GROUP; j++)
                if (j < group) acc[j] += h.p[j][i] * v;
        }
    }
    const float *gates = gates_of(a, row, head * group);
    float *out = a.out + (size_t)row * a.out_stride + (size_t)head * group * D;
    if (splits == 1) {
#pragma unroll
        for (uint32_t j = 0; j < MAX_GROUP; j++)
            if (j < group) out[(size_t)j * D + threadIdx.x] = acc[j] / h.sum[j] * gate_of(gates, j, threadIdx.x);
        return;
    }
    float *all = a.partial + (size_t)(row * a.kv.kv_heads + head) * gridDim.x * group * PARTIAL,
          *own = all + (size_t)blockIdx.x * group * PARTIAL;
#pragma unroll
    for (uint32_t j = 0; j < MAX_GROUP; j++)
        if (j < group) own[j * PARTIAL + threadIdx.x] = acc[j];
    if (threadIdx.x < group) {
        own[threadIdx.x * PARTIAL + D] = h.max[threadIdx.x];
        own[threadIdx.x * PARTIAL + D + 1] = h.sum[threadIdx.x];
    }
    if (is_last_block(a.counters + (row * a.kv.kv_heads + head) * MAX_GROUP, splits)) add_splits<THREADS>(all, splits, group, gates, out);
}

} // namespace calla

using namespace calla;

uint32_t step_attention_splits(uint32_t rows) { return rows < STEP_MAX_SPLITS ? STEP_MAX_SPLITS / rows : 1; }

uint64_t step_attention_partial_floats(uint32_t heads) {
    return (uint64_t)STEP_MAX_SPLITS * heads * PARTIAL; /* rows times splits is at most STEP_MAX_SPLITS where there are splits */
}

void step_run_attention(const step_attention *a, bool early, cudaStream_t stream) {
    if (!a->kv.f32) {
        run_attention_bf16(a, early, stream);
        return;
    }
    const dim3 grid(step_attention_splits(a->rows), a->kv.kv_heads, a->rows);
    launch(attention_step_kernel, grid, THREADS, 0, early, stream, *a);
}

void step_run_attention_write(const step_attention *a, uint16_t *queries, cudaStream_t stream) {
    launch(attention_write_kernel, dim3(a->rows), THREADS, 0, false, stream, *a, queries);
}

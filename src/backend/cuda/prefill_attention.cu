/* prefill_attention.cu: causal attention of many rows over the paged cache, with a running softmax in float32.
 *
 * A block owns up to 128 (row, query head) pairs of one K/V head: all query heads of a group stand beside each other, so each tile of K
 * and V is read once for all of them.  Eight warps own 16 pairs each and keep their sums, 16 × 256, in registers.  Tiles of K and V
 * alternate in a ring of shared memory: K0, V0, K1, V1, …, loaded ahead.  All operands stand as blocks of 64 dimensions of swizzled
 * 128-byte rows (gemm_ptx.cuh).  On sm_90a the products are wgmma, elsewhere mma.sync; the sums have the same fragments.
 *
 * On an H200: 375 TFLOP/s for 8,192 rows from position 0, 475 far into a prompt (of 788); with mma.sync 208.
 *
 * Cached rows behind the last position are not read: they may hold anything, and 0 · NaN is NaN. */
#include "backend/cuda/gemm_ptx.cuh"
#include "backend/cuda/kernels.h"

enum { D = HEAD_DIM, ATTENTION_THREADS = 256, PAIRS = 128, QUERY_BYTES = PAIRS * D * 2 };

/* Tokens of a tile and tiles in the ring.  Elsewhere than on sm_90a what fits 99 KiB, the least of any device. */
template <bool WGMMA> struct attention_ring {
    static constexpr int tokens = WGMMA ? 64 : 32, slots = WGMMA ? 4 : 2, slot_bytes = tokens * D * 2,
                         bytes = QUERY_BYTES + slots * slot_bytes;
};

typedef struct attention_job {
    const uint16_t *q; /* [rows][heads][256] */
    const float *gate;
    uint32_t gate_stride;
    cuda_kv kv;
    const uint32_t *pages;
    uint32_t first_position, rows, heads, tile_rows; /* tile_rows: rows of a block */
    uint16_t *out;                                   /* [rows][heads·256] */
} attention_job;

/* Loads tile `item` (K of tile item/2 if even, else V) for positions below `end`; the rest becomes 0. */
template <typename R> DEVICE void load_tile(const attention_job &job, uint32_t item, uint32_t head, uint32_t end, uint32_t slot) {
    const uint32_t first = item / 2 * R::tokens, page = job.pages[first / KV_PAGE_TOKENS];
    const uint16_t *from = (const uint16_t *)job.kv.layer +
                           (((uint64_t)page * 2 + item % 2) * job.kv.kv_heads + head) * KV_PAGE_TOKENS * D + first % KV_PAGE_TOKENS * D;
#pragma unroll
    for (int i = 0; i < R::tokens * 32 / ATTENTION_THREADS; i++) {
        const uint32_t n = i * ATTENTION_THREADS + threadIdx.x, token = n / 32, chunk = n % 32;
        copy_async(slot + chunk / 8 * (R::tokens * 128) + swizzled(token, chunk % 8), from + token * D + chunk * 8,
                   first + token < end ? 16 : 0);
    }
}

/* Pair p of the block is row p / group, head p % group of the group; pairs behind the last row repeat it. */
DEVICE void load_queries(const attention_job &job, uint32_t first_row, uint32_t rows, uint32_t head, uint32_t group, uint32_t to) {
#pragma unroll 4
    for (int i = 0; i < PAIRS * 32 / ATTENTION_THREADS; i++) {
        const uint32_t n = i * ATTENTION_THREADS + threadIdx.x, pair = n / 32, chunk = n % 32, row = min(pair / group, rows - 1);
        copy_async(to + chunk / 8 * (PAIRS * 128) + swizzled(pair, chunk % 8),
                   job.q + ((uint64_t)(first_row + row) * job.heads + head * group + pair % group) * D + chunk * 8);
    }
}

#if GEMM_WGMMA
/* s [64 pairs of this warpgroup][64 tokens] = q kᵀ */
template <typename R> DEVICE void scores(float (&s)[R::tokens / 2], uint32_t q, uint32_t k) {
    const uint64_t a = wgmma_descriptor(q + threadIdx.x / 128 * 8192, 0, 1024), b = wgmma_descriptor(k, 0, 1024);
    wgmma_settle(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma_bf16_ss<0>(s, a + i / 4 * (PAIRS * 128 / 16) + i % 4 * 2, b + i / 4 * (R::tokens * 128 / 16) + i % 4 * 2, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(s);
}
/* o [64 pairs][256] += p v */
template <typename R> DEVICE void add_values(float (&o)[D / 2], const uint32_t (&p)[R::tokens / 16][4], uint32_t v) {
    const uint64_t b = wgmma_descriptor(v, R::tokens * 128, 1024);
    wgmma_settle(o);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < R::tokens / 16; i++) wgmma_bf16_rs<1>(o, p[i], b + i * (16 * 128 / 16), true);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(o);
}
#else
template <typename R> DEVICE void scores(float (&s)[R::tokens / 2], uint32_t q, uint32_t k) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < R::tokens / 2; i++) s[i] = 0;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t a[4];
        load_matrix4(a, q + i / 4 * (PAIRS * 128) + swizzled(threadIdx.x / 32 * 16 + lane % 16, i % 4 * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < R::tokens / 16; n++) {
            uint32_t b[4];
            load_matrix4(b, k + i / 4 * (R::tokens * 128) + swizzled(n * 16 + lane / 16 * 8 + lane % 8, i % 4 * 2 + lane / 8 % 2));
            mma_bf16(s + n * 8, a, b[0], b[1]);
            mma_bf16(s + n * 8 + 4, a, b[2], b[3]);
        }
    }
}
template <typename R> DEVICE void add_values(float (&o)[D / 2], const uint32_t (&p)[R::tokens / 16][4], uint32_t v) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < R::tokens / 16; i++)
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrix4_transposed(b, v + n / 4 * (R::tokens * 128) + swizzled(i * 16 + lane % 16, n % 4 * 2 + lane / 16));
            mma_bf16(o + n * 8, p[i], b[0], b[1]);
            mma_bf16(o + n * 8 + 4, p[i], b[2], b[3]);
        }
}
#endif

/* The running softmax of this thread's two pairs (g and g + 8 of its warp's 16), in units of log2: max and sum so far; the sum is this
 * lane's part until the end. */
typedef struct attention_softmax {
    float max[2], sum[2];
} attention_softmax;

/* s becomes p = 2^(s·c − max), packed as A fragments; o is scaled down where the maximum grew. */
template <typename R>
DEVICE void softmax_tile(attention_softmax &run, float (&s)[R::tokens / 2], float (&o)[D / 2], uint32_t (&p)[R::tokens / 16][4]) {
    const float c = 0.0625f * 1.44269504f; /* 1/√256 in units of log2 */
    float shrink[2];
    bool grew = false;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m = run.max[j];
#pragma unroll
        for (int n = 0; n < R::tokens / 8; n++) m = fmaxf(m, fmaxf(s[n * 4 + j * 2], s[n * 4 + j * 2 + 1]) * c);
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
        shrink[j] = exp2f(run.max[j] - m); /* the first position is seen by all, so m is finite */
        grew |= m > run.max[j];
        run.max[j] = m;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < R::tokens / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) sum += s[n * 4 + j * 2 + i] = exp2f(s[n * 4 + j * 2 + i] * c - m);
        run.sum[j] = run.sum[j] * shrink[j] + sum;
    }
    if (__any_sync(0xFFFFFFFFu, grew))
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < R::tokens / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) p[i][j] = pack_bf16(s[i * 8 + j * 2], s[i * 8 + j * 2 + 1]);
}

/* out = o / sum · sigmoid(gate) */
DEVICE void store_outputs(const attention_job &job, const attention_softmax &run, const float (&o)[D / 2], uint32_t first_row,
                          uint32_t rows, uint32_t head, uint32_t group) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float sum = run.sum[j];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        const float scale = 1 / sum;
        const uint32_t pair = threadIdx.x / 32 * 16 + lane / 4 + j * 8, row = pair / group, h = head * group + pair % group;
        if (row >= rows) continue;
        const float *gate = job.gate + (uint64_t)(first_row + row) * job.gate_stride + 2 * h * D + lane % 4 * 2;
        uint16_t *out = job.out + ((uint64_t)(first_row + row) * job.heads + h) * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float a = gate[n * 8], b = gate[n * 8 + 1];
            *(uint32_t *)(out + n * 8) =
                pack_f16(o[n * 4 + j * 2] * scale / (1 + __expf(-a)), o[n * 4 + j * 2 + 1] * scale / (1 + __expf(-b)));
        }
    }
}

static __global__ void __launch_bounds__(ATTENTION_THREADS, 1) attention_prefill(const __grid_constant__ attention_job job) {
    typedef attention_ring<GEMM_WGMMA> R;
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t q = shared_address(shared), ring = q + QUERY_BYTES, head = blockIdx.x, group = job.heads / job.kv.kv_heads;
    const uint32_t first_row = (gridDim.y - 1 - blockIdx.y) * job.tile_rows; /* the longest first */
    const uint32_t rows = min(job.tile_rows, job.rows - first_row), end = job.first_position + first_row + rows;
    const uint32_t items = (end + R::tokens - 1) / R::tokens * 2;

    load_queries(job, first_row, rows, head, group, q);
    for (uint32_t i = 0; i < R::slots - 1; i++) {
        if (i < items) load_tile<R>(job, i, head, end, ring + i * R::slot_bytes);
        copy_commit();
    }
    attention_softmax run = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[D / 2], s[R::tokens / 2];
    uint32_t p[R::tokens / 16][4];
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    const uint32_t lane = threadIdx.x % 32, pair = threadIdx.x / 32 * 16 + lane / 4;
    uint32_t last[2]; /* the last position that each of this thread's pairs sees */
    for (int j = 0; j < 2; j++) last[j] = job.first_position + first_row + min((pair + j * 8) / group, rows - 1);

#pragma unroll 1
    for (uint32_t tile = 0; tile * 2 < items; tile++) {
#pragma unroll
        for (uint32_t v = 0; v < 2; v++) {
            const uint32_t item = tile * 2 + v, next = item + R::slots - 1;
            copy_wait<R::slots - 2>();
            fence_shared_for_wgmma();
            __syncthreads(); /* the item has come, and the one before has been used by all */
            if (next < items) load_tile<R>(job, next, head, end, ring + next % R::slots * R::slot_bytes);
            copy_commit();
            const uint32_t slot = ring + item % R::slots * R::slot_bytes;
            if (v) {
                add_values<R>(o, p, slot);
                continue;
            }
            scores<R>(s, q, slot);
            const uint32_t first = tile * R::tokens;
            if (first + R::tokens > job.first_position + first_row + 1) /* some row does not see all of the tile */
#pragma unroll
                for (int n = 0; n < R::tokens / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (first + n * 8 + lane % 4 * 2 + i % 2 > last[i / 2]) s[n * 4 + i] = -INFINITY;
            softmax_tile<R>(run, s, o, p);
        }
    }
    store_outputs(job, run, o, first_row, rows, head, group);
}

void cuda_attention_prefill(const uint16_t *q, const float *gate, uint32_t gate_stride, const cuda_kv *kv, const uint32_t *pages,
                            uint32_t first_position, uint32_t rows, uint32_t heads, uint16_t *out, cudaStream_t stream) {
    if (!rows) return;
    attention_job job = {q, gate, gate_stride, *kv, pages, first_position, rows, heads, PAIRS / (heads / kv->kv_heads), out};
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    const int bytes = major == 9 ? attention_ring<true>::bytes : attention_ring<false>::bytes;
    cudaFuncSetAttribute(attention_prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const dim3 grid(kv->kv_heads, (rows + job.tile_rows - 1) / job.tile_rows);
    attention_prefill<<<grid, ATTENTION_THREADS, bytes, stream>>>(job);
}

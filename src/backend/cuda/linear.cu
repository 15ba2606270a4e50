/* linear.cu: products of a few rows with one matrix: the projections of the mixers, and the head with its largest logit.
 *
 * A block of 8 warps takes row tiles (16 outputs) in turns, its warps every eighth tile of inputs each.  All weights of the first row
 * tile are on their way before the block waits for its inputs; each tile's registers are filled anew, for the next row tile, as soon as
 * they are used. */
#include "backend/cuda/gemv.cuh"

namespace calla {

constexpr uint32_t LINEAR_BLOCKS = 2; /* per multiprocessor: room for the next stage's blocks beside them */

/* Calls done(r, o, value) in the threads that hold the sums of a row tile. */
template <int NB, typename Done> __device__ __forceinline__ void each_sum(const float *sums, uint32_t rows, Done done) {
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT;
    if (r < rows) done(r, o, take_sum<NB>(sums, GEMV_WARPS, r, o));
}

/* All row tiles of this block.  4 bits in groups of 64, at most 8·PER column tiles. */
template <int NB, int PER, typename Begin, typename Done>
__device__ __forceinline__ void row_tiles_fast(const cuda_mat &w, const staged &s, float *sums, Begin begin, Done done) {
    const uint32_t warp = threadIdx.x / WARP;
    tile<4, 1> t[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const uint32_t c = warp + GEMV_WARPS * i;
        if (c < w.col_tiles) load_tile(w, (size_t)blockIdx.x * w.col_tiles + c, t[i]);
    }
    begin();
    uint32_t turn = 0;
    for (uint32_t row_tile = blockIdx.x; row_tile < w.row_tiles; row_tile += gridDim.x, turn ^= 1) {
        const uint32_t next = row_tile + gridDim.x;
        float acc[NB][4] = {}, *own = sums + turn * (GEMV_WARPS * NB * 8 * SUM_STRIDE);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const uint32_t c = warp + GEMV_WARPS * i;
            if (c >= w.col_tiles) continue;
            tile_times<4, 1, NB>(t[i], s, c, acc);
            if (next < w.row_tiles) load_tile(w, (size_t)next * w.col_tiles + c, t[i]);
        }
        put_sums<NB>(own, acc);
        __syncthreads(); /* one is enough: the sums have two places in turn */
        each_sum<NB>(own, s.rows, [&](uint32_t r, uint32_t o, float v) { done(r, row_tile * TILE_OUT + o, v); });
    }
}

/* The same for every format. */
template <int NB, typename Begin, typename Done>
__device__ __forceinline__ void row_tiles_any(const cuda_mat &w, const staged &s, float *sums, Begin begin, Done done) {
    begin();
    uint32_t turn = 0;
    for (uint32_t row_tile = blockIdx.x; row_tile < w.row_tiles; row_tile += gridDim.x, turn ^= 1) {
        float acc[NB][4] = {}, *own = sums + turn * (GEMV_WARPS * NB * 8 * SUM_STRIDE);
        any_row_tile_times<NB>(w, 0, row_tile, s, acc);
        put_sums<NB>(own, acc);
        __syncthreads();
        each_sum<NB>(own, s.rows, [&](uint32_t r, uint32_t o, float v) { done(r, row_tile * TILE_OUT + o, v); });
    }
}

template <int NB, int PER, typename Begin, typename Done> /* PER 0: any format */
__device__ __forceinline__ void row_tiles(const cuda_mat &w, const staged &s, float *sums, Begin begin, Done done) {
    if constexpr (PER != 0)
        row_tiles_fast<NB, PER>(w, s, sums, begin, done);
    else
        row_tiles_any<NB>(w, s, sums, begin, done);
}

struct block_share { /* of shared memory: the input of a block of rows, and behind it the sums */
    staged x;
    float *sums;
    uint32_t first_row;
};

template <int NB> __device__ __forceinline__ block_share share_block(const cuda_mat &w, uint32_t rows, uint32_t block_rows) {
    extern __shared__ uint4 shared[];
    block_share b;
    b.first_row = blockIdx.y * block_rows;
    const uint32_t here = min(block_rows, rows - b.first_row);
    float *sums = reinterpret_cast<float *>(shared);
    b.sums = sums;
    b.x = staged_at(sums + 2 * sums_bytes<NB>() / 4, w.col_tiles, here);
    return b;
}

template <int NB, int PER>
__global__ void __launch_bounds__(GEMV_THREADS) linear_kernel(const __grid_constant__ step_linear a, uint32_t block_rows) {
    const block_share b = share_block<NB>(a.w, a.rows, block_rows);
    launch_dependents();
    row_tiles<NB, PER>(
        a.w, b.x, b.sums,
        [&] {
            wait_inputs();
            stage_input(a.in, a.w.cols, a.w.col_tiles, b.first_row, b.x);
            __syncthreads();
        },
        [&](uint32_t r, uint32_t o, float v) {
            if (o >= a.w.rows) return;
            float *out = a.out + (size_t)(b.first_row + r) * a.out_stride + o;
            v *= norm_factor(a.in, a.w.cols, b.x, r);
            *out = a.add ? *out + v : v;
        });
}

/* Larger logits have larger keys, then lower ids.  NaN is no candidate; +infinity is the largest float, -0 is 0 (ref/sample.h). */
__device__ __forceinline__ uint64_t logit_key(float x, uint32_t id) {
    if (!(x > -INFINITY)) return 0;
    const uint32_t u = __float_as_uint(fminf(x, 3.402823466e38f) + 0.0f);
    return (uint64_t)(u >> 31 ? ~u : u | 0x80000000u) << 32 | (0xFFFFFFFFu - id);
}

__device__ __forceinline__ uint64_t max_key(uint64_t a, uint64_t b) { return a > b ? a : b; }

template <int NB, int PER>
__global__ void __launch_bounds__(GEMV_THREADS) head_kernel(const __grid_constant__ step_head a, uint32_t block_rows) {
    const block_share b = share_block<NB>(a.w, a.wanted, block_rows);
    uint64_t best = 0; /* of this thread's row, threadIdx.x / 16 */
    const uint32_t tokens = a.batch.counts->tokens;
    launch_dependents();
    row_tiles<NB, PER>(
        a.w, b.x, b.sums,
        [&] {
            wait_inputs();
            stage_input(a.in, a.w.cols, a.w.col_tiles, b.first_row, b.x);
            __syncthreads();
        },
        [&](uint32_t r, uint32_t o, float v) {
            if (o >= a.w.rows) return;
            v *= norm_factor(a.in, a.w.cols, b.x, r);
            a.logits[(size_t)(b.first_row + r) * a.vocabulary + o] = v;
            if (o < tokens) best = max_key(best, logit_key(v, o));
        });
    for (int step = TILE_OUT / 2; step; step /= 2) best = max_key(best, __shfl_xor_sync(0xFFFFFFFFu, best, step));
    const uint32_t r = threadIdx.x / TILE_OUT;
    if (threadIdx.x % TILE_OUT == 0 && r < b.x.rows) a.best[(size_t)(b.first_row + r) * STEP_HEAD_BLOCKS + blockIdx.x] = best;
    if (!is_last_block(a.counter, gridDim.x * gridDim.y)) return;
    for (uint32_t row = threadIdx.x / WARP; row < a.wanted; row += GEMV_WARPS) {
        uint64_t key = 0;
        for (uint32_t i = threadIdx.x % WARP; i < gridDim.x; i += WARP)
            key = max_key(key, __ldcg(a.best + (size_t)row * STEP_HEAD_BLOCKS + i));
        for (int step = WARP / 2; step; step /= 2) key = max_key(key, __shfl_xor_sync(0xFFFFFFFFu, key, step));
        if (threadIdx.x % WARP) continue;
        const int32_t id = key ? (int32_t)(0xFFFFFFFFu - (uint32_t)key) : -1;
        a.largest[row] = id;
        for (uint32_t i = 0; i < a.batch.counts->samples; i++)
            if (a.batch.sample_of[i] == row) a.picked[i] = id;
    }
}

/* Blocks along x: as many as fit beside each other, each with the same number of row tiles or one less. */
static uint32_t linear_blocks(const cuda_device *d, uint32_t row_tiles) {
    const uint32_t fit = d->multiprocessors * LINEAR_BLOCKS, most = fit < STEP_HEAD_BLOCKS ? fit : STEP_HEAD_BLOCKS,
                   turns = (row_tiles + most - 1) / most;
    return (row_tiles + turns - 1) / turns;
}

#define PICK(kernel, nb, col_tiles, fast)                                                                                                  \
    (!(fast)             ? kernel<nb, 0>                                                                                                   \
     : (col_tiles) <= 8  ? kernel<nb, 1>                                                                                                   \
     : (col_tiles) <= 16 ? kernel<nb, 2>                                                                                                   \
     : (col_tiles) <= 32 ? kernel<nb, 4>                                                                                                   \
                         : kernel<nb, 8>)

template <int NB> static uint32_t linear_shared(uint32_t col_tiles, uint32_t rows) {
    return 2 * sums_bytes<NB>() + staged_bytes(col_tiles, rows);
}

} // namespace calla

using namespace calla;

void step_run_linear(const cuda_device *d, const step_linear *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->w.col_tiles, a->rows), c = a->w.col_tiles;
    const bool fast = a->w.bits == 4 && a->w.subs == 1;
    const dim3 grid(linear_blocks(d, a->w.row_tiles), (a->rows + n - 1) / n);
    if (n <= 4)
        launch(PICK(linear_kernel, 1, c, fast), grid, GEMV_THREADS, linear_shared<1>(c, n), early, stream, *a, n);
    else
        launch(PICK(linear_kernel, 2, c, fast), grid, GEMV_THREADS, linear_shared<2>(c, n), early, stream, *a, n);
}

void step_run_head(const cuda_device *d, const step_head *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->w.col_tiles, a->wanted), c = a->w.col_tiles;
    const bool fast = a->w.bits == 4 && a->w.subs == 1;
    const dim3 grid(linear_blocks(d, a->w.row_tiles), (a->wanted + n - 1) / n);
    if (n <= 4)
        launch(PICK(head_kernel, 1, c, fast), grid, GEMV_THREADS, linear_shared<1>(c, n), early, stream, *a, n);
    else
        launch(PICK(head_kernel, 2, c, fast), grid, GEMV_THREADS, linear_shared<2>(c, n), early, stream, *a, n);
}

template <int NB, int PER> static cudaError_t allow_shared(uint32_t bytes) {
    cudaError_t e = cudaFuncSetAttribute(linear_kernel<NB, PER>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e ? e : cudaFuncSetAttribute(head_kernel<NB, PER>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

cudaError_t linear_prepare(const cuda_device *d) {
    cudaError_t (*const each[])(uint32_t) = {allow_shared<1, 0>, allow_shared<1, 1>, allow_shared<1, 2>, allow_shared<1, 4>,
                                             allow_shared<1, 8>, allow_shared<2, 0>, allow_shared<2, 1>, allow_shared<2, 2>,
                                             allow_shared<2, 4>, allow_shared<2, 8>};
    for (auto f : each)
        if (cudaError_t e = f(d->shared_bytes)) return e;
    return cudaSuccess;
}

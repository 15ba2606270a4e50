/* linear.cu: products of a few rows with one matrix: the projections of the mixers, and the head with its largest logit.
 *
 * The inputs of a row tile (16 outputs) are split over 1, 2, 4 or 8 warps, as many as it takes to have work for all warps of the device;
 * the block's 8 warps take 8, 4, 2 or 1 row tiles at a time.  Each warp has RING chunks of weights on their way to shared memory, the first
 * of them before the block waits for its inputs; a place is filled anew as soon as it is used, across row tiles.  One row in fast precision
 * and the usual format goes another way (int_gemv.cuh). */
#include "backend/cuda/int_rows.cuh"

namespace calla {

constexpr uint32_t LINEAR_BLOCKS = 3; /* per multiprocessor */

/* How the row tiles of a matrix fall to warps. */
struct row_split {
    uint32_t warps;   /* of a row tile */
    uint32_t at_once; /* row tiles of a block at a time: GEMV_WARPS / warps */
};

/* Calls done(r, output of the row tile group, value) in the threads that hold the sums of the group's row tiles; a thread keeps its r. */
template <int NB, typename Done>
__device__ __forceinline__ void each_sum(const float *sums, const staged &s, const row_split &split, Done done) {
    const uint32_t r = threadIdx.x % s.rows, step = GEMV_THREADS / s.rows;
    if (threadIdx.x >= step * s.rows) return;
#pragma unroll 1
    for (uint32_t q = threadIdx.x / s.rows; q < split.at_once * TILE_OUT; q += step) {
        const float *of = sums + q / TILE_OUT * split.warps * (NB * 8 * SUM_STRIDE);
        done(r, q, take_sum<NB>(of, split.warps, s.rows, s.parts, r, q % TILE_OUT));
    }
}

/* A warp's chunks in the order in which it takes them: its share of the inputs of one row tile after the other. */
struct chunk_cursor {
    uint32_t row_tile, c, first, end, row_step;

    __device__ __forceinline__ uint32_t tiles() const { return min(CHUNK, end - c); }
    __device__ __forceinline__ void step() {
        c += CHUNK;
        if (c < end) return;
        c = first;
        row_tile += row_step;
    }
};

/* All row tiles of this block; 4 bits in groups of 64. */
template <int NB, typename Begin, typename Done>
__device__ __forceinline__ void row_tiles_fast(const cuda_mat &w, const staged &s, const row_split &split, uint8_t *ring, float *sums,
                                               Begin begin, Done done) {
    const uint32_t warp = threadIdx.x / WARP, own_tile = warp / split.warps, part = warp % split.warps;
    const uint32_t each = (w.col_tiles + split.warps - 1) / split.warps, first_c = min(part * each, w.col_tiles),
                   end_c = min(first_c + each, w.col_tiles);
    const uint32_t row_step = gridDim.x * split.at_once;
    const bool idle = first_c == end_c;
    uint8_t *places = ring + warp * RING * CHUNK_BYTES<4>;
    chunk_cursor ahead = {blockIdx.x * split.at_once + own_tile, first_c, first_c, end_c, row_step};
    const auto fetch = [&](uint32_t place) {
        if (!idle && ahead.row_tile < w.row_tiles)
            fetch_chunk<4>(w, (size_t)ahead.row_tile * w.col_tiles + ahead.c, ahead.tiles(), places + place * CHUNK_BYTES<4>);
        copy_commit(); /* also an empty one: groups are counted */
        ahead.step();
    };
#pragma unroll 1
    for (uint32_t j = 0; j < RING; j++) fetch(j);
    begin();
    uint32_t turn = 0, place = 0;
#pragma unroll 1
    for (uint32_t first = blockIdx.x * split.at_once; first < w.row_tiles; first += row_step, turn ^= 1) {
        float acc[NB][4] = {}, *own = sums + turn * (GEMV_WARPS * NB * 8 * SUM_STRIDE);
        const bool has = first + own_tile < w.row_tiles;
#pragma unroll 1
        for (uint32_t c = first_c; c < end_c; c += CHUNK) {
            copy_wait<RING - 1>();
            __syncwarp();
            if (has) chunk_times<4, NB>(places + place * CHUNK_BYTES<4>, min(CHUNK, end_c - c), s, c, acc);
            __syncwarp(); /* all have taken it */
            fetch(place);
            place = place + 1 == RING ? 0 : place + 1;
        }
        put_sums<NB>(own, acc);
        __syncthreads(); /* one is enough: the sums have two places in turn */
        each_sum<NB>(own, s, split, [&](uint32_t r, uint32_t q, float v) { done(r, first * TILE_OUT + q, v); });
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
        each_sum<NB>(own, s, {GEMV_WARPS, 1}, [&](uint32_t r, uint32_t q, float v) { done(r, row_tile * TILE_OUT + q, v); });
    }
}

template <int NB, bool FAST, typename Begin, typename Done>
__device__ __forceinline__ void row_tiles(const cuda_mat &w, const staged &s, uint32_t warps, uint8_t *ring, float *sums, Begin begin,
                                          Done done) {
    if constexpr (FAST)
        row_tiles_fast<NB>(w, s, {warps, GEMV_WARPS / warps}, ring, sums, begin, done);
    else
        row_tiles_any<NB>(w, s, sums, begin, done);
}

struct block_share { /* of shared memory: tiles on their way, sums, the input of a block of rows */
    staged x;
    uint8_t *ring;
    float *sums;
    uint32_t first_row;
};

template <int NB>
__device__ __forceinline__ block_share share_block(const cuda_mat &w, uint32_t rows, uint32_t block_rows, uint32_t parts) {
    extern __shared__ uint4 shared[];
    block_share b;
    b.first_row = blockIdx.y * block_rows;
    const uint32_t here = min(block_rows, rows - b.first_row);
    b.ring = reinterpret_cast<uint8_t *>(shared);
    float *sums = reinterpret_cast<float *>(b.ring + RING_BYTES);
    b.sums = sums;
    b.x = staged_at(sums + 2 * sums_bytes<NB>() / 4, w.col_tiles, here, parts);
    return b;
}

template <int NB, bool FAST, step_source SOURCE>
__global__ void __launch_bounds__(GEMV_THREADS)
    linear_kernel(const __grid_constant__ step_linear a, uint32_t block_rows, uint32_t parts, uint32_t warps) {
    const block_share b = share_block<NB>(a.w, a.rows, block_rows, parts);
    launch_dependents();
    prefetch_gain(a.in, a.w.cols);
    row_tiles<NB, FAST>(
        a.w, b.x, warps, b.ring, b.sums,
        [&] {
            wait_inputs();
            stage_input<SOURCE>(a.in, a.w.cols, a.w.col_tiles, b.first_row, b.x);
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

/* From the largest of each thread, of row threadIdx % rows of the block's rows, to the largest of all, in the block that comes last. */
template <uint32_t THREADS>
__device__ __forceinline__ void pick_largest(const step_head &a, uint32_t first_row, uint32_t rows, uint64_t best) {
    __shared__ uint64_t bests[THREADS];
    bests[threadIdx.x] = best;
    __syncthreads();
    const uint32_t r = threadIdx.x / WARP; /* a warp looks through one row's threads, every rows-th */
    if (r < rows) {
        best = 0;
        for (uint32_t i = threadIdx.x % WARP * rows + r; i < THREADS / rows * rows; i += WARP * rows) best = max_key(best, bests[i]);
        for (int step = WARP / 2; step; step /= 2) best = max_key(best, __shfl_xor_sync(0xFFFFFFFFu, best, step));
        if (threadIdx.x % WARP == 0) a.best[(size_t)(first_row + r) * STEP_HEAD_BLOCKS + blockIdx.x] = best;
    }
    if (!is_last_block(a.counter, gridDim.x * gridDim.y)) return;
    for (uint32_t row = threadIdx.x / WARP; row < a.wanted; row += THREADS / WARP) {
        uint64_t key = 0;
        for (uint32_t i = threadIdx.x % WARP; i < gridDim.x; i += WARP)
            key = max_key(key, __ldcg(a.best + (size_t)row * STEP_HEAD_BLOCKS + i));
        for (int step = WARP / 2; step; step /= 2) key = max_key(key, __shfl_xor_sync(0xFFFFFFFFu, key, step));
        if (threadIdx.x % WARP) continue;
        const int32_t id = key ? (int32_t)(0xFFFFFFFFu - (uint32_t)key) : -1;
        a.largest[a.batch.counts->largest_at + row] = id;
        for (uint32_t i = 0; i < a.batch.counts->samples; i++)
            if (a.batch.sample_of[i] == row) a.picked[i] = id;
    }
}

template <int NB, bool FAST>
__global__ void __launch_bounds__(GEMV_THREADS)
    head_kernel(const __grid_constant__ step_head a, uint32_t block_rows, uint32_t parts, uint32_t warps) {
    const block_share b = share_block<NB>(a.w, a.wanted, block_rows, parts);
    uint64_t best = 0; /* of this thread's row */
    const uint32_t tokens = a.batch.counts->tokens;
    launch_dependents();
    prefetch_gain(a.in, a.w.cols);
    row_tiles<NB, FAST>(
        a.w, b.x, warps, b.ring, b.sums,
        [&] {
            wait_inputs();
            stage_input<STEP_NORM>(a.in, a.w.cols, a.w.col_tiles, b.first_row, b.x);
            __syncthreads();
        },
        [&](uint32_t r, uint32_t o, float v) {
            if (o >= a.w.rows) return;
            v *= norm_factor(a.in, a.w.cols, b.x, r);
            a.logits[(size_t)(b.first_row + r) * a.vocabulary + o] = v;
            if (o < tokens) best = max_key(best, logit_key(v, o));
        });
    pick_largest<GEMV_THREADS>(a, b.first_row, b.x.rows, best);
}

/* ---- one row, fast: int_gemv.cuh ---- */

/* A warp takes one row tile of a block's one, or a few of several: all of them on their way before the wait. */
constexpr int INT_DEPTH_ONE = 1, INT_DEPTH = 3, INT_DEPTH_HEAD = 4, INT_BATCH = 8, INT_BATCH_HEAD = 16;

template <step_source SOURCE, int DEPTH>
__global__ void __launch_bounds__(INT_THREADS, 2) int_linear_kernel(const __grid_constant__ step_linear a, uint32_t per_block) {
    extern __shared__ uint4 shared[];
    launch_dependents();
    const uint32_t first = blockIdx.x * per_block, own = first * TILE_OUT + threadIdx.x;
    const bool adds = a.add && threadIdx.x < INT_BATCH * TILE_OUT && own < min((first + per_block) * TILE_OUT, a.w.rows);
    float *out = a.out + own;
    have(out);
    if (adds) touch(out);
    float before = 0; /* of the block's first row tiles: asked for together with the input */
    const auto begin = [&] {
        if (adds) before = __ldcg(out);
    };
    int_row_tiles<SOURCE, DEPTH, INT_BATCH>(a.w, a.in, first, min(first + per_block, a.w.row_tiles), reinterpret_cast<uint8_t *>(shared),
                                            begin, [&](uint32_t o, float v) {
                                                if (a.add) v += o < (first + INT_BATCH) * TILE_OUT ? before : out[o - own];
                                                out[o - own] = v;
                                            });
}

__global__ void __launch_bounds__(INT_THREADS, 1) int_head_kernel(const __grid_constant__ step_head a, uint32_t per_block) {
    extern __shared__ uint4 shared[];
    uint64_t best = 0;
    const uint32_t tokens = a.batch.counts->tokens, first = blockIdx.x * per_block;
    launch_dependents();
    int_row_tiles<STEP_NORM, INT_DEPTH_HEAD, INT_BATCH_HEAD>(
        a.w, a.in, first, min(first + per_block, a.w.row_tiles), reinterpret_cast<uint8_t *>(shared), [] {},
        [&](uint32_t o, float v) {
            a.logits[o] = v;
            if (o < tokens) best = max_key(best, logit_key(v, o));
        });
    pick_largest<INT_THREADS>(a, 0, 1, best);
}

/* ---- 2 to 8 rows, fast: int_rows.cuh ---- */

constexpr int ROWS_DEPTH = 2, ROWS_DEPTH_HEAD = 4;

template <step_source SOURCE, int NB>
__global__ void __launch_bounds__(INT_THREADS, 1) int_rows_kernel(const __grid_constant__ step_linear a, uint32_t per_block) {
    extern __shared__ uint4 shared[];
    launch_dependents();
    const uint32_t first = blockIdx.x * per_block, own = first * TILE_OUT + threadIdx.x / a.rows; /* this thread's first output */
    const bool adds = a.add && threadIdx.x < INT_THREADS / a.rows * a.rows && own < min((first + per_block) * TILE_OUT, a.w.rows);
    float *out = a.out + (size_t)(threadIdx.x % a.rows) * a.out_stride;
    float before = 0;
    const auto begin = [&] {
        if (adds) before = __ldcg(out + own);
    };
    int_rows_tiles<SOURCE, NB, ROWS_DEPTH>(a.w, a.in, a.rows, first, min(first + per_block, a.w.row_tiles),
                                           reinterpret_cast<uint8_t *>(shared), begin, [&](uint32_t, uint32_t o, float v) {
                                               if (a.add) v += o == own ? before : out[o];
                                               out[o] = v;
                                           });
}

template <int NB>
__global__ void __launch_bounds__(INT_THREADS, 1) int_rows_head_kernel(const __grid_constant__ step_head a, uint32_t per_block) {
    extern __shared__ uint4 shared[];
    uint64_t best = 0; /* of this thread's row */
    const uint32_t tokens = a.batch.counts->tokens, first = blockIdx.x * per_block;
    launch_dependents();
    int_rows_tiles<STEP_NORM, NB, ROWS_DEPTH_HEAD>(
        a.w, a.in, a.wanted, first, min(first + per_block, a.w.row_tiles), reinterpret_cast<uint8_t *>(shared), [] {},
        [&](uint32_t r, uint32_t o, float v) {
            a.logits[(size_t)r * a.vocabulary + o] = v;
            if (o < tokens) best = max_key(best, logit_key(v, o));
        });
    pick_largest<INT_THREADS>(a, 0, a.wanted, best);
}

/* Row tiles of a block so that the blocks fill the device once. */
static uint32_t int_per_block(const cuda_device *d, const cuda_mat &w) {
    return (w.row_tiles + d->multiprocessors - 1) / d->multiprocessors;
}

static uint32_t int_chunks(const cuda_mat &w) { return (w.col_tiles + CHUNK - 1) / CHUNK; }

/* What one of the kernels may need: a device that has less takes the general ones. */
static uint32_t int_most_bytes(void) {
    const uint32_t one = int_shared_bytes<INT_DEPTH_HEAD, INT_BATCH_HEAD>(INT_WARPS), rows = int_rows_bytes<2, ROWS_DEPTH>(INT_WARPS),
                   head = int_rows_bytes<2, ROWS_DEPTH_HEAD>(INT_WARPS / 2);
    return one > rows ? one > head ? one : head : rows > head ? rows : head;
}

static bool takes_int(const cuda_device *d, const cuda_mat &w, uint32_t rows) {
    return d->parts == 2 && rows <= STEP_ROWS && w.bits == 4 && w.subs == 1 && int_most_bytes() <= d->shared_bytes;
}

struct linear_shape {
    uint32_t warps, blocks;
    bool fast; /* the usual format */
};

static linear_shape shape_of(const cuda_device *d, const cuda_mat &w) {
    const uint32_t fit = d->multiprocessors * LINEAR_BLOCKS, most = fit < STEP_HEAD_BLOCKS ? fit : STEP_HEAD_BLOCKS;
    linear_shape s = {1, w.row_tiles < most ? w.row_tiles : most, w.bits == 4 && w.subs == 1};
    if (!s.fast) return s;
    while (s.warps < GEMV_WARPS && s.warps < w.col_tiles && w.row_tiles * s.warps < d->multiprocessors * GEMV_WARPS * 2) s.warps *= 2;
    const uint32_t at_once = GEMV_WARPS / s.warps, groups = (w.row_tiles + at_once - 1) / at_once;
    const uint32_t turns = (groups + most - 1) / most; /* each block the same number of groups, or one less */
    s.blocks = (groups + turns - 1) / turns;
    return s;
}

template <int NB> static uint32_t linear_shared(uint32_t col_tiles, uint32_t rows, uint32_t parts) {
    return RING_BYTES + 2 * sums_bytes<NB>() + staged_bytes(col_tiles, rows, parts);
}

} // namespace calla

using namespace calla;

template <int NB, step_source SOURCE>
static void run_linear(const cuda_device *d, const step_linear *a, uint32_t rows, bool early, cudaStream_t stream) {
    const linear_shape s = shape_of(d, a->w);
    const dim3 grid(s.blocks, (a->rows + rows - 1) / rows);
    launch(s.fast ? linear_kernel<NB, true, SOURCE> : linear_kernel<NB, false, SOURCE>, grid, GEMV_THREADS,
           linear_shared<NB>(a->w.col_tiles, rows, d->parts), early, stream, *a, rows, d->parts, s.warps);
}

template <int NB> static void run_linear_from(const cuda_device *d, const step_linear *a, uint32_t rows, bool early, cudaStream_t stream) {
    switch (a->in.source) {
    case STEP_PLAIN: run_linear<NB, STEP_PLAIN>(d, a, rows, early, stream); break;
    case STEP_NORM: run_linear<NB, STEP_NORM>(d, a, rows, early, stream); break;
    case STEP_GATED_NORM: run_linear<NB, STEP_GATED_NORM>(d, a, rows, early, stream); break;
    case STEP_GATED: run_linear<NB, STEP_GATED>(d, a, rows, early, stream); break;
    case STEP_HEADS: run_linear<NB, STEP_HEADS>(d, a, rows, early, stream); break;
    }
}

template <step_source SOURCE> static void run_int(const cuda_device *d, const step_linear *a, bool early, cudaStream_t stream) {
    const uint32_t per = int_per_block(d, a->w), chunks = int_chunks(a->w);
    const dim3 blocks((a->w.row_tiles + per - 1) / per);
    if (a->rows > 4)
        launch(int_rows_kernel<SOURCE, 2>, blocks, INT_THREADS, int_rows_bytes<2, ROWS_DEPTH>(chunks), early, stream, *a, per);
    else if (a->rows > 1)
        launch(int_rows_kernel<SOURCE, 1>, blocks, INT_THREADS, int_rows_bytes<1, ROWS_DEPTH>(chunks), early, stream, *a, per);
    else if (per == 1)
        launch(int_linear_kernel<SOURCE, INT_DEPTH_ONE>, blocks, INT_THREADS, int_shared_bytes<INT_DEPTH_ONE, INT_BATCH>(chunks), early,
               stream, *a, per);
    else
        launch(int_linear_kernel<SOURCE, INT_DEPTH>, blocks, INT_THREADS, int_shared_bytes<INT_DEPTH, INT_BATCH>(chunks), early, stream, *a,
               per);
}

void step_run_linear(const cuda_device *d, const step_linear *a, bool early, cudaStream_t stream) {
    const step_source from = a->in.source;
    if (takes_int(d, a->w, a->rows) && (from == STEP_PLAIN || from == STEP_NORM || from == STEP_HEADS)) {
        if (from == STEP_PLAIN) run_int<STEP_PLAIN>(d, a, early, stream);
        if (from == STEP_NORM) run_int<STEP_NORM>(d, a, early, stream);
        if (from == STEP_HEADS) run_int<STEP_HEADS>(d, a, early, stream);
        return;
    }
    const uint32_t rows = rows_per_block(d, a->w.col_tiles, a->rows);
    if (rows * d->parts <= 8)
        run_linear_from<1>(d, a, rows, early, stream);
    else
        run_linear_from<2>(d, a, rows, early, stream);
}

template <int NB> static void run_head(const cuda_device *d, const step_head *a, uint32_t rows, bool early, cudaStream_t stream) {
    const linear_shape s = shape_of(d, a->w);
    const dim3 grid(s.blocks, (a->wanted + rows - 1) / rows);
    launch(s.fast ? head_kernel<NB, true> : head_kernel<NB, false>, grid, GEMV_THREADS, linear_shared<NB>(a->w.col_tiles, rows, d->parts),
           early, stream, *a, rows, d->parts, s.warps);
}

static void run_int_head(const cuda_device *d, const step_head *a, bool early, cudaStream_t stream) {
    const uint32_t per = int_per_block(d, a->w), chunks = int_chunks(a->w);
    const dim3 blocks((a->w.row_tiles + per - 1) / per);
    if (a->wanted > 4)
        launch(int_rows_head_kernel<2>, blocks, INT_THREADS, int_rows_bytes<2, ROWS_DEPTH_HEAD>(chunks), early, stream, *a, per);
    else if (a->wanted > 1)
        launch(int_rows_head_kernel<1>, blocks, INT_THREADS, int_rows_bytes<1, ROWS_DEPTH_HEAD>(chunks), early, stream, *a, per);
    else
        launch(int_head_kernel, blocks, INT_THREADS, int_shared_bytes<INT_DEPTH_HEAD, INT_BATCH_HEAD>(chunks), early, stream, *a, per);
}

void step_run_head(const cuda_device *d, const step_head *a, bool early, cudaStream_t stream) {
    if (takes_int(d, a->w, a->wanted) && d->multiprocessors <= STEP_HEAD_BLOCKS && int_chunks(a->w) <= INT_WARPS / 2) {
        run_int_head(d, a, early, stream);
        return;
    }
    const uint32_t rows = rows_per_block(d, a->w.col_tiles, a->wanted);
    if (rows * d->parts <= 8)
        run_head<1>(d, a, rows, early, stream);
    else
        run_head<2>(d, a, rows, early, stream);
}

template <int NB, bool FAST> static cudaError_t allow_all(uint32_t bytes) {
    cudaError_t e = allow_shared(linear_kernel<NB, FAST, STEP_PLAIN>, bytes);
    if (!e) e = allow_shared(linear_kernel<NB, FAST, STEP_NORM>, bytes);
    if (!e) e = allow_shared(linear_kernel<NB, FAST, STEP_GATED_NORM>, bytes);
    if (!e) e = allow_shared(linear_kernel<NB, FAST, STEP_GATED>, bytes);
    if (!e) e = allow_shared(linear_kernel<NB, FAST, STEP_HEADS>, bytes);
    return e ? e : allow_shared(head_kernel<NB, FAST>, bytes);
}

template <step_source SOURCE> static cudaError_t allow_int(uint32_t bytes) {
    cudaError_t e = allow_shared(int_linear_kernel<SOURCE, INT_DEPTH_ONE>, bytes);
    if (!e) e = allow_shared(int_linear_kernel<SOURCE, INT_DEPTH>, bytes);
    if (!e) e = allow_shared(int_rows_kernel<SOURCE, 1>, bytes);
    return e ? e : allow_shared(int_rows_kernel<SOURCE, 2>, bytes);
}

cudaError_t linear_prepare(const cuda_device *d) {
    const uint32_t bytes = d->shared_bytes;
    cudaError_t e = allow_all<1, true>(bytes);
    if (int_most_bytes() <= bytes) {
        if (!e) e = allow_int<STEP_PLAIN>(bytes);
        if (!e) e = allow_int<STEP_NORM>(bytes);
        if (!e) e = allow_int<STEP_HEADS>(bytes);
        if (!e) e = allow_shared(int_head_kernel, bytes);
        if (!e) e = allow_shared(int_rows_head_kernel<1>, bytes);
        if (!e) e = allow_shared(int_rows_head_kernel<2>, bytes);
    }
    if (!e) e = allow_all<1, false>(d->shared_bytes);
    if (!e) e = allow_all<2, true>(d->shared_bytes);
    return e ? e : allow_all<2, false>(d->shared_bytes);
}

/* gemv.cuh: the core of every product of a few rows: staging of the input in shared memory, and tiles of weights times it.
 *
 * Weights are the A operand of mma.m16n8k16 (kernels.h has the layout), rows of the batch are columns of B.  A float input x enters as
 * two bf16 columns, bf16(x) and bf16 of the rest, 17 bits in all; or as three, which is all of a float.  Part p of row r of R is column
 * p·R + r.  What fits the 8 columns of one mma costs the same instructions (four rows of two parts, two rows of three); else two are used.
 *
 * A code c stands as 16 + c in bf16, which needs a shift and a three-way operation for two codes; the surplus 16 · Σx goes together with
 * the bias: Σ (s·c + b)·x = s · Σ (16 + c)·x + (b - 16·s) · Σx, where Σx is taken over the staged values of the group.  (128 + c would
 * spare a shift, but the sums that cancel then cost three bits.) */
#ifndef CALLA_BACKEND_CUDA_GEMV_CUH
#define CALLA_BACKEND_CUDA_GEMV_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t GEMV_WARPS = 8, GEMV_THREADS = GEMV_WARPS * WARP, TILE_OUT = 16, TILE_IN = 64;
constexpr uint32_t SUM_STRIDE = 20; /* floats from one column to the next in the block's sums: no two lanes meet in a bank */

/* The staged input: columns = parts · rows. */
struct staged {
    uint4 *x;       /* [columns][stride]: per k16 pair and t: b0, b1 of the even step, b0, b1 of the odd step */
    float *sum;     /* [columns][sums]: over 32 inputs each */
    float *squares; /* [rows][GEMV_WARPS] */
    uint32_t stride, sums, rows, parts, columns;
};

__host__ __device__ inline uint32_t staged_stride(uint32_t col_tiles) { return col_tiles * 8 + 4; }
/* Bytes of shared memory for `rows` rows of `parts` parts. */
__host__ __device__ inline uint32_t staged_bytes(uint32_t col_tiles, uint32_t rows, uint32_t parts) {
    return parts * rows * (staged_stride(col_tiles) * 16 + col_tiles * 2 * 4) + rows * GEMV_WARPS * 4;
}
template <int NB> __host__ __device__ constexpr uint32_t sums_bytes() { return GEMV_WARPS * NB * 8 * SUM_STRIDE * 4; }

__device__ inline staged staged_at(void *shared, uint32_t col_tiles, uint32_t rows, uint32_t parts) {
    staged s;
    s.x = static_cast<uint4 *>(shared);
    s.stride = staged_stride(col_tiles);
    s.sums = col_tiles * 2;
    s.rows = rows;
    s.parts = parts;
    s.columns = parts * rows;
    s.sum = reinterpret_cast<float *>(s.x + s.columns * s.stride);
    s.squares = s.sum + s.columns * s.sums;
    return s;
}

__device__ inline float2 load2(const float *p, uint32_t k, uint32_t cols) {
    return k < cols ? *reinterpret_cast<const float2 *>(p + k) : make_float2(0.0f, 0.0f);
}

/* A unit is inputs k, k + 1, k + 8, k + 9: what a lane's B registers hold.  Of row values and of what they are multiplied with. */
__device__ __forceinline__ float4 load_unit(const float *p, uint32_t k, uint32_t cols) {
    const float2 a = load2(p, k, cols), b = load2(p, k + 8, cols);
    return make_float4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ float4 times(const float4 &a, const float4 &b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float square_of(const float4 &v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

struct raw_unit {
    float4 x, gain, gate;
};

/* STEP_HEADS: of the head of value k. */
__device__ __forceinline__ float head_factor(const step_input &in, uint32_t row, uint32_t k, uint32_t cols) {
    const float4 s = __ldcg(reinterpret_cast<const float4 *>(in.squares) + row * (cols / GDN_HEAD_DIM) + k / GDN_HEAD_DIM);
    return rsqrtf((s.x + s.y + s.z + s.w) * (1.0f / GDN_HEAD_DIM) + in.eps);
}
static_assert(GDN_PARTS == 4, "head_factor reads four sums");

template <step_source SOURCE>
__device__ __forceinline__ void load_raw(const step_input &in, uint32_t row, uint32_t k, uint32_t cols, raw_unit &u) {
    u.x = load_unit(in.x + (size_t)row * in.x_stride, k, cols);
    if (SOURCE == STEP_NORM) u.gain = load_unit(in.gain, k, cols);
    if (SOURCE == STEP_GATED_NORM) u.gain = load_unit(in.gain, k % GDN_HEAD_DIM, GDN_HEAD_DIM);
    if (SOURCE == STEP_HEADS) u.gate.x = k < cols ? head_factor(in, row, k, cols) : 0.0f;
    if (SOURCE == STEP_GATED_NORM) u.gate = load_unit(in.gate + (size_t)row * in.gate_stride, k, cols);
    if (SOURCE == STEP_GATED)
        u.gate = load_unit(in.gate + (size_t)row * in.gate_stride, k / HEAD_DIM * 2 * HEAD_DIM + HEAD_DIM + k % HEAD_DIM,
                           k < cols ? UINT32_MAX : 0);
}

/* What the source asks for; of STEP_NORM the factor of the whole row is left out: norm_factor gives it later. */
template <step_source SOURCE> __device__ __forceinline__ float4 finish_unit(const step_input &in, const raw_unit &u, float &squares) {
    if (SOURCE == STEP_PLAIN) return u.x;
    if (SOURCE == STEP_HEADS) return times(u.x, make_float4(u.gate.x, u.gate.x, u.gate.x, u.gate.x));
    if (SOURCE == STEP_NORM) {
        squares += square_of(u.x);
        return times(u.x, u.gain);
    }
    if (SOURCE == STEP_GATED) return times(u.x, make_float4(sigmoid(u.gate.x), sigmoid(u.gate.y), sigmoid(u.gate.z), sigmoid(u.gate.w)));
    /* a head of 128 values is the 32 units of one warp */
    const float scale = rsqrtf(sum_lanes<32>(square_of(u.x)) * (1.0f / GDN_HEAD_DIM) + in.eps);
    const float4 z = make_float4(silu(u.gate.x) * scale, silu(u.gate.y) * scale, silu(u.gate.z) * scale, silu(u.gate.w) * scale);
    return times(times(u.x, u.gain), z);
}

/* Stages rows first_row … of the input; all GEMV_THREADS threads of the block call it, and meet before they use it. */
template <step_source SOURCE>
__device__ __forceinline__ void stage_input(const step_input &in, uint32_t cols, uint32_t col_tiles, uint32_t first_row, const staged &s) {
    constexpr uint32_t UNITS = 2; /* of a thread at a time: all on their way before the first is used */
    const uint32_t units = col_tiles * 16, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
    for (uint32_t r = 0; r < s.rows; r++) {
        const uint32_t row = in.row_of ? in.row_of[first_row + r] : first_row + r;
        float squares = 0;
#pragma unroll 1
        for (uint32_t begin = warp * WARP; begin < units; begin += UNITS * GEMV_THREADS) { /* the same for all lanes: they shuffle */
            raw_unit raw[UNITS];
#pragma unroll
            for (uint32_t i = 0; i < UNITS; i++) {
                const uint32_t u = begin + lane + i * GEMV_THREADS;
                load_raw<SOURCE>(in, row, u / 4 * 16 + 2 * (u % 4), cols, raw[i]);
            }
#pragma unroll
            for (uint32_t i = 0; i < UNITS; i++) {
                const uint32_t u = begin + lane + i * GEMV_THREADS, block = u / 4, at = ((block / 2) * 4 + u % 4) * 2 + block % 2;
                float4 v = finish_unit<SOURCE>(in, raw[i], squares);
#pragma unroll 1
                for (uint32_t column = r; column < s.columns; column += s.rows) {
                    const uint32_t a = bf16_pair(v.x, v.y), b = bf16_pair(v.z, v.w);
                    const float sum = sum_lanes<8>(bf16_low(a) + bf16_high(a) + bf16_low(b) + bf16_high(b));
                    v = make_float4(v.x - bf16_low(a), v.y - bf16_high(a), v.z - bf16_low(b), v.w - bf16_high(b));
                    if (u >= units) continue;
                    reinterpret_cast<uint2 *>(s.x + column * s.stride)[at] = make_uint2(a, b);
                    if (u % 8 == 0) s.sum[column * s.sums + u / 8] = sum;
                }
            }
        }
        if (SOURCE != STEP_NORM) continue;
        squares = sum_lanes<32>(squares);
        if (lane == 0) s.squares[r * GEMV_WARPS + warp] = squares;
    }
}

/* The gains come into L2 while the stage before ends. */
__device__ __forceinline__ void prefetch_gain(const step_input &in, uint32_t cols) {
    if (in.source == STEP_NORM && threadIdx.x * 32 < cols) prefetch_l2(in.gain + threadIdx.x * 32);
}

/* 1/rms of row r, after the block has met; 1 where the source is no norm. */
__device__ inline float norm_factor(const step_input &in, uint32_t cols, const staged &s, uint32_t r) {
    if (in.source != STEP_NORM) return 1.0f;
    float squares = 0;
#pragma unroll 4
    for (uint32_t w = 0; w < GEMV_WARPS; w++) squares += s.squares[r * GEMV_WARPS + w];
    return rsqrtf(squares / (float)cols + in.eps);
}

/* What one lane holds of a tile. */
template <int BITS, int SUBS> struct tile {
    uint4 code[BITS / 4];
    uint32_t scale[SUBS][2]; /* of outputs g and g + 8 */
};

template <int BITS, int SUBS> __device__ __forceinline__ void load_tile(const cuda_mat &w, size_t index, tile<BITS, SUBS> &t) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint4 *code = w.codes + index * (BITS * 8) + lane;
#pragma unroll
    for (int i = 0; i < BITS / 4; i++) t.code[i] = load_stream(code + i * 32);
    if (BITS == 16) return;
    const uint32_t *scale = w.scales + index * (SUBS * 16) + lane / 4;
#pragma unroll
    for (int i = 0; i < SUBS; i++) {
        t.scale[i][0] = load_stream(scale + i * 16);
        t.scale[i][1] = load_stream(scale + i * 16 + 8);
    }
}

/* Tiles on their way: a warp's own places in shared memory, each a chunk of neighbouring tiles, their codes and behind them their scales.
 * Neighbours, because memory gives long runs faster than many short ones; the scales of a tile alone would be 64 bytes. */
constexpr uint32_t CHUNK = 4;
template <int BITS> constexpr uint32_t CHUNK_BYTES = CHUNK * (BITS * 128 + 64);
constexpr uint32_t RING = 3; /* chunks of a warp */
constexpr uint32_t RING_BYTES = GEMV_WARPS * RING * CHUNK_BYTES<4>;

/* Tiles index … index + n - 1, at most CHUNK. */
template <int BITS> __device__ __forceinline__ void fetch_chunk(const cuda_mat &w, size_t index, uint32_t n, void *place) {
    const uint32_t lane = threadIdx.x % WARP;
    uint4 *to = static_cast<uint4 *>(place);
    const uint4 *code = w.codes + index * (BITS * 8) + lane;
#pragma unroll
    for (uint32_t i = 0; i < CHUNK * BITS / 4; i++)
        if (i < n * (BITS / 4)) copy_async(to + lane + i * 32, code + i * 32);
    if (lane < n * 4) copy_async(to + CHUNK * BITS * 8 + lane, w.scales + index * 16 + lane * 4);
}

template <int BITS> __device__ __forceinline__ void take_tile(const void *place, uint32_t i, tile<BITS, 1> &t) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint4 *from = static_cast<const uint4 *>(place);
#pragma unroll
    for (int j = 0; j < BITS / 4; j++) t.code[j] = from[i * (BITS * 8) + lane + j * 32];
    const uint32_t *scale = reinterpret_cast<const uint32_t *>(from + CHUNK * BITS * 8) + i * 16 + lane / 4;
    t.scale[0][0] = scale[0];
    t.scale[0][1] = scale[8];
}

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }

constexpr float SURPLUS = 16.0f;

/* Register n of an A fragment: 16 + c, twice, in bf16: the codes stand in the upper four of its seven bits. */
template <int N> __device__ __forceinline__ uint32_t codes_bf16(uint32_t word) {
    return ((N == 0 ? word << 3 : word >> (N == 0 ? 0 : 4 * N - 3)) & 0x00780078u) | 0x41804180u;
}

/* acc[block] += tile · staged input of its 64 inputs (col tile c). */
template <int BITS, int SUBS, int NB>
__device__ __forceinline__ void tile_times(const tile<BITS, SUBS> &w, const staged &s, uint32_t c, float (&acc)[NB][4]) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    constexpr int PAIRS = 2 / SUBS; /* pairs of k16 steps per scale */
#pragma unroll
    for (int sub = 0; sub < SUBS; sub++) {
        float low[NB][4] = {}, high[NB][4] = {};
#pragma unroll
        for (int p = sub * PAIRS; p < (sub + 1) * PAIRS; p++) {
            uint4 b[NB];
#pragma unroll
            for (int n = 0; n < NB; n++) {
                const uint32_t column = n * 8 + g;
                b[n] = make_uint4(0, 0, 0, 0);
                if (column < s.columns) b[n] = s.x[column * s.stride + c * 8 + p * 4 + t];
            }
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const int j = 2 * p + q;
                if (BITS == 16) {
                    const uint4 a = w.code[BITS == 16 ? j : 0];
#pragma unroll
                    for (int n = 0; n < NB; n++) mma_bf16(acc[n], a.x, a.y, a.z, a.w, q ? b[n].z : b[n].x, q ? b[n].w : b[n].y);
                    continue;
                }
                const uint32_t v = word_of(w.code[0], j);
                const uint32_t a0 = codes_bf16<0>(v), a1 = codes_bf16<1>(v), a2 = codes_bf16<2>(v), a3 = codes_bf16<3>(v);
#pragma unroll
                for (int n = 0; n < NB; n++) mma_bf16(low[n], a0, a1, a2, a3, q ? b[n].z : b[n].x, q ? b[n].w : b[n].y);
                if (BITS != 8) continue;
                const uint32_t u = word_of(w.code[BITS == 8 ? 1 : 0], j);
                const uint32_t c0 = codes_bf16<0>(u), c1 = codes_bf16<1>(u), c2 = codes_bf16<2>(u), c3 = codes_bf16<3>(u);
#pragma unroll
                for (int n = 0; n < NB; n++) mma_bf16(high[n], c0, c1, c2, c3, q ? b[n].z : b[n].x, q ? b[n].w : b[n].y);
            }
        }
        if (BITS == 16) continue;
        constexpr float surplus = BITS == 8 ? SURPLUS * 17.0f : SURPLUS;
        const float s0 = bf16_low(w.scale[sub][0]), s1 = bf16_low(w.scale[sub][1]);
        const float b0 = bf16_high(w.scale[sub][0]) - surplus * s0, b1 = bf16_high(w.scale[sub][1]) - surplus * s1;
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t column = n * 8 + 2 * t + i;
                float sum = 0;
                if (column < s.columns) {
                    const float *of = s.sum + column * s.sums + c * 2;
                    sum = SUBS == 2 ? of[sub] : of[0] + of[1];
                }
                const float d0 = BITS == 8 ? low[n][i] + 16.0f * high[n][i] : low[n][i];
                const float d1 = BITS == 8 ? low[n][i + 2] + 16.0f * high[n][i + 2] : low[n][i + 2];
                acc[n][i] += s0 * d0 + b0 * sum;
                acc[n][i + 2] += s1 * d1 + b1 * sum;
            }
    }
}

/* A warp's sums of a tile of 16 outputs into its place of the block's sums. */
template <int NB> __device__ __forceinline__ void put_sums(float *sums, const float (&acc)[NB][4]) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, warp = threadIdx.x / WARP;
    float *own = sums + warp * (NB * 8 * SUM_STRIDE);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[(n * 8 + 2 * t + i % 2) * SUM_STRIDE + g + 8 * (i / 2)] = acc[n][i];
}

/* Output o of row r of `rows`: over `warps` warps and all parts. */
template <int NB>
__device__ __forceinline__ float take_sum(const float *sums, uint32_t warps, uint32_t rows, uint32_t parts, uint32_t r, uint32_t o) {
    float total = 0;
#pragma unroll 1
    for (uint32_t p = parts; p-- > 0;) { /* the small ones first */
        const float *of = sums + (p * rows + r) * SUM_STRIDE + o;
        float sum = 0;
#pragma unroll 2
        for (uint32_t w = 0; w < warps; w++) sum += of[w * (NB * 8 * SUM_STRIDE)];
        total += sum;
    }
    return total;
}

/* A row tile (of matrix `which`) times the staged input, its inputs spread over the block's 8 warps: a warp's share of the sums. */
template <int BITS, int SUBS, int NB>
__device__ inline void row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const staged &s, float (&acc)[NB][4]) {
    const size_t first = ((size_t)which * w.row_tiles + row_tile) * w.col_tiles;
    constexpr int PER = 2;
    for (uint32_t c0 = threadIdx.x / WARP; c0 < w.col_tiles; c0 += GEMV_WARPS * PER) {
        tile<BITS, SUBS> t[PER];
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (c0 + GEMV_WARPS * i < w.col_tiles) load_tile(w, first + c0 + GEMV_WARPS * i, t[i]);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (c0 + GEMV_WARPS * i < w.col_tiles) tile_times<BITS, SUBS, NB>(t[i], s, c0 + GEMV_WARPS * i, acc);
    }
}

/* The same for any format; no part of the usual checkpoint's way. */
template <int NB>
__device__ __noinline__ void any_row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const staged &s,
                                                float (&acc)[NB][4]) {
    if (w.bits == 4 && w.subs == 1)
        row_tile_times<4, 1, NB>(w, which, row_tile, s, acc);
    else if (w.bits == 8 && w.subs == 1)
        row_tile_times<8, 1, NB>(w, which, row_tile, s, acc);
    else if (w.bits == 4)
        row_tile_times<4, 2, NB>(w, which, row_tile, s, acc);
    else if (w.bits == 8)
        row_tile_times<8, 2, NB>(w, which, row_tile, s, acc);
    else
        row_tile_times<16, 1, NB>(w, which, row_tile, s, acc);
}

/* acc += a chunk that has arrived · the staged inputs of its col tiles c …; all four at once, so that one's sums hide the other's waits. */
template <int BITS, int NB>
__device__ __forceinline__ void chunk_times(const void *place, uint32_t n, const staged &s, uint32_t c, float (&acc)[NB][4]) {
    if (n == CHUNK) {
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; i++) {
            tile<BITS, 1> t;
            take_tile<BITS>(place, i, t);
            tile_times<BITS, 1, NB>(t, s, c + i, acc);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        tile<BITS, 1> t;
        take_tile<BITS>(place, i, t);
        tile_times<BITS, 1, NB>(t, s, c + i, acc);
    }
}

/* A warp's share of a row tile, where that is one chunk: neighbouring tiles. */
struct tile_share {
    uint32_t c, n;

    template <int BITS> __device__ __forceinline__ static bool fits(const cuda_mat &w) {
        return w.bits == BITS && w.subs == 1 && w.col_tiles <= GEMV_WARPS * CHUNK;
    }
    __device__ __forceinline__ static tile_share of(const cuda_mat &w) {
        const uint32_t each = (w.col_tiles + GEMV_WARPS - 1) / GEMV_WARPS, c = threadIdx.x / WARP * each;
        return {c, c < w.col_tiles ? min(each, w.col_tiles - c) : 0};
    }
    template <int BITS> __device__ __forceinline__ void fetch(const cuda_mat &w, uint32_t which, uint32_t row_tile, void *place) const {
        if (n) fetch_chunk<BITS>(w, ((size_t)which * w.row_tiles + row_tile) * w.col_tiles + c, n, place);
    }
};

/* Rows of one block of rows, for a device that has shared_bytes per block: 16 columns at most. */
inline uint32_t rows_per_block(const cuda_device *d, uint32_t col_tiles, uint32_t rows) {
    const uint32_t most = 16 / d->parts < STEP_ROWS ? 16 / d->parts : STEP_ROWS;
    uint32_t n = rows < most ? rows : most;
    while (n > 1 && staged_bytes(col_tiles, n, d->parts) + 2 * sums_bytes<2>() + RING_BYTES > d->shared_bytes) n--;
    return n;
}

} // namespace calla

#endif

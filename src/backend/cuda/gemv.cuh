/* gemv.cuh: the core of every product of a few rows: staging of the input in shared memory, and tiles of weights times it.
 *
 * Weights are the A operand of mma.m16n8k16 (kernels.h has the layout), rows of the batch are columns of B.  A float input x enters as
 * two bf16 columns, hi = bf16(x) and lo = bf16(x - hi): up to 4 rows use the 8 columns of one mma (column r: hi of row r, column 4 + r:
 * lo of it), up to 8 rows two of them.  So one or four rows cost the same instructions.
 *
 * A code c stands as 128 + c in bf16, which needs one instruction for two codes; the surplus 128 · Σx goes together with the bias:
 * Σ (s·c + b)·x = s · Σ (128 + c)·x + (b - 128·s) · Σx, where Σx is taken over the staged values of the group. */
#ifndef CALLA_BACKEND_CUDA_GEMV_CUH
#define CALLA_BACKEND_CUDA_GEMV_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t GEMV_WARPS = 8, GEMV_THREADS = GEMV_WARPS * WARP, TILE_OUT = 16, TILE_IN = 64;
constexpr uint32_t SUM_STRIDE = 20; /* floats from one column to the next in the block's sums: no two lanes meet in a bank */

/* The staged input.  columns: hi and lo of each row. */
struct staged {
    uint4 *x;       /* [2·rows][stride]: per k16 pair and t: b0, b1 of the even step, b0, b1 of the odd step */
    float *sum;     /* [2·rows][sums]: over 32 inputs each */
    float *squares; /* [rows][GEMV_WARPS] */
    uint32_t stride, sums, rows;
};

__host__ __device__ inline uint32_t staged_stride(uint32_t col_tiles) { return col_tiles * 8 + 4; }
/* Bytes of shared memory for `rows` rows. */
__host__ __device__ inline uint32_t staged_bytes(uint32_t col_tiles, uint32_t rows) {
    return 2 * rows * (staged_stride(col_tiles) * 16 + col_tiles * 2 * 4) + rows * GEMV_WARPS * 4;
}
template <int NB> __host__ __device__ constexpr uint32_t sums_bytes() { return GEMV_WARPS * NB * 8 * SUM_STRIDE * 4; }

__device__ inline staged staged_at(void *shared, uint32_t col_tiles, uint32_t rows) {
    staged s;
    s.x = static_cast<uint4 *>(shared);
    s.stride = staged_stride(col_tiles);
    s.sums = col_tiles * 2;
    s.rows = rows;
    s.sum = reinterpret_cast<float *>(s.x + 2 * rows * s.stride);
    s.squares = s.sum + 2 * rows * s.sums;
    return s;
}

__device__ inline float2 load2(const float *p, uint32_t k, uint32_t cols) {
    return k < cols ? *reinterpret_cast<const float2 *>(p + k) : make_float2(0.0f, 0.0f);
}

/* The four values of a unit (inputs k, k+1, k+8, k+9) of row `row` of the input, after what the source asks for. */
__device__ inline float4 input_unit(const step_input &in, uint32_t row, uint32_t k, uint32_t cols, float &squares) {
    const float *x = in.x + (size_t)row * in.x_stride;
    float2 a = load2(x, k, cols), b = load2(x, k + 8, cols);
    if (in.source == STEP_PLAIN) return make_float4(a.x, a.y, b.x, b.y);
    const float square = a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y;
    if (in.source == STEP_NORM) {
        squares += square;
        const float2 g = load2(in.gain, k, cols), h = load2(in.gain, k + 8, cols);
        return make_float4(a.x * g.x, a.y * g.y, b.x * h.x, b.y * h.y);
    }
    const float *gate = in.gate + (size_t)row * in.gate_stride;
    if (in.source == STEP_GATED) {
        const uint32_t at = k / HEAD_DIM * 2 * HEAD_DIM + HEAD_DIM + k % HEAD_DIM;
        const float2 g = k < cols ? load2(gate, at, at + 1) : make_float2(0, 0),
                     h = k < cols ? load2(gate, at + 8, at + 9) : make_float2(0, 0);
        return make_float4(a.x * sigmoid(g.x), a.y * sigmoid(g.y), b.x * sigmoid(h.x), b.y * sigmoid(h.y));
    }
    /* a head of 128 values is the 32 units of one warp */
    const float scale = rsqrtf(sum_lanes<32>(square) * (1.0f / GDN_HEAD_DIM) + in.eps);
    const float2 z = load2(gate, k, cols), y = load2(gate, k + 8, cols);
    const float2 g = load2(in.gain, k % GDN_HEAD_DIM, GDN_HEAD_DIM), h = load2(in.gain, k % GDN_HEAD_DIM + 8, GDN_HEAD_DIM);
    return make_float4(a.x * scale * g.x * silu(z.x), a.y * scale * g.y * silu(z.y), b.x * scale * h.x * silu(y.x),
                       b.y * scale * h.y * silu(y.y));
}

/* Stages rows first_row … of the input; the block's threads all call it, and meet before they use it.  Of STEP_NORM the factor of the
 * whole row is left out: norm_factor gives it later. */
__device__ inline void stage_input(const step_input &in, uint32_t cols, uint32_t col_tiles, uint32_t first_row, const staged &s) {
    const uint32_t units = col_tiles * 16, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (uint32_t r = 0; r < s.rows; r++) {
        const uint32_t row = in.row_of ? in.row_of[first_row + r] : first_row + r;
        uint2 *hi = reinterpret_cast<uint2 *>(s.x + r * s.stride), *lo = reinterpret_cast<uint2 *>(s.x + (s.rows + r) * s.stride);
        float squares = 0;
        for (uint32_t begin = warp * WARP; begin < units; begin += blockDim.x) { /* the same for all lanes: they shuffle */
            const uint32_t u = begin + lane, block = u / 4, t = u % 4;
            const float4 v = input_unit(in, row, block * 16 + 2 * t, cols, squares);
            const uint32_t h0 = bf16_pair(v.x, v.y), h1 = bf16_pair(v.z, v.w);
            const uint32_t l0 = bf16_pair(v.x - bf16_low(h0), v.y - bf16_high(h0)), l1 = bf16_pair(v.z - bf16_low(h1), v.w - bf16_high(h1));
            const float sum_hi = sum_lanes<8>(bf16_low(h0) + bf16_high(h0) + bf16_low(h1) + bf16_high(h1));
            const float sum_lo = sum_lanes<8>(bf16_low(l0) + bf16_high(l0) + bf16_low(l1) + bf16_high(l1));
            if (u >= units) continue;
            const uint32_t at = ((block / 2) * 4 + t) * 2 + block % 2;
            hi[at] = make_uint2(h0, h1);
            lo[at] = make_uint2(l0, l1);
            if (u % 8 == 0) {
                s.sum[r * s.sums + u / 8] = sum_hi;
                s.sum[(s.rows + r) * s.sums + u / 8] = sum_lo;
            }
        }
        if (in.source != STEP_NORM) continue;
        squares = sum_lanes<32>(squares);
        if (lane == 0) s.squares[r * GEMV_WARPS + warp] = squares;
    }
}

/* 1/rms of row r, after the block has met; 1 where the source is no norm. */
__device__ inline float norm_factor(const step_input &in, uint32_t cols, const staged &s, uint32_t r) {
    if (in.source != STEP_NORM) return 1.0f;
    float squares = 0;
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

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }

__device__ __forceinline__ uint32_t codes_bf16(uint32_t word) { return (word & 0x000F000Fu) | 0x43004300u; /* 128 + c, twice */ }

/* Which staged column an mma column is: hi or lo of which row. */
template <int NB> __device__ __forceinline__ bool column_of(uint32_t rows, int block, uint32_t column, uint32_t *index) {
    const uint32_t row = NB == 1 ? column % 4 : column, part = NB == 1 ? column / 4 : block;
    *index = part * rows + row;
    return row < rows;
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
                uint32_t column;
                b[n] = make_uint4(0, 0, 0, 0);
                if (column_of<NB>(s.rows, n, g, &column)) b[n] = s.x[column * s.stride + c * 8 + p * 4 + t];
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
                const uint32_t a0 = codes_bf16(v), a1 = codes_bf16(v >> 4), a2 = codes_bf16(v >> 8), a3 = codes_bf16(v >> 12);
#pragma unroll
                for (int n = 0; n < NB; n++) mma_bf16(low[n], a0, a1, a2, a3, q ? b[n].z : b[n].x, q ? b[n].w : b[n].y);
                if (BITS != 8) continue;
                const uint32_t u = word_of(w.code[BITS == 8 ? 1 : 0], j);
                const uint32_t c0 = codes_bf16(u), c1 = codes_bf16(u >> 4), c2 = codes_bf16(u >> 8), c3 = codes_bf16(u >> 12);
#pragma unroll
                for (int n = 0; n < NB; n++) mma_bf16(high[n], c0, c1, c2, c3, q ? b[n].z : b[n].x, q ? b[n].w : b[n].y);
            }
        }
        if (BITS == 16) continue;
        constexpr float surplus = BITS == 8 ? 128.0f * 17.0f : 128.0f;
        const float s0 = bf16_low(w.scale[sub][0]), s1 = bf16_low(w.scale[sub][1]);
        const float b0 = bf16_high(w.scale[sub][0]) - surplus * s0, b1 = bf16_high(w.scale[sub][1]) - surplus * s1;
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t column;
                float sum = 0;
                if (column_of<NB>(s.rows, n, 2 * t + i, &column)) {
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

/* Output o of row r: over `warps` warps, hi and lo. */
template <int NB> __device__ __forceinline__ float take_sum(const float *sums, uint32_t warps, uint32_t r, uint32_t o) {
    float hi = 0, lo = 0;
    for (uint32_t w = 0; w < warps; w++) {
        const float *of = sums + w * (NB * 8 * SUM_STRIDE) + o;
        hi += of[r * SUM_STRIDE];
        lo += of[(r + (NB == 1 ? 4 : 8)) * SUM_STRIDE];
    }
    return hi + lo;
}

/* A row tile (of matrix `which`) times the staged input, its inputs spread over the block's 8 warps: a warp's share of the sums. */
template <int BITS, int SUBS, int NB>
__device__ inline void row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const staged &s, float (&acc)[NB][4]) {
    const size_t first = ((size_t)which * w.row_tiles + row_tile) * w.col_tiles;
    constexpr int PER = BITS == 4 ? 4 : 2;
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

/* The same for any format. */
template <int NB>
__device__ inline void any_row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const staged &s, float (&acc)[NB][4]) {
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

/* Rows of one block of rows, for a device that has shared_bytes per block. */
inline uint32_t rows_per_block(const cuda_device *d, uint32_t col_tiles, uint32_t rows) {
    uint32_t n = rows < STEP_ROWS ? rows : STEP_ROWS;
    while (n > 1 && staged_bytes(col_tiles, n) + 2 * sums_bytes<2>() > d->shared_bytes) n--;
    return n;
}

} // namespace calla

#endif

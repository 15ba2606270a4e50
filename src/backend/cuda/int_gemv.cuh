/* int_gemv.cuh: products of one row with 4-bit weights in groups of 64, on the integer tensor cores: the core of decoding in fast precision.
 *
 * The input is cut into groups of 64, as the weights are, and each is taken as q·s with q of 16 bits: 256·hi + lo, two bytes, two columns
 * of B.  Codes enter mma.m16n8k32 as they are: a word of a tile (kernels.h) masked is four codes of output g, the other nibbles are those of
 * output g + 8, left in the upper half of their bytes (16 times as much, which the scale takes back).  So a tile costs eight masks and two
 * products; with all else the head executes 63 instructions of a warp for each, where bf16 fragments took 121.  Sums of a group are exact;
 * what is lost is the rounding of the input, at most 1.6e-5 of the largest of its group.
 *
 * The 8 columns of B serve four groups at a time: group i of a chunk of four tiles is nonzero in columns 2i and 2i + 1 only, so that one
 * accumulator takes the whole chunk, and lane (g, t) ends with the sums of outputs g and g + 8 over group t: it scales these, and no other
 * lane does.  A warp keeps the B registers of its chunk for all the row tiles that it takes. */
#ifndef CALLA_BACKEND_CUDA_INT_GEMV_CUH
#define CALLA_BACKEND_CUDA_INT_GEMV_CUH

#include "backend/cuda/gemv.cuh"

namespace calla {

constexpr uint32_t INT_BATCH = 8;                                /* row tiles of a block between two meetings */
constexpr uint32_t INT_CHUNKS = STEP_MAX_COLS / TILE_IN / CHUNK; /* at most */
constexpr float INT_LARGEST = 32512.0f;                          /* 127·256: the upper byte stays in range when the lower one is negative */

struct int_input {        /* a chunk of the input, as a lane holds it */
    uint32_t b[CHUNK][4]; /* of each tile: b0 and b1 of its two products; zero but in this lane's own */
    float scale, sum;     /* of group lane%4: s, and Σq */
};

/* d += A B in integers: A 16×32 unsigned, B 32×8 signed bytes. */
__device__ __forceinline__ void mma_int8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float max_or_nan(float a, float b) { /* an input that is no number must not vanish */
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

/* Takes this lane's 16 values of the chunk, adds their squares (each value is held by two lanes), and has them as bytes. */
template <step_source SOURCE>
__device__ __forceinline__ void take_input(const step_input &in, uint32_t row, uint32_t cols, uint32_t chunk, int_input &q,
                                           float &squares) {
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4, own = lane / 8, base = (chunk * CHUNK + own) * TILE_IN + 2 * t;
    const bool high = lane % 8 < 4; /* column 2·own */
    raw_unit raw[4];
    float4 v[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) load_raw<SOURCE>(in, row, base + 16 * j, cols, raw[j]);
    if constexpr (SOURCE == STEP_GATED_NORM) { /* a head of 128 values is two groups: 16 lanes, each value twice */
        float square = 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) square += square_of(raw[j].x);
        square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
        square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
        square += __shfl_xor_sync(0xFFFFFFFFu, square, 8);
        const float scale = rsqrtf(square * (1.0f / GDN_HEAD_DIM) + in.eps);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const float4 z = raw[j].gate;
            v[j] = times(times(raw[j].x, raw[j].gain),
                         make_float4(silu(z.x) * scale, silu(z.y) * scale, silu(z.z) * scale, silu(z.w) * scale));
        }
    } else {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) v[j] = finish_unit<SOURCE>(in, raw[j], squares);
    }
    float most = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        most = max_or_nan(most, max_or_nan(max_or_nan(fabsf(v[j].x), fabsf(v[j].y)), max_or_nan(fabsf(v[j].z), fabsf(v[j].w))));
    most = max_or_nan(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = max_or_nan(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    const float inverse = most > 1e-30f ? INT_LARGEST / most : 0.0f;
    /* added to 1.5·2^23, q stands in the lowest bits of the float; the upper byte is rounded by half of a lower one */
    const float magic = 12582912.0f + (high ? 128.0f : 0.0f);
    const uint32_t pick = high ? 0x0051 : 0x0040;
    uint32_t word[4];
    int sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) { /* bytes as a masked word of the tile has them: inputs 2t, 2t + 8, 2t + 1, 2t + 9 */
        const uint32_t x = __float_as_uint(fmaf(v[j].x, inverse, magic)), y = __float_as_uint(fmaf(v[j].y, inverse, magic)),
                       z = __float_as_uint(fmaf(v[j].z, inverse, magic)), w = __float_as_uint(fmaf(v[j].w, inverse, magic));
        word[j] = __byte_perm(__byte_perm(x, z, pick), __byte_perm(y, w, pick), 0x5410);
        sum = __dp4a((int)word[j], 0x01010101, sum);
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const int other = __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
    q.scale = __shfl_sync(0xFFFFFFFFu, most / INT_LARGEST, 8 * t);
    q.sum = __shfl_sync(0xFFFFFFFFu, (float)(high ? sum * 256 + other : other * 256 + sum), 8 * t);
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) q.b[i][j] = i == own ? word[j] : 0;
}

/* Outputs g and g + 8 of a row tile over the chunk in `place`, of n tiles: in lanes with t < 2, output g + 8·t. */
__device__ __forceinline__ float int_chunk_times(const void *place, uint32_t n, const int_input &q) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint4 *codes = static_cast<const uint4 *>(place) + lane;
    int even[4] = {}, odd[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++) {
        if (i >= n) break;
        const uint4 c = codes[i * WARP];
        constexpr uint32_t LOW = 0x0F0F0F0Fu, HIGH = 0xF0F0F0F0u;
        mma_int8(even, c.x & LOW, c.x & HIGH, c.y & LOW, c.y & HIGH, q.b[i][0], q.b[i][1]);
        mma_int8(odd, c.z & LOW, c.z & HIGH, c.w & LOW, c.w & HIGH, q.b[i][2], q.b[i][3]);
    }
    float upper = 0, lower = 0; /* outputs g, g + 8 */
    if (t < n) {
        const uint32_t *scale = reinterpret_cast<const uint32_t *>(static_cast<const uint8_t *>(place) + CHUNK * 512) + t * 16 + g;
        const uint32_t s0 = scale[0], s1 = scale[8];
        const float d0 = (float)((even[0] + odd[0]) * 256 + even[1] + odd[1]), d1 = (float)((even[2] + odd[2]) * 256 + even[3] + odd[3]);
        upper = q.scale * (bf16_low(s0) * d0 + bf16_high(s0) * q.sum);
        lower = q.scale * (bf16_low(s1) * (d1 * 0.0625f) + bf16_high(s1) * q.sum);
    }
    const float give = t & 1 ? upper : lower;
    float keep = t & 1 ? lower : upper;
    keep += __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    return keep + __shfl_xor_sync(0xFFFFFFFFu, keep, 2);
}

struct int_share {
    float sums[2][INT_CHUNKS][INT_BATCH][TILE_OUT]; /* two in turn */
    float squares[INT_CHUNKS];
};

constexpr uint32_t int_ring_bytes(uint32_t depth) { return GEMV_WARPS * depth * CHUNK_BYTES<4>; }

/* Row tiles first … end - 1 of this block, DEPTH chunks of each warp on their way, the first of them before the block waits for its input.
 * Calls done(output, value) in the thread of each output; a value of STEP_NORM has its row's factor. */
template <step_source SOURCE, int DEPTH, typename Done>
__device__ __forceinline__ void int_row_tiles(const cuda_mat &w, const step_input &in, uint32_t first, uint32_t end, uint8_t *ring,
                                              int_share &h, Done done) {
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, chunks = (w.col_tiles + CHUNK - 1) / CHUNK;
    const uint32_t ways = chunks >= 8   ? 8
                          : chunks >= 4 ? 4
                          : chunks >= 2 ? 2
                                        : 1,
                   groups = GEMV_WARPS / ways, part = warp % ways, group = warp / ways;
    uint8_t *places = ring + warp * DEPTH * CHUNK_BYTES<4>;
    uint32_t batch = first, chunk = part, tile = group; /* of what is fetched next: in the order in which it is used */
    const auto fetch = [&](uint32_t place) {
        if (batch < end) {
            if (chunk < chunks && batch + tile < end)
                fetch_chunk<4>(w, (size_t)(batch + tile) * w.col_tiles + chunk * CHUNK, min(CHUNK, w.col_tiles - chunk * CHUNK),
                               places + place * CHUNK_BYTES<4>);
            tile += groups;
            if (tile >= INT_BATCH || batch + tile - group >= end) {
                tile = group, chunk += ways;
                if (chunk >= chunks) chunk = part, batch += INT_BATCH;
            }
        }
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < DEPTH; i++) fetch(i);
    wait_inputs();
    const uint32_t row = in.row_of ? in.row_of[0] : 0;
    int_input q;
    uint32_t place = 0, turn = 0;
#pragma unroll 1
    for (uint32_t b = first; b < end; b += INT_BATCH, turn ^= 1) {
#pragma unroll 1
        for (uint32_t c = part; c < chunks; c += ways) {
            if (b == first || chunks > ways) {
                float squares = 0;
                take_input<SOURCE>(in, row, w.cols, c, q, squares);
                if (SOURCE == STEP_NORM) {
                    squares = sum_lanes<32>(squares) * 0.5f;
                    if (lane == 0) h.squares[c] = squares; /* of all groups of warps the same */
                }
            }
            const uint32_t n = min(CHUNK, w.col_tiles - c * CHUNK);
#pragma unroll 1
            for (uint32_t i = group; i < INT_BATCH && b + i - group < end; i += groups) {
                copy_wait<DEPTH - 1>();
                __syncwarp();
                const float v = int_chunk_times(places + place * CHUNK_BYTES<4>, n, q);
                if (lane % 4 < 2 && b + i < end) h.sums[turn][c][i][lane / 4 + 8 * (lane % 4)] = v;
                __syncwarp(); /* all have taken it */
                fetch(place);
                place = place + 1 == DEPTH ? 0 : place + 1;
            }
        }
        __syncthreads();
        const uint32_t o = threadIdx.x;
        if (o >= INT_BATCH * TILE_OUT || b * TILE_OUT + o >= min(end * TILE_OUT, w.rows)) continue;
        float factor = 1, sum = 0;
        if (SOURCE == STEP_NORM) {
            float squares = 0;
            for (uint32_t c = 0; c < chunks; c++) squares += h.squares[c];
            factor = rsqrtf(squares / (float)w.cols + in.eps);
        }
        for (uint32_t c = 0; c < chunks; c++) sum += h.sums[turn][c][o / TILE_OUT][o % TILE_OUT];
        done(b * TILE_OUT + o, sum * factor);
    }
}

} // namespace calla

#endif

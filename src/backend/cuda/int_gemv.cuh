/* int_gemv.cuh: products of one row with 4-bit weights in groups of 64, on the integer tensor cores: the core of decoding in fast precision.
 *
 * The input is cut into groups of 64, as the weights are, and each is taken as q·s with q of 16 bits: 256·hi + lo, two bytes, two columns
 * of B.  Codes enter mma.m16n8k32 as they are: a word of a tile (kernels.h) masked is four codes of output g, the other nibbles are those of
 * output g + 8, left in the upper half of their bytes (16 times as much, which the scale takes back).  So a tile costs eight masks and two
 * products.  Sums of a group are exact; what is lost is the rounding of the input, at most 1.6e-5 of the largest of its group.  Codes of 8
 * bits are two tiles of 4 (kernels.h), the upper one 16 times as much.
 *
 * The 8 columns of B serve four groups at a time: group i of a chunk of four tiles is nonzero in columns 2i and 2i + 1 only, so that one
 * accumulator takes the whole chunk, and lane (g, t) ends with the sums of outputs g and g + 8 over group t: it scales these, and no other
 * lane does.  A warp has one chunk of the input, whose B registers it keeps for all the row tiles that it takes.
 *
 * A stage is short: what a warp does between its inputs' arrival and the end is what the stage takes, at seven or eight cycles an
 * instruction.  So every value of the input is taken by one lane of a block, and all that does not depend on it comes before the wait. */
#ifndef CALLA_BACKEND_CUDA_INT_GEMV_CUH
#define CALLA_BACKEND_CUDA_INT_GEMV_CUH

#include "backend/cuda/gemv.cuh"

namespace calla {

constexpr uint32_t INT_WARPS = 16, INT_THREADS = INT_WARPS * WARP;
constexpr uint32_t CHUNK_IN = CHUNK * TILE_IN;
static_assert(STEP_MAX_COLS <= INT_WARPS * CHUNK_IN, "a warp has at most one chunk");
constexpr float INT_LARGEST = 32512.0f; /* 127·256: the upper byte stays in range when the lower one is negative */

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

/* Lane (tile, half, t) = (lane/8, lane/4%2, lane%4) takes the units of k16 steps 2·half and 2·half + 1 of its tile of the chunk. */
__device__ __forceinline__ uint32_t own_input(uint32_t chunk) {
    const uint32_t lane = threadIdx.x % WARP;
    return chunk * CHUNK_IN + lane / 8 * TILE_IN + lane / 4 % 2 * 32 + lane % 4 * 2;
}

/* From L2: what another multiprocessor wrote may stand in L1 as it was before. */
__device__ __forceinline__ float4 load_unit_l2(const float *p, uint32_t k, uint32_t cols) {
    if (k >= cols) return make_float4(0.0f, 0.0f, 0.0f, 0.0f); /* cols is a multiple of 32, a unit lies within 16 */
    const float2 a = __ldcg(reinterpret_cast<const float2 *>(p + k)), b = __ldcg(reinterpret_cast<const float2 *>(p + k + 8));
    return make_float4(a.x, a.y, b.x, b.y);
}

/* The gains of this lane's values, which no kernel writes. */
template <step_source SOURCE>
__device__ __forceinline__ void take_gain(const step_input &in, uint32_t cols, uint32_t chunk, float4 (&gain)[2]) {
    if constexpr (SOURCE == STEP_NORM)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) gain[i] = load_unit(in.gain, own_input(chunk) + 16 * i, cols);
}

struct int_words { /* a lane's part of a chunk: of its tile the upper (lane%8 < 4) or the lower bytes, for the tile's four k16 steps */
    uint32_t word[4];
    float scale; /* of the tile's group: s, */
    int sum;     /* Σq */
};

/* Which half of the bytes a lane has in the end. */
__device__ __forceinline__ bool has_lower(void) { return threadIdx.x / 4 % 2; }

/* Takes a chunk of a row and has it as bytes; adds the squares of this lane's values. */
template <step_source SOURCE>
__device__ __forceinline__ int_words take_words(const step_input &in, uint32_t row, uint32_t cols, uint32_t chunk, const float4 (&gain)[2],
                                                float &squares) {
    const uint32_t k = own_input(chunk);
    const bool lower = has_lower();
    float4 v[2];
    float factor = 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) v[i] = load_unit_l2(in.x + (size_t)row * in.x_stride, k + 16 * i, cols);
    if (SOURCE == STEP_HEADS && k < cols) factor = head_factor(in, row, k, cols);
    if constexpr (SOURCE == STEP_NORM)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            squares += square_of(v[i]);
            v[i] = times(v[i], gain[i]);
        }
    float most = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        most = max_or_nan(most, max_or_nan(max_or_nan(fabsf(v[i].x), fabsf(v[i].y)), max_or_nan(fabsf(v[i].z), fabsf(v[i].w))));
#pragma unroll
    for (uint32_t step = 1; step < 8; step *= 2) most = max_or_nan(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    const float inverse = most > 1e-30f ? INT_LARGEST / most : 0.0f;
    constexpr float MAGIC = 12582912.0f; /* 1.5·2^23: added to it, q stands in the lowest bits of the float */
    uint32_t high[2], low[2];
    int_words out;
    out.sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) { /* bytes as a masked word of the tile has them: inputs 2t, 2t + 8, 2t + 1, 2t + 9 */
        const uint32_t x = __float_as_uint(fmaf(v[i].x, inverse, MAGIC)), y = __float_as_uint(fmaf(v[i].y, inverse, MAGIC)),
                       z = __float_as_uint(fmaf(v[i].z, inverse, MAGIC)), w = __float_as_uint(fmaf(v[i].w, inverse, MAGIC));
        /* the lower byte is signed: half of an upper one goes on top */
        high[i] = __byte_perm(__byte_perm(x + 128, z + 128, 0x0051), __byte_perm(y + 128, w + 128, 0x0051), 0x5410);
        low[i] = __byte_perm(__byte_perm(x, z, 0x0040), __byte_perm(y, w, 0x0040), 0x5410);
        out.sum += __dp4a((int)high[i], 0x01010101, 0) * 256 + __dp4a((int)low[i], 0x01010101, 0);
    }
    /* the two lanes of half steps give each other what the other holds */
    const uint32_t first = __shfl_xor_sync(0xFFFFFFFFu, lower ? high[0] : low[0], 4),
                   second = __shfl_xor_sync(0xFFFFFFFFu, lower ? high[1] : low[1], 4);
    out.word[0] = lower ? first : high[0], out.word[1] = lower ? second : high[1];
    out.word[2] = lower ? low[0] : first, out.word[3] = lower ? low[1] : second;
#pragma unroll
    for (uint32_t step = 1; step < 8; step *= 2) out.sum += __shfl_xor_sync(0xFFFFFFFFu, out.sum, step);
    out.scale = most * (1.0f / INT_LARGEST) * factor;
    return out;
}

/* The same for the products of one row. */
template <step_source SOURCE>
__device__ __forceinline__ void take_input(const step_input &in, uint32_t row, uint32_t cols, uint32_t chunk, const float4 (&gain)[2],
                                           int_input &q, float &squares) {
    const uint32_t lane = threadIdx.x % WARP;
    const int_words own = take_words<SOURCE>(in, row, cols, chunk, gain, squares);
    q.scale = __shfl_sync(0xFFFFFFFFu, own.scale, 8 * (lane % 4));
    q.sum = (float)__shfl_sync(0xFFFFFFFFu, own.sum, 8 * (lane % 4));
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) q.b[i][j] = i == lane / 8 ? own.word[j] : 0;
}

/* What a lane holds of a chunk of 4-bit tiles; of 8 bits, of their lower or upper nibbles. */
struct int_chunk {
    uint4 code[CHUNK];
    uint32_t scale[2]; /* outputs g and g + 8, group lane%4 */
};

/* Σ code·q over group t: of outputs g and g + 8.  Tiles that are not there have inputs of zero. */
__device__ __forceinline__ float2 int_sums(const uint4 (&code)[CHUNK], const int_input &q) {
    constexpr uint32_t LOW = 0x0F0F0F0Fu, HIGH = 0xF0F0F0F0u;
    int even[4] = {}, odd[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++) {
        const uint4 c = code[i];
        mma_int8(even, c.x & LOW, c.x & HIGH, c.y & LOW, c.y & HIGH, q.b[i][0], q.b[i][1]);
        mma_int8(odd, c.z & LOW, c.z & HIGH, c.w & LOW, c.w & HIGH, q.b[i][2], q.b[i][3]);
    }
    return make_float2((float)((even[0] + odd[0]) * 256 + even[1] + odd[1]),
                       (float)((even[2] + odd[2]) * 256 + even[3] + odd[3]) * 0.0625f);
}

/* From the sums of outputs g and g + 8 over group t to those over the chunk: in lanes with t < 2, output g + 8·t. */
__device__ __forceinline__ float int_output(float2 sums, const uint32_t (&scale)[2], uint32_t n, const int_input &q) {
    const uint32_t t = threadIdx.x % 4;
    const bool has = t < n; /* else the scale may be anything */
    const float upper = has ? q.scale * (bf16_low(scale[0]) * sums.x + bf16_high(scale[0]) * q.sum) : 0.0f;
    const float lower = has ? q.scale * (bf16_low(scale[1]) * sums.y + bf16_high(scale[1]) * q.sum) : 0.0f;
    const float give = t & 1 ? upper : lower;
    float keep = t & 1 ? lower : upper;
    keep += __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    return keep + __shfl_xor_sync(0xFFFFFFFFu, keep, 2);
}

/* Tiles index … index + n - 1 of a matrix of BITS, their nibbles of `plane`, into registers. */
template <int BITS>
__device__ __forceinline__ void load_int_chunk(const cuda_mat &w, size_t index, uint32_t n, uint32_t plane, int_chunk &c) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint4 *code = w.codes + index * (BITS * 8) + plane * WARP + lane;
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++) c.code[i] = i < n ? load_stream(code + i * (BITS * 8)) : make_uint4(0, 0, 0, 0);
    c.scale[0] = c.scale[1] = 0;
    if (plane || lane % 4 >= n) return;
    const uint32_t *scale = w.scales + (index + lane % 4) * TILE_OUT + lane / 4;
    c.scale[0] = load_stream(scale), c.scale[1] = load_stream(scale + 8);
}

/* A chunk that fetch_chunk<4> has brought to shared memory. */
__device__ __forceinline__ void take_int_chunk(const void *place, int_chunk &c) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++) c.code[i] = static_cast<const uint4 *>(place)[i * WARP + lane];
    const uint32_t *scale =
        reinterpret_cast<const uint32_t *>(static_cast<const uint8_t *>(place) + CHUNK * 512) + lane % 4 * TILE_OUT + lane / 4;
    c.scale[0] = scale[0], c.scale[1] = scale[8];
}

/* ---- many row tiles of a block ---- */

/* Warps that share a row tile, one for each chunk. */
__host__ __device__ inline uint32_t int_ways(uint32_t chunks) { return chunks > 8 ? 16 : chunks > 4 ? 8 : chunks > 2 ? 4 : 2; }

/* DEPTH chunks of each warp on their way; sums of BATCH row tiles in two places in turn. */
template <int DEPTH, int BATCH> constexpr uint32_t int_shared_bytes(uint32_t chunks) {
    return INT_WARPS * DEPTH * CHUNK_BYTES<4> + 2 * chunks * BATCH * TILE_OUT * 4;
}

/* Row tiles first … end - 1 of this block; the first chunks come before the block waits for its input.  Calls begin() after the wait, done(output, value) in the
 * thread of each output; a value of STEP_NORM has its row's factor. */
template <step_source SOURCE, int DEPTH, int BATCH, typename Begin, typename Done>
__device__ __forceinline__ void int_row_tiles(const cuda_mat &w, const step_input &in, uint32_t first, uint32_t end, uint8_t *shared,
                                              Begin begin, Done done) {
    __shared__ float squares[INT_WARPS];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, chunks = (w.col_tiles + CHUNK - 1) / CHUNK;
    static_assert(INT_WARPS / 2 <= BATCH && BATCH * TILE_OUT <= INT_THREADS, "");
    const uint32_t ways = int_ways(chunks), groups = INT_WARPS / ways, chunk = warp % ways, group = warp / ways;
    const uint32_t n = chunk < chunks ? min(CHUNK, w.col_tiles - chunk * CHUNK) : 0;
    uint8_t *places = shared + warp * DEPTH * CHUNK_BYTES<4>;
    float *sums = reinterpret_cast<float *>(shared + INT_WARPS * DEPTH * CHUNK_BYTES<4>); /* [2][chunks][BATCH][TILE_OUT] */
    uint32_t ahead = first + group; /* what is fetched next: in the order in which it is used */
    const auto fetch = [&](uint32_t place) {
        if (n && ahead < end) fetch_chunk<4>(w, (size_t)ahead * w.col_tiles + chunk * CHUNK, n, places + place * CHUNK_BYTES<4>);
        ahead += groups;
        copy_commit(); /* also an empty one: groups are counted */
    };
#pragma unroll 1
    for (uint32_t i = 0; i < DEPTH; i++) fetch(i);
    float4 gain[2];
    take_gain<SOURCE>(in, w.cols, chunk, gain);
    wait_inputs();
    begin();
    int_input q;
    float square = 0;
    take_input<SOURCE>(in, in.row_of ? in.row_of[0] : 0, w.cols, chunk, gain, q, square);
    if (SOURCE == STEP_NORM) {
        square = sum_lanes<32>(square);
        if (lane == 0 && group == 0) squares[chunk] = square;
    }
    uint32_t place = 0, turn = 0;
#pragma unroll 1
    for (uint32_t b = first; b < end; b += BATCH, turn ^= 1) {
        float *own = sums + turn * chunks * (BATCH * TILE_OUT);
#pragma unroll 1
        for (uint32_t i = group; i < BATCH && b + i < end; i += groups) {
            int_chunk c;
            copy_wait<DEPTH - 1>();
            __syncwarp();
            take_int_chunk(places + place * CHUNK_BYTES<4>, c);
            const float v = int_output(int_sums(c.code, q), c.scale, n, q);
            if (lane % 4 < 2 && n) own[(chunk * BATCH + i) * TILE_OUT + lane / 4 + 8 * (lane % 4)] = v;
            __syncwarp(); /* all have taken it */
            fetch(place);
            place = place + 1 == DEPTH ? 0 : place + 1;
        }
        __syncthreads();
        const uint32_t o = threadIdx.x;
        if (o >= BATCH * TILE_OUT || b * TILE_OUT + o >= min(end * TILE_OUT, w.rows)) continue;
        float factor = 1, sum = 0;
        if (SOURCE == STEP_NORM) {
            float all = 0;
            for (uint32_t c = 0; c < chunks; c++) all += squares[c];
            factor = rsqrtf(all / (float)w.cols + in.eps);
        }
        for (uint32_t c = 0; c < chunks; c++) sum += own[c * (BATCH * TILE_OUT) + o];
        done(b * TILE_OUT + o, sum * factor);
    }
}

} // namespace calla

#endif

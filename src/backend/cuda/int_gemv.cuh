/* int_gemv.cuh: products of one row with 4-bit weights in groups of 64, on the integer tensor cores: the core of decoding in fast precision.
 *
 * The input is cut into groups of 64, as the weights are, and each is taken as q·s with q of 16 bits: 256·hi + lo, two bytes, two columns
 * of B.  Codes enter mma.m16n8k32 as they are: a word of a tile (kernels.h) masked is four codes of output g, the other nibbles are those of
 * output g + 8, left in the upper half of their bytes (16 times as much, which the scale takes back).  So a tile costs eight masks and two
 * products.  Sums of a group are exact; what is lost is the rounding of the input, at most 1.6e-5 of the largest of its group.  Codes of 8
 * bits are two tiles of 4 (kernels.h), the upper one 16 times as much.
 *
 * The 8 columns of B serve four groups at a time: columns 2i and 2i + 1 have group i of a chunk of four tiles.  Each tile is multiplied with
 * all of them, and of tile i the columns of group i are kept: lane (g, t) takes the sums of outputs g and g + 8 over group t from tile t's,
 * and no other lane scales these.  A warp has one chunk of the input, whose B registers it keeps for all the row tiles that it takes.
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

struct int_input {    /* a chunk of the input, as a lane holds it */
    uint32_t word[4]; /* b0 and b1 of the two products of tile lane/8 */
    float scale, sum; /* of group lane%4: s, and Σq */
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

/* Where a lane's values of a chunk of a row stand, and what they are multiplied with: all that is there before the wait. */
template <step_source SOURCE> struct chunk_at {
    const float *x, *squares; /* of this lane's head */
    float4 gain[2];
    float eps;
    uint32_t has; /* units that lie within the row: 0, 1, 2 */
};

template <step_source SOURCE>
__device__ __forceinline__ chunk_at<SOURCE> find_chunk(const step_input &in, uint32_t row, uint32_t cols, uint32_t chunk) {
    const uint32_t k = own_input(chunk);
    chunk_at<SOURCE> at;
    at.has = k + 16 < cols ? 2 : k < cols; /* cols is a multiple of 32, a unit lies within 16 */
    at.x = in.x + (size_t)row * in.x_stride + (at.has ? k : 0);
    at.eps = in.eps;
    if (SOURCE == STEP_HEADS) {
        at.squares = in.squares + ((size_t)row * (cols / GDN_HEAD_DIM) + (at.has ? k / GDN_HEAD_DIM : 0)) * GDN_PARTS;
        have(at.squares), have(at.eps);
    }
    if constexpr (SOURCE == STEP_NORM)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) at.gain[i] = load_unit(in.gain, k + 16 * i, cols);
    have(at.x), have(at.has);
    return at;
}

struct chunk_values { /* as they were read */
    float4 v[2], squares;
};

/* From L2: what another multiprocessor wrote may stand in L1 as it was before. */
template <step_source SOURCE> __device__ __forceinline__ void load_chunk(const chunk_at<SOURCE> &at, chunk_values &c) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        c.v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i >= at.has) continue;
        const float2 a = __ldcg(reinterpret_cast<const float2 *>(at.x + 16 * i)),
                     b = __ldcg(reinterpret_cast<const float2 *>(at.x + 16 * i + 8));
        c.v[i] = make_float4(a.x, a.y, b.x, b.y);
    }
    if (SOURCE == STEP_HEADS) c.squares = __ldcg(reinterpret_cast<const float4 *>(at.squares));
}

struct int_words { /* a lane's part of a chunk: of its tile the upper (lane%8 < 4) or the lower bytes, for the tile's four k16 steps */
    uint32_t word[4];
    float scale; /* of the tile's group: s */
};

/* Which half of the bytes a lane has in the end. */
__device__ __forceinline__ bool has_lower(void) { return threadIdx.x / 4 % 2; }

/* Has a chunk of a row as bytes; adds the squares of this lane's values. */
template <step_source SOURCE>
__device__ __forceinline__ int_words make_words(const chunk_at<SOURCE> &at, const chunk_values &c, float &squares) {
    const bool lower = has_lower();
    float4 v[2] = {c.v[0], c.v[1]};
    float factor = 1.0f;
    if (SOURCE == STEP_HEADS) factor = rsqrtf((c.squares.x + c.squares.y + c.squares.z + c.squares.w) * (1.0f / GDN_HEAD_DIM) + at.eps);
    if constexpr (SOURCE == STEP_NORM)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            squares += square_of(v[i]);
            v[i] = times(v[i], at.gain[i]);
        }
    float most = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        most = max_or_nan(most, max_or_nan(max_or_nan(fabsf(v[i].x), fabsf(v[i].y)), max_or_nan(fabsf(v[i].z), fabsf(v[i].w))));
#pragma unroll
    for (uint32_t step = 1; step < 8; step *= 2) most = max_or_nan(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    const float inverse = most > 1e-30f ? __fdividef(INT_LARGEST, most) : 0.0f;
    constexpr float MAGIC = 12582912.0f; /* 1.5·2^23: added to it, q stands in the lowest bits of the float */
    uint32_t high[2], low[2];
    int_words out;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) { /* bytes as a masked word of the tile has them: inputs 2t, 2t + 8, 2t + 1, 2t + 9 */
        const uint32_t x = __float_as_uint(fmaf(v[i].x, inverse, MAGIC)), y = __float_as_uint(fmaf(v[i].y, inverse, MAGIC)),
                       z = __float_as_uint(fmaf(v[i].z, inverse, MAGIC)), w = __float_as_uint(fmaf(v[i].w, inverse, MAGIC));
        /* the lower byte is signed: half of an upper one goes on top */
        high[i] = __byte_perm(__byte_perm(x + 128, z + 128, 0x0051), __byte_perm(y + 128, w + 128, 0x0051), 0x5410);
        low[i] = __byte_perm(__byte_perm(x, z, 0x0040), __byte_perm(y, w, 0x0040), 0x5410);
    }
    /* the two lanes of half steps give each other what the other holds */
    const uint32_t first = __shfl_xor_sync(0xFFFFFFFFu, lower ? high[0] : low[0], 4),
                   second = __shfl_xor_sync(0xFFFFFFFFu, lower ? high[1] : low[1], 4);
    out.word[0] = lower ? first : high[0], out.word[1] = lower ? second : high[1];
    out.word[2] = lower ? low[0] : first, out.word[3] = lower ? low[1] : second;
    out.scale = most * (1.0f / INT_LARGEST) * factor;
    return out;
}

/* Σq of group lane%4 of a chunk whose words the lanes hold: what weights of one give. */
__device__ __forceinline__ float sum_words(const uint32_t (&word)[4]) {
    constexpr uint32_t ONES = 0x01010101u;
    int d[4] = {};
    mma_int8(d, ONES, ONES, ONES, ONES, word[0], word[1]);
    mma_int8(d, ONES, ONES, ONES, ONES, word[2], word[3]);
    return (float)(d[0] * 256 + d[1]);
}

/* The products of one row have a chunk of it in registers. */
__device__ __forceinline__ void spread_words(const int_words &own, int_input &q) {
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) q.word[j] = own.word[j];
    q.sum = sum_words(own.word);
    q.scale = __shfl_sync(0xFFFFFFFFu, own.scale, 8 * (threadIdx.x % 4));
}

template <step_source SOURCE> __device__ __forceinline__ void take_input(const chunk_at<SOURCE> &at, int_input &q, float &squares) {
    chunk_values c;
    load_chunk<SOURCE>(at, c);
    spread_words(make_words<SOURCE>(at, c, squares), q);
}

/* Σ of n values that stand `stride` apart, eight loads at once. */
__device__ __forceinline__ float sum_apart(const float *from, uint32_t n, uint32_t stride) {
    float sum = 0;
    uint32_t i = 0;
#pragma unroll 1
    for (; i + 8 <= n; i += 8) {
        float v[8];
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) v[j] = from[(i + j) * stride];
        sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
#pragma unroll 1
    for (; i < n; i++) sum += from[i * stride];
    return sum;
}

/* Σ code·q over group t: of outputs g and g + 8; code(i) is what this lane has of tile i.  Tiles that are not there have inputs of zero. */
template <typename Code> __device__ __forceinline__ float2 sum_codes(Code code, const int_input &q) {
    constexpr uint32_t LOW = 0x0F0F0F0Fu, HIGH = 0xF0F0F0F0u;
    const uint32_t t = threadIdx.x % 4;
    int own[4];
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i += 2) {
        const uint4 c = code(i), e = code(i + 1);
        int even[4] = {}, odd[4] = {};
        mma_int8(even, c.x & LOW, c.x & HIGH, c.y & LOW, c.y & HIGH, q.word[0], q.word[1]);
        mma_int8(odd, e.x & LOW, e.x & HIGH, e.y & LOW, e.y & HIGH, q.word[0], q.word[1]);
        mma_int8(even, c.z & LOW, c.z & HIGH, c.w & LOW, c.w & HIGH, q.word[2], q.word[3]);
        mma_int8(odd, e.z & LOW, e.z & HIGH, e.w & LOW, e.w & HIGH, q.word[2], q.word[3]);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const int d = t & 1 ? odd[j] : even[j];
            own[j] = i == 0 || t & 2 ? d : own[j];
        }
    }
    return make_float2((float)(own[0] * 256 + own[1]), (float)(own[2] * 256 + own[3]) * 0.0625f);
}
static_assert(CHUNK == 4, "a lane keeps one of four");

/* The same for a chunk that fetch_chunk<BITS> has brought; of 8 bits, for its lower (plane 0) or upper nibbles. */
template <int BITS> __device__ __forceinline__ float2 int_sums(const void *place, uint32_t plane, const int_input &q) {
    const uint4 *code = static_cast<const uint4 *>(place) + plane * WARP + threadIdx.x % WARP;
    return sum_codes([&](uint32_t i) { return code[i * (BITS * 8)]; }, q);
}

/* From the sums of outputs g and g + 8 over group t to those over the chunk of n tiles: in lanes with t < 2, output g + 8·t. */
__device__ __forceinline__ float scale_sums(float2 sums, uint32_t s0, uint32_t s1, uint32_t n, const int_input &q) {
    const uint32_t t = threadIdx.x % 4;
    const bool has = t < n; /* else the scale may be anything */
    const float upper = has ? q.scale * (bf16_low(s0) * sums.x + bf16_high(s0) * q.sum) : 0.0f;
    const float lower = has ? q.scale * (bf16_low(s1) * sums.y + bf16_high(s1) * q.sum) : 0.0f;
    const float give = t & 1 ? upper : lower;
    float keep = t & 1 ? lower : upper;
    keep += __shfl_xor_sync(0xFFFFFFFFu, give, 1);
    return keep + __shfl_xor_sync(0xFFFFFFFFu, keep, 2);
}

template <int BITS> __device__ __forceinline__ float int_output(float2 sums, const void *place, uint32_t n, const int_input &q) {
    const uint32_t *scale = reinterpret_cast<const uint32_t *>(static_cast<const uint8_t *>(place) + CHUNK * BITS * 128) +
                            threadIdx.x % 4 * TILE_OUT + threadIdx.x % WARP / 4;
    return scale_sums(sums, scale[0], scale[8], n, q);
}

/* ---- many row tiles of a block ---- */

/* Warps that share a row tile, one for each chunk. */
__host__ __device__ inline uint32_t int_ways(uint32_t chunks) { return chunks > 8 ? 16 : chunks > 4 ? 8 : chunks > 2 ? 4 : 2; }

/* DEPTH chunks of each warp on their way; sums of BATCH row tiles in two places in turn. */
template <int DEPTH, int BATCH> constexpr uint32_t int_shared_bytes(uint32_t chunks) {
    return INT_WARPS * DEPTH * CHUNK_BYTES<4> + 2 * chunks * BATCH * TILE_OUT * 4;
}

/* Row tiles first … end - 1 of this block; the first chunks come before the block waits for its input.  Calls begin() after the wait,
 * done(output, value) in the thread of each output; a value of STEP_NORM has its row's factor. */
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
    const chunk_at<SOURCE> at = find_chunk<SOURCE>(in, in.row_of ? in.row_of[0] : 0, w.cols, chunk);
    if (SOURCE == STEP_HEADS) touch(at.x), touch(at.squares);
    wait_inputs();
    int_input q;
    float square = 0;
    chunk_values values;
    load_chunk<SOURCE>(at, values);
    begin();
    spread_words(make_words<SOURCE>(at, values, square), q);
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
            if (!n) continue;
            const uint8_t *own_place = places + place * CHUNK_BYTES<4>;
            copy_wait<DEPTH - 1>();
            __syncwarp();
            const float v = int_output<4>(int_sums<4>(own_place, 0, q), own_place, n, q);
            if (lane % 4 < 2) own[(chunk * BATCH + i) * TILE_OUT + lane / 4 + 8 * (lane % 4)] = v;
            __syncwarp(); /* all have taken it */
            fetch(place);
            place = place + 1 == DEPTH ? 0 : place + 1;
        }
        __syncthreads();
        const uint32_t o = threadIdx.x;
        if (o >= BATCH * TILE_OUT || b * TILE_OUT + o >= min(end * TILE_OUT, w.rows)) continue;
        float factor = 1;
        if (SOURCE == STEP_NORM) factor = rsqrtf(sum_apart(squares, chunks, 1) / (float)w.cols + in.eps);
        const float sum = sum_apart(own + o, chunks, BATCH * TILE_OUT);
        done(b * TILE_OUT + o, sum * factor);
    }
}

} // namespace calla

#endif

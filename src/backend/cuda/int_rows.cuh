/* int_rows.cuh: the products of int_gemv.cuh for 2 to 8 rows: a column of B is the upper or the lower bytes of a row, so that four rows (NB
 * = 1) or eight (2) share the reading and unpacking of a tile; then each group's sums are scaled for themselves.  The rows' bytes stand in
 * shared memory, as B fragments. */
#ifndef CALLA_BACKEND_CUDA_INT_ROWS_CUH
#define CALLA_BACKEND_CUDA_INT_ROWS_CUH

#include "backend/cuda/int_gemv.cuh"

namespace calla {

/* Parts of a block's shared memory, behind each other. */
struct int_rows_share {
    uint8_t *places; /* of the warps: DEPTH chunks each */
    uint4 *b;        /* [tiles][NB][32]: words of the tile's four steps; lane (g, t): row 4·nb + g/2, its upper or lower bytes */
    float2 *group;   /* [tiles][4·NB rows]: scale, Σq */
    float *squares;  /* [4·NB rows][chunks] */
    float *sums;     /* [2][chunks][groups][4·NB rows][TILE_OUT] */
};

template <int NB, int DEPTH> __host__ __device__ inline uint32_t int_rows_bytes(uint32_t chunks) {
    const uint32_t tiles = chunks * CHUNK, groups = INT_WARPS / int_ways(chunks);
    return INT_WARPS * DEPTH * CHUNK_BYTES<4> + tiles * NB * (WARP * 16 + 4 * 8) + 4 * NB * chunks * 4 +
           2 * chunks * groups * 4 * NB * TILE_OUT * 4;
}

template <int NB, int DEPTH> __device__ __forceinline__ int_rows_share int_rows_at(uint8_t *shared, uint32_t chunks) {
    int_rows_share h;
    h.places = shared;
    h.b = reinterpret_cast<uint4 *>(shared + INT_WARPS * DEPTH * CHUNK_BYTES<4>);
    h.group = reinterpret_cast<float2 *>(h.b + chunks * CHUNK * NB * WARP);
    h.squares = reinterpret_cast<float *>(h.group + chunks * CHUNK * 4 * NB);
    h.sums = h.squares + 4 * NB * chunks;
    return h;
}

/* All rows of the block: a warp takes its chunk of every groups-th, STAGED of them at once: all, but of a normed input, whose warps share
 * the rows. */
template <step_source SOURCE, int NB>
__device__ __forceinline__ void stage_rows(const step_input &in, uint32_t cols, uint32_t rows, uint32_t chunks, uint32_t chunk,
                                           uint32_t group, uint32_t groups, const int_rows_share &h) {
    constexpr uint32_t STAGED = SOURCE == STEP_NORM ? 4 : 4 * NB;
    if (chunk >= chunks) return;
    const uint32_t lane = threadIdx.x % WARP, tile = chunk * CHUNK + lane / 8;
    chunk_at<SOURCE> at = find_chunk<SOURCE>(in, 0, cols, chunk);
    const float *const x = at.x, *const squares_at = at.squares;
    const size_t heads = (size_t)(cols / GDN_HEAD_DIM) * GDN_PARTS;
    wait_inputs();
#pragma unroll 1
    for (uint32_t first = group; first < rows; first += groups * STAGED) {
        chunk_values values[STAGED];
#pragma unroll
        for (uint32_t i = 0; i < STAGED; i++) {
            const uint32_t r = min(first + i * groups, rows - 1), row = in.row_of ? in.row_of[r] : r;
            at.x = x + (size_t)row * in.x_stride;
            if (SOURCE == STEP_HEADS) at.squares = squares_at + row * heads;
            load_chunk<SOURCE>(at, values[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < STAGED; i++) {
            const uint32_t r = first + i * groups;
            if (r >= rows) break;
            float squares = 0;
            const int_words own = make_words<SOURCE>(at, values[i], squares);
            h.b[(tile * NB + r / 4) * WARP + (r % 4 * 2 + has_lower()) * 4 + lane % 4] =
                make_uint4(own.word[0], own.word[1], own.word[2], own.word[3]);
            const float scale = __shfl_sync(0xFFFFFFFFu, own.scale, 8 * (lane % 4)), sum = sum_words(own.word);
            if (lane < CHUNK) h.group[(chunk * CHUNK + lane) * 4 * NB + r] = make_float2(scale, sum);
            if (SOURCE != STEP_NORM) continue;
            squares = sum_lanes<32>(squares);
            if (lane == 0) h.squares[r * chunks + chunk] = squares;
        }
    }
}

/* acc[nb] += a chunk of n tiles · the rows: outputs g and g + 8 of row 4·nb + t. */
template <int NB>
__device__ __forceinline__ void rows_chunk_times(const void *place, uint32_t chunk, uint32_t n, const int_rows_share &h,
                                                 float2 (&acc)[NB]) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint4 *codes = static_cast<const uint4 *>(place) + lane;
    const uint32_t *scales = reinterpret_cast<const uint32_t *>(static_cast<const uint8_t *>(place) + CHUNK * 512) + g;
    constexpr uint32_t LOW = 0x0F0F0F0Fu, HIGH = 0xF0F0F0F0u;
#pragma unroll
    for (uint32_t i = 0; i < CHUNK; i++) {
        if (i >= n) break; /* what stands there has no scale */
        const uint32_t tile = chunk * CHUNK + i, s0 = scales[i * TILE_OUT], s1 = scales[i * TILE_OUT + 8];
        const uint4 c = codes[i * WARP];
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
            const uint4 b = h.b[(tile * NB + nb) * WARP + lane];
            const float2 q = h.group[tile * 4 * NB + nb * 4 + t];
            int d[4] = {};
            mma_int8(d, c.x & LOW, c.x & HIGH, c.y & LOW, c.y & HIGH, b.x, b.y);
            mma_int8(d, c.z & LOW, c.z & HIGH, c.w & LOW, c.w & HIGH, b.z, b.w);
            const float d0 = (float)(d[0] * 256 + d[1]), d1 = (float)(d[2] * 256 + d[3]) * 0.0625f;
            acc[nb].x += q.x * (bf16_low(s0) * d0 + bf16_high(s0) * q.y);
            acc[nb].y += q.x * (bf16_low(s1) * d1 + bf16_high(s1) * q.y);
        }
    }
}

/* As int_row_tiles: done(r, output, value) in a thread of row r = threadIdx % rows, whose first output of the block is threadIdx / rows. */
template <step_source SOURCE, int NB, int DEPTH, typename Begin, typename Done>
__device__ __forceinline__ void int_rows_tiles(const cuda_mat &w, const step_input &in, uint32_t rows, uint32_t first, uint32_t end,
                                               uint8_t *shared, Begin begin, Done done) {
    constexpr uint32_t ROWS = 4 * NB;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, chunks = (w.col_tiles + CHUNK - 1) / CHUNK;
    const uint32_t ways = int_ways(chunks), groups = INT_WARPS / ways, chunk = warp % ways, group = warp / ways;
    const uint32_t n = chunk < chunks ? min(CHUNK, w.col_tiles - chunk * CHUNK) : 0;
    const int_rows_share h = int_rows_at<NB, DEPTH>(shared, chunks);
    uint8_t *places = h.places + warp * DEPTH * CHUNK_BYTES<4>;
    uint32_t ahead = first + group;
    const auto fetch = [&](uint32_t place) {
        if (n && ahead < end) fetch_chunk<4>(w, (size_t)ahead * w.col_tiles + chunk * CHUNK, n, places + place * CHUNK_BYTES<4>);
        ahead += groups;
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < DEPTH; i++) fetch(i);
    stage_rows<SOURCE, NB>(in, w.cols, rows, chunks, chunk, group, groups, h);
    wait_inputs(); /* of warps that had nothing to stage */
    begin();
    __syncthreads();
    const uint32_t r = threadIdx.x % rows, step = INT_THREADS / rows;
    float factor = 1;
    if (SOURCE == STEP_NORM) factor = rsqrtf(sum_apart(h.squares + r * chunks, chunks, 1) / (float)w.cols + in.eps);
    uint32_t place = 0, turn = 0;
#pragma unroll 1
    for (uint32_t b = first; b < end; b += groups, turn ^= 1) {
        float *own = h.sums + turn * chunks * groups * (ROWS * TILE_OUT);
        copy_wait<DEPTH - 1>();
        __syncwarp();
        if (n && b + group < end) {
            float2 acc[NB] = {};
            rows_chunk_times<NB>(places + place * CHUNK_BYTES<4>, chunk, n, h, acc);
            float *to = own + (chunk * groups + group) * (ROWS * TILE_OUT) + lane % 4 * TILE_OUT + lane / 4;
#pragma unroll
            for (int nb = 0; nb < NB; nb++) to[nb * 4 * TILE_OUT] = acc[nb].x, to[nb * 4 * TILE_OUT + 8] = acc[nb].y;
        }
        __syncwarp();
        fetch(place);
        place = place + 1 == DEPTH ? 0 : place + 1;
        __syncthreads(); /* one is enough: the sums have two places in turn */
        if (threadIdx.x >= step * rows) continue;
        for (uint32_t q = threadIdx.x / rows; q < groups * TILE_OUT; q += step) {
            const uint32_t o = b * TILE_OUT + q;
            if (o >= min(end * TILE_OUT, w.rows)) break;
            const float sum = sum_apart(own + (q / TILE_OUT * ROWS + r) * TILE_OUT + q % TILE_OUT, chunks, groups * ROWS * TILE_OUT);
            done(r, o, sum * factor);
        }
    }
}

} // namespace calla

#endif

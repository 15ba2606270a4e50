/* attention.metal: causal attention of many rows over paged K and V, flash style.
 *
 * A threadgroup takes up to 64 queries: all query heads of one K/V head for as many rows as make 64.  It goes through the positions 32 at a
 * time; each such tile of K, then of V, is read from device memory once for all 64 queries, in four parts of 64 values that go through two
 * buffers: while one is multiplied, the next is on its way to registers.
 *
 * The eight simdgroups stand 4 × 2: simdgroup s has queries 16·(s/2) … + 15, and of the scores positions 16·(s%2) …, of each part of the output
 * 32 values from 32·(s%2).  The output, 64 × 256, stays in registers; it is scaled down where a larger score comes (Milakov and Gimelshein 2018;
 * Dao et al. 2022).  Queries do not fit beside the rest; they are read from device memory for each tile, packed by attention_write.
 * Products and sums are float32; T is the type of the tiles, float (exact) or half (fast).
 *
 * Nothing here is infinite, since the compiler may assume that: a masked score is −10³⁰. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/segments.h"

enum {
    ATTENTION_THREADS = METAL_PREFILL_THREADS,
    TILE_QUERIES = 64,
    TILE_POSITIONS = 32, /* of a tile */
    PART_VALUES = 64,    /* values of a tile that are in threadgroup memory at a time */
    ROW_PARTS = 4,
    ROW_VALUES = PART_VALUES * ROW_PARTS,
    BUFFER_VALUES = TILE_POSITIONS * PART_VALUES,
    SCORE_STRIDE = TILE_POSITIONS + 4
};

/* Threadgroup memory: two parts of a tile; the scores [64][SCORE_STRIDE], which become weights; a factor for each query.  METAL_TG_PREFILL. */
static_assert((2 * BUFFER_VALUES + TILE_QUERIES * SCORE_STRIDE + TILE_QUERIES) * 4 <= METAL_TG_PREFILL, "threadgroup memory");

/* 8 consecutive values of a cached row. */
struct kv8 {
    float4 a, b;
};
static kv8 load_kv(device const float *p) { return {*(device const float4 *)p, *(device const float4 *)(p + 4)}; }
static kv8 load_kv(device const uint16_t *p) {
    const uint4 x = *(device const uint4 *)p;
    return {as_type<float4>(uint4(x.x << 16, x.x & 0xFFFF0000u, x.y << 16, x.y & 0xFFFF0000u)),
            as_type<float4>(uint4(x.z << 16, x.z & 0xFFFF0000u, x.w << 16, x.w & 0xFFFF0000u))};
}

template <typename KV>
kernel void attention(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                      threadgroup float *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint head = group.y, heads = a.heads / a.kv_heads, tile_rows = TILE_QUERIES / heads;
    segment_part tile;
    if (!find_part(t, a.first, a.beyond, tile_rows, group.x, tile)) return;
    device const metal_segment &segment = t.segment[tile.segment];
    const uint skipped = (tile.parts - 1 - tile.number) * tile_rows, rows = min(tile_rows, segment.rows - skipped); /* the longest first */
    const uint first_row = segment.first_row + skipped, first_position = segment.first_position + skipped;
    const uint end = first_position + rows, tiles = (end + TILE_POSITIONS - 1) / TILE_POSITIONS; /* positions that the last row sees */
    device const uint *pages = t.page_table + segment.first_page;
    const ulong page_values = (ulong)2 * a.kv_heads * METAL_PAGE_TOKENS * ROW_VALUES;
    device const KV *kv = (device const KV *)a.kv + (ulong)head * METAL_PAGE_TOKENS * ROW_VALUES;

    threadgroup float *scores = shared + 2 * BUFFER_VALUES, *factor = scores + TILE_QUERIES * SCORE_STRIDE;
    const uint own_queries = simdgroup / 2 * 16, half_of = simdgroup % 2;
    device const float *queries = a.queries + (((ulong)head * t.rows + first_row) * heads + own_queries) * ROW_VALUES;

    const uint2 row_of = element_rows(shared + simdgroup * 64, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 out[2][ROW_PARTS][4];
    for (uint i = 0; i < 2; i++)
        for (uint p = 0; p < ROW_PARTS; p++)
            for (uint j = 0; j < 4; j++) out[i][p][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    /* Four threads have a query's running softmax. */
    const uint query = thread_index / 4, quarter = thread_index % 4;
    const uint last = first_position + min(query / heads, rows - 1); /* the last position that it sees */
    float most = -1e30f, sum = 0;

    /* Item i of a tile: part i of K for i < 4, else part i - 4 of V.  A thread has 8 values of a position; beyond the end they are zero,
     * since what is there may be anything and a weight of zero would not hide it. */
    const uint my_position = thread_index / 8, my_values = thread_index % 8 * 8;
#define ATTENTION_FETCH(tile_index, item)                                                                                                  \
    {                                                                                                                                      \
        const uint position = (tile_index) * TILE_POSITIONS + my_position;                                                                 \
        next = {float4(0.0f), float4(0.0f)};                                                                                               \
        if (position < end)                                                                                                                \
            next = load_kv(kv + pages[position / METAL_PAGE_TOKENS] * page_values +                                                        \
                           ((item) < ROW_PARTS ? 0 : (ulong)a.kv_heads * METAL_PAGE_TOKENS * ROW_VALUES) +                                 \
                           (ulong)(position % METAL_PAGE_TOKENS) * ROW_VALUES + (item) % ROW_PARTS * PART_VALUES + my_values);             \
    }
    kv8 next;
    ATTENTION_FETCH(0, 0)
    for (uint k = 0; k < tiles; k++) {
        simdgroup_float8x8 score[2][2];
        for (uint i = 0; i < 2; i++)
            for (uint j = 0; j < 2; j++) score[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
        for (uint item = 0; item < 2 * ROW_PARTS; item++) {
            threadgroup float *buffer = shared + item % 2 * BUFFER_VALUES; /* [position / 8][value / 8][8][8] */
            threadgroup float4 *to = (threadgroup float4 *)(buffer + ((my_position / 8 * 8 + my_values / 8) * 8 + my_position % 8) * 8);
            to[0] = next.a;
            to[1] = next.b;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (item + 1 < 2 * ROW_PARTS)
                ATTENTION_FETCH(k, item + 1)
            else if (k + 1 < tiles)
                ATTENTION_FETCH(k + 1, 0)
            if (item < ROW_PARTS) {
#pragma unroll
                for (uint d = 0; d < PART_VALUES / 8; d++) {
                    simdgroup_float8x8 q[2], key[2];
#pragma unroll
                    for (uint i = 0; i < 2; i++)
                        simdgroup_load(q[i], queries + i * 8 * ROW_VALUES + item * PART_VALUES + d * 8, ROW_VALUES);
#pragma unroll
                    for (uint j = 0; j < 2; j++) simdgroup_load(key[j], buffer + ((half_of * 2 + j) * 8 + d) * 64, 8, ulong2(0), true);
#pragma unroll
                    for (uint i = 0; i < 2; i++)
#pragma unroll
                        for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(score[i][j], q[i], key[j], score[i][j]);
                }
                if (item + 1 < ROW_PARTS) continue;
                for (uint i = 0; i < 2; i++)
                    for (uint j = 0; j < 2; j++)
                        simdgroup_store(score[i][j], scores + (own_queries + i * 8) * SCORE_STRIDE + half_of * 16 + j * 8, SCORE_STRIDE);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                threadgroup float *mine = scores + query * SCORE_STRIDE;
                float s[8], here = most;
#pragma unroll
                for (uint i = 0; i < 8; i++) {
                    const uint at = i * 4 + quarter;
                    s[i] = k * TILE_POSITIONS + at <= last ? mine[at] * 0.0625f : -1e30f; /* 1/√256 */
                    here = max(here, s[i]);
                }
                here = max(here, simd_shuffle_xor(here, 1));
                here = max(here, simd_shuffle_xor(here, 2));
                const float shrink = exp(most - here);
                float weights = 0;
#pragma unroll
                for (uint i = 0; i < 8; i++) {
                    const float w = exp(s[i] - here);
                    mine[i * 4 + quarter] = w;
                    weights += w;
                }
                most = here;
                sum = sum * shrink + weights;
                if (quarter == 0) factor[query] = shrink;
                threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
                for (uint i = 0; i < 2; i++) {
                    const float f0 = factor[own_queries + i * 8 + row_of.x], f1 = factor[own_queries + i * 8 + row_of.y];
#pragma unroll
                    for (uint p = 0; p < ROW_PARTS; p++)
#pragma unroll
                        for (uint j = 0; j < 4; j++) {
                            out[i][p][j].thread_elements()[0] *= f0;
                            out[i][p][j].thread_elements()[1] *= f1;
                        }
                }
                continue;
            }
#pragma unroll
            for (uint b = 0; b < TILE_POSITIONS / 8; b++) {
                simdgroup_float8x8 w[2], value;
#pragma unroll
                for (uint i = 0; i < 2; i++) simdgroup_load(w[i], scores + (own_queries + i * 8) * SCORE_STRIDE + b * 8, SCORE_STRIDE);
#pragma unroll
                for (uint j = 0; j < 4; j++) {
                    simdgroup_load(value, buffer + (b * 8 + half_of * 4 + j) * 64, 8);
#pragma unroll
                    for (uint i = 0; i < 2; i++)
                        simdgroup_multiply_accumulate(out[i][item - ROW_PARTS][j], w[i], value, out[i][item - ROW_PARTS][j]);
                }
            }
        }
    }
#undef ATTENTION_FETCH

    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    if (quarter == 0) factor[query] = 1.0f / sum;
    for (uint p = 0; p < ROW_PARTS;
         p++) { /* through threadgroup memory, [64][PART_VALUES], so that rows are written whole and only where they are */
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 2; i++)
            for (uint j = 0; j < 4; j++)
                simdgroup_store(out[i][p][j], shared + (own_queries + i * 8) * PART_VALUES + half_of * 32 + j * 8, PART_VALUES);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < rows * heads * PART_VALUES; i += ATTENTION_THREADS) {
            const uint q = i / PART_VALUES, row = first_row + q / heads;
            a.out[(ulong)row * a.out_stride + (head * heads + q % heads) * ROW_VALUES + p * PART_VALUES + i % PART_VALUES] =
                shared[i] * factor[q];
        }
    }
}
KERNEL_INSTANCE("attention_kf32_exact", attention<float>)
KERNEL_INSTANCE("attention_kb16_exact", attention<uint16_t>)

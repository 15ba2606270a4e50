/* attention.metal: causal attention of many rows over paged K and V, flash style.
 *
 * A threadgroup takes up to 64 queries: all query heads of one K/V head for as many rows as make 64.  It goes through the positions 32 at a
 * time; each such tile of K, then of V, is read from device memory once for all 64 queries, in parts of 8 KB that go through two buffers:
 * while one is multiplied, the next is on its way to registers.
 *
 * The eight simdgroups stand 4 × 2: simdgroup s has queries 16·(s/2) … + 15, and of the scores positions 16·(s%2) …, of the output the
 * lower or upper half of each part.  The output, 64 × 256, stays in registers; it is scaled down where a larger score comes (Milakov and
 * Gimelshein 2018; Dao et al. 2022).  Queries do not fit beside the rest; they are read from device memory for each tile, packed by
 * attention_write.  Sums are float32; T is the type of what is multiplied, float (exact) or half (fast).
 *
 * Nothing here is infinite, since the compiler may assume that: a masked score is −10³⁰. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/segments.h"

enum { TILE_QUERIES = 64, TILE_POSITIONS = 32, ROW_VALUES = 256, SCORE_STRIDE = TILE_POSITIONS + 4, BUFFER_BYTES = 8192 };

/* Threadgroup memory, METAL_TG_PREFILL: two parts of a tile; the scores, [64][SCORE_STRIDE] floats, in whose rows the weights follow them,
 * of type T; a factor for each query. */
static_assert(2 * BUFFER_BYTES + (TILE_QUERIES * SCORE_STRIDE + TILE_QUERIES) * 4 <= METAL_TG_PREFILL, "threadgroup memory");

/* 8 consecutive values of a cached row. */
struct kv8 {
    float4 a, b;
};

/* K and V of a head, in items: of each tile the PARTS parts of K, then those of V. */
template <typename KV, int PART, int LOADS> struct kv_source {
    device uint8_t *kv; /* of page 0 */
    device const uint *pages;
    uint kv_heads, head;
    uint end;

    /* A thread's LOADS times 8 values of an item.  What lies beyond the end may be anything, and a weight of zero would not hide it: it is
     * taken for zero. */
    void fetch(uint item, uint thread_index, thread kv8 (&to)[LOADS]) const {
        const uint parts = ROW_VALUES / PART, first = item / (2 * parts) * TILE_POSITIONS, part = item % parts * PART;
        const uint v = item / parts % 2;
#pragma unroll
        for (uint i = 0; i < LOADS; i++) {
            const uint load = thread_index + i * METAL_PREFILL_THREADS, position = first + load / (PART / 8);
            to[i].a = to[i].b = float4(0.0f);
            if (position >= end) continue;
            const ulong block = ((ulong)pages[position / METAL_PAGE_TOKENS] * 2 + v) * kv_heads + head;
            kv_row<KV>(kv, block, position % METAL_PAGE_TOKENS).load(part + load % (PART / 8) * 8, to[i].a, to[i].b);
        }
    }
};

static void load_queries(thread simdgroup_float8x8 &q, device const float *p) { simdgroup_load(q, p, ROW_VALUES); }
static void load_queries(thread simdgroup_half8x8 &q, device const float *p) {
    simdgroup_float8x8 x;
    simdgroup_load(x, p, ROW_VALUES);
    q.thread_elements()[0] = half(x.thread_elements()[0]);
    q.thread_elements()[1] = half(x.thread_elements()[1]);
}

template <typename KV, typename T>
kernel void attention(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                      threadgroup float *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    enum {
        PART = BUFFER_BYTES / TILE_POSITIONS / int(sizeof(T)), /* values of a row that are in a buffer at a time */
        PARTS = ROW_VALUES / PART,
        OWN = PART / 16,                                                   /* blocks of 8 values of a part that a simdgroup has */
        LOADS = TILE_POSITIONS * PART / 8 / METAL_PREFILL_THREADS,         /* of 8 values, per thread */
        WEIGHT_STRIDE = SCORE_STRIDE * int(sizeof(float)) / int(sizeof(T)) /* of T */
    };
    const uint head = group.y, heads = a.heads / a.kv_heads, tile_rows = TILE_QUERIES / heads;
    segment_part tile;
    if (!find_part(t, a.first, a.beyond, tile_rows, a.first_tile + group.x, tile)) return;
    device const metal_segment &segment = t.segment[tile.segment];
    const uint skipped = (tile.parts - 1 - tile.number) * tile_rows, rows = min(tile_rows, segment.rows - skipped); /* the longest first */
    const uint first_row = segment.first_row + skipped, first_position = segment.first_position + skipped;
    const uint end = first_position + rows, all_tiles = (end + TILE_POSITIONS - 1) / TILE_POSITIONS; /* positions that the last row sees */
    const uint splits = max(t.long_splits, 1u), own_tiles = (all_tiles + splits - 1) / splits;
    const uint first_tile = min(group.z * own_tiles, all_tiles), tiles = min(first_tile + own_tiles, all_tiles);
    kv_source<KV, PART, LOADS> cache;
    cache.kv = a.kv;
    cache.pages = t.page_table + segment.first_page;
    cache.kv_heads = a.kv_heads;
    cache.head = head;
    cache.end = end;

    threadgroup T *buffers = (threadgroup T *)shared;
    threadgroup float *scores = shared + 2 * BUFFER_BYTES / 4, *factor = scores + TILE_QUERIES * SCORE_STRIDE;
    const uint own_queries = simdgroup / 2 * 16, half_of = simdgroup % 2;
    device const float *queries = a.queries + (((ulong)head * t.rows + first_row) * heads + own_queries) * ROW_VALUES;
    const uint2 row_of = element_rows(shared + simdgroup * 64, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 out[2][PARTS][OWN];
    for (uint i = 0; i < 2; i++)
        for (uint p = 0; p < PARTS; p++)
            for (uint j = 0; j < OWN; j++) out[i][p][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    /* Four threads have a query's running softmax. */
    const uint query = thread_index / 4, quarter = thread_index % 4;
    const uint last = first_position + min(query / heads, rows - 1); /* the last position that it sees */
    float most = -1e30f, sum = 0;

    kv8 next[LOADS];
    const uint items = tiles * 2 * PARTS;
    cache.fetch(first_tile * 2 * PARTS, thread_index, next);
    for (uint k = first_tile; k < tiles; k++) {
        simdgroup_float8x8 score[2][2];
        for (uint i = 0; i < 2; i++)
            for (uint j = 0; j < 2; j++) score[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
        for (uint item = 0; item < 2 * PARTS; item++) {
            threadgroup T *buffer = buffers + item % 2 * (TILE_POSITIONS * PART); /* [position / 8][value / 8][8][8] */
#pragma unroll
            for (uint i = 0; i < LOADS; i++) {
                const uint load = thread_index + i * METAL_PREFILL_THREADS, position = load / (PART / 8), block = load % (PART / 8);
                threadgroup vec<T, 4> *to =
                    (threadgroup vec<T, 4> *)(buffer + ((position / 8 * (PART / 8) + block) * 8 + position % 8) * 8);
                to[0] = vec<T, 4>(next[i].a);
                to[1] = vec<T, 4>(next[i].b);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (k * 2 * PARTS + item + 1 < items) cache.fetch(k * 2 * PARTS + item + 1, thread_index, next);
            if (item < PARTS) {
#pragma unroll
                for (uint d = 0; d < PART / 8; d++) {
                    simdgroup_matrix<T, 8, 8> q[2], key;
#pragma unroll
                    for (uint i = 0; i < 2; i++) load_queries(q[i], queries + i * 8 * ROW_VALUES + item * PART + d * 8);
#pragma unroll
                    for (uint j = 0; j < 2; j++) {
                        simdgroup_load(key, buffer + ((half_of * 2 + j) * (PART / 8) + d) * 64, 8, ulong2(0), true);
#pragma unroll
                        for (uint i = 0; i < 2; i++) simdgroup_multiply_accumulate(score[i][j], q[i], key, score[i][j]);
                    }
                }
                if (item + 1 < PARTS) continue;
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
                simdgroup_barrier(mem_flags::mem_threadgroup); /* all of the row has been read */
                const float shrink = exp(most - here);
                float weights = 0;
#pragma unroll
                for (uint i = 0; i < 8; i++) {
                    const T w = k * TILE_POSITIONS + i * 4 + quarter <= last ? T(exp(s[i] - here)) : T(0.0f); /* it may see none of them */
                    ((threadgroup T *)mine)[i * 4 + quarter] = w;
                    weights += float(w);
                }
                most = here;
                sum = sum * shrink + weights;
                if (quarter == 0) factor[query] = shrink;
                threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
                for (uint i = 0; i < 2; i++) {
                    const float f0 = factor[own_queries + i * 8 + row_of.x], f1 = factor[own_queries + i * 8 + row_of.y];
#pragma unroll
                    for (uint p = 0; p < PARTS; p++)
#pragma unroll
                        for (uint j = 0; j < OWN; j++) {
                            out[i][p][j].thread_elements()[0] *= f0;
                            out[i][p][j].thread_elements()[1] *= f1;
                        }
                }
                continue;
            }
            threadgroup const T *weight = (threadgroup const T *)(scores + own_queries * SCORE_STRIDE);
#pragma unroll
            for (uint b = 0; b < TILE_POSITIONS / 8; b++) {
                simdgroup_matrix<T, 8, 8> w[2], value;
#pragma unroll
                for (uint i = 0; i < 2; i++) simdgroup_load(w[i], weight + i * 8 * WEIGHT_STRIDE + b * 8, WEIGHT_STRIDE);
#pragma unroll
                for (uint j = 0; j < OWN; j++) {
                    simdgroup_load(value, buffer + (b * (PART / 8) + half_of * OWN + j) * 64, 8);
#pragma unroll
                    for (uint i = 0; i < 2; i++)
                        simdgroup_multiply_accumulate(out[i][item - PARTS][j], w[i], value, out[i][item - PARTS][j]);
                }
            }
        }
    }

    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    if (quarter == 0) factor[query] = splits == 1 ? 1.0f / sum : 1.0f;
    const uint row_heads = first_row * a.heads + head * heads; /* of query q: a row's heads further for each row */
    if (splits > 1 && quarter == 0 && query < rows * heads) {
        device float *to =
            a.partial + ((ulong)(row_heads + query / heads * a.heads + query % heads) * splits + group.z) * METAL_PARTIAL + ROW_VALUES;
        to[0] = most;
        to[1] = sum;
    }
    /* Through threadgroup memory, 64 values [64][2][32] at a time, so that rows are written whole and only where they are. */
#pragma unroll
    for (uint p = 0; p < PARTS; p++)
#pragma unroll
        for (uint c = 0; c < OWN; c += 4) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < 2; i++)
                for (uint j = 0; j < 4; j++)
                    simdgroup_store(out[i][p][c + j], shared + (own_queries + i * 8) * 64 + half_of * 32 + j * 8, 64);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = thread_index; i < rows * heads * 64; i += METAL_PREFILL_THREADS) {
                const uint q = i / 64, value = p * PART + i / 32 % 2 * (PART / 2) + c * 8 + i % 32;
                device float *to =
                    splits == 1 ? a.out + (ulong)(first_row + q / heads) * a.out_stride + (head * heads + q % heads) * ROW_VALUES
                                : a.partial + ((ulong)(row_heads + q / heads * a.heads + q % heads) * splits + group.z) * METAL_PARTIAL;
                to[value] = shared[i] * factor[q];
            }
        }
}
KERNEL_INSTANCE("attention_kf32_exact", attention<float, float>)
KERNEL_INSTANCE("attention_kb16_exact", attention<uint16_t, float>)
KERNEL_INSTANCE("attention_kf32_fast", attention<float, half>)
KERNEL_INSTANCE("attention_kb16_fast", attention<uint16_t, half>)
KERNEL_INSTANCE("attention_kq8_exact", attention<int8_t, float>)
KERNEL_INSTANCE("attention_kq8_fast", attention<int8_t, half>)

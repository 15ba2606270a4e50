/* attention.h: what both kernels of causal attention of many rows over paged K and V share, flash style (attention.metal, tensor.metal):
 * which queries a threadgroup has, how K and V come to it, and the running softmax.  Metal's language.
 *
 * A threadgroup takes up to 64 queries: all query heads of one K/V head for as many rows as make 64.  It goes through the positions 32 at a
 * time; each such tile of K, then of V, is read from device memory once for all 64 queries, while what was read before is multiplied.  The
 * output, 64 × 256, stays in registers; it is scaled down where a larger score comes (Milakov and Gimelshein 2018; Dao et al. 2022).
 * Queries do not fit beside the rest; they are read from device memory for each tile, packed by attention_write.
 *
 * Nothing here is infinite, since the compiler may assume that: a masked score is −10³⁰. */
#ifndef CALLA_BACKEND_METAL_ATTENTION_H
#define CALLA_BACKEND_METAL_ATTENTION_H

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/segments.h"

enum { TILE_QUERIES = 64, TILE_POSITIONS = 32, ROW_VALUES = 256 };

/* What a threadgroup has to do. */
struct attention_work {
    uint head, heads;         /* the K/V head, and how many query heads it has */
    uint first_row, rows;     /* of the batch */
    uint first_position, end; /* of the first row; and how many positions the last one sees */
    uint first_tile, tiles;   /* of positions: first_tile … tiles - 1 */
    uint splits, split;
    device const uint *pages;
};

/* False: nothing. */
static bool find_work(constant metal_attention_args &a, constant metal_step &t, uint3 group, thread attention_work &w) {
    w.head = group.y;
    w.heads = a.heads / a.kv_heads;
    const uint tile_rows = TILE_QUERIES / w.heads;
    segment_part tile;
    if (!find_part(t, a.first, a.beyond, tile_rows, a.first_tile + group.x, tile)) return false;
    device const metal_segment &segment = t.segment[tile.segment];
    const uint skipped = (tile.parts - 1 - tile.number) * tile_rows; /* the longest first */
    w.rows = min(tile_rows, segment.rows - skipped);
    w.first_row = segment.first_row + skipped;
    w.first_position = segment.first_position + skipped;
    w.end = w.first_position + w.rows;
    w.pages = t.page_table + segment.first_page;
    w.splits = max(t.long_splits, 1u);
    w.split = group.z;
    const uint all_tiles = (w.end + TILE_POSITIONS - 1) / TILE_POSITIONS, own_tiles = (all_tiles + w.splits - 1) / w.splits;
    w.first_tile = min(w.split * own_tiles, all_tiles);
    w.tiles = min(w.first_tile + own_tiles, all_tiles);
    return true;
}

/* 8 consecutive values of a cached row. */
struct kv8 {
    float4 a, b;
};

/* K and V of a head, in items: of each tile the parts of K, of PART values of its rows, then those of V. */
template <typename KV, int PART, int LOADS> struct kv_source {
    device uint8_t *kv; /* of page 0 */
    device const uint *pages;
    uint kv_heads, head;
    uint end;

    void open(constant metal_attention_args &a, thread const attention_work &w) {
        kv = a.kv;
        pages = w.pages;
        kv_heads = a.kv_heads;
        head = w.head;
        end = w.end;
    }
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

/* ---- softmax: four threads have a query's ---- */

struct running_softmax {
    uint query, quarter;
    uint last; /* the last position that the query sees */
    float most, sum;

    void open(thread const attention_work &w, uint thread_index) {
        query = thread_index / 4;
        quarter = thread_index % 4;
        last = w.first_position + min(query / w.heads, w.rows - 1);
        most = -1e30f;
        sum = 0;
    }
    /* From the scores of the query in the tile that begins at position `first` to their weights, which may stand in the same place.
     * Returns what all weights before have to be multiplied with. */
    template <typename T> float weigh(threadgroup const float *scores, threadgroup T *weights, uint first) {
        float s[8], here = most;
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            const uint at = i * 4 + quarter;
            s[i] = first + at <= last ? scores[at] * 0.0625f : -1e30f; /* 1/√256 */
            here = max(here, s[i]);
        }
        here = max(here, simd_shuffle_xor(here, 1));
        here = max(here, simd_shuffle_xor(here, 2));
        simdgroup_barrier(mem_flags::mem_threadgroup); /* all of the row has been read */
        const float shrink = exp(most - here);
        float all = 0;
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            const T w = first + i * 4 + quarter <= last ? T(exp(s[i] - here)) : T(0.0f); /* it may see none of them */
            weights[i * 4 + quarter] = w;
            all += float(w);
        }
        most = here;
        sum = sum * shrink + all;
        return shrink;
    }
    /* The sum of all weights, to each of the four. */
    float close() {
        sum += simd_shuffle_xor(sum, 1);
        sum += simd_shuffle_xor(sum, 2);
        return sum;
    }
};

/* ---- where the output of a query goes ---- */

static device float *partial_of(constant metal_attention_args &a, thread const attention_work &w, uint query) {
    const ulong row_head = (ulong)(w.first_row + query / w.heads) * a.heads + w.head * w.heads + query % w.heads;
    return a.partial + (row_head * w.splits + w.split) * METAL_PARTIAL;
}
static device float *output_of(constant metal_attention_args &a, thread const attention_work &w, uint query) {
    if (w.splits > 1) return partial_of(a, w, query);
    return a.out + (ulong)(w.first_row + query / w.heads) * a.out_stride + (w.head * w.heads + query % w.heads) * ROW_VALUES;
}

/* Leaves what a split's values are relative to; returns what the query's values have to be multiplied with. */
static float close_query(constant metal_attention_args &a, thread const attention_work &w, thread running_softmax &s) {
    const float sum = s.close();
    if (w.splits == 1) return 1.0f / sum;
    if (s.quarter == 0 && s.query < w.rows * w.heads) {
        device float *to = partial_of(a, w, s.query) + ROW_VALUES;
        to[0] = s.most;
        to[1] = sum;
    }
    return 1.0f;
}

#endif

/* attention.metal: attention of many rows (attention.h) on simdgroup matrices.
 *
 * A tile of K or V goes through two buffers in parts of 8 KB.  The eight simdgroups stand 4 × 2: simdgroup s has queries 16·(s/2) … + 15,
 * and of the scores positions 16·(s%2) …, of the output the lower or upper half of each part.  Sums are float32; T is the type of what is
 * multiplied, float (exact) or half (fast), and of the queries in device memory. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/attention.h"

enum { SCORE_STRIDE = TILE_POSITIONS + 4, BUFFER_BYTES = 8192 };

/* Threadgroup memory, METAL_TG_PREFILL: two parts of a tile; the scores, [64][SCORE_STRIDE] floats, in whose rows the weights follow them,
 * of type T; a factor for each query. */
static_assert(2 * BUFFER_BYTES + (TILE_QUERIES * SCORE_STRIDE + TILE_QUERIES) * 4 <= METAL_TG_PREFILL, "threadgroup memory");

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
    attention_work w;
    if (!find_work(a, t, group, w)) return;
    kv_source<KV, PART, LOADS> cache;
    cache.open(a, w);
    running_softmax softmax;
    softmax.open(w, thread_index);

    threadgroup T *buffers = (threadgroup T *)shared;
    threadgroup float *scores = shared + 2 * BUFFER_BYTES / 4, *factor = scores + TILE_QUERIES * SCORE_STRIDE;
    const uint own_queries = simdgroup / 2 * 16, half_of = simdgroup % 2;
    device const T *queries = (device const T *)a.queries + (((ulong)w.head * t.rows + w.first_row) * w.heads + own_queries) * ROW_VALUES;
    const uint2 row_of = element_rows(shared + simdgroup * 64, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_float8x8 out[2][PARTS][OWN];
    for (uint i = 0; i < 2; i++)
        for (uint p = 0; p < PARTS; p++)
            for (uint j = 0; j < OWN; j++) out[i][p][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    kv8 next[LOADS];
    const uint items = w.tiles * 2 * PARTS;
    cache.fetch(w.first_tile * 2 * PARTS, thread_index, next);
    for (uint k = w.first_tile; k < w.tiles; k++) {
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
                    for (uint i = 0; i < 2; i++) simdgroup_load(q[i], queries + i * 8 * ROW_VALUES + item * PART + d * 8, ROW_VALUES);
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
                threadgroup float *mine = scores + softmax.query * SCORE_STRIDE;
                const float shrink = softmax.weigh(mine, (threadgroup T *)mine, k * TILE_POSITIONS);
                if (softmax.quarter == 0) factor[softmax.query] = shrink;
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
                simdgroup_matrix<T, 8, 8> p[2], value;
#pragma unroll
                for (uint i = 0; i < 2; i++) simdgroup_load(p[i], weight + i * 8 * WEIGHT_STRIDE + b * 8, WEIGHT_STRIDE);
#pragma unroll
                for (uint j = 0; j < OWN; j++) {
                    simdgroup_load(value, buffer + (b * (PART / 8) + half_of * OWN + j) * 64, 8);
#pragma unroll
                    for (uint i = 0; i < 2; i++)
                        simdgroup_multiply_accumulate(out[i][item - PARTS][j], p[i], value, out[i][item - PARTS][j]);
                }
            }
        }
    }

    const float scale = close_query(a, w, softmax);
    if (softmax.quarter == 0) factor[softmax.query] = scale;
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
            for (uint i = thread_index; i < w.rows * w.heads * 64; i += METAL_PREFILL_THREADS) {
                const uint q = i / 64, value = p * PART + i / 32 % 2 * (PART / 2) + c * 8 + i % 32;
                output_of(a, w, q)[value] = shared[i] * factor[q];
            }
        }
}
KERNEL_INSTANCE("attention_kf32_exact", attention<float, float>)
KERNEL_INSTANCE("attention_kb16_exact", attention<uint16_t, float>)
KERNEL_INSTANCE("attention_kf32_fast", attention<float, half>)
KERNEL_INSTANCE("attention_kb16_fast", attention<uint16_t, half>)
KERNEL_INSTANCE("attention_kq8_exact", attention<int8_t, float>)
KERNEL_INSTANCE("attention_kq8_fast", attention<int8_t, half>)

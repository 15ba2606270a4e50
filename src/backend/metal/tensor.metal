/* tensor.metal: products (gemm.h) and attention (attention.h) of many rows by the tensor operations of Metal 4, which the matrix units of the
 * M5 do.  A library of its own, compiled where there are such units and used only after tensor.c has seen it agree with the reference.
 *
 * Operands stand row by row, without gaps; all simdgroups of a threadgroup multiply them together.  Where in their registers a sum is, is
 * the operation's affair, which tells it where somebody has to know (attention alone). */
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;

#include "backend/metal/attention.h"
#include "backend/metal/gemm.h"

/* ---- products ---- */

/* Tiles [64][DEPTH] and [BLOCKS·8][DEPTH]. */
template <int SIMDGROUPS, int OWN, bool PAIR> struct tensor_tiles {
    typedef gemm_shape<half, SIMDGROUPS, OWN, PAIR> shape;
    enum { DEPTH = shape::DEPTH, COLUMNS = shape::BLOCKS * 8 };
    typedef tensor<threadgroup half, dextents<int32_t, 2>, tensor_inline> tile; /* the inner extent first */
    typedef tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> stored_tile;
    typedef mpp::tensor_ops::matmul2d<mpp::tensor_ops::matmul2d_descriptor(GEMM_ROWS, COLUMNS, DEPTH, false, true, false,
                                                                           mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),
                                      execution_simdgroups<SIMDGROUPS>>
        product;

    static uint x_at(uint row, uint k) { return row * DEPTH + k; }
    static uint w_at(uint row, uint k) { return row * DEPTH + k; }
    static auto sums() {
        product p;
        return p.template get_destination_cooperative_tensor<tile, tile, float>();
    }
    template <class SUMS> static void clear(thread SUMS &sums) {
        for (uint16_t i = 0; i < sums.get_capacity(); i++) sums[i] = 0.0f;
    }
    template <class SUMS> static void multiply(thread SUMS &sums, threadgroup half *buffer, uint, uint) {
        tile x(buffer, dextents<int32_t, 2>(DEPTH, GEMM_ROWS)), w(buffer + shape::X_VALUES, dextents<int32_t, 2>(DEPTH, COLUMNS));
        product p;
        p.run(x, w, sums);
    }
    /* As [64][COLUMNS]. */
    template <class SUMS> static void store(thread SUMS &sums, threadgroup float *to, uint, uint) {
        stored_tile all(to, dextents<int32_t, 2>(COLUMNS, GEMM_ROWS));
        sums.store(all);
    }
    static float value_at(threadgroup const float *stored, uint row, uint output) {
        threadgroup const float *of_row = stored + row * COLUMNS;
        return PAIR ? silu(of_row[output]) * of_row[shape::OUTPUTS + output] : of_row[output];
    }
};

KERNEL_INSTANCE("gemm_q4_tensor", gemm<tensor_tiles<4, 2, false>, 4>)
KERNEL_INSTANCE("gemm_q8_tensor", gemm<tensor_tiles<4, 2, false>, 8>)
KERNEL_INSTANCE("gemm_b16_tensor", gemm<tensor_tiles<4, 2, false>, 16>)
KERNEL_INSTANCE("gemm_swiglu_q4_tensor", gemm<tensor_tiles<4, 2, true>, 4>)
KERNEL_INSTANCE("gemm_swiglu_q8_tensor", gemm<tensor_tiles<4, 2, true>, 8>)
KERNEL_INSTANCE("gemm_swiglu_b16_tensor", gemm<tensor_tiles<4, 2, true>, 16>)
KERNEL_INSTANCE("expert_gemm_in_q4_tensor", expert_gemm<tensor_tiles<4, 2, true>, 4>)
KERNEL_INSTANCE("expert_gemm_in_q8_tensor", expert_gemm<tensor_tiles<4, 2, true>, 8>)
KERNEL_INSTANCE("expert_gemm_in_b16_tensor", expert_gemm<tensor_tiles<4, 2, true>, 16>)
KERNEL_INSTANCE("expert_gemm_out_q4_tensor", expert_gemm<tensor_tiles<4, 2, false>, 4>)
KERNEL_INSTANCE("expert_gemm_out_q8_tensor", expert_gemm<tensor_tiles<4, 2, false>, 8>)
KERNEL_INSTANCE("expert_gemm_out_b16_tensor", expert_gemm<tensor_tiles<4, 2, false>, 16>)

/* ---- attention ---- */

/* Threadgroup memory, METAL_TG_PREFILL: a tile of K or V; the scores, [64][32]; the weights, alike; a factor for each query. */
enum { TILE_VALUES = TILE_POSITIONS * ROW_VALUES, SCORES = TILE_QUERIES * TILE_POSITIONS };
static_assert(TILE_VALUES * 2 + SCORES * (4 + 2) + TILE_QUERIES * 4 <= METAL_TG_PREFILL, "threadgroup memory");

/* A thread's LOADS times 8 values of a tile, [32][256]. */
template <int LOADS> static void put_tile(threadgroup half *tile, thread const kv8 (&from)[LOADS], uint thread_index) {
#pragma unroll
    for (uint i = 0; i < LOADS; i++) {
        threadgroup half4 *to = (threadgroup half4 *)(tile + (thread_index + i * METAL_PREFILL_THREADS) * 8);
        to[0] = half4(from[i].a);
        to[1] = half4(from[i].b);
    }
}

/* Of a place in a result: column, row.  A register that is no element may name any. */
template <class PLACE> static uint query_of(PLACE place) { return min(uint(place[1]), uint(TILE_QUERIES - 1)); }

template <typename KV>
kernel void attention(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                      threadgroup float *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]]) {
    enum { LOADS = TILE_VALUES / 8 / METAL_PREFILL_THREADS };
    typedef dextents<int32_t, 2> extents;
    typedef tensor<device half, extents, tensor_inline> query_tensor;
    typedef tensor<threadgroup half, extents, tensor_inline> half_tensor;
    typedef tensor<threadgroup float, extents, tensor_inline> float_tensor;
    typedef execution_simdgroups<METAL_PREFILL_THREADS / 32> everybody;
    attention_work w;
    if (!find_work(a, t, group, w)) return;
    kv_source<KV, ROW_VALUES, LOADS> cache;
    cache.open(a, w);
    running_softmax softmax;
    softmax.open(w, thread_index);

    threadgroup half *tile = (threadgroup half *)shared;
    threadgroup float *scores = shared + TILE_VALUES / 2, *factor = scores + SCORES;
    threadgroup half *weights = (threadgroup half *)(factor + TILE_QUERIES);
    query_tensor queries((device half *)a.queries + ((ulong)w.head * t.rows + w.first_row) * w.heads * ROW_VALUES,
                         extents(ROW_VALUES, TILE_QUERIES));
    half_tensor rows(tile, extents(ROW_VALUES, TILE_POSITIONS)), weight(weights, extents(TILE_POSITIONS, TILE_QUERIES));
    float_tensor score(scores, extents(TILE_POSITIONS, TILE_QUERIES));
    mpp::tensor_ops::matmul2d<mpp::tensor_ops::matmul2d_descriptor(TILE_QUERIES, TILE_POSITIONS, ROW_VALUES, false, true, false,
                                                                   mpp::tensor_ops::matmul2d_descriptor::mode::multiply),
                              everybody>
        of_keys;
    mpp::tensor_ops::matmul2d<mpp::tensor_ops::matmul2d_descriptor(TILE_QUERIES, ROW_VALUES, TILE_POSITIONS, false, false, false,
                                                                   mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate),
                              everybody>
        of_values;
    auto out = of_values.template get_destination_cooperative_tensor<half_tensor, half_tensor, float>();
    for (uint16_t i = 0; i < out.get_capacity(); i++) out[i] = 0.0f;

    kv8 next[LOADS];
    cache.fetch(w.first_tile * 2, thread_index, next);
    for (uint k = w.first_tile; k < w.tiles; k++) {
        put_tile(tile, next, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        cache.fetch(k * 2 + 1, thread_index, next);
        auto sums = of_keys.template get_destination_cooperative_tensor<query_tensor, half_tensor, float>();
        of_keys.run(queries, rows, sums);
        sums.store(score);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        put_tile(tile, next, thread_index);
        const float shrink =
            softmax.weigh(scores + softmax.query * TILE_POSITIONS, weights + softmax.query * TILE_POSITIONS, k * TILE_POSITIONS);
        if (softmax.quarter == 0) factor[softmax.query] = shrink;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (k + 1 < w.tiles) cache.fetch(k * 2 + 2, thread_index, next);
        for (uint16_t i = 0; i < out.get_capacity(); i++) out[i] *= factor[query_of(out.get_multidimensional_index(i))];
        of_values.run(weight, rows, out);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    const float scale = close_query(a, w, softmax);
    if (softmax.quarter == 0) factor[softmax.query] = scale;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint16_t i = 0; i < out.get_capacity(); i++) {
        const auto place = out.get_multidimensional_index(i);
        const uint query = query_of(place);
        if (query < w.rows * w.heads && uint(place[0]) < ROW_VALUES) output_of(a, w, query)[place[0]] = out[i] * factor[query];
    }
}
KERNEL_INSTANCE("attention_kf32_tensor", attention<float>)
KERNEL_INSTANCE("attention_kb16_tensor", attention<uint16_t>)
KERNEL_INSTANCE("attention_kq8_tensor", attention<int8_t>)

/* gemm.h: products of many rows with quantized matrices: dense, gate and up with SwiGLU, and grouped by expert.  Metal's language.
 *
 * A threadgroup computes 64 rows by BLOCKS·8 outputs.  Each step takes DEPTH inputs: the weights are dequantized into threadgroup memory,
 * once for all 64 rows, and the rows are copied beside them.  There are two such buffers: while one is multiplied, the bytes of the next
 * step are on their way to registers.  Inputs are a multiple of 32.
 *
 * TILES says how the tiles lie in a buffer and multiplies them, by simdgroup matrices (gemm.metal) or tensor operations (tensor.metal):
 *   shape                               a gemm_shape
 *   x_at(row, k), w_at(row, k)          where a value stands, in a buffer or behind its X_VALUES; four values of x from a multiple of 4 on
 *                                       stand together
 *   sums(), clear(sums)                 sums of whatever type, zero once they are cleared
 *   multiply(sums, buffer, …), store(sums, to, …)   by all threads of the threadgroup, between barriers; `store` fills 64 · BLOCKS·8 floats
 *   value_at(stored, row, output)       of a pair silu(gate) · up */
#ifndef CALLA_BACKEND_METAL_GEMM_H
#define CALLA_BACKEND_METAL_GEMM_H

#include "backend/metal/args.h"
#include "backend/metal/common.h"

enum { GEMM_ROWS = METAL_GEMM_ROWS, GEMM_ROW_BLOCKS = GEMM_ROWS / 8, GEMM_NO_ROW = 0xFFFFFFFFu };

/* ---- weights: 8 consecutive inputs of a row ---- */

struct gemm_codes { /* as in memory */
    uint4 codes;
    float scale, bias;
};

template <int BITS> struct gemm_weight_row { /* a row of a matrix as one thread reads it */
    device const uint8_t *codes;
    device const uint16_t *scales, *biases;
    uint shift; /* log2 of the group */
};

template <int BITS> static gemm_weight_row<BITS> gemm_row_of(constant metal_mat &m, uint matrix, uint row) {
    const ulong r = (ulong)matrix * m.rows + row;
    gemm_weight_row<BITS> w;
    w.codes = m.codes + r * (m.cols / 8 * BITS);
    w.scales = m.scales + r * m.groups;
    w.biases = m.biases + r * m.groups;
    w.shift = BITS == 16 ? 0 : 31 - clz(m.group);
    return w;
}

template <int BITS> static gemm_codes gemm_fetch(thread const gemm_weight_row<BITS> &w, uint k) {
    gemm_codes c;
    device const uint8_t *p = w.codes + k / 8 * BITS;
    if (BITS == 4) {
        c.codes = uint4(*(device const uint *)p, 0, 0, 0);
    } else if (BITS == 8) {
        const uint2 x = *(device const uint2 *)p;
        c.codes = uint4(x.x, x.y, 0, 0);
    } else {
        c.codes = *(device const uint4 *)p;
    }
    c.scale = BITS == 16 ? 0.0f : bf16_to_float(w.scales[k >> w.shift]);
    c.bias = BITS == 16 ? 0.0f : bf16_to_float(w.biases[k >> w.shift]);
    return c;
}

/* Input i of 8. */
template <int BITS> static float gemm_decode(thread const gemm_codes &c, uint i) {
    if (BITS == 4) return c.scale * float(c.codes.x >> (4 * i) & 15) + c.bias;
    if (BITS == 8) return c.scale * float(c.codes[i / 4] >> (8 * (i % 4)) & 255) + c.bias;
    return bf16_to_float(uint16_t(c.codes[i / 2] >> (16 * (i % 2))));
}

/* ---- the product of one tile ---- */

/* T: of the tiles, float (exact: as float32 products, but for the order of sums) or half (fast: rows and weights are rounded to 11 bits,
 * rows beyond ±65504 are cut).  Sums are float32. */
template <typename T> struct gemm_depth {
    enum { value = 16 };
};
template <> struct gemm_depth<half> {
    enum { value = 32 };
};

/* With PAIR the first half of the blocks are rows of `w` and the second the same rows of `up`. */
template <typename T, int SIMDGROUPS_, int OWN, bool PAIR_> struct gemm_shape {
    typedef T value;
    enum {
        PAIR = PAIR_,
        SIMDGROUPS = SIMDGROUPS_,
        DEPTH = gemm_depth<T>::value,
        STEPS8 = DEPTH / 8,
        THREADS = SIMDGROUPS * 32,
        BLOCKS = SIMDGROUPS * OWN, /* of 8 rows of weights */
        OUTPUTS = PAIR ? BLOCKS * 4 : BLOCKS * 8,
        X_VALUES = GEMM_ROWS * DEPTH,
        BUFFER_VALUES = X_VALUES + BLOCKS * 8 * DEPTH
    };
};

static float4 gemm_tile_values(float4 x, thread const float &) { return x; }
static half4 gemm_tile_values(float4 x, thread const half &) { return half4(clamp(x, float4(-65504.0f), float4(65504.0f))); }

/* x: the tile's rows of x, row[i] (GEMM_NO_ROW: zero) for item i of a thread, as x_row has it. */
template <class TILES, int BITS> struct gemm_product {
    typedef typename TILES::shape S;
    typedef typename S::value T;
    enum {
        X_ITEMS = GEMM_ROWS * S::DEPTH / 4 / S::THREADS,                /* of 4 values, per thread */
        W_ITEMS = (S::BLOCKS * S::DEPTH + S::THREADS - 1) / S::THREADS, /* of 8 values */
    };

    /* One thread's share of a step. */
    device const float *x_from[X_ITEMS];
    bool x_there[X_ITEMS];
    gemm_weight_row<BITS> w_from[W_ITEMS];
    float4 x_next[X_ITEMS];
    gemm_codes w_next[W_ITEMS];

    static uint x_row(uint thread_index, uint item) { return (thread_index + item * S::THREADS) / (S::DEPTH / 4); }
    static bool has_weights(uint thread_index, uint item) { return thread_index + item * S::THREADS < S::BLOCKS * S::DEPTH; }

    void from_rows(device const float *x, uint stride, thread const uint (&row)[X_ITEMS]) {
        for (uint i = 0; i < X_ITEMS; i++) {
            x_there[i] = row[i] != GEMM_NO_ROW;
            x_from[i] = x + (ulong)(x_there[i] ? row[i] : 0) * stride;
        }
    }
    void from_weights(constant metal_mat &w, constant metal_mat &up, uint matrix, uint first_output, uint thread_index) {
        for (uint i = 0; i < W_ITEMS; i++) {
            const uint tile_row = (thread_index + i * S::THREADS) / S::STEPS8;
            const bool of_up = S::PAIR && tile_row >= S::OUTPUTS;
            const uint row = min(first_output + (of_up ? tile_row - S::OUTPUTS : tile_row), w.rows - 1);
            if (has_weights(thread_index, i)) w_from[i] = of_up ? gemm_row_of<BITS>(up, matrix, row) : gemm_row_of<BITS>(w, matrix, row);
        }
    }

    void fetch_step(uint k, uint thread_index) {
#pragma unroll
        for (uint i = 0; i < X_ITEMS; i++) {
            const uint item = thread_index + i * S::THREADS;
            x_next[i] = x_there[i] ? *(device const float4 *)(x_from[i] + k + item % (S::DEPTH / 4) * 4) : float4(0.0f);
        }
#pragma unroll
        for (uint i = 0; i < W_ITEMS; i++)
            if (has_weights(thread_index, i)) w_next[i] = gemm_fetch<BITS>(w_from[i], k + (thread_index + i * S::THREADS) % S::STEPS8 * 8);
    }
    void put_step(threadgroup T *buffer, uint thread_index) {
#pragma unroll
        for (uint i = 0; i < X_ITEMS; i++) {
            const uint item = thread_index + i * S::THREADS, row = item / (S::DEPTH / 4), k = item % (S::DEPTH / 4) * 4;
            *(threadgroup vec<T, 4> *)(buffer + TILES::x_at(row, k)) = gemm_tile_values(x_next[i], T(0));
        }
#pragma unroll
        for (uint i = 0; i < W_ITEMS; i++) {
            const uint item = thread_index + i * S::THREADS, row = item / S::STEPS8, step = item % S::STEPS8;
            if (!has_weights(thread_index, i)) continue;
#pragma unroll
            for (uint j = 0; j < 8; j++) buffer[S::X_VALUES + TILES::w_at(row, step * 8 + j)] = T(gemm_decode<BITS>(w_next[i], j));
        }
    }

    /* All steps of inputs first … end - 1, of which `shared` then has the sums; before it is written anew there has to be a barrier. */
    void run(uint first, uint end, uint row_blocks, threadgroup float *shared, uint thread_index, uint simdgroup) {
        threadgroup T *buffers = (threadgroup T *)shared;
        auto sums = TILES::sums();
        TILES::clear(sums);
        fetch_step(first, thread_index);
        put_step(buffers, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint now = 0;
        for (uint k = first + S::DEPTH; k < end; k += S::DEPTH) {
            fetch_step(k, thread_index);
            TILES::multiply(sums, buffers + now * S::BUFFER_VALUES, simdgroup, row_blocks);
            now ^= 1;
            put_step(buffers + now * S::BUFFER_VALUES, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        TILES::multiply(sums, buffers + now * S::BUFFER_VALUES, simdgroup, row_blocks);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        TILES::store(sums, shared, simdgroup, row_blocks);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
};

/* ---- dense ---- */

template <class TILES, int BITS>
static void gemm_dense(constant metal_gemm_args &a, uint rows, uint parts, threadgroup float *shared, uint3 group, uint thread_index,
                       uint simdgroup) {
    typedef gemm_product<TILES, BITS> P;
    typedef typename TILES::shape S;
    const uint first_row = group.y * GEMM_ROWS, first_output = group.x * S::OUTPUTS;
    if (first_row >= rows || first_output >= a.w.rows) return;
    const uint n = min((uint)GEMM_ROWS, rows - first_row), outputs = min((uint)S::OUTPUTS, a.w.rows - first_output);
    P p;
    uint row[P::X_ITEMS];
    for (uint i = 0; i < P::X_ITEMS; i++) {
        const uint r = P::x_row(thread_index, i);
        row[i] = r < n ? first_row + r : GEMM_NO_ROW;
    }
    p.from_rows(a.x, a.x_stride, row);
    p.from_weights(a.w, a.up, 0, first_output, thread_index);
    const uint chunks = a.w.cols / 32, first = chunks * group.z / parts * 32, end = chunks * (group.z + 1) / parts * 32;
    p.run(first, end, (n + 7) / 8, shared, thread_index, simdgroup);
    for (uint i = thread_index; i < n * S::OUTPUTS; i += S::THREADS) {
        const uint r = i / S::OUTPUTS, o = i % S::OUTPUTS;
        if (o >= outputs) continue;
        device float *out = a.out + ((ulong)group.z * rows + first_row + r) * a.out_stride + first_output + o;
        const float sum = TILES::value_at(shared, r, o);
        *out = S::PAIR || !a.add ? sum : *out + (a.scale ? a.scale[first_row + r] * sum : sum);
    }
}

template <class TILES, int BITS>
kernel void gemm(constant metal_gemm_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]], threadgroup float *shared TG_ARG(0),
                 uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    gemm_dense<TILES, BITS>(a, t.rows, a.in_parts ? t.router_parts : 1, shared, group, thread_index, simdgroup);
}

/* ---- grouped by expert ---- */

/* All rows of expert group.y, 64 at a time.  Of a pair (gate and up) rows of moe_in; else down of places. */
template <class TILES, int BITS>
static void gemm_grouped(constant metal_expert_gemm_args &a, threadgroup float *shared, uint2 group, uint thread_index, uint simdgroup) {
    typedef gemm_product<TILES, BITS> P;
    typedef typename TILES::shape S;
    const uint first = a.first[group.y], end = a.first[group.y + 1], first_output = group.x * S::OUTPUTS;
    constant metal_mat &w = S::PAIR ? a.gate : a.down;
    if (first >= end || first_output >= w.rows) return;
    const uint outputs = min((uint)S::OUTPUTS, w.rows - first_output);
    device const float *x = S::PAIR ? a.moe_in : (device const float *)a.places;
    device float *to = S::PAIR ? a.places : a.partial;
    P p;
    p.from_weights(w, a.up, group.y, first_output, thread_index);
    for (uint at = first; at < end; at += GEMM_ROWS) {
        const uint n = min((uint)GEMM_ROWS, end - at);
        uint row[P::X_ITEMS];
        for (uint i = 0; i < P::X_ITEMS; i++) {
            const uint r = P::x_row(thread_index, i), place = r < n ? a.place[at + r] : GEMM_NO_ROW;
            row[i] = S::PAIR && r < n ? place / a.top_k : place;
        }
        p.from_rows(x, w.cols, row);
        p.run(0, w.cols, (n + 7) / 8, shared, thread_index, simdgroup);
        for (uint i = thread_index; i < n * S::OUTPUTS; i += S::THREADS) {
            const uint r = i / S::OUTPUTS, o = i % S::OUTPUTS;
            if (o < outputs) to[(ulong)a.place[at + r] * w.rows + first_output + o] = TILES::value_at(shared, r, o);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template <class TILES, int BITS>
kernel void expert_gemm(constant metal_expert_gemm_args &a [[buffer(0)]], threadgroup float *shared TG_ARG(0),
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    gemm_grouped<TILES, BITS>(a, shared, group.xy, thread_index, simdgroup);
}

#endif

/* gemm.metal: products of many rows with quantized matrices: dense, gate and up with SwiGLU, and grouped by expert.
 *
 * A threadgroup computes 64 rows by BLOCKS·8 outputs.  Each step takes DEPTH inputs: the weights are dequantized into threadgroup memory,
 * once for all 64 rows, and the rows are copied beside them; both in blocks of 8 × 8 that lie together, so that simdgroup_load reads 256
 * consecutive bytes.  There are two such buffers: while one is multiplied, the bytes of the next step are on their way to registers.
 * A simdgroup holds all 64 rows of OWN blocks of outputs; blocks of 8 rows that are not there are not multiplied.
 *
 * T is the type of the tiles: float (exact: as float32 products, but for the order of sums) or half (fast: rows and weights are rounded to
 * 11 bits, rows beyond ±65504 are cut).  Sums are float32.  Inputs are a multiple of 32. */
#include <metal_stdlib>
using namespace metal;

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

template <typename T> struct gemm_depth {
    enum { value = 16 };
};
template <> struct gemm_depth<half> {
    enum { value = 32 };
};

static float4 gemm_tile_values(float4 x, thread const float &) { return x; }
static half4 gemm_tile_values(float4 x, thread const half &) { return half4(clamp(x, float4(-65504.0f), float4(65504.0f))); }

/* acc[8 rows][own block of outputs] of T-typed tiles; simdgroup s owns blocks s, s + SIMDGROUPS, …; with PAIR the first half of the blocks
 * are rows of `w` and the second the same rows of `up`.  x: the tile's rows of x, x_of[r] (GEMM_NO_ROW: zero) for r = thread·…, as
 * load_rows has it. */
template <typename T, int BITS, int SIMDGROUPS, int OWN, bool PAIR> struct gemm_product {
    enum {
        DEPTH = gemm_depth<T>::value,
        STEPS8 = DEPTH / 8,
        THREADS = SIMDGROUPS * 32,
        BLOCKS = SIMDGROUPS * OWN, /* of 8 rows of weights */
        OUTPUTS = PAIR ? BLOCKS * 4 : BLOCKS * 8,
        X_ITEMS = GEMM_ROWS * DEPTH / 4 / THREADS,          /* of 4 values, per thread */
        W_ITEMS = (BLOCKS * DEPTH + THREADS - 1) / THREADS, /* of 8 values */
        X_VALUES = GEMM_ROWS * DEPTH,
        BUFFER_VALUES = X_VALUES + BLOCKS * 8 * DEPTH
    };

    simdgroup_float8x8 acc[GEMM_ROW_BLOCKS][OWN];

    /* One thread's share of a step. */
    device const float *x_from[X_ITEMS];
    bool x_there[X_ITEMS];
    gemm_weight_row<BITS> w_from[W_ITEMS];
    float4 x_next[X_ITEMS];
    gemm_codes w_next[W_ITEMS];

    static uint x_row(uint thread_index, uint item) { return (thread_index + item * THREADS) / (DEPTH / 4); }
    static bool has_weights(uint thread_index, uint item) { return thread_index + item * THREADS < BLOCKS * DEPTH; }

    void from_rows(device const float *x, uint stride, thread const uint (&row)[X_ITEMS]) {
        for (uint i = 0; i < X_ITEMS; i++) {
            x_there[i] = row[i] != GEMM_NO_ROW;
            x_from[i] = x + (ulong)(x_there[i] ? row[i] : 0) * stride;
        }
    }
    void from_weights(constant metal_mat &w, constant metal_mat &up, uint matrix, uint first_output, uint thread_index) {
        for (uint i = 0; i < W_ITEMS; i++) {
            const uint tile_row = (thread_index + i * THREADS) / STEPS8;
            const bool of_up = PAIR && tile_row >= OUTPUTS;
            const uint row = min(first_output + (of_up ? tile_row - OUTPUTS : tile_row), w.rows - 1);
            if (has_weights(thread_index, i)) w_from[i] = of_up ? gemm_row_of<BITS>(up, matrix, row) : gemm_row_of<BITS>(w, matrix, row);
        }
    }

    void fetch_step(uint k, uint thread_index) {
#pragma unroll
        for (uint i = 0; i < X_ITEMS; i++) {
            const uint item = thread_index + i * THREADS;
            x_next[i] = x_there[i] ? *(device const float4 *)(x_from[i] + k + item % (DEPTH / 4) * 4) : float4(0.0f);
        }
#pragma unroll
        for (uint i = 0; i < W_ITEMS; i++)
            if (has_weights(thread_index, i)) w_next[i] = gemm_fetch<BITS>(w_from[i], k + (thread_index + i * THREADS) % STEPS8 * 8);
    }
    void put_step(threadgroup T *buffer, uint thread_index) {
#pragma unroll
        for (uint i = 0; i < X_ITEMS; i++) {
            const uint item = thread_index + i * THREADS, row = item / (DEPTH / 4), k = item % (DEPTH / 4) * 4;
            *(threadgroup vec<T, 4> *)(buffer + ((row / 8 * STEPS8 + k / 8) * 8 + row % 8) * 8 + k % 8) = gemm_tile_values(x_next[i], T(0));
        }
#pragma unroll
        for (uint i = 0; i < W_ITEMS; i++) {
            const uint item = thread_index + i * THREADS, row = item / STEPS8, step = item % STEPS8;
            if (!has_weights(thread_index, i)) continue;
            threadgroup T *to = buffer + X_VALUES + (step * BLOCKS + row / 8) * 64 + row % 8;
#pragma unroll
            for (uint j = 0; j < 8; j++) to[j * 8] = T(gemm_decode<BITS>(w_next[i], j));
        }
    }
    void multiply(threadgroup const T *buffer, uint simdgroup, uint row_blocks) {
#pragma unroll
        for (uint step = 0; step < STEPS8; step++) {
            simdgroup_matrix<T, 8, 8> x, w[OWN];
#pragma unroll
            for (uint j = 0; j < OWN; j++) simdgroup_load(w[j], buffer + X_VALUES + (step * BLOCKS + simdgroup + j * SIMDGROUPS) * 64, 8);
#pragma unroll
            for (uint r = 0; r < GEMM_ROW_BLOCKS; r++) {
                if (r >= row_blocks) continue;
                simdgroup_load(x, buffer + (r * STEPS8 + step) * 64, 8);
#pragma unroll
                for (uint j = 0; j < OWN; j++) simdgroup_multiply_accumulate(acc[r][j], x, w[j], acc[r][j]);
            }
        }
    }

    /* All steps of inputs first … end - 1; afterwards the buffers may be written anew. */
    void run(uint first, uint end, uint row_blocks, threadgroup T *buffers, uint thread_index, uint simdgroup) {
        for (uint r = 0; r < GEMM_ROW_BLOCKS; r++)
            for (uint j = 0; j < OWN; j++) acc[r][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        fetch_step(first, thread_index);
        put_step(buffers, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint now = 0;
        for (uint k = first + DEPTH; k < end; k += DEPTH) {
            fetch_step(k, thread_index);
            multiply(buffers + now * BUFFER_VALUES, simdgroup, row_blocks);
            now ^= 1;
            put_step(buffers + now * BUFFER_VALUES, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        multiply(buffers + now * BUFFER_VALUES, simdgroup, row_blocks);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    /* The sums as [64][OUTPUTS] floats in threadgroup memory; of a pair silu(gate) · up. */
    void store(threadgroup float *to, uint simdgroup, uint row_blocks) {
#pragma unroll
        for (uint r = 0; r < GEMM_ROW_BLOCKS; r++) {
            if (r >= row_blocks) continue;
            if (PAIR) {
#pragma unroll
                for (uint j = 0; j < OWN / 2; j++) {
                    thread auto &gate = acc[r][j].thread_elements();
                    thread auto &up = acc[r][j + OWN / 2].thread_elements();
                    gate[0] = silu(gate[0]) * up[0];
                    gate[1] = silu(gate[1]) * up[1];
                }
            }
#pragma unroll
            for (uint j = 0; j < (PAIR ? OWN / 2 : OWN); j++)
                simdgroup_store(acc[r][j], to + r * 8 * OUTPUTS + (simdgroup + j * SIMDGROUPS) * 8, OUTPUTS);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
};

/* ---- dense ---- */

template <typename T, int BITS, int SIMDGROUPS, int OWN, bool PAIR>
static void gemm_dense(constant metal_gemm_args &a, uint rows, uint parts, threadgroup float *shared, uint3 group, uint thread_index,
                       uint simdgroup) {
    typedef gemm_product<T, BITS, SIMDGROUPS, OWN, PAIR> P;
    const uint first_row = group.y * GEMM_ROWS, first_output = group.x * P::OUTPUTS;
    if (first_row >= rows || first_output >= a.w.rows) return;
    const uint n = min((uint)GEMM_ROWS, rows - first_row), outputs = min((uint)P::OUTPUTS, a.w.rows - first_output);
    P p;
    uint row[P::X_ITEMS];
    for (uint i = 0; i < P::X_ITEMS; i++) {
        const uint r = P::x_row(thread_index, i);
        row[i] = r < n ? first_row + r : GEMM_NO_ROW;
    }
    p.from_rows(a.x, a.x_stride, row);
    p.from_weights(a.w, a.up, 0, first_output, thread_index);
    const uint chunks = a.w.cols / 32, first = chunks * group.z / parts * 32, end = chunks * (group.z + 1) / parts * 32;
    p.run(first, end, (n + 7) / 8, (threadgroup T *)shared, thread_index, simdgroup);
    p.store(shared, simdgroup, (n + 7) / 8);
    for (uint i = thread_index; i < n * P::OUTPUTS; i += P::THREADS) {
        const uint r = i / P::OUTPUTS, o = i % P::OUTPUTS;
        if (o >= outputs) continue;
        device float *out = a.out + ((ulong)group.z * rows + first_row + r) * a.out_stride + first_output + o;
        const float sum = shared[i];
        *out = PAIR || !a.add ? sum : *out + (a.scale ? a.scale[first_row + r] * sum : sum);
    }
}

template <typename T, int BITS, int SIMDGROUPS, int OWN, bool PAIR>
kernel void gemm(constant metal_gemm_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]], threadgroup float *shared TG_ARG(0),
                 uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    gemm_dense<T, BITS, SIMDGROUPS, OWN, PAIR>(a, t.rows, a.in_parts ? t.router_parts : 1, shared, group, thread_index, simdgroup);
}
KERNEL_INSTANCE("gemm_q4_exact", gemm<float, 4, 4, 2, false>)
KERNEL_INSTANCE("gemm_q8_exact", gemm<float, 8, 4, 2, false>)
KERNEL_INSTANCE("gemm_b16_exact", gemm<float, 16, 4, 2, false>)
KERNEL_INSTANCE("gemm_q4_fast", gemm<half, 4, 4, 2, false>)
KERNEL_INSTANCE("gemm_q8_fast", gemm<half, 8, 4, 2, false>)
KERNEL_INSTANCE("gemm_b16_fast", gemm<half, 16, 4, 2, false>)
KERNEL_INSTANCE("gemm_narrow_q4_exact", gemm<float, 4, 2, 1, false>)
KERNEL_INSTANCE("gemm_narrow_q8_exact", gemm<float, 8, 2, 1, false>)
KERNEL_INSTANCE("gemm_narrow_b16_exact", gemm<float, 16, 2, 1, false>)
KERNEL_INSTANCE("gemm_narrow_q4_fast", gemm<half, 4, 2, 1, false>)
KERNEL_INSTANCE("gemm_narrow_q8_fast", gemm<half, 8, 2, 1, false>)
KERNEL_INSTANCE("gemm_narrow_b16_fast", gemm<half, 16, 2, 1, false>)
KERNEL_INSTANCE("gemm_swiglu_q4_exact", gemm<float, 4, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_q8_exact", gemm<float, 8, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_b16_exact", gemm<float, 16, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_q4_fast", gemm<half, 4, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_q8_fast", gemm<half, 8, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_b16_fast", gemm<half, 16, 4, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q4_exact", gemm<float, 4, 2, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q8_exact", gemm<float, 8, 2, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_b16_exact", gemm<float, 16, 2, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q4_fast", gemm<half, 4, 2, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q8_fast", gemm<half, 8, 2, 2, true>)
KERNEL_INSTANCE("gemm_swiglu_narrow_b16_fast", gemm<half, 16, 2, 2, true>)

/* ---- grouped by expert ---- */

/* All rows of expert group.y, 64 at a time.  IN: gate and up of rows of moe_in; else down of places. */
template <typename T, int BITS, bool IN>
static void gemm_grouped(constant metal_expert_gemm_args &a, threadgroup float *shared, uint2 group, uint thread_index, uint simdgroup) {
    typedef gemm_product<T, BITS, 4, 2, IN> P;
    const uint first = a.first[group.y], end = a.first[group.y + 1], first_output = group.x * P::OUTPUTS;
    constant metal_mat &w = IN ? a.gate : a.down;
    if (first >= end || first_output >= w.rows) return;
    const uint outputs = min((uint)P::OUTPUTS, w.rows - first_output);
    device const float *x = IN ? a.moe_in : (device const float *)a.places;
    device float *to = IN ? a.places : a.partial;
    P p;
    p.from_weights(w, a.up, group.y, first_output, thread_index);
    for (uint at = first; at < end; at += GEMM_ROWS) {
        const uint n = min((uint)GEMM_ROWS, end - at);
        uint row[P::X_ITEMS];
        for (uint i = 0; i < P::X_ITEMS; i++) {
            const uint r = P::x_row(thread_index, i), place = r < n ? a.place[at + r] : GEMM_NO_ROW;
            row[i] = IN && r < n ? place / a.top_k : place;
        }
        p.from_rows(x, w.cols, row);
        p.run(0, w.cols, (n + 7) / 8, (threadgroup T *)shared, thread_index, simdgroup);
        p.store(shared, simdgroup, (n + 7) / 8);
        for (uint i = thread_index; i < n * P::OUTPUTS; i += P::THREADS) {
            const uint r = i / P::OUTPUTS, o = i % P::OUTPUTS;
            if (o < outputs) to[(ulong)a.place[at + r] * w.rows + first_output + o] = shared[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template <typename T, int BITS, bool IN>
kernel void expert_gemm(constant metal_expert_gemm_args &a [[buffer(0)]], threadgroup float *shared TG_ARG(0),
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    gemm_grouped<T, BITS, IN>(a, shared, group.xy, thread_index, simdgroup);
}
KERNEL_INSTANCE("expert_gemm_in_q4_exact", expert_gemm<float, 4, true>)
KERNEL_INSTANCE("expert_gemm_in_q8_exact", expert_gemm<float, 8, true>)
KERNEL_INSTANCE("expert_gemm_in_b16_exact", expert_gemm<float, 16, true>)
KERNEL_INSTANCE("expert_gemm_in_q4_fast", expert_gemm<half, 4, true>)
KERNEL_INSTANCE("expert_gemm_in_q8_fast", expert_gemm<half, 8, true>)
KERNEL_INSTANCE("expert_gemm_in_b16_fast", expert_gemm<half, 16, true>)
KERNEL_INSTANCE("expert_gemm_out_q4_exact", expert_gemm<float, 4, false>)
KERNEL_INSTANCE("expert_gemm_out_q8_exact", expert_gemm<float, 8, false>)
KERNEL_INSTANCE("expert_gemm_out_b16_exact", expert_gemm<float, 16, false>)
KERNEL_INSTANCE("expert_gemm_out_q4_fast", expert_gemm<half, 4, false>)
KERNEL_INSTANCE("expert_gemm_out_q8_fast", expert_gemm<half, 8, false>)
KERNEL_INSTANCE("expert_gemm_out_b16_fast", expert_gemm<half, 16, false>)

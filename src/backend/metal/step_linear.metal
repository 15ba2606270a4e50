/* step_linear.metal: products of a few rows with one matrix, or with gate and up of the shared expert; the embedding; the head with the
 * largest logits (step.h has the core). */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/step.h"

/* ---- one matrix ---- */

template <int BITS, int ROWS, class IN>
static void linear(constant metal_linear_args &a, thread IN &in, uint first_output, uint lane) {
    matrix_row<BITS> w[STEP_OUTPUTS];
#pragma unroll
    for (uint o = 0; o < STEP_OUTPUTS; o++) w[o] = row_of<BITS>(a.w, 0, first_output + o);
    row_sums<ROWS> acc;
    rows_times<BITS, ROWS>(w, a.w.cols, group_shift(a.w), lane, in, acc);
    const float sum = sums_of<ROWS>(acc, in, lane);
    const uint r = lane / STEP_OUTPUTS, o = first_output + lane % STEP_OUTPUTS;
    if (r >= ROWS || !in.has(r) || o >= a.w.rows) return;
    device float *out = a.out + r * a.out_stride + o;
    *out = a.add ? *out + sum : sum;
}

/* The normed rows to where others look for them, by the simdgroups of one threadgroup. */
template <int ROWS> static void leave_normed(constant metal_input &a, thread const norm_input<ROWS> &in, uint thread_index) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        if (!in.has(r)) continue;
        const float factor = in.factor(r);
        for (uint k = thread_index * 4; k < in.cols; k += METAL_LINEAR_THREADS * 4)
            *(device float4 *)(a.normed + r * in.cols + k) = in.quad(r, k) * factor;
    }
}

template <int BITS, int ROWS>
kernel void step_linear(constant metal_linear_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint first_output = group.x * METAL_LINEAR_OUTPUTS + simdgroup * STEP_OUTPUTS;
    row_set<ROWS> set;
    set.every_row(a.in, ROWS == 1 ? 1 : t.rows);
    if (a.in.source == METAL_NORM) {
        norm_input<ROWS> in;
        in.set = set;
        in.open(a.in, a.w.cols);
        linear<BITS, ROWS>(a, in, first_output, lane);
        if (a.in.normed && group.x == 0) leave_normed<ROWS>(a.in, in, thread_index);
    } else if (a.in.source == METAL_GATED_NORM) {
        gated_norm_input<ROWS> in;
        in.set = set;
        in.gain = a.in.gain;
        in.gate = a.in.gate;
        in.gate_stride = a.in.gate_stride;
        in.eps = a.in.eps;
        linear<BITS, ROWS>(a, in, first_output, lane);
    } else if (a.in.source == METAL_GATED) {
        gated_input<ROWS> in;
        in.set = set;
        in.gate = a.in.gate;
        in.gate_stride = a.in.gate_stride;
        linear<BITS, ROWS>(a, in, first_output, lane);
    } else {
        plain_input<ROWS> in;
        in.set = set;
        linear<BITS, ROWS>(a, in, first_output, lane);
    }
}
KERNEL_INSTANCE("step_linear_q4_r1", step_linear<4, 1>)
KERNEL_INSTANCE("step_linear_q8_r1", step_linear<8, 1>)
KERNEL_INSTANCE("step_linear_b16_r1", step_linear<16, 1>)
KERNEL_INSTANCE("step_linear_q4_r8", step_linear<4, 8>)
KERNEL_INSTANCE("step_linear_q8_r8", step_linear<8, 8>)
KERNEL_INSTANCE("step_linear_b16_r8", step_linear<16, 8>)

/* ---- gate and up ---- */

template <int BITS, int ROWS>
kernel void step_swiglu(constant metal_swiglu_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint first_output = group.x * METAL_SWIGLU_OUTPUTS + simdgroup * 2;
    norm_input<ROWS> in;
    in.set.every_row(a.in, ROWS == 1 ? 1 : t.rows);
    in.open(a.in, a.gate.cols);
    matrix_row<BITS> w[STEP_OUTPUTS];
    pair_rows<BITS>(a.gate, a.up, 0, first_output, w);
    row_sums<ROWS> acc;
    rows_times<BITS, ROWS>(w, a.gate.cols, group_shift(a.gate), lane, in, acc);
    const float value = swiglu_of(sums_of<ROWS>(acc, in, lane));
    const uint r = lane / STEP_OUTPUTS, i = lane % STEP_OUTPUTS;
    if (r < ROWS && in.has(r) && i < 2 && first_output + i < a.gate.rows) a.out[r * a.out_stride + first_output + i] = value;
}
KERNEL_INSTANCE("step_swiglu_q4_r1", step_swiglu<4, 1>)
KERNEL_INSTANCE("step_swiglu_q8_r1", step_swiglu<8, 1>)
KERNEL_INSTANCE("step_swiglu_b16_r1", step_swiglu<16, 1>)
KERNEL_INSTANCE("step_swiglu_q4_r8", step_swiglu<4, 8>)
KERNEL_INSTANCE("step_swiglu_q8_r8", step_swiglu<8, 8>)
KERNEL_INSTANCE("step_swiglu_b16_r8", step_swiglu<16, 8>)

/* ---- embedding ---- */

/* Values k … k + 3 of a row, in any format. */
static float4 embedding_of(constant metal_mat &m, uint row, uint k) {
    device const uint8_t *codes = m.codes + (ulong)row * (m.cols / 8 * m.bits) + k / 4 * (m.bits / 2);
    if (m.bits == 16) {
        const uint2 v = *(device const uint2 *)codes;
        return float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
    }
    const ulong group = (ulong)row * m.groups + k / m.group;
    const float scale = bf16_to_float(m.scales[group]), bias = bf16_to_float(m.biases[group]);
    if (m.bits == 8) {
        const uint v = *(device const uint *)codes;
        return float4(uint4(v, v >> 8, v >> 16, v >> 24) & 0xFF) * scale + bias;
    }
    const uint v = *(device const uint16_t *)codes;
    return float4(uint4(v, v >> 4, v >> 8, v >> 12) & 0xF) * scale + bias;
}

/* The better of each lane's; the same in all lanes. */
static metal_best best_of_lanes(metal_best b) {
    metal_best all;
    all.value = simd_max(b.value);
    all.id = simd_min(b.value == all.value ? b.id : 0xFFFFFFFFu);
    return all;
}

static metal_best better(metal_best a, metal_best b) { return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a; }

/* From and to any address space: structures are not assigned across them. */
template <class P> static metal_best load_best(P from) {
    const metal_best b = {from->value, from->id};
    return b;
}
template <class P> static void store_best(P to, metal_best b) {
    to->value = b.value;
    to->id = b.id;
}

/* Nothing was picked: whoever reads that ends the sequence, and any row will do. */
static uint row_of_best(metal_best b) { return b.id == 0xFFFFFFFFu ? 0 : b.id; }

/* The best of METAL_HEAD_GROUPS groups, those first, first + step, …; by the lanes of a simdgroup. */
static metal_best best_of_groups(device const metal_best *from, uint first, uint step, uint lane) {
    metal_best b = {-INFINITY, 0xFFFFFFFFu};
    for (uint i = first + lane; i < METAL_HEAD_GROUPS; i += step) b = better(b, load_best(from + i));
    return best_of_lanes(b);
}

/* The row's token: what the host says, or what the step before picked. */
kernel void embed(constant metal_embed_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                  uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    const int id = t.ids[group.x];
    uint row = (uint)id;
    if (id < 0) row = row_of_best(best_of_groups(t.best_before + (uint)(-1 - id) * METAL_HEAD_GROUPS, 0, STEP_WIDTH, lane));
    for (uint k = thread_index * 4; k < a.w.cols; k += 256 * 4)
        *(device float4 *)(a.residual + (ulong)group.x * a.w.cols + k) = embedding_of(a.w, row, k);
}

/* rmsnorm(embedding) · gain */
template <int ROWS> struct embedding_input {
    struct {
        uint rows;
    } set;
    constant metal_mat *embed;
    device const float *gain;
    uint row[ROWS];
    float squares[ROWS], eps;

    bool has(uint r) const { return r < set.rows; }
    void begin(uint chunk, bool here) {
        if (!here) return;
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
            if (!has(r)) continue;
            for (uint j = 0; j < STEP_CHUNK / 4; j++) {
                const float4 v = embedding_of(*embed, row[r], chunk * STEP_CHUNK + 4 * j);
                squares[r] += dot(v, v);
            }
        }
    }
    float4 quad(uint r, uint k) const { return embedding_of(*embed, row[r], k) * *(device const float4 *)(gain + k); }
    float factor(uint r) const { return rsqrt(simd_sum(squares[r]) / float(embed->cols) + eps); }
};

/* best: one for each row and simdgroup. */
template <int BITS, int ROWS>
kernel void step_embed_linear(constant metal_embed_linear_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                              threadgroup metal_best *best TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    enum { SIMDGROUPS = METAL_LINEAR_THREADS / STEP_WIDTH };
    embedding_input<ROWS> in;
    in.embed = &a.embed;
    in.gain = a.linear.in.gain;
    in.eps = a.linear.in.eps;
    in.set.rows = ROWS == 1 ? 1 : t.rows;
    for (uint r = 0; r < in.set.rows; r++) {
        const int id = t.ids[r];
        if (id >= 0) continue;
        const metal_best b = best_of_groups(t.best_before + (uint)(-1 - id) * METAL_HEAD_GROUPS, simdgroup * STEP_WIDTH,
                                            METAL_LINEAR_THREADS, lane);
        if (lane == 0) store_best(best + r * SIMDGROUPS + simdgroup, b);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        in.squares[r] = 0;
        in.row[r] = 0;
        if (!in.has(r)) continue;
        const int id = t.ids[r];
        in.row[r] = (uint)id;
        if (id >= 0) continue;
        metal_best b = load_best(best + r * SIMDGROUPS);
        for (uint i = 1; i < SIMDGROUPS; i++) b = better(b, load_best(best + r * SIMDGROUPS + i));
        in.row[r] = row_of_best(b);
    }
    linear<BITS, ROWS>(a.linear, in, group.x * METAL_LINEAR_OUTPUTS + simdgroup * STEP_OUTPUTS, lane);
    if (group.x != 0 || !a.residual) return;
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
        for (uint k = thread_index * 4; in.has(r) && k < a.embed.cols; k += METAL_LINEAR_THREADS * 4)
            *(device float4 *)(a.residual + r * a.embed.cols + k) = embedding_of(a.embed, in.row[r], k);
}
KERNEL_INSTANCE("step_embed_linear_q4_r1", step_embed_linear<4, 1>)
KERNEL_INSTANCE("step_embed_linear_q8_r1", step_embed_linear<8, 1>)
KERNEL_INSTANCE("step_embed_linear_b16_r1", step_embed_linear<16, 1>)
KERNEL_INSTANCE("step_embed_linear_q4_r8", step_embed_linear<4, 8>)
KERNEL_INSTANCE("step_embed_linear_q8_r8", step_embed_linear<8, 8>)
KERNEL_INSTANCE("step_embed_linear_b16_r8", step_embed_linear<16, 8>)

/* ---- head ---- */

/* +infinity counts as the largest float, NaN stays one and is never better (backend/ref/sample.h).  min() would give the other number. */
static float candidate(float logit) { return logit > FLT_MAX ? FLT_MAX : logit; }

/* best: one for each row and simdgroup.  Blocks of outputs go round the threadgroups, so that all of them read in one region. */
template <int BITS, int ROWS>
kernel void step_head(constant metal_head_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                      threadgroup metal_best *best TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    enum { SIMDGROUPS = METAL_LINEAR_THREADS / STEP_WIDTH };
    const uint first_row = group.y * ROWS;
    norm_input<ROWS> in;
    in.set.x = a.in.x;
    in.set.rows = min((uint)ROWS, t.wanted - first_row);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) in.set.at[r] = in.has(r) ? t.wanted_row[first_row + r] * a.in.x_stride : 0;
    in.open(a.in, a.w.cols);

    metal_best mine = {-INFINITY, 0xFFFFFFFFu}; /* of this lane's row and its outputs */
    const uint r = lane / STEP_OUTPUTS;
    const bool has_row = r < ROWS && in.has(r), masked = has_row && (t.masked >> (first_row + r) & 1);
    device const uint32_t *mask = t.mask + (first_row + r) * METAL_MASK_WORDS(t.tokens);
    for (uint block = group.x; block * METAL_LINEAR_OUTPUTS < a.w.rows; block += METAL_HEAD_GROUPS) {
        const uint first_output = block * METAL_LINEAR_OUTPUTS + simdgroup * STEP_OUTPUTS, o = first_output + lane % STEP_OUTPUTS;
        matrix_row<BITS> w[STEP_OUTPUTS];
#pragma unroll
        for (uint i = 0; i < STEP_OUTPUTS; i++) w[i] = row_of<BITS>(a.w, 0, first_output + i);
        row_sums<ROWS> acc;
        rows_times<BITS, ROWS>(w, a.w.cols, group_shift(a.w), lane, in, acc);
        in.counting = false;
        const float logit = sums_of<ROWS>(acc, in, lane);
        if (!has_row || o >= a.w.rows) continue;
        a.logits[(ulong)(first_row + r) * a.w.rows + o] = logit;
        if (o >= t.tokens || (masked && !(mask[o / 32] >> o % 32 & 1))) continue;
        if (candidate(logit) > mine.value) {
            mine.value = candidate(logit);
            mine.id = o;
        }
    }
#pragma unroll
    for (uint i = 0; i < ROWS; i++) {
        const metal_best none = {-INFINITY, 0xFFFFFFFFu}, b = best_of_lanes(r == i ? mine : none);
        if (lane == 0) store_best(best + i * SIMDGROUPS + simdgroup, b);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index >= ROWS || !in.has(thread_index)) return;
    metal_best b = load_best(best + thread_index * SIMDGROUPS);
    for (uint i = 1; i < SIMDGROUPS; i++) b = better(b, load_best(best + thread_index * SIMDGROUPS + i));
    store_best(t.best + (first_row + thread_index) * METAL_HEAD_GROUPS + group.x, b);
}
KERNEL_INSTANCE("step_head_q4_r1", step_head<4, 1>)
KERNEL_INSTANCE("step_head_q8_r1", step_head<8, 1>)
KERNEL_INSTANCE("step_head_b16_r1", step_head<16, 1>)
KERNEL_INSTANCE("step_head_q4_r8", step_head<4, 8>)
KERNEL_INSTANCE("step_head_q8_r8", step_head<8, 8>)
KERNEL_INSTANCE("step_head_b16_r8", step_head<16, 8>)

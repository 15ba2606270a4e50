/* step_experts.metal: routing and the experts of a few rows.
 *
 * The chosen experts are found from the router's logits by one simdgroup, in registers, wherever they are needed: that costs a threadgroup
 * less than the barrier that another dispatch in front of it would cost all of them. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/step.h"

/* ---- router ---- */

/* Larger numbers have larger keys; NaN has the smallest.  0 means that there is none.  By bits, so that fast mathematics cannot drop a
 * case. */
static uint key_of(float x) {
    uint u = as_type<uint>(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return 1;
    if (u == 0x80000000u) u = 0; /* -0 equals 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
static float value_of(uint key) { return as_type<float>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

struct choice {
    uint expert;
    float weight;
};

/* One simdgroup: lane i gets the i-th of the top_k largest logits (ties: lowest index) and its softmax among them. */
static choice choose(device const float *logits, uint experts, uint top_k, uint lane) {
    enum { HELD = 8 }; /* of a lane in registers: 256 experts; beyond, memory is read again in every round */
    uint held[HELD];
#pragma unroll
    for (uint i = 0; i < HELD; i++) held[i] = lane + i * STEP_WIDTH < experts ? key_of(logits[lane + i * STEP_WIDTH]) : 0;
    uint last_key = 0xFFFFFFFFu, last = 0, largest = 0, mine_key = 0; /* no key is 0xFFFFFFFF: it would be a NaN's */
    choice mine = {0, 0.0f};
    for (uint k = 0; k < top_k; k++) {
        uint best = 0, at = 0xFFFFFFFFu;
#pragma unroll
        for (uint i = 0; i < HELD; i++) {
            const uint e = lane + i * STEP_WIDTH, key = held[i];
            const bool after = key < last_key || (key == last_key && e > last); /* not taken yet */
            if (after && key > best) {
                best = key;
                at = e;
            }
        }
        for (uint e = lane + HELD * STEP_WIDTH; e < experts; e += STEP_WIDTH) {
            const uint key = key_of(logits[e]);
            const bool after = key < last_key || (key == last_key && e > last);
            if (after && key > best) {
                best = key;
                at = e;
            }
        }
        last_key = simd_max(best);
        last = simd_min(best == last_key ? at : 0xFFFFFFFFu);
        if (k == 0) largest = last_key;
        if (lane != k) continue;
        mine.expert = last;
        mine_key = last_key;
    }
    mine.weight = lane < top_k ? exp(value_of(mine_key) - value_of(largest)) : 0.0f;
    mine.weight /= simd_sum(mine.weight);
    return mine;
}

/* What the next stages read of a row's routing. */
static void leave_choice(constant metal_experts_args &a, uint row, choice c, uint lane) {
    if (lane < a.top_k) {
        a.expert[row * a.top_k + lane] = c.expert;
        a.weight[row * a.top_k + lane] = c.weight;
    }
    if (lane == 0) a.shared_weight[row] = sigmoid(a.logits[(ulong)row * (a.experts + 1) + a.experts]);
}

/* A lane reads back only what it has written: logits lane, lane + 32, …, and lane 0 the shared expert's. */
kernel void route(constant metal_experts_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                  uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const uint stride = a.experts + 1;
    device float *logits = a.logits + (ulong)group.x * stride;
    for (uint part = 1; part < t.router_parts; part++) {
        device const float *more = logits + (ulong)part * t.rows * stride;
        for (uint e = lane; e < a.experts; e += STEP_WIDTH) logits[e] += more[e];
        if (lane == 0) logits[a.experts] += more[a.experts];
    }
    leave_choice(a, group.x, choose(logits, a.experts, a.top_k, lane), lane);
}

/* ---- first half ---- */

/* Some of the rows. */
template <int ROWS> struct chosen_input {
    row_set<ROWS> set;
    uint mask; /* bit r: row r takes part */

    bool has(uint r) const { return mask >> r & 1; }
    void begin(uint, bool) {}
    float4 quad(uint r, uint k) const { return set.value(r, k); }
    float factor(uint) const { return 1.0f; }
};

/* chosen [rows][top_k]: the experts. */
template <int BITS, int ROWS>
kernel void step_experts_in(constant metal_experts_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                            threadgroup uint *chosen TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                            uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint rows = ROWS == 1 ? 1 : t.rows, top_k = a.top_k;
    for (uint r = simdgroup; r < rows; r += METAL_LINEAR_THREADS / STEP_WIDTH) {
        const choice c = choose(a.logits + r * (a.experts + 1), a.experts, top_k, lane);
        if (lane < top_k) chosen[r * top_k + lane] = c.expert;
        if (group.x == 0 && group.y == 0 && group.z == r) leave_choice(a, r, c, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint expert = chosen[group.z * top_k + group.y];
    chosen_input<ROWS> in;
    in.set.x = a.moe_in;
    in.set.rows = rows;
    in.mask = 0;
    uint place = 0; /* of this lane's row */
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        in.set.at[r] = r * a.gate.cols;
        for (uint k = 0; r < rows && k < top_k; k++) {
            if (chosen[r * top_k + k] != expert) continue;
            in.mask |= 1u << r;
            if (lane / STEP_OUTPUTS == r) place = r * top_k + k;
        }
    }
    if (in.mask & ((1u << group.z) - 1)) return; /* a row before has it */

    const uint first_output = group.x * METAL_EXPERT_OUTPUTS + simdgroup * 2;
    matrix_row<BITS> w[STEP_OUTPUTS];
    pair_rows<BITS>(a.gate, a.up, expert, first_output, w);
    row_sums<ROWS> acc;
    rows_times<BITS, ROWS>(w, a.gate.cols, group_shift(a.gate), lane, in, acc);
    const float value = swiglu_of(sums_of<ROWS>(acc, in, lane));
    const uint r = lane / STEP_OUTPUTS, i = lane % STEP_OUTPUTS;
    if (r < ROWS && in.has(r) && i < 2 && first_output + i < a.gate.rows) a.places[place * a.gate.rows + first_output + i] = value;
}
KERNEL_INSTANCE("step_experts_in_q4_r1", step_experts_in<4, 1>)
KERNEL_INSTANCE("step_experts_in_q8_r1", step_experts_in<8, 1>)
KERNEL_INSTANCE("step_experts_in_b16_r1", step_experts_in<16, 1>)
KERNEL_INSTANCE("step_experts_in_q4_r8", step_experts_in<4, 8>)
KERNEL_INSTANCE("step_experts_in_q8_r8", step_experts_in<8, 8>)
KERNEL_INSTANCE("step_experts_in_b16_r8", step_experts_in<16, 8>)

/* ---- second half ----
 *
 * The inputs of the chosen experts' down and of the shared expert's stand in one row, as it were: their chunks fall to the lanes one after
 * the other, so that experts of 512 inputs, half of a simdgroup's, leave no lane idle; and one sum over the lanes adds up the experts. */

/* One chunk's input: of the rows that chose its expert, by the weight that they give it. */
template <int ROWS> struct weighted_input {
    struct {
        uint rows;
    } set;
    device const float *x;
    uint at[ROWS];
    float weight[ROWS];
    uint mask;

    bool has(uint r) const { return mask >> r & 1; }
    float4 quad(uint r, uint k) const { return *(device const float4 *)(x + at[r] + k) * weight[r]; }
    float factor(uint) const { return 1.0f; }
};

template <int BITS, int ROWS>
static void down_times(constant metal_mat &m, uint matrix, uint first_output, uint chunk, thread const weighted_input<ROWS> &in,
                       thread row_sums<ROWS> &acc) {
    weight_chunk<BITS> c[STEP_OUTPUTS];
#pragma unroll
    for (uint o = 0; o < STEP_OUTPUTS; o++) load_chunk(row_of<BITS>(m, matrix, first_output + o), chunk, group_shift(m), c[o]);
    chunk_times<BITS, ROWS>(c, chunk, in, acc);
}

/* In threadgroup memory: the distinct experts of all rows, in order of their first choice, and which choice (from 1) of each row they
 * are. */
struct expert_units {
    uint expert[METAL_STEP_ROWS * METAL_MAX_TOP_K];
    uint8_t choice[METAL_STEP_ROWS * METAL_MAX_TOP_K][METAL_STEP_ROWS];
    uint8_t first[METAL_STEP_ROWS * METAL_MAX_TOP_K]; /* of each place: no place before has its expert */
};
static_assert(sizeof(expert_units) <= METAL_TG_EXPERTS_OUT, "metal_args.h");

/* All threads of the threadgroup; returns how many. */
static uint list_units(constant metal_experts_args &a, uint rows, threadgroup expert_units &u, uint thread_index) {
    const uint places = rows * a.top_k;
    if (thread_index < places) {
        bool again = false;
        for (uint i = 0; i < thread_index; i++) again |= a.expert[i] == a.expert[thread_index];
        u.first[thread_index] = !again;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint units = 0, own = 0;
    for (uint i = 0; i < places; i++) {
        own += i < thread_index ? u.first[i] : 0;
        units += u.first[i];
    }
    if (thread_index < places && u.first[thread_index]) {
        const uint expert = a.expert[thread_index];
        u.expert[own] = expert;
        for (uint r = 0; r < rows; r++) {
            uint choice = 0;
            for (uint k = 0; k < a.top_k; k++)
                if (a.expert[r * a.top_k + k] == expert) choice = k + 1;
            u.choice[own][r] = (uint8_t)choice;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return units;
}

/* units: of _r8 alone. */
template <int BITS, int ROWS>
kernel void step_experts_out(constant metal_experts_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                             threadgroup expert_units *units TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint first_output = group.x * METAL_DOWN_OUTPUTS + simdgroup * STEP_OUTPUTS, top_k = a.top_k;
    const uint width = a.down.cols, shared_width = a.shared_down.cols, per_expert = width / STEP_CHUNK;
    weighted_input<ROWS> in;
    in.set.rows = ROWS == 1 ? 1 : t.rows;
    const uint n = ROWS == 1 ? top_k : list_units(a, in.set.rows, *units, thread_index);
    const uint of_experts = n * per_expert, chunks = of_experts + shared_width / STEP_CHUNK;
    row_sums<ROWS> acc;
    for (uint i = lane; i < chunks; i += STEP_WIDTH) {
        const bool is_shared = i >= of_experts;
        const uint unit = is_shared ? 0 : i / per_expert, chunk = is_shared ? i - of_experts : i - unit * per_expert;
        const uint expert = is_shared ? 0 : ROWS == 1 ? a.expert[unit] : units->expert[unit];
        in.x = is_shared ? (device const float *)a.shared : (device const float *)a.places;
        in.mask = 0;
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
            if (r >= in.set.rows) continue;
            const uint choice = ROWS == 1 || is_shared ? unit + 1 : units->choice[unit][r];
            if (choice == 0) continue;
            const uint place = r * top_k + choice - 1;
            in.mask |= 1u << r;
            in.at[r] = is_shared ? r * shared_width : place * width;
            in.weight[r] = is_shared ? a.shared_weight[r] : a.weight[place];
        }
        if (!is_shared)
            down_times<BITS, ROWS>(a.down, expert, first_output, chunk, in, acc);
        else if (a.shared_down.bits == 4)
            down_times<4, ROWS>(a.shared_down, 0, first_output, chunk, in, acc);
        else if (a.shared_down.bits == 8)
            down_times<8, ROWS>(a.shared_down, 0, first_output, chunk, in, acc);
        else
            down_times<16, ROWS>(a.shared_down, 0, first_output, chunk, in, acc);
    }
    const float sum = sums_of<ROWS>(acc, in, lane);
    const uint r = lane / STEP_OUTPUTS, o = first_output + lane % STEP_OUTPUTS;
    if (r < in.set.rows && o < a.down.rows) a.residual[r * a.down.rows + o] += sum;
}
KERNEL_INSTANCE("step_experts_out_q4_r1", step_experts_out<4, 1>)
KERNEL_INSTANCE("step_experts_out_q8_r1", step_experts_out<8, 1>)
KERNEL_INSTANCE("step_experts_out_b16_r1", step_experts_out<16, 1>)
KERNEL_INSTANCE("step_experts_out_q4_r8", step_experts_out<4, 8>)
KERNEL_INSTANCE("step_experts_out_q8_r8", step_experts_out<8, 8>)
KERNEL_INSTANCE("step_experts_out_b16_r8", step_experts_out<16, 8>)

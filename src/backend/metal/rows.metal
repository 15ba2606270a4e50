/* rows.metal: what many rows need beside products: inputs of products prepared row by row, rows moved together, queries, keys and values
 * normed, rotated and put where attention looks for them, the lists of the experts' rows, and the sum of a row's experts. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"

enum { ROW_THREADS = 256, ROW_SIMDGROUPS = ROW_THREADS / 32, ROW_HEAD = 256, ROW_GDN_HEAD = 128 };

/* The sum over all threads of a threadgroup of ROW_THREADS, in one order. */
static float group_sum(float x, threadgroup float *shared, uint lane, uint simdgroup) {
    x = simd_sum(x);
    if (lane == 0) shared[simdgroup] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0;
    for (uint i = 0; i < ROW_SIMDGROUPS; i++) sum += shared[i];
    return sum;
}

/* Of a part only what it writes is its own: the norm of a row needs all of it. */
kernel void rows_input(constant metal_rows_args &a [[buffer(0)]], threadgroup float *shared TG_ARG(0),
                       uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                       uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint row = group.x, part = (a.cols / groups.y + ROW_GDN_HEAD - 1) / ROW_GDN_HEAD * ROW_GDN_HEAD;
    const uint from = group.y * part, to = group.y + 1 < groups.y ? min(from + part, a.cols) : a.cols;
    device const float *x = a.in.x + (ulong)row * a.in.x_stride;
    device float *out = a.out + (ulong)row * a.cols;
    if (a.in.source == METAL_GATED_NORM) {
        device const float *gate = a.in.gate + (ulong)row * a.in.gate_stride;
        for (uint head = from / ROW_GDN_HEAD + simdgroup; head * ROW_GDN_HEAD < to; head += ROW_SIMDGROUPS) {
            float v[4], squares = 0;
            for (uint i = 0; i < 4; i++) {
                v[i] = x[head * ROW_GDN_HEAD + i * 32 + lane];
                squares += v[i] * v[i];
            }
            const float scale = 1.0f / sqrt(simd_sum(squares) / ROW_GDN_HEAD + a.in.eps);
            for (uint i = 0; i < 4; i++) {
                const uint at = head * ROW_GDN_HEAD + i * 32 + lane;
                out[at] = v[i] * scale * a.in.gain[i * 32 + lane] * silu(gate[at]);
            }
        }
    } else if (a.in.source == METAL_GATED) {
        device const float *gate = a.in.gate + (ulong)row * a.in.gate_stride;
        for (uint i = from + thread_index; i < to; i += ROW_THREADS)
            out[i] = x[i] * sigmoid(gate[i / ROW_HEAD * 2 * ROW_HEAD + i % ROW_HEAD]);
    } else if (a.in.source == METAL_NORM) {
        float squares = 0;
        for (uint i = thread_index; i < a.cols; i += ROW_THREADS) squares += x[i] * x[i];
        const float scale = 1.0f / sqrt(group_sum(squares, shared, lane, simdgroup) / float(a.cols) + a.in.eps);
        for (uint i = from + thread_index; i < to; i += ROW_THREADS) out[i] = x[i] * scale * a.in.gain[i];
    } else {
        for (uint i = from + thread_index; i < to; i += ROW_THREADS) out[i] = x[i];
    }
}

/* Neighbours read neighbours; four reads of a thread are on their way at a time. */
kernel void read_memory(constant metal_read_args &a [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    enum { AT_A_TIME = 4, STEP = METAL_READ_GROUPS * METAL_READ_THREADS };
    device const uint4 *data = (device const uint4 *)a.data;
    uint4 sum = uint4(0);
    for (uint i = group.x * METAL_READ_THREADS + thread_index; i < a.n; i += AT_A_TIME * STEP) {
        uint4 word[AT_A_TIME];
#pragma unroll
        for (uint j = 0; j < AT_A_TIME; j++) word[j] = i + j * STEP < a.n ? data[i + j * STEP] : uint4(0);
#pragma unroll
        for (uint j = 0; j < AT_A_TIME; j++) sum += word[j];
    }
    const uint all = simd_sum(sum.x + sum.y + sum.z + sum.w);
    if (lane == 0) a.sum[group.x * (METAL_READ_THREADS / 32) + simdgroup] = all;
}

kernel void gather_rows(constant metal_gather_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    device const float *x = a.x + (ulong)t.wanted_row[group.x] * a.cols;
    device float *out = a.out + (ulong)group.x * a.cols;
    for (uint i = thread_index; i < a.cols; i += ROW_THREADS) out[i] = x[i];
}

/* ---- queries, keys and values ---- */

static void put_kv(device float *p, float x) { *p = x; }
static void put_kv(device uint16_t *p, float x) { *p = float_to_bf16(x); }
/* A row whose values l, l + 32, … lane l has. */
template <typename KV> static void put_row(kv_row<KV> to, thread const float (&v)[8], uint lane) {
    for (uint i = 0; i < 8; i++) put_kv(to.values + i * 32 + lane, v[i]);
}
static void put_row(kv_row<int8_t> to, thread const float (&v)[8], uint lane) {
    for (uint g = 0; g < KV_ROW_SCALES; g++) {
        const float most = simd_max(max(fabs(v[2 * g]), fabs(v[2 * g + 1]))), inverse = kv_inverse(most);
        to.codes[g * KV_SCALED + lane] = int8_t(rint(v[2 * g] * inverse));
        to.codes[g * KV_SCALED + 32 + lane] = int8_t(rint(v[2 * g + 1] * inverse));
        if (lane == 0) to.scales[g] = most / 127.0f;
    }
}

/* One simdgroup per row and head: of queries, then keys, then values.  Lane l has values l, l + 32, …, so that pairs (l, l + 32) are its
 * own. */
template <typename KV>
kernel void attention_write(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                            uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const uint row = group.y, head = group.x, keys = a.heads, values = a.heads + a.kv_heads;
    if (head < keys && !a.queries) return;
    device const float *in = a.in + (ulong)row * a.in_stride;
    device const float *x = head < keys ? in + head * 2 * ROW_HEAD : in + a.heads * 2 * ROW_HEAD + (head - keys) * ROW_HEAD;
    float v[8], squares = 0;
    for (uint i = 0; i < 8; i++) {
        v[i] = x[i * 32 + lane];
        squares += v[i] * v[i];
    }
    if (head < values) {
        device const float *gain = head < keys ? a.q_gain : a.k_gain;
        const float scale = 1.0f / sqrt(simd_sum(squares) / ROW_HEAD + a.norm_eps);
        for (uint i = 0; i < 8; i++) v[i] *= scale * gain[i * 32 + lane];
        const float c = t.rotary[row * 64 + lane], s = t.rotary[row * 64 + 32 + lane], first = v[0];
        v[0] = first * c - v[1] * s;
        v[1] = v[1] * c + first * s;
    }
    if (head < keys) {
        const uint heads = a.heads / a.kv_heads;
        const ulong to = (((ulong)(head / heads) * t.rows + row) * heads + head % heads) * ROW_HEAD + lane;
        for (uint i = 0; i < 8; i++) {
            if (a.half_queries)
                ((device half *)a.queries)[to + i * 32] = half(v[i]);
            else
                a.queries[to + i * 32] = v[i];
        }
        return;
    }
    device const metal_segment &segment = t.segment[t.segment_of[row]];
    const uint position = t.positions[row], page = t.page_table[segment.first_page + position / METAL_PAGE_TOKENS];
    const uint block = (page * 2 + (head >= values)) * a.kv_heads + (head - keys) % a.kv_heads;
    put_row(kv_row<KV>(a.kv, block, position % METAL_PAGE_TOKENS), v, lane);
}
KERNEL_INSTANCE("attention_write_kf32", attention_write<float>)
KERNEL_INSTANCE("attention_write_kb16", attention_write<uint16_t>)
KERNEL_INSTANCE("attention_write_kq8", attention_write<int8_t>)

/* ---- experts ---- */

/* A stable counting sort without a histogram: the threadgroup of an expert counts the places of lower experts, and its own for each
 * simdgroup's part of all places; both tell where each of its places goes. */
kernel void expert_lists(constant metal_expert_gemm_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                         threadgroup uint *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint expert = group.x, places = t.rows * a.top_k, part = (places + ROW_THREADS - 1) / ROW_THREADS * 32;
    const uint begin = min(simdgroup * part, places), end = min(begin + part, places);
    uint lower = 0, own = 0;
    for (uint p = begin + lane; p < end; p += 32) {
        lower += a.expert[p] < expert;
        own += a.expert[p] == expert;
    }
    lower = simd_sum(lower);
    own = simd_sum(own);
    if (lane == 0) {
        shared[simdgroup] = lower;
        shared[ROW_SIMDGROUPS + simdgroup] = own;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint first = 0, before = 0, all = 0;
    for (uint i = 0; i < ROW_SIMDGROUPS; i++) {
        first += shared[i];
        before += i < simdgroup ? shared[ROW_SIMDGROUPS + i] : 0;
        all += shared[ROW_SIMDGROUPS + i];
    }
    if (thread_index == 0) {
        a.first[expert] = first;
        if (expert + 1 == a.experts) a.first[a.experts] = first + all;
    }
    uint at = first + before;
    for (uint base = begin; base < end; base += 32) {
        const uint p = base + lane, mine = p < end && a.expert[p] == expert ? 1 : 0;
        const uint rank = simd_prefix_exclusive_sum(mine);
        if (mine) a.place[at + rank] = p;
        at += simd_sum(mine);
    }
}

kernel void expert_combine(constant metal_expert_gemm_args &a [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
    const uint row = group.x, hidden = a.down.rows, o = group.y * METAL_SUM_VALUES + thread_index * 4;
    if (o >= hidden) return;
    float4 sum = float4(0.0f);
    for (uint i = 0; i < a.top_k; i++) {
        const uint place = row * a.top_k + i;
        sum += a.weight[place] * *(device const float4 *)(a.partial + (ulong)place * hidden + o);
    }
    device float4 *residual = (device float4 *)(a.residual + (ulong)row * hidden + o);
    *residual += sum;
}

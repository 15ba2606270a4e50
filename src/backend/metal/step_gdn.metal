/* step_gdn.metal: the gated delta net of a few rows, row after row (docs/model.md, "GDN mixer"), the state in registers between rows.
 *
 * A threadgroup owns 32 columns of a value head's state, each of its four simdgroups 8 of them with all 128 keys: lane l holds columns
 * 4·(l % 2) … of keys l / 2, l / 2 + 16, …, so that sums over keys stay within the simdgroup; the four read the same 128-byte lines.
 * kᵀS and qᵀS are formed in one pass over the state before its update:
 *     u = β(v − α·kᵀS);  o = α·qᵀS + (q·k)·u;  S ← αS + k uᵀ
 * with k and q normed by factors on the sums.  The state is read once and written once, to another slot. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"

enum { GDN_HEAD = 128, GDN_KEY_LANES = 16, GDN_HELD = GDN_HEAD / GDN_KEY_LANES };
enum { GDN_PARTS = GDN_HEAD / METAL_GDN_COLUMNS, GDN_SIMDGROUPS = METAL_GDN_THREADS / 32 };

struct gdn_row { /* of threadgroup memory, one of two in turn */
    float q[GDN_HEAD], k[GDN_HEAD], v[METAL_GDN_COLUMNS];
    float squares[GDN_SIMDGROUPS][3]; /* of each simdgroup's q and k: Σq², Σk², Σqk */
};
static_assert(2 * sizeof(gdn_row) <= METAL_TG_GDN, "args.h");

/* The convolution's output of a channel for row r of the segment, from the inputs of rows r - 3 … r; those before the segment are in the
 * window (NULL: zero). */
static float convolve(constant metal_gdn_args &a, device const float *in, device const float *window, uint channel, uint r) {
    const float4 tap = *(device const float4 *)(a.conv + channel * 4);
    float x[3];
#pragma unroll
    for (uint j = 0; j < 3; j++) {
        const uint at = r + j; /* in window and segment as one sequence */
        x[j] = at >= 3 ? in[(at - 3) * a.in_stride + channel] : window ? window[at * a.channels + channel] : 0.0f;
    }
    return silu(tap.x * x[0] + tap.y * x[1] + tap.z * x[2] + tap.w * in[r * a.in_stride + channel]);
}

/* The last three inputs of a channel to the window of the segment's state. */
static void keep_window(constant metal_gdn_args &a, device const float *in, device const float *window, device float *to, uint channel,
                        uint rows) {
    for (uint j = 0; j < 3; j++) {
        const uint at = rows + j;
        to[j * a.channels + channel] = at >= 3 ? in[(at - 3) * a.in_stride + channel] : window ? window[at * a.channels + channel] : 0.0f;
    }
}

kernel void step_gdn(constant metal_gdn_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]], threadgroup gdn_row *shared TG_ARG(0),
                     uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    device const metal_segment &segment = t.segment[group.y];
    const uint rows = segment.rows;
    if (rows < a.first || rows >= a.beyond) return;
    const uint head = group.x / GDN_PARTS, part = group.x % GDN_PARTS, per_key = a.value_heads / a.key_heads, key_head = head / per_key;
    const uint keys = a.key_heads * GDN_HEAD, first_column = part * METAL_GDN_COLUMNS;
    const uint q_channel = key_head * GDN_HEAD + tid, k_channel = keys + q_channel,
               v_channel = 2 * keys + head * GDN_HEAD + first_column + tid % METAL_GDN_COLUMNS;
    const bool has_v = tid < METAL_GDN_COLUMNS, fresh = segment.slot_src == METAL_NO_SLOT;
    device const float *in = a.in + segment.first_row * a.in_stride;
    device const float *gates = in + a.channels + a.value_heads * GDN_HEAD + head; /* a; b: value_heads further */
    device const float *window = fresh ? nullptr : (device const float *)a.window + (ulong)segment.slot_src * 3 * a.channels;

    const uint column = simdgroup * 8 + lane % 2 * 4, key = lane / 2; /* column: within the threadgroup's */
    const ulong in_head = (ulong)head * GDN_HEAD * GDN_HEAD + first_column + column, slot = (ulong)a.value_heads * GDN_HEAD * GDN_HEAD;
    float4 s[GDN_HELD];
#pragma unroll
    for (uint i = 0; i < GDN_HELD; i++) {
        s[i] = float4(0.0f);
        if (!fresh) s[i] = *(device const float4 *)(a.state + segment.slot_src * slot + in_head + (key + i * GDN_KEY_LANES) * GDN_HEAD);
    }

    for (uint r = 0; r < rows; r++) {
        threadgroup gdn_row &h = shared[r % 2];
        const float q = convolve(a, in, window, q_channel, r), k = convolve(a, in, window, k_channel, r);
        h.q[tid] = q;
        h.k[tid] = k;
        if (has_v) h.v[tid] = convolve(a, in, window, v_channel, r);
        const float qq = simd_sum(q * q), kk = simd_sum(k * k), qk = simd_sum(q * k);
        if (lane == 0) {
            h.squares[simdgroup][0] = qq;
            h.squares[simdgroup][1] = kk;
            h.squares[simdgroup][2] = qk;
        }
        const float alpha = exp(-a.decay[head] * softplus(gates[r * a.in_stride] + a.dt_bias[head]));
        const float beta = sigmoid(gates[r * a.in_stride + a.value_heads]);
        threadgroup_barrier(mem_flags::mem_threadgroup); /* one is enough: the rows have two places in turn */

        float q_of[GDN_HELD], k_of[GDN_HELD];
        float4 ks = float4(0.0f), qs = float4(0.0f);
#pragma unroll
        for (uint i = 0; i < GDN_HELD; i++) {
            q_of[i] = h.q[key + i * GDN_KEY_LANES];
            k_of[i] = h.k[key + i * GDN_KEY_LANES];
            ks += k_of[i] * s[i];
            qs += q_of[i] * s[i];
        }
#pragma unroll
        for (uint bit = 2; bit < 32; bit *= 2) { /* over the key lanes */
            ks += simd_shuffle_xor(ks, bit);
            qs += simd_shuffle_xor(qs, bit);
        }
        float q_squares = 0, k_squares = 0, q_k = 0;
        for (uint i = 0; i < GDN_SIMDGROUPS; i++) {
            q_squares += h.squares[i][0];
            k_squares += h.squares[i][1];
            q_k += h.squares[i][2];
        }
        const float q_norm = rsqrt(q_squares + 1e-6f) * 0.08838834764831845f /* 1/√128 */, k_norm = rsqrt(k_squares + 1e-6f);
        const float4 v = *(threadgroup const float4 *)(h.v + column), u = beta * (v - alpha * k_norm * ks);
        if (key == 0)
            *(device float4 *)(a.out + (segment.first_row + r) * a.out_stride + head * GDN_HEAD + first_column + column) =
                alpha * q_norm * qs + q_k * q_norm * k_norm * u;
#pragma unroll
        for (uint i = 0; i < GDN_HELD; i++) s[i] = alpha * s[i] + k_of[i] * k_norm * u;
    }

#pragma unroll
    for (uint i = 0; i < GDN_HELD; i++)
        *(device float4 *)(a.state + segment.slot_dst * slot + in_head + (key + i * GDN_KEY_LANES) * GDN_HEAD) = s[i];
    device float *to = a.window + (ulong)segment.slot_dst * 3 * a.channels;
    if (has_v) keep_window(a, in, window, to, v_channel, rows);
    if (part == 0 && head % per_key == 0) { /* the key head's channels: one of its value heads' threadgroups */
        keep_window(a, in, window, to, q_channel, rows);
        keep_window(a, in, window, to, k_channel, rows);
    }
}

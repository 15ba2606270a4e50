/* gdn.metal: the gated delta net over many rows in chunks of 32 (docs/model.md, "Chunked form"), three kernels:
 *
 *   gdn_conv    convolution, SiLU and the norms of q and k → mixed [chunks · 32][channels]; rows behind a segment's last are zero
 *   gdn_chunks  per chunk and key head K Kᵀ and q Kᵀ; then per value head T = (I + A)⁻¹ diag(β) by forward substitution, and
 *               P = L(q kᵀ e^{γ_i − γ_j}); all chunks at once
 *   gdn_scan    per value head and 32 of its values, chunk after chunk: V' = T (V − e^γ K S), o = e^γ q S + P V',
 *               S ← e^{γ_C} S + (e^{γ_C − γ} K)ᵀ V'
 *
 * T (V − e^γ K S) is U − W S of the paper with the subtraction done once, before the solve.  Everything is float32, as are the products of
 * simdgroup matrices.  A chunk's keys and queries are read from `mixed` as matrices, without a copy in threadgroup memory: the scan's
 * part of the state and three tiles of 32 × 32 fill it. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"
#include "backend/metal/segments.h"

enum {
    GDN_D = 128,
    GDN_ROWS = METAL_GDN_CHUNK,
    GDN_TILE = GDN_ROWS * GDN_ROWS,
    GDN_SLICE = 32 /* values of one threadgroup of the scan */
};
static_assert(GDN_ROWS == 32, "a lane is a row of a chunk");

struct gdn_scratch {
    device float *mixed;  /* [chunks · 32][channels]: q, k, v */
    device float *solve;  /* T [chunks][value heads][32][32] */
    device float *within; /* P, alike */
    device float *decay;  /* [chunks][value heads]: e^γ [32], e^{γ_C − γ} [32] */
};

static gdn_scratch gdn_views(constant metal_gdn_args &a, constant metal_step &t) {
    const ulong chunks = METAL_GDN_CHUNKS(t.rows, t.segments), tiles = chunks * a.value_heads;
    gdn_scratch s;
    s.mixed = a.scratch;
    s.solve = s.mixed + chunks * GDN_ROWS * a.channels;
    s.within = s.solve + tiles * GDN_TILE;
    s.decay = s.within + tiles * GDN_TILE;
    return s;
}

/* ---- convolution ---- */

/* A simdgroup makes one head, 128 channels, four a lane, of a chunk's rows, and in the last chunk the window for the next call. */
kernel void gdn_conv(constant metal_gdn_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                     uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const uint head = group.y, channel = head * GDN_D + lane * 4;
    segment_part chunk;
    if (!find_part(t, a.first, a.beyond, GDN_ROWS, group.x, chunk)) return;
    device const metal_segment &segment = t.segment[chunk.segment];
    device const float *in = a.in + (ulong)segment.first_row * a.in_stride + channel;
    device const float *before = a.window + (ulong)segment.slot_src * 3 * a.channels + channel; /* not read without a slot */
    device float *mixed = gdn_views(a, t).mixed + (ulong)group.x * GDN_ROWS * a.channels + channel;
    const int first = int(chunk.number * GDN_ROWS), rows = int(segment.rows), end = min(first + GDN_ROWS, rows);
    const bool fresh = segment.slot_src == METAL_NO_SLOT;
    float4 taps[4], x[4]; /* taps[c]: of channel c */
    for (uint c = 0; c < 4; c++) taps[c] = *(device const float4 *)(a.conv + (ulong)(channel + c) * 4);
#define GDN_INPUT(row)                                                                                                                     \
    ((row) >= 0 ? *(device const float4 *)(in + (ulong)(row) * a.in_stride)                                                                \
     : fresh    ? float4(0.0f)                                                                                                             \
                : *(device const float4 *)(before + (ulong)((row) + 3) * a.channels))
    for (int j = 0; j < 3; j++) x[j] = GDN_INPUT(first - 3 + j);
    for (int row = first; row < end; row++) {
        x[3] = GDN_INPUT(row);
        float4 y;
        for (uint c = 0; c < 4; c++) y[c] = silu(taps[c][0] * x[0][c] + taps[c][1] * x[1][c] + taps[c][2] * x[2][c] + taps[c][3] * x[3][c]);
        if (head < 2 * a.key_heads) {
            const float squares = simd_sum(y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3]);
            y *= (head < a.key_heads ? 0.08838834764831845f /* 1/√128 */ : 1.0f) / sqrt(squares + 1e-6f);
        }
        *(device float4 *)(mixed + (ulong)(row - first) * a.channels) = y;
        x[0] = x[1];
        x[1] = x[2];
        x[2] = x[3];
    }
    for (int row = end; row < first + GDN_ROWS; row++) *(device float4 *)(mixed + (ulong)(row - first) * a.channels) = float4(0.0f);
    if (end < rows) return;
    device float *after = a.window + (ulong)segment.slot_dst * 3 * a.channels + channel;
    for (int j = 0; j < 3; j++) *(device float4 *)(after + (ulong)j * a.channels) = x[j];
#undef GDN_INPUT
}

/* ---- chunks ---- */

/* Threadgroup memory, METAL_TG_GDN_CHUNKS: k_i · k_j, q_i · k_j [2][32][32]; A [4][32][32], of one value head a simdgroup. */
kernel void gdn_chunks(constant metal_gdn_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]], threadgroup float *shared TG_ARG(0),
                       uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    segment_part chunk;
    if (!find_part(t, a.first, a.beyond, GDN_ROWS, group.x, chunk)) return;
    device const metal_segment &segment = t.segment[chunk.segment];
    const gdn_scratch scratch = gdn_views(a, t);
    const uint key_head = group.y;
    device const float *queries = scratch.mixed + (ulong)group.x * GDN_ROWS * a.channels + key_head * GDN_D;
    device const float *keys = queries + a.key_heads * GDN_D;

    /* Simdgroups 0 and 1: 16 rows each of k kᵀ; 2 and 3: of q kᵀ. */
    device const float *left = (simdgroup < 2 ? keys : queries) + (ulong)(simdgroup % 2 * 16) * a.channels;
    simdgroup_float8x8 gram[2][4];
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 4; j++) gram[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < GDN_D; k += 8) {
        simdgroup_float8x8 x[2], key;
#pragma unroll
        for (uint i = 0; i < 2; i++) simdgroup_load(x[i], left + (ulong)(i * 8) * a.channels + k, a.channels);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            simdgroup_load(key, keys + (ulong)(j * 8) * a.channels + k, a.channels, ulong2(0), true);
#pragma unroll
            for (uint i = 0; i < 2; i++) simdgroup_multiply_accumulate(gram[i][j], x[i], key, gram[i][j]);
        }
    }
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 4; j++)
            simdgroup_store(gram[i][j], shared + simdgroup / 2 * GDN_TILE + (simdgroup % 2 * 16 + i * 8) * GDN_ROWS + j * 8, GDN_ROWS);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint per_key = a.value_heads / a.key_heads, row = chunk.number * GDN_ROWS + lane;
    threadgroup float *lower = shared + (2 + simdgroup) * GDN_TILE;
    for (uint v = simdgroup; v < per_key; v += 4) {
        const uint head = key_head * per_key + v;
        const ulong tile = (ulong)group.x * a.value_heads + head;
        float log_alpha = 0, beta = 0; /* of this lane's row; rows behind the last do nothing */
        if (row < segment.rows) {
            device const float *in = a.in + (ulong)(segment.first_row + row) * a.in_stride + a.channels + a.value_heads * GDN_D +
                                     head; /* a; b is value_heads further */
            log_alpha = -a.decay[head] * softplus(in[0] + a.dt_bias[head]);
            beta = sigmoid(in[a.value_heads]);
        }
        const float gamma = simd_prefix_inclusive_sum(log_alpha), last = simd_shuffle(gamma, 31);
        scratch.decay[tile * 64 + lane] = exp(gamma);
        scratch.decay[tile * 64 + 32 + lane] = exp(last - gamma);
        device float *within = scratch.within + tile * GDN_TILE, *solve = scratch.solve + tile * GDN_TILE;
        for (uint i = 0; i < GDN_ROWS; i++) { /* lane: column; masked before the exponential, which overflows above the diagonal */
            const float g = simd_shuffle(gamma, i), b = simd_shuffle(beta, i);
            const float e = lane <= i ? exp(g - gamma) : 0.0f;
            lower[i * GDN_ROWS + lane] = lane < i ? b * e * shared[i * GDN_ROWS + lane] : 0.0f;
            within[i * GDN_ROWS + lane] = e * shared[GDN_TILE + i * GDN_ROWS + lane];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float column[GDN_ROWS]; /* `lane` of (I + A)⁻¹ */
#pragma unroll
        for (uint i = 0; i < GDN_ROWS; i++) {
            float sum = lane == i ? 1.0f : 0.0f;
#pragma unroll
            for (uint j = 0; j < i; j++) sum -= lower[i * GDN_ROWS + j] * column[j];
            column[i] = sum;
            solve[i * GDN_ROWS + lane] = sum * beta;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

/* ---- scan ---- */

/* Threadgroup memory, METAL_TG_GDN_SCAN: the state as 16 × 4 matrices of 8 × 8; two tiles [32][32] that change places with each chunk, one
 * more, and e^γ, e^{γ_C − γ}. */
enum { GDN_STATE_VALUES = GDN_D * GDN_SLICE };
static_assert((GDN_STATE_VALUES + 3 * GDN_TILE + 2 * GDN_ROWS) * 4 <= METAL_TG_GDN_SCAN, "threadgroup memory");

static void gdn_scale_rows(thread simdgroup_float8x8 &m, threadgroup const float *factor, uint2 rows) {
    m.thread_elements()[0] *= factor[rows.x];
    m.thread_elements()[1] *= factor[rows.y];
}

kernel void gdn_scan(constant metal_gdn_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]], threadgroup float *shared TG_ARG(0),
                     uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    device const metal_segment &segment = t.segment[group.y];
    if (segment.rows < a.first || segment.rows >= a.beyond) return;
    uint first_chunk = 0; /* of the segment, among all */
    for (uint s = 0; s < group.y; s++)
        if (t.segment[s].rows >= a.first && t.segment[s].rows < a.beyond) first_chunk += (t.segment[s].rows + GDN_ROWS - 1) / GDN_ROWS;
    const gdn_scratch scratch = gdn_views(a, t);
    const uint head = group.x / (GDN_D / GDN_SLICE), slice = group.x % (GDN_D / GDN_SLICE) * GDN_SLICE,
               key_head = head / (a.value_heads / a.key_heads);
    threadgroup float *state_tile = shared, *tile = shared + GDN_STATE_VALUES, *other = tile + GDN_TILE, *decayed = other + GDN_TILE;
    threadgroup float *decay = decayed + GDN_TILE, *decay_to_end = decay + GDN_ROWS;
    const uint2 rows = element_rows(tile + simdgroup * 64, lane);

    /* This simdgroup's 16 keys by 32 values of the state. */
    simdgroup_float8x8 state[2][4];
    const ulong corner = ((ulong)head * GDN_D + simdgroup * 16) * GDN_D + slice, slot_values = (ulong)a.value_heads * GDN_D * GDN_D;
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 4; j++) {
            if (segment.slot_src == METAL_NO_SLOT)
                state[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            else
                simdgroup_load(state[i][j], a.state + segment.slot_src * slot_values + corner + i * 8 * GDN_D + j * 8, GDN_D);
            simdgroup_store(state[i][j], state_tile + ((simdgroup * 2 + i) * 4 + j) * 64, 8);
        }

    const uint chunks = (segment.rows + GDN_ROWS - 1) / GDN_ROWS;
    for (uint chunk = 0; chunk < chunks; chunk++) {
        const ulong at = first_chunk + chunk, head_tile = at * a.value_heads + head;
        device const float *queries = scratch.mixed + at * GDN_ROWS * a.channels + key_head * GDN_D, *keys = queries + a.key_heads * GDN_D;
        device const float *values = scratch.mixed + at * GDN_ROWS * a.channels + (2 * a.key_heads + head) * GDN_D + slice;
        if (thread_index < 2 * GDN_ROWS) decay[thread_index] = scratch.decay[head_tile * 2 * GDN_ROWS + thread_index];
        threadgroup_barrier(mem_flags::mem_threadgroup); /* the state is there */

        /* Simdgroups 0 … 3: 8 rows each of K S, into `tile`; 4 … 7: of q S, which they keep. */
        const uint mine = simdgroup % 4;
        simdgroup_float8x8 product[4];
        for (uint j = 0; j < 4; j++) product[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        device const float *left = (simdgroup < 4 ? keys : queries) + (ulong)(mine * 8) * a.channels;
        for (uint k = 0; k < GDN_D / 8; k++) {
            simdgroup_float8x8 x, s;
            simdgroup_load(x, left + k * 8, a.channels);
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                simdgroup_load(s, state_tile + (k * 4 + j) * 64, 8);
                simdgroup_multiply_accumulate(product[j], x, s, product[j]);
            }
        }
        if (simdgroup < 4)
            for (uint j = 0; j < 4; j++) simdgroup_store(product[j], tile + mine * 8 * GDN_ROWS + j * 8, GDN_ROWS);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (uint i = thread_index; i < GDN_TILE; i += 256)
            tile[i] = values[(ulong)(i / GDN_ROWS) * a.channels + i % GDN_ROWS] - decay[i / GDN_ROWS] * tile[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);

        /* V' into `other`, e^{γ_C − γ} V' into `decayed`: 8 rows and 16 values a simdgroup. */
        const uint block = simdgroup / 2, pair = simdgroup % 2 * 2;
        simdgroup_float8x8 update[2];
        for (uint j = 0; j < 2; j++) update[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint i = 0; i <= block; i++) { /* T is a lower triangle */
            simdgroup_float8x8 x, r;
            simdgroup_load(x, scratch.solve + head_tile * GDN_TILE + block * 8 * GDN_ROWS + i * 8, GDN_ROWS);
#pragma unroll
            for (uint j = 0; j < 2; j++) {
                simdgroup_load(r, tile + i * 8 * GDN_ROWS + (pair + j) * 8, GDN_ROWS);
                simdgroup_multiply_accumulate(update[j], x, r, update[j]);
            }
        }
        for (uint j = 0; j < 2; j++) {
            simdgroup_store(update[j], other + block * 8 * GDN_ROWS + (pair + j) * 8, GDN_ROWS);
            gdn_scale_rows(update[j], decay_to_end + block * 8, rows);
            simdgroup_store(update[j], decayed + block * 8 * GDN_ROWS + (pair + j) * 8, GDN_ROWS);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        const float whole = decay[GDN_ROWS - 1];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                state[i][j].thread_elements()[0] *= whole;
                state[i][j].thread_elements()[1] *= whole;
            }
#pragma unroll
            for (uint r = 0; r < GDN_ROWS / 8; r++) {
                simdgroup_float8x8 key, u;
                simdgroup_load(key, keys + (ulong)(r * 8) * a.channels + (simdgroup * 2 + i) * 8, a.channels, ulong2(0), true);
#pragma unroll
                for (uint j = 0; j < 4; j++) {
                    simdgroup_load(u, decayed + r * 8 * GDN_ROWS + j * 8, GDN_ROWS);
                    simdgroup_multiply_accumulate(state[i][j], key, u, state[i][j]);
                }
            }
#pragma unroll
            for (uint j = 0; j < 4; j++) simdgroup_store(state[i][j], state_tile + ((simdgroup * 2 + i) * 4 + j) * 64, 8);
        }
        if (simdgroup >= 4) {
            for (uint j = 0; j < 4; j++) gdn_scale_rows(product[j], decay + mine * 8, rows);
            for (uint i = 0; i <= mine; i++) {
                simdgroup_float8x8 p, u;
                simdgroup_load(p, scratch.within + head_tile * GDN_TILE + mine * 8 * GDN_ROWS + i * 8, GDN_ROWS);
#pragma unroll
                for (uint j = 0; j < 4; j++) {
                    simdgroup_load(u, other + i * 8 * GDN_ROWS + j * 8, GDN_ROWS);
                    simdgroup_multiply_accumulate(product[j], p, u, product[j]);
                }
            }
            for (uint j = 0; j < 4; j++) simdgroup_store(product[j], tile + mine * 8 * GDN_ROWS + j * 8, GDN_ROWS);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        const uint there = min((uint)GDN_ROWS, segment.rows - chunk * GDN_ROWS);
        device float *out = a.out + (ulong)(segment.first_row + chunk * GDN_ROWS) * a.out_stride + head * GDN_D + slice;
        for (uint i = thread_index; i < there * GDN_SLICE; i += 256) out[(ulong)(i / GDN_SLICE) * a.out_stride + i % GDN_SLICE] = tile[i];
        threadgroup float *swap = tile; /* what is still read here is not written by the next chunk's first product */
        tile = other;
        other = swap;
    }
    for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 4; j++)
            simdgroup_store(state[i][j], a.state + segment.slot_dst * slot_values + corner + i * 8 * GDN_D + j * 8, GDN_D);
}

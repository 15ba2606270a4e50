/* step_attention.metal: attention of single rows over paged K and V (docs/model.md, "Attention mixer").
 *
 * A row's positions are cut into splits, a threadgroup for each of them and each K/V head; it serves all query heads of the group, so that
 * a row of K or V is read once.  Chunks of positions go through three phases: a simdgroup per key forms the products with all queries (a
 * lane has 8 values of each in registers) and sums them over the lanes; a simdgroup per head makes weights of scores and moves the running
 * maximum on; then each thread sums 4 values of its key's V for all heads, two simdgroups for a row of V.  step_attention_combine adds up
 * the splits. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/args.h"
#include "backend/metal/common.h"

enum { HEAD = 256, GROUP = METAL_MAX_GROUP_HEADS, CHUNK = 128, SIMDGROUPS = METAL_ATTENTION_THREADS / 32 };

struct attention_shared {
    float4 q[GROUP][HEAD / 4]; /* by 1/16; in the end the sums of the upper simdgroups */
    float4 p[CHUNK][GROUP / 4];
    float scale[GROUP]; /* of what was summed before this chunk */
};
static_assert(sizeof(attention_shared) <= METAL_TG_ATTENTION, "args.h");

/* ---- cache ---- */

static void store_kv(device float *p, float4 v) { *(device float4 *)p = v; }
static void store_kv(device uint16_t *p, float4 v) {
    const uint a = (uint)float_to_bf16(v.x) | (uint)float_to_bf16(v.y) << 16, b = (uint)float_to_bf16(v.z) | (uint)float_to_bf16(v.w) << 16;
    *(device uint2 *)p = uint2(a, b);
}

/* A position's row of K (v = 0) or V (v = 1). */
template <typename KV>
static kv_row<KV> row_of_kv(constant metal_attention_args &a, device const uint32_t *pages, uint v, uint head, uint position) {
    const ulong block = ((ulong)pages[position / METAL_PAGE_TOKENS] * 2 + v) * a.kv_heads + head;
    return kv_row<KV>(a.kv, block, position % METAL_PAGE_TOKENS);
}

/* ---- queries and keys: one simdgroup, values 8·lane … of each lane ---- */

struct eight {
    float4 a, b;
};

static eight load_eight(device const float *p) {
    eight x;
    x.a = *(device const float4 *)p;
    x.b = *(device const float4 *)(p + 4);
    return x;
}

/* Stores a row. */
template <typename KV> static void store_row(kv_row<KV> to, eight x, uint lane) {
    store_kv(to.values + lane * 8, x.a);
    store_kv(to.values + lane * 8 + 4, x.b);
}
static void store_row(kv_row<int8_t> to, eight x, uint lane) { /* eight lanes share a scale */
    const float4 m = max(fabs(x.a), fabs(x.b));
    float most = max(max(m.x, m.y), max(m.z, m.w));
    most = max(most, simd_shuffle_xor(most, 1));
    most = max(most, simd_shuffle_xor(most, 2));
    most = max(most, simd_shuffle_xor(most, 4));
    const float inverse = kv_inverse(most);
    const float4 a = rint(x.a * inverse), b = rint(x.b * inverse);
    device uint2 *codes = (device uint2 *)(to.codes + lane * 8);
    *codes = uint2((uint(int(a.x)) & 0xFF) | (uint(int(a.y)) & 0xFF) << 8 | (uint(int(a.z)) & 0xFF) << 16 | uint(int(a.w)) << 24,
                   (uint(int(b.x)) & 0xFF) | (uint(int(b.y)) & 0xFF) << 8 | (uint(int(b.z)) & 0xFF) << 16 | uint(int(b.w)) << 24);
    if (lane % 8 == 0) to.scales[lane / 8] = most / 127.0f;
}

/* rmsnorm(x) · gain, then the first 64 values rotated in pairs (j, j + 32): those of lanes l and l + 4, for l < 4. */
static eight norm_rotate(device const float *from, device const float *gain, device const float *rotary, float eps, uint lane) {
    eight x = load_eight(from + lane * 8);
    const eight g = load_eight(gain + lane * 8);
    const float factor = rsqrt(simd_sum(dot(x.a, x.a) + dot(x.b, x.b)) * (1.0f / HEAD) + eps);
    x.a *= factor * g.a;
    x.b *= factor * g.b;
    eight other;
    other.a = simd_shuffle_xor(x.a, 4);
    other.b = simd_shuffle_xor(x.b, 4);
    if (lane >= 8) return x;
    const eight cosine = load_eight(rotary + lane % 4 * 8), sine = load_eight(rotary + 32 + lane % 4 * 8);
    const float sign = lane < 4 ? -1.0f : 1.0f;
    x.a = x.a * cosine.a + sign * other.a * sine.a;
    x.b = x.b * cosine.b + sign * other.b * sine.b;
    return x;
}

/* ---- a split ---- */

/* Eight sums over the lanes: lane l gets that of sum l / 4. */
static float sum_eight(thread const float (&x)[GROUP], uint lane) {
    const bool upper16 = lane & 16, upper8 = lane & 8, upper4 = lane & 4;
    const float4 low = float4(x[0], x[1], x[2], x[3]), high = float4(x[4], x[5], x[6], x[7]);
    const float4 four = (upper16 ? high : low) + simd_shuffle_xor(upper16 ? low : high, 16);
    const float2 two = (upper8 ? four.zw : four.xy) + simd_shuffle_xor(upper8 ? four.xy : four.zw, 8);
    float one = (upper4 ? two.y : two.x) + simd_shuffle_xor(upper4 ? two.x : two.y, 4);
    one += simd_shuffle_xor(one, 2);
    return one + simd_shuffle_xor(one, 1);
}

template <typename KV>
kernel void step_attention(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                           threadgroup attention_shared *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup attention_shared &h = *shared;
    const uint row = t.short_row[group.z], head = group.y, heads = a.heads / a.kv_heads, split = group.x;
    device const uint32_t *pages = t.page_table + t.segment[t.segment_of[row]].first_page;
    const uint n = t.positions[row] + 1;
    uint per = (n + t.splits - 1) / t.splits;
    per = (per + METAL_SPLIT_POSITIONS - 1) / METAL_SPLIT_POSITIONS * METAL_SPLIT_POSITIONS;
    const uint first = min(split * per, n), last = min(first + per, n);
    device float *partial = a.partial + ((ulong)(group.z * a.heads + head * heads) * t.splits + split) * METAL_PARTIAL;
    const ulong partial_head = (ulong)t.splits * METAL_PARTIAL; /* from one query head to the next */
    if (first == last) {
        if (tid < heads) {
            partial[tid * partial_head + HEAD] = -INFINITY;
            partial[tid * partial_head + HEAD + 1] = 0;
        }
        return;
    }

    device const float *in = a.in + row * a.in_stride, *rotary = t.rotary + row * 64;
    for (uint j = simdgroup; j < heads; j += SIMDGROUPS) {
        const eight q = norm_rotate(in + (head * heads + j) * 2 * HEAD, a.q_gain, rotary, a.norm_eps, lane);
        h.q[j][lane * 2] = q.a * 0.0625f; /* 1/√256 */
        h.q[j][lane * 2 + 1] = q.b * 0.0625f;
    }
    if (a.write && last == n && simdgroup < 2) { /* K by the first simdgroup, V by the second */
        device const float *keys = in + a.heads * 2 * HEAD + head * HEAD;
        const eight x = simdgroup == 0 ? norm_rotate(keys, a.k_gain, rotary, a.norm_eps, lane) : load_eight(keys + a.kv_heads * HEAD + lane * 8);
        store_row(row_of_kv<KV>(a, pages, simdgroup, head, n - 1), x, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);

    enum { OWN = GROUP / SIMDGROUPS }; /* heads of a simdgroup in the second phase: simdgroup, simdgroup + SIMDGROUPS, … */
    float most[OWN], sum[OWN];
    for (uint i = 0; i < OWN; i++) {
        most[i] = -INFINITY;
        sum[i] = 0;
    }
    float4 acc[GROUP]; /* of values `value` … + 3 and every second key */
    for (uint j = 0; j < GROUP; j++) acc[j] = float4(0.0f);
    const uint value = simdgroup % 2 * 128 + lane * 4, parity = simdgroup / 2;

    for (uint begin = first; begin < last; begin += CHUNK) {
        const uint keys = min((uint)CHUNK, last - begin);
        float4 qa[GROUP], qb[GROUP];
#pragma unroll
        for (uint j = 0; j < GROUP; j++) {
            if (j >= heads) continue;
            qa[j] = h.q[j][lane * 2];
            qb[j] = h.q[j][lane * 2 + 1];
        }
#pragma unroll(4)
        for (uint i = simdgroup; i < keys; i += SIMDGROUPS) {
            float4 ka, kb;
            row_of_kv<KV>(a, pages, 0, head, begin + i).load(lane * 8, ka, kb);
            float product[GROUP];
#pragma unroll
            for (uint j = 0; j < GROUP; j++) product[j] = j < heads ? dot(qa[j], ka) + dot(qb[j], kb) : 0.0f;
            const float score = sum_eight(product, lane);
            if (lane % 4 == 0) ((threadgroup float *)h.p[i])[lane / 4] = score;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll
        for (uint i = 0; i < OWN; i++) {
            const uint j = simdgroup + i * SIMDGROUPS;
            if (j >= heads) continue;
            float largest = most[i], part = 0;
            for (uint k = lane; k < keys; k += 32) largest = max(largest, ((threadgroup float *)h.p[k])[j]);
            largest = simd_max(largest);
            for (uint k = lane; k < keys; k += 32) {
                const float p = exp(((threadgroup float *)h.p[k])[j] - largest);
                ((threadgroup float *)h.p[k])[j] = p;
                part += p;
            }
            const float scale = exp(most[i] - largest); /* 0 for the first chunk */
            sum[i] = sum[i] * scale + simd_sum(part);
            most[i] = largest;
            if (lane == 0) h.scale[j] = scale;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll
        for (uint j = 0; j < GROUP; j++)
            if (j < heads) acc[j] *= h.scale[j];
#pragma unroll(4)
        for (uint i = parity; i < keys; i += 2) {
            const float4 v = row_of_kv<KV>(a, pages, 1, head, begin + i).load(value);
            const float4 p0 = h.p[i][0], p1 = h.p[i][1];
            acc[0] += p0.x * v;
            if (heads > 1) acc[1] += p0.y * v;
            if (heads > 2) acc[2] += p0.z * v;
            if (heads > 3) acc[3] += p0.w * v;
            if (heads > 4) acc[4] += p1.x * v;
            if (heads > 5) acc[5] += p1.y * v;
            if (heads > 6) acc[6] += p1.z * v;
            if (heads > 7) acc[7] += p1.w * v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

#pragma unroll
    for (uint i = 0; i < OWN; i++) {
        const uint j = simdgroup + i * SIMDGROUPS;
        if (j >= heads || lane != 0) continue;
        partial[j * partial_head + HEAD] = most[i];
        partial[j * partial_head + HEAD + 1] = sum[i];
    }
#pragma unroll
    for (uint j = 0; j < GROUP; j++)
        if (j < heads && parity == 1) h.q[j][value / 4] = acc[j];
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint j = 0; j < GROUP; j++)
        if (j < heads && parity == 0) *(device float4 *)(partial + j * partial_head + value) = acc[j] + h.q[j][value / 4];
}
KERNEL_INSTANCE("step_attention_kf32", step_attention<float>)
KERNEL_INSTANCE("step_attention_kb16", step_attention<uint16_t>)
KERNEL_INSTANCE("step_attention_kq8", step_attention<int8_t>)

/* ---- the splits of a row and head ---- */

/* Of t.short_row, or with MANY of all rows in segments that attention_… has taken.
 * A threadgroup has 32 values of a head: lane l values 4·(l % 8) … of the splits 4·simdgroup + l / 8, and every 16th after. */
template <bool MANY>
kernel void combine_splits(constant metal_attention_args &a [[buffer(0)]], constant metal_step &t [[buffer(1)]],
                           threadgroup float4 *shared TG_ARG(0), uint3 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    enum { QUADS = HEAD / METAL_COMBINE_PARTS / 4, AT_ONCE = METAL_COMBINE_THREADS / QUADS };
    const uint row = MANY ? group.y : t.short_row[group.y], head = group.x / METAL_COMBINE_PARTS, splits = MANY ? t.long_splits : t.splits;
    const uint segment_rows = MANY ? t.segment[t.segment_of[row]].rows : 0;
    if (MANY && (segment_rows < a.first || segment_rows >= a.beyond)) return;
    const uint quad = lane % QUADS, value = group.x % METAL_COMBINE_PARTS * (QUADS * 4) + quad * 4;
    device const float *partial = a.partial + ((ulong)group.y * a.heads + head) * splits * METAL_PARTIAL;
    float most = -INFINITY, sum = 0;
    for (uint s = lane; s < splits; s += 32) most = max(most, partial[s * METAL_PARTIAL + HEAD]);
    most = simd_max(most);
    for (uint s = lane; s < splits; s += 32)
        sum += exp(partial[s * METAL_PARTIAL + HEAD] - most) * partial[s * METAL_PARTIAL + HEAD + 1];
    sum = simd_sum(sum);
    float4 acc = float4(0.0f);
    for (uint s = simdgroup * (32 / QUADS) + lane / QUADS; s < splits; s += AT_ONCE) {
        device const float *from = partial + s * METAL_PARTIAL;
        if (from[HEAD + 1] == 0) continue; /* empty: its values were never written */
        acc += exp(from[HEAD] - most) * *(device const float4 *)(from + value);
    }
#pragma unroll
    for (uint bit = QUADS; bit < 32; bit *= 2) acc += simd_shuffle_xor(acc, bit);
    if (lane < QUADS) shared[simdgroup * QUADS + quad] = acc;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup > 0 || lane >= QUADS) return;
    for (uint i = 1; i < METAL_COMBINE_THREADS / 32; i++) acc += shared[i * QUADS + quad];
    *(device float4 *)(a.out + row * a.out_stride + head * HEAD + value) = acc / sum;
}
KERNEL_INSTANCE("step_attention_combine", combine_splits<false>)
KERNEL_INSTANCE("attention_combine", combine_splits<true>)

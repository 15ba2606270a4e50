// library.metal: the functions of metal_stdlib.h and the forms of Metal's syntax that kernels use, for test_simt.c.
#include <metal_stdlib>
using namespace metal;

// One simdgroup: out[k][lane] of x[lane], for each operation k.
kernel void lanes(device const int *x [[buffer(0)]], device int *out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]],
                  uint width [[threads_per_simdgroup]]) {
    const int v = x[lane];
    uint k = 0;
    out[k++ * width + lane] = simd_sum(v);
    out[k++ * width + lane] = simd_min(v);
    out[k++ * width + lane] = simd_max(v);
    out[k++ * width + lane] = simd_product(v > 30 ? 3 : 1);
    out[k++ * width + lane] = simd_and(v);
    out[k++ * width + lane] = simd_or(v);
    out[k++ * width + lane] = simd_xor(v);
    out[k++ * width + lane] = simd_prefix_inclusive_sum(v);
    out[k++ * width + lane] = simd_prefix_exclusive_sum(v);
    out[k++ * width + lane] = simd_shuffle(v, ushort(lane * 7 % 32));
    out[k++ * width + lane] = simd_shuffle_xor(v, 5);
    out[k++ * width + lane] = simd_shuffle_up(v, 3);
    out[k++ * width + lane] = simd_shuffle_down(v, 3);
    out[k++ * width + lane] = simd_broadcast(v, 9);
    out[k++ * width + lane] = simd_broadcast_first(v);
    out[k++ * width + lane] = quad_sum(v);
    out[k++ * width + lane] = quad_shuffle_xor(v, 2);
    out[k++ * width + lane] = simd_any(v == 5);
    out[k++ * width + lane] = simd_all(v < 100);
    out[k++ * width + lane] = int(uint(simd_vote::vote_t(simd_ballot(v & 1))));
}

// Lanes at or above n end before the sum: it is over the others.
kernel void some_lanes(device const int *x [[buffer(0)]], device int *out [[buffer(1)]], constant uint &n [[buffer(2)]],
                       uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= n) return;
    out[lane] = simd_sum(x[lane]) + simd_prefix_inclusive_sum(x[lane]);
}

// C += A B, A [8][16] and B [16][8] row by row with strides, or B transposed; from threadgroup memory.  T: of A and B.
template <typename T, bool Transposed>
[[kernel]] void matrices(device const T *a [[buffer(0)]], device const T *b [[buffer(1)]], device float *c [[buffer(2)]],
                         uint lane [[thread_index_in_simdgroup]]) {
    threadgroup T tile[2][8 * 12];
    simdgroup_float8x8 sum;
    simdgroup_load(sum, c, 9);
    for (uint k = 0; k < 2; k++) {
        for (uint i = lane; i < 64; i += 32) tile[k][i / 8 * 12 + i % 8] = a[i / 8 * 16 + k * 8 + i % 8];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_matrix<T, 8, 8> left, right;
        simdgroup_load(left, tile[k], 12);
        if (Transposed)
            simdgroup_load(right, b, 20, ulong2(k * 8, 0), true);
        else
            simdgroup_load(right, b, 10, ulong2(0, k * 8));
        simdgroup_multiply_accumulate(sum, left, right, sum);
    }
    simdgroup_store(sum, c, 9);
}
template [[host_name("matrices_float")]] [[kernel]] void matrices<float, false>(device const float *, device const float *, device float *, uint);
template [[host_name("matrices_half")]] kernel decltype(matrices<half, false>) matrices<half, false>;
template [[host_name("matrices_bfloat_t")]] kernel decltype(matrices<bfloat, true>) matrices<bfloat, true>;

// Which place of the matrix each value of each lane is: thread_elements.
kernel void matrix_places(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_load(m, x);
    for (uint i = 0; i < 2; i++) out[lane * 2 + i] = m.thread_elements()[i];
}

// 16-bit arithmetic rounds after each operation.
kernel void rounding(device float *out [[buffer(0)]]) {
    half h = 2048.0h;
    h = h + 1.0h;
    out[0] = float(h - 2048.0h); // 0: 2049 is no half
    bfloat b = bfloat(256.0);
    b = b + bfloat(1);
    out[1] = float(b); // 256
    out[2] = float(half(65519.0f)); // 65504
    out[3] = float(bfloat(1.00390625f)); // halfway: to even, 1
    out[4] = 1.0 / 3.0; // a float's, not a double's
    const half2 pair = half2(float2(1.5f, -2.5f));
    out[5] = float(pair.x) * float(pair.y);
    const uint4 u = uint4(float4(1.9f, 2.0f, 3.0f, 4.5f)); // converts
    out[6] = float(u.x + u.y + u.z + u.w);
    out[7] = as_type<float>(0x3f800000u);
    const vec<float, 4> v = vec<float, 4>(float2(1, 2), 3, 4);
    out[8] = dot(v, float4(1)) + float(popcount(0xffu)) + float(clz(1u)) + float(ctz(8u));
    out[9] = max(clamp(5.0f, 0.0f, 2.0f), fma(2.0f, 0.25f, 0.0f)) + rsqrt(4.0f);
}

constant bool doubled [[function_constant(3)]];
constant uint offset [[function_constant(4)]];

// Positions of threads in a grid whose last threadgroups are cut; two parts of threadgroup memory from the host.
kernel void positions(device uint *out [[buffer(0)]], threadgroup uint *first [[threadgroup(0)]], threadgroup uint *second [[threadgroup(1)]],
                      uint2 at [[thread_position_in_grid]], uint2 grid [[threads_per_grid]], uint tid [[thread_index_in_threadgroup]],
                      ushort2 size [[threads_per_threadgroup]]) {
    first[tid] = at.y * grid.x + at.x;
    second[tid] = 1000 * size.x + size.y;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint other = size.x * size.y - 1 - tid; // of the threadgroup, from behind
    out[first[tid]] = (first[other] + second[other]) * (doubled ? 2 : 1) + (is_function_constant_defined(offset) ? offset : 7);
}

// The n largest of atomically given tickets; floats added in any order are whole numbers here.
kernel void tickets(device atomic_uint *next [[buffer(0)]], device atomic_float *sum [[buffer(1)]], device uint *holder [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    threadgroup atomic_uint here;
    if (i % 64 == 0) atomic_store_explicit(&here, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint mine = atomic_fetch_add_explicit(&here, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (mine == 63) atomic_fetch_add_explicit(next, atomic_load_explicit(&here, memory_order_relaxed), memory_order_relaxed);
    atomic_fetch_add_explicit(sum, float(mine), memory_order_relaxed);
    atomic_fetch_max_explicit(next + 1, i, memory_order_relaxed);
    holder[i] = mine / 64;
}

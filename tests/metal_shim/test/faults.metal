// faults.metal: kernels with one mistake each, and beside them the same without it (FAULT(n) is 0): tests that the shim finds it.
#include <metal_stdlib>
using namespace metal;

constant uint fault [[function_constant(0)]];

struct sums_args {
    uint n;
};

// y[group] = Σ x[group][0 … n − 1], in 64 threads
kernel void sums(constant sums_args &a [[buffer(0)]], device const float *x [[buffer(1)]], device float *y [[buffer(2)]],
                 threadgroup float *part [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
                 uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    float v = 0;
    const uint end = fault == 2 ? a.n + 1 : a.n; // off by one: behind the last row's end
    for (uint i = tid; i < end; i += 64) v += x[group * a.n + i];
    v = simd_sum(v);
    if (lane == 0) part[fault == 3 ? simdgroup * 4 : simdgroup] = v; // outside the 16 bytes there are
    if (fault == 4) { // some threads of a threadgroup alone
        if (tid < 32) threadgroup_barrier(mem_flags::mem_threadgroup);
    } else if (fault == 5) { // orders no memory
        threadgroup_barrier(mem_flags::mem_none);
    } else if (fault != 1) { // 1: no barrier at all
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (fault == 6 && lane < 16) v = simd_max(v); // half of a simdgroup: the others are at the end or elsewhere
    if (fault == 6 && lane >= 16) v = simd_sum(v);
    if (tid == 0) y[group] = part[0] + part[1];
    if (fault == 7 && tid == 0) y[0] = v; // every threadgroup
}

// y[i] = 2 x[i]
kernel void twice(device const float *x [[buffer(0)]], device float *y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const uint table[4] = {0, 1, 2, 3};
    y[i] = 2 * x[i];
    if (fault == 8) y[i] += float(table[i]); // an index outside its array
    if (fault == 9) y[i] += float(*(device const uint *)((device const uchar *)x + 2)); // not aligned
    if (fault == 10 && i == 0) y[0] = float(int(1e20f * x[0])); // no int
}

// x[i] = x[31 − i] within a simdgroup, through memory
kernel void mirror(device float *x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[32];
    tile[lane] = x[lane];
    if (fault != 11) simdgroup_barrier(mem_flags::mem_threadgroup);
    x[lane] = tile[31 - lane];
    if (fault == 12) x[lane] += x[31 - lane]; // through device memory, no barrier
}

struct place {
    device float *values;
    uint n;
};

// values[i] = i, reached through a pointer in a structure
kernel void number(constant place &p [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i < p.n) p.values[i] = float(i);
}

// count += 1 per thread; values of a threadgroup's own
kernel void count(device atomic_uint *n [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (fault == 13)
        *(device uint *)n = *(device uint *)n + 1; // every thread
    else
        atomic_fetch_add_explicit(n, 1u, memory_order_relaxed);
}

kernel void large(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float a[6000];
    threadgroup float b[3000];
    a[i] = b[i] = float(i);
    y[i] = a[i] + b[i];
}

/* device.cuh: what the kernels share: loads and stores with hints, the tensor core instruction, reductions, dependent launch.
 *
 * Dependent launch (Hopper and later): in a captured step each kernel may start while the one before still runs.  A kernel first says
 * that the next may start (launch_dependents), fetches what no kernel of this step writes (weights, the batch, state of earlier steps),
 * and then waits (wait_inputs) until everything before it is complete and visible.  Every block waits before its first write, so
 * completeness is transitive along the chain. */
#ifndef CALLA_BACKEND_CUDA_DEVICE_CUH
#define CALLA_BACKEND_CUDA_DEVICE_CUH

#include <cstdint>

#include "backend/cuda/kernels.h"

namespace calla {

constexpr uint32_t WARP = 32;

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Makes the compiler have x here: what follows from a kernel's parameters alone is then computed before the wait and not after it, where
 * the parameters would be read from memory. */
template <typename T> __device__ __forceinline__ void have(T *&x) { asm volatile("" : "+l"(x)); }
__device__ __forceinline__ void have(uint32_t &x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void have(float &x) { asm volatile("" : "+f"(x)); }

/* Weights are read once per step: they must not push activations out of L1. */
__device__ __forceinline__ uint4 load_stream(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ uint32_t load_stream(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* 16 bytes from memory to shared memory, past the registers; groups of them are waited for in order. */
__device__ __forceinline__ void copy_async(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

/* Reads, for nobody, a place that the kernel in front may still write: the load after the wait then comes sooner, presumably because its
 * address is translated by then. */
__device__ __forceinline__ void touch(const float *p) {
    [[maybe_unused]] float v;
    asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
}

__device__ __forceinline__ void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

/* Two floats to a pair of bf16, nearest even; `low` in the lower half. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* d += A B: A 16×16 (rows g, g + 8), B 16×8, f32 sums: d[0], d[1] of row g and columns 2t, 2t + 1; d[2], d[3] of row g + 8. */
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same where rows 8 … 15 of A are zeros: two sums. */
__device__ __forceinline__ void mma_bf16_upper(float (&d)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    [[maybe_unused]] float lower0, lower1; /* zeros */
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, {%0,%1,%9,%9};"
        : "+f"(d[0]), "+f"(d[1]), "=f"(lower0), "=f"(lower1)
        : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
}

template <int LANES> __device__ __forceinline__ float sum_lanes(float x) { /* over groups of LANES neighbours */
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

template <int LANES> __device__ __forceinline__ float max_lanes(float x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}

/* The quick division is within 2 ulp, and short: kernels that run once for each of many stages are as slow as their instructions come. */
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* True in exactly one block: the last of `blocks` to come here; all that the others wrote before is visible to it.  The counter is 0
 * again afterwards.  All threads of the block call it. */
__device__ __forceinline__ bool is_last_block(uint32_t *counter, uint32_t blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1) == blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* Launches with or without the attribute that lets the kernel start early; in clusters of so many blocks along x, 1: none. */
template <typename... Parameters, typename... Arguments>
void launch_clusters(void (*kernel)(Parameters...), uint32_t cluster, dim3 grid, uint32_t threads, size_t shared_bytes, bool early,
                     cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attribute;
    if (early) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = cluster;
        attribute[config.numAttrs].val.clusterDim.y = attribute[config.numAttrs].val.clusterDim.z = 1;
        config.numAttrs++;
    }
    cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, uint32_t threads, size_t shared_bytes, bool early, cudaStream_t stream,
            Arguments... arguments) {
    launch_clusters(kernel, 1, grid, threads, shared_bytes, early, stream, arguments...);
}

/* A multiprocessor has one memory for shared memory and L1, and kernels that want it cut in different ways do not run beside each other:
 * those of a step all ask for the same. */
template <typename Kernel> cudaError_t share_most(Kernel kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

/* Raises the limit of dynamic shared memory too. */
template <typename Kernel> cudaError_t allow_shared(Kernel kernel, size_t bytes) {
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e ? e : share_most(kernel);
}

} // namespace calla

#endif

/* gemm_bf16.cu: the product of prompts for plain bf16 weights. */
#include "backend/cuda/gemm_kernel.cuh"

void gemm_launch_bf16(const gemm_job *job, bool pairs, cudaStream_t stream) {
    if (pairs)
        gemm_launch<16, true>(job, stream);
    else
        gemm_launch<16, false>(job, stream);
}

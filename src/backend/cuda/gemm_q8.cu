/* gemm_q8.cu: the product of prompts for 8-bit codes. */
#include "backend/cuda/gemm_kernel.cuh"

void gemm_launch_q8(const gemm_job *job, bool pairs, cudaStream_t stream) {
    if (pairs)
        gemm_launch<8, true>(job, stream);
    else
        gemm_launch<8, false>(job, stream);
}

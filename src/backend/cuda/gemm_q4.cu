/* gemm_q4.cu: the product of prompts for 4-bit codes. */
#include "backend/cuda/gemm_kernel.cuh"

void gemm_launch_q4(const gemm_job *job, bool pairs, cudaStream_t stream) {
    if (pairs)
        gemm_launch<4, true>(job, stream);
    else
        gemm_launch<4, false>(job, stream);
}

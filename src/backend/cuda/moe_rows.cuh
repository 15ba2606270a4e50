/* moe_rows.cuh: what the experts' kernels of few rows share (moe_rows.cu, moe_many.cu). */
#ifndef CALLA_BACKEND_CUDA_MOE_ROWS_CUH
#define CALLA_BACKEND_CUDA_MOE_ROWS_CUH

#include "backend/cuda/int_gemv.cuh"
#include "backend/cuda/top_k.cuh"

namespace calla {

__host__ __device__ inline uint32_t chunks_of(const cuda_mat &w) { return (w.col_tiles + CHUNK - 1) / CHUNK; }
__device__ __forceinline__ uint32_t tiles_of(const cuda_mat &w, uint32_t chunk) { return min(CHUNK, w.col_tiles - chunk * CHUNK); }
__device__ __forceinline__ size_t index_of(const cuda_mat &w, uint32_t which, uint32_t row_tile, uint32_t chunk) {
    return ((size_t)which * w.row_tiles + row_tile) * w.col_tiles + chunk * CHUNK;
}

/* Two chunks of 4 bits, or one of 8, of a warp. */
constexpr uint32_t PAIR_BYTES = 2 * CHUNK_BYTES<4>;
static_assert(CHUNK_BYTES<8> <= PAIR_BYTES, "");

/* Gate and up of a row tile and chunk to a warp's place. */
__device__ __forceinline__ void fetch_pair(const cuda_mat &gate, const cuda_mat &up, size_t index, uint32_t n, uint8_t *place) {
    fetch_chunk<4>(gate, index, n, place);
    fetch_chunk<4>(up, index, n, place + CHUNK_BYTES<4>);
}

/* moe_many.cu */
cudaError_t moe_many_prepare(void);
uint32_t moe_many_bytes(const step_moe *a); /* of shared memory */
void run_moe_many_in(const step_moe *a, uint32_t multiprocessors, bool early, cudaStream_t stream);
void run_moe_many_out(const step_moe *a, bool early, cudaStream_t stream);

} // namespace calla

#endif

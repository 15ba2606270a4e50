/* gemm.cuh: the matrix product of prompts: quantized W (as tensor core fragments, kernels.h) times rows of f16 activations.
 *
 * One block of eight warps makes tiles of 256 outputs (two halves of 128) by up to 128 rows, in steps of 64 inputs.  W is the A operand:
 * each warp owns one row of 16 outputs of either half, loads its codes, and turns them into f16 in registers; the activations are the
 * B operand in swizzled shared memory, shared by all warps.  On sm_90a four warps together feed wgmma, elsewhere each feeds mma.sync;
 * fragments and sums are the same.  Blocks are persistent: a ring of steps in shared memory is filled ahead of the arithmetic, across
 * the borders of tiles, so the first steps of a tile load while the tile before is stored.
 *
 * With two matrices (gate and up) the halves are the same 128 outputs of either, and what is stored is silu(gate) · up.
 * The rows of a tile are consecutive, or an expert's by list; then the work list (expert_rows.cu) says which tiles there are.
 *
 * Every sum is over the inputs in order, whatever the tile: results do not depend on the other rows of a batch.
 *
 * On an H200 (products of libraries: 788 TFLOP/s) at 8,192 rows: 543 to 552 dense, 447 for the experts' gate and up.  In bf16, whose codes
 * took one operation more to unpack, 500 to 510 and 440, with mma.sync 360; a step then took about 1,800 cycles where its wgmma need 1,024,
 * and instructions were issued in 40 % of them.  Tried without gain: letting the two warpgroups take turns by named barriers, one making
 * fragments while the other's products run. */
#ifndef CALLA_BACKEND_CUDA_GEMM_CUH
#define CALLA_BACKEND_CUDA_GEMM_CUH

#include "backend/cuda/gemm_ptx.cuh"
#include "backend/cuda/kernels.h"

enum { GEMM_THREADS = 256, GEMM_STEP = 64 /* inputs */, GEMM_HALF = 128 /* outputs */, GEMM_MAX_ROWS = 128 };

/* One piece of the work list: up to 128 rows of one expert, computed as `width` of 16, 32, 64, 96 or 128.  Wider ones
 * come first. */
typedef struct gemm_piece {
    uint32_t expert, first, count, width; /* first: index into place[] */
} gemm_piece;
typedef struct gemm_pieces { /* how cuda_expert_rows.blocks begins; gemm_piece[pieces] follows */
    uint32_t pieces, unused[3];
} gemm_pieces;

typedef enum gemm_store { GEMM_STORE_F32, GEMM_ADD_F32, GEMM_ADD_SCALED_F32, GEMM_STORE_F16 } gemm_store;

typedef struct gemm_job {
    cuda_mat w[2]; /* with one matrix w[1] is unused */
    const uint16_t *x;
    uint32_t x_stride; /* elements */
    uint32_t rows, width;
    uint32_t output_tiles;   /* tiles of 256 outputs (128 with two matrices) */
    const gemm_pieces *list; /* NULL: rows 0 ... rows - 1 in tiles of `width` */
    const uint32_t *place;   /* with a list: x row = place[i]/top_k; NULL: x row = i */
    uint32_t top_k;
    gemm_store store;
    const float *scale; /* [rows] */
    void *out;
    uint32_t out_stride; /* elements */
} gemm_job;

/* Enqueues a job; `pairs`: with two matrices.  One file per width of the codes. */
void gemm_launch_q4(const gemm_job *job, bool pairs, cudaStream_t stream);
void gemm_launch_q8(const gemm_job *job, bool pairs, cudaStream_t stream);
void gemm_launch_bf16(const gemm_job *job, bool pairs, cudaStream_t stream);

#endif

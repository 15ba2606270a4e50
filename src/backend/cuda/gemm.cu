/* gemm.cu: the products of prompts as kernels.h offers them: each becomes a job of gemm.cuh. */
#include "backend/cuda/gemm.cuh"

static void launch(const gemm_job *job, bool pairs, cudaStream_t stream) {
    switch (job->w[0].bits) {
    case 4: gemm_launch_q4(job, pairs, stream); break;
    case 8: gemm_launch_q8(job, pairs, stream); break;
    default: gemm_launch_bf16(job, pairs, stream); break;
    }
}

/* Chooses the width of tiles.  A step of a tile takes about 500 + 10·width cycles (codes, then products; H200), and all multiprocessors
 * work in rounds. */
static void spread_rows(gemm_job *job, uint32_t rows) {
    static const uint32_t widths[] = {128, 96, 64, 32, 16};
    int device = 0, processors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    job->rows = rows;
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < sizeof widths / sizeof *widths; i++) {
        const uint64_t tiles = (uint64_t)((rows + widths[i] - 1) / widths[i]) * job->output_tiles,
                       cycles = (tiles + (uint64_t)processors - 1) / (uint64_t)processors * (500 + 10 * widths[i]);
        if (cycles >= least) continue;
        least = cycles;
        job->width = widths[i];
    }
}

static gemm_job dense(const cuda_mat *w, const uint16_t *x, uint32_t x_stride, gemm_store store, void *out, uint32_t out_stride,
                      uint32_t rows) {
    gemm_job job = {};
    job.w[0] = *w;
    job.x = x, job.x_stride = x_stride;
    job.output_tiles = (w->row_tiles + 15) / 16;
    job.store = store, job.out = out, job.out_stride = out_stride;
    spread_rows(&job, rows);
    return job;
}

void cuda_gemm(const cuda_mat *w, const uint16_t *x, uint32_t x_stride, float *out, uint32_t out_stride, uint32_t rows, bool add,
               cudaStream_t stream) {
    const gemm_job job = dense(w, x, x_stride, add ? GEMM_ADD_F32 : GEMM_STORE_F32, out, out_stride, rows);
    launch(&job, false, stream);
}

void cuda_gemm_scaled_add(const cuda_mat *w, const uint16_t *x, uint32_t x_stride, const float *scale, float *residual, uint32_t out_stride,
                          uint32_t rows, cudaStream_t stream) {
    gemm_job job = dense(w, x, x_stride, GEMM_ADD_SCALED_F32, residual, out_stride, rows);
    job.scale = scale;
    launch(&job, false, stream);
}

/* Gate and up have one shape, one width of codes and one size of groups. */
static gemm_job gate_and_up(const cuda_mat *gate, const cuda_mat *up, const uint16_t *x, uint32_t x_stride, uint16_t *out,
                            uint32_t out_stride) {
    gemm_job job = {};
    job.w[0] = *gate, job.w[1] = *up;
    job.x = x, job.x_stride = x_stride;
    job.output_tiles = (gate->row_tiles + 7) / 8;
    job.store = GEMM_STORE_F16, job.out = out, job.out_stride = out_stride;
    return job;
}

void cuda_gemm_swiglu(const cuda_mat *gate, const cuda_mat *up, const uint16_t *x, uint32_t x_stride, uint16_t *out, uint32_t out_stride,
                      uint32_t rows, cudaStream_t stream) {
    gemm_job job = gate_and_up(gate, up, x, x_stride, out, out_stride);
    spread_rows(&job, rows);
    launch(&job, true, stream);
}

void cuda_expert_gemm_in(const cuda_mat *gate, const cuda_mat *up, const uint16_t *x, uint32_t x_stride, const cuda_expert_rows *lists,
                         uint16_t *out, uint32_t rows, uint32_t top_k, cudaStream_t stream) {
    if (!rows) return;
    gemm_job job = gate_and_up(gate, up, x, x_stride, out, gate->rows);
    job.list = (const gemm_pieces *)lists->blocks;
    job.place = lists->place, job.top_k = top_k;
    launch(&job, true, stream);
}

uint64_t cuda_expert_partial_bytes(uint32_t max_rows, uint32_t top_k, uint32_t hidden) {
    return (uint64_t)max_rows * top_k * hidden * sizeof(uint16_t);
}

enum { COMBINE_THREADS = 256 };

/* residual[r] += Σ_i weight[r][i] · partial[slot_of[r·top_k + i]], in order of i; four values a thread. */
static __global__ void combine_experts(const uint16_t *partial, const uint32_t *slot_of, const float *weight, uint32_t top_k,
                                       uint32_t hidden, float *residual, uint32_t residual_stride) {
    const uint32_t r = blockIdx.x, o = (blockIdx.y * COMBINE_THREADS + threadIdx.x) * 4;
    if (o >= hidden) return;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (uint32_t i = 0; i < top_k; i++) {
        const float w = weight[(size_t)r * top_k + i];
        const uint2 v = *(const uint2 *)(partial + (size_t)slot_of[(size_t)r * top_k + i] * hidden + o);
        const float2 a = __half22float2(*(const __half2 *)&v.x), b = __half22float2(*(const __half2 *)&v.y);
        sum.x += w * a.x, sum.y += w * a.y, sum.z += w * b.x, sum.w += w * b.y;
    }
    float *to = residual + (size_t)r * residual_stride + o;
    to[0] += sum.x, to[1] += sum.y, to[2] += sum.z, to[3] += sum.w;
}

void cuda_expert_gemm_out(const cuda_mat *down, const uint16_t *in, const cuda_expert_rows *lists, const float *weight, void *partial,
                          float *residual, uint32_t residual_stride, uint32_t rows, uint32_t top_k, cudaStream_t stream) {
    if (!rows) return;
    gemm_job job = {};
    job.w[0] = *down;
    job.x = in, job.x_stride = down->cols;
    job.output_tiles = (down->row_tiles + 15) / 16;
    job.list = (const gemm_pieces *)lists->blocks;
    job.store = GEMM_STORE_F16, job.out = partial, job.out_stride = down->rows;
    launch(&job, false, stream);
    const dim3 grid(rows, (down->rows / 4 + COMBINE_THREADS - 1) / COMBINE_THREADS);
    combine_experts<<<grid, COMBINE_THREADS, 0, stream>>>((const uint16_t *)partial, lists->slot_of, weight, top_k, down->rows, residual,
                                                          residual_stride);
}

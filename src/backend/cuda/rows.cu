/* rows.cu: what works on single rows or plain memory: embedding and rotary angles, norms to f16, rows moved together, copies of KV
 * pages, reading for the measure of the memory. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/gemm_ptx.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t THREADS = 256;

/* The weight of one output and input, from its tile (kernels.h). */
__device__ float weight_at(const cuda_mat &w, uint32_t row, uint32_t k) {
    const size_t tile = (size_t)(row / 16) * w.col_tiles + k / 64;
    const uint32_t g = row % 8, upper = row / 8 % 2, j = k / 16 % 4, in_step = k % 16, t = in_step % 8 / 2, half = in_step % 2,
                   far = in_step / 8;
    const uint32_t lane = g * 4 + t, reg = upper + 2 * far;
    if (w.bits == 16) {
        const uint32_t *p = reinterpret_cast<const uint32_t *>(w.codes) + (tile * 4 + j) * 128 + lane * 4 + reg;
        return half ? bf16_high(*p) : bf16_low(*p);
    }
    const uint32_t *p = reinterpret_cast<const uint32_t *>(w.codes) + tile * (w.bits * 32) + lane * 4 + j, shift = reg * 4 + half * 16;
    uint32_t code = *p >> shift & 15;
    if (w.bits == 8) code |= (p[128] >> shift & 15) << 4;
    const uint32_t scale = w.scales[(tile * w.subs + (w.subs == 2 ? k / 32 % 2 : 0)) * 16 + row % 16];
    return bf16_low(scale) * (float)code + bf16_high(scale);
}

/* Block: a row. */
__global__ void embed_kernel(const __grid_constant__ step_embed a) {
    launch_dependents();
    const uint32_t row = blockIdx.x;
    if (row >= a.batch.counts->rows) return;
    int32_t id = a.batch.ids[row];
    if (id < 0) id = a.picked[-1 - id];
    if (id < 0) id = 0; /* the step before picked nothing: its reader ends the sequence */
    for (uint32_t k = threadIdx.x; k < a.hidden; k += THREADS) a.residual[(size_t)row * a.hidden + k] = weight_at(a.w, (uint32_t)id, k);
    if (threadIdx.x >= ROTARY_DIM / 2) return;
    double sine, cosine;
    sincos(a.batch.positions[row] * a.rate[threadIdx.x], &sine, &cosine);
    a.rotary[row * ROTARY_DIM + threadIdx.x] = (float)cosine;
    a.rotary[row * ROTARY_DIM + ROTARY_DIM / 2 + threadIdx.x] = (float)sine;
}

__global__ void __launch_bounds__(THREADS) norm_f16_kernel(const float *x, const float *gain, float eps, uint32_t hidden, uint16_t *out) {
    __shared__ float squares[THREADS / WARP];
    const float *in = x + (size_t)blockIdx.x * hidden;
    float square = 0;
    for (uint32_t i = threadIdx.x * 2; i < hidden; i += THREADS * 2) {
        const float2 v = *reinterpret_cast<const float2 *>(in + i);
        square += v.x * v.x + v.y * v.y;
    }
    square = sum_lanes<32>(square);
    if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
    __syncthreads();
    square = 0;
    for (uint32_t w = 0; w < THREADS / WARP; w++) square += squares[w];
    const float scale = rsqrtf(square / (float)hidden + eps);
    for (uint32_t i = threadIdx.x * 2; i < hidden; i += THREADS * 2) {
        const float2 v = *reinterpret_cast<const float2 *>(in + i), g = *reinterpret_cast<const float2 *>(gain + i);
        *reinterpret_cast<uint32_t *>(out + (size_t)blockIdx.x * hidden + i) = pack_f16(v.x * scale * g.x, v.y * scale * g.y);
    }
}

/* A warp takes 128 values of a row, four of each lane. */
__global__ void __launch_bounds__(THREADS)
    gate_f16_kernel(const __grid_constant__ step_input in, uint32_t values, uint32_t first_row, uint16_t *out) {
    const uint32_t row = first_row + blockIdx.x, lane = threadIdx.x % WARP;
    const float *x = in.x + (size_t)row * in.x_stride, *gate = in.gate + (size_t)row * in.gate_stride;
    for (uint32_t begin = threadIdx.x / WARP * 128; begin < values; begin += THREADS / WARP * 128) {
        const uint32_t k = begin + lane * 4;
        float4 v = *reinterpret_cast<const float4 *>(x + k);
        if (in.source == STEP_GATED) {
            const float4 g = *reinterpret_cast<const float4 *>(gate + k / HEAD_DIM * 2 * HEAD_DIM + HEAD_DIM + k % HEAD_DIM);
            v.x *= sigmoid(g.x), v.y *= sigmoid(g.y), v.z *= sigmoid(g.z), v.w *= sigmoid(g.w);
        } else {
            const float squares = sum_lanes<32>(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w), scale = rsqrtf(squares / 128.0f + in.eps);
            const float4 z = *reinterpret_cast<const float4 *>(gate + k), g = *reinterpret_cast<const float4 *>(in.gain + k % 128);
            v.x *= scale * g.x * silu(z.x), v.y *= scale * g.y * silu(z.y), v.z *= scale * g.z * silu(z.z), v.w *= scale * g.w * silu(z.w);
        }
        *reinterpret_cast<uint2 *>(out + (size_t)row * values + k) = make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
    }
}

/* Block: a row. */
__global__ void gather_kernel(const float *x, const uint32_t *row_of, uint32_t values, float *out) {
    const float *in = x + (size_t)row_of[blockIdx.x] * values;
    for (uint32_t i = threadIdx.x; i < values; i += THREADS) out[(size_t)blockIdx.x * values + i] = in[i];
}

/* Block: one layer, K or V, one head.  A row of a page is a multiple of 16 bytes. */
__global__ void copy_page_kernel(uint4 *kv, size_t layer_units, size_t head_units, uint32_t heads, uint32_t src, uint32_t dst,
                                 size_t units) {
    const size_t layer = blockIdx.x / (2 * heads), part = blockIdx.x % (2 * heads);
    uint4 *base = kv + layer * layer_units + part * head_units;
    const uint4 *from = base + (size_t)src * 2 * heads * head_units;
    uint4 *to = base + (size_t)dst * 2 * heads * head_units;
    for (size_t i = threadIdx.x; i < units; i += THREADS) to[i] = from[i];
}

__global__ void __launch_bounds__(512) read_kernel(const uint4 *data, uint64_t units, uint32_t *sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < units; i += 4 * step) {
        const uint4 a = load_stream(data + i), b = load_stream(data + i + step), c = load_stream(data + i + 2 * step),
                    d = load_stream(data + i + 3 * step);
        sum.x ^= a.x ^ b.y ^ c.z ^ d.w, sum.y ^= a.y ^ b.z ^ c.w ^ d.x, sum.z += a.z + b.w, sum.w += c.x + d.y;
    }
    for (; i < units; i += step) sum.x ^= load_stream(data + i).x;
    if (sum.x == 0x12345678 && sum.y == 0x9ABCDEF0 && sum.z == 1 && sum.w == 2) *sink = sum.x; /* never, but the compiler cannot know */
}

} // namespace calla

using namespace calla;

void step_run_embed(const step_embed *a, cudaStream_t stream) { launch(embed_kernel, dim3(a->rows), THREADS, 0, false, stream, *a); }

void rows_run_norm_f16(const float *x, const float *gain, float eps, uint32_t hidden, uint32_t rows, uint16_t *out, cudaStream_t stream) {
    launch(norm_f16_kernel, dim3(rows), THREADS, 0, false, stream, x, gain, eps, hidden, out);
}

void rows_run_gate_f16(const step_input *in, uint32_t values, uint32_t first_row, uint32_t rows, uint16_t *out, cudaStream_t stream) {
    launch(gate_f16_kernel, dim3(rows), THREADS, 0, false, stream, *in, values, first_row, out);
}

void rows_run_gather(const float *x, const uint32_t *row_of, uint32_t values, uint32_t rows, float *out, cudaStream_t stream) {
    launch(gather_kernel, dim3(rows), THREADS, 0, false, stream, x, row_of, values, out);
}

void rows_run_copy_page(void *kv, uint32_t layers, uint32_t pages, uint32_t kv_heads, uint32_t element_bytes, uint32_t src, uint32_t dst,
                        uint32_t tokens, cudaStream_t stream) {
    const size_t row = (size_t)HEAD_DIM * element_bytes / 16, head = KV_PAGE_TOKENS * row;
    launch(copy_page_kernel, dim3(layers * 2 * kv_heads), THREADS, 0, false, stream, static_cast<uint4 *>(kv),
           (size_t)pages * 2 * kv_heads * head, head, kv_heads, src, dst, (size_t)tokens * row);
}

void rows_run_read(const void *data, uint64_t bytes, uint32_t *sink, cudaStream_t stream) {
    launch(read_kernel, dim3(1056), 512, 0, false, stream, static_cast<const uint4 *>(data), bytes / 16, sink);
}

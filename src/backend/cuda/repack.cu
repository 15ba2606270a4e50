/* repack.cu: weights from MLX's order into tiles (kernels.h), on the device, while the next bytes are on their way.
 *
 * A thread makes one 16-byte unit of a tile, or one word of scales; sources are read bytewise where they may stand at any alignment. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

constexpr uint32_t THREADS = 256;

/* Code of an output and input; 0 beyond the matrix. */
__device__ uint32_t code_at(const repack_job &j, uint32_t which, uint32_t row, uint32_t k) {
    if (row >= j.rows || k >= j.cols) return 0;
    const uint64_t index = ((uint64_t)which * j.rows + row) * j.cols + k;
    if (j.bits == 4) return j.codes[index / 2] >> (index % 2 * 4) & 15;
    if (j.bits == 8) return j.codes[index];
    return j.codes[2 * index] | (uint32_t)j.codes[2 * index + 1] << 8;
}

/* Word `w` of a 4-bit tile unit: step w, lane's eight nibbles, the low or high half of each code. */
__device__ uint32_t nibbles(const repack_job &j, uint32_t which, uint32_t row0, uint32_t k0, uint32_t lane, uint32_t step, uint32_t shift) {
    uint32_t word = 0;
    for (uint32_t n = 0; n < 8; n++) {
        const uint32_t row = row0 + lane / 4 + 8 * (n % 4 & 1), k = k0 + 16 * step + 2 * (lane % 4) + n / 4 + 8 * (n % 4 >> 1);
        word |= (code_at(j, which, row, k) >> shift & 15) << (4 * n);
    }
    return word;
}

__global__ void __launch_bounds__(THREADS) repack_codes_kernel(const __grid_constant__ repack_job j) {
    const uint32_t units = j.bits * 8, first_tile = j.first_row / 16, row_tiles = (j.rows + 15) / 16;
    const uint64_t total = (uint64_t)j.count * row_tiles * j.to.col_tiles * units;
    uint4 *out = const_cast<uint4 *>(j.to.codes);
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < total; i += (uint64_t)gridDim.x * THREADS) {
        const uint32_t unit = (uint32_t)(i % units), lane = unit % 32, block = unit / 32;
        const uint64_t tile = i / units;
        const uint32_t c = (uint32_t)(tile % j.to.col_tiles), r = (uint32_t)(tile / j.to.col_tiles % row_tiles),
                       which = (uint32_t)(tile / j.to.col_tiles / row_tiles);
        uint32_t word[4];
        for (uint32_t w = 0; w < 4; w++) {
            if (j.bits != 16) {
                word[w] = nibbles(j, which, r * 16, c * 64, lane, w, block * 4);
                continue;
            }
            const uint32_t row = r * 16 + lane / 4 + 8 * (w & 1), k = c * 64 + 16 * block + 2 * (lane % 4) + 8 * (w >> 1);
            word[w] = code_at(j, which, row, k) | code_at(j, which, row, k + 1) << 16;
        }
        const size_t to = (((size_t)(j.first + which) * j.to.row_tiles + first_tile + r) * j.to.col_tiles + c) * units + unit;
        out[to] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

__device__ uint32_t bf16_at(const uint8_t *p, uint64_t index) { return p[2 * index] | (uint32_t)p[2 * index + 1] << 8; }

__global__ void __launch_bounds__(THREADS) repack_scales_kernel(const __grid_constant__ repack_job j) {
    const uint32_t first_tile = j.first_row / 16, row_tiles = (j.rows + 15) / 16, per_tile = j.to.subs * 16, groups = j.cols / j.group;
    const uint64_t total = (uint64_t)j.count * row_tiles * j.to.col_tiles * per_tile;
    uint32_t *out = const_cast<uint32_t *>(j.to.scales);
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < total; i += (uint64_t)gridDim.x * THREADS) {
        const uint32_t in_tile = (uint32_t)(i % per_tile), sub = in_tile / 16;
        const uint64_t tile = i / per_tile;
        const uint32_t c = (uint32_t)(tile % j.to.col_tiles), r = (uint32_t)(tile / j.to.col_tiles % row_tiles),
                       which = (uint32_t)(tile / j.to.col_tiles / row_tiles);
        const uint32_t row = r * 16 + in_tile % 16, k = c * 64 + sub * 32;
        uint32_t word = 0;
        if (row < j.rows && k < j.cols) {
            const uint64_t index = ((uint64_t)which * j.rows + row) * groups + k / j.group;
            word = bf16_at(j.scales, index) | bf16_at(j.biases, index) << 16;
        }
        out[(((size_t)(j.first + which) * j.to.row_tiles + first_tile + r) * j.to.col_tiles + c) * per_tile + in_tile] = word;
    }
}

} // namespace calla

void repack_run(const repack_job *j, cudaStream_t stream) {
    using namespace calla;
    const uint64_t tiles = (uint64_t)j->count * ((j->rows + 15) / 16) * j->to.col_tiles;
    const auto blocks = [](uint64_t n) { return (uint32_t)((n + THREADS - 1) / THREADS < 2048 ? (n + THREADS - 1) / THREADS : 2048); };
    launch(repack_codes_kernel, dim3(blocks(tiles * j->bits * 8)), THREADS, 0, false, stream, *j);
    if (j->bits != 16) launch(repack_scales_kernel, dim3(blocks(tiles * j->to.subs * 16)), THREADS, 0, false, stream, *j);
}

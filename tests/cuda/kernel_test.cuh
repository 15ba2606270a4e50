/* kernel_test.cuh: what the programs that test kernels share: numbers, device memory, weights packed as kernels.h says, and judging. */
#ifndef CALLA_TESTS_CUDA_KERNEL_TEST_CUH
#define CALLA_TESTS_CUDA_KERNEL_TEST_CUH

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include <cuda_fp16.h>

#include "backend/cuda/step.h"

using std::vector;

static inline void check_cuda(cudaError_t e, const char *what, int line) {
    if (e == cudaSuccess) return;
    printf("line %d: %s: %s\n", line, what, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(x) check_cuda((x), #x, __LINE__)

/* ---- numbers ---- */

static uint64_t random_state = 1;
static inline uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}
static inline float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-31f; } /* -1 ... 1 */

static inline uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
static inline float from_bf16(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
static inline float from_f16(uint16_t h) { return __half2float(__ushort_as_half(h)); }

/* ---- device memory ---- */

template <typename T> struct device_array {
    T *data = NULL;
    size_t n = 0;
    device_array() {}
    explicit device_array(size_t count) : n(count) { CUDA(cudaMalloc((void **)&data, std::max<size_t>(count, 1) * sizeof(T))); }
    explicit device_array(const vector<T> &from) : device_array(from.size()) { put(from); }
    device_array(const device_array &) = delete;
    device_array(device_array &&other) : data(other.data), n(other.n) { other.data = NULL, other.n = 0; }
    device_array &operator=(device_array &&other) {
        std::swap(data, other.data), std::swap(n, other.n);
        return *this;
    }
    ~device_array() { cudaFree(data); }
    void put(const vector<T> &from) { CUDA(cudaMemcpy(data, from.data(), n * sizeof(T), cudaMemcpyHostToDevice)); }
    vector<T> get(void) const {
        vector<T> to(n);
        CUDA(cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
    void poison(void) { CUDA(cudaMemset(data, 0xFF, n * sizeof(T))); } /* NaN as f32, bf16 and f16 */
};

/* ---- judging ---- */

static int passed, failed;

static inline void finish(void) {
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
}

static inline void judge(const char *name, bool good, double figure) {
    printf("%-4s %-70s %.1e\n", good ? "ok" : "FAIL", name, figure);
    good ? passed++ : failed++;
}

/* ‖got − want‖ / ‖want‖ ≤ limit, and no element further off than 16 · limit · (itself + the root mean square). */
static inline void judge_close(const char *name, const vector<double> &want, const vector<float> &got, double limit) {
    double error = 0, norm = 0;
    bool good = want.size() == got.size();
    for (size_t i = 0; i < want.size(); i++) {
        const double d = want[i] - (double)got[i];
        error += d * d, norm += want[i] * want[i];
    }
    const double relative = sqrt(error / norm), rms = sqrt(norm / (double)want.size());
    for (size_t i = 0; i < want.size(); i++)
        good &= fabs(want[i] - (double)got[i]) <= 16 * limit * (fabs(want[i]) + rms); /* false on NaN */
    judge(name, good && relative <= limit, relative);
}

static inline vector<float> widen(const vector<uint16_t> &x) {
    vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = from_f16(x[i]);
    return y;
}

/* ---- weights: random codes, packed as kernels.h says ---- */

struct host_mat {
    cuda_mat m;
    vector<double> value; /* [count][rows][cols] */
    device_array<uint8_t> codes;
    device_array<uint32_t> scales;
};

static inline host_mat make_mat(uint32_t count, uint32_t rows, uint32_t cols, uint32_t bits, uint32_t subs) {
    host_mat h;
    cuda_mat &m = h.m;
    m = {};
    m.count = count, m.rows = rows, m.cols = cols, m.bits = bits, m.subs = subs;
    m.row_tiles = (rows + 15) / 16, m.col_tiles = (cols + 63) / 64;
    const size_t tiles = (size_t)count * m.row_tiles * m.col_tiles;
    vector<uint8_t> codes(tiles * cuda_tile_bytes(bits), 0);
    vector<uint32_t> scales(tiles * subs * 16, 0);
    h.value.assign((size_t)count * rows * cols, 0);
    for (size_t tile = 0; tile < tiles; tile++)
        for (uint32_t o = 0; o < 16; o++)
            for (uint32_t k = 0; k < 64; k++) {
                const uint32_t r = (uint32_t)(tile / m.col_tiles % m.row_tiles) * 16 + o, c = (uint32_t)(tile % m.col_tiles) * 64 + k;
                if (r >= rows || c >= cols) continue;
                double *value = &h.value[(tile / m.col_tiles / m.row_tiles * rows + r) * cols + c];
                const uint32_t step = k / 16, in = k % 16, lane = o % 8 * 4 + in % 8 / 2, reg = o / 8 + in / 8 * 2, half = in % 2;
                uint8_t *at = &codes[tile * cuda_tile_bytes(bits)];
                if (bits == 16) {
                    const uint16_t w = to_bf16(random_float() / sqrtf((float)cols));
                    memcpy(at + step * 512 + lane * 16 + reg * 4 + half * 2, &w, 2);
                    *value = from_bf16(w);
                    continue;
                }
                uint32_t &scale = scales[(tile * subs + (subs == 2 ? k / 32 : 0)) * 16 + o];
                if (!scale) { /* the first input of its group */
                    const float s = random_float() * 4 / ((float)(1 << bits) * sqrtf((float)cols));
                    scale = to_bf16(s) | (uint32_t)to_bf16(-s * (float)(1 << bits) / 2 + random_float() * 0.1f * s) << 16;
                }
                const uint32_t code = random_bits() >> (32 - bits), nibble = reg + 4 * half;
                for (uint32_t part = 0; part < bits / 4; part++)
                    at[part * 512 + lane * 16 + step * 4 + nibble / 2] |= (uint8_t)((code >> 4 * part & 15) << 4 * (nibble & 1));
                *value = (double)from_bf16((uint16_t)scale) * code + (double)from_bf16((uint16_t)(scale >> 16));
            }
    h.codes = device_array<uint8_t>(codes.size());
    h.scales = device_array<uint32_t>(scales.size());
    h.codes.put(codes), h.scales.put(scales);
    m.codes = (const uint4 *)h.codes.data, m.scales = bits == 16 ? NULL : h.scales.data;
    return h;
}

/* ---- the device ---- */

static inline cuda_device device_of_parts(uint32_t parts) {
    cuda_device d = {};
    cudaDeviceProp p;
    int shared = 0;
    CUDA(cudaGetDeviceProperties(&p, 0));
    CUDA(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    d.multiprocessors = (uint32_t)p.multiProcessorCount, d.shared_bytes = (uint32_t)shared - 16384;
    d.parts = parts;
    return d;
}

#endif

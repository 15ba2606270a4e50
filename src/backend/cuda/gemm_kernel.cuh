/* gemm_kernel.cuh: the kernel of gemm.cuh and its launch, included by one file per width of the codes. */
#ifndef CALLA_BACKEND_CUDA_GEMM_KERNEL_CUH
#define CALLA_BACKEND_CUDA_GEMM_KERNEL_CUH

#include "backend/cuda/gemm.cuh"

/* A step in the ring: activations [128 rows][128 bytes], codes [2 halves][8 warps][tile], scales [2][8][2 subs][16]. */
template <int BITS> struct gemm_slot {
    static constexpr uint32_t tile = 128u * BITS, codes = GEMM_MAX_ROWS * 128u, scales = codes + 16u * tile,
                              bytes = scales + (BITS < 16 ? 2048u : 0u);
};
/* Steps that are loaded ahead.  wgmma still reads the step before when a new one is loaded, so it needs one slot more.  Elsewhere what
 * fits 99 KiB, the least of any device. */
template <int BITS, bool WGMMA> struct gemm_ring {
    static constexpr int ahead = WGMMA ? (BITS == 4 ? 4 : BITS == 8 ? 3 : 2) : (BITS == 4 ? 2 : 1), slots = ahead + (WGMMA ? 2 : 1);
};

struct gemm_tile {
    uint32_t expert, output, first, count, width; /* output: tile of outputs; first: row, or index into place[] */
};

DEVICE uint32_t gemm_tiles(const gemm_job &job) {
    return (job.list ? job.list->pieces : (job.rows + job.width - 1) / job.width) * job.output_tiles;
}

DEVICE gemm_tile gemm_tile_at(const gemm_job &job, uint32_t tile) {
    const uint32_t piece = tile / job.output_tiles, output = tile % job.output_tiles;
    if (!job.list) {
        const uint32_t first = piece * job.width;
        return {0, output, first, min(job.width, job.rows - first), job.width};
    }
    const uint4 p = *((const uint4 *)(job.list + 1) + piece);
    return {p.x, output, p.y, p.z, p.w};
}

/* Fills slots, one step after the other, tile after tile of this block.  Rows behind a tile's last are not loaded: whatever stands there
 * reaches only sums that are not stored. */
template <int BITS, bool PAIRS> struct gemm_loader {
    const uint8_t *code[2];
    const uint32_t *scale;
    uint32_t row[PAIRS ? 4 : 1]; /* element offsets of this thread's rows: listed ones with pairs only */
    uint32_t tile, tiles, step, steps, rows;

    __device__ __forceinline__ void begin(const gemm_job &job) {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        step = 0;
        if (tile >= tiles) return;
        const gemm_tile t = gemm_tile_at(job, tile);
        const uint32_t subs = job.w[0].subs;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const cuda_mat &w = job.w[PAIRS ? h : 0];
            const uint32_t r = PAIRS ? t.output * 8 + warp : t.output * 16 + h * 8 + warp;
            const uint64_t at = ((uint64_t)t.expert * w.row_tiles + min(r, w.row_tiles - 1)) * w.col_tiles;
            code[h] = (const uint8_t *)w.codes + at * gemm_slot<BITS>::tile + lane * 16;
            if (BITS < 16 && lane / 16 == (uint32_t)h) scale = w.scales + at * subs * 16 + lane % 16 * 4;
        }
        rows = t.count;
        row[0] = (t.first + threadIdx.x / 8) * job.x_stride;
        if (PAIRS && job.place)
#pragma unroll
            for (int i = 0; i < 4; i++) row[i] = job.place[t.first + min(threadIdx.x / 8 + 32 * i, t.count - 1)] / job.top_k * job.x_stride;
        else if (PAIRS)
#pragma unroll
            for (int i = 1; i < 4; i++) row[i] = row[0] + 32 * i * job.x_stride;
    }

    __device__ __forceinline__ void load(const gemm_job &job, uint32_t slot) {
        if (tile < tiles) {
            const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = threadIdx.x % 8, subs = job.w[0].subs;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t to = slot + gemm_slot<BITS>::codes + (h * 8 + warp) * gemm_slot<BITS>::tile + lane * 16;
#pragma unroll
                for (int i = 0; i < BITS / 4; i++) copy_async(to + i * 512, code[h] + i * 512);
                code[h] += gemm_slot<BITS>::tile;
            }
            if (BITS < 16) {
                if (lane % 16 < 4 * subs)
                    copy_async(slot + gemm_slot<BITS>::scales + ((lane / 16 * 8 + warp) * 32 + lane % 16 * 4) * 4, scale);
                scale += subs * 16;
            }
            const uint32_t k = step * GEMM_STEP + chunk * 8, cols = job.w[0].cols, left = k < cols ? min((cols - k) * 2, 16u) : 0;
            const uint32_t from = left ? k : 0; /* a valid address even where nothing is read */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t n = threadIdx.x / 8 + 32 * i;
                const uint32_t at = PAIRS ? row[i] : row[0] + 32 * i * job.x_stride;
                if (n < rows) copy_async(slot + swizzled(n, chunk), job.x + at + from, left);
            }
            if (++step == steps) {
                tile += gridDim.x;
                begin(job);
            }
        }
        copy_commit();
    }
};

/* A quantized weight stands in f16 as w/16 = (scale · 2^(24 - s)/16) · (code · 2^(s - 24)) + bias/16, rounded once: a code whose lowest bit is
 * bit s of a half is the subnormal number code · 2^(s - 24) as it is.  Scales from 4 on (of 8 bits: 1/4) are too large for this: upload.c
 * looks for them. */
template <int BITS> struct gemm_unit {
    static constexpr float part = BITS < 16 ? 16 : 1;
    static constexpr int shift = BITS == 4 ? 6 : 2; /* s */
    static constexpr float scale = (float)(1 << (24 - shift)) / part;
};
/* Nibbles i of a word's halves, from bit `to` of either on. */
DEVICE uint32_t gemm_nibbles(uint32_t word, int i, int to) {
    const uint32_t moved = to > 4 * i ? word << (to - 4 * i) : word >> (4 * i - to);
    return moved & 0x000F000Fu << to;
}
DEVICE uint32_t gemm_weights(uint32_t codes, uint32_t scale_bias) {
    const __half2 s = *(const __half2 *)&scale_bias, w = __hfma2(*(const __half2 *)&codes, __low2half2(s), __high2half2(s));
    return *(const uint32_t *)&w;
}
DEVICE uint32_t gemm_half(uint32_t bf16) { return pack_f16(__uint_as_float(bf16 << 16), __uint_as_float(bf16 & 0xFFFF0000u)); }

/* The A fragments of this warp for inputs 32·part ... 32·part + 31 of a step, one half of the outputs. */
template <int BITS> struct gemm_codes {
    uint4 low, high; /* BITS 4: low alone */
    uint32_t scale_bias[2];

    __device__ __forceinline__ void read_scales(const uint8_t *slot, int half, int sub) {
        const uint32_t *s = (const uint32_t *)(slot + gemm_slot<BITS>::scales) + (half * 8 + threadIdx.x / 32) * 32 + sub * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t both = s[threadIdx.x % 32 / 4 + i * 8];
            scale_bias[i] =
                pack_f16(__uint_as_float(both << 16) * gemm_unit<BITS>::scale, __uint_as_float(both & 0xFFFF0000u) / gemm_unit<BITS>::part);
        }
    }

    __device__ __forceinline__ void read(const uint8_t *slot, int half) {
        if (BITS == 16) return;
        const uint8_t *p = slot + gemm_slot<BITS>::codes + (half * 8 + threadIdx.x / 32) * gemm_slot<BITS>::tile + threadIdx.x % 32 * 16;
        low = *(const uint4 *)p;
        if (BITS == 8) high = *(const uint4 *)(p + 512);
        read_scales(slot, half, 0);
    }

    __device__ __forceinline__ void fragments(const uint8_t *slot, int half, int part, uint32_t subs, uint32_t a[2][4]) {
        if (BITS == 16) {
            const uint8_t *p =
                slot + gemm_slot<BITS>::codes + (half * 8 + threadIdx.x / 32) * gemm_slot<BITS>::tile + threadIdx.x % 32 * 16;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 v = *(const uint4 *)(p + (part * 2 + j) * 512);
                a[j][0] = gemm_half(v.x), a[j][1] = gemm_half(v.y), a[j][2] = gemm_half(v.z), a[j][3] = gemm_half(v.w);
            }
            return;
        }
        if (part && subs == 2) read_scales(slot, half, 1);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t w = part ? (j ? low.w : low.z) : (j ? low.y : low.x), v = part ? (j ? high.w : high.z) : (j ? high.y : high.x);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t codes = gemm_nibbles(w, i, gemm_unit<BITS>::shift);
                if (BITS == 8) codes |= gemm_nibbles(v, i, gemm_unit<BITS>::shift + 4);
                a[j][i] = gemm_weights(codes, scale_bias[i & 1]);
            }
        }
    }
};

/* One step: `load_next` enqueues the loads of a later one: with pairs at once, else behind the last product (each measured best). */
#if GEMM_WGMMA
/* The products of one part of the step run while the next part's fragments are made. */
template <int BITS, int N, bool EARLY, typename F>
DEVICE void gemm_step(float (&sum)[2][N / 2], const uint8_t *slot, uint32_t slot_address, uint32_t subs, bool accumulate, F load_next) {
    gemm_codes<BITS> codes[2];
    const uint64_t b = wgmma_descriptor(slot_address, 0, 1024);
    uint32_t a[2][2][2][4]; /* [part][half][k16] */
    if (EARLY) load_next();
    codes[0].read(slot, 0), codes[1].read(slot, 1);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        codes[0].fragments(slot, 0, part, subs, a[part][0]), codes[1].fragments(slot, 1, part, subs, a[part][1]);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) wgmma_f16_rs<0>(sum[h], a[part][h][j], b + (part * 2 + j) * 2, accumulate || part || j);
        wgmma_commit();
        if (!EARLY && part == 1) load_next();
        wgmma_wait<1>(); /* the part before has been read */
    }
}
#else
template <int BITS, int N, bool EARLY, typename F>
DEVICE void gemm_step(float (&sum)[2][N / 2], const uint8_t *slot, uint32_t slot_address, uint32_t subs, bool accumulate, F load_next) {
    load_next();
    const uint32_t lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
    gemm_codes<BITS> codes[2];
    if (!accumulate)
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[0][i] = sum[1][i] = 0;
    codes[0].read(slot, 0), codes[1].read(slot, 1);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t a[2][2][4];
        codes[0].fragments(slot, 0, part, subs, a[0]), codes[1].fragments(slot, 1, part, subs, a[1]);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int n = 0; n < N / 16; n++) {
                uint32_t b[4]; /* k 0-7 and 8-15 of rows 0-7, then of rows 8-15 */
                load_matrix4(b, slot_address + swizzled(n * 16 + row, (part * 2 + j) * 2 + chunk));
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    mma_f16(sum[h] + n * 8, a[h][j], b[0], b[1]);
                    mma_f16(sum[h] + n * 8 + 4, a[h][j], b[2], b[3]);
                }
            }
    }
}
#endif

/* Sums of one half: element (output 16·warp + g or + 8, row 8·n + 2t or + 1) as f32.  What is added is added by the memory: nothing waits
 * for a load, and since each element is added to once the result is that of a load, a sum and a store. */
template <int BITS, int N> DEVICE void gemm_store_f32(const gemm_job &job, const gemm_tile &t, int half, const float (&sum)[N / 2]) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, output = t.output * 256 + half * 128 + warp * 16 + lane / 4;
    float *out = (float *)job.out + (uint64_t)(t.first + lane % 4 * 2) * job.out_stride + output;
#pragma unroll
    for (int n = 0; n < N / 8; n++, out += 8 * (uint64_t)job.out_stride)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = n * 8 + lane % 4 * 2 + i % 2;
            if (row >= t.count || output + i / 2 * 8 >= job.w[0].rows) continue;
            float *to = out + i % 2 * job.out_stride + i / 2 * 8, v = sum[n * 4 + i] * gemm_unit<BITS>::part;
            if (job.store == GEMM_STORE_F32)
                *to = v;
            else
                atomicAdd(to, job.store == GEMM_ADD_F32 ? v : v * job.scale[t.first + row]);
        }
}

/* Stores values of one half as f16.  Fragments are transposed in registers, and pairs of lanes trade blocks of 8 outputs, so that each
 * lane has four consecutive outputs and four lanes the 32 bytes of one row. */
template <int BITS, int N> DEVICE void gemm_store_f16(const gemm_job &job, const gemm_tile &t, uint32_t output, const float (&v)[N / 2]) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, odd = lane & 1, o = output + warp * 16 + odd * 8 + (lane & 2) * 2;
    uint16_t *out = (uint16_t *)job.out + (uint64_t)(t.first + lane / 4) * job.out_stride + o;
#pragma unroll
    for (int n = 0; n < N / 8; n++, out += 8 * (uint64_t)job.out_stride) {
        constexpr float part = gemm_unit<BITS>::part;
        const uint32_t first = transpose8(pack_f16(v[n * 4] * part, v[n * 4 + 1] * part)),
                       second = transpose8(pack_f16(v[n * 4 + 2] * part, v[n * 4 + 3] * part));
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, odd ? first : second, 1);
        const uint2 four = odd ? make_uint2(other, second) : make_uint2(first, other);
        const uint32_t row = n * 8 + lane / 4;
        if (row >= t.count || o >= job.w[0].rows) continue;
        if (o + 4 <= job.w[0].rows) {
            *(uint2 *)out = four;
        } else {
            for (uint32_t i = 0; o + i < job.w[0].rows; i++) out[i] = (uint16_t)((i < 2 ? four.x : four.y) >> 16 * (i & 1));
        }
    }
}

template <int BITS, bool PAIRS, int N>
DEVICE void gemm_run(const gemm_job &job, const gemm_tile &t, gemm_loader<BITS, PAIRS> &loader, const uint8_t *ring, uint32_t &slot) {
    typedef gemm_ring<BITS, GEMM_WGMMA> R;
    const uint32_t base = shared_address(ring), steps = job.w[0].col_tiles, subs = job.w[0].subs;
    float sum[2][N / 2];
#pragma unroll 1
    for (uint32_t k = 0; k < steps; k++) {
        copy_wait<R::ahead - 1>();
        fence_shared_for_wgmma();
        __syncthreads();
        uint32_t next = slot + R::ahead;
        next -= next >= R::slots ? R::slots : 0;
        gemm_step<BITS, N, PAIRS>(sum, ring + slot * gemm_slot<BITS>::bytes, base + slot * gemm_slot<BITS>::bytes, subs, k > 0,
                                  [&] { loader.load(job, base + next * gemm_slot<BITS>::bytes); });
        slot = slot + 1 == R::slots ? 0 : slot + 1;
    }
#if GEMM_WGMMA
    wgmma_wait<0>();
    wgmma_settle(sum[0]), wgmma_settle(sum[1]);
#endif
    if (PAIRS) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float gate = sum[0][i] * gemm_unit<BITS>::part;
            sum[0][i] = gate / (1 + __expf(-gate)) * sum[1][i];
        }
        gemm_store_f16<BITS, N>(job, t, t.output * 128, sum[0]);
    } else if (job.store == GEMM_STORE_F16) {
        gemm_store_f16<BITS, N>(job, t, t.output * 256, sum[0]);
        gemm_store_f16<BITS, N>(job, t, t.output * 256 + 128, sum[1]);
    } else {
        gemm_store_f32<BITS, N>(job, t, 0, sum[0]);
        gemm_store_f32<BITS, N>(job, t, 1, sum[1]);
    }
}

/* This block's tiles of one width.  Tiles come in falling order of width, one loop after the other: a switch inside one loop makes ptxas
 * spill the sums and serialize wgmma. */
template <int BITS, bool PAIRS, int N>
DEVICE void gemm_all(const gemm_job &job, uint32_t &tile, gemm_loader<BITS, PAIRS> &loader, const uint8_t *ring, uint32_t &slot) {
#pragma unroll 1
    for (; tile < loader.tiles; tile += gridDim.x) {
        const gemm_tile t = gemm_tile_at(job, tile);
        if (t.width != N) break;
        gemm_run<BITS, PAIRS, N>(job, t, loader, ring, slot);
    }
}

template <int BITS, bool PAIRS> __global__ void __launch_bounds__(GEMM_THREADS, 1) gemm_kernel(const __grid_constant__ gemm_job job) {
    extern __shared__ __align__(1024) uint8_t ring[];
    typedef gemm_ring<BITS, GEMM_WGMMA> R;
    gemm_loader<BITS, PAIRS> loader;
    loader.tile = blockIdx.x, loader.tiles = gemm_tiles(job), loader.steps = job.w[0].col_tiles;
    loader.begin(job);
    for (int i = 0; i < R::ahead; i++) loader.load(job, shared_address(ring) + i * gemm_slot<BITS>::bytes);
    uint32_t slot = 0;
    uint32_t tile = blockIdx.x;
    gemm_all<BITS, PAIRS, 128>(job, tile, loader, ring, slot);
    gemm_all<BITS, PAIRS, 96>(job, tile, loader, ring, slot);
    gemm_all<BITS, PAIRS, 64>(job, tile, loader, ring, slot);
    gemm_all<BITS, PAIRS, 32>(job, tile, loader, ring, slot);
    gemm_all<BITS, PAIRS, 16>(job, tile, loader, ring, slot);
}

/* Blocks: one per multiprocessor, or fewer when there are fewer tiles.  With a work list the number of tiles is known on the device
 * only; blocks without any return at once. */
template <int BITS, bool PAIRS> static void gemm_launch(const gemm_job *job, cudaStream_t stream) {
    int device = 0, processors = 1, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    const int slots = major == 9 ? gemm_ring<BITS, true>::slots : gemm_ring<BITS, false>::slots;
    const size_t shared = (size_t)slots * gemm_slot<BITS>::bytes;
    cudaFuncSetAttribute(gemm_kernel<BITS, PAIRS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    uint32_t blocks = (uint32_t)processors;
    if (!job->list) {
        const uint32_t tiles = (job->rows + job->width - 1) / job->width * job->output_tiles;
        blocks = tiles < blocks ? tiles : blocks;
    }
    if (blocks) gemm_kernel<BITS, PAIRS><<<blocks, GEMM_THREADS, shared, stream>>>(*job);
}

#endif

/* moe.cu: router with top-k, routed experts and the shared expert, for a few rows at a time.
 *
 * Rows of a block that chose the same expert share the reading of it: the expert's product is computed for all rows of the block, which
 * costs the tensor cores nothing, and used for those that chose it. */
#include "backend/cuda/gemv.cuh"

namespace calla {

constexpr uint32_t OUT_WARPS = 9, OUT_THREADS = OUT_WARPS * WARP; /* eight experts and the shared one */
constexpr uint32_t MAX_UNITS = STEP_ROWS * MAX_TOP_K + 1;

/* ---- router ---- */

struct candidate {
    float value;
    uint32_t index;
};

__device__ __forceinline__ bool better(const candidate &a, const candidate &b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

/* One warp: the top_k largest of logits [experts] (ties: lowest index; NaN never wins over a number) and their softmax.  What was
 * taken becomes -infinity twice over: its index no longer counts. */
__device__ void warp_top_k(float *logits, uint32_t experts, uint32_t top_k, uint32_t *expert, float *weight) {
    const uint32_t lane = threadIdx.x % WARP;
    constexpr uint32_t HELD = 8; /* of a lane in registers; beyond, memory is read again in every round */
    float held[HELD];
    uint32_t taken = 0; /* bits of held */
    for (uint32_t i = 0; i < HELD; i++) {
        const uint32_t e = lane + i * WARP;
        held[i] = e < experts ? __ldcg(logits + e) : -INFINITY;
        if (held[i] != held[i]) held[i] = -INFINITY;
    }
    float chosen[2] = {-INFINITY, -INFINITY}, largest = 0; /* of choice lane, and lane + 32 */
    for (uint32_t k = 0; k < top_k; k++) {
        candidate best = {-INFINITY, UINT32_MAX};
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            const candidate c = {held[i], lane + i * WARP};
            if (c.index < experts && !(taken >> i & 1) && better(c, best)) best = c;
        }
        for (uint32_t e = lane + HELD * WARP; e < experts; e += WARP) {
            const float v = __ldcg(logits + e);
            const candidate c = {v, e};
            if (v == v && better(c, best)) best = c;
        }
        for (int step = WARP / 2; step; step /= 2) {
            const candidate c = {__shfl_xor_sync(0xFFFFFFFFu, best.value, step), __shfl_xor_sync(0xFFFFFFFFu, best.index, step)};
            if (better(c, best)) best = c;
        }
        if (best.index >= experts) best.index = 0; /* nothing but NaN: any valid expert */
        if (best.index % WARP == lane) {
            const uint32_t i = best.index / WARP;
            if (i < HELD)
                taken |= 1u << i;
            else
                __stcg(logits + best.index, __int_as_float(0x7FC00000)); /* NaN: out of the game */
        }
        __syncwarp();
        if (k == 0) largest = best.value;
        if (k % WARP == lane) chosen[k / WARP] = best.value;
        if (lane == 0) expert[k] = best.index;
    }
    const float e0 = lane < top_k ? expf(chosen[0] - largest) : 0.0f, e1 = lane + WARP < top_k ? expf(chosen[1] - largest) : 0.0f;
    const float sum = sum_lanes<32>(e0 + e1);
    if (lane < top_k) weight[lane] = e0 / sum;
    if (lane + WARP < top_k) weight[lane + WARP] = e1 / sum;
}

/* Blocks along x: the router's row tiles, one for the shared expert's router, the pairs of tiles of the shared expert's gate and up. */
template <int NB> __global__ void __launch_bounds__(GEMV_THREADS) route_kernel(const __grid_constant__ step_route a, uint32_t block_rows) {
    extern __shared__ uint4 shared[];
    const uint32_t first_row = blockIdx.y * block_rows, rows = min(block_rows, a.rows - first_row), col_tiles = a.router.col_tiles;
    float *sums = reinterpret_cast<float *>(shared), *sums_up = sums + sums_bytes<NB>() / 4;
    const staged x = staged_at(sums_up + sums_bytes<NB>() / 4, col_tiles, rows);
    const uint32_t hidden = a.router.cols, routers = a.router.row_tiles;
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT;
    const bool is_router = blockIdx.x < routers, is_gate = blockIdx.x == routers;
    const uint32_t pair = blockIdx.x - routers - 1;
    launch_dependents();
    { /* the weights of this block come into L2 while the stage before ends */
        const cuda_mat &w = is_router ? a.router : is_gate ? a.shared_router : a.shared_gate;
        const uint32_t bytes = w.col_tiles * cuda_tile_bytes(w.bits), tile = is_router ? blockIdx.x : is_gate ? 0 : pair;
        const char *p = reinterpret_cast<const char *>(w.codes) + (size_t)tile * bytes;
        for (uint32_t i = threadIdx.x * 128; i < bytes; i += GEMV_THREADS * 128) prefetch_l2(p + i);
        if (!is_router && !is_gate) {
            p = reinterpret_cast<const char *>(a.shared_up.codes) + (size_t)tile * bytes;
            for (uint32_t i = threadIdx.x * 128; i < bytes; i += GEMV_THREADS * 128) prefetch_l2(p + i);
        }
    }
    wait_inputs();
    stage_input(a.in, hidden, col_tiles, first_row, x);
    __syncthreads();
    float acc[NB][4] = {}, acc_up[NB][4] = {};
    if (is_router)
        any_row_tile_times<NB>(a.router, 0, blockIdx.x, x, acc);
    else if (is_gate)
        any_row_tile_times<NB>(a.shared_router, 0, 0, x, acc);
    else {
        any_row_tile_times<NB>(a.shared_gate, 0, pair, x, acc);
        any_row_tile_times<NB>(a.shared_up, 0, pair, x, acc_up);
        put_sums<NB>(sums_up, acc_up);
    }
    put_sums<NB>(sums, acc);
    __syncthreads();
    if (r < rows) {
        const float factor = norm_factor(a.in, hidden, x, r), v = take_sum<NB>(sums, GEMV_WARPS, r, o) * factor;
        if (is_router) {
            const uint32_t e = blockIdx.x * TILE_OUT + o;
            if (e < a.router.rows) a.logits[(size_t)(first_row + r) * a.router.rows + e] = v;
        } else if (is_gate) {
            if (o == 0) a.shared_weight[first_row + r] = sigmoid(v);
        } else {
            const uint32_t i = pair * TILE_OUT + o;
            if (i < a.shared_gate.rows)
                a.shared[(size_t)(first_row + r) * a.shared_gate.rows + i] = silu(v) * (take_sum<NB>(sums_up, GEMV_WARPS, r, o) * factor);
        }
    }
    if (is_gate) /* a block with little else to do */
        for (uint32_t row = 0; row < rows; row++) {
            const float *in = a.in.x + (size_t)(first_row + row) * a.in.x_stride, factor = norm_factor(a.in, hidden, x, row);
            for (uint32_t i = threadIdx.x; i < hidden; i += GEMV_THREADS)
                a.moe_in[(size_t)(first_row + row) * hidden + i] = in[i] * factor * a.in.gain[i];
        }
    if (!is_router || !is_last_block(a.counters + blockIdx.y, routers)) return;
    for (uint32_t row = threadIdx.x / WARP; row < rows; row += GEMV_WARPS)
        warp_top_k(a.logits + (size_t)(first_row + row) * a.router.rows, a.router.rows, a.top_k,
                   a.expert + (size_t)(first_row + row) * a.top_k, a.weight + (size_t)(first_row + row) * a.top_k);
}

/* ---- experts, first half ---- */

/* Block (row tile, choice, block of rows): the expert of that choice, unless an earlier choice of these rows has it too. */
template <int NB>
__global__ void __launch_bounds__(GEMV_THREADS) experts_in_kernel(const __grid_constant__ step_experts a, uint32_t block_rows) {
    extern __shared__ uint4 shared[];
    const uint32_t first_row = blockIdx.z * block_rows, rows = min(block_rows, a.rows - first_row);
    float *sums = reinterpret_cast<float *>(shared), *sums_up = sums + sums_bytes<NB>() / 4;
    const staged x = staged_at(sums_up + sums_bytes<NB>() / 4, a.gate.col_tiles, rows);
    launch_dependents();
    wait_inputs();
    const uint32_t choice = blockIdx.y, *chosen = a.expert + (size_t)first_row * a.top_k;
    if (choice >= rows * a.top_k) return;
    const uint32_t expert = chosen[choice];
    bool before = false;
    for (uint32_t i = threadIdx.x; i < choice; i += GEMV_THREADS) before |= chosen[i] == expert;
    if (rows > 1 && __syncthreads_or(before)) return;
    const step_input in = {STEP_PLAIN, a.moe_in, nullptr, nullptr, nullptr, a.gate.cols, 0, 0.0f};
    float acc[NB][4] = {}, acc_up[NB][4] = {};
    constexpr int PER = 2;
    const bool fast = a.gate.bits == 4 && a.gate.subs == 1 && a.up.bits == 4 && a.up.subs == 1;
    if (fast) {
        const size_t first = ((size_t)expert * a.gate.row_tiles + blockIdx.x) * a.gate.col_tiles;
        const uint32_t warp = threadIdx.x / WARP;
        tile<4, 1> gate[PER], up[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const uint32_t c = warp + GEMV_WARPS * i;
            if (c >= a.gate.col_tiles) continue;
            load_tile(a.gate, first + c, gate[i]);
            load_tile(a.up, first + c, up[i]);
        }
        stage_input(in, a.gate.cols, a.gate.col_tiles, first_row, x);
        __syncthreads();
        for (uint32_t c0 = warp; c0 < a.gate.col_tiles; c0 += GEMV_WARPS * PER) {
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const uint32_t c = c0 + GEMV_WARPS * i, next = c + GEMV_WARPS * PER;
                if (c >= a.gate.col_tiles) continue;
                tile_times<4, 1, NB>(gate[i], x, c, acc);
                tile_times<4, 1, NB>(up[i], x, c, acc_up);
                if (next >= a.gate.col_tiles) continue;
                load_tile(a.gate, first + next, gate[i]);
                load_tile(a.up, first + next, up[i]);
            }
        }
    } else {
        stage_input(in, a.gate.cols, a.gate.col_tiles, first_row, x);
        __syncthreads();
        any_row_tile_times<NB>(a.gate, expert, blockIdx.x, x, acc);
        any_row_tile_times<NB>(a.up, expert, blockIdx.x, x, acc_up);
    }
    put_sums<NB>(sums, acc);
    put_sums<NB>(sums_up, acc_up);
    __syncthreads();
    const uint32_t r = threadIdx.x / TILE_OUT, i = blockIdx.x * TILE_OUT + threadIdx.x % TILE_OUT;
    if (r >= rows || i >= a.gate.rows) return;
    for (uint32_t k = 0; k < a.top_k; k++) {
        if (chosen[r * a.top_k + k] != expert) continue;
        const uint32_t o = threadIdx.x % TILE_OUT;
        a.places[((size_t)(first_row + r) * a.top_k + k) * a.gate.rows + i] =
            silu(take_sum<NB>(sums, GEMV_WARPS, r, o)) * take_sum<NB>(sums_up, GEMV_WARPS, r, o);
    }
}

/* ---- experts, second half ---- */

/* The units of a block of rows: unit 0 is the shared expert, the others the distinct experts; weight 0 where a row did not choose one. */
struct units {
    uint32_t count;
    uint32_t chosen[MAX_UNITS]; /* by the rows, one after the other */
    uint8_t first[MAX_UNITS];   /* 1: no row before chose it */
    uint32_t expert[MAX_UNITS];
    uint16_t place[MAX_UNITS][STEP_ROWS]; /* index of the choice among the block's, where there is one */
    float weight[MAX_UNITS][STEP_ROWS];
};

constexpr uint16_t NO_PLACE = 0xFFFF;

__device__ void list_units(const step_experts &a, uint32_t first_row, uint32_t rows, units &u) {
    const uint32_t n = rows * a.top_k;
    for (uint32_t p = threadIdx.x; p < n; p += OUT_THREADS) u.chosen[p] = a.expert[(size_t)first_row * a.top_k + p];
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < n; p += OUT_THREADS) {
        bool again = false;
        if (rows > 1)
            for (uint32_t i = 0; i < p; i++) again |= u.chosen[i] == u.chosen[p];
        u.first[p] = !again;
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < n; p += OUT_THREADS) {
        if (!u.first[p]) continue;
        const uint32_t expert = u.chosen[p];
        uint32_t distinct = p; /* of the choices before */
        if (rows > 1) {
            distinct = 0;
            for (uint32_t i = 0; i < p; i++) distinct += u.first[i];
        }
        const uint32_t unit = 1 + distinct;
        u.expert[unit] = expert;
        for (uint32_t r = 0; r < rows; r++) {
            u.place[unit][r] = NO_PLACE;
            u.weight[unit][r] = 0;
            for (uint32_t k = 0; k < a.top_k; k++) {
                if (u.chosen[r * a.top_k + k] != expert) continue;
                u.place[unit][r] = (uint16_t)(r * a.top_k + k);
                u.weight[unit][r] = a.weight[(size_t)first_row * a.top_k + r * a.top_k + k];
            }
        }
        atomicMax(&u.count, unit + 1);
    }
    if (threadIdx.x < rows) {
        u.place[0][threadIdx.x] = (uint16_t)threadIdx.x;
        u.weight[0][threadIdx.x] = a.shared_weight[first_row + threadIdx.x];
    }
}

/* The B registers of column g of one k16 step, straight from a row in memory: hi or lo, and their sum onto `sum`. */
template <int NB> __device__ __forceinline__ void split_pairs(const float2 &v, uint32_t part, uint32_t (&b)[NB], float (&sum)[NB]) {
    const uint32_t hi = bf16_pair(v.x, v.y), lo = bf16_pair(v.x - bf16_low(hi), v.y - bf16_high(hi));
    if (NB == 1)
        b[0] = part ? lo : hi;
    else
        b[0] = hi, b[NB - 1] = lo;
#pragma unroll
    for (int n = 0; n < NB; n++) sum[n] += bf16_low(b[n]) + bf16_high(b[n]);
}

/* A row tile of one matrix times rows that stand in memory (row: of this lane's column, NULL: zeros), by one warp. */
template <int BITS, int SUBS, int NB>
__device__ __forceinline__ void warp_tile_times(const tile<BITS, SUBS> &w, const float *row, uint32_t cols, uint32_t c,
                                                float (&acc)[NB][4]) {
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, part = NB == 1 ? g / 4 : 0;
    constexpr int STEPS = 4 / SUBS;
#pragma unroll
    for (int sub = 0; sub < SUBS; sub++) {
        float low[NB][4] = {}, high[NB][4] = {}, sum[NB] = {};
#pragma unroll
        for (int j = sub * STEPS; j < (sub + 1) * STEPS; j++) {
            const uint32_t k = c * TILE_IN + j * 16 + 2 * t;
            uint32_t b0[NB], b1[NB];
            split_pairs<NB>(row ? load2(row, k, cols) : make_float2(0, 0), part, b0, sum);
            split_pairs<NB>(row ? load2(row, k + 8, cols) : make_float2(0, 0), part, b1, sum);
            if (BITS == 16) {
                const uint4 a = w.code[BITS == 16 ? j : 0];
#pragma unroll
                for (int n = 0; n < NB; n++) mma_bf16(acc[n], a.x, a.y, a.z, a.w, b0[n], b1[n]);
                continue;
            }
            const uint32_t v = word_of(w.code[0], j);
#pragma unroll
            for (int n = 0; n < NB; n++)
                mma_bf16(low[n], codes_bf16(v), codes_bf16(v >> 4), codes_bf16(v >> 8), codes_bf16(v >> 12), b0[n], b1[n]);
            if (BITS != 8) continue;
            const uint32_t h = word_of(w.code[BITS == 8 ? 1 : 0], j);
#pragma unroll
            for (int n = 0; n < NB; n++)
                mma_bf16(high[n], codes_bf16(h), codes_bf16(h >> 4), codes_bf16(h >> 8), codes_bf16(h >> 12), b0[n], b1[n]);
        }
        if (BITS == 16) continue;
        constexpr float surplus = BITS == 8 ? 128.0f * 17.0f : 128.0f;
        const float s0 = bf16_low(w.scale[sub][0]), s1 = bf16_low(w.scale[sub][1]);
        const float bias0 = bf16_high(w.scale[sub][0]) - surplus * s0, bias1 = bf16_high(w.scale[sub][1]) - surplus * s1;
#pragma unroll
        for (int n = 0; n < NB; n++) {
            const float whole = sum_lanes<4>(sum[n]); /* of column g; wanted: columns 2t and 2t + 1 */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float of = __shfl_sync(0xFFFFFFFFu, whole, (2 * t + i) * 4);
                acc[n][i] += s0 * (BITS == 8 ? low[n][i] + 16.0f * high[n][i] : low[n][i]) + bias0 * of;
                acc[n][i + 2] += s1 * (BITS == 8 ? low[n][i + 2] + 16.0f * high[n][i + 2] : low[n][i + 2]) + bias1 * of;
            }
        }
    }
}

template <int BITS, int SUBS, int NB, int PER>
__device__ __forceinline__ void warp_row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const float *row,
                                                    float (&acc)[NB][4]) {
    const size_t first = ((size_t)which * w.row_tiles + row_tile) * w.col_tiles;
    for (uint32_t c0 = 0; c0 < w.col_tiles; c0 += PER) {
        tile<BITS, SUBS> t[PER];
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (c0 + i < w.col_tiles) load_tile(w, first + c0 + i, t[i]);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (c0 + i < w.col_tiles) warp_tile_times<BITS, SUBS, NB>(t[i], row, w.cols, c0 + i, acc);
    }
}

template <int NB>
__device__ __forceinline__ void warp_any_row_tile_times(const cuda_mat &w, uint32_t which, uint32_t row_tile, const float *row,
                                                        float (&acc)[NB][4]) {
    if (w.bits == 4 && w.subs == 1)
        warp_row_tile_times<4, 1, NB, 8>(w, which, row_tile, row, acc);
    else if (w.bits == 8 && w.subs == 1)
        warp_row_tile_times<8, 1, NB, 1>(w, which, row_tile, row, acc);
    else if (w.bits == 4)
        warp_row_tile_times<4, 2, NB, 1>(w, which, row_tile, row, acc);
    else if (w.bits == 8)
        warp_row_tile_times<8, 2, NB, 1>(w, which, row_tile, row, acc);
    else
        warp_row_tile_times<16, 1, NB, 1>(w, which, row_tile, row, acc);
}

/* Block (row tile, block of rows): each warp takes units in turn, weighs their sums, and all are added to the residual. */
template <int NB>
__global__ void __launch_bounds__(OUT_THREADS) experts_out_kernel(const __grid_constant__ step_experts a, uint32_t block_rows) {
    extern __shared__ uint4 shared[];
    units &u = *reinterpret_cast<units *>(shared);
    __shared__ float sums[OUT_WARPS * NB * 8 * SUM_STRIDE];
    const uint32_t first_row = blockIdx.y * block_rows, rows = min(block_rows, a.rows - first_row);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    launch_dependents();
    if (warp == 0) { /* the shared expert's weights are known already */
        const uint32_t bytes = a.shared_down.col_tiles * cuda_tile_bytes(a.shared_down.bits);
        const char *p = reinterpret_cast<const char *>(a.shared_down.codes) + (size_t)blockIdx.x * bytes;
        for (uint32_t i = lane * 128; i < bytes; i += WARP * 128) prefetch_l2(p + i);
    }
    wait_inputs();
    if (threadIdx.x == 0) u.count = 1;
    __syncthreads();
    list_units(a, first_row, rows, u);
    __syncthreads();
    float total[NB][4] = {};
    const uint32_t width = a.down.cols, row_of_lane = NB == 1 ? g % 4 : g;
    for (uint32_t unit = warp; unit < u.count; unit += OUT_WARPS) {
        float acc[NB][4] = {};
        const uint16_t place = row_of_lane < rows ? u.place[unit][row_of_lane] : NO_PLACE;
        if (unit == 0) {
            const float *row = place == NO_PLACE ? nullptr : a.shared + (size_t)(first_row + place) * a.shared_down.cols;
            warp_any_row_tile_times<NB>(a.shared_down, 0, blockIdx.x, row, acc);
        } else {
            const float *row = place == NO_PLACE ? nullptr : a.places + ((size_t)first_row * a.top_k + place) * width;
            warp_any_row_tile_times<NB>(a.down, u.expert[unit], blockIdx.x, row, acc);
        }
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t column = 2 * t + i % 2, r = NB == 1 ? column % 4 : column;
                total[n][i] += (r < rows ? u.weight[unit][r] : 0.0f) * acc[n][i];
            }
    }
    put_sums<NB>(sums, total);
    __syncthreads();
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT, i = blockIdx.x * TILE_OUT + o;
    if (r < rows && i < a.down.rows) a.residual[(size_t)(first_row + r) * a.down.rows + i] += take_sum<NB>(sums, OUT_WARPS, r, o);
}

} // namespace calla

using namespace calla;

void step_run_route(const cuda_device *d, const step_route *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->router.col_tiles, a->rows);
    const dim3 grid(a->router.row_tiles + 1 + a->shared_gate.row_tiles, (a->rows + n - 1) / n);
    const uint32_t x_bytes = staged_bytes(a->router.col_tiles, n);
    if (n <= 4)
        launch(route_kernel<1>, grid, GEMV_THREADS, 2 * sums_bytes<1>() + x_bytes, early, stream, *a, n);
    else
        launch(route_kernel<2>, grid, GEMV_THREADS, 2 * sums_bytes<2>() + x_bytes, early, stream, *a, n);
}

void step_run_experts_in(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->gate.col_tiles, a->rows);
    const dim3 grid(a->gate.row_tiles, n * a->top_k, (a->rows + n - 1) / n);
    const uint32_t x_bytes = staged_bytes(a->gate.col_tiles, n);
    if (n <= 4)
        launch(experts_in_kernel<1>, grid, GEMV_THREADS, 2 * sums_bytes<1>() + x_bytes, early, stream, *a, n);
    else
        launch(experts_in_kernel<2>, grid, GEMV_THREADS, 2 * sums_bytes<2>() + x_bytes, early, stream, *a, n);
}

void step_run_experts_out(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->gate.col_tiles, a->rows);
    const dim3 grid(a->down.row_tiles, (a->rows + n - 1) / n);
    if (n <= 4)
        launch(experts_out_kernel<1>, grid, OUT_THREADS, sizeof(units), early, stream, *a, n);
    else
        launch(experts_out_kernel<2>, grid, OUT_THREADS, sizeof(units), early, stream, *a, n);
}

cudaError_t moe_prepare(const cuda_device *d) {
    const int bytes = (int)d->shared_bytes;
    const cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t e = cudaFuncSetAttribute(route_kernel<1>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(route_kernel<2>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(experts_in_kernel<1>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(experts_in_kernel<2>, limit, bytes);
    return e;
}

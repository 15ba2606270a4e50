/* moe.cu: router with top-k, routed experts and the shared expert, for a few rows at a time.
 *
 * Rows of a block that chose the same expert share the reading of it: the expert's product is computed for all rows of the block, which
 * costs the tensor cores nothing, and used for those that chose it. */
#include "backend/cuda/gemv.cuh"
#include "backend/cuda/top_k.cuh"

namespace calla {

constexpr uint32_t OUT_WARPS = 9, OUT_THREADS = OUT_WARPS * WARP; /* eight experts and the shared one */
constexpr uint32_t MAX_UNITS = STEP_ROWS * STEP_MAX_TOP_K + 1;

/* ---- router ---- */

/* One warp: the top_k largest of logits [experts] (ties: lowest index) and their softmax. */
__device__ void warp_top_k(float *logits, uint32_t experts, uint32_t top_k, uint32_t *expert, float *weight) {
    const uint32_t lane = threadIdx.x % WARP;
    constexpr uint32_t HELD = 8; /* of a lane in registers; beyond, memory is read again in every round */
    uint32_t held[HELD];
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) held[i] = lane + i * WARP < experts ? key_of(__ldcg(logits + lane + i * WARP)) : 0;
    uint32_t chosen[2] = {0, 0}, largest = 0; /* keys of choice lane, and lane + 32 */
    for (uint32_t k = 0; k < top_k; k++) {
        uint32_t best = 0, at = UINT32_MAX;
#pragma unroll
        for (uint32_t i = HELD; i-- > 0;)
            if (held[i] >= best && held[i]) best = held[i], at = lane + i * WARP;
        for (uint32_t e = lane + HELD * WARP; e < experts; e += WARP) {
            const float v = __ldcg(logits + e);
            if (__float_as_uint(v) != 0xFFFFFFFFu && key_of(v) > best) best = key_of(v), at = e;
        }
        const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, best), first = __reduce_min_sync(0xFFFFFFFFu, best == most ? at : UINT32_MAX);
        if (first % WARP == lane) {
#pragma unroll
            for (uint32_t i = 0; i < HELD; i++)
                if (first == lane + i * WARP) held[i] = 0;
            if (first >= HELD * WARP) __stcg(logits + first, __uint_as_float(0xFFFFFFFFu)); /* taken: a NaN that no sum gives */
        }
        __syncwarp();
        if (k == 0) largest = most;
        if (k % WARP == lane) chosen[k / WARP] = most;
        if (lane == 0) expert[k] = first;
    }
    const float e0 = lane < top_k ? expf(value_of(chosen[0]) - value_of(largest)) : 0.0f;
    const float e1 = lane + WARP < top_k ? expf(value_of(chosen[1]) - value_of(largest)) : 0.0f;
    const float sum = sum_lanes<32>(e0 + e1);
    if (lane < top_k) weight[lane] = e0 / sum;
    if (lane + WARP < top_k) weight[lane + WARP] = e1 / sum;
}

constexpr uint32_t PAIR_BYTES = GEMV_WARPS * 2 * CHUNK_BYTES<4>; /* of the block's warps */
static_assert(CHUNK_BYTES<8> <= 2 * CHUNK_BYTES<4>, "a chunk of 8 bits takes the room of two of 4");

/* A warp's places in shared memory; all of its share is asked for at once. */
__device__ __forceinline__ uint8_t *own_ring(uint8_t *ring) { return ring + threadIdx.x / WARP * (2 * CHUNK_BYTES<4>); }

/* Blocks along x: the router's row tiles, one for the shared expert's router, the pairs of tiles of the shared expert's gate and up. */
template <int NB>
__global__ void __launch_bounds__(GEMV_THREADS, 2) route_kernel(const __grid_constant__ step_route a, uint32_t block_rows, uint32_t parts) {
    extern __shared__ uint4 shared[];
    const uint32_t first_row = blockIdx.y * block_rows, rows = min(block_rows, a.rows - first_row), col_tiles = a.router.col_tiles;
    uint8_t *ring = reinterpret_cast<uint8_t *>(shared), *place = own_ring(ring), *place_up = place + CHUNK_BYTES<4>;
    float *sums = reinterpret_cast<float *>(ring + PAIR_BYTES), *sums_up = sums + sums_bytes<NB>() / 4;
    const staged x = staged_at(sums_up + sums_bytes<NB>() / 4, col_tiles, rows, parts);
    const uint32_t hidden = a.router.cols, routers = a.router.row_tiles;
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT;
    const bool is_router = blockIdx.x < routers, is_gate = blockIdx.x == routers;
    const uint32_t pair = blockIdx.x - routers - 1;
    const bool fast_router = is_router && tile_share::fits<8>(a.router), is_pair = !is_router && !is_gate;
    const bool fast_pair = is_pair && tile_share::fits<4>(a.shared_gate) && tile_share::fits<4>(a.shared_up);
    const tile_share share = tile_share::of(a.router); /* all have the same inputs */
    launch_dependents();
    prefetch_gain(a.in, hidden);
    if (fast_router) share.fetch<8>(a.router, 0, blockIdx.x, place);
    if (fast_pair) share.fetch<4>(a.shared_gate, 0, pair, place), share.fetch<4>(a.shared_up, 0, pair, place_up);
    copy_commit();
    wait_inputs();
    stage_input<STEP_NORM>(a.in, hidden, col_tiles, first_row, x);
    copy_wait<0>();
    __syncthreads();
    float acc[NB][4] = {}, acc_up[NB][4] = {};
    if (fast_router) {
        chunk_times<8, NB>(place, share.n, x, share.c, acc);
    } else if (is_router) {
        any_row_tile_times<NB>(a.router, 0, blockIdx.x, x, acc);
    } else if (is_gate) {
        any_row_tile_times<NB>(a.shared_router, 0, 0, x, acc);
    } else {
        if (fast_pair) {
            chunk_times<4, NB>(place, share.n, x, share.c, acc);
            chunk_times<4, NB>(place_up, share.n, x, share.c, acc_up);
        } else {
            any_row_tile_times<NB>(a.shared_gate, 0, pair, x, acc);
            any_row_tile_times<NB>(a.shared_up, 0, pair, x, acc_up);
        }
        put_sums<NB>(sums_up, acc_up);
    }
    put_sums<NB>(sums, acc);
    __syncthreads();
    if (r < rows) {
        const float factor = norm_factor(a.in, hidden, x, r), v = take_sum<NB>(sums, GEMV_WARPS, rows, parts, r, o) * factor;
        if (is_router) {
            const uint32_t e = blockIdx.x * TILE_OUT + o;
            if (e < a.router.rows) a.logits[(size_t)(first_row + r) * a.router.rows + e] = v;
        } else if (is_gate) {
            if (o == 0) a.shared_weight[first_row + r] = sigmoid(v);
        } else {
            const uint32_t i = pair * TILE_OUT + o;
            if (i < a.shared_gate.rows)
                a.shared[(size_t)(first_row + r) * a.shared_gate.rows + i] =
                    silu(v) * (take_sum<NB>(sums_up, GEMV_WARPS, rows, parts, r, o) * factor);
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

/* A warp: a row. */
__global__ void __launch_bounds__(GEMV_THREADS)
    choose_kernel(float *logits, uint32_t experts, uint32_t top_k, uint32_t rows, uint32_t *expert, float *weight, float *shared_weight) {
    const uint32_t row = blockIdx.x * GEMV_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    float *own = logits + (size_t)row * (experts + 1);
    warp_top_k(own, experts, top_k, expert + (size_t)row * top_k, weight + (size_t)row * top_k);
    if (threadIdx.x % WARP == 0) shared_weight[row] = sigmoid(own[experts]);
}

/* ---- experts, first half ---- */

/* Block (row tile, choice, block of rows): the expert of that choice, unless an earlier choice of these rows has it too. */
template <int NB>
__global__ void __launch_bounds__(GEMV_THREADS, 3)
    experts_in_kernel(const __grid_constant__ step_experts a, uint32_t block_rows, uint32_t parts) {
    extern __shared__ uint4 shared[];
    const uint32_t first_row = blockIdx.z * block_rows, rows = min(block_rows, a.rows - first_row);
    uint8_t *ring = reinterpret_cast<uint8_t *>(shared), *place = own_ring(ring), *place_up = place + CHUNK_BYTES<4>;
    float *sums = reinterpret_cast<float *>(ring + PAIR_BYTES), *sums_up = sums + sums_bytes<NB>() / 4;
    const staged x = staged_at(sums_up + sums_bytes<NB>() / 4, a.gate.col_tiles, rows, parts);
    launch_dependents();
    wait_inputs();
    const uint32_t choice = blockIdx.y, *chosen = a.expert + (size_t)first_row * a.top_k;
    if (choice >= rows * a.top_k) return;
    const uint32_t expert = chosen[choice];
    bool before = false;
    for (uint32_t i = threadIdx.x; i < choice; i += GEMV_THREADS) before |= chosen[i] == expert;
    if (rows > 1 && __syncthreads_or(before)) return;
    step_input in = {};
    in.source = STEP_PLAIN, in.x = a.moe_in, in.x_stride = a.gate.cols;
    float acc[NB][4] = {}, acc_up[NB][4] = {};
    const bool fast = tile_share::fits<4>(a.gate) && tile_share::fits<4>(a.up);
    const tile_share share = tile_share::of(a.gate);
    if (fast) share.fetch<4>(a.gate, expert, blockIdx.x, place), share.fetch<4>(a.up, expert, blockIdx.x, place_up);
    copy_commit();
    stage_input<STEP_PLAIN>(in, a.gate.cols, a.gate.col_tiles, first_row, x);
    copy_wait<0>();
    __syncthreads();
    if (fast) {
        chunk_times<4, NB>(place, share.n, x, share.c, acc);
        chunk_times<4, NB>(place_up, share.n, x, share.c, acc_up);
    } else {
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
            silu(take_sum<NB>(sums, GEMV_WARPS, rows, parts, r, o)) * take_sum<NB>(sums_up, GEMV_WARPS, rows, parts, r, o);
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

/* Of a single row: each warp lists the units that it takes, and need not meet the others. */
__device__ __forceinline__ void own_units(const step_experts &a, uint32_t row, units &u) {
    const uint32_t unit = threadIdx.x / WARP + threadIdx.x % WARP * OUT_WARPS;
    if (unit > a.top_k) return;
    u.expert[unit] = unit ? a.expert[(size_t)row * a.top_k + unit - 1] : 0;
    u.place[unit][0] = unit ? (uint16_t)(unit - 1) : 0;
    u.weight[unit][0] = unit ? a.weight[(size_t)row * a.top_k + unit - 1] : a.shared_weight[row];
}

/* What a warp stages of a unit's input: up to OUT_COLUMNS (parts of the rows that chose it), of at most OUT_COLS inputs at a time. */
constexpr uint32_t OUT_COLUMNS = 4, OUT_COLS = 512, OUT_TILES = OUT_COLS / TILE_IN;
constexpr uint32_t OUT_STRIDE = OUT_TILES * 8 + 4; /* uint4 of a column */
struct alignas(16) out_share {
    uint4 x[OUT_WARPS][OUT_COLUMNS][OUT_STRIDE];
    uint8_t chunks[OUT_WARPS][OUT_TILES / CHUNK][CHUNK_BYTES<4>];
    float sum[OUT_WARPS][OUT_COLUMNS][OUT_TILES * 2];
    float total[OUT_WARPS][STEP_ROWS][TILE_OUT]; /* weighted, of each warp's units */
    units u;
};

/* A warp stages columns of inputs k0 … of one row: parts p of it become columns column + p·step. */
__device__ __forceinline__ void warp_stage(const float *row, uint32_t k0, uint32_t cols, uint32_t tiles, uint32_t parts, uint32_t column,
                                           uint32_t step, uint4 (*x)[OUT_STRIDE], float (*sums)[OUT_TILES * 2]) {
    constexpr uint32_t UNITS = OUT_COLS / 4 / WARP;
    const uint32_t lane = threadIdx.x % WARP, units = tiles * 16;
    float4 raw[UNITS];
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++) {
        const uint32_t u = lane + i * WARP;
        if (i * WARP < units) raw[i] = load_unit(row, k0 + u / 4 * 16 + 2 * (u % 4), cols);
    }
#pragma unroll
    for (uint32_t i = 0; i < UNITS; i++) {
        if (i * WARP >= units) break;
        const uint32_t u = lane + i * WARP, block = u / 4, at = ((block / 2) * 4 + u % 4) * 2 + block % 2;
        float4 v = raw[i];
#pragma unroll 1
        for (uint32_t p = 0; p < parts; p++) {
            const uint32_t a = bf16_pair(v.x, v.y), b = bf16_pair(v.z, v.w);
            const float sum = sum_lanes<8>(bf16_low(a) + bf16_high(a) + bf16_low(b) + bf16_high(b));
            v = make_float4(v.x - bf16_low(a), v.y - bf16_high(a), v.z - bf16_low(b), v.w - bf16_high(b));
            if (u >= units) continue;
            reinterpret_cast<uint2 *>(x[column + p * step])[at] = make_uint2(a, b);
            if (u % 8 == 0) sums[column + p * step][u / 8] = sum;
        }
    }
}

/* Tiles of a row tile times what the warp has staged. */
template <int BITS, int SUBS>
__device__ __forceinline__ void warp_tiles_times(const cuda_mat &w, size_t first, uint32_t tiles, const staged &s, float (&acc)[1][4]) {
    for (uint32_t c = 0; c < tiles; c++) {
        tile<BITS, SUBS> t;
        load_tile(w, first + c, t);
        tile_times<BITS, SUBS, 1>(t, s, c, acc);
    }
}

/* Any format but the usual one. */
__device__ __noinline__ void warp_any_tiles_times(const cuda_mat &w, size_t first, uint32_t tiles, const staged &s, float (&acc)[1][4]) {
    if (w.bits == 8 && w.subs == 1)
        warp_tiles_times<8, 1>(w, first, tiles, s, acc);
    else if (w.bits == 4)
        warp_tiles_times<4, 2>(w, first, tiles, s, acc);
    else if (w.bits == 8)
        warp_tiles_times<8, 2>(w, first, tiles, s, acc);
    else
        warp_tiles_times<16, 1>(w, first, tiles, s, acc);
}

/* Rows begin … of those that chose a unit, as many as have room in OUT_COLUMNS: their weighted sums onto the warp's total.  Returns where
 * to go on. */
__device__ uint32_t unit_rows(const step_experts &a, uint32_t unit, uint32_t begin, uint32_t first_row, uint32_t rows, uint32_t parts,
                              out_share &h) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4, most = OUT_COLUMNS / parts;
    const cuda_mat &w = unit ? a.down : a.shared_down;
    uint32_t row[OUT_COLUMNS], n = 0, next = begin;
    for (; next < rows && n < most; next++)
        if (h.u.place[unit][next] != NO_PLACE) row[n++] = next;
    if (!n) return next;
    const size_t first = ((size_t)(unit ? h.u.expert[unit] : 0) * w.row_tiles + blockIdx.x) * w.col_tiles;
    const bool usual = w.bits == 4 && w.subs == 1;
    float acc[1][4] = {};
    staged s;
    s.x = &h.x[warp][0][0];
    s.sum = &h.sum[warp][0][0];
    s.squares = nullptr;
    s.stride = OUT_STRIDE, s.sums = OUT_TILES * 2, s.rows = n, s.parts = parts, s.columns = n * parts;
    for (uint32_t c0 = 0; c0 < w.col_tiles; c0 += OUT_TILES) {
        const uint32_t tiles = min(OUT_TILES, w.col_tiles - c0);
        __syncwarp();
        if (usual)
            for (uint32_t c = 0; c < tiles; c += CHUNK) fetch_chunk<4>(w, first + c0 + c, min(CHUNK, tiles - c), h.chunks[warp][c / CHUNK]);
        copy_commit();
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t place = h.u.place[unit][row[i]];
            const float *from =
                unit ? a.places + ((size_t)first_row * a.top_k + place) * w.cols : a.shared + (size_t)(first_row + place) * w.cols;
            warp_stage(from, c0 * TILE_IN, w.cols, tiles, parts, i, n, h.x[warp], h.sum[warp]);
        }
        copy_wait<0>();
        __syncwarp();
        if (usual)
#pragma unroll 1
            for (uint32_t c = 0; c < tiles; c += CHUNK) chunk_times<4, 1>(h.chunks[warp][c / CHUNK], min(CHUNK, tiles - c), s, c, acc);
        else
            warp_any_tiles_times(w, first + c0, tiles, s, acc);
    }
    /* columns meet: through the warp's own staging room */
    float *room = reinterpret_cast<float *>(h.x[warp]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) room[(2 * t + i % 2) * SUM_STRIDE + g + 8 * (i / 2)] = acc[0][i];
    __syncwarp();
    const uint32_t o = lane % TILE_OUT;
    for (uint32_t i = lane / TILE_OUT; i < n; i += 2) {
        float sum = 0;
        for (uint32_t p = parts; p-- > 0;) sum += room[(p * n + i) * SUM_STRIDE + o];
        h.total[warp][row[i]][o] += h.u.weight[unit][row[i]] * sum;
    }
    return next;
}

/* Block (row tile, block of rows): each warp takes units in turn, weighs their sums, and all are added to the residual. */
__global__ void __launch_bounds__(OUT_THREADS)
    experts_out_kernel(const __grid_constant__ step_experts a, uint32_t block_rows, uint32_t parts) {
    extern __shared__ uint4 shared[];
    out_share &h = *reinterpret_cast<out_share *>(shared);
    const uint32_t first_row = blockIdx.y * block_rows, rows = min(block_rows, a.rows - first_row);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    launch_dependents();
    if (warp == 0) { /* the shared expert's weights are known already */
        const uint32_t bytes = a.shared_down.col_tiles * cuda_tile_bytes(a.shared_down.bits);
        const char *p = reinterpret_cast<const char *>(a.shared_down.codes) + (size_t)blockIdx.x * bytes;
        for (uint32_t i = lane * 128; i < bytes; i += WARP * 128) prefetch_l2(p + i);
    }
    for (uint32_t i = lane; i < STEP_ROWS * TILE_OUT; i += WARP) (&h.total[warp][0][0])[i] = 0;
    if (threadIdx.x == 0) h.u.count = rows == 1 ? a.top_k + 1 : 1;
    __syncthreads();
    wait_inputs();
    if (rows == 1) {
        own_units(a, first_row, h.u);
        __syncwarp();
    } else {
        list_units(a, first_row, rows, h.u);
        __syncthreads();
    }
    for (uint32_t unit = warp; unit < h.u.count; unit += OUT_WARPS)
        for (uint32_t row = 0; row < rows;) row = unit_rows(a, unit, row, first_row, rows, parts, h);
    __syncthreads();
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT, i = blockIdx.x * TILE_OUT + o;
    if (r >= rows || i >= a.down.rows) return;
    float sum = 0;
    for (uint32_t w = 0; w < OUT_WARPS; w++) sum += h.total[w][r][o];
    a.residual[(size_t)(first_row + r) * a.down.rows + i] += sum;
}

} // namespace calla

using namespace calla;

void step_run_route(const cuda_device *d, const step_route *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->router.col_tiles, a->rows), p = d->parts;
    const dim3 grid(a->router.row_tiles + 1 + a->shared_gate.row_tiles, (a->rows + n - 1) / n);
    const uint32_t x_bytes = staged_bytes(a->router.col_tiles, n, p);
    if (n * p <= 8)
        launch(route_kernel<1>, grid, GEMV_THREADS, PAIR_BYTES + 2 * sums_bytes<1>() + x_bytes, early, stream, *a, n, p);
    else
        launch(route_kernel<2>, grid, GEMV_THREADS, PAIR_BYTES + 2 * sums_bytes<2>() + x_bytes, early, stream, *a, n, p);
}

void step_run_choose(float *logits, uint32_t experts, uint32_t top_k, uint32_t rows, uint32_t *expert, float *weight, float *shared_weight,
                     cudaStream_t stream) {
    launch(choose_kernel, dim3((rows + GEMV_WARPS - 1) / GEMV_WARPS), GEMV_THREADS, 0, false, stream, logits, experts, top_k, rows, expert,
           weight, shared_weight);
}

void step_run_experts_in(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream) {
    const uint32_t n = rows_per_block(d, a->gate.col_tiles, a->rows), p = d->parts;
    const dim3 grid(a->gate.row_tiles, n * a->top_k, (a->rows + n - 1) / n);
    const uint32_t x_bytes = staged_bytes(a->gate.col_tiles, n, p);
    if (n * p <= 8)
        launch(experts_in_kernel<1>, grid, GEMV_THREADS, PAIR_BYTES + 2 * sums_bytes<1>() + x_bytes, early, stream, *a, n, p);
    else
        launch(experts_in_kernel<2>, grid, GEMV_THREADS, PAIR_BYTES + 2 * sums_bytes<2>() + x_bytes, early, stream, *a, n, p);
}

void step_run_experts_out(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream) {
    const uint32_t n = a->rows < STEP_ROWS ? a->rows : STEP_ROWS;
    const dim3 grid(a->down.row_tiles, (a->rows + n - 1) / n);
    launch(experts_out_kernel, grid, OUT_THREADS, sizeof(out_share), early, stream, *a, n, d->parts);
}

cudaError_t moe_prepare(const cuda_device *d) {
    const int bytes = (int)d->shared_bytes;
    const cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    cudaError_t e = cudaFuncSetAttribute(route_kernel<1>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(route_kernel<2>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(experts_in_kernel<1>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(experts_in_kernel<2>, limit, bytes);
    if (!e) e = cudaFuncSetAttribute(experts_out_kernel, limit, (int)sizeof(out_share));
    return e;
}

/* moe_rows.cu: router, routed experts and the shared expert of single rows in fast precision, on integer tensor cores (int_gemv.cuh): what
 * decoding takes where the weights have the usual format.  Each row has blocks of its own: eight rows choose 57 of 64 experts.
 *
 * Nothing is done between two stages that the next can do itself: the experts' blocks find their expert in the router's logits and bring the
 * row through the norm themselves; the second half finds the experts again and has their weights on the way while the first half runs.
 * So when the first half lets the second start is part of what is right: after its own wait, when the router's logits, the shared expert's
 * values and the residual are complete. */
#include "backend/cuda/int_gemv.cuh"
#include "backend/cuda/top_k.cuh"

namespace calla {

namespace {

constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP, IN_THREADS = THREADS + WARP; /* one more finds the expert */
constexpr uint32_t OUT_WARPS = 18;                                                 /* two chunks of eight experts and the shared one */
static_assert(STEP_MAX_TOP_K <= TOP_K_MOST, "");

__device__ __forceinline__ uint32_t chunks_of(const cuda_mat &w) { return (w.col_tiles + CHUNK - 1) / CHUNK; }
__device__ __forceinline__ uint32_t tiles_of(const cuda_mat &w, uint32_t chunk) { return min(CHUNK, w.col_tiles - chunk * CHUNK); }
__device__ __forceinline__ size_t index_of(const cuda_mat &w, uint32_t which, uint32_t row_tile, uint32_t chunk) {
    return ((size_t)which * w.row_tiles + row_tile) * w.col_tiles + chunk * CHUNK;
}

/* Two row tiles side by side, over the chunks that a warp takes. */
struct tile_sums {
    float sums[2][WARPS][TILE_OUT], squares[WARPS];

    __device__ __forceinline__ void put(uint32_t which, float v) {
        const uint32_t lane = threadIdx.x % WARP;
        if (lane % 4 < 2) sums[which][threadIdx.x / WARP][lane / 4 + 8 * (lane % 4)] = v;
    }
    __device__ __forceinline__ float sum(uint32_t which, uint32_t o) const {
        float total = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) total += sums[which][w][o];
        return total;
    }
    __device__ __forceinline__ float factor(const step_input &in, uint32_t cols) const {
        float total = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) total += squares[w];
        return rsqrtf(total / (float)cols + in.eps);
    }
};

/* Blocks along x: the router's row tiles, the shared expert's router, the pairs of tiles of the shared expert's gate and up. */
__global__ void __launch_bounds__(THREADS, 2) route_rows_kernel(const __grid_constant__ step_moe a) {
    __shared__ tile_sums h;
    const uint32_t routers = a.router.row_tiles, row = blockIdx.y, warp = threadIdx.x / WARP;
    const bool is_router = blockIdx.x<routers, is_pair = blockIdx.x> routers;
    const uint32_t tile = is_router ? blockIdx.x : is_pair ? blockIdx.x - routers - 1 : 0;
    const cuda_mat &wide = is_router ? a.router : a.shared_router;
    const uint32_t cols = a.router.cols, chunks = chunks_of(a.router);
    int_chunk first, second; /* gate and up, or the lower and upper nibbles of 8 bits */
    float4 gain[2];
    const auto load = [&](uint32_t c) {
        const uint32_t n = tiles_of(a.router, c);
        take_gain<STEP_NORM>(a.in, cols, c, gain);
        if (is_pair) {
            load_int_chunk<4>(a.shared_gate, index_of(a.shared_gate, 0, tile, c), n, 0, first);
            load_int_chunk<4>(a.shared_up, index_of(a.shared_up, 0, tile, c), n, 0, second);
        } else {
            load_int_chunk<8>(wide, index_of(wide, 0, tile, c), n, 0, first);
            load_int_chunk<8>(wide, index_of(wide, 0, tile, c), n, 1, second);
        }
    };
    launch_dependents();
    if (warp < chunks) load(warp);
    wait_inputs();
    float v0 = 0, v1 = 0, squares = 0;
#pragma unroll 1
    for (uint32_t c = warp; c < chunks; c += WARPS) {
        const uint32_t n = tiles_of(a.router, c);
        int_input q;
        if (c != warp) load(c);
        take_input<STEP_NORM>(a.in, row, cols, c, gain, q, squares);
        float2 d0 = int_sums(first.code, q);
        const float2 d1 = int_sums(second.code, q);
        if (is_pair)
            v1 += int_output(d1, second.scale, n, q);
        else
            d0.x += 16.0f * d1.x, d0.y += 16.0f * d1.y;
        v0 += int_output(d0, first.scale, n, q);
    }
    h.put(0, v0);
    h.put(1, v1);
    squares = sum_lanes<32>(squares);
    if (threadIdx.x % WARP == 0) h.squares[warp] = squares;
    __syncthreads();
    const uint32_t o = threadIdx.x, i = tile * TILE_OUT + o;
    if (o >= TILE_OUT) return;
    const float factor = h.factor(a.in, cols), v = h.sum(0, o) * factor;
    if (is_router && i < a.router.rows) a.logits[(size_t)row * a.router.rows + i] = v;
    if (is_pair && i < a.shared_gate.rows) a.shared[(size_t)row * a.shared_gate.rows + i] = silu(v) * (h.sum(1, o) * factor);
    if (!is_router && !is_pair && o == 0) a.shared_weight[row] = sigmoid(v);
}

/* Block (row tile, choice, row). */
__global__ void __launch_bounds__(IN_THREADS, 2) experts_in_rows_kernel(const __grid_constant__ step_moe a) {
    __shared__ tile_sums h;
    __shared__ choose_share choose;
    __shared__ uint32_t chosen;
    const uint32_t choice = blockIdx.y, row = blockIdx.z, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t cols = a.gate.cols, chunks = chunks_of(a.gate);
    float4 gain[2];
    int_input q;
    float squares = 0, v0 = 0, v1 = 0;
    if (warp < WARPS) take_gain<STEP_NORM>(a.in, cols, warp, gain);
    wait_inputs();
    launch_dependents();
    if (warp < WARPS) {
        take_input<STEP_NORM>(a.in, row, cols, warp, gain, q, squares);
    } else {
        const top_choice best = warp_choose(a.logits + (size_t)row * a.router.rows, a.router.rows, choice + 1, choose);
        if (lane == choice) chosen = best.expert;
    }
    __syncthreads();
    const uint32_t expert = chosen;
#pragma unroll 1
    for (uint32_t c = warp; warp < WARPS && c < chunks; c += WARPS) {
        const uint32_t n = tiles_of(a.gate, c);
        int_chunk gate, up;
        load_int_chunk<4>(a.gate, index_of(a.gate, expert, blockIdx.x, c), n, 0, gate);
        load_int_chunk<4>(a.up, index_of(a.up, expert, blockIdx.x, c), n, 0, up);
        if (c != warp) {
            take_gain<STEP_NORM>(a.in, cols, c, gain);
            take_input<STEP_NORM>(a.in, row, cols, c, gain, q, squares);
        }
        v0 += int_output(int_sums(gate.code, q), gate.scale, n, q);
        v1 += int_output(int_sums(up.code, q), up.scale, n, q);
    }
    squares = sum_lanes<32>(squares);
    if (warp < WARPS) {
        h.put(0, v0);
        h.put(1, v1);
        if (lane == 0) h.squares[warp] = squares;
    }
    __syncthreads();
    const uint32_t o = threadIdx.x, i = blockIdx.x * TILE_OUT + o;
    if (o >= TILE_OUT || i >= a.gate.rows) return;
    const float factor = h.factor(a.in, cols);
    a.places[((size_t)row * a.top_k + choice) * a.gate.rows + i] = silu(h.sum(0, o) * factor) * (h.sum(1, o) * factor);
}

/* Block (row tile, row).  Its warps take chunks of the shared expert's values, then of each chosen expert's. */
__global__ void __launch_bounds__(OUT_WARPS *WARP) experts_out_rows_kernel(const __grid_constant__ step_moe a) {
    __shared__ choose_share choose;
    __shared__ uint32_t expert[STEP_MAX_TOP_K];
    __shared__ float weight[STEP_MAX_TOP_K], sums[OUT_WARPS][TILE_OUT];
    const uint32_t row = blockIdx.y, warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t shared_chunks = chunks_of(a.shared_down), chunks = chunks_of(a.down), items = shared_chunks + a.top_k * chunks;
    uint32_t item = warp;
    int_chunk w;
    launch_dependents();
    const auto load_shared = [&] {
        load_int_chunk<4>(a.shared_down, index_of(a.shared_down, 0, blockIdx.x, item), tiles_of(a.shared_down, item), 0, w);
    };
    const auto load_expert = [&] {
        const uint32_t k = (item - shared_chunks) / chunks, c = (item - shared_chunks) % chunks;
        load_int_chunk<4>(a.down, index_of(a.down, expert[k], blockIdx.x, c), tiles_of(a.down, c), 0, w);
    };
    if (item < shared_chunks) load_shared();
    const uint32_t o = threadIdx.x, i = blockIdx.x * TILE_OUT + o;
    float *residual = a.residual + (size_t)row * a.down.rows + i;
    const bool has = o < TILE_OUT && i < a.down.rows;
    const float before = has ? __ldcg(residual) : 0.0f, shared_weight = __ldcg(a.shared_weight + row);
    if (warp == 0) {
        const top_choice best = warp_choose(a.logits + (size_t)row * a.router.rows, a.router.rows, a.top_k, choose);
        if (lane < a.top_k) expert[lane] = best.expert, weight[lane] = best.weight;
    }
    __syncthreads();
    if (item >= shared_chunks && item < items) load_expert();
    wait_inputs();
    float total = 0;
#pragma unroll 1
    while (item < items) {
        const bool is_shared = item < shared_chunks;
        const uint32_t k = is_shared ? 0 : (item - shared_chunks) / chunks, c = is_shared ? item : (item - shared_chunks) % chunks;
        const cuda_mat &m = is_shared ? a.shared_down : a.down;
        step_input in = {};
        in.x = is_shared ? a.shared + (size_t)row * a.shared_down.cols : a.places + ((size_t)row * a.top_k + k) * a.down.cols;
        const float4 none[2] = {};
        int_input q;
        float squares = 0;
        take_input<STEP_PLAIN>(in, 0, m.cols, c, none, q, squares);
        total += (is_shared ? shared_weight : weight[k]) * int_output(int_sums(w.code, q), w.scale, tiles_of(m, c), q);
        item += warps;
        if (item < items) item < shared_chunks ? load_shared() : load_expert();
    }
    if (lane % 4 < 2) sums[warp][lane / 4 + 8 * (lane % 4)] = total;
    __syncthreads();
    if (!has) return;
    float sum = before;
#pragma unroll 3
    for (uint32_t j = 0; j < warps; j++) sum += sums[j][o];
    *residual = sum;
}

bool usual(const cuda_mat &w, uint32_t bits) { return w.bits == bits && w.subs == 1; }

} // namespace

} // namespace calla

using namespace calla;

bool step_takes_moe(const cuda_device *d, const step_moe *a) {
    return d->parts == 2 && a->rows <= STEP_ROWS && a->router.rows <= TOP_K_EXPERTS && a->top_k <= STEP_MAX_TOP_K && usual(a->router, 8) &&
           usual(a->shared_router, 8) && usual(a->shared_gate, 4) && usual(a->shared_up, 4) && usual(a->gate, 4) && usual(a->up, 4) &&
           usual(a->down, 4) && usual(a->shared_down, 4);
}

void step_run_moe_route(const step_moe *a, bool early, cudaStream_t stream) {
    launch(route_rows_kernel, dim3(a->router.row_tiles + 1 + a->shared_gate.row_tiles, a->rows), THREADS, 0, early, stream, *a);
}

void step_run_moe_in(const step_moe *a, bool early, cudaStream_t stream) {
    launch(experts_in_rows_kernel, dim3(a->gate.row_tiles, a->top_k, a->rows), IN_THREADS, 0, early, stream, *a);
}

void step_run_moe_out(const step_moe *a, bool early, cudaStream_t stream) {
    const uint32_t items = (a->shared_down.col_tiles + CHUNK - 1) / CHUNK + a->top_k * ((a->down.col_tiles + CHUNK - 1) / CHUNK);
    launch(experts_out_rows_kernel, dim3(a->down.row_tiles, a->rows), (items < OUT_WARPS ? items : OUT_WARPS) * WARP, 0, early, stream, *a);
}

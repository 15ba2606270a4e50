/* moe_rows.cu: router, routed experts and the shared expert in fast precision, on integer tensor cores (int_gemv.cuh): what decoding takes
 * where the weights have the usual format.  Here the router of up to eight rows, and the experts of one; moe_many.cu has those of several.
 *
 * Nothing is done between two stages that the next can do itself: the experts' blocks find their expert in the router's logits and bring the
 * row through the norm themselves; the second half finds the experts again and has their weights on the way while the first half runs.
 * So when the first half lets the second start is part of what is right: after its own wait, when the router's logits, the shared expert's
 * values and the residual are complete. */
#include "backend/cuda/moe_rows.cuh"

namespace calla {

namespace {

static_assert(STEP_MAX_TOP_K <= TOP_K_MOST, "");
constexpr uint32_t WARPS = 8, THREADS = WARPS * WARP, OUT_WARPS = 18; /* of the latter: two chunks of eight experts and the shared one */
static_assert(THREADS == TOP_K_EXPERTS, "");

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
__global__ void __launch_bounds__(THREADS, 4) route_rows_kernel(const __grid_constant__ step_moe a) {
    __shared__ tile_sums h;
    __shared__ uint4 places[WARPS][PAIR_BYTES / 16];
    const uint32_t routers = a.router.row_tiles, row = blockIdx.y, warp = threadIdx.x / WARP, o = threadIdx.x;
    const bool is_router = blockIdx.x<routers, is_pair = blockIdx.x> routers;
    const uint32_t tile = is_router ? blockIdx.x : is_pair ? blockIdx.x - routers - 1 : 0, i = tile * TILE_OUT + o;
    const uint32_t cols = a.router.cols, chunks = chunks_of(a.router), n = warp < chunks ? tiles_of(a.router, warp) : 0;
    uint8_t *place = reinterpret_cast<uint8_t *>(places[warp]);
    if (n && is_pair)
        fetch_pair(a.shared_gate, a.shared_up, index_of(a.shared_gate, 0, tile, warp), n, place);
    else if (n)
        fetch_chunk<8>(is_router ? a.router : a.shared_router, index_of(a.router, 0, tile, warp), n, place);
    copy_commit();
    const auto at = find_chunk<STEP_NORM>(a.in, row, cols, n ? warp : 0);
    const uint32_t outputs = is_router ? a.router.rows : is_pair ? a.shared_gate.rows : 1;
    float *out = (is_router ? a.logits : is_pair ? a.shared : a.shared_weight) + (size_t)row * outputs + i;
    have(out);
    wait_inputs();
    launch_dependents(); /* not at once: the experts' blocks, which have nothing to fetch yet, would be in the way */
    float v0 = 0, v1 = 0, squares = 0;
    if (n) {
        int_input q;
        take_input<STEP_NORM>(at, q, squares);
        copy_wait<0>();
        __syncwarp();
        if (is_pair) {
            v0 = int_output<4>(int_sums<4>(place, 0, q), place, n, q);
            v1 = int_output<4>(int_sums<4>(place + CHUNK_BYTES<4>, 0, q), place + CHUNK_BYTES<4>, n, q);
        } else {
            const float2 low = int_sums<8>(place, 0, q), high = int_sums<8>(place, 1, q);
            v0 = int_output<8>(make_float2(low.x + 16.0f * high.x, low.y + 16.0f * high.y), place, n, q);
        }
        squares = sum_lanes<32>(squares);
    }
    h.put(0, v0);
    h.put(1, v1);
    if (threadIdx.x % WARP == 0) h.squares[warp] = squares;
    __syncthreads();
    if (o >= TILE_OUT || i >= outputs) return;
    const float factor = h.factor(a.in, cols), v = h.sum(0, o) * factor;
    *out = is_router ? v : is_pair ? silu(v) * (h.sum(1, o) * factor) : sigmoid(v);
}

/* Block (row tile, choice). */
__global__ void __launch_bounds__(THREADS, 2) experts_in_row_kernel(const __grid_constant__ step_moe a) {
    __shared__ tile_sums h;
    __shared__ block_choice chosen;
    const uint32_t choice = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t cols = a.gate.cols, chunks = chunks_of(a.gate), n = warp < chunks ? tiles_of(a.gate, warp) : 0;
    const auto at = find_chunk<STEP_NORM>(a.in, 0, cols, n ? warp : 0);
    const size_t index = index_of(a.gate, 0, blockIdx.x, warp), of_expert = (size_t)a.gate.row_tiles * a.gate.col_tiles;
    const float *logit = a.logits + threadIdx.x;
    uint32_t experts = a.router.rows;
    have(logit), have(experts);
    wait_inputs();
    launch_dependents();
    const uint32_t key = threadIdx.x < experts ? key_of(__ldcg(logit)) : 0;
    chunk_values values;
    load_chunk<STEP_NORM>(at, values);
    rank_in_warp(key, threadIdx.x, choice, chosen);
    __syncthreads();
    find_choice(choice, chosen);
    int_input q;
    float squares = 0, v0 = 0, v1 = 0;
    spread_words(make_words<STEP_NORM>(at, values, squares), q);
    squares = sum_lanes<32>(squares);
    __syncthreads();
    if (n) {
        const size_t first = chosen.expert * of_expert + index;
        uint4 code[2][CHUNK];
        uint32_t scale[2][2] = {};
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
            const cuda_mat &w = m ? a.up : a.gate;
            const uint32_t *of = w.scales + (first + lane % 4) * TILE_OUT + lane / 4;
#pragma unroll
            for (uint32_t t = 0; t < CHUNK; t++)
                code[m][t] = t < n ? load_stream(w.codes + (first + t) * WARP + lane) : make_uint4(0, 0, 0, 0);
            if (lane % 4 < n) scale[m][0] = load_stream(of), scale[m][1] = load_stream(of + 8);
        }
        v0 = scale_sums(sum_codes([&](uint32_t t) { return code[0][t]; }, q), scale[0][0], scale[0][1], n, q);
        v1 = scale_sums(sum_codes([&](uint32_t t) { return code[1][t]; }, q), scale[1][0], scale[1][1], n, q);
    }
    h.put(0, v0);
    h.put(1, v1);
    if (lane == 0) h.squares[warp] = n ? squares : 0.0f;
    __syncthreads();
    const uint32_t o = threadIdx.x, i = blockIdx.x * TILE_OUT + o;
    if (o >= TILE_OUT || i >= a.gate.rows) return;
    const float factor = h.factor(a.in, cols);
    a.places[(size_t)choice * a.gate.rows + i] = silu(h.sum(0, o) * factor) * (h.sum(1, o) * factor);
}

/* Block: a row tile.  Its warps take chunks of the shared expert's values, then of each chosen expert's. */
__global__ void __launch_bounds__(OUT_WARPS *WARP, 2) experts_out_row_kernel(const __grid_constant__ step_moe a) {
    __shared__ choose_share choose;
    __shared__ uint32_t expert[STEP_MAX_TOP_K];
    __shared__ float weight[STEP_MAX_TOP_K], sums[OUT_WARPS][TILE_OUT];
    __shared__ uint4 places[OUT_WARPS][CHUNK_BYTES<4> / 16];
    const uint32_t warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t shared_chunks = chunks_of(a.shared_down), chunks = chunks_of(a.down), items = shared_chunks + a.top_k * chunks;
    uint8_t *place = reinterpret_cast<uint8_t *>(places[warp]);
    launch_dependents();
    const uint32_t o = threadIdx.x, i = blockIdx.x * TILE_OUT + o;
    float *residual = a.residual + i;
    const bool has = o < TILE_OUT && i < a.down.rows;
    const float before = has ? __ldcg(residual) : 0.0f, shared_weight = __ldcg(a.shared_weight);
    if (warp == 0) {
        const top_choice best = warp_choose(a.logits, a.router.rows, a.top_k, choose);
        if (lane < a.top_k) expert[lane] = best.expert, weight[lane] = best.weight;
    }
    __syncthreads();
    float total = 0;
#pragma unroll 1
    for (uint32_t item = warp; item < items; item += warps) {
        const bool is_shared = item < shared_chunks;
        const uint32_t k = is_shared ? 0 : (item - shared_chunks) / chunks, c = is_shared ? item : (item - shared_chunks) % chunks;
        const cuda_mat &m = is_shared ? a.shared_down : a.down;
        const uint32_t n = tiles_of(m, c);
        float factor = is_shared ? shared_weight : weight[k];
        fetch_chunk<4>(m, index_of(m, is_shared ? 0 : expert[k], blockIdx.x, c), n, place);
        copy_commit();
        step_input in = {};
        in.x = is_shared ? a.shared : a.places + (size_t)k * m.cols;
        const auto at = find_chunk<STEP_PLAIN>(in, 0, m.cols, c);
        have(factor);
        wait_inputs(); /* of the first item; later ones wait no more */
        int_input q;
        float squares = 0;
        take_input<STEP_PLAIN>(at, q, squares);
        copy_wait<0>();
        __syncwarp();
        total += factor * int_output<4>(int_sums<4>(place, 0, q), place, n, q);
        __syncwarp(); /* all have taken it */
    }
    if (lane % 4 < 2) sums[warp][lane / 4 + 8 * (lane % 4)] = total;
    __syncthreads();
    if (has) *residual = before + sum_apart(&sums[0][o], warps, TILE_OUT);
}

bool usual(const cuda_mat &w, uint32_t bits) { return w.bits == bits && w.subs == 1; }

} // namespace

} // namespace calla

using namespace calla;

bool step_takes_moe(const cuda_device *d, const step_moe *a) {
    return d->parts == 2 && a->rows <= STEP_ROWS && a->router.cols <= WARPS * CHUNK_IN && moe_many_bytes(a) <= d->shared_bytes &&
           a->router.rows <= TOP_K_EXPERTS && a->top_k <= STEP_MAX_TOP_K && usual(a->router, 8) && usual(a->shared_router, 8) &&
           usual(a->shared_gate, 4) && usual(a->shared_up, 4) && usual(a->gate, 4) && usual(a->up, 4) && usual(a->down, 4) &&
           usual(a->shared_down, 4);
}

cudaError_t moe_rows_prepare(void) {
    cudaError_t e = share_most(route_rows_kernel);
    if (!e) e = share_most(experts_out_row_kernel);
    return e ? e : moe_many_prepare();
}

void step_run_moe_route(const step_moe *a, bool early, cudaStream_t stream) {
    launch(route_rows_kernel, dim3(a->router.row_tiles + 1 + a->shared_gate.row_tiles, a->rows), THREADS, 0, early, stream, *a);
}

void step_run_moe_in(const cuda_device *d, const step_moe *a, bool early, cudaStream_t stream) {
    if (a->rows > 1)
        run_moe_many_in(a, d->multiprocessors, early, stream);
    else
        launch(experts_in_row_kernel, dim3(a->gate.row_tiles, a->top_k), THREADS, 0, early, stream, *a);
}

void step_run_moe_out(const step_moe *a, bool early, cudaStream_t stream) {
    const uint32_t items = chunks_of(a->shared_down) + a->top_k * chunks_of(a->down);
    if (a->rows > 1)
        run_moe_many_out(a, early, stream);
    else
        launch(experts_out_row_kernel, dim3(a->down.row_tiles), (items < OUT_WARPS ? items : OUT_WARPS) * WARP, 0, early, stream, *a);
}

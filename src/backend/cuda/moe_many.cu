/* moe_many.cu: the routed experts and the shared expert's second half for two to eight rows in fast precision.  Memory decides here: eight
 * rows choose about 57 experts of a layer, 75 MB and 38 MB.  So blocks stay, one on each multiprocessor, and their warps always have the next
 * weights on their way.
 *
 * First half: a unit of work is a row tile of gate and up of an expert that somebody chose; a block's two groups of eight warps take units in
 * turn, a warp its chunk of the inputs, and what is read serves all the rows that chose the expert.  Second half: a block has a row tile of
 * all experts, its warps take chunks of the chosen experts' and of the shared expert's values, row after row; an expert that several rows
 * chose is read again soon after, from L2.  As in moe_rows.cu every block finds the choices itself. */
#include "backend/cuda/moe_rows.cuh"

namespace calla {

namespace {

constexpr uint32_t WARPS = 16, THREADS = WARPS * WARP, GROUP_WARPS = 8, GROUPS = WARPS / GROUP_WARPS, GROUP_THREADS = GROUP_WARPS * WARP;
constexpr uint32_t IN_DEPTH = 2, OUT_DEPTH = 3;
constexpr uint32_t PLACES = STEP_ROWS * STEP_MAX_TOP_K, PLACE_WORDS = PLACES / 32;
constexpr uint32_t STAGED = 4; /* rows whose values a warp asks for at once */

/* ---- first half ---- */

struct alignas(16) in_share {
    uint8_t places[WARPS][IN_DEPTH][PAIR_BYTES];
    uint4 words[STEP_ROWS][GROUP_WARPS][WARP];       /* of a row's chunk what a lane needs: int_input::word */
    float2 group[STEP_ROWS][GROUP_WARPS][CHUNK];     /* and of a tile's group: scale, Σq */
    float sums[GROUPS][2][2][GROUP_WARPS][TILE_OUT]; /* of a group, in two places in turn: gate and up of each warp */
    float squares[STEP_ROWS][GROUP_WARPS], factor[STEP_ROWS];
    choose_share choose[STEP_ROWS];
    uint32_t takers[TOP_K_EXPERTS][PLACE_WORDS]; /* bits: places (row·top_k + choice) that chose the expert */
    uint32_t list[PLACES];                       /* experts that anybody chose, rising */
    uint32_t chosen[TOP_K_EXPERTS / WARP];       /* how many of 32 experts */
};

/* Rows row_first, row_first + step, … of a chunk as bytes, by one warp. */
__device__ __forceinline__ void stage_rows(const step_moe &a, const chunk_at<STEP_NORM> &first, uint32_t chunk, uint32_t row_first,
                                           uint32_t row_end, in_share &h) {
    const uint32_t lane = threadIdx.x % WARP;
    chunk_values values[STAGED];
    chunk_at<STEP_NORM> at = first;
#pragma unroll
    for (uint32_t i = 0; i < STAGED; i++) {
        at.x = first.x + (size_t)min(row_first + i, a.rows - 1) * a.in.x_stride;
        load_chunk<STEP_NORM>(at, values[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < STAGED; i++) {
        const uint32_t r = row_first + i;
        if (r >= row_end) break;
        float squares = 0;
        const int_words own = make_words<STEP_NORM>(at, values[i], squares);
        h.words[r][chunk][lane] = make_uint4(own.word[0], own.word[1], own.word[2], own.word[3]);
        const float scale = __shfl_sync(0xFFFFFFFFu, own.scale, 8 * (lane % 4)), sum = sum_words(own.word);
        if (lane < CHUNK) h.group[r][chunk][lane] = make_float2(scale, sum);
        squares = sum_lanes<32>(squares);
        if (lane == 0) h.squares[r][chunk] = squares;
    }
}
static_assert(2 * STAGED == STEP_ROWS, "the two groups stage four rows each");

/* From takers to the list; all threads call it, and meet.  Returns how many there are. */
__device__ __forceinline__ uint32_t list_experts(in_share &h) {
    const uint32_t e = threadIdx.x, lane = e % WARP;
    uint32_t any = 0, all = 0, before = 0;
    if (e < TOP_K_EXPERTS) {
#pragma unroll
        for (uint32_t i = 0; i < PLACE_WORDS; i++) any |= h.takers[e][i];
        all = __ballot_sync(0xFFFFFFFFu, any != 0);
        if (lane == 0) h.chosen[e / WARP] = (uint32_t)__popc((int)all);
    }
    __syncthreads();
    uint32_t total = 0;
#pragma unroll
    for (uint32_t i = 0; i < TOP_K_EXPERTS / WARP; i++) {
        if (i == e / WARP) before = total;
        total += h.chosen[i];
    }
    if (any) h.list[before + (uint32_t)__popc((int)(all & ((1u << lane) - 1)))] = e;
    __syncthreads();
    return total;
}

__device__ __forceinline__ void meet_group(uint32_t group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
}

__global__ void __launch_bounds__(THREADS, 1) experts_in_many_kernel(const __grid_constant__ step_moe a) {
    extern __shared__ uint4 shared[];
    in_share &h = *reinterpret_cast<in_share *>(shared);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = warp / GROUP_WARPS, chunk = warp % GROUP_WARPS;
    const uint32_t cols = a.gate.cols, chunks = chunks_of(a.gate), n = chunk < chunks ? tiles_of(a.gate, chunk) : 0,
                   row_tiles = a.gate.row_tiles;
    for (uint32_t i = threadIdx.x; i < TOP_K_EXPERTS * PLACE_WORDS; i += THREADS) h.takers[0][i] = 0;
    const auto at = find_chunk<STEP_NORM>(a.in, 0, cols, n ? chunk : 0);
    __syncthreads();
    wait_inputs();
    launch_dependents();
    if (warp < a.rows) {
        const top_choice best = warp_choose(a.logits + (size_t)warp * a.router.rows, a.router.rows, a.top_k, h.choose[warp]);
        const uint32_t place = warp * a.top_k + lane;
        if (lane < a.top_k) atomicOr(&h.takers[best.expert][place / 32], 1u << place % 32);
    }
    if (group == 1 && n) stage_rows(a, at, chunk, 0, min(STAGED, a.rows), h); /* while the first chooses */
    __syncthreads();
    const uint32_t units = list_experts(h) * row_tiles, step = gridDim.x * GROUPS;
    uint32_t ahead = blockIdx.x * GROUPS + group;
    uint8_t(&places)[IN_DEPTH][PAIR_BYTES] = h.places[warp];
    const auto fetch = [&](uint32_t place) {
        if (n && ahead < units)
            fetch_pair(a.gate, a.up, index_of(a.gate, h.list[ahead / row_tiles], ahead % row_tiles, chunk), n, places[place]);
        ahead += step;
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < IN_DEPTH; i++) fetch(i);
    if (group == 0 && n && a.rows > STAGED) stage_rows(a, at, chunk, STAGED, a.rows, h);
    __syncthreads();
    if (threadIdx.x < a.rows) h.factor[threadIdx.x] = rsqrtf(sum_apart(h.squares[threadIdx.x], chunks, 1) / (float)cols + a.in.eps);
    __syncthreads();
    uint32_t place = 0, turn = 0, finisher = 0;
#pragma unroll 1
    for (uint32_t unit = blockIdx.x * GROUPS + group; unit < units; unit += step) {
        const uint32_t expert = h.list[unit / row_tiles], tile = unit % row_tiles;
        const uint8_t *gate = places[place], *up = gate + CHUNK_BYTES<4>;
        copy_wait<IN_DEPTH - 1>();
        __syncwarp();
#pragma unroll 1
        for (uint32_t w = 0; w < PLACE_WORDS; w++) {
#pragma unroll 1
            for (uint32_t takers = h.takers[expert][w]; takers; takers &= takers - 1) {
                const uint32_t p = w * 32 + (uint32_t)__ffs((int)takers) - 1, r = p / a.top_k;
                float(&sums)[2][GROUP_WARPS][TILE_OUT] = h.sums[group][turn];
                if (n) {
                    int_input q;
                    const uint4 words = h.words[r][chunk][lane];
                    const float2 of = h.group[r][chunk][lane % 4];
                    q.word[0] = words.x, q.word[1] = words.y, q.word[2] = words.z, q.word[3] = words.w;
                    q.scale = of.x, q.sum = of.y;
                    const float v0 = int_output<4>(int_sums<4>(gate, 0, q), gate, n, q),
                                v1 = int_output<4>(int_sums<4>(up, 0, q), up, n, q);
                    const uint32_t o = lane / 4 + 8 * (lane % 4);
                    if (lane % 4 < 2) sums[0][chunk][o] = v0, sums[1][chunk][o] = v1;
                }
                meet_group(group); /* one is enough: the sums have two places in turn */
                const uint32_t o = tile * TILE_OUT + lane;
                if (chunk == finisher && lane < TILE_OUT && o < a.gate.rows) {
                    const float x = sum_apart(&sums[0][0][lane], chunks, TILE_OUT) * h.factor[r],
                                y = sum_apart(&sums[1][0][lane], chunks, TILE_OUT) * h.factor[r];
                    a.places[(size_t)p * a.gate.rows + o] = silu(x) * y;
                }
                finisher = (finisher + 1) % GROUP_WARPS;
                turn ^= 1;
            }
        }
        __syncwarp(); /* all have taken it */
        fetch(place);
        place = place + 1 == IN_DEPTH ? 0 : place + 1;
    }
}

/* ---- second half ---- */

struct alignas(16) out_place { /* of a warp: a chunk of weights, and of the values that they are multiplied with */
    uint8_t chunk[CHUNK_BYTES<4>];
    float x[CHUNK_IN];
};
struct alignas(16) out_share {
    out_place places[WARPS][OUT_DEPTH];
    float sums[STEP_ROWS][WARPS][TILE_OUT];
    choose_share choose[STEP_ROWS];
    uint32_t expert[PLACES];
    float weight[PLACES], shared_weight[STEP_ROWS];
};

/* What a warp multiplies next: chunk c of the values of choice k of a row, k = top_k: of the shared expert. */
struct out_item {
    uint32_t row, k, c;
};

__global__ void __launch_bounds__(THREADS, 1) experts_out_many_kernel(const __grid_constant__ step_moe a) {
    extern __shared__ uint4 shared[];
    out_share &h = *reinterpret_cast<out_share *>(shared);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tile = blockIdx.x;
    const uint32_t chunks = chunks_of(a.down), shared_chunks = chunks_of(a.shared_down), routed = a.top_k * chunks,
                   of_row = routed + shared_chunks, items = a.rows * of_row;
    launch_dependents();
    for (uint32_t i = threadIdx.x; i < STEP_ROWS * WARPS * TILE_OUT; i += THREADS) h.sums[0][0][i] = 0;
    if (warp < a.rows) {
        const top_choice best = warp_choose(a.logits + (size_t)warp * a.router.rows, a.router.rows, a.top_k, h.choose[warp]);
        if (lane < a.top_k) h.expert[warp * a.top_k + lane] = best.expert, h.weight[warp * a.top_k + lane] = best.weight;
        if (lane == 0) h.shared_weight[warp] = __ldcg(a.shared_weight + warp);
    }
    __syncthreads();
    const auto item_of = [&](uint32_t item) {
        const uint32_t row = item / of_row, in_row = item % of_row;
        const bool is_shared = in_row >= routed;
        return out_item{row, is_shared ? a.top_k : in_row / chunks, is_shared ? in_row - routed : in_row % chunks};
    };
    const auto fetch_weights = [&](uint32_t item, uint32_t place) {
        if (item >= items) return;
        const out_item i = item_of(item);
        const bool is_shared = i.k == a.top_k;
        const cuda_mat &m = is_shared ? a.shared_down : a.down;
        fetch_chunk<4>(m, index_of(m, is_shared ? 0 : h.expert[i.row * a.top_k + i.k], tile, i.c), tiles_of(m, i.c),
                       h.places[warp][place].chunk);
    };
    const auto fetch_values = [&](uint32_t item, uint32_t place) {
        if (item < items) {
            const out_item i = item_of(item);
            const bool is_shared = i.k == a.top_k;
            const uint32_t cols = is_shared ? a.shared_down.cols : a.down.cols;
            const float *x = is_shared ? a.shared + (size_t)i.row * cols : a.places + ((size_t)i.row * a.top_k + i.k) * cols;
#pragma unroll
            for (uint32_t j = 0; j < CHUNK_IN / 4 / WARP; j++) {
                const uint32_t in_chunk = (lane + j * WARP) * 4;
                float *to = h.places[warp][place].x + in_chunk;
                if (i.c * CHUNK_IN + in_chunk < cols)
                    copy_async(to, x + i.c * CHUNK_IN + in_chunk);
                else
                    *reinterpret_cast<float4 *>(to) = make_float4(0, 0, 0, 0);
            }
        }
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < OUT_DEPTH; i++) fetch_weights(warp + i * WARPS, i);
    copy_commit();
    wait_inputs();
#pragma unroll 1
    for (uint32_t i = 0; i < OUT_DEPTH; i++) fetch_values(warp + i * WARPS, i);
    uint32_t place = 0, row = 0;
    float total = 0;
    const auto put = [&] {
        if (lane % 4 < 2) h.sums[row][warp][lane / 4 + 8 * (lane % 4)] = total;
        total = 0;
    };
#pragma unroll 1
    for (uint32_t item = warp; item < items; item += WARPS) {
        const out_item i = item_of(item);
        const bool is_shared = i.k == a.top_k;
        if (i.row != row) put();
        row = i.row;
        copy_wait<OUT_DEPTH - 1>(); /* the weights of the first ones came before */
        __syncwarp();
        const out_place &own = h.places[warp][place];
        const float *x = own.x + own_input(0);
        chunk_at<STEP_PLAIN> at = {};
        chunk_values values;
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const float2 v = *reinterpret_cast<const float2 *>(x + 16 * j), w = *reinterpret_cast<const float2 *>(x + 16 * j + 8);
            values.v[j] = make_float4(v.x, v.y, w.x, w.y);
        }
        float none = 0;
        int_input q;
        spread_words(make_words<STEP_PLAIN>(at, values, none), q);
        const float factor = is_shared ? h.shared_weight[row] : h.weight[row * a.top_k + i.k];
        total += factor * int_output<4>(int_sums<4>(own.chunk, 0, q), own.chunk, tiles_of(is_shared ? a.shared_down : a.down, i.c), q);
        __syncwarp(); /* all have taken it */
        fetch_weights(item + OUT_DEPTH * WARPS, place);
        fetch_values(item + OUT_DEPTH * WARPS, place);
        place = place + 1 == OUT_DEPTH ? 0 : place + 1;
    }
    put();
    __syncthreads();
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT, out = tile * TILE_OUT + o;
    if (r < a.rows && out < a.down.rows) a.residual[(size_t)r * a.down.rows + out] += sum_apart(&h.sums[r][0][o], WARPS, TILE_OUT);
}

} // namespace

cudaError_t moe_many_prepare(void) {
    const cudaError_t e = allow_shared(experts_in_many_kernel, sizeof(in_share));
    return e ? e : allow_shared(experts_out_many_kernel, sizeof(out_share));
}

uint32_t moe_many_bytes(const step_moe *a) {
    if (a->rows < 2) return 0;
    return sizeof(in_share) > sizeof(out_share) ? sizeof(in_share) : sizeof(out_share);
}

void run_moe_many_in(const step_moe *a, uint32_t multiprocessors, bool early, cudaStream_t stream) {
    launch(experts_in_many_kernel, dim3(multiprocessors), THREADS, sizeof(in_share), early, stream, *a);
}

void run_moe_many_out(const step_moe *a, bool early, cudaStream_t stream) {
    launch(experts_out_many_kernel, dim3(a->down.row_tiles), THREADS, sizeof(out_share), early, stream, *a);
}

} // namespace calla

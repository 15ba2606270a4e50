/* moe_many.cu: the routed experts and the shared expert's second half for two to eight rows in fast precision.  Memory decides here: eight
 * rows choose about 57 experts of a layer, 75 MB and 38 MB.  So blocks stay, one on each multiprocessor, and their warps always have the next
 * weights on their way.
 *
 * First half: a unit of work is a row tile of gate and up of an expert that somebody chose; a block's two groups of eight warps take units in
 * turn, a warp its chunk of the inputs, and what is read serves all the rows that chose the expert.  Second half: a block has a row tile of
 * all experts, its warps take chunks of the chosen experts' and of the shared expert's values, row after row; an expert that several rows
 * chose is read again soon after, from L2.  In the first half every block finds the choices itself, before all else, and then brings the rows
 * through the norm while the first weights are on their way; the second half, which has no room beside the first, reads them. */
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
    block_choice choose[STEP_ROWS];
    uint64_t chosen_of[STEP_ROWS][STEP_MAX_TOP_K]; /* key and expert, the best first */
    uint32_t takers[TOP_K_EXPERTS][PLACE_WORDS];   /* bits: places (row·STEP_MAX_TOP_K + choice) that chose the expert */
    uint32_t list[PLACES];                         /* experts that anybody chose, rising */
    uint32_t chosen[TOP_K_EXPERTS / WARP];         /* how many of 32 experts */
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

/* The rows' choices into takers and chosen_of; all threads call it, and meet. */
__device__ __forceinline__ void choose_experts(const step_moe &a, in_share &h) {
    constexpr uint32_t OF_ROW = TOP_K_EXPERTS / WARP, EACH = STEP_ROWS * OF_ROW / WARPS; /* groups of 32 experts of a row, of a warp */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, experts = a.router.rows, n = a.top_k * OF_ROW;
    const uint32_t row = warp * EACH / OF_ROW, first = warp * EACH % OF_ROW * WARP + lane;
    uint32_t key[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t e = first + i * WARP;
        key[i] = row < a.rows && e < experts ? key_of(__ldcg(a.logits + (size_t)row * experts + e)) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) rank_in_warp(key[i], first + i * WARP, a.top_k - 1, h.choose[row]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.rows * n; i += THREADS) {
        const uint32_t r = i / n;
        const uint64_t own = h.choose[r].candidate[i % n];
        const uint32_t k = count_larger(h.choose[r].candidate, n, own), place = r * STEP_MAX_TOP_K + k;
        if (k >= a.top_k) continue;
        h.chosen_of[r][k] = own;
        atomicOr(&h.takers[UINT32_MAX - (uint32_t)own][place / 32], 1u << place % 32);
    }
    __syncthreads();
}
static_assert(STEP_ROWS * (TOP_K_EXPERTS / WARP) % WARPS == 0 && TOP_K_EXPERTS / WARP == TOP_K_HELD, "");

/* What a row chose, and the softmax of its logits, for the second half; by a warp. */
__device__ __forceinline__ void leave_choices(const step_moe &a, uint32_t row, const in_share &h) {
    const uint32_t lane = threadIdx.x % WARP;
    const top_choice own = weigh_choices(h.chosen_of[row], a.top_k);
    if (lane < a.top_k) a.expert[row * a.top_k + lane] = own.expert, a.weight[row * a.top_k + lane] = own.weight;
}

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

struct in_unit { /* of work: which of the list, and row tile */
    uint32_t at, tile;
};

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
    choose_experts(a, h);
    const uint32_t listed = list_experts(h), step = gridDim.x * GROUPS, step_at = step / row_tiles, step_tile = step % row_tiles;
    in_unit unit = {(blockIdx.x * GROUPS + group) / row_tiles, (blockIdx.x * GROUPS + group) % row_tiles}, ahead = unit;
    const auto advance = [&](in_unit &u) {
        u.at += step_at, u.tile += step_tile;
        if (u.tile >= row_tiles) u.at++, u.tile -= row_tiles;
    };
    uint8_t(&places)[IN_DEPTH][PAIR_BYTES] = h.places[warp];
    const auto fetch = [&](uint32_t place) {
        if (n && ahead.at < listed) fetch_pair(a.gate, a.up, index_of(a.gate, h.list[ahead.at], ahead.tile, chunk), n, places[place]);
        advance(ahead);
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < IN_DEPTH; i++) fetch(i);
    if (n && group * STAGED < a.rows) stage_rows(a, at, chunk, group * STAGED, min((group + 1) * STAGED, a.rows), h);
    if (blockIdx.x == 0 && warp < a.rows) leave_choices(a, warp, h);
    __syncthreads();
    if (threadIdx.x < a.rows) h.factor[threadIdx.x] = rsqrtf(sum_apart(h.squares[threadIdx.x], chunks, 1) / (float)cols + a.in.eps);
    __syncthreads();
    uint32_t place = 0, turn = 0, finisher = 0;
#pragma unroll 1
    for (; unit.at < listed; advance(unit)) {
        const uint32_t expert = h.list[unit.at];
        const uint8_t *gate = places[place], *up = gate + CHUNK_BYTES<4>;
        copy_wait<IN_DEPTH - 1>();
        __syncwarp();
#pragma unroll 1
        for (uint32_t w = 0; w < PLACE_WORDS; w++) {
#pragma unroll 1
            for (uint32_t takers = h.takers[expert][w]; takers; takers &= takers - 1) {
                const uint32_t p = w * 32 + (uint32_t)__ffs((int)takers) - 1, r = p / STEP_MAX_TOP_K, k = p % STEP_MAX_TOP_K;
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
                const uint32_t o = unit.tile * TILE_OUT + lane;
                if (chunk == finisher && lane < TILE_OUT && o < a.gate.rows) {
                    const float x = sum_apart(&sums[0][0][lane], chunks, TILE_OUT) * h.factor[r],
                                y = sum_apart(&sums[1][0][lane], chunks, TILE_OUT) * h.factor[r];
                    a.places[((size_t)r * a.top_k + k) * a.gate.rows + o] = silu(x) * y;
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
/* What a warp multiplies next: a chunk of the values of a row's choice, or of its shared expert. */
struct alignas(16) out_item {
    uint32_t tile, value; /* the first of each: index of the weights' tile, offset of the value */
    float factor;
    uint8_t row, is_shared;
    uint16_t values; /* from the first to the row's last */
};
constexpr uint32_t OUT_CHUNKS = STEP_MAX_COLS / CHUNK_IN, ITEMS = STEP_ROWS * (STEP_MAX_TOP_K + 1) * OUT_CHUNKS;
static_assert(STEP_MAX_COLS <= UINT16_MAX, "");

struct alignas(16) out_share {
    out_place places[WARPS][OUT_DEPTH];
    float sums[STEP_ROWS][WARPS][TILE_OUT];
    out_item items[ITEMS];
};

__global__ void __launch_bounds__(THREADS, 1) experts_out_many_kernel(const __grid_constant__ step_moe a) {
    extern __shared__ uint4 shared[];
    out_share &h = *reinterpret_cast<out_share *>(shared);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, tile = blockIdx.x;
    const uint32_t chunks = chunks_of(a.down), shared_chunks = chunks_of(a.shared_down), routed = a.top_k * chunks,
                   of_row = routed + shared_chunks, items = a.rows * of_row;
    launch_dependents();
    for (uint32_t i = threadIdx.x; i < STEP_ROWS * WARPS * TILE_OUT; i += THREADS) h.sums[0][0][i] = 0;
    const uint32_t r = threadIdx.x / TILE_OUT, o = threadIdx.x % TILE_OUT, out = tile * TILE_OUT + o;
    const bool has = r < a.rows && out < a.down.rows;
    float *residual = a.residual + (size_t)r * a.down.rows + out;
    have(residual);
    wait_inputs();
    const float before = has ? __ldcg(residual) : 0.0f;
    for (uint32_t i = threadIdx.x; i < items; i += THREADS) {
        const uint32_t row = i / of_row, in_row = i % of_row;
        const bool is_shared = in_row >= routed;
        const uint32_t place = row * a.top_k + (is_shared ? 0 : in_row / chunks), c = is_shared ? in_row - routed : in_row % chunks;
        const cuda_mat &m = is_shared ? a.shared_down : a.down;
        const uint32_t expert = is_shared ? 0 : __ldcg(a.expert + place);
        const float factor = __ldcg(is_shared ? a.shared_weight + row : a.weight + place);
        h.items[i] = {
            (uint32_t)index_of(m, expert, tile, c), (is_shared ? row : place) * m.cols + c * CHUNK_IN, factor, (uint8_t)row, is_shared,
            (uint16_t)(m.cols - c * CHUNK_IN)};
    }
    __syncthreads();
    const auto tiles = [](const out_item &i) { return min(CHUNK, (i.values + TILE_IN - 1) / TILE_IN); };
    const auto fetch = [&](uint32_t item, uint32_t place) {
        if (item < items) {
            const out_item i = h.items[item];
            fetch_chunk<4>(i.is_shared ? a.shared_down : a.down, i.tile, tiles(i), h.places[warp][place].chunk);
            const float *x = (i.is_shared ? a.shared : a.places) + i.value;
#pragma unroll
            for (uint32_t j = 0; j < CHUNK_IN / 4 / WARP; j++) {
                const uint32_t k = (lane + j * WARP) * 4;
                float *to = h.places[warp][place].x + k;
                if (k < i.values)
                    copy_async(to, x + k);
                else
                    *reinterpret_cast<float4 *>(to) = make_float4(0, 0, 0, 0);
            }
        }
        copy_commit();
    };
#pragma unroll 1
    for (uint32_t i = 0; i < OUT_DEPTH; i++) fetch(warp + i * WARPS, i);
    uint32_t place = 0, row = 0;
    float total = 0;
    const auto put = [&] {
        if (lane % 4 < 2) h.sums[row][warp][lane / 4 + 8 * (lane % 4)] = total;
        total = 0;
    };
#pragma unroll 1
    for (uint32_t item = warp; item < items; item += WARPS) {
        const out_item i = h.items[item];
        if (i.row != row) put();
        row = i.row;
        copy_wait<OUT_DEPTH - 1>();
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
        total += i.factor * int_output<4>(int_sums<4>(own.chunk, 0, q), own.chunk, tiles(i), q);
        __syncwarp(); /* all have taken it */
        fetch(item + OUT_DEPTH * WARPS, place);
        place = place + 1 == OUT_DEPTH ? 0 : place + 1;
    }
    put();
    __syncthreads();
    if (has) *residual = before + sum_apart(&h.sums[r][0][o], WARPS, TILE_OUT);
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

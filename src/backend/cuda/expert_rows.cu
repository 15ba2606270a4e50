/* expert_rows.cu: which rows chose which expert: a stable counting sort of places (row·top_k + i), and from it the work list of the
 * grouped products.  Three small launches, nothing returns to the host.
 *
 * lists->blocks is gemm_pieces, then gemm_piece[places/128 + experts], then counts[blocks of 1024 places][experts]. */
#include "backend/cuda/gemm.cuh"

enum { SORT_THREADS = 1024 /* places of one block */ };

static uint32_t sort_blocks(uint64_t places) { return (uint32_t)((places + SORT_THREADS - 1) / SORT_THREADS); }

static uint64_t counts_offset(uint32_t experts, uint64_t places) {
    return sizeof(gemm_pieces) + sizeof(gemm_piece) * (places / GEMM_MAX_ROWS + experts);
}

uint64_t cuda_expert_block_bytes(uint32_t experts, uint32_t max_rows, uint32_t top_k) {
    const uint64_t places = (uint64_t)max_rows * top_k;
    return counts_offset(experts, places) + (uint64_t)sort_blocks(places) * experts * sizeof(uint32_t);
}

/* counts[block][e]: places of this block that chose e. */
static __global__ void count_places(const uint32_t *expert, uint32_t places, uint32_t experts, uint32_t *counts) {
    __shared__ uint32_t n[MAX_EXPERTS];
    for (uint32_t e = threadIdx.x; e < experts; e += SORT_THREADS) n[e] = 0;
    __syncthreads();
    const uint32_t p = blockIdx.x * SORT_THREADS + threadIdx.x;
    if (p < places) atomicAdd(&n[expert[p]], 1u);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < experts; e += SORT_THREADS) counts[(size_t)blockIdx.x * experts + e] = n[e];
}

/* The sum of v over the threads before this one; total: over all.  Called by all SORT_THREADS threads. */
static __device__ uint32_t sum_before(uint32_t v, uint32_t *total) {
    __shared__ uint32_t warp_sum[SORT_THREADS / 32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = v;
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t left = __shfl_up_sync(0xFFFFFFFFu, sum, d);
        if (lane >= d) sum += left;
    }
    __syncthreads(); /* the call before has been read */
    if (lane == 31) warp_sum[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < SORT_THREADS / 32; w++) {
        before += w < warp ? warp_sum[w] : 0;
        all += warp_sum[w];
    }
    *total = all;
    return before + sum - v;
}

static __device__ uint32_t piece_width(uint32_t count) { return count <= 16 ? 16 : count <= 32 ? 32 : (count + 31) / 32 * 32; }

/* One block: counts become positions in place[], and the pieces are listed: whole ones first, then the rests by falling width. */
static __global__ void __launch_bounds__(SORT_THREADS)
    list_pieces(uint32_t blocks, uint32_t experts, uint32_t *counts, uint32_t *first, gemm_pieces *list) {
    __shared__ uint32_t count_of[MAX_EXPERTS];
    gemm_piece *piece = (gemm_piece *)(list + 1);
    uint32_t places = 0, pieces = 0, total;
    for (uint32_t base = 0; base < experts; base += SORT_THREADS) {
        const uint32_t e = base + threadIdx.x;
        uint32_t n = 0;
        if (e < experts)
#pragma unroll 8
            for (uint32_t b = 0; b < blocks; b++) n += counts[(size_t)b * experts + e];
        uint32_t at = places + sum_before(n, &total);
        places += total;
        const uint32_t whole = n / GEMM_MAX_ROWS;
        uint32_t slot = pieces + sum_before(whole, &total);
        pieces += total;
        if (e >= experts) continue;
        count_of[e] = n;
        first[e] = at;
        for (uint32_t i = 0; i < whole; i++) piece[slot + i] = {e, at + i * GEMM_MAX_ROWS, GEMM_MAX_ROWS, GEMM_MAX_ROWS};
#pragma unroll 8
        for (uint32_t b = 0; b < blocks; b++) {
            const uint32_t here = counts[(size_t)b * experts + e];
            counts[(size_t)b * experts + e] = at;
            at += here;
        }
    }
    if (threadIdx.x == 0) first[experts] = places;
    const uint32_t widths[5] = {128, 96, 64, 32, 16};
    for (uint32_t w = 0; w < 5; w++)
        for (uint32_t base = 0; base < experts; base += SORT_THREADS) {
            const uint32_t e = base + threadIdx.x, n = e < experts ? count_of[e] : 0, rest = n % GEMM_MAX_ROWS;
            const bool mine = rest && piece_width(rest) == widths[w];
            const uint32_t slot = pieces + sum_before(mine, &total);
            pieces += total;
            if (mine) piece[slot] = {e, first[e] + n - rest, rest, widths[w]};
        }
    if (threadIdx.x == 0) list->pieces = pieces;
}

/* place[] and slot_of[], each block of places in order: the warps take turns, and within one a place counts the equal ones before it. */
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_places(const uint32_t *expert, uint32_t places, uint32_t experts, const uint32_t *position, uint32_t *place, uint32_t *slot_of) {
    __shared__ uint32_t next[MAX_EXPERTS];
    for (uint32_t e = threadIdx.x; e < experts; e += SORT_THREADS) next[e] = position[(size_t)blockIdx.x * experts + e];
    const uint32_t p = blockIdx.x * SORT_THREADS + threadIdx.x, lane = threadIdx.x % 32;
    const uint32_t e = p < places ? expert[p] : UINT32_MAX, same = __match_any_sync(0xFFFFFFFFu, e);
    const uint32_t rank = __popc(same & ((1u << lane) - 1)), last = 31 - __clz(same);
    uint32_t slot = 0;
    for (uint32_t warp = 0; warp < SORT_THREADS / 32; warp++) {
        __syncthreads();
        if (threadIdx.x / 32 != warp) continue;
        if (p < places) slot = next[e] + rank;
        __syncwarp();
        if (p < places && lane == last) next[e] = slot + 1;
    }
    if (p >= places) return;
    place[slot] = p;
    slot_of[p] = slot;
}

void cuda_route_lists(const uint32_t *expert, uint32_t rows, uint32_t top_k, uint32_t experts, const cuda_expert_rows *lists,
                      cudaStream_t stream) {
    const uint32_t places = rows * top_k, blocks = sort_blocks(places);
    if (!places) return;
    uint32_t *counts = (uint32_t *)((uint8_t *)lists->blocks + counts_offset(experts, places));
    count_places<<<blocks, SORT_THREADS, 0, stream>>>(expert, places, experts, counts);
    list_pieces<<<1, SORT_THREADS, 0, stream>>>(blocks, experts, counts, lists->first, (gemm_pieces *)lists->blocks);
    sort_places<<<blocks, SORT_THREADS, 0, stream>>>(expert, places, experts, counts, lists->place, lists->slot_of);
}

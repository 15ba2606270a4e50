/* gdn_chunk.cu: the gated delta net over many rows in chunks of 32 (docs/model.md, "Chunked form"), four launches:
 *
 *   conv    convolution, SiLU and the norms of q and k → mixed [rows][channels]
 *   chunks  per chunk and key head: K Kᵀ and q Kᵀ, then per value head T = (I + A)⁻¹ diag(β) by forward substitution in float32, and
 *           P = L(q kᵀ e^{γ_i − γ_j}); all chunks at once
 *   scan    per value head and 32 of its values, chunk after chunk: V' = T (V − e^γ K S), o = e^γ q S + P V', S ← e^{γ_C} S + (e^{γ_C − γ} K)ᵀ V'
 *   gate    rmsnorm(o) · norm · silu(z) → f16
 *
 * T (V − e^γ K S) is U − W S of the paper with the subtraction done once, in float32, before the solve.
 *
 * Products are tf32 with float32 sums: operands are rounded to 11 bits (relative 2.4e-4), where bf16 would lose 2e-3.  The state itself
 * never leaves registers in the scan and is not rounded.  It is kept transposed, [values][keys], since then the sums of one product are
 * the A fragment of the next without any exchange: columns 2t and 2t + 1 of the sums serve as inner indices t and t + 4, and the B
 * fragments are read in the same order.
 *
 * 8,192 rows, 16 and 32 heads, on an H200: conv 0.20 ms, chunks 0.11, scan 0.42, gate 0.08 (88 % of the memory rate).  The scan is bound by
 * reads of shared memory (about 70 %) on one block a multiprocessor; heads times slices allow no more.
 *
 * Rows of the input stand 16-byte aligned: in_stride is a multiple of 4. */
#include "backend/cuda/gemm_ptx.cuh"
#include "backend/cuda/kernels.h"

enum { D = GDN_HEAD_DIM, CHUNK = 32, SLICE = 32 /* values of one block of the scan */ };

typedef struct gdn_chunk_scratch {
    float *mixed;  /* [rows][channels]: q and k normed and rounded, v; the scan puts o where v was */
    float *solve;  /* T [chunks][value heads][32][32] */
    float *within; /* P, alike */
    float *decay;  /* [chunks][value heads][2][32]: e^{γ}, e^{γ_C − γ} */
} gdn_chunk_scratch;

typedef struct gdn_chunk_job {
    cuda_gdn_weights w;
    const float *in; /* [rows][in_stride]: qkv | z | a | b */
    uint32_t in_stride, rows, channels, chunks;
    const float *conv_src, *state_src;
    float *conv_dst, *state_dst;
    uint16_t *out;
    gdn_chunk_scratch s;
} gdn_chunk_job;

static gdn_chunk_scratch gdn_chunk_views(void *scratch, uint32_t key_heads, uint32_t value_heads, uint32_t rows) {
    const uint64_t tiles = (uint64_t)(rows + CHUNK - 1) / CHUNK * value_heads;
    gdn_chunk_scratch s;
    s.mixed = (float *)scratch;
    s.solve = s.mixed + (uint64_t)rows * (2 * key_heads + value_heads) * D;
    s.within = s.solve + tiles * CHUNK * CHUNK;
    s.decay = s.within + tiles * CHUNK * CHUNK;
    return s;
}

uint64_t cuda_gdn_scratch_bytes(uint32_t key_heads, uint32_t value_heads, uint32_t max_rows) {
    const uint64_t tiles = (uint64_t)(max_rows + CHUNK - 1) / CHUNK * value_heads;
    return ((uint64_t)max_rows * (2 * key_heads + value_heads) * D + tiles * (2 * CHUNK * CHUNK + 2 * CHUNK)) * sizeof(float);
}

DEVICE float silu(float x) { return x / (1 + __expf(-x)); }

DEVICE float warp_sum(float x) {
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, d);
    return x;
}

/* ---- conv ---- */

enum { CONV_ROWS = 32, CONV_THREADS = 256 };

/* The input of the convolution at row t >= -3. */
DEVICE float4 conv_input(const gdn_chunk_job &job, int t, uint32_t channel) {
    if (t >= 0) return *(const float4 *)(job.in + (size_t)t * job.in_stride + channel);
    if (job.conv_src) return *(const float4 *)(job.conv_src + (size_t)(t + (int)CONV_HISTORY) * job.channels + channel);
    return make_float4(0, 0, 0, 0);
}

/* A warp makes one head (128 channels, four a lane) of 32 rows, and the last one the window for the next call. */
static __global__ void __launch_bounds__(CONV_THREADS) gdn_conv(const __grid_constant__ gdn_chunk_job job) {
    const uint32_t lane = threadIdx.x % 32, head = blockIdx.y * (CONV_THREADS / 32) + threadIdx.x / 32, channel = head * D + lane * 4;
    if (channel >= job.channels) return;
    const int first = (int)(blockIdx.x * CONV_ROWS), end = min(first + CONV_ROWS, (int)job.rows);
    float4 tap[4], x[4];
    for (int c = 0; c < 4; c++) tap[c] = *(const float4 *)(job.w.conv + (size_t)(channel + c) * CONV_WIDTH);
    for (int j = 0; j < 3; j++) x[j] = conv_input(job, first - 3 + j, channel);
#pragma unroll 4 /* eight rows in flight are slower: 253 µs against 201 for 8,192 rows */
    for (int t = first; t < end; t++) {
        x[3] = conv_input(job, t, channel);
        float4 y;
        y.x = silu(tap[0].x * x[0].x + tap[0].y * x[1].x + tap[0].z * x[2].x + tap[0].w * x[3].x);
        y.y = silu(tap[1].x * x[0].y + tap[1].y * x[1].y + tap[1].z * x[2].y + tap[1].w * x[3].y);
        y.z = silu(tap[2].x * x[0].z + tap[2].y * x[1].z + tap[2].z * x[2].z + tap[2].w * x[3].z);
        y.w = silu(tap[3].x * x[0].w + tap[3].y * x[1].w + tap[3].z * x[2].w + tap[3].w * x[3].w);
        if (head < 2 * job.w.key_heads) {
            const float sum = warp_sum(y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w);
            const float n = rsqrtf(sum + 1e-6f) * (head < job.w.key_heads ? 0.08838834764831845f /* 1/√128 */ : 1.f);
            y = make_float4(round_tf32(y.x * n), round_tf32(y.y * n), round_tf32(y.z * n), round_tf32(y.w * n));
        }
        *(float4 *)(job.s.mixed + (size_t)t * job.channels + channel) = y;
        x[0] = x[1], x[1] = x[2], x[2] = x[3];
    }
    if (end == (int)job.rows)
        for (int j = 0; j < 3; j++) *(float4 *)(job.conv_dst + (size_t)j * job.channels + channel) = conv_input(job, end - 3 + j, channel);
}

/* ---- chunks ---- */

enum { CHUNK_THREADS = 128, KEY_STRIDE = D + 4, GRAM_STRIDE = CHUNK + 4 };

struct chunk_shared {
    float key[CHUNK][KEY_STRIDE], query[CHUNK][KEY_STRIDE];
    float gram[2][CHUNK][GRAM_STRIDE];                   /* k_i · k_j, q_i · k_j */
    float lower[CHUNK_THREADS / 32][CHUNK][GRAM_STRIDE]; /* A, one value head a warp */
};

/* A value head of a chunk, one warp. */
DEVICE void chunk_solve(const gdn_chunk_job &job, chunk_shared &sm, uint32_t chunk, uint32_t head) {
    const uint32_t lane = threadIdx.x % 32, row = chunk * CHUNK + lane;
    const size_t tile = (size_t)chunk * job.w.value_heads + head;
    float(*lower)[GRAM_STRIDE] = sm.lower[threadIdx.x / 32];
    float gamma = 0, beta = 0; /* of this lane's row: sum of log α; rows behind the last do nothing */
    if (row < job.rows) {
        const float *a = job.in + (size_t)row * job.in_stride + job.channels + job.w.value_heads * D + head;
        const float x = a[0] + job.w.dt_bias[head];
        gamma = -job.w.decay[head] * (x > 20 ? x : log1pf(expf(x)));
        beta = 1 / (1 + expf(-a[job.w.value_heads]));
    }
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(0xFFFFFFFFu, gamma, d);
        if (lane >= d) gamma += before;
    }
    const float last = __shfl_sync(0xFFFFFFFFu, gamma, 31);
    job.s.decay[tile * 64 + lane] = expf(gamma);
    job.s.decay[tile * 64 + 32 + lane] = expf(last - gamma);
    float *within = job.s.within + tile * CHUNK * CHUNK, *solve = job.s.solve + tile * CHUNK * CHUNK;
    for (int i = 0; i < CHUNK; i++) { /* lane: column; masked before the exponential, which overflows above the diagonal */
        const float g = __shfl_sync(0xFFFFFFFFu, gamma, i), b = __shfl_sync(0xFFFFFFFFu, beta, i);
        const float e = lane <= (uint32_t)i ? expf(g - gamma) : 0;
        lower[i][lane] = lane < (uint32_t)i ? b * e * sm.gram[0][i][lane] : 0;
        within[i * CHUNK + lane] = round_tf32(e * sm.gram[1][i][lane]);
    }
    __syncwarp();
    float t[CHUNK]; /* column `lane` of (I + A)⁻¹ */
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float sum = lane == (uint32_t)i;
#pragma unroll
        for (int j = 0; j < i; j++) sum -= lower[i][j] * t[j];
        t[i] = sum;
        solve[i * CHUNK + lane] = round_tf32(sum * beta);
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(CHUNK_THREADS) gdn_chunks(const __grid_constant__ gdn_chunk_job job) {
    extern __shared__ __align__(16) uint8_t raw[];
    chunk_shared &sm = *(chunk_shared *)raw;
    const uint32_t chunk = blockIdx.x, key_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint32_t i = threadIdx.x; i < CHUNK * D / 4; i += CHUNK_THREADS) {
        const uint32_t r = i / (D / 4), c = i % (D / 4) * 4, row = chunk * CHUNK + r;
        const float *q = job.s.mixed + (size_t)min(row, job.rows - 1) * job.channels + key_head * D + c;
        copy_async(shared_address(&sm.query[r][c]), q, row < job.rows ? 16 : 0);
        copy_async(shared_address(&sm.key[r][c]), q + job.w.key_heads * D, row < job.rows ? 16 : 0);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    /* Warps 0 and 1: 16 rows each of k kᵀ; 2 and 3: of q kᵀ. */
    const float(*left)[KEY_STRIDE] = warp < 2 ? sm.key : sm.query;
    const uint32_t m = warp % 2 * 16 + g;
    float sum[CHUNK / 8][4] = {};
#pragma unroll 4
    for (uint32_t k = 0; k < D; k += 8) {
        const float a[4] = {left[m][k + t], left[m + 8][k + t], left[m][k + t + 4], left[m + 8][k + t + 4]};
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) mma_tf32(sum[n], a, sm.key[n * 8 + g][k + t], sm.key[n * 8 + g][k + t + 4]);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sm.gram[warp / 2][m + i / 2 * 8][n * 8 + t * 2 + i % 2] = sum[n][i];
    __syncthreads();
    const uint32_t per_key = job.w.value_heads / job.w.key_heads;
    for (uint32_t v = warp; v < per_key; v += CHUNK_THREADS / 32) chunk_solve(job, sm, chunk, key_head * per_key + v);
}

/* ---- scan ----
 *
 * Eight warps compute and four load.  A computing warp owns 16 of the block's 32 values and 32 keys of the transposed state; four warps
 * together hold all keys of their values, and add up their parts of K S and q S over shared memory. */

/* Strides that keep the fragments' reads free of bank conflicts: pairs (g, 2t) want 8 mod 32, single values (2t, g) 4 mod 16. */
enum { SCAN_COMPUTE = 256, SCAN_LOAD = 128, SCAN_KEY = D + 8, SCAN_SQUARE = CHUNK + 8, SCAN_VALUE = SLICE + 4 };

struct scan_stage { /* one chunk */
    float key[CHUNK][SCAN_KEY], query[CHUNK][SCAN_KEY];
    float solve[CHUNK][SCAN_SQUARE], within[CHUNK][SCAN_SQUARE];
    float value[CHUNK][SCAN_VALUE];
    float decay[2][CHUNK];
};
struct scan_shared {
    float4 part[2][4][8][32]; /* [values][keys][8 tokens of K S, then of q S][lane] */
    float4 right[2][4][32];   /* V − e^γ K S: [values][8 tokens][lane], as A fragments */
    scan_stage stage[1];      /* one to three */
};

/* Column c of row r of key[] and query[] stands at c ^ scan_twist(r): so rows 2t of one column are free of conflicts too. */
DEVICE uint32_t scan_twist(uint32_t row) { return row * 2 & 8; }

DEVICE void scan_load(const gdn_chunk_job &job, scan_stage &s, uint32_t chunk, uint32_t head, uint32_t slice) {
    const uint32_t thread = threadIdx.x - SCAN_COMPUTE, key_head = head / (job.w.value_heads / job.w.key_heads);
#pragma unroll 4
    for (uint32_t i = thread; i < CHUNK * D / 4; i += SCAN_LOAD) {
        const uint32_t r = i / (D / 4), c = i % (D / 4) * 4, row = chunk * CHUNK + r;
        const float *q = job.s.mixed + (size_t)min(row, job.rows - 1) * job.channels + key_head * D + c;
        copy_async(shared_address(&s.query[r][c ^ scan_twist(r)]), q, row < job.rows ? 16 : 0);
        copy_async(shared_address(&s.key[r][c ^ scan_twist(r)]), q + job.w.key_heads * D, row < job.rows ? 16 : 0);
    }
    const size_t tile = (size_t)chunk * job.w.value_heads + head;
    for (uint32_t i = thread; i < CHUNK * CHUNK / 4; i += SCAN_LOAD) {
        const uint32_t r = i / (CHUNK / 4), c = i % (CHUNK / 4) * 4, row = chunk * CHUNK + r;
        copy_async(shared_address(&s.solve[r][c]), job.s.solve + tile * CHUNK * CHUNK + i * 4);
        copy_async(shared_address(&s.within[r][c]), job.s.within + tile * CHUNK * CHUNK + i * 4);
        copy_async(shared_address(&s.value[r][c]),
                   job.s.mixed + (size_t)min(row, job.rows - 1) * job.channels + (2 * job.w.key_heads + head) * D + slice * SLICE + c,
                   row < job.rows ? 16 : 0);
    }
    if (thread < 16) copy_async(shared_address(&s.decay[0][0] + thread * 4), job.s.decay + tile * 64 + thread * 4);
}

/* Sums [16 rows][8 columns] as the A fragment of a product over these columns. */
DEVICE void as_operand(float a[4], const float c[4]) {
    a[0] = round_tf32(c[0]), a[1] = round_tf32(c[2]), a[2] = round_tf32(c[1]), a[3] = round_tf32(c[3]);
}

DEVICE void scan_chunk(const gdn_chunk_job &job, const scan_stage &s, scan_shared &sm, float (&state)[4][4], uint32_t chunk, uint32_t head,
                       uint32_t slice) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, part = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    const uint32_t keys = part * 32, tokens = part * 8 /* whose o this warp stores */, values = half * 16;
    float ks[4][4] = {}, qs[4][4] = {}, a[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        as_operand(a, state[k]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 key = *(const float2 *)&s.key[n * 8 + g][(keys + k * 8 + t * 2) ^ scan_twist(g)];
            const float2 query = *(const float2 *)&s.query[n * 8 + g][(keys + k * 8 + t * 2) ^ scan_twist(g)];
            mma_tf32(ks[n], a, key.x, key.y);
            mma_tf32(qs[n], a, query.x, query.y);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        sm.part[half][part][n][lane] = make_float4(ks[n][0], ks[n][1], ks[n][2], ks[n][3]);
        sm.part[half][part][4 + n][lane] = make_float4(qs[n][0], qs[n][1], qs[n][2], qs[n][3]);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory"); /* the four warps of these values */
    float4 k = {0, 0, 0, 0}, q = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float4 x = sm.part[half][j][part][lane], y = sm.part[half][j][4 + part][lane];
        k.x += x.x, k.y += x.y, k.z += x.z, k.w += x.w;
        q.x += y.x, q.y += y.y, q.z += y.z, q.w += y.w;
    }
    const float2 e = *(const float2 *)&s.decay[0][tokens + t * 2];
    const float *v = &s.value[tokens + t * 2][values + g];
    const float r[4] = {v[0] - e.x * k.x, v[SCAN_VALUE] - e.y * k.y, v[8] - e.x * k.z, v[SCAN_VALUE + 8] - e.y * k.w};
    float o[4] = {e.x * q.x, e.y * q.y, e.x * q.z, e.y * q.w};
    as_operand(a, r);
    sm.right[half][part][lane] = make_float4(a[0], a[1], a[2], a[3]);
    const float whole = s.decay[0][CHUNK - 1];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) state[n][i] *= whole;
    asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
    /* V' = T (V − e^γ K S), in each of the four warps */
    float vp[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float4 x = sm.right[half][j][lane];
        a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w;
#pragma unroll
        for (int n = j; n < 4; n++) { /* T is a lower triangle */
            const float2 b = *(const float2 *)&s.solve[n * 8 + g][j * 8 + t * 2];
            mma_tf32(vp[n], a, b.x, b.y);
        }
    }
    /* o += P V';  S ← e^{γ_C} S + (e^{γ_C − γ} K)ᵀ V' */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        as_operand(a, vp[j]);
        const float2 b = *(const float2 *)&s.within[tokens + g][j * 8 + t * 2];
        mma_tf32(o, a, b.x, b.y);
        const float2 f = *(const float2 *)&s.decay[1][j * 8 + t * 2];
        const float d[4] = {vp[j][0] * f.x, vp[j][1] * f.y, vp[j][2] * f.x, vp[j][3] * f.y};
        as_operand(a, d);
#pragma unroll
        for (int n = 0; n < 4; n++)
            mma_tf32(state[n], a, s.key[j * 8 + t * 2][(keys + n * 8 + g) ^ scan_twist(t * 2)],
                     s.key[j * 8 + t * 2 + 1][(keys + n * 8 + g) ^ scan_twist(t * 2)]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = chunk * CHUNK + tokens + t * 2 + i % 2;
        if (row < job.rows)
            job.s.mixed[(size_t)row * job.channels + (2 * job.w.key_heads + head) * D + slice * SLICE + values + g + i / 2 * 8] = o[i];
    }
}

/* stages: 3 or 2, where later chunks load during one, or 1 on devices with little shared memory.  One barrier a chunk says both that it
 * has come and that the one before is done. */
static __global__ void __launch_bounds__(SCAN_COMPUTE + SCAN_LOAD) gdn_scan(const __grid_constant__ gdn_chunk_job job, uint32_t stages) {
    extern __shared__ __align__(16) uint8_t raw[];
    scan_shared &sm = *(scan_shared *)raw;
    const uint32_t head = blockIdx.x / (D / SLICE), slice = blockIdx.x % (D / SLICE), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x >= SCAN_COMPUTE) {
        for (uint32_t i = 0; i + 1 < stages; i++) {
            if (i < job.chunks) scan_load(job, sm.stage[i], i, head, slice);
            copy_commit();
        }
        for (uint32_t chunk = 0; chunk < job.chunks; chunk++) {
            const uint32_t next = chunk + stages - 1;
            if (stages == 1) {
                __syncthreads();
                scan_load(job, sm.stage[0], chunk, head, slice);
                copy_commit();
            }
            if (stages == 3)
                copy_wait<1>();
            else
                copy_wait<0>();
            __syncthreads();
            if (stages == 1) continue;
            if (next < job.chunks) scan_load(job, sm.stage[next % stages], next, head, slice);
            copy_commit();
        }
        return;
    }
    /* state[n][i]: key 8n + 2t + i%2 of this warp's 32, value g + 8·(i/2) of its 16 */
    const size_t at = (size_t)head * D * D + (warp % 4 * 32 + lane % 4 * 2) * D + slice * SLICE + warp / 4 * 16 + lane / 4;
    float state[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) state[n][i] = job.state_src ? job.state_src[at + (n * 8 + i % 2) * D + i / 2 * 8] : 0;
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < job.chunks; chunk++) {
        if (stages == 1) __syncthreads();
        __syncthreads();
        scan_chunk(job, sm.stage[chunk % stages], sm, state, chunk, head, slice);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) job.state_dst[at + (n * 8 + i % 2) * D + i / 2 * 8] = state[n][i];
}

/* ---- gate ---- */

enum { GATE_THREADS = 256 };

/* A warp per row and head, four values a lane. */
static __global__ void __launch_bounds__(GATE_THREADS) gdn_gate(const __grid_constant__ gdn_chunk_job job) {
    const uint32_t lane = threadIdx.x % 32, V = job.w.value_heads, id = blockIdx.x * (GATE_THREADS / 32) + threadIdx.x / 32, head = id % V,
                   row = id / V;
    if (row >= job.rows) return;
    const float4 o = *(const float4 *)(job.s.mixed + (size_t)row * job.channels + (2 * job.w.key_heads + head) * D + lane * 4);
    const float4 z = *(const float4 *)(job.in + (size_t)row * job.in_stride + job.channels + head * D + lane * 4);
    const float4 w = *(const float4 *)(job.w.norm + lane * 4);
    const float n = rsqrtf(warp_sum(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w) / D + job.w.norm_eps);
    const uint2 y = {pack_f16(o.x * n * w.x * silu(z.x), o.y * n * w.y * silu(z.y)),
                     pack_f16(o.z * n * w.z * silu(z.z), o.w * n * w.w * silu(z.w))};
    *(uint2 *)(job.out + ((size_t)row * V + head) * D + lane * 4) = y;
}

void cuda_gdn_prefill(const cuda_gdn_weights *w, const float *in, uint32_t in_stride, uint32_t rows, const float *conv_src, float *conv_dst,
                      const float *state_src, float *state_dst, uint16_t *out, void *scratch, cudaStream_t stream) {
    if (!rows) return;
    const uint32_t heads = 2 * w->key_heads + w->value_heads, chunks = (rows + CHUNK - 1) / CHUNK;
    const gdn_chunk_job job = {*w,        in,        in_stride, rows,
                               heads * D, chunks,    conv_src,  state_src,
                               conv_dst,  state_dst, out,       gdn_chunk_views(scratch, w->key_heads, w->value_heads, rows)};
    int device = 0, limit = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    uint32_t stages = 3;
    while (stages > 1 && sizeof(scan_shared) + (stages - 1) * sizeof(scan_stage) > (size_t)limit) stages--;
    const size_t scan_bytes = sizeof(scan_shared) + (stages - 1) * sizeof(scan_stage);
    cudaFuncSetAttribute(gdn_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(chunk_shared));
    cudaFuncSetAttribute(gdn_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)scan_bytes);
    const uint32_t per_block = CONV_THREADS / 32;
    gdn_conv<<<dim3((rows + CONV_ROWS - 1) / CONV_ROWS, (heads + per_block - 1) / per_block), CONV_THREADS, 0, stream>>>(job);
    gdn_chunks<<<dim3(chunks, w->key_heads), CHUNK_THREADS, sizeof(chunk_shared), stream>>>(job);
    gdn_scan<<<w->value_heads *(D / SLICE), SCAN_COMPUTE + SCAN_LOAD, scan_bytes, stream>>>(job, stages);
    gdn_gate<<<(rows * w->value_heads + GATE_THREADS / 32 - 1) / (GATE_THREADS / 32), GATE_THREADS, 0, stream>>>(job);
}

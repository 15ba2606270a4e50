/* gdn_step.cu: the gated delta net, row after row (docs/model.md, "GDN mixer"), the state in registers between rows.
 *
 * A block owns a value head's 32 columns of the state, [128 keys][32 values] in 128 threads: thread (c = tid%8, l = tid/8) holds columns
 * 4c … 4c+3 of keys l, l + 16, …  kᵀS and qᵀS are formed in one pass over the state before its update, so rows cost two meetings:
 * u = β(v − α·kᵀS); o = α·qᵀS + (q·k)·u; S ← αS + k uᵀ. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/step.h"

namespace calla {

static_assert(GDN_HEAD_DIM / GDN_PARTS == WARP, "a warp has the columns of a part");
constexpr uint32_t D = GDN_HEAD_DIM, PARTS = GDN_PARTS, COLUMNS = D / PARTS, THREADS = D, KEY_LANES = 16, HELD = D / KEY_LANES;

/* One channel of the convolution: its taps, and the inputs before the current row. */
struct channel {
    float4 tap;
    float h0, h1, h2; /* oldest first */
    uint32_t at;

    __device__ void open(const float *taps, const float *window, uint32_t index, uint32_t channels) {
        at = index;
        tap = *reinterpret_cast<const float4 *>(taps + (size_t)index * CONV_WIDTH);
        h0 = window ? window[index] : 0.0f;
        h1 = window ? window[channels + index] : 0.0f;
        h2 = window ? window[2 * (size_t)channels + index] : 0.0f;
    }
    __device__ float next(float x) {
        const float y = tap.x * h0 + tap.y * h1 + tap.z * h2 + tap.w * x;
        h0 = h1, h1 = h2, h2 = x;
        return silu(y);
    }
    __device__ void close(float *window, uint32_t channels) const {
        window[at] = h0;
        window[channels + at] = h1;
        window[2 * (size_t)channels + at] = h2;
    }
};

struct alignas(16) row_share { /* of shared memory, one of two in turn */
    float q[D], k[D], v[COLUMNS];
    float norms[4][3];         /* per warp: Σq², Σk², Σqk */
    float dots[4][2][COLUMNS]; /* per warp: of kᵀS and qᵀS */
};

/* Block (value head · PARTS + part of its columns, segment). */
__global__ void __launch_bounds__(THREADS) gdn_step_kernel(const __grid_constant__ step_gdn a) {
    __shared__ row_share share[2];
    const uint32_t tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP, c = tid % 8, l = tid / 8;
    const uint32_t head = blockIdx.x / PARTS, part = blockIdx.x % PARTS, per_key = a.w.value_heads / a.w.key_heads,
                   key_head = head / per_key;
    const uint32_t keys = a.w.key_heads * D, values = a.w.value_heads * D, channels = 2 * keys + values;
    launch_dependents();
    if (blockIdx.y >= a.batch.counts->segments) return;
    const batch_segment seg = a.batch.segment[blockIdx.y];
    if (a.most_rows && seg.rows > a.most_rows) return;

    /* state and window are of an earlier step: they may come before this step's inputs */
    const size_t head_values = (size_t)D * D, state_values = (size_t)a.w.value_heads * head_values,
                 window_values = (size_t)CONV_HISTORY * channels;
    const bool fresh = seg.slot_src == NO_SLOT;
    const float *from = a.state + (fresh ? 0 : seg.slot_src) * state_values + head * head_values + part * COLUMNS + c * 4;
    const float *window = fresh ? nullptr : a.window + seg.slot_src * window_values;
    float4 s[HELD];
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++)
        s[i] = fresh ? make_float4(0, 0, 0, 0) : __ldcg(reinterpret_cast<const float4 *>(from + (size_t)(l + KEY_LANES * i) * D));
    channel q, k, v;
    q.open(a.w.conv, window, key_head * D + tid, channels);
    k.open(a.w.conv, window, keys + key_head * D + tid, channels);
    const bool has_v = tid < COLUMNS;
    v.open(a.w.conv, window, 2 * keys + head * D + part * COLUMNS + tid % COLUMNS, channels);
    const float decay = -a.w.decay[head], dt_bias = a.w.dt_bias[head], gain = a.w.norm[part * COLUMNS + tid % COLUMNS];
    const float *in = a.in + (size_t)seg.first_row * a.in_stride;
    float *out = a.out + (size_t)seg.first_row * a.out_stride + head * D + part * COLUMNS,
          *squares_out = a.squares ? a.squares + ((size_t)seg.first_row * a.w.value_heads + head) * PARTS + part : nullptr;
    have(in), have(out), have(squares_out);
    wait_inputs();

#pragma unroll 1
    for (uint32_t r = 0; r < seg.rows; r++, in += a.in_stride, out += a.out_stride) {
        row_share &h = share[r % 2];
        const float *gates = in + channels + values;
        /* all that is read of the row is asked for at once */
        const float in_q = __ldcg(in + q.at), in_k = __ldcg(in + k.at), in_v = __ldcg(in + v.at), in_a = __ldcg(gates + head),
                    in_b = __ldcg(gates + a.w.value_heads + head), z = __ldcg(in + channels + head * D + part * COLUMNS + tid % COLUMNS);
        const float x = q.next(in_q), y = k.next(in_k);
        h.q[tid] = x;
        h.k[tid] = y;
        if (has_v) h.v[tid] = v.next(in_v);
        const float xx = sum_lanes<32>(x * x), yy = sum_lanes<32>(y * y), xy = sum_lanes<32>(x * y);
        if (lane == 0) h.norms[warp][0] = xx, h.norms[warp][1] = yy, h.norms[warp][2] = xy;
        __syncthreads();
        const float alpha = expf(decay * softplus(in_a + dt_bias)), beta = sigmoid(in_b);
        float4 ks = make_float4(0, 0, 0, 0), qs = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            const float ki = h.k[l + KEY_LANES * i], qi = h.q[l + KEY_LANES * i];
            ks.x += ki * s[i].x, ks.y += ki * s[i].y, ks.z += ki * s[i].z, ks.w += ki * s[i].w;
            qs.x += qi * s[i].x, qs.y += qi * s[i].y, qs.z += qi * s[i].z, qs.w += qi * s[i].w;
        }
#pragma unroll
        for (int step = 8; step < 32; step *= 2) { /* over the warp's four key lanes */
            ks.x += __shfl_xor_sync(0xFFFFFFFFu, ks.x, step), ks.y += __shfl_xor_sync(0xFFFFFFFFu, ks.y, step);
            ks.z += __shfl_xor_sync(0xFFFFFFFFu, ks.z, step), ks.w += __shfl_xor_sync(0xFFFFFFFFu, ks.w, step);
            qs.x += __shfl_xor_sync(0xFFFFFFFFu, qs.x, step), qs.y += __shfl_xor_sync(0xFFFFFFFFu, qs.y, step);
            qs.z += __shfl_xor_sync(0xFFFFFFFFu, qs.z, step), qs.w += __shfl_xor_sync(0xFFFFFFFFu, qs.w, step);
        }
        if (lane < 8) {
            *reinterpret_cast<float4 *>(&h.dots[warp][0][c * 4]) = ks;
            *reinterpret_cast<float4 *>(&h.dots[warp][1][c * 4]) = qs;
        }
        __syncthreads();
        const float q_norm =
            rsqrtf(h.norms[0][0] + h.norms[1][0] + h.norms[2][0] + h.norms[3][0] + 1e-6f) * 0.08838834764831845f; /* 1/√128 */
        const float k_norm = rsqrtf(h.norms[0][1] + h.norms[1][1] + h.norms[2][1] + h.norms[3][1] + 1e-6f);
        const float qk = (h.norms[0][2] + h.norms[1][2] + h.norms[2][2] + h.norms[3][2]) * q_norm * k_norm;
        float u[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t col = c * 4 + j;
            const float kts = (h.dots[0][0][col] + h.dots[1][0][col] + h.dots[2][0][col] + h.dots[3][0][col]) * k_norm;
            u[j] = beta * (h.v[col] - alpha * kts);
        }
        if (has_v) {
            const uint32_t col = tid;
            const float kts = (h.dots[0][0][col] + h.dots[1][0][col] + h.dots[2][0][col] + h.dots[3][0][col]) * k_norm;
            const float qts = (h.dots[0][1][col] + h.dots[1][1][col] + h.dots[2][1][col] + h.dots[3][1][col]) * q_norm;
            float o = alpha * qts + qk * (beta * (h.v[col] - alpha * kts));
            if (squares_out) { /* the first warp's lanes have the part's columns */
                const float squares = sum_lanes<COLUMNS>(o * o);
                if (col == 0) squares_out[r * a.w.value_heads * PARTS] = squares;
                o *= gain * silu(z);
            }
            out[col] = o;
        }
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            const float ki = h.k[l + KEY_LANES * i] * k_norm;
            s[i].x = alpha * s[i].x + ki * u[0], s[i].y = alpha * s[i].y + ki * u[1];
            s[i].z = alpha * s[i].z + ki * u[2], s[i].w = alpha * s[i].w + ki * u[3];
        }
    }
    float *to = a.state + seg.slot_dst * state_values + head * head_values + part * COLUMNS + c * 4;
#pragma unroll
    for (uint32_t i = 0; i < HELD; i++) __stcg(reinterpret_cast<float4 *>(to + (size_t)(l + KEY_LANES * i) * D), s[i]);
    float *out_window = a.window + seg.slot_dst * window_values;
    if (has_v) v.close(out_window, channels);
    if (head % per_key == 0 && part == 0) { /* the key head's channels: one of its value heads' blocks */
        q.close(out_window, channels);
        k.close(out_window, channels);
    }
}

} // namespace calla

cudaError_t gdn_prepare(void) { return calla::share_most(calla::gdn_step_kernel); }

void step_run_gdn(const step_gdn *a, bool early, cudaStream_t stream) {
    using namespace calla;
    launch(gdn_step_kernel, dim3(a->w.value_heads * PARTS, a->segments), THREADS, 0, early, stream, *a);
}

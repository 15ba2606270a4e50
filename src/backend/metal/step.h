/* step.h: the core of every product of a few rows: rows of a matrix times rows of input, on single simdgroups.  Metal's language only.
 *
 * A chunk is 32 consecutive inputs: one lane's share of a row of weights at a time, 16 bytes of 4-bit codes, all in one group, so that
 * scale and bias are read once for it.  The 32 lanes of a simdgroup have neighbouring chunks: 512 bytes in a row.  A simdgroup computes
 * four rows of weights, which keeps four such reads on their way and serves four products with each input that is loaded; no threadgroup
 * memory and no barrier is needed, and lanes meet once, at the end, in simd_sum.
 *
 * Codes are not shifted but masked where they stand (float(w & 0xF0) is 16 times the code), and the scale makes up for it: multiplying by
 * powers of two is exact, so w = scale · code + bias has the value that ref gives it. */
#ifndef CALLA_BACKEND_METAL_STEP_H
#define CALLA_BACKEND_METAL_STEP_H

enum { STEP_OUTPUTS = 4 /* rows of weights of a simdgroup */, STEP_CHUNK = 32, STEP_WIDTH = 32 /* lanes of a simdgroup */ };

/* ---- weights ---- */

template <int BITS> struct matrix_row {
    device const uint8_t *codes;
    device const uint16_t *scales, *biases;
};

/* Row `row` of matrix `matrix`; beyond the last row it is that one, whose products the caller drops. */
template <int BITS> static matrix_row<BITS> row_of(constant metal_mat &m, uint matrix, uint row) {
    const ulong r = (ulong)matrix * m.rows + min(row, m.rows - 1);
    matrix_row<BITS> w;
    w.codes = m.codes + r * (m.cols / 8 * BITS);
    w.scales = m.scales + r * m.groups;
    w.biases = m.biases + r * m.groups;
    return w;
}

/* log2 of the chunks of a group. */
static inline uint group_shift(constant metal_mat &m) { return m.group == 128 ? 2 : m.group == 64 ? 1 : 0; }

template <int BITS> struct weight_chunk {
    uint4 codes[BITS / 4];
    float scale, bias;
};

template <int BITS> static void load_chunk(thread const matrix_row<BITS> &w, uint chunk, uint shift, thread weight_chunk<BITS> &c) {
    device const uint4 *from = (device const uint4 *)(w.codes + chunk * (4 * BITS));
#pragma unroll
    for (uint i = 0; i < BITS / 4; i++) c.codes[i] = from[i];
    if (BITS == 16) return;
    c.scale = bf16_to_float(w.scales[chunk >> shift]);
    c.bias = bf16_to_float(w.biases[chunk >> shift]);
}

/* Weights 4j … 4j + 3 of a chunk. */
static inline float4 weights_of(thread const weight_chunk<4> &c, uint j) {
    const uint4 masked = uint4(c.codes[0][j / 2] >> (16 * (j % 2))) & uint4(0xF, 0xF0, 0xF00, 0xF000);
    return float4(masked) * (float4(1.0f, 1.0f / 0x10, 1.0f / 0x100, 1.0f / 0x1000) * c.scale) + c.bias;
}
static inline float4 weights_of(thread const weight_chunk<8> &c, uint j) {
    const uint4 masked = uint4(c.codes[j / 4][j % 4]) & uint4(0xFF, 0xFF00, 0xFF0000, 0xFF000000);
    return float4(masked) * (float4(1.0f, 1.0f / 0x100, 1.0f / 0x10000, 1.0f / 0x1000000) * c.scale) + c.bias;
}
static inline float4 weights_of(thread const weight_chunk<16> &c, uint j) {
    const uint a = c.codes[j / 2][2 * (j % 2)], b = c.codes[j / 2][2 * (j % 2) + 1];
    return float4(bf16_low(a), bf16_high(a), bf16_low(b), bf16_high(b));
}

/* ---- inputs: up to ROWS rows as a product takes them ----
 *
 * Of the `set.rows` rows, has(r) says which take part in this lane's chunk.  begin is called with each chunk before its quads are taken, by
 * all lanes of the simdgroup, those that have no chunk too (`here` false).
 * quad gives inputs k … k + 3 of row r; factor, called by all lanes in the end, what the sums are to
 * be multiplied with. */

template <int ROWS> struct row_set {
    device const float *x;
    uint at[ROWS]; /* where each row begins */
    uint rows;

    void every_row(constant metal_input &in, uint n) {
        x = in.x;
        rows = n;
#pragma unroll
        for (uint r = 0; r < ROWS; r++) at[r] = r * in.x_stride;
    }
    float4 value(uint r, uint k) const { return *(device const float4 *)(x + at[r] + k); }
    /* Of one chunk. */
    float squares_of(uint r, uint chunk) const {
        float sum = 0;
#pragma unroll
        for (uint j = 0; j < STEP_CHUNK / 4; j++) {
            const float4 v = value(r, chunk * STEP_CHUNK + 4 * j);
            sum += dot(v, v);
        }
        return sum;
    }
};

template <int ROWS> struct plain_input {
    row_set<ROWS> set;

    bool has(uint r) const { return r < set.rows; }
    void begin(uint, bool) {}
    float4 quad(uint r, uint k) const { return set.value(r, k); }
    float factor(uint) const { return 1.0f; }
};

/* rmsnorm(x) · gain: 1 / rms is known when all inputs have been seen. */
template <int ROWS> struct norm_input {
    row_set<ROWS> set;
    device const float *gain;
    float squares[ROWS], eps;
    uint cols;
    bool counting; /* false once all inputs have been seen */

    void open(constant metal_input &in, uint n) {
        gain = in.gain;
        eps = in.eps;
        cols = n;
        counting = true;
#pragma unroll
        for (uint r = 0; r < ROWS; r++) squares[r] = 0;
    }
    bool has(uint r) const { return r < set.rows; }
    void begin(uint chunk, bool here) {
        if (!here || !counting) return;
#pragma unroll
        for (uint r = 0; r < ROWS; r++)
            if (has(r)) squares[r] += set.squares_of(r, chunk);
    }
    float4 quad(uint r, uint k) const { return set.value(r, k) * *(device const float4 *)(gain + k); }
    float factor(uint r) const { return rsqrt(simd_sum(squares[r]) / float(cols) + eps); }
};

/* Per 128 values rmsnorm(x) · gain · silu(gate): those of four neighbouring lanes. */
template <int ROWS> struct gated_norm_input {
    row_set<ROWS> set;
    device const float *gain, *gate;
    uint gate_stride;
    float scale[ROWS], eps;

    bool has(uint r) const { return r < set.rows; }
    void begin(uint chunk, bool here) {
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
            if (!has(r)) continue;
            float sum = here ? set.squares_of(r, chunk) : 0.0f;
            sum += simd_shuffle_xor(sum, 1);
            sum += simd_shuffle_xor(sum, 2);
            scale[r] = rsqrt(sum * (1.0f / 128.0f) + eps);
        }
    }
    float4 quad(uint r, uint k) const {
        const float4 z = *(device const float4 *)(gate + r * gate_stride + k), g = *(device const float4 *)(gain + k % 128);
        return set.value(r, k) * scale[r] * g * silu(z);
    }
    float factor(uint) const { return 1.0f; }
};

/* x · sigmoid(gate), the gate of value i of head h at 512·h + i. */
template <int ROWS> struct gated_input {
    row_set<ROWS> set;
    device const float *gate;
    uint gate_stride;

    bool has(uint r) const { return r < set.rows; }
    void begin(uint, bool) {}
    float4 quad(uint r, uint k) const {
        return set.value(r, k) * sigmoid(*(device const float4 *)(gate + r * gate_stride + k / 256 * 512 + k % 256));
    }
    float factor(uint) const { return 1.0f; }
};

/* ---- products ---- */

template <int ROWS> struct row_sums {
    float4 row[ROWS]; /* [r][o] */

    row_sums() {
#pragma unroll
        for (uint r = 0; r < ROWS; r++) row[r] = float4(0.0f);
    }
};

/* acc[r][o] += w[o] · row r, over one chunk of this lane. */
template <int BITS, int ROWS, class IN>
static void chunk_times(thread const weight_chunk<BITS> (&w)[STEP_OUTPUTS], uint chunk, thread const IN &in, thread row_sums<ROWS> &acc) {
#pragma unroll
    for (uint j = 0; j < STEP_CHUNK / 4; j++) {
        const float4 w0 = weights_of(w[0], j), w1 = weights_of(w[1], j), w2 = weights_of(w[2], j), w3 = weights_of(w[3], j);
#pragma unroll
        for (uint r = 0; r < ROWS; r++) {
            if (!in.has(r)) continue;
            const float4 x = in.quad(r, chunk * STEP_CHUNK + 4 * j);
            acc.row[r] += float4(dot(w0, x), dot(w1, x), dot(w2, x), dot(w3, x));
        }
    }
}

/* acc[r][o] += this lane's part of w[o] · row r, over all inputs. */
template <int BITS, int ROWS, class IN>
static void rows_times(thread const matrix_row<BITS> (&w)[STEP_OUTPUTS], uint cols, uint shift, uint lane, thread IN &in,
                       thread row_sums<ROWS> &acc) {
    const uint chunks = cols / STEP_CHUNK;
    for (uint first = 0; first < chunks; first += STEP_WIDTH) {
        const uint chunk = first + lane;
        const bool here = chunk < chunks;
        weight_chunk<BITS> c[STEP_OUTPUTS];
        if (here) {
#pragma unroll
            for (uint o = 0; o < STEP_OUTPUTS; o++) load_chunk(w[o], chunk, shift, c[o]);
        }
        in.begin(chunk, here);
        if (here) chunk_times<BITS, ROWS>(c, chunk, in, acc);
    }
}

static inline float component(float4 v, uint i) { return i & 2 ? (i & 1 ? v.w : v.z) : (i & 1 ? v.y : v.x); }

/* The sums over the lanes: to lane 4·r + o that of row r and output o. */
template <int ROWS, class IN> static float sums_of(thread const row_sums<ROWS> &acc, thread const IN &in, uint lane) {
    float mine = 0;
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        if (r >= in.set.rows) continue;
        const float4 sum = simd_sum(acc.row[r]) * in.factor(r);
        if (lane / STEP_OUTPUTS == r) mine = component(sum, lane % STEP_OUTPUTS);
    }
    return mine;
}

/* Rows of gate and of up side by side: outputs first, first + 1 of either. */
template <int BITS>
static void pair_rows(constant metal_mat &gate, constant metal_mat &up, uint matrix, uint first,
                      thread matrix_row<BITS> (&w)[STEP_OUTPUTS]) {
    w[0] = row_of<BITS>(gate, matrix, first);
    w[1] = row_of<BITS>(gate, matrix, first + 1);
    w[2] = row_of<BITS>(up, matrix, first);
    w[3] = row_of<BITS>(up, matrix, first + 1);
}

/* Of such sums: to lanes 4·r and 4·r + 1 silu(gate) · up of row r. */
static inline float swiglu_of(float sum) { return silu(sum) * simd_shuffle_xor(sum, 2); }

#endif

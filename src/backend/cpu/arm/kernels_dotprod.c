/* kernels_dotprod.c: Armv8.2 dot products: 16 products of bytes an instruction, compiled with just that flag.
 *
 * One to four rows: each output's groups against the rows.
 * More rows: 16 outputs × 4 rows, 16 sums in registers.  Four outputs are transposed so that lane j holds four inputs of output j; four
 * bytes of a row, one lane of its register, multiply all of them: 64 instructions for 20 loads. */
#include "backend/cpu/arm/q8.h"

/* Group by group: scale = largest / 127, rounded to nearest. */
void dotprod_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q8 += CPU_GROUP) {
        float32x4_t v[16], most = vdupq_n_f32(0);
        for (uint32_t k = 0; k < 8; k++) {
            const float32x4x2_t pair = vld2q_f32(x + 8 * k); /* evens, odds */
            v[k] = pair.val[0];
            v[8 + k] = pair.val[1];
            most = vmaxq_f32(most, vmaxq_f32(vabsq_f32(v[k]), vabsq_f32(v[8 + k])));
        }
        const float largest = vmaxvq_f32(most), inverse = largest > 0 ? 127 / largest : 0;
        int32x4_t total = vdupq_n_s32(0);
        for (uint32_t j = 0; j < 16; j += 4) {
            int32x4_t q[4];
            for (uint32_t l = 0; l < 4; l++) q[l] = vcvtnq_s32_f32(vmulq_n_f32(v[j + l], inverse));
            const int16x8_t a = vqmovn_high_s32(vqmovn_s32(q[0]), q[1]), b = vqmovn_high_s32(vqmovn_s32(q[2]), q[3]);
            const int8x16_t bytes = vqmovn_high_s16(vqmovn_s16(a), b);
            vst1q_s8(q8 + 4 * j, bytes);
            total = vpadalq_s16(total, vpaddlq_s8(bytes));
        }
        scale[g] = largest / 127;
        sum[g] = scale[g] * (float)vaddvq_s32(total);
    }
}

static inline float32x4_t load_some(const float *p, uint32_t some) {
    float t[4] = {0};
    if (some == 4) return vld1q_f32(p);
    memcpy(t, p, some * sizeof *t);
    return vld1q_f32(t);
}

static inline float32x4_t load_some_bf16(const uint8_t *p, uint32_t some) {
    uint8_t t[8] = {0};
    memcpy(t, p, some * 2);
    return neon_bf16_low(vreinterpretq_u16_u8(vcombine_u8(vld1_u8(t), vdup_n_u8(0))));
}

/* `some` ≤ 4 groups of one output against n rows.  Two sums a row, since an addition takes up to four cycles. */
static inline __attribute__((always_inline)) void gemv_groups(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases,
                                                              uint32_t g, uint32_t some, const cpu_q8_row *x, uint32_t n,
                                                              float32x4_t (*total)[2]) {
    float scale[Q8_ROWS][4];
    const float32x4_t s = load_some_bf16(scales + 2 * (size_t)g, some), bias = load_some_bf16(biases + 2 * (size_t)g, some);
    for (uint32_t i = 0; i < n; i++) {
        vst1q_f32(scale[i], vmulq_f32(s, load_some(x[i].scale + g, some)));
        total[i][1] = vfmaq_f32(total[i][1], bias, load_some(x[i].sum + g, some));
    }
    codes += (size_t)g * CPU_GROUP / 2;
    for (uint32_t h = 0; h < some; h++, codes += CPU_GROUP / 2) {
        int8x16_t w[Q8_CHUNKS];
        q8_codes64(codes, w);
        for (uint32_t i = 0; i < n; i++) {
            const int8_t *q8 = x[i].q8 + (size_t)(g + h) * CPU_GROUP;
            int32x4_t d = vdupq_n_s32(0);
            for (uint32_t c = 0; c < Q8_CHUNKS; c++) d = vdotq_s32(d, w[c], vld1q_s8(q8 + 16 * c));
            total[i][h % 2] = vfmaq_n_f32(total[i][h % 2], vcvtq_f32_s32(d), scale[i][h]);
        }
    }
}

/* One output, n ≤ 4 rows. */
static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups,
                                                       const cpu_q8_row *x, uint32_t n, float *acc) {
    float32x4_t total[Q8_ROWS][2];
    for (uint32_t i = 0; i < n; i++) total[i][0] = total[i][1] = vdupq_n_f32(0);
    uint32_t g = 0;
    for (; g + 4 <= groups; g += 4) gemv_groups(codes, scales, biases, g, 4, x, n, total);
    if (g < groups) gemv_groups(codes, scales, biases, g, groups - g, x, n, total);
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_WIDE] = vaddvq_f32(vaddq_f32(total[i][0], total[i][1]));
}

void dotprod_linear_few(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, float *acc) {
    const uint64_t row_bytes = weight_row_bytes(m), row = (uint64_t)which * m->rows + first;
    const uint32_t groups = (uint32_t)weight_row_groups(m);
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * groups * 2, *biases = m->biases + row * groups * 2;
    cpu_q8_row rows[Q8_ROWS];
    for (uint32_t i = 0; i < n; i++) rows[i] = cpu_q8_row_of(x, list, i);
    for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += groups * 2, biases += groups * 2, acc++) {
        if (n == 1)
            gemv(codes, scales, biases, groups, rows, 1, acc);
        else if (n == 2)
            gemv(codes, scales, biases, groups, rows, 2, acc);
        else if (n == 3)
            gemv(codes, scales, biases, groups, rows, 3, acc);
        else
            gemv(codes, scales, biases, groups, rows, 4, acc);
    }
}

/* out[i] lane j = in[j] lane i, for 4 × 4 lanes of four bytes */
static inline void transpose4(const int8x16_t in[4], int8x16_t out[4]) {
    int32x4_t r[4];
    for (uint32_t j = 0; j < 4; j++) r[j] = vreinterpretq_s32_s8(in[j]);
    const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(r[0], r[1])), b = vreinterpretq_s64_s32(vtrn2q_s32(r[0], r[1]));
    const int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(r[2], r[3])), d = vreinterpretq_s64_s32(vtrn2q_s32(r[2], r[3]));
    out[0] = vreinterpretq_s8_s64(vtrn1q_s64(a, c));
    out[1] = vreinterpretq_s8_s64(vtrn1q_s64(b, d));
    out[2] = vreinterpretq_s8_s64(vtrn2q_s64(a, c));
    out[3] = vreinterpretq_s8_s64(vtrn2q_s64(b, d));
}

static inline void dot_tile(const q8_panel *p, const int8_t *const x[Q8_ROWS], int32x4_t sums[Q8_ROWS][CPU_PANEL / 4]) {
    int32x4_t s[Q8_ROWS][CPU_PANEL / 4];
    for (uint32_t r = 0; r < Q8_ROWS; r++)
        for (uint32_t q = 0; q < CPU_PANEL / 4; q++) s[r][q] = vdupq_n_s32(0);
    for (uint32_t c = 0; c < Q8_CHUNKS; c++) {
        int8x16_t xi[Q8_ROWS];
        for (uint32_t r = 0; r < Q8_ROWS; r++) xi[r] = vld1q_s8(x[r] + 16 * c);
        for (uint32_t q = 0; q < CPU_PANEL / 4; q++) {
            const int8x16_t *w = p->w[c][q];
            for (uint32_t r = 0; r < Q8_ROWS; r++) {
                s[r][q] = vdotq_laneq_s32(s[r][q], w[0], xi[r], 0);
                s[r][q] = vdotq_laneq_s32(s[r][q], w[1], xi[r], 1);
                s[r][q] = vdotq_laneq_s32(s[r][q], w[2], xi[r], 2);
                s[r][q] = vdotq_laneq_s32(s[r][q], w[3], xi[r], 3);
            }
        }
    }
    memcpy(sums, s, sizeof s);
}

static void linear_dotprod(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                           uint32_t n, bool q8, const cpu_ahead *ahead, float *acc) {
    if (!q8)
        neon_linear_f32(m, which, first, count, x, list, n, q8, ahead, acc);
    else if (n <= Q8_ROWS)
        dotprod_linear_few(m, which, first, count, x, list, n, acc);
    else
        q8_linear_many(m, which, first, count, x, list, n, acc, transpose4, dot_tile);
}

static const cpu_peak peak = {.f32 = &neon_peak_f32, .i8 = &dotprod_peak_i8};

const cpu_kernels cpu_kernels_dotprod = {
    .name = "dotprod",
    .peak = &peak,
    .has_q8 = true,
    .linear = linear_dotprod,
    .prepare_q8 = dotprod_prepare_q8,
    NEON_COMMON,
};

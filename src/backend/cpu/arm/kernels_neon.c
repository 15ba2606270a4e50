/* kernels_neon.c: matrices with the NEON that every 64-bit Arm has, in float32.
 *
 * linear: a code 0 … 15 is exact in bf16, so two table look-ups give the bytes of 16 codes as bf16 and zips make floats of them: 36
 * instructions for a group of 64 where widening and converting takes 44.  Four outputs are widened into a buffer of 1,024 inputs (16 KB,
 * in L1) and multiplied with four rows at a time: 16 sums, four rows and one weight in 21 of the 32 registers, two additions for each
 * load.  One to four rows skip the buffer. */
#include <string.h>

#include "backend/cpu/arm/neon.h"

enum { BLOCK = 1024 /* inputs widened at a time */, OUTPUTS = 4, ROWS = 4, GROUP_REGISTERS = CPU_GROUP / 4 };

/* 16 numbers 0 … 15 → 16 floats in order */
static inline void floats16(uint8x16_t c, float32x4_t w[4]) {
    static const uint8_t low_bytes[16] = {0, 0x80, 0, 0x40, 0x80, 0xA0, 0xC0, 0xE0, 0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70},
                         high_bytes[16] = {0, 0x3F, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41};
    const uint8x16_t low = vqtbl1q_u8(vld1q_u8(low_bytes), c), high = vqtbl1q_u8(vld1q_u8(high_bytes), c);
    const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(low, high)), b = vreinterpretq_u16_u8(vzip2q_u8(low, high));
    w[0] = neon_bf16_low(a);
    w[1] = neon_bf16_high(a);
    w[2] = neon_bf16_low(b);
    w[3] = neon_bf16_high(b);
}

/* The 32 bytes of a group → 64 floats in the order of cpu_x */
static inline void codes64(const uint8_t *p, float32x4_t w[GROUP_REGISTERS]) {
    const uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16), mask = vdupq_n_u8(15);
    floats16(vandq_u8(a, mask), w);
    floats16(vandq_u8(b, mask), w + 4);
    floats16(vshrq_n_u8(a, 4), w + 8);
    floats16(vshrq_n_u8(b, 4), w + 12);
}

/* One output, n ≤ 4 rows: codes straight into the sums, the scale once a group. */
static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups,
                                                       const float *const *x, const float *const *sums, uint32_t n, float *acc) {
    float32x4_t total[ROWS];
    float bias_part[ROWS] = {0};
    for (uint32_t i = 0; i < n; i++) total[i] = vdupq_n_f32(0);
    for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2) {
        float32x4_t w[GROUP_REGISTERS];
        codes64(codes, w);
        const float scale = load_bf16(scales + 2 * (size_t)g), bias = load_bf16(biases + 2 * (size_t)g);
        for (uint32_t i = 0; i < n; i++) {
            const float *xi = x[i] + (size_t)g * CPU_GROUP;
            float32x4_t s[4];
            for (uint32_t j = 0; j < 4; j++) s[j] = vmulq_f32(w[j], vld1q_f32(xi + 4 * j));
            for (uint32_t j = 4; j < GROUP_REGISTERS; j++) s[j % 4] = vfmaq_f32(s[j % 4], w[j], vld1q_f32(xi + 4 * j));
            total[i] = vfmaq_n_f32(total[i], vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])), scale);
            bias_part[i] += bias * sums[i][g];
        }
    }
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_WIDE] = vaddvq_f32(total[i]) + bias_part[i];
}

/* Widens groups of one output, in the order of cpu_x. */
static void widen(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups, float *out) {
    for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2, out += CPU_GROUP) {
        const float scale = load_bf16(scales + 2 * (size_t)g);
        const float32x4_t bias = vdupq_n_f32(load_bf16(biases + 2 * (size_t)g));
        float32x4_t w[GROUP_REGISTERS];
        codes64(codes, w);
        for (uint32_t j = 0; j < GROUP_REGISTERS; j++) vst1q_f32(out + 4 * j, vfmaq_n_f32(bias, w[j], scale));
    }
}

/* acc[i][0 … 3] += four outputs × `rows` ≤ 4 rows of cols inputs */
static inline void tile(const float *w, const float *const *x, uint32_t rows, uint32_t cols, float *const *acc) {
    float32x4_t s[ROWS][OUTPUTS];
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t o = 0; o < OUTPUTS; o++) s[i][o] = vdupq_n_f32(0);
    for (uint32_t k = 0; k < cols; k += 4) {
        float32x4_t xi[ROWS];
        for (uint32_t i = 0; i < ROWS; i++) xi[i] = vld1q_f32(x[i] + k);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            const float32x4_t wo = vld1q_f32(w + o * BLOCK + k);
            for (uint32_t i = 0; i < ROWS; i++) s[i][o] = vfmaq_f32(s[i][o], wo, xi[i]);
        }
    }
    for (uint32_t i = 0; i < rows; i++) vst1q_f32(acc[i], vaddq_f32(vld1q_f32(acc[i]), neon_sums(s[i])));
}

/* All rows against four widened outputs from input k on; acc: [n][64] from the first of the four on. */
static void block_rows(const float *w, const cpu_x *x, const uint32_t *list, uint32_t n, uint32_t k, uint32_t cols, float *acc) {
    for (uint32_t i = 0; i < n; i += ROWS) {
        const uint32_t rows = n - i < ROWS ? n - i : ROWS;
        const float *xs[ROWS];
        float *sums[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t at = i + (r < rows ? r : 0); /* rows past the last are computed and not used */
            xs[r] = x->f32 + (size_t)(list ? list[at] : at) * x->cols + k;
            sums[r] = acc + (size_t)at * CPU_WIDE;
        }
        tile(w, xs, rows, cols, sums);
    }
}

static void linear_few(const weight_mat *m, const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t count,
                       const cpu_x *x, const uint32_t *list, uint32_t n, float *acc) {
    const uint64_t row_bytes = weight_row_bytes(m);
    const uint32_t groups = (uint32_t)weight_row_groups(m);
    const float *rows[ROWS], *sums[ROWS];
    for (uint32_t i = 0; i < n; i++) {
        const size_t r = list ? list[i] : i;
        rows[i] = x->f32 + r * x->cols;
        sums[i] = x->sum + r * x->groups;
    }
    for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += groups * 2, biases += groups * 2, acc++) {
        if (n == 1)
            gemv(codes, scales, biases, groups, rows, sums, 1, acc);
        else if (n == 2)
            gemv(codes, scales, biases, groups, rows, sums, 2, acc);
        else if (n == 3)
            gemv(codes, scales, biases, groups, rows, sums, 3, acc);
        else
            gemv(codes, scales, biases, groups, rows, sums, 4, acc);
    }
}

void neon_linear_f32(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                     bool q8, const cpu_ahead *ahead, float *acc) {
    (void)q8, (void)ahead;
    const uint64_t row_bytes = weight_row_bytes(m), groups = weight_row_groups(m), row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * groups * 2, *biases = m->biases + row * groups * 2;
    if (n <= ROWS) {
        linear_few(m, codes, scales, biases, count, x, list, n, acc);
        return;
    }
    cpu_clear(acc, n, count);
    float w[OUTPUTS * BLOCK];
    for (uint32_t j = 0; j < count; j += OUTPUTS)
        for (uint32_t k = 0; k < m->cols; k += BLOCK) {
            const uint32_t cols = m->cols - k < BLOCK ? m->cols - k : BLOCK, g = k / CPU_GROUP;
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                const uint64_t at = j + o < count ? j + o : j; /* outputs past the last are computed and not used */
                widen(codes + at * row_bytes + k / 2, scales + (at * groups + g) * 2, biases + (at * groups + g) * 2, cols / CPU_GROUP,
                      w + o * BLOCK);
            }
            block_rows(w, x, list, n, k, cols, acc + j);
        }
}

float neon_dot(const float *a, const float *b, uint32_t n) {
    float32x4_t s[4];
    for (uint32_t j = 0; j < 4; j++) s[j] = vdupq_n_f32(0);
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (uint32_t j = 0; j < 4; j++) s[j] = vfmaq_f32(s[j], vld1q_f32(a + k + 4 * j), vld1q_f32(b + k + 4 * j));
    for (; k + 4 <= n; k += 4) s[0] = vfmaq_f32(s[0], vld1q_f32(a + k), vld1q_f32(b + k));
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

/* 16 codes of any size → scale · code + bias */
static inline void store16(float *out, uint8x16_t c, float scale, float32x4_t bias) {
    const uint16x8_t a = vmovl_u8(vget_low_u8(c)), b = vmovl_high_u8(c);
    vst1q_f32(out, vfmaq_n_f32(bias, vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))), scale));
    vst1q_f32(out + 4, vfmaq_n_f32(bias, vcvtq_f32_u32(vmovl_high_u16(a)), scale));
    vst1q_f32(out + 8, vfmaq_n_f32(bias, vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))), scale));
    vst1q_f32(out + 12, vfmaq_n_f32(bias, vcvtq_f32_u32(vmovl_high_u16(b)), scale));
}

void neon_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out) {
    const uint64_t index = (uint64_t)which * m->rows + row, groups = weight_row_groups(m);
    const uint8_t *codes = m->codes + index * weight_row_bytes(m);
    if (m->bits == 16) {
        uint32_t k = 0;
        for (; k + 8 <= m->cols; k += 8) {
            const uint16x8_t v = neon_load_u16(codes + 2 * (size_t)k);
            vst1q_f32(out + k, neon_bf16_low(v));
            vst1q_f32(out + k + 4, neon_bf16_high(v));
        }
        for (; k < m->cols; k++) out[k] = load_bf16(codes + 2 * (size_t)k);
        return;
    }
    for (uint64_t g = 0; g < groups; g++) {
        const float scale = load_bf16(m->scales + (index * groups + g) * 2);
        const float32x4_t bias = vdupq_n_f32(load_bf16(m->biases + (index * groups + g) * 2));
        for (uint32_t i = 0; i < m->group; i += 32, out += 32) {
            const uint8x16_t c = vld1q_u8(codes);
            codes += 16;
            if (m->bits == 8) {
                store16(out, c, scale, bias);
                store16(out + 16, vld1q_u8(codes), scale, bias);
                codes += 16;
            } else {
                const uint8x16_t even = vandq_u8(c, vdupq_n_u8(15)), odd = vshrq_n_u8(c, 4);
                store16(out, vzip1q_u8(even, odd), scale, bias);
                store16(out + 16, vzip2q_u8(even, odd), scale, bias);
            }
        }
    }
}

void neon_prepare_f32(const float *x, uint32_t cols, float *f32, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, f32 += CPU_GROUP) {
        float32x4_t total = vdupq_n_f32(0);
        for (uint32_t k = 0; k < CPU_GROUP / 8; k++) {
            const float32x4x2_t v = vld2q_f32(x + 8 * k); /* evens, odds */
            vst1q_f32(f32 + 4 * k, v.val[0]);
            vst1q_f32(f32 + CPU_GROUP / 2 + 4 * k, v.val[1]);
            total = vaddq_f32(total, vaddq_f32(v.val[0], v.val[1]));
        }
        sum[g] = vaddvq_f32(total);
    }
}

static const cpu_peak peak = {.f32 = &neon_peak_f32};

const cpu_kernels cpu_kernels_neon = {.name = "neon", .peak = &peak, .has_q8 = false, .linear = neon_linear_f32, NEON_COMMON};

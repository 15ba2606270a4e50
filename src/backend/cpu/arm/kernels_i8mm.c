/* kernels_i8mm.c: Armv8.6 matrix products of bytes: 2 × 8 times 8 × 2, 32 products an instruction, compiled with just that flag.
 *
 * One to four rows go to the dot products: they wait for memory, not for arithmetic.
 * More rows: 16 outputs × 4 rows, 16 sums of 2 × 2 in registers: 32 products of matrices for 20 loads and 4 zips. */
#include "backend/cpu/arm/q8.h"

enum { PAIRS = Q8_ROWS / 2 };

static inline int8x16_t low_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
static inline int8x16_t high_halves(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

/* Pairs of outputs, eight inputs of each side by side */
static inline void pack_pairs(const int8x16_t in[4], int8x16_t out[4]) {
    out[0] = low_halves(in[0], in[1]);
    out[1] = high_halves(in[0], in[1]);
    out[2] = low_halves(in[2], in[3]);
    out[3] = high_halves(in[2], in[3]);
}

static inline void mm_tile(const q8_panel *p, const int8_t *const x[Q8_ROWS], int32x4_t sums[Q8_ROWS][CPU_PANEL / 4]) {
    int32x4_t s[PAIRS][CPU_PANEL / 4][2]; /* [pair of rows][four outputs][which two of them]: row 0 of both, then row 1 */
    for (uint32_t r = 0; r < PAIRS; r++)
        for (uint32_t q = 0; q < CPU_PANEL / 4; q++) s[r][q][0] = s[r][q][1] = vdupq_n_s32(0);
    for (uint32_t c = 0; c < Q8_CHUNKS; c++) {
        int8x16_t low[PAIRS], high[PAIRS];
        for (uint32_t r = 0; r < PAIRS; r++) {
            const int8x16_t a = vld1q_s8(x[2 * r] + 16 * c), b = vld1q_s8(x[2 * r + 1] + 16 * c);
            low[r] = low_halves(a, b);
            high[r] = high_halves(a, b);
        }
        for (uint32_t q = 0; q < CPU_PANEL / 4; q++)
            for (uint32_t o = 0; o < 2; o++) {
                const int8x16_t w_low = p->w[c][q][2 * o], w_high = p->w[c][q][2 * o + 1];
                for (uint32_t r = 0; r < PAIRS; r++) s[r][q][o] = vmmlaq_s32(vmmlaq_s32(s[r][q][o], low[r], w_low), high[r], w_high);
            }
    }
    for (uint32_t r = 0; r < PAIRS; r++)
        for (uint32_t q = 0; q < CPU_PANEL / 4; q++) {
            const int64x2_t a = vreinterpretq_s64_s32(s[r][q][0]), b = vreinterpretq_s64_s32(s[r][q][1]);
            sums[2 * r][q] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
            sums[2 * r + 1][q] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
        }
}

static void linear_i8mm(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, bool q8, const cpu_ahead *ahead, float *acc) {
    if (!q8)
        neon_linear_f32(m, which, first, count, x, list, n, q8, ahead, acc);
    else if (n <= Q8_ROWS)
        dotprod_linear_few(m, which, first, count, x, list, n, acc);
    else
        q8_linear_many(m, which, first, count, x, list, n, acc, pack_pairs, mm_tile);
}

static const cpu_peak peak = {.f32 = &neon_peak_f32, .i8 = &i8mm_peak_i8};

const cpu_kernels cpu_kernels_i8mm = {
    .name = "i8mm",
    .peak = &peak,
    .has_q8 = true,
    .linear = linear_i8mm,
    .prepare_q8 = dotprod_prepare_q8,
    NEON_COMMON,
};

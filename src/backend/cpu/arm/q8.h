/* q8.h: 4-bit codes times 8-bit activations: what the dotprod and the i8mm table share.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.  Codes 0 … 15 fit into signed bytes, so that the signed
 * instructions do.  The 32 bytes of a group's codes become 64 by a mask and a shift: low nibbles, high nibbles, the order of cpu_x. */
#ifndef CALLA_BACKEND_CPU_NEON_Q8_H
#define CALLA_BACKEND_CPU_NEON_Q8_H

#include <string.h>

#include "backend/cpu/arm/neon.h"

enum {
    Q8_ROWS = 4,  /* of activations, in one tile */
    Q8_CHUNKS = 4 /* of 16 inputs in a group */
};

static inline void q8_codes64(const uint8_t *p, int8x16_t w[Q8_CHUNKS]) {
    const uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16), mask = vdupq_n_u8(15);
    w[0] = vreinterpretq_s8_u8(vandq_u8(a, mask));
    w[1] = vreinterpretq_s8_u8(vandq_u8(b, mask));
    w[2] = vreinterpretq_s8_u8(vshrq_n_u8(a, 4));
    w[3] = vreinterpretq_s8_u8(vshrq_n_u8(b, 4));
}

/* One group of 16 outputs, packed: w[chunk][q] holds outputs 4q … 4q + 3 as the tile wants them. */
typedef struct q8_panel {
    int8x16_t w[Q8_CHUNKS][CPU_PANEL / 4][4];
    float32x4_t scale[CPU_PANEL / 4], bias[CPU_PANEL / 4];
} q8_panel;

/* One chunk of four outputs → the four registers that hold them in the tile's order */
typedef void (*q8_pack_fn)(const int8x16_t in[4], int8x16_t out[4]);
/* sums[r][q] lane j = Σ over the group of code[4q + j] · x[r] */
typedef void (*q8_tile_fn)(const q8_panel *p, const int8_t *const x[Q8_ROWS], int32x4_t sums[Q8_ROWS][CPU_PANEL / 4]);

/* Four numbers, bf16, at a stride; 0 past the last */
static inline float32x4_t q8_column(const uint8_t *p, uint64_t stride, uint32_t count) {
    float t[4] = {0};
    for (uint32_t j = 0; j < 4 && j < count; j++) t[j] = load_bf16(p + j * stride);
    return vld1q_f32(t);
}

static inline __attribute__((always_inline)) void q8_pack_panel(q8_panel *p, const weight_mat *m, uint64_t row, uint32_t count, uint32_t g,
                                                                q8_pack_fn pack) {
    const uint64_t row_bytes = weight_row_bytes(m), groups = weight_row_groups(m);
    const uint8_t *codes = m->codes + row * row_bytes + (size_t)g * CPU_GROUP / 2;
    for (uint32_t q = 0; q < CPU_PANEL / 4; q++) {
        const uint64_t first = (row + 4 * q) * groups + g;
        const uint32_t some = count > 4 * q ? count - 4 * q : 0;
        p->scale[q] = q8_column(m->scales + 2 * first, 2 * groups, some);
        p->bias[q] = q8_column(m->biases + 2 * first, 2 * groups, some);
        int8x16_t r[4][Q8_CHUNKS];
        for (uint32_t j = 0; j < 4; j++)
            if (j < some)
                q8_codes64(codes + (4 * q + j) * row_bytes, r[j]);
            else
                for (uint32_t c = 0; c < Q8_CHUNKS; c++) r[j][c] = vdupq_n_s8(0);
        for (uint32_t c = 0; c < Q8_CHUNKS; c++) pack((const int8x16_t[4]){r[0][c], r[1][c], r[2][c], r[3][c]}, p->w[c][q]);
    }
}

/* Up to 16 outputs, any number of rows: a group of them is packed (1 KB, in L1), then every row passes, four at a time. */
static inline __attribute__((always_inline)) void q8_linear_panel(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count,
                                                                  const cpu_x *x, const uint32_t *list, uint32_t n, float *acc,
                                                                  q8_pack_fn pack, q8_tile_fn tile) {
    const uint32_t groups = (uint32_t)weight_row_groups(m);
    cpu_clear(acc, n, CPU_PANEL);
    for (uint32_t g = 0; g < groups; g++) {
        q8_panel p;
        q8_pack_panel(&p, m, (uint64_t)which * m->rows + first, count, g, pack);
        for (uint32_t i = 0; i < n; i += Q8_ROWS) {
            const int8_t *q8[Q8_ROWS];
            size_t at[Q8_ROWS];
            for (uint32_t r = 0; r < Q8_ROWS; r++) {
                const uint32_t k = i + r < n ? i + r : i; /* rows past the last are computed and not used */
                const size_t index = list ? list[k] : k;
                q8[r] = x->q8 + index * x->cols + (size_t)g * CPU_GROUP;
                at[r] = index * groups + g;
            }
            int32x4_t sums[Q8_ROWS][CPU_PANEL / 4];
            tile(&p, q8, sums);
            for (uint32_t r = 0; r < Q8_ROWS && i + r < n; r++)
                for (uint32_t q = 0; q < CPU_PANEL / 4; q++) {
                    float *out = acc + (size_t)(i + r) * CPU_WIDE + 4 * q;
                    const float32x4_t t = vfmaq_n_f32(vld1q_f32(out), p.bias[q], x->sum[at[r]]);
                    vst1q_f32(out, vfmaq_f32(t, vmulq_n_f32(p.scale[q], x->scale[at[r]]), vcvtq_f32_s32(sums[r][q])));
                }
        }
    }
}

static inline __attribute__((always_inline)) void q8_linear_many(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count,
                                                                 const cpu_x *x, const uint32_t *list, uint32_t n, float *acc,
                                                                 q8_pack_fn pack, q8_tile_fn tile) {
    for (uint32_t j = 0; j < count; j += CPU_PANEL)
        q8_linear_panel(m, which, first + j, count - j < CPU_PANEL ? count - j : CPU_PANEL, x, list, n, acc + j, pack, tile);
}

#endif

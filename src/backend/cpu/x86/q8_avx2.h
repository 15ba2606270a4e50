/* q8_avx2.h: 4-bit codes times 8-bit activations in registers of 32 bytes, written once over the instructions that multiply bytes.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.
 * One to three rows: each output's groups against the rows.  More rows: eight outputs at a time; a group's codes are transposed so that
 * lane j is output j and register i holds inputs 4i … 4i+3, and every row passes with four of its bytes broadcast at a time.
 *
 * Included by one file per instruction set, which includes avx2.h and defines before:
 *   group_dot(low, high, q8)   Σ of a group's 64 products in 8 lanes
 *   row_dot(w, q8)             the same of one row against a transposed group w [16]: lane j is output j
 *   Q8(name)                   the name that a function has outside */
#include <string.h>

enum { LANES = 8, DWORDS = CPU_GROUP / 4 };

static inline __m256i low_nibbles(__m256i c) { return _mm256_and_si256(c, _mm256_set1_epi8(15)); }
static inline __m256i high_nibbles(__m256i c) { return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)); }

static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, const cpu_x *x,
                                                       const uint32_t *rows, uint32_t n, float *acc) {
    __m256 total[3];
    float bias_part[3] = {0};
    for (uint32_t i = 0; i < n; i++) total[i] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < x->groups; g++, codes += CPU_GROUP / 2) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)codes), low = low_nibbles(c), high = high_nibbles(c);
        const float scale = load_bf16(scales + 2 * (size_t)g), bias = load_bf16(biases + 2 * (size_t)g);
        for (uint32_t i = 0; i < n; i++) {
            const size_t at = (size_t)rows[i] * x->groups + g;
            const __m256i d = group_dot(low, high, x->q8 + (size_t)rows[i] * x->cols + (size_t)g * CPU_GROUP);
            total[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_set1_ps(scale * x->scale[at]), total[i]);
            bias_part[i] += bias * x->sum[at];
        }
    }
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_WIDE] = avx2_sum8(total[i]) + bias_part[i];
}

/* t[i] lane j = r[j] lane i, for 8 × 8 dwords */
static inline void transpose(const __m256i r[8], __m256i t[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
        t[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    }
}

/* Lane j: the number at p + j · stride, bf16. */
static inline __m256 column(const uint8_t *p, uint64_t stride, uint32_t count) {
    float t[LANES] = {0};
    for (uint32_t j = 0; j < count; j++) t[j] = load_bf16(p + j * stride);
    return _mm256_loadu_ps(t);
}

/* acc[i][0 … 7] = count ≤ 8 outputs × n rows */
static void panel(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint64_t row_bytes, uint32_t count, const cpu_x *x,
                  const uint32_t *list, uint32_t n, float *acc) {
    for (uint32_t i = 0; i < n; i++) _mm256_storeu_ps(acc + (size_t)i * CPU_WIDE, _mm256_setzero_ps());
    for (uint32_t g = 0; g < x->groups; g++) {
        __m256i low[LANES], high[LANES], w[DWORDS];
        for (uint32_t j = 0; j < LANES; j++) {
            const __m256i c = j < count ? _mm256_loadu_si256((const __m256i *)(codes + j * row_bytes + (size_t)g * CPU_GROUP / 2))
                                        : _mm256_setzero_si256();
            low[j] = low_nibbles(c);
            high[j] = high_nibbles(c);
        }
        transpose(low, w);
        transpose(high, w + 8);
        const __m256 scale = column(scales + 2 * (size_t)g, (uint64_t)x->groups * 2, count),
                     bias = column(biases + 2 * (size_t)g, (uint64_t)x->groups * 2, count);
        for (uint32_t i = 0; i < n; i++) {
            const size_t r = list ? list[i] : i, at = r * x->groups + g;
            const __m256 f = _mm256_cvtepi32_ps(row_dot(w, x->q8 + r * x->cols + (size_t)g * CPU_GROUP));
            float *out = acc + (size_t)i * CPU_WIDE;
            const __m256 t = _mm256_fmadd_ps(bias, _mm256_set1_ps(x->sum[at]), _mm256_loadu_ps(out));
            _mm256_storeu_ps(out, _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_set1_ps(x->scale[at])), f, t));
        }
    }
}

void Q8(linear_q8)(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                   const cpu_ahead *ahead, float *acc) {
    const uint64_t row_bytes = weight_row_bytes(m), scale_bytes = weight_row_groups(m) * 2, row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * scale_bytes, *biases = m->biases + row * scale_bytes;
    if (n > 3) {
        for (uint32_t j = 0; j < count; j += LANES)
            panel(codes + j * row_bytes, scales + j * scale_bytes, biases + j * scale_bytes, row_bytes,
                  count - j < LANES ? count - j : LANES, x, list, n, acc + j);
        return;
    }
    uint32_t rows[3] = {0};
    for (uint32_t i = 0; i < n; i++) rows[i] = list ? list[i] : i;
    const cpu_ahead own = {codes, scales, biases};
    const uint32_t rows_ahead = cpu_rows_ahead(row_bytes);
    for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += scale_bytes, biases += scale_bytes, acc++) {
        cpu_ask(cpu_ahead_of(&own, ahead, row_bytes, scale_bytes, count, j, rows_ahead), row_bytes, scale_bytes);
        if (n == 1)
            gemv(codes, scales, biases, x, rows, 1, acc);
        else if (n == 2)
            gemv(codes, scales, biases, x, rows, 2, acc);
        else
            gemv(codes, scales, biases, x, rows, 3, acc);
    }
}

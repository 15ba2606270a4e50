/* kernels_vnni.c: AVX-512 VNNI: 4-bit codes times 8-bit activations, compiled with just these flags.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.  The 32 bytes of a group's codes become one register of 64
 * bytes [low nibbles | high nibbles] by one broadcast, one shift of the upper half and one mask: the order of cpu_x.
 *
 * One to four rows: each output's groups against the rows, 64 products an instruction.
 * More rows: a panel of 16 outputs.  The 16 registers of a group (one per output) are transposed so that lane j is output j and register
 * i holds inputs 4i … 4i+3; they stay in registers while every row passes, four of its bytes broadcast to all lanes at a time. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/avx512.h"

enum { PREFETCH = 4096 /* bytes of codes ahead */ };

/* [low nibbles | high nibbles] of 32 bytes of codes */
static inline __m512i codes64(const uint8_t *p) {
    const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_and_si512(_mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)), _mm512_set1_epi8(15));
}

/* Group by group: scale = largest / 127, rounded to nearest. */
static void prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q8 += CPU_GROUP) {
        __m512 v[4];
        avx512_reorder(x, v);
        const __m512 a = _mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])),
                     b = _mm512_max_ps(_mm512_abs_ps(v[2]), _mm512_abs_ps(v[3]));
        const float largest = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
        const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
        __m512i total = _mm512_setzero_si512();
        for (uint32_t j = 0; j < 4; j++) {
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[j], inverse));
            _mm_storeu_si128((__m128i *)(q8 + 16 * j), _mm512_cvtsepi32_epi8(q));
            total = _mm512_add_epi32(total, q);
        }
        scale[g] = largest / 127;
        sum[g] = scale[g] * (float)_mm512_reduce_add_epi32(total);
    }
}

typedef struct q8_row {
    const int8_t *q8;
    const float *scale, *sum;
} q8_row;

static inline q8_row row_of(const cpu_x *x, const uint32_t *list, uint32_t i) {
    const size_t r = list ? list[i] : i;
    return (q8_row){x->q8 + r * x->cols, x->scale + r * x->groups, x->sum + r * x->groups};
}

/* One output, n ≤ 4 rows. */
static inline __attribute__((always_inline)) void gemv(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, uint32_t groups,
                                                       const q8_row *x, uint32_t n, float *acc) {
    __m512 total[4], other[4];
    for (uint32_t i = 0; i < n; i++) total[i] = other[i] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < groups; g += 16) { /* scales and biases of up to 16 groups at a time */
        const uint32_t some = groups - g < 16 ? groups - g : 16;
        const __mmask16 part = avx512_part(some);
        _mm_prefetch(scales + 8 * 2 * (size_t)groups + 2 * (size_t)g, _MM_HINT_T0); /* of the eighth output from here */
        _mm_prefetch(biases + 8 * 2 * (size_t)groups + 2 * (size_t)g, _MM_HINT_T0);
        float scale[4][16];
        const __m512 s = avx512_bf16(_mm256_maskz_loadu_epi16(part, scales + 2 * (size_t)g)),
                     bias = avx512_bf16(_mm256_maskz_loadu_epi16(part, biases + 2 * (size_t)g));
        for (uint32_t i = 0; i < n; i++) {
            _mm512_storeu_ps(scale[i], _mm512_mul_ps(s, _mm512_maskz_loadu_ps(part, x[i].scale + g)));
            other[i] = _mm512_fmadd_ps(bias, _mm512_maskz_loadu_ps(part, x[i].sum + g), other[i]);
        }
        for (uint32_t h = 0; h < some; h++, codes += CPU_GROUP / 2) {
            _mm_prefetch(codes + PREFETCH, _MM_HINT_T0); /* memory is further away than the instructions in flight reach */
            const __m512i w = codes64(codes);
            for (uint32_t i = 0; i < n; i++) {
                const __m512i d = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512(x[i].q8 + (size_t)(g + h) * CPU_GROUP));
                const __m512 f = _mm512_cvtepi32_ps(d), si = _mm512_set1_ps(scale[i][h]);
                if (h & 1)
                    other[i] = _mm512_fmadd_ps(f, si, other[i]); /* two sums: an addition takes four cycles */
                else
                    total[i] = _mm512_fmadd_ps(f, si, total[i]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) acc[i * CPU_PANEL] = _mm512_reduce_add_ps(_mm512_add_ps(total[i], other[i]));
}

/* t[i] lane j = r[j] lane i, for 16 × 16 dwords */
static inline void transpose(const __m512i r[16], __m512i t[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* b[4k + i]: 128-bit lane l holds dword 4l + i of rows 4k … 4k + 3 */
        const __m512i p = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88), q = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xDD);
        const __m512i u = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88), v = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xDD);
        t[i] = _mm512_shuffle_i32x4(p, u, 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(q, v, 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(p, u, 0xDD);
        t[12 + i] = _mm512_shuffle_i32x4(q, v, 0xDD);
    }
}

/* acc[i] += one group of a panel × row i; two rows at a time, each in two chains of eight */
static inline void panel_group(const __m512i w[16], __m512 scale, __m512 bias, const cpu_x *x, const uint32_t *list, uint32_t n, uint32_t g,
                               float *acc) {
    for (uint32_t i = 0; i < n; i += 2) {
        const size_t r0 = list ? list[i] : i, r1 = i + 1 < n ? (list ? list[i + 1] : i + 1) : r0;
        const int8_t *q0 = x->q8 + r0 * x->cols + (size_t)g * CPU_GROUP, *q1 = x->q8 + r1 * x->cols + (size_t)g * CPU_GROUP;
        __m512i a0 = _mm512_setzero_si512(), a1 = a0, b0 = a0, b1 = a0;
        for (uint32_t j = 0; j < 16; j += 2) {
            int32_t v;
            memcpy(&v, q0 + 4 * j, 4);
            a0 = _mm512_dpbusd_epi32(a0, w[j], _mm512_set1_epi32(v));
            memcpy(&v, q1 + 4 * j, 4);
            b0 = _mm512_dpbusd_epi32(b0, w[j], _mm512_set1_epi32(v));
            memcpy(&v, q0 + 4 * j + 4, 4);
            a1 = _mm512_dpbusd_epi32(a1, w[j + 1], _mm512_set1_epi32(v));
            memcpy(&v, q1 + 4 * j + 4, 4);
            b1 = _mm512_dpbusd_epi32(b1, w[j + 1], _mm512_set1_epi32(v));
        }
        float *out = acc + (size_t)i * CPU_PANEL;
        const __m512 f0 = _mm512_cvtepi32_ps(_mm512_add_epi32(a0, a1)), f1 = _mm512_cvtepi32_ps(_mm512_add_epi32(b0, b1));
        const size_t s0 = r0 * x->groups + g, s1 = r1 * x->groups + g;
        __m512 t = _mm512_fmadd_ps(bias, _mm512_set1_ps(x->sum[s0]), _mm512_loadu_ps(out));
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x->scale[s0])), f0, t));
        if (i + 1 == n) break;
        t = _mm512_fmadd_ps(bias, _mm512_set1_ps(x->sum[s1]), _mm512_loadu_ps(out + CPU_PANEL));
        _mm512_storeu_ps(out + CPU_PANEL, _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x->scale[s1])), f1, t));
    }
}

/* Lane j: the number at p + j · stride, bf16. */
static inline __m512 column(const uint8_t *p, uint64_t stride, uint32_t count) {
    float t[CPU_PANEL] = {0};
    for (uint32_t j = 0; j < count; j++) t[j] = load_bf16(p + j * stride);
    return _mm512_loadu_ps(t);
}

static void linear_vnni(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, bool q8, float *acc) {
    if (!q8) {
        avx512_linear_f32(m, which, first, count, x, list, n, q8, acc);
        return;
    }
    const uint64_t row_bytes = weight_row_bytes(m), groups = weight_row_groups(m), row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * groups * 2, *biases = m->biases + row * groups * 2;
    if (n <= 4) {
        q8_row rows[4];
        for (uint32_t i = 0; i < n; i++) rows[i] = row_of(x, list, i);
        for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += groups * 2, biases += groups * 2, acc++) {
            if (n == 1)
                gemv(codes, scales, biases, (uint32_t)groups, rows, 1, acc);
            else if (n == 2)
                gemv(codes, scales, biases, (uint32_t)groups, rows, 2, acc);
            else if (n == 3)
                gemv(codes, scales, biases, (uint32_t)groups, rows, 3, acc);
            else
                gemv(codes, scales, biases, (uint32_t)groups, rows, 4, acc);
        }
        return;
    }
    memset(acc, 0, (size_t)n * CPU_PANEL * sizeof *acc);
    for (uint32_t g = 0; g < groups; g++) {
        __m512i r[16], w[16];
        for (uint32_t j = 0; j < CPU_PANEL; j++)
            r[j] = j < count ? codes64(codes + j * row_bytes + (size_t)g * CPU_GROUP / 2) : _mm512_setzero_si512();
        transpose(r, w);
        panel_group(w, column(scales + 2 * (size_t)g, groups * 2, count), column(biases + 2 * (size_t)g, groups * 2, count), x, list, n, g,
                    acc);
    }
}

static const cpu_peak peak = {.f32 = &avx512_peak_f32, .bf16 = &avx512_peak_bf16, .i8 = &vnni_peak_i8};

const cpu_kernels cpu_kernels_vnni = {
    .name = "vnni", .peak = &peak, .has_q8 = true, .linear = linear_vnni, .prepare_q8 = prepare_q8, AVX512_COMMON};

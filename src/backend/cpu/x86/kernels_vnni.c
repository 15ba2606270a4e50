/* kernels_vnni.c: AVX-512 VNNI: 4-bit codes times 8-bit activations, compiled with just these flags.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.  The 32 bytes of a group's codes become one register of 64
 * bytes [low nibbles | high nibbles] by one broadcast, one shift of the upper half and one mask: the order of cpu_x.
 *
 * One to four rows: four outputs at a time, each group of an output 64 products an instruction.  More rows: gemm_vnni.c. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/avx512.h"
#include "backend/cpu/x86/vnni.h"

enum {
    GEMV_ROWS = 4,
    GEMV_OUTPUTS = 4,
    AHEAD = 4096 /* bytes of codes fetched ahead: what arrives while memory answers */
};

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

/* Σ of each of four registers */
static inline __m128 sums4(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)),
                 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 t = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

/* Outputs first … first + 3 (past the last, that one again), n ≤ 4 rows: acc[i][0 … 3] */
static inline __attribute__((always_inline)) void gemv4(const vnni_outputs *o, uint32_t first, const q8_row *x, const uint32_t n,
                                                        float *acc) {
    const uint8_t *codes[GEMV_OUTPUTS], *scales[GEMV_OUTPUTS], *biases[GEMV_OUTPUTS];
    __m512 total[GEMV_ROWS][GEMV_OUTPUTS];
    float scale[GEMV_ROWS][GEMV_OUTPUTS][16];
    for (uint32_t j = 0; j < GEMV_OUTPUTS; j++) {
        const size_t at = first + j < o->count ? first + j : o->count - 1;
        codes[j] = o->codes + at * o->row_bytes, scales[j] = o->scales + at * o->scale_bytes, biases[j] = o->biases + at * o->scale_bytes;
        for (uint32_t i = 0; i < n; i++) total[i][j] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < o->groups; g += 16) { /* scales and biases of up to 16 groups at a time */
        const uint32_t some = o->groups - g < 16 ? o->groups - g : 16;
        const __mmask16 part = avx512_part(some);
        for (uint32_t j = 0; j < GEMV_OUTPUTS; j++) {
            const uint8_t *sj = scales[j] + 2 * (size_t)g, *bj = biases[j] + 2 * (size_t)g;
            _mm_prefetch(sj + AHEAD / 16, _MM_HINT_T0); /* the numbers of those codes */
            _mm_prefetch(bj + AHEAD / 16, _MM_HINT_T0);
            const __m512 s = avx512_bf16(_mm256_maskz_loadu_epi16(part, sj)), bias = avx512_bf16(_mm256_maskz_loadu_epi16(part, bj));
            for (uint32_t i = 0; i < n; i++) {
                _mm512_storeu_ps(scale[i][j], _mm512_mul_ps(s, _mm512_maskz_loadu_ps(part, x[i].scale + g)));
                total[i][j] = _mm512_fmadd_ps(bias, _mm512_maskz_loadu_ps(part, x[i].sum + g), total[i][j]);
            }
        }
        for (uint32_t h = 0; h < some; h++) {
            const size_t at = (size_t)(g + h) * CPU_GROUP;
            __m512i q[GEMV_ROWS];
            for (uint32_t i = 0; i < n; i++) q[i] = _mm512_loadu_si512(x[i].q8 + at);
            for (uint32_t j = 0; j < GEMV_OUTPUTS; j++) {
                if (h % 2 == 0) _mm_prefetch(codes[j] + at / 2 + AHEAD, _MM_HINT_T0);
                const __m512i w = codes64(codes[j] + at / 2);
                for (uint32_t i = 0; i < n; i++)
                    total[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w, q[i])),
                                                  _mm512_set1_ps(scale[i][j][h]), total[i][j]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) _mm_storeu_ps(acc + i * CPU_WIDE, sums4(total[i][0], total[i][1], total[i][2], total[i][3]));
}

static void gemv(const vnni_outputs *o, const cpu_x *x, const uint32_t *list, uint32_t n, float *acc) {
    q8_row rows[GEMV_ROWS];
    for (uint32_t i = 0; i < n; i++) rows[i] = row_of(x, list, i);
    for (uint32_t j = 0; j < o->count; j += GEMV_OUTPUTS) {
        if (n == 1)
            gemv4(o, j, rows, 1, acc + j);
        else if (n == 2)
            gemv4(o, j, rows, 2, acc + j);
        else if (n == 3)
            gemv4(o, j, rows, 3, acc + j);
        else
            gemv4(o, j, rows, 4, acc + j);
    }
}

static void linear_vnni(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, bool q8, float *acc) {
    if (!q8) {
        avx512_linear_f32(m, which, first, count, x, list, n, q8, acc);
        return;
    }
    const uint64_t row = (uint64_t)which * m->rows + first, row_bytes = weight_row_bytes(m), scale_bytes = 2 * weight_row_groups(m);
    const vnni_outputs o = {m->codes + row * row_bytes,
                            m->scales + row * scale_bytes,
                            m->biases + row * scale_bytes,
                            row_bytes,
                            scale_bytes,
                            (uint32_t)weight_row_groups(m),
                            count};
    if (n <= GEMV_ROWS)
        gemv(&o, x, list, n, acc);
    else
        vnni_gemm(&o, x, list, n, acc);
}

static const cpu_peak peak = {.f32 = &avx512_peak_f32, .bf16 = &avx512_peak_bf16, .i8 = &vnni_peak_i8};

const cpu_kernels cpu_kernels_vnni = {
    .name = "vnni", .peak = &peak, .has_q8 = true, .linear = linear_vnni, .prepare_q8 = prepare_q8, AVX512_COMMON};

/* kernels_vnni.c: AVX-512 VNNI: 4-bit codes times 8-bit activations, compiled with just these flags.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.
 *
 * One to four rows: output by output, two groups at a time; one short row: two outputs.  More rows: gemm_vnni.c. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/avx512.h"
#include "backend/cpu/x86/vnni.h"

enum { GEMV_ROWS = 4, GEMV_OUTPUTS = 4 };

static inline float largest_of(const __m512 v[4]) {
    const __m512 a = _mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])), b = _mm512_max_ps(_mm512_abs_ps(v[2]), _mm512_abs_ps(v[3]));
    return _mm512_reduce_max_ps(_mm512_max_ps(a, b));
}

/* Group by group: scale = largest / 127, rounded to nearest. */
void vnni_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q8 += CPU_GROUP) {
        __m512 v[4];
        avx512_reorder(x, v);
        const float largest = largest_of(v);
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

void vnni_prepare_q24(const float *x, uint32_t cols, size_t plane, size_t groups, int8_t *q, float *scale, float *sum, int32_t *start) {
    const float most = 127 * 65536;
    const __m512i half = _mm512_set1_epi32(128);
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q += CPU_GROUP) {
        __m512 v[4];
        avx512_reorder(x, v);
        const float largest = largest_of(v);
        const __m512 inverse = _mm512_set1_ps(largest > 0 ? most / largest : 0);
        __m512i sum_high = _mm512_setzero_si512(), sum_mid = sum_high, sum_low = sum_high;
        for (uint32_t j = 0; j < 4; j++) { /* bytes are signed: what a lower one has too much the next one lacks */
            const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(v[j], inverse)), mid = _mm512_srai_epi32(_mm512_add_epi32(low, half), 8),
                          high = _mm512_srai_epi32(_mm512_add_epi32(mid, half), 8);
            sum_high = _mm512_add_epi32(sum_high, high), sum_mid = _mm512_add_epi32(sum_mid, mid), sum_low = _mm512_add_epi32(sum_low, low);
            _mm_storeu_si128((__m128i *)(q + 16 * j), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128((__m128i *)(q + plane + 16 * j), _mm512_cvtepi32_epi8(mid));
            _mm_storeu_si128((__m128i *)(q + 2 * plane + 16 * j), _mm512_cvtepi32_epi8(low));
        }
        const int32_t high = _mm512_reduce_add_epi32(sum_high), mid = _mm512_reduce_add_epi32(sum_mid);
        start[g] = -8 * high;
        start[groups + g] = -8 * (mid - 256 * high);
        start[2 * groups + g] = -8 * (_mm512_reduce_add_epi32(sum_low) - 256 * mid);
        scale[g] = 65536 * (largest / most), scale[groups + g] = 256 * (largest / most), scale[2 * groups + g] = largest / most;
        sum[groups + g] = sum[2 * groups + g] = 0;
    }
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

/* Two groups at a time, as their 64 bytes of codes lie in memory: [low nibbles of both], then [high nibbles of both]. */
enum { PAIR = 2 * CPU_GROUP };

/* q8 of a row in that order; an odd last group beside zeros */
static void pair_up(const int8_t *q8, uint32_t groups, int8_t *out) {
    for (uint32_t g = 0; g < groups; g += 2, q8 += PAIR, out += PAIR) {
        const __m512i first = _mm512_loadu_si512(q8), second = g + 1 < groups ? _mm512_loadu_si512(q8 + CPU_GROUP) : _mm512_setzero_si512();
        _mm512_storeu_si512(out, _mm512_shuffle_i64x2(first, second, 0x44));
        _mm512_storeu_si512(out + CPU_GROUP, _mm512_shuffle_i64x2(first, second, 0xEE));
    }
}

/* Two groups of codes times a row of q8 in their order, in 32 bits */
static inline __m512 line_dot(__m512i lows, __m512i highs, const int8_t *q) {
    const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), lows, _mm512_loadu_si512(q));
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sum, highs, _mm512_loadu_si512(q + CPU_GROUP)));
}

/* Lane l of out[i]: part of the sum of one output and row i of n ≤ 4.  near, far: codes to ask for.  The sums, two chains for each row, have
 * names: gcc 12 keeps arrays in memory, which takes 1.4 times as long with two rows. */
static inline __attribute__((always_inline)) void gemv_output(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases,
                                                              const uint8_t *near, const uint8_t *far, uint32_t groups, const cpu_q8_row *x,
                                                              int8_t (*q)[CPU_MAX_COLS + CPU_GROUP], const uint32_t n, __m512 *out) {
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define START(R) __m512 even##R = _mm512_setzero_ps(), odd##R = even##R;
    const __m512i low = _mm512_set1_epi8(15);
    EACH_ROW(START)
    for (uint32_t g = 0; g < groups; g += 16) { /* scales and biases of up to 16 groups at a time */
        const uint32_t some = groups - g < 16 ? groups - g : 16;
        const __mmask16 part = avx512_part(some);
        const __m512 s = avx512_bf16(_mm256_maskz_loadu_epi16(part, scales + 2 * (size_t)g)),
                     bias = avx512_bf16(_mm256_maskz_loadu_epi16(part, biases + 2 * (size_t)g));
#define SCALE(R)                                                                                                                           \
    __m512 scale##R = s;                                                                                                                   \
    if (R < n) {                                                                                                                           \
        scale##R = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(part, x[R].scale + g));                                                          \
        odd##R = _mm512_fmadd_ps(bias, _mm512_maskz_loadu_ps(part, x[R].sum + g), odd##R);                                                 \
    }
        EACH_ROW(SCALE)
        const __m512i of_two = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#define ADD(R, SUM)                                                                                                                        \
    if (R < n) SUM##R = _mm512_fmadd_ps(line_dot(lows, highs, q[R] + at), _mm512_permutexvar_ps(which, scale##R), SUM##R);
#define LINE(H, SUM, SOME)                                                                                                                 \
    if (H < SOME) {                                                                                                                        \
        const size_t at = (size_t)(g + H) * CPU_GROUP;                                                                                     \
        const uint8_t *p = codes + at / 2;                                                                                                 \
        _mm_prefetch(near + at / 2, _MM_HINT_T0);                                                                                          \
        _mm_prefetch(far + at / 2, _MM_HINT_T1);                                                                                           \
        const __m512i w = H + 1 < SOME ? _mm512_loadu_si512(p) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)p)),           \
                      lows = _mm512_and_si512(w, low), highs = _mm512_and_si512(_mm512_srli_epi16(w, 4), low),                             \
                      which = _mm512_add_epi32(of_two, _mm512_set1_epi32((int32_t)(H)));                                                   \
        ADD(0, SUM) ADD(1, SUM) ADD(2, SUM) ADD(3, SUM)                                                                                    \
    }
        if (some == 16) { /* the same without a question: a quarter faster in cache */
            LINE(0, even, 16)
            LINE(2, odd, 16) LINE(4, even, 16) LINE(6, odd, 16) LINE(8, even, 16) LINE(10, odd, 16) LINE(12, even, 16) LINE(14, odd, 16)
        } else {
            for (uint32_t h = 0; h < some; h += 4) {
                LINE(h, even, some)
                LINE(h + 2, odd, some)
            }
        }
    }
#define FINISH(R)                                                                                                                          \
    if (R < n) out[R] = _mm512_add_ps(even##R, odd##R);
    EACH_ROW(FINISH)
}

static inline __attribute__((always_inline)) void gemv_rows(const vnni_outputs *o, const cpu_q8_row *x, const uint32_t n, float *acc) {
    _Alignas(64) int8_t q[GEMV_ROWS][CPU_MAX_COLS + CPU_GROUP];
    for (uint32_t i = 0; i < n; i++) pair_up(x[i].q8, o->groups, q[i]);
    const cpu_ahead own = {o->codes, o->scales, o->biases};
    const uint32_t rows_near = cpu_rows_ahead(o->row_bytes, CPU_NEAR), rows_far = cpu_rows_ahead(o->row_bytes, CPU_FAR);
    for (uint32_t j = 0; j < o->count; j += GEMV_OUTPUTS) {
        __m512 part[GEMV_OUTPUTS][GEMV_ROWS];
        for (uint32_t l = 0; l < GEMV_OUTPUTS; l++) { /* past the last, that one again */
            const uint32_t at = j + l < o->count ? j + l : o->count - 1;
            const cpu_ahead near = cpu_ahead_of(&own, o->ahead, o->row_bytes, o->scale_bytes, o->count, at, rows_near),
                            far = cpu_ahead_of(&own, o->ahead, o->row_bytes, o->scale_bytes, o->count, at, rows_far);
            for (size_t line = 0; line < o->scale_bytes; line += 64) {
                _mm_prefetch(near.scales + line, _MM_HINT_T0);
                _mm_prefetch(near.biases + line, _MM_HINT_T0);
                _mm_prefetch(far.scales + line, _MM_HINT_T1);
                _mm_prefetch(far.biases + line, _MM_HINT_T1);
            }
            gemv_output(o->codes + at * o->row_bytes, o->scales + at * o->scale_bytes, o->biases + at * o->scale_bytes, near.codes,
                        far.codes, o->groups, x, q, n, part[l]);
        }
        for (uint32_t i = 0; i < n; i++)
            _mm_storeu_ps(acc + (size_t)i * CPU_WIDE + j, sums4(part[0][i], part[1][i], part[2][i], part[3][i]));
    }
}

/* One row of SHORT inputs, as experts have on their way out: what is done once for an output is done once for two, whose scales fill a
 * register together; else that would take longer than the codes. */
enum { SHORT = 512, SHORT_GROUPS = SHORT / CPU_GROUP };

/* Eight bf16 numbers of each of two outputs */
static inline __m512 numbers_of_two(const uint8_t *first, const uint8_t *second) {
    const __m128i a = _mm_loadu_si128((const __m128i *)first), b = _mm_loadu_si128((const __m128i *)second);
    return avx512_bf16(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}

/* sum += an output's codes × q; its scales stand in `scale` from `lane` on */
static inline __attribute__((always_inline)) __m512 short_output(const uint8_t *codes, const uint8_t *near, const uint8_t *far,
                                                                 const int8_t *q, __m512 scale, uint32_t lane, __m512 sum) {
    const __m512i low = _mm512_set1_epi8(15), groups = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < SHORT_GROUPS; g += 2) {
        const size_t at = (size_t)g * CPU_GROUP;
        _mm_prefetch(near + at / 2, _MM_HINT_T0);
        _mm_prefetch(far + at / 2, _MM_HINT_T1);
        const __m512i w = _mm512_loadu_si512(codes + at / 2), lows = _mm512_and_si512(w, low),
                      highs = _mm512_and_si512(_mm512_srli_epi16(w, 4), low),
                      which = _mm512_add_epi32(groups, _mm512_set1_epi32((int32_t)(lane + g)));
        sum = _mm512_fmadd_ps(line_dot(lows, highs, q + at), _mm512_permutexvar_ps(which, scale), sum);
    }
    return sum;
}

static void gemv_short(const vnni_outputs *o, const cpu_q8_row *x, float *acc) {
    _Alignas(64) int8_t q[SHORT];
    pair_up(x->q8, SHORT_GROUPS, q);
    const __m512 x_scale = _mm512_broadcast_f32x8(_mm256_loadu_ps(x->scale)), x_sum = _mm512_broadcast_f32x8(_mm256_loadu_ps(x->sum));
    const cpu_ahead own = {o->codes, o->scales, o->biases};
    const uint32_t rows_near = cpu_rows_ahead(SHORT / 2, CPU_NEAR), rows_far = cpu_rows_ahead(SHORT / 2, CPU_FAR);
    for (uint32_t j = 0; j < o->count; j += GEMV_OUTPUTS) {
        const cpu_ahead near = cpu_ahead_of(&own, o->ahead, SHORT / 2, 2 * SHORT_GROUPS, o->count, j, rows_near),
                        far = cpu_ahead_of(&own, o->ahead, SHORT / 2, 2 * SHORT_GROUPS, o->count, j, rows_far);
        _mm_prefetch(near.scales, _MM_HINT_T0); /* four outputs are a line of these */
        _mm_prefetch(near.biases, _MM_HINT_T0);
        _mm_prefetch(far.scales, _MM_HINT_T1);
        _mm_prefetch(far.biases, _MM_HINT_T1);
        __m512 sum[GEMV_OUTPUTS];
#pragma GCC unroll 2
        for (uint32_t l = 0; l < GEMV_OUTPUTS; l += 2) {
            const size_t last = o->count - 1, a = j + l < last ? j + l : last, b = j + l + 1 < last ? j + l + 1 : last;
            const size_t at = 2 * SHORT_GROUPS * a, behind = 2 * SHORT_GROUPS * b;
            const __m512 scale = _mm512_mul_ps(numbers_of_two(o->scales + at, o->scales + behind), x_scale),
                         bias = _mm512_mul_ps(numbers_of_two(o->biases + at, o->biases + behind), x_sum);
            const uint8_t *n = near.codes + l * (SHORT / 2), *f = far.codes + l * (SHORT / 2);
            sum[l] = short_output(o->codes + a * (SHORT / 2), n, f, q, scale, 0, _mm512_maskz_mov_ps(0x00FF, bias));
            sum[l + 1] = short_output(o->codes + b * (SHORT / 2), n + SHORT / 2, f + SHORT / 2, q, scale, SHORT_GROUPS,
                                      _mm512_maskz_mov_ps(0xFF00, bias));
        }
        _mm_storeu_ps(acc + j, sums4(sum[0], sum[1], sum[2], sum[3]));
    }
}

static void gemv(const vnni_outputs *o, const cpu_x *x, const uint32_t *list, uint32_t n, float *acc) {
    cpu_q8_row rows[GEMV_ROWS];
    for (uint32_t i = 0; i < n; i++) rows[i] = cpu_q8_row_of(x, list, i);
    if (n == 1 && o->groups == SHORT_GROUPS)
        gemv_short(o, rows, acc);
    else if (n == 1)
        gemv_rows(o, rows, 1, acc);
    else if (n == 2)
        gemv_rows(o, rows, 2, acc);
    else if (n == 3)
        gemv_rows(o, rows, 3, acc);
    else
        gemv_rows(o, rows, 4, acc);
}

void vnni_linear(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                 bool q8, const cpu_ahead *ahead, float *acc) {
    if (!q8 && (n <= GEMV_ROWS || !x->q24)) {
        avx512_linear_f32(m, which, first, count, x, list, n, q8, ahead, acc);
        return;
    }
    const uint64_t row = (uint64_t)which * m->rows + first, row_bytes = weight_row_bytes(m), scale_bytes = 2 * weight_row_groups(m);
    const vnni_outputs o = {m->codes + row * row_bytes,
                            m->scales + row * scale_bytes,
                            m->biases + row * scale_bytes,
                            row_bytes,
                            scale_bytes,
                            (uint32_t)weight_row_groups(m),
                            count,
                            ahead};
    if (n <= GEMV_ROWS)
        gemv(&o, x, list, n, acc);
    else
        vnni_gemm(&o, x, list, n, !q8, acc);
}

static const cpu_peak peak = {.f32 = &avx512_peak_f32, .i8 = &vnni_peak_i8};

const cpu_kernels cpu_kernels_vnni = {.name = "vnni", .peak = &peak, .attention = {[CALLA_KV_Q8] = &vnni_attention_q8}, VNNI_COMMON};

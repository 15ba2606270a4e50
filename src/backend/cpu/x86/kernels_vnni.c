/* kernels_vnni.c: AVX-512 VNNI: 4-bit codes times 8-bit activations, compiled with just these flags.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.  The 32 bytes of a group's codes become one register of 64
 * bytes [low nibbles | high nibbles] by one broadcast, one shift of the upper half and one mask: the order of cpu_x.
 *
 * One to four rows: four outputs at a time, each group of an output 64 products an instruction.
 * More rows: a panel of 16 outputs.  A group's codes are transposed so that lane j is output j and register i holds inputs 4i … 4i+3;
 * they stay in registers while every row passes, four of its bytes broadcast to all lanes at a time. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/avx512.h"

enum {
    GEMV_ROWS = 4,
    GEMV_OUTPUTS = 4,
    GEMM_ROWS = 64,
    PANEL_ROWS = 8,
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

/* Where consecutive outputs of a matrix stand. */
typedef struct outputs {
    const uint8_t *codes, *scales, *biases;
    size_t row_bytes, scale_bytes; /* from one output to the next */
    uint32_t groups, count;
} outputs;

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
static inline __attribute__((always_inline)) void gemv4(const outputs *o, uint32_t first, const q8_row *x, const uint32_t n, float *acc) {
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
    for (uint32_t i = 0; i < n; i++) _mm_storeu_ps(acc + i * CPU_PANEL, sums4(total[i][0], total[i][1], total[i][2], total[i][3]));
}

static void gemv(const outputs *o, const cpu_x *x, const uint32_t *list, uint32_t n, float *acc) {
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

/* Dword d of every lane's 128 bits: out[d] lane 4l + i = in[i] lane 4l + d: 4 × 4 transposes in each quarter */
static inline void transpose4(const __m512i in[4], __m512i out[4]) {
    const __m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]), c = _mm512_unpacklo_epi32(in[2], in[3]),
                  d = _mm512_unpackhi_epi32(in[2], in[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

/* One register of 16 bytes each of outputs i, 4 + i, 8 + i, 12 + i */
static inline __m512i quarter(const uint8_t *p, size_t stride) {
    __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
    r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(p + 8 * stride)), 2);
    return _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(p + 12 * stride)), 3);
}

/* A group's 32 bytes of codes of 16 outputs: w[i] lane j = bytes 4i … 4i + 3 of output j in the order of cpu_x */
static inline void panel_codes(const uint8_t *codes, size_t stride, __m512i w[16]) {
    const __m512i low = _mm512_set1_epi8(15);
    for (uint32_t half = 0; half < 2; half++) {
        __m512i r[4], t[4];
        for (uint32_t i = 0; i < 4; i++) r[i] = quarter(codes + i * stride + 16 * half, stride);
        transpose4(r, t);
        for (uint32_t i = 0; i < 4; i++) {
            w[4 * half + i] = _mm512_and_si512(t[i], low);
            w[8 + 4 * half + i] = _mm512_and_si512(_mm512_srli_epi32(t[i], 4), low);
        }
    }
}

/* 16 outputs' bf16 numbers of 8 groups: out[g] lane j = output j's number g */
static inline void panel_numbers(const uint8_t *p, size_t stride, __m512 out[8]) {
    const __m512i low = _mm512_set1_epi32((int32_t)0xFFFF0000);
    __m512i r[4], t[4];
    for (uint32_t i = 0; i < 4; i++) r[i] = quarter(p + i * stride, stride);
    transpose4(r, t);
    for (uint32_t i = 0; i < 4; i++) { /* a dword holds two of them */
        out[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(t[i], 16));
        out[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(t[i], low));
    }
}

/* acc[i] += one group of a panel × row first + i, n ≤ 8 rows at once, each a chain of its own: as many products are under way as the
 * units take */
static inline __attribute__((always_inline)) void panel_rows(const __m512i w[16], __m512 scale, __m512 bias, const cpu_x *x,
                                                             const uint32_t *list, uint32_t first, const uint32_t n, uint32_t g,
                                                             float *acc) {
    const int8_t *q[PANEL_ROWS];
    size_t at[PANEL_ROWS];
    __m512i sum[PANEL_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        const size_t r = list ? list[first + i] : first + i;
        q[i] = x->q8 + r * x->cols + (size_t)g * CPU_GROUP;
        at[i] = r * x->groups + g;
        sum[i] = _mm512_setzero_si512();
    }
#pragma GCC unroll 16
    for (uint32_t j = 0; j < 16; j++)
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t k = (j + 3 * i) % 16; /* rows lie 2 KB apart: two loads of one cycle at the same place of a line collide */
            int32_t v;
            memcpy(&v, q[i] + 4 * k, 4);
            sum[i] = _mm512_dpbusd_epi32(sum[i], w[k], _mm512_set1_epi32(v));
        }
    for (uint32_t i = 0; i < n; i++) {
        float *out = acc + (size_t)i * CPU_PANEL;
        const __m512 t = _mm512_fmadd_ps(bias, _mm512_set1_ps(x->sum[at[i]]), _mm512_loadu_ps(out));
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x->scale[at[i]])), _mm512_cvtepi32_ps(sum[i]), t));
    }
}

static inline __attribute__((always_inline)) void panel_group(const __m512i w[16], __m512 scale, __m512 bias, const cpu_x *x,
                                                              const uint32_t *list, uint32_t first, uint32_t n, uint32_t g, float *acc) {
    uint32_t i = 0;
    for (; i + PANEL_ROWS <= n; i += PANEL_ROWS) panel_rows(w, scale, bias, x, list, first + i, PANEL_ROWS, g, acc + (size_t)i * CPU_PANEL);
    for (; i + 2 <= n; i += 2) panel_rows(w, scale, bias, x, list, first + i, 2, g, acc + (size_t)i * CPU_PANEL);
    if (i < n) panel_rows(w, scale, bias, x, list, first + i, 1, g, acc + (size_t)i * CPU_PANEL);
}

/* A panel of fewer than 16 outputs or of a last block of fewer than 8 groups, copied so that whole registers may be read. */
typedef struct panel_copy {
    uint8_t codes[CPU_PANEL][8 * CPU_GROUP / 2], scales[CPU_PANEL][16], biases[CPU_PANEL][16];
} panel_copy;

static void copy_panel(panel_copy *to, const outputs *o, uint32_t g, uint32_t groups) {
    memset(to, 0, sizeof *to);
    for (uint32_t j = 0; j < o->count; j++) {
        memcpy(to->codes[j], o->codes + j * o->row_bytes + (size_t)g * (CPU_GROUP / 2), groups * (CPU_GROUP / 2));
        memcpy(to->scales[j], o->scales + j * o->scale_bytes + 2 * (size_t)g, 2 * groups);
        memcpy(to->biases[j], o->biases + j * o->scale_bytes + 2 * (size_t)g, 2 * groups);
    }
}

/* Some lines of the next 16 outputs' 32 bytes of codes, and of their numbers, while group g of these is computed: so all of them are near
 * when this panel is done.  (Always inline: gcc drops calls of functions that only prefetch.) */
static inline __attribute__((always_inline)) void fetch_next_panel(const outputs *o, uint32_t g) {
    enum { BYTES = CPU_PANEL * CPU_GROUP / 2, LINE = 64 };
    const uint8_t *codes = o->codes + CPU_PANEL * o->row_bytes + (size_t)g * BYTES;
    for (uint32_t i = 0; i < BYTES; i += LINE) _mm_prefetch(codes + i, _MM_HINT_T1);
    if (g % 2) return;
    _mm_prefetch(o->scales + CPU_PANEL * o->scale_bytes + (size_t)g * 2 * CPU_PANEL, _MM_HINT_T1);
    _mm_prefetch(o->biases + CPU_PANEL * o->scale_bytes + (size_t)g * 2 * CPU_PANEL, _MM_HINT_T1);
}

/* n ≤ GEMM_ROWS rows; fetch: the next panel too */
static void gemm(const outputs *o, const cpu_x *x, const uint32_t *list, uint32_t first, uint32_t n, bool fetch, float *acc) {
    memset(acc, 0, (size_t)n * CPU_PANEL * sizeof *acc);
    for (uint32_t g = 0; g < o->groups; g += 8) {
        const uint32_t some = o->groups - g < 8 ? o->groups - g : 8;
        const uint8_t *codes = o->codes + (size_t)g * (CPU_GROUP / 2), *scales = o->scales + 2 * (size_t)g,
                      *biases = o->biases + 2 * (size_t)g;
        size_t row_bytes = o->row_bytes, scale_bytes = o->scale_bytes;
        panel_copy copy;
        if (o->count < CPU_PANEL || some < 8) {
            copy_panel(&copy, o, g, some);
            codes = copy.codes[0], scales = copy.scales[0], biases = copy.biases[0];
            row_bytes = sizeof copy.codes[0], scale_bytes = sizeof copy.scales[0];
        }
        __m512 scale[8], bias[8];
        panel_numbers(scales, scale_bytes, scale);
        panel_numbers(biases, scale_bytes, bias);
        for (uint32_t h = 0; h < some; h++) {
            __m512i w[16];
            panel_codes(codes + h * (CPU_GROUP / 2), row_bytes, w);
            if (fetch) fetch_next_panel(o, g + h);
            panel_group(w, scale[h], bias[h], x, list, first, n, g + h, acc);
        }
    }
}

static void linear_vnni(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
                        uint32_t n, bool q8, float *acc) {
    if (!q8) {
        avx512_linear_f32(m, which, first, count, x, list, n, q8, acc);
        return;
    }
    const uint64_t row = (uint64_t)which * m->rows + first, row_bytes = weight_row_bytes(m), scale_bytes = 2 * weight_row_groups(m);
    const outputs o = {m->codes + row * row_bytes,
                       m->scales + row * scale_bytes,
                       m->biases + row * scale_bytes,
                       row_bytes,
                       scale_bytes,
                       (uint32_t)weight_row_groups(m),
                       count};
    if (n <= GEMV_ROWS)
        gemv(&o, x, list, n, acc);
    else /* in blocks whose sums stay in L1 */
        for (uint32_t i = 0; i < n; i += GEMM_ROWS)
            gemm(&o, x, list, i, n - i < GEMM_ROWS ? n - i : GEMM_ROWS, i == 0, acc + (size_t)i * CPU_PANEL);
}

static const cpu_peak peak = {.f32 = &avx512_peak_f32, .bf16 = &avx512_peak_bf16, .i8 = &vnni_peak_i8};

const cpu_kernels cpu_kernels_vnni = {
    .name = "vnni", .peak = &peak, .has_q8 = true, .linear = linear_vnni, .prepare_q8 = prepare_q8, AVX512_COMMON};

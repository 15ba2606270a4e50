/* q8_avx2.h: 4-bit codes times 8-bit activations in registers of 32 bytes, written once over the instructions that multiply bytes.
 *
 * With x = s_x · q8 in each group, Σ w x = s_w s_x Σ code · q8 + bias · Σ x.
 * One to three rows: each output's groups against the rows.  More rows: 16 outputs at a time; a group's codes are transposed so that lane
 * j is output j and register i holds inputs 4i … 4i+3, and tiles of three rows pass with four of their bytes broadcast at a time: five
 * loads for six products.
 *
 * Included by one file per instruction set, which includes avx2.h and defines before:
 *   products(w, x)            products of bytes, those of neighbours added up
 *   add_products(sum, w, x)   sum + products of bytes, for up to eight times in a row
 *   widened(sum)              such a sum in 32 bits: 8 lanes
 *   Q8(name)                  the name that a function has outside */
#include <string.h>

enum {
    LANES = 8,
    PANELS = 2, /* of 8 outputs */
    TILE_ROWS = 3,
    BLOCK_ROWS = 64,
    NUMBERS = 8, /* groups whose scales and biases are unpacked together */
    HALF = 8     /* steps of four inputs, low or high nibbles */
};

static inline __m256i low_nibbles(__m256i c) { return _mm256_and_si256(c, _mm256_set1_epi8(15)); }
static inline __m256i high_nibbles(__m256i c) { return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)); }

/* n ≤ 8 numbers, zeros behind them */
static inline __m256 load_numbers(const uint8_t *p, uint32_t n) {
    uint8_t t[2 * NUMBERS] = {0};
    if (n == NUMBERS) return avx2_bf16(p);
    memcpy(t, p, 2 * (size_t)n);
    return avx2_bf16(t);
}

/* sum + a group's products times its scale, in 8 lanes */
static inline __attribute__((always_inline)) __m256 add_group(__m256 sum, __m256i low, __m256i high, const int8_t *q8, __m256 scale) {
    const __m256i first = products(low, _mm256_loadu_si256((const __m256i *)q8)),
                  both = add_products(first, high, _mm256_loadu_si256((const __m256i *)(q8 + CPU_GROUP / 2)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(both)), scale, sum);
}

/* acc[i][0] = one output × row i of n ≤ 3.  near: codes to ask for.  The sums, two chains for each row, have names, since gcc keeps arrays
 * in memory.  A group's scale comes from a register of eight: from memory, where they were just stored, it is a tenth slower. */
static inline __attribute__((always_inline)) void gemv_output(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases,
                                                              const uint8_t *near, uint32_t groups, const cpu_q8_row *x, const uint32_t n,
                                                              float *acc) {
#define EACH_ROW(DO) DO(0) DO(1) DO(2)
#define BEGIN(R)                                                                                                                           \
    __m256 even##R = _mm256_setzero_ps(), odd##R = even##R;                                                                                \
    float left##R = 0;
    EACH_ROW(BEGIN)
    uint32_t g = 0;
    for (; g + NUMBERS <= groups; g += NUMBERS, codes += NUMBERS * (CPU_GROUP / 2)) {
        const __m256 s = avx2_bf16(scales + 2 * (size_t)g), bias = avx2_bf16(biases + 2 * (size_t)g);
#define SCALE(R)                                                                                                                           \
    __m256 scale##R = s;                                                                                                                   \
    if (R < n) {                                                                                                                           \
        scale##R = _mm256_mul_ps(s, _mm256_loadu_ps(x[R].scale + g));                                                                      \
        odd##R = _mm256_fmadd_ps(bias, _mm256_loadu_ps(x[R].sum + g), odd##R);                                                             \
    }
        EACH_ROW(SCALE)
#define GROUP_OF(R, SUM, H)                                                                                                                \
    if (R < n)                                                                                                                             \
        SUM##R =                                                                                                                           \
            add_group(SUM##R, low, high, x[R].q8 + ((size_t)g + H) * CPU_GROUP, _mm256_permutevar8x32_ps(scale##R, _mm256_set1_epi32(H)));
#define GROUP(SUM, H)                                                                                                                      \
    {                                                                                                                                      \
        if (H % 2 == 0) _mm_prefetch(near + ((size_t)g + H) * (CPU_GROUP / 2), _MM_HINT_T0); /* a line */                                  \
        const __m256i c = _mm256_loadu_si256((const __m256i *)(codes + H * (CPU_GROUP / 2))), low = low_nibbles(c),                        \
                      high = high_nibbles(c);                                                                                              \
        GROUP_OF(0, SUM, H) GROUP_OF(1, SUM, H) GROUP_OF(2, SUM, H)                                                                        \
    }
        GROUP(even, 0) GROUP(odd, 1) GROUP(even, 2) GROUP(odd, 3) GROUP(even, 4) GROUP(odd, 5) GROUP(even, 6) GROUP(odd, 7)
    }
    for (; g < groups; g++, codes += CPU_GROUP / 2) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)codes), low = low_nibbles(c), high = high_nibbles(c);
        const float s = load_bf16(scales + 2 * (size_t)g), bias = load_bf16(biases + 2 * (size_t)g);
#define LEFT(R)                                                                                                                            \
    if (R < n) {                                                                                                                           \
        even##R = add_group(even##R, low, high, x[R].q8 + (size_t)g * CPU_GROUP, _mm256_set1_ps(s * x[R].scale[g]));                       \
        left##R += bias * x[R].sum[g];                                                                                                     \
    }
        EACH_ROW(LEFT)
    }
#define END(R)                                                                                                                             \
    if (R < n) acc[R * CPU_WIDE] = avx2_sum8(_mm256_add_ps(even##R, odd##R)) + left##R;
    EACH_ROW(END)
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

/* One group of 16 outputs: codes[i][p] lane j = bytes 4i … 4i + 3 of output 8 p + j, in the order of cpu_x */
typedef struct group_codes {
    __m256i codes[2 * HALF][PANELS];
} group_codes;

typedef struct group_numbers {
    __m256 scale[PANELS], bias[PANELS];
} group_numbers;

/* Where 16 outputs begin; past the last, that one again. */
typedef struct outputs {
    const uint8_t *codes[PANELS * LANES], *scales[PANELS * LANES], *biases[PANELS * LANES];
} outputs;

static void unpack_codes(const outputs *o, uint32_t g, group_codes *w) {
    for (uint32_t p = 0; p < PANELS; p++) {
        __m256i c[LANES], t[HALF];
        for (uint32_t j = 0; j < LANES; j++)
            c[j] = _mm256_loadu_si256((const __m256i *)(o->codes[p * LANES + j] + (size_t)g * (CPU_GROUP / 2)));
        transpose(c, t);
        for (uint32_t i = 0; i < HALF; i++) w->codes[i][p] = low_nibbles(t[i]), w->codes[HALF + i][p] = high_nibbles(t[i]);
    }
}

/* Eight outputs' numbers of n ≤ 8 groups: t[g] lane j = output j's number g */
static void unpack_numbers(const uint8_t *const at[LANES], uint32_t g, uint32_t n, __m256i t[NUMBERS]) {
    __m256i r[LANES];
    for (uint32_t j = 0; j < LANES; j++) r[j] = _mm256_castps_si256(load_numbers(at[j] + 2 * (size_t)g, n));
    transpose(r, t);
}

typedef struct row_at {
    const int8_t *q8;
    const float *scale, *sum;
    float *acc;
} row_at;

/* x[r].acc += a group of 16 outputs × row r, for `rows` rows.  The sums have names, since gcc keeps arrays in memory. */
static inline __attribute__((always_inline)) void tile(const group_codes *w, const group_numbers *v, const row_at *x, const uint32_t rows,
                                                       uint32_t g) {
#define START(R)                                                                                                                           \
    const row_at *x##R = x + (R < rows ? R : 0);                                                                                           \
    const int8_t *q##R = x##R->q8 + (size_t)g * CPU_GROUP;                                                                                 \
    __m256i total##R##0 = _mm256_setzero_si256(), total##R##1 = total##R##0;
    EACH_ROW(START)
    for (uint32_t half = 0; half < 2 * HALF; half += HALF) {
#define CLEAR(R) __m256i sum##R##0 = _mm256_setzero_si256(), sum##R##1 = sum##R##0;
        EACH_ROW(CLEAR)
        for (uint32_t i = half; i < half + HALF; i++) {
            const __m256i c0 = w->codes[i][0], c1 = w->codes[i][1];
#define STEP(R)                                                                                                                            \
    if (R < rows) {                                                                                                                        \
        int32_t four;                                                                                                                      \
        memcpy(&four, q##R + 4 * (size_t)i, 4);                                                                                            \
        const __m256i b = _mm256_set1_epi32(four);                                                                                         \
        sum##R##0 = add_products(sum##R##0, c0, b), sum##R##1 = add_products(sum##R##1, c1, b);                                            \
    }
            EACH_ROW(STEP)
        }
#define WIDEN(R)                                                                                                                           \
    if (R < rows)                                                                                                                          \
        total##R##0 = _mm256_add_epi32(total##R##0, widened(sum##R##0)), total##R##1 = _mm256_add_epi32(total##R##1, widened(sum##R##1));
        EACH_ROW(WIDEN)
    }
#define ADD(R, P)                                                                                                                          \
    _mm256_storeu_ps(x##R->acc + P * LANES, _mm256_fmadd_ps(_mm256_mul_ps(v->scale[P], scale), _mm256_cvtepi32_ps(total##R##P),            \
                                                            _mm256_fmadd_ps(v->bias[P], sum, _mm256_loadu_ps(x##R->acc + P * LANES))));
#define FINISH(R)                                                                                                                          \
    if (R < rows) {                                                                                                                        \
        const __m256 scale = _mm256_set1_ps(x##R->scale[g]), sum = _mm256_set1_ps(x##R->sum[g]);                                           \
        ADD(R, 0) ADD(R, 1)                                                                                                                \
    }
    EACH_ROW(FINISH)
}

static __attribute__((noinline)) void tile_1(const group_codes *w, const group_numbers *v, const row_at *x, uint32_t g) {
    tile(w, v, x, 1, g);
}
static __attribute__((noinline)) void tile_2(const group_codes *w, const group_numbers *v, const row_at *x, uint32_t g) {
    tile(w, v, x, 2, g);
}
static __attribute__((noinline)) void tile_3(const group_codes *w, const group_numbers *v, const row_at *x, uint32_t g) {
    tile(w, v, x, 3, g);
}

/* 16 outputs × n ≤ BLOCK_ROWS rows; of what comes next, as much is asked for with each group. */
static void panel(const outputs *o, const cpu_ahead *next, const row_at *x, uint32_t n, uint32_t groups) {
    enum { LINE = 64, CODES = PANELS * LANES * (CPU_GROUP / 2), NUMBER_BYTES = PANELS * LANES * 2 };
    group_codes w;
    group_numbers v[NUMBERS];
    for (uint32_t g = 0; g < groups; g += NUMBERS) {
        const uint32_t some = groups - g < NUMBERS ? groups - g : NUMBERS;
        for (uint32_t p = 0; p < PANELS; p++) {
            __m256i t[NUMBERS];
            unpack_numbers(o->scales + p * LANES, g, some, t);
            for (uint32_t h = 0; h < NUMBERS; h++) v[h].scale[p] = _mm256_castsi256_ps(t[h]);
            unpack_numbers(o->biases + p * LANES, g, some, t);
            for (uint32_t h = 0; h < NUMBERS; h++) v[h].bias[p] = _mm256_castsi256_ps(t[h]);
        }
        for (uint32_t h = 0; h < some; h++) {
            if (next) {
                for (size_t line = 0; line < CODES; line += LINE) _mm_prefetch(next->codes + (size_t)(g + h) * CODES + line, _MM_HINT_T0);
                _mm_prefetch(next->scales + (size_t)(g + h) * NUMBER_BYTES, _MM_HINT_T0);
                _mm_prefetch(next->biases + (size_t)(g + h) * NUMBER_BYTES, _MM_HINT_T0);
            }
            unpack_codes(o, g + h, &w);
            uint32_t i = 0;
            for (; i + TILE_ROWS <= n; i += TILE_ROWS) tile_3(&w, &v[h], x + i, g + h);
            if (n - i == 1) tile_1(&w, &v[h], x + i, g + h);
            if (n - i == 2) tile_2(&w, &v[h], x + i, g + h);
        }
    }
}

static void gemm(const cpu_ahead *own, uint64_t row_bytes, uint64_t scale_bytes, uint32_t count, const cpu_x *x, const uint32_t *list,
                 uint32_t n, const cpu_ahead *ahead, float *acc) {
    row_at rows[BLOCK_ROWS];
    outputs o;
    for (uint32_t first = 0; first < n; first += BLOCK_ROWS) {
        const uint32_t some = n - first < BLOCK_ROWS ? n - first : BLOCK_ROWS;
        for (uint32_t j = 0; j < count; j += PANELS * LANES) {
            for (uint32_t i = 0; i < some; i++) {
                const size_t r = list ? list[first + i] : first + i, at = r * x->groups;
                rows[i] = (row_at){x->q8 + r * x->cols, x->scale + at, x->sum + at, acc + (size_t)(first + i) * CPU_WIDE + j};
                memset(rows[i].acc, 0, PANELS * LANES * sizeof *acc);
            }
            for (uint32_t l = 0; l < PANELS * LANES; l++) {
                const size_t at = j + l < count ? j + l : count - 1;
                o.codes[l] = own->codes + at * row_bytes, o.scales[l] = own->scales + at * scale_bytes,
                o.biases[l] = own->biases + at * scale_bytes;
            }
            const size_t behind = j + PANELS * LANES;
            const cpu_ahead here = {own->codes + behind * row_bytes, own->scales + behind * scale_bytes,
                                    own->biases + behind * scale_bytes};
            panel(&o, first ? NULL : behind < count ? &here : ahead, rows, some, x->groups);
        }
    }
}

void Q8(linear_q8)(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                   const cpu_ahead *ahead, float *acc) {
    const uint64_t row_bytes = weight_row_bytes(m), scale_bytes = weight_row_groups(m) * 2, row = (uint64_t)which * m->rows + first;
    const uint8_t *codes = m->codes + row * row_bytes, *scales = m->scales + row * scale_bytes, *biases = m->biases + row * scale_bytes;
    const cpu_ahead own = {codes, scales, biases};
    if (n > 3) {
        gemm(&own, row_bytes, scale_bytes, count, x, list, n, ahead, acc);
        return;
    }
    cpu_q8_row rows[3];
    for (uint32_t i = 0; i < n; i++) rows[i] = cpu_q8_row_of(x, list, i);
    const uint32_t rows_ahead = cpu_rows_ahead(row_bytes, CPU_NEAR);
    for (uint32_t j = 0; j < count; j++, codes += row_bytes, scales += scale_bytes, biases += scale_bytes, acc++) {
        const cpu_ahead near = cpu_ahead_of(&own, ahead, row_bytes, scale_bytes, count, j, rows_ahead);
        cpu_ask((cpu_ahead){NULL, near.scales, near.biases}, 0, scale_bytes);
        if (n == 1)
            gemv_output(codes, scales, biases, near.codes, x->groups, rows, 1, acc);
        else if (n == 2)
            gemv_output(codes, scales, biases, near.codes, x->groups, rows, 2, acc);
        else
            gemv_output(codes, scales, biases, near.codes, x->groups, rows, 3, acc);
    }
}

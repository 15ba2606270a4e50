/* gemm_vnni.c: AVX-512 VNNI: 4-bit codes times activations in bytes, for many rows; compiled with just these flags.
 *
 * 64 outputs at a time.  Two groups of their codes are transposed and unpacked once into L1, lane j of a register output j and its four
 * bytes inputs 4i … 4i+3 in the order of cpu_x.  Tiles of up to six rows and 64 outputs pass over it: a register of weights serves six
 * rows and four broadcast bytes of a row 64 outputs, so that the loads stay behind the products.  24 sums in 32 bits fill the registers;
 * those in float stay in memory, in L1 for BLOCK_ROWS rows.
 *
 * What bounds it: of 16 products of a row, 16 outputs and a group come one multiplication and two fused ones more, on the same two units.
 * That leaves 84 % of the products' peak, which the tiles reach in cache. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/x86/vnni.h"

enum {
    LANES = 16,
    PANELS = CPU_WIDE / LANES,
    TILE_ROWS = 6,
    BLOCK_ROWS = 64,
    NUMBERS = 8, /* groups whose scales and biases are unpacked together */
    Q24_BYTES = 3,
    PAIR = 2 /* groups of codes in a line of 64 bytes */
};

/* 4 × 16 dwords of 16 rows `stride` bytes apart: out[d] lane j = row j's dword d.  Sixteen bytes of four rows come into a register by
 * loads alone: broadcasts to one quarter of it. */
static inline __attribute__((always_inline)) void transpose16(const uint8_t *p, size_t stride, __m512i out[4]) {
    __m512i r[4];
    for (uint32_t i = 0; i < 4; i++) r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(p + i * stride)));
    for (uint32_t q = 1; q < 4; q++) {
        p += 4 * stride;
        for (uint32_t i = 0; i < 4; i++)
            r[i] = _mm512_mask_broadcast_i32x4(r[i], (__mmask16)(15u << 4 * q), _mm_loadu_si128((const __m128i *)(p + i * stride)));
    }
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]), c = _mm512_unpacklo_epi32(r[2], r[3]),
                  d = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

/* One group of up to 64 outputs, ready to multiply: codes[i][p] lane j = bytes 4i … 4i + 3 of output 16 p + j */
typedef struct group_codes {
    __m512i codes[16][PANELS];
} group_codes;

typedef struct group_numbers {
    __m512 scale[PANELS], bias[PANELS];
} group_numbers;

/* Two groups of 16 outputs: panel p of w */
static void unpack_codes(const uint8_t *codes, size_t stride, uint32_t p, group_codes w[PAIR]) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (uint32_t q = 0; q < 4; q++) {
        group_codes *to = &w[q / 2];
        __m512i t[4];
        transpose16(codes + 16 * q, stride, t);
        for (uint32_t d = 0; d < 4; d++) {
            const uint32_t i = q % 2 * 4 + d;
            to->codes[i][p] = _mm512_and_si512(t[d], low);
            to->codes[8 + i][p] = _mm512_and_si512(_mm512_srli_epi32(t[d], 4), low);
        }
    }
}

/* 16 outputs' bf16 numbers of eight groups: out[g] lane j = output j's number g */
static void unpack_numbers(const uint8_t *p, size_t stride, __m512 out[NUMBERS]) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xFFFF0000);
    __m512i t[4];
    transpose16(p, stride, t);
    for (uint32_t i = 0; i < 4; i++) { /* a dword holds two of them */
        out[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(t[i], 16));
        out[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(t[i], upper));
    }
}

typedef struct row_at {
    const int8_t *q8; /* of its bytes the highest */
    const float *scale, *sum;
    const int32_t *start; /* of q24 */
} row_at;

/* sum += four products in each lane.  Not an intrinsic: gcc 12 would keep the sums of a tile in memory, clang 19 computes them in an order
 * that needs more registers than there are. */
#define DOT(SUM, CODES, X) __asm__("vpdpbusd %2, %1, %0" : "+v"(SUM) : "v"(CODES), "v"(X))

/* Lines to ask for, of what comes next */
typedef struct lines {
    const uint8_t *at;
    uint32_t n;
} lines;

enum { LINE = 64, STEPS = 16 /* of a group, each four inputs */ };

/* What a tile multiplies of each row.  The upper two bytes of prepare_q24 come to at most 2²⁴ in a group and are one sum; Σ x is theirs. */
typedef enum part { BYTE, UPPER, LOW, PARTS } part;

/* acc[r] += a group of `panels` panels × `what` of row r, for `rows` rows; the middle byte of row r is BLOCK_ROWS behind x[r].  A line is
 * asked for at each step while there are any: a core waits once some 24 are under way.  The sums have names, since gcc keeps arrays in
 * memory. */
static inline __attribute__((always_inline)) void tile(const group_codes *w, const group_numbers *v, const row_at *x, const uint32_t rows,
                                                       const uint32_t panels, const part what, uint32_t g, lines ask,
                                                       float (*acc)[CPU_WIDE]) {
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define START(R)                                                                                                                           \
    const row_at *x##R = x + (R < rows ? R : 0);                                                                                           \
    const int8_t *q##R = x##R->q8 + (size_t)g * CPU_GROUP;                                                                                 \
    if (R < rows) _mm_prefetch(q##R + CPU_GROUP, _MM_HINT_T0);                                                                             \
    __m512i sum##R##0 = what == BYTE ? _mm512_setzero_si512() : _mm512_set1_epi32(x##R->start[g]), sum##R##1 = sum##R##0,                  \
            sum##R##2 = sum##R##0, sum##R##3 = sum##R##0;
    EACH_ROW(START)
#define MIDDLE(R)                                                                                                                          \
    if (R < rows) {                                                                                                                        \
        x##R += BLOCK_ROWS, q##R = x##R->q8 + (size_t)g * CPU_GROUP;                                                                       \
        const __m512i start = _mm512_set1_epi32(x##R->start[g]);                                                                           \
        sum##R##0 = _mm512_add_epi32(_mm512_slli_epi32(sum##R##0, 8), start),                                                              \
        sum##R##1 = _mm512_add_epi32(_mm512_slli_epi32(sum##R##1, 8), start);                                                              \
        sum##R##2 = _mm512_add_epi32(_mm512_slli_epi32(sum##R##2, 8), start),                                                              \
        sum##R##3 = _mm512_add_epi32(_mm512_slli_epi32(sum##R##3, 8), start);                                                              \
    }
#define STEP(R)                                                                                                                            \
    if (R < rows) {                                                                                                                        \
        int32_t four;                                                                                                                      \
        memcpy(&four, q##R + 4 * j, 4);                                                                                                    \
        const __m512i b = _mm512_set1_epi32(four);                                                                                         \
        DOT(sum##R##0, c0, b);                                                                                                             \
        if (panels > 1) DOT(sum##R##1, c1, b);                                                                                             \
        if (panels > 2) DOT(sum##R##2, c2, b);                                                                                             \
        if (panels > 2) DOT(sum##R##3, c3, b);                                                                                             \
    }
#define EACH_STEP(ASK)                                                                                                                     \
    for (uint32_t j = 0; j < STEPS; j++) {                                                                                                 \
        if (ASK && j < ask.n) _mm_prefetch(ask.at + j * LINE, _MM_HINT_T0);                                                                \
        const __m512i *c = w->codes[j], c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];                                                        \
        EACH_ROW(STEP)                                                                                                                     \
    }
    EACH_STEP(what != LOW)
    if (what == UPPER) {
        EACH_ROW(MIDDLE)
        EACH_STEP(false)
    }
#define ADD(R, P)                                                                                                                          \
    if (P < panels) {                                                                                                                      \
        float *to = acc[R] + P * LANES;                                                                                                    \
        const __m512 u = what == LOW ? _mm512_load_ps(to) : _mm512_fmadd_ps(v->bias[P], total, _mm512_load_ps(to));                        \
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_mul_ps(v->scale[P], scale), _mm512_cvtepi32_ps(sum##R##P), u));                         \
    }
#define FINISH(R)                                                                                                                          \
    if (R < rows) {                                                                                                                        \
        const __m512 scale = _mm512_set1_ps(x##R->scale[g]), total = _mm512_set1_ps((what == UPPER ? x##R - BLOCK_ROWS : x##R)->sum[g]);   \
        ADD(R, 0) ADD(R, 1) ADD(R, 2) ADD(R, 3)                                                                                            \
    }
    EACH_ROW(FINISH)
}

#define TILE_OF(ROWS, PANELS, WHAT)                                                                                                        \
    static __attribute__((noinline)) void tile_##ROWS##_##PANELS##_##WHAT(const group_codes *w, const group_numbers *v, const row_at *x,   \
                                                                          uint32_t g, lines ask, float(*acc)[CPU_WIDE]) {                  \
        tile(w, v, x, ROWS, PANELS, WHAT, g, ask, acc);                                                                                    \
    }
#define TILES_OF(PANELS, WHAT)                                                                                                             \
    TILE_OF(1, PANELS, WHAT)                                                                                                               \
    TILE_OF(2, PANELS, WHAT)                                                                                                               \
    TILE_OF(3, PANELS, WHAT) TILE_OF(4, PANELS, WHAT) TILE_OF(5, PANELS, WHAT) TILE_OF(6, PANELS, WHAT)
TILES_OF(2, BYTE)
TILES_OF(2, UPPER)
TILES_OF(2, LOW)
TILES_OF(4, BYTE)
TILES_OF(4, UPPER)
TILES_OF(4, LOW)

typedef void (*tile_fn)(const group_codes *w, const group_numbers *v, const row_at *x, uint32_t g, lines ask, float (*acc)[CPU_WIDE]);
#define TILES(PANELS, WHAT)                                                                                                                \
    {NULL,                                                                                                                                 \
     tile_1_##PANELS##_##WHAT,                                                                                                             \
     tile_2_##PANELS##_##WHAT,                                                                                                             \
     tile_3_##PANELS##_##WHAT,                                                                                                             \
     tile_4_##PANELS##_##WHAT,                                                                                                             \
     tile_5_##PANELS##_##WHAT,                                                                                                             \
     tile_6_##PANELS##_##WHAT}
/* [part][all four panels][rows] */
static const tile_fn tiles[PARTS][2][TILE_ROWS + 1] = {
    {TILES(2, BYTE), TILES(4, BYTE)}, {TILES(2, UPPER), TILES(4, UPPER)}, {TILES(2, LOW), TILES(4, LOW)}};

/* 64 outputs where fewer are left, or eight groups where fewer are left, copied so that whole registers may be read. */
typedef struct wide_copy {
    uint8_t codes[CPU_WIDE][NUMBERS * CPU_GROUP / 2], scales[CPU_WIDE][2 * NUMBERS], biases[CPU_WIDE][2 * NUMBERS];
} wide_copy;

static void copy_outputs(wide_copy *to, const vnni_outputs *o, uint32_t g, uint32_t groups) {
    memset(to, 0, sizeof *to);
    for (uint32_t j = 0; j < o->count; j++) {
        memcpy(to->codes[j], o->codes + j * o->row_bytes + (size_t)g * (CPU_GROUP / 2), groups * (CPU_GROUP / 2));
        memcpy(to->scales[j], o->scales + j * o->scale_bytes + 2 * (size_t)g, 2 * groups);
        memcpy(to->biases[j], o->biases + j * o->scale_bytes + 2 * (size_t)g, 2 * groups);
    }
}

/* Lines from … to - 1 of as many of the next 64 outputs as they have for each two groups: 64 of codes, and four of scales and of biases,
 * which are asked for here; g: the first of these groups.  All are near when these outputs are done.  They go to the first cache, and
 * from there to the second one: asked for there, they come a seventh slower. */
static inline __attribute__((always_inline)) lines fetch_next(const cpu_ahead *next, uint32_t g, uint32_t from, uint32_t to) {
    const size_t numbers = CPU_WIDE * 2 * (size_t)g;
    for (uint32_t i = (from + 15) / 16; i * 16 < to; i++) {
        _mm_prefetch(next->scales + numbers + i * LINE, _MM_HINT_T0);
        _mm_prefetch(next->biases + numbers + i * LINE, _MM_HINT_T0);
    }
    const uint8_t *codes = next->codes + CPU_WIDE * (size_t)g * (CPU_GROUP / 2);
    for (; to - from > STEPS; from++) _mm_prefetch(codes + from * LINE, _MM_HINT_T0); /* one or two tiles have them all */
    return (lines){codes + from * LINE, to - from};
}

/* n ≤ BLOCK_ROWS rows of one byte or, q24, three; fetch: the next outputs too */
static void block(const vnni_outputs *o, row_at (*x)[BLOCK_ROWS], uint32_t n, bool q24, bool fetch, float (*acc)[CPU_WIDE]) {
    group_codes w[PAIR];
    group_numbers v[NUMBERS];
    wide_copy copy;
    const bool whole = o->count > CPU_WIDE / 2;
    const uint32_t panels = whole ? PANELS : PANELS / 2, tiles_n = (n + TILE_ROWS - 1) / TILE_ROWS;
    memset(acc, 0, n * sizeof *acc);
    for (uint32_t g = 0; g < o->groups; g += NUMBERS) {
        const uint32_t some = o->groups - g < NUMBERS ? o->groups - g : NUMBERS;
        const uint8_t *codes = o->codes + (size_t)g * (CPU_GROUP / 2), *scales = o->scales + 2 * (size_t)g,
                      *biases = o->biases + 2 * (size_t)g;
        size_t row_bytes = o->row_bytes, scale_bytes = o->scale_bytes;
        if (o->count < panels * LANES || some < NUMBERS) {
            copy_outputs(&copy, o, g, some);
            codes = copy.codes[0], scales = copy.scales[0], biases = copy.biases[0];
            row_bytes = sizeof copy.codes[0], scale_bytes = sizeof copy.scales[0];
        }
        for (uint32_t p = 0; p < panels; p++) {
            __m512 t[NUMBERS];
            unpack_numbers(scales + p * LANES * scale_bytes, scale_bytes, t);
            for (uint32_t h = 0; h < NUMBERS; h++) v[h].scale[p] = t[h];
            unpack_numbers(biases + p * LANES * scale_bytes, scale_bytes, t);
            for (uint32_t h = 0; h < NUMBERS; h++) /* q24 multiplies code - 8 */
                v[h].bias[p] = q24 ? _mm512_fmadd_ps(v[h].scale[p], _mm512_set1_ps(8), t[h]) : t[h];
        }
        for (uint32_t h = 0; h < some; h++) {
            if (h % PAIR == 0) {
                for (uint32_t p = 0; p < panels; p++) unpack_codes(codes + p * LANES * row_bytes + h * (CPU_GROUP / 2), row_bytes, p, w);
            }
            for (uint32_t t = 0, first = 0; t < tiles_n; t++) { /* tiles as equal as can be */
                const uint32_t rows = (n - first) / (tiles_n - t), at = h % PAIR * tiles_n + t, all = PAIR * tiles_n;
                lines ask = {0};
                if (fetch) ask = fetch_next(o->ahead, g + h - h % PAIR, at * CPU_WIDE / all, (at + 1) * CPU_WIDE / all);
                tiles[q24 ? UPPER : BYTE][whole][rows](&w[h % PAIR], &v[h], x[0] + first, g + h, ask, acc + first);
                if (q24) tiles[LOW][whole][rows](&w[h % PAIR], &v[h], x[2] + first, g + h, (lines){0}, acc + first);
                first += rows;
            }
        }
    }
}

void vnni_gemm(const vnni_outputs *o, const cpu_x *x, const uint32_t *list, uint32_t n, bool q24, float *out) {
    row_at rows[Q24_BYTES][BLOCK_ROWS];
    _Alignas(64) float acc[BLOCK_ROWS][CPU_WIDE];
    for (uint32_t i = 0; i < n; i += BLOCK_ROWS) {
        const uint32_t some = n - i < BLOCK_ROWS ? n - i : BLOCK_ROWS;
        for (uint32_t b = 0; b < (q24 ? Q24_BYTES : 1); b++)
            for (uint32_t r = 0; r < some; r++) {
                const size_t at = (size_t)b * x->rows + (list ? list[i + r] : i + r), g = at * x->groups;
                rows[b][r] = (row_at){x->q8 + at * x->cols, x->scale + g, x->sum + g, q24 ? x->start + g : NULL};
            }
        block(o, rows, some, q24, i == 0 && o->ahead, acc);
        for (uint32_t r = 0; r < some; r++) memcpy(out + (size_t)(i + r) * CPU_WIDE, acc[r], o->count * sizeof *out);
    }
}

/* kernels.h: the inner loops of the CPU backend, one table per instruction set.
 *
 * A table is plain data; isa.c picks the best one that the machine has.  Each entry is compared with backend/ref in tests/kernels.
 * Kernels take work for one thread, never lock, and allocate nothing. */
#ifndef CALLA_BACKEND_CPU_KERNELS_H
#define CALLA_BACKEND_CPU_KERNELS_H

#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/peak.h"

enum {
    CPU_GROUP = 64,     /* inputs that share a scale in the matrices that have fast kernels */
    CPU_PANEL = 16,     /* outputs that kernels compute together, at least */
    CPU_WIDE = 64,      /* at most, in one call of `linear` */
    CPU_MAX_COLS = 8192 /* inputs of a matrix: rows stand on the stack */
};

/* Rows of activations made ready for `linear`.  Within each group of 64 inputs the even ones come first, then the odd ones, since the
 * low and high nibbles of 32 bytes of codes are the even and odd inputs. */
typedef struct cpu_x {
    uint32_t cols, rows, groups; /* groups: cols / 64 */
    bool fine;                   /* q8 holds 2·rows: behind the rows, what their 8 bits left over, in 8 bits again */
    const float *plain;          /* [rows][plain_stride]: as they were, for matrices without a fast kernel */
    size_t plain_stride;
    float *f32;       /* [rows][cols] reordered; exact precision */
    int8_t *q8;       /* [rows][cols] reordered: x = scale · q8; fast precision */
    float *scale;     /* [rows][groups], of q8 */
    float *sum;       /* [rows][groups] Σ of the group's values (as quantized, if they are) */
    bool q24;         /* exact precision: if rows > 4, beside f32 prepare_q24's; all others hold 3·rows then */
    int32_t *start;   /* [3·rows][groups], of q24 */
    bool fixed_order; /* sums are in the same order whatever the number of rows */
} cpu_x;

/* One of them, of fast precision. */
typedef struct cpu_q8_row {
    const int8_t *q8;
    const float *scale, *sum;
} cpu_q8_row;

/* Row list[i], or i without a list. */
static inline cpu_q8_row cpu_q8_row_of(const cpu_x *x, const uint32_t *list, uint32_t i) {
    const size_t r = list ? list[i] : i;
    return (cpu_q8_row){x->q8 + r * x->cols, x->scale + r * x->groups, x->sum + r * x->groups};
}

/* What a thread will read after this: as many outputs of a matrix with as many inputs.  A kernel may ask for their bytes meanwhile. */
typedef struct cpu_ahead {
    const uint8_t *codes, *scales, *biases;
} cpu_ahead;

typedef struct cpu_mixers {
    /* `rows` steps of the delta rule of one head: S ← αS; u = β(v − kᵀS); S ← S + k uᵀ; o = qᵀS.  The state is read from src and left
     * in dst [128 key][128 value] (they may be the same).  q, k [rows][128]; v, out: rows at a stride.  recurrent: a row's bits do not depend on how many there
     * are; else some rows may be taken together, which is faster. */
    void (*delta)(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                  const float *beta, float *out, size_t out_stride, uint32_t rows, bool recurrent);
    /* scores[h][t] = q_h · k_t for h < heads, t < n; k: a block of the cache (kv_block_bytes), q at q_stride.  ahead: the block that
     * will be asked for next, or NULL.  Each score, and each sum of values, is the same whatever n and heads are. */
    void (*attend_scores)(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t n, float *scores,
                          size_t scores_stride, const uint8_t *ahead);
    /* out[h] += Σ_t p[h][t] v_t in order of t; v: a block; out [heads][256] */
    void (*attend_values)(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, calla_kv kv, uint32_t n, float *out,
                          const uint8_t *ahead);
    float (*largest)(const float *p, uint32_t n); /* n ≥ 1, no NaN */
    /* p ← exp(p − max); returns Σ */
    float (*exp_sum)(float *p, uint32_t n, float max);
} cpu_mixers;

/* attend_scores and attend_values of one type of cache in fast precision; p ≥ 0.  What is rounded beside the cache's own values: with bf16
 * q and p to bf16; with 8 bits q to 1/65,024 of the largest of its 64, and p times V's scale to 1/65,534 of the largest p of the call times
 * the largest scale of the 64.  A score is the same whatever n and heads are, a sum of values whatever heads are. */
typedef struct cpu_attention {
    void (*scores)(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, uint32_t n, float *scores, size_t scores_stride,
                   const uint8_t *ahead);
    void (*values)(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, uint32_t n, float *out, const uint8_t *ahead);
} cpu_attention;

typedef struct cpu_kernels {
    const char *name;
    const cpu_peak *peak; /* what its instructions can do at most, for calla bench */
    bool has_q8;          /* linear takes q8 */

    /* acc[i][j] = Σ_k W[first + j][k] x[list[i]][k] for i < n, j < count ≤ 64; W: matrix `which` of m, group 64, 4 bits.  list NULL:
     * rows 0 … n-1.  q8: use x->q8, else x->f32.  What stands in acc behind count is undefined.  ahead: or NULL. */
    void (*linear)(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                   bool q8, const cpu_ahead *ahead, float *acc /* [n][64] */);
    /* out [cols]: one row of any matrix, widened */
    void (*weight_row)(const weight_mat *m, uint32_t which, uint32_t row, float *out);
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* Fill f32 (or q8 and scale) and sum of one row from x [cols]. */
    void (*prepare_f32)(const float *x, uint32_t cols, float *f32, float *sum);
    void (*prepare_q8)(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum);
    /* NULL, or what linear takes for more than four rows where q8 is false: in each group x = scale · v with |v| < 2²³, reordered.  The three
     * bytes of v, signed, the highest first, stand `plane` bytes apart; with each, `groups` apart, its scale (scale · 65536, · 256, scale)
     * and start, -8 times the sum of these bytes, with which Σ (code - 8) · byte begins.  Of the lower two bytes sum is set to 0: the
     * first one's is Σ x.  A group's largest value keeps 23 bits of float32's 24, and what is summed within a group is exact. */
    void (*prepare_q24)(const float *x, uint32_t cols, size_t plane, size_t groups, int8_t *q, float *scale, float *sum, int32_t *start);
    /* NULL, or out[i][j] = Σ_k w[j][k] x[i][k] of four vectors each */
    void (*dots)(const float *const w[4], const float *const x[4], uint32_t n, float out[4][4]);
    /* NULL, or out[j] = Σ_k W[first + j][k] x[k] for j < count; W: matrix `which` of m, group 64, 8 bits; to the bit what dot gives for a
     * weight_row.  ahead: or NULL. */
    void (*byte_dots)(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const float *x, const cpu_ahead *ahead,
                      float *out);
    /* a ← silu(a) · b, or silu(a) where b is NULL */
    void (*silu_mul)(float *a, const float *b, uint32_t n);
    /* a ← a · sigmoid(b) */
    void (*sigmoid_mul)(float *a, const float *b, uint32_t n);

    const cpu_mixers *mixer;
    const cpu_attention *attention[CALLA_KV_Q8 + 1]; /* of each type of cache in fast precision, or NULL: mixer's */
} cpu_kernels;

/* acc[i][0 … count - 1] ← 0 */
static inline void cpu_clear(float *acc, uint32_t n, uint32_t count) {
    for (uint32_t i = 0; i < n; i++) memset(acc + (size_t)i * CPU_WIDE, 0, count * sizeof *acc);
}

/* With few rows of activations a matrix costs what reading it costs, and hardware foresees little of it (docs/speed.md).  While output j
 * is computed, its kernel asks for one CPU_FAR on into the second cache, which takes more requests at a time than the first and answers
 * them while that one is full, and for one CPU_NEAR on into the first.  Not a multiple of 4 KB, where loads wait for what is on its way
 * into lines of the same place in the cache. */
enum { CPU_NEAR = 5 << 10, CPU_FAR = 12 << 10 }; /* bytes of codes */

static inline uint32_t cpu_rows_ahead(size_t row_bytes, size_t bytes) {
    enum { ALIAS = 4 << 10 };
    const uint32_t n = (uint32_t)((bytes + row_bytes - 1) / row_bytes);
    return n * row_bytes % ALIAS ? n : n + 1;
}

/* The output that is `rows` behind output j of `count` that begin at `own`; behind the last, those of `next`; without any, the last. */
static inline cpu_ahead cpu_ahead_of(const cpu_ahead *own, const cpu_ahead *next, size_t row_bytes, size_t scale_bytes, uint32_t count,
                                     uint32_t j, uint32_t rows) {
    size_t at = (size_t)j + rows;
    if (at >= count && next)
        own = next, at -= count;
    else if (at >= count)
        at = count - 1;
    return (cpu_ahead){own->codes + at * row_bytes, own->scales + at * scale_bytes, own->biases + at * scale_bytes};
}

/* Asks for a whole output. */
static inline __attribute__((always_inline)) void cpu_ask(cpu_ahead at, size_t row_bytes, size_t scale_bytes) {
    enum { LINE = 64 };
    for (size_t i = 0; i < row_bytes; i += LINE) __builtin_prefetch(at.codes + i);
    for (size_t i = 0; i < scale_bytes; i += LINE) {
        __builtin_prefetch(at.scales + i);
        __builtin_prefetch(at.biases + i);
    }
}

extern const cpu_kernels cpu_kernels_c;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2, cpu_kernels_avxvnni, cpu_kernels_avx512, cpu_kernels_vnni, cpu_kernels_bf16;
#elif defined(__aarch64__)
extern const cpu_kernels cpu_kernels_neon, cpu_kernels_dotprod, cpu_kernels_i8mm;
#endif

enum { CPU_MAX_TABLES = 8 };
/* The tables this machine can run, best first; returns how many. */
size_t cpu_kernels_available(const cpu_kernels *found[CPU_MAX_TABLES]);
/* The best of them that CALLA_CPU (a table's name) allows; NULL with err when it names none. */
const cpu_kernels *cpu_kernels_pick(calla_error *err);

#endif

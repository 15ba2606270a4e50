/* test_cpu.c: every kernel table that this machine can run, against plain double arithmetic: random, wide-range and adversarial values,
 * every tail length, memory guarded on both sides.  Tolerances grow with n · eps · Σ|a·b|; NaN fails.
 *
 * With CALLA_CPU set only that table is tested (and the test fails where the machine lacks it).
 * usage: test_cpu [TABLE…]: the tables that this machine must be found to run, best first. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "backend/ref/plain.h"
#include "base/float.h"
#include "base/random.h"
#include "support/guard.h"
#include "unit.h"

/* Kernels are chosen by rows of both sides, whatever the columns: matrices of up to FEW_COLS see every pair of them, and all values. */
enum { MAX_COLS = 2048, FEW_COLS = 512, MAX_ROWS = 40, FEW_ROWS = 17, WIDE = 67, MATRICES = 2 };

static const cpu_kernels *k;
static uint64_t random_state;
static uint64_t next(void) { return random_mix(random_state += 0x9E3779B97F4A7C15u); }
static float uniform(float range) { return ((float)(next() >> 40) * 0x1p-23f - 1) * range; }

/* what: 0 random, 1 wide range, 2 equal values, 3 alternating signs, 4 mostly zero */
static float value(int what, size_t i) {
    switch (what) {
    case 0: return uniform(1);
    case 1: return uniform(1) * exp2f((float)(next() % 24) - 12);
    case 2: return 0.37f;
    case 3: return i % 2 ? -1.5f : 1.5f;
    default: return next() % 16 ? 0 : uniform(4);
    }
}

static void assert_within(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        print_error("%s: %.9g, expected %.9g within %.3g\n", k->name, got, want, tolerance);
        fail();
    }
}

static double float_error(double n, double magnitude) { return (n + 8) * (double)FLT_EPSILON * magnitude + 1e-30; }

static void assert_close(double got, double want, double n, double magnitude) { assert_within(got, want, float_error(n, magnitude)); }

typedef struct matrix {
    weight_mat m;
    uint8_t *codes, *scales, *biases;
} matrix;

static matrix new_matrix(uint32_t cols, uint32_t bits, uint32_t group, guard_side side) {
    matrix x;
    const size_t rows = (size_t)MATRICES * WIDE, groups = group ? cols / group : 0;
    x.codes = guard_alloc(rows * cols * bits / 8, side);
    x.scales = guard_alloc(rows * groups * 2 + 1, side);
    x.biases = guard_alloc(rows * groups * 2 + 1, side);
    if (side == GUARD_AFTER) x.scales++, x.biases++; /* odd addresses */
    for (size_t i = 0; i < rows * cols * bits / 8; i++) x.codes[i] = (uint8_t)(next() % 8 ? next() : next() % 2 ? 0xFF : 0);
    for (size_t i = 0; i < rows * groups; i++) {
        const uint16_t s = float_to_bf16(uniform(0.05f)), b = float_to_bf16(uniform(0.3f));
        memcpy(x.scales + 2 * i, &s, 2), memcpy(x.biases + 2 * i, &b, 2);
    }
    if (bits == 16)
        for (size_t i = 0; i < rows * cols; i++) {
            const uint16_t v = float_to_bf16(uniform(2));
            memcpy(x.codes + 2 * i, &v, 2);
        }
    x.m = (weight_mat){x.codes, x.scales, x.biases, MATRICES, WIDE, cols, bits, group};
    return x;
}

static cpu_x new_x(uint32_t cols, int what, guard_side side) {
    cpu_x x = {.cols = cols, .rows = MAX_ROWS, .groups = cols / CPU_GROUP, .plain_stride = cols};
    float *plain = guard_alloc((size_t)MAX_ROWS * cols * 4, side);
    for (size_t i = 0; i < (size_t)MAX_ROWS * cols; i++) plain[i] = value(what, i);
    x.plain = plain;
    x.f32 = guard_alloc((size_t)MAX_ROWS * cols * 4, side);
    x.q8 = guard_alloc((size_t)3 * MAX_ROWS * cols, side);
    x.scale = guard_alloc((size_t)3 * MAX_ROWS * x.groups * 4, side);
    x.start = guard_alloc((size_t)3 * MAX_ROWS * x.groups * 4, side);
    x.sum = guard_alloc((size_t)3 * MAX_ROWS * x.groups * 4, side);
    return x;
}

/* The value of input i of a row as the kernels see it: exact, or as quantized. */
static double seen(const cpu_x *x, uint32_t row, uint32_t i, bool q8) {
    const uint32_t g = i / CPU_GROUP, in = i % CPU_GROUP, at = g * CPU_GROUP + in / 2 + in % 2 * (CPU_GROUP / 2);
    return q8 ? (double)x->q8[(size_t)row * x->cols + at] * (double)x->scale[(size_t)row * x->groups + g]
              : (double)x->f32[(size_t)row * x->cols + at];
}

/* q24: exactly, by three bytes of each value where rows are many */
static void check_linear(uint32_t cols, int what, bool q8, bool q24, guard_side side) {
    static double want[WIDE][MAX_ROWS], magnitude[WIDE][MAX_ROWS];
    matrix w = new_matrix(cols, 4, CPU_GROUP, side);
    cpu_x x = new_x(cols, what, side);
    x.q24 = q24;
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        const size_t at = (size_t)r * cols, g = (size_t)r * x.groups;
        if (q24)
            k->prepare_q24(x.plain + at, cols, (size_t)MAX_ROWS * cols, (size_t)MAX_ROWS * x.groups, x.q8 + at, x.scale + g, x.sum + g,
                           x.start + g);
        if (q8)
            k->prepare_q8(x.plain + at, cols, x.q8 + at, x.scale + g, x.sum + g);
        else
            k->prepare_f32(x.plain + at, cols, x.f32 + at, x.sum + g);
    }
    const bool wide = cols > FEW_COLS;
    const uint32_t which = 1, offset = 3, rows = wide ? FEW_ROWS : MAX_ROWS;
    float row[MAX_COLS];
    for (uint32_t o = offset; o < offset + CPU_WIDE; o++) {
        ref_weight_row(&w.m, which, o, row);
        for (uint32_t r = 0; r < rows; r++) {
            want[o][r] = magnitude[o][r] = 0;
            for (uint32_t i = 0; i < cols; i++) {
                const double p = (double)row[i] * seen(&x, r, i, q8);
                want[o][r] += p;
                /* code and bias are summed apart, so each counts for itself */
                const double scale = (double)load_bf16(w.m.scales + (((size_t)which * WIDE + o) * x.groups + i / CPU_GROUP) * 2);
                magnitude[o][r] += fabs(p) + 15 * fabs(scale * seen(&x, r, i, q8));
            }
        }
    }
    static const uint32_t ns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, MAX_ROWS}, counts[] = {1, 2, 3, 16, 17, 32, 33, 63, CPU_WIDE};
    const cpu_ahead ahead = {w.m.codes, w.m.scales, w.m.biases};
    uint32_t list[MAX_ROWS];
    for (uint32_t i = 0; i < rows; i++) list[i] = (i * 7 + 3) % rows;
    for (size_t c = 0; c < sizeof ns / sizeof *ns; c++) {
        const uint32_t n = ns[c];
        if (wide && n != 1 && n != 5 && n != FEW_ROWS) continue;
        float *acc = guard_alloc((size_t)n * CPU_WIDE * 4, side);
        for (size_t t = 0; t < sizeof counts / sizeof *counts; t++)
            for (int listed = 0; listed < 2; listed++) {
                const uint32_t count = counts[t];
                if (wide && t % 4 != 0) continue;
                k->linear(&w.m, which, offset, count, &x, listed ? list : NULL, n, q8, listed ? &ahead : NULL, acc);
                for (uint32_t i = 0; i < n; i++)
                    for (uint32_t j = 0; j < count; j++) {
                        const uint32_t r = listed ? list[i] : i;
                        assert_close((double)acc[(size_t)i * CPU_WIDE + j], want[offset + j][r], cols, magnitude[offset + j][r]);
                    }
            }
    }
    guard_free_all();
}

static void test_linear(void **state) {
    (void)state;
    static const uint32_t cols[] = {64, 128, 192, 512, 1088, 2048};
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
        for (int what = 0; what < (cols[c] > FEW_COLS ? 3 : 5); what++) {
            check_linear(cols[c], what, false, false, what % 2 ? GUARD_AFTER : GUARD_BEFORE);
            if (k->has_q8) check_linear(cols[c], what, true, false, what % 2 ? GUARD_BEFORE : GUARD_AFTER);
            if (k->prepare_q24) check_linear(cols[c], what, false, true, what % 2 ? GUARD_AFTER : GUARD_BEFORE);
        }
}

static void test_weight_row(void **state) {
    (void)state;
    static const struct {
        uint32_t bits, group, cols;
    } forms[] = {{4, 32, 96}, {4, 64, 192}, {4, 128, 384}, {8, 32, 96}, {8, 64, 192}, {8, 128, 384}, {16, 0, 8}, {16, 0, 77}, {16, 0, 192}};
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int side = 0; side < 2; side++) {
            const uint32_t cols = forms[f].cols;
            matrix w = new_matrix(cols, forms[f].bits, forms[f].group, side ? GUARD_AFTER : GUARD_BEFORE);
            float *got = guard_alloc(cols * 4, side ? GUARD_AFTER : GUARD_BEFORE), want[MAX_COLS];
            for (uint32_t r = 0; r < WIDE; r++) {
                ref_weight_row(&w.m, 1, r, want);
                k->weight_row(&w.m, 1, r, got);
                for (uint32_t i = 0; i < cols; i++)
                    assert_close((double)got[i], (double)want[i], 1, fabs((double)want[i]) + 13); /* |scale · code| < 13 */
            }
            guard_free_all();
        }
}

static void test_dot(void **state) {
    (void)state;
    for (uint32_t n = 0; n <= 300; n++)
        for (int what = 0; what < 5; what++) {
            float *a = guard_alloc(n * 4 + 4, GUARD_AFTER), *b = guard_alloc(n * 4 + 4, GUARD_AFTER);
            a++, b++; /* exactly n floats up to the guard */
            double want = 0, magnitude = 0;
            for (uint32_t i = 0; i < n; i++) {
                a[i] = value(what, i), b[i] = value((what + 1) % 5, i);
                want += (double)a[i] * b[i], magnitude += fabs((double)a[i] * b[i]);
            }
            assert_close((double)k->dot(a, b, n), want, n, magnitude);
            guard_free_all();
        }
}

static void test_dots(void **state) {
    (void)state;
    for (uint32_t n = 1; k->dots && n <= 200; n++)
        for (int what = 0; what < 5; what++) {
            float *v[8], out[4][4];
            for (uint32_t r = 0; r < 8; r++) {
                v[r] = guard_alloc(n * 4, r % 2 ? GUARD_BEFORE : GUARD_AFTER);
                for (uint32_t i = 0; i < n; i++) v[r][i] = value(r < 4 ? what : (what + 1) % 5, i);
            }
            const float *const w[4] = {v[0], v[1], v[2], v[3]}, *const x[4] = {v[4], v[5], v[6], v[7]};
            k->dots(w, x, n, out);
            for (uint32_t r = 0; r < 16; r++) {
                double want = 0, magnitude = 0;
                for (uint32_t i = 0; i < n; i++) {
                    want += (double)x[r / 4][i] * (double)w[r % 4][i], magnitude += fabs((double)x[r / 4][i] * (double)w[r % 4][i]);
                }
                assert_close((double)out[r / 4][r % 4], want, n, magnitude);
            }
            guard_free_all();
        }
}

static void test_byte_dots(void **state) {
    (void)state;
    for (uint32_t cols = 64; k->byte_dots && cols <= 512; cols *= 2)
        for (int what = 0; what < 5; what++) {
            const guard_side side = what % 2 ? GUARD_AFTER : GUARD_BEFORE;
            matrix w = new_matrix(cols, 8, CPU_GROUP, side);
            float *x = guard_alloc(cols * 4, side), row[512];
            for (uint32_t i = 0; i < cols; i++) x[i] = value(what, i);
            for (uint32_t count = 1; count <= 5; count++) {
                float *out = guard_alloc(count * 4, side);
                k->byte_dots(&w.m, MATRICES - 1, WIDE - count, count, x, NULL, out);
                for (uint32_t j = 0; j < count; j++) {
                    k->weight_row(&w.m, MATRICES - 1, WIDE - count + j, row);
                    const float want = k->dot(row, x, cols);
                    assert_true(!memcmp(&out[j], &want, sizeof want));
                }
            }
            guard_free_all();
        }
}

static void test_prepare(void **state) {
    (void)state;
    for (int what = 0; what < 5; what++) {
        const uint32_t cols = 320;
        cpu_x x = new_x(cols, what, GUARD_AFTER);
        k->prepare_f32(x.plain, cols, x.f32, x.sum);
        for (uint32_t g = 0; g < x.groups; g++) {
            double sum = 0, magnitude = 0;
            for (uint32_t i = g * CPU_GROUP; i < (g + 1) * CPU_GROUP; i++) {
                assert_true(seen(&x, 0, i, false) == (double)x.plain[i]);
                sum += (double)x.plain[i], magnitude += fabs((double)x.plain[i]);
            }
            assert_close((double)x.sum[g], sum, CPU_GROUP, magnitude);
        }
        if (k->prepare_q24) {
            k->prepare_q24(x.plain, cols, cols, x.groups, x.q8, x.scale, x.sum, x.start);
            for (uint32_t i = 0; i < cols; i++) { /* x.f32 is in the order of q24 */
                const double v = 65536.0 * x.q8[i] + 256.0 * x.q8[cols + i] + x.q8[2 * cols + i],
                             scale = (double)x.scale[2 * x.groups + i / CPU_GROUP];
                assert_true(scale * 65536 == (double)x.scale[i / CPU_GROUP]);
                assert_true(fabs(v * scale - (double)x.f32[i]) <= 1.5 * scale);
            }
        }
        if (k->has_q8) {
            k->prepare_q8(x.plain, cols, x.q8, x.scale, x.sum);
            for (uint32_t g = 0; g < x.groups; g++) {
                double sum = 0, magnitude = 0;
                for (uint32_t i = g * CPU_GROUP; i < (g + 1) * CPU_GROUP; i++) {
                    assert_true(fabs(seen(&x, 0, i, true) - (double)x.plain[i]) <= 0.5001 * (double)x.scale[g]);
                    sum += seen(&x, 0, i, true), magnitude += fabs(seen(&x, 0, i, true));
                }
                assert_close((double)x.sum[g], sum, CPU_GROUP, magnitude);
            }
        }
        guard_free_all();
    }
}

static void test_activations(void **state) {
    (void)state;
    static const float extremes[] = {0, -0.0f, 1e-30f, -1e-30f, 30, -30, 87, -87, 89, -89, 1000, -1000, 3e38f, -3e38f};
    for (uint32_t n = 1; n <= 70; n++) {
        float *a = guard_alloc(n * 4, GUARD_AFTER), *b = guard_alloc(n * 4, GUARD_AFTER), before[70];
        for (int form = 0; form < 3; form++) {
            for (uint32_t i = 0; i < n; i++) {
                before[i] = a[i] = next() % 3 ? uniform(20) : extremes[next() % 14];
                b[i] = form == 2 ? a[i] : uniform(3);
                if (form == 2) before[i] = a[i] = uniform(3);
            }
            if (form == 0) k->silu_mul(a, NULL, n);
            if (form == 1) k->silu_mul(a, b, n);
            if (form == 2) k->sigmoid_mul(a, b, n);
            for (uint32_t i = 0; i < n; i++) {
                const double x = (double)before[i], s = 1 / (1 + exp(-(form == 2 ? (double)b[i] : x))),
                             want = x * s * (form == 1 ? (double)b[i] : 1);
                if (fabs(want) > (double)FLT_MAX)
                    assert_true(isinf(a[i]));
                else
                    assert_close((double)a[i], want, 8, fabs(want) + 1e-30);
            }
        }
        float max = -INFINITY;
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) before[i] = a[i] = i % 5 == 4 ? -200 : uniform(30), max = a[i] > max ? a[i] : max;
        const float got = k->mixer->exp_sum(a, n, max);
        for (uint32_t i = 0; i < n; i++) {
            const double want = exp((double)(before[i] - max));
            assert_true(fabs((double)a[i] - want) <= 1e-6 * want + 1e-37);
            sum += want;
        }
        assert_close((double)got, sum, n + 8, sum);
        guard_free_all();
    }
}

/* form 0: random rows; 1: all keys equal, of length 1, and β = 1; 2: the state forgotten at once, or never */
static void check_delta(uint32_t rows, int form, bool in_place, bool recurrent) {
    enum { D = GDN_HEAD_DIM, ROWS = 70, STRIDE = D + 3 };
    static double S[D][D];
    const size_t strided = (rows - 1) * STRIDE + D;
    float *src = guard_alloc(D * D * 4, GUARD_AFTER), *dst = in_place ? src : guard_alloc(D * D * 4, GUARD_AFTER),
          *once = guard_alloc(D * D * 4, GUARD_AFTER), *q = guard_alloc(rows * D * 4, GUARD_AFTER),
          *kk = guard_alloc(rows * D * 4, GUARD_AFTER), *v = guard_alloc(strided * 4, GUARD_AFTER),
          *out = guard_alloc(strided * 4, GUARD_AFTER), *one = guard_alloc(D * 4, GUARD_AFTER), alpha[ROWS], beta[ROWS];
    for (int i = 0; i < D * D; i++) S[i / D][i % D] = (double)(once[i] = src[i] = uniform(1));
    for (uint32_t i = 0; i < rows * D; i++) q[i] = uniform(0.15f), kk[i] = form == 1 ? 0.08838834764831845f : uniform(0.15f);
    for (size_t i = 0; i < strided; i++) v[i] = uniform(1);
    for (uint32_t t = 0; t < rows; t++) alpha[t] = form == 2 ? (float)(t % 3 != 0) : 0.9f + uniform(0.1f);
    for (uint32_t t = 0; t < rows; t++) beta[t] = form == 1 ? 1 : 0.5f + uniform(0.5f);
    k->mixer->delta(src, dst, q, kk, v, STRIDE, alpha, beta, out, STRIDE, rows, recurrent);
    for (uint32_t t = 0; t < rows; t++) {
        for (int j = 0; j < D; j++) {
            double kv = 0, o = 0, magnitude = 0;
            for (int i = 0; i < D; i++) kv += (double)kk[t * D + i] * (S[i][j] *= (double)alpha[t]);
            const double u = (double)beta[t] * ((double)v[t * STRIDE + j] - kv);
            for (int i = 0; i < D; i++) {
                S[i][j] += (double)kk[t * D + i] * u;
                o += (double)q[t * D + i] * S[i][j], magnitude += fabs((double)q[t * D + i] * S[i][j]);
            }
            assert_close((double)out[t * STRIDE + j], o, 2 * D, magnitude + 1);
        }
        if (!recurrent) continue;
        k->mixer->delta(once, once, q + t * D, kk + t * D, v, STRIDE, alpha + t, beta + t, one, D, 0, true); /* no row, no effect */
        k->mixer->delta(once, once, q + t * D, kk + t * D, v + t * STRIDE, STRIDE, alpha + t, beta + t, one, D, 1, true);
        assert_true(!memcmp(one, out + t * STRIDE, D * sizeof *one)); /* alone as among others */
    }
    for (int i = 0; i < D * D; i++) assert_close((double)dst[i], S[i / D][i % D], 2 * D, fabs(S[i / D][i % D]) + 1);
    if (recurrent) assert_true(!memcmp(once, dst, D * D * sizeof *dst));
    guard_free_all();
}

static void test_delta(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 8, 33, 70};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int form = 0; form < 3; form++)
            for (int how = 0; how < 4; how++) check_delta(rows[r], form, how & 1, how & 2);
}

/* A block of the cache with n rows of random values, which are returned as the kernels see them.  Memory ends where the block does, or in
 * types without scales with the last row. */
static uint8_t *new_block(calla_kv kv, uint32_t n, double (*seen)[HEAD_DIM]) {
    const size_t used = kv == CALLA_KV_Q8 ? kv_block_bytes(kv) : kv_block_bytes(kv) / KV_PAGE_TOKENS * n;
    uint8_t *block = guard_alloc(used, GUARD_AFTER);
    memset(block, 0xFF, used); /* NaN in scales behind the last row */
    for (uint32_t t = 0; t < n; t++) {
        float x[HEAD_DIM], back[HEAD_DIM];
        for (uint32_t i = 0; i < HEAD_DIM; i++) x[i] = value(t % 5, i);
        ref_kv_store(block, kv, t, x);
        ref_kv_load(block, kv, t, back);
        for (uint32_t i = 0; i < HEAD_DIM; i++) {
            float most = 0;
            for (uint32_t j = i / KV_GROUP * KV_GROUP; j < (i / KV_GROUP + 1) * KV_GROUP; j++) most = fmaxf(most, fabsf(x[j]));
            const float error = kv == CALLA_KV_F32 ? 0 : kv == CALLA_KV_BF16 ? 0x1p-8f * fabsf(x[i]) : 0.5001f / 127 * most;
            assert_true(fabsf(back[i] - x[i]) <= error);
            seen[t][i] = (double)back[i];
        }
    }
    return block;
}

typedef struct reference_sum {
    double value, magnitude; /* Σ a·b, Σ |a·b| */
} reference_sum;

static reference_sum score_of(const float *q, const double *key) {
    reference_sum sum = {0};
    for (uint32_t i = 0; i < HEAD_DIM; i++) sum.value += (double)q[i] * key[i], sum.magnitude += fabs((double)q[i] * key[i]);
    return sum;
}

/* before + Σ p v of dimension i */
static reference_sum value_of(float before, const float *p, double (*v)[HEAD_DIM], uint32_t n, uint32_t i) {
    reference_sum sum = {(double)before, fabs((double)before)};
    for (uint32_t t = 0; t < n; t++) sum.value += (double)p[t] * v[t][i], sum.magnitude += fabs((double)p[t] * v[t][i]);
    return sum;
}

static void check_attention(calla_kv kv, uint32_t heads, uint32_t n) {
    enum { D = HEAD_DIM, HEADS = 13, N = 35 };
    const size_t q_stride = 2 * D, stride = N + 1;
    static double x[N][D];
    static float before[HEADS][D];
    float one[N];
    uint8_t *block = new_block(kv, n, x);
    float *q = guard_alloc(((heads - 1) * q_stride + D) * 4, GUARD_AFTER), *p = guard_alloc(((heads - 1) * stride + n) * 4, GUARD_AFTER),
          *out = guard_alloc((size_t)heads * D * 4, GUARD_AFTER);
    for (size_t i = 0; i < (heads - 1) * q_stride + D; i++) q[i] = uniform(1);
    k->mixer->attend_scores(q, q_stride, heads, block, kv, n, p, stride, n % 2 ? block : NULL);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t t = 0; t < n; t++) {
            const reference_sum want = score_of(q + h * q_stride, x[t]);
            assert_close((double)p[h * stride + t], want.value, D, want.magnitude);
            k->mixer->attend_scores(q + h * q_stride, q_stride, 1, block, kv, t + 1, one, 1, NULL);
            assert_true(!memcmp(&one[t], &p[h * stride + t], sizeof *one)); /* alone as among others */
        }
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < D; i++) before[h][i] = out[(size_t)h * D + i] = uniform(1);
    k->mixer->attend_values(p, stride, heads, block, kv, n, out, n % 2 ? block : NULL);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < D; i++) {
            const reference_sum want = value_of(before[h][i], p + h * stride, x, n, i);
            assert_close((double)out[(size_t)h * D + i], want.value, n, want.magnitude);
        }
    guard_free_all();
}

static void test_attention(void **state) {
    (void)state;
    for (calla_kv kv = CALLA_KV_BF16; kv <= CALLA_KV_Q8; kv++)
        for (uint32_t heads = 1; heads <= 13; heads += heads < 5 ? 1 : 4)
            for (uint32_t n = 1; n <= 35; n += n < 18 ? 2 : 17) check_attention(kv, heads, n);
}

/* Beside what float32 may: what cpu_attention says that is rounded. */
static double fast_q_error(calla_kv kv, const float *q, const double *x) {
    if (kv == CALLA_KV_BF16) return 0x1p-9 * score_of(q, x).magnitude;
    double error = 0;
    for (uint32_t g = 0; g < HEAD_DIM; g += KV_GROUP) {
        double largest = 0, sum = 0;
        for (uint32_t i = g; i < g + KV_GROUP; i++) largest = fmax(largest, fabs((double)q[i])), sum += fabs(x[i]);
        error += 1.01 / 65024 * largest * sum;
    }
    return error;
}

static double fast_p_error(calla_kv kv, const float *p, double (*x)[HEAD_DIM], uint32_t n, uint32_t i) {
    if (kv == CALLA_KV_BF16) return 0x1p-9 * value_of(0, p, x, n, i).magnitude;
    double p_most = 0, x_most = 0;
    for (uint32_t t = 0; t < n; t++)
        if ((double)p[t] > p_most) p_most = (double)p[t];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t j = i / KV_GROUP * KV_GROUP; j < (i / KV_GROUP + 1) * KV_GROUP; j++)
            if (fabs(x[t][j]) > x_most) x_most = fabs(x[t][j]);
    return n * 1.01 / 65534 * p_most * x_most;
}

static void check_fast_attention(calla_kv kv, uint32_t heads, uint32_t n, int what) {
    enum { D = HEAD_DIM, HEADS = 13, N = KV_PAGE_TOKENS };
    const cpu_attention *fast = k->attention[kv];
    const size_t q_stride = 2 * D, stride = N + 1;
    static double x[N][D];
    static float before[HEADS * D];
    float one[N], alone[D];
    uint8_t *block = new_block(kv, n, x);
    float *q = guard_alloc(((heads - 1) * q_stride + D) * 4, GUARD_AFTER), *p = guard_alloc(((heads - 1) * stride + n) * 4, GUARD_AFTER),
          *out = guard_alloc((size_t)heads * D * 4, GUARD_AFTER);
    for (size_t i = 0; i < (heads - 1) * q_stride + D; i++) q[i] = value(what, i);
    fast->scores(q, q_stride, heads, block, n, p, stride, n % 2 ? block : NULL);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t t = 0; t < n; t++) {
            const reference_sum want = score_of(q + h * q_stride, x[t]);
            assert_within((double)p[h * stride + t], want.value, float_error(D, want.magnitude) + fast_q_error(kv, q + h * q_stride, x[t]));
            if (n > 35 && t % 17) continue;
            fast->scores(q + h * q_stride, q_stride, 1, block, t + 1, one, 1, NULL);
            assert_true(!memcmp(&one[t], &p[h * stride + t], sizeof *one)); /* alone as among others */
        }
    for (size_t i = 0; i < (heads - 1) * stride + n; i++) p[i] = fabsf(value(what, i));
    for (size_t i = 0; i < (size_t)heads * D; i++) before[i] = out[i] = uniform(1);
    fast->values(p, stride, heads, block, n, out, n % 2 ? block : NULL);
    for (uint32_t h = 0; h < heads; h++) {
        memcpy(alone, before + h * D, sizeof alone);
        fast->values(p + h * stride, stride, 1, block, n, alone, NULL);
        assert_true(!memcmp(alone, out + h * D, sizeof alone));
        for (uint32_t i = 0; i < D; i++) {
            const reference_sum want = value_of(before[h * D + i], p + h * stride, x, n, i);
            assert_within((double)out[h * D + i], want.value, float_error(n, want.magnitude) + fast_p_error(kv, p + h * stride, x, n, i));
        }
    }
    guard_free_all();
}

static void test_fast_attention(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 35, 255, 256};
    for (calla_kv kv = CALLA_KV_F32; kv <= CALLA_KV_Q8; kv++)
        for (uint32_t heads = 1; k->attention[kv] && heads <= 13; heads += heads < 5 ? 1 : 4)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) check_fast_attention(kv, heads, rows[r], (int)(heads + r) % 5);
}

static void test_largest(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 70; n++)
        for (uint32_t at = 0; at < n; at++) {
            float *p = guard_alloc(n * 4, GUARD_AFTER);
            for (uint32_t i = 0; i < n; i++) p[i] = -5 - uniform(1);
            p[at] = -1;
            assert_true(k->mixer->largest(p, n) == -1);
            guard_free_all();
        }
}

/* Whether the tables found are the ones expected (none: any). */
static bool as_expected(const cpu_kernels *const *found, size_t n, char **names, size_t expected) {
    bool same = !expected || n == expected;
    for (size_t i = 0; same && i < expected; i++) same = !strcmp(found[i]->name, names[i]);
    if (same) return true;
    fprintf(stderr, "found these tables, and not the ones expected:");
    for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", found[i]->name);
    fprintf(stderr, "\n");
    return false;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),         cmocka_unit_test(test_weight_row), cmocka_unit_test(test_dot),
        cmocka_unit_test(test_dots),           cmocka_unit_test(test_byte_dots),  cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_activations),    cmocka_unit_test(test_delta),      cmocka_unit_test(test_attention),
        cmocka_unit_test(test_fast_attention), cmocka_unit_test(test_largest),
    };
    const cpu_kernels *found[CPU_MAX_TABLES];
    const size_t n = cpu_kernels_available(found);
    if (!as_expected(found, n, argv + 1, (size_t)argc - 1)) return 1;
    calla_error err;
    const cpu_kernels *only = cpu_kernels_pick(&err);
    if (!only) return fprintf(stderr, "%s\n", err.message), 1;
    const char *named = getenv("CALLA_CPU");
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        if (named && *named && found[i] != only) continue;
        k = found[i];
        random_state = 1;
        print_message("table %s\n", k->name);
        failed += cmocka_run_group_tests_name(k->name, tests, NULL, NULL);
    }
    return failed;
}

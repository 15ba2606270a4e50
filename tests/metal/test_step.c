/* test_step.c: the Metal kernels for few rows that are products: linear with each kind of input, gate and up, embedding, head, routing,
 * experts; against ref's plain functions, over formats, groups, odd numbers of rows, of outputs and of chunks. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "backend/ref/sample.h"
#include "metal/kernel_run.h"
#include "unit.h"

static const float EPS = 1e-6f;

/* Σ w x; *magnitude: Σ |w x| */
static double exact_product(const weight_mat *m, uint32_t which, uint32_t row, const float *x, double *magnitude) {
    static float weight[METAL_MAX_COLS];
    double sum = 0;
    *magnitude = 0;
    ref_weight_row(m, which, row, weight);
    for (uint32_t k = 0; k < m->cols; k++) {
        sum += (double)weight[k] * (double)x[k];
        *magnitude += fabs((double)weight[k] * (double)x[k]);
    }
    return sum;
}

/* A sum of n products in float32. */
static void assert_near(const char *what, double got, double want, double n, double magnitude) {
    kernel_close(what, got, want, (n + 16) * (double)FLT_EPSILON * magnitude + 1e-30);
}

static void name_of(char *out, const char *kernel, uint32_t bits, uint32_t rows) {
    snprintf(out, 64, "%s_%s_r%d", kernel, bits == 4 ? "q4" : bits == 8 ? "q8" : "b16", rows == 1 ? 1 : METAL_STEP_ROWS);
}

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

/* ---- inputs ---- */

typedef struct test_input {
    metal_input device;
    float *prepared; /* [rows][cols]: what is to be multiplied */
    uint32_t cols;
} test_input;

static test_input new_input(uint32_t source, uint32_t rows, uint32_t cols) {
    const uint32_t x_stride = cols + 4 * kernel_number(3), gate_stride = 2 * cols + 4 * kernel_number(3);
    float *x = kernel_floats((size_t)rows * x_stride, 2), *gain = kernel_floats(source == METAL_GATED_NORM ? 128 : cols, 1.5f),
          *gate = kernel_floats((size_t)rows * gate_stride, 3);
    test_input in = {.device = {.x = DEVICE(x),
                                .gain = DEVICE(gain),
                                .gate = DEVICE(gate),
                                .source = source,
                                .x_stride = x_stride,
                                .gate_stride = gate_stride,
                                .eps = EPS},
                     .prepared = kernel_filled(((size_t)rows * cols), 0),
                     .cols = cols};
    for (uint32_t r = 0; r < rows; r++) {
        const float *from = x + (size_t)r * x_stride, *g = gate + (size_t)r * gate_stride;
        float *to = in.prepared + (size_t)r * cols;
        memcpy(to, from, cols * sizeof *to);
        if (source == METAL_NORM) ref_rmsnorm(from, gain, EPS, cols, to);
        if (source == METAL_GATED_NORM)
            for (uint32_t k = 0; k < cols; k += 128) ref_rmsnorm(from + k, gain, EPS, 128, to + k);
        for (uint32_t k = 0; k < cols; k++) {
            if (source == METAL_GATED_NORM) to[k] *= ref_silu(g[k]);
            if (source == METAL_GATED) to[k] *= ref_sigmoid(g[k / HEAD_DIM * 2 * HEAD_DIM + k % HEAD_DIM]);
        }
    }
    return in;
}

static double swiglu(double gate, double up) { return gate / (1 + exp(-gate)) * up; }

/* ---- linear ---- */

static void check_linear(uint32_t bits, uint32_t group, uint32_t source, uint32_t rows, uint32_t outputs, uint32_t cols, bool add) {
    char name[64];
    const weight_mat m = kernel_matrix(1, outputs, cols, bits, group);
    test_input in = new_input(source, rows, cols);
    const uint32_t stride = outputs + kernel_number(5);
    const size_t n = (size_t)(rows - 1) * stride + outputs;
    float *out = kernel_floats(n, 1), *before = kernel_filled(n, 0), *normed = kernel_nans((size_t)rows * cols);
    memcpy(before, out, n * sizeof *out);
    if (source == METAL_NORM) in.device.normed = DEVICE(normed);
    const metal_linear_args a = {.w = kernel_metal_matrix(&m), .in = in.device, .out = DEVICE(out), .out_stride = stride, .add = add};
    const metal_step t = {.rows = rows};
    name_of(name, "step_linear", bits, rows);
    kernel_run(name, &a, sizeof a, &t, KERNEL_GRID(blocks(outputs, METAL_LINEAR_OUTPUTS), 1, 1), METAL_LINEAR_THREADS, 0,
               KERNEL_OUT({out, n * sizeof *out}, {normed, (size_t)rows * cols * sizeof *normed}));
    if (kernels_watched && outputs % METAL_LINEAR_OUTPUTS == 0) /* each weight once for all rows */
        assert_int_equal(kernel_loads(m.codes), outputs * weight_row_bytes(&m));
    for (uint32_t r = 0; r < rows; r++) {
        double magnitude;
        for (uint32_t o = 0; o < outputs; o++) {
            const size_t at = (size_t)r * stride + o;
            const double sum = exact_product(&m, 0, o, in.prepared + (size_t)r * cols, &magnitude);
            assert_near(name, (double)out[at], sum + (add ? (double)before[at] : 0), cols, magnitude + 1);
        }
        for (uint32_t o = outputs; o < stride && r + 1 < rows; o++)
            assert_true(out[(size_t)r * stride + o] == before[(size_t)r * stride + o]);
        for (uint32_t k = 0; source == METAL_NORM && k < cols; k++) {
            const double want = (double)in.prepared[(size_t)r * cols + k];
            assert_near("normed", (double)normed[(size_t)r * cols + k], want, 0, fabs(want));
        }
    }
    kernel_free_all();
}

static void test_linear(void **state) {
    (void)state;
    static const struct {
        uint32_t bits, group, cols;
    } formats[] = {{4, 64, 2048}, {4, 32, 96},   {4, 128, 1280}, {4, 64, 64}, {8, 64, 1088},
                   {8, 32, 32},   {8, 128, 256}, {16, 0, 1056},  {16, 0, 64}, {4, 64, 4096}};
    static const uint32_t row_counts[] = {1, 2, 5, 8}, outputs[] = {1, 5, 16, 37};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t r = 0; r < 4; r++)
            for (uint32_t source = METAL_PLAIN; source <= METAL_GATED; source++) {
                const uint32_t whole = source == METAL_GATED_NORM ? 128 : source == METAL_GATED ? HEAD_DIM : 1;
                if (formats[f].cols % whole) continue;
                check_linear(formats[f].bits, formats[f].group, source, row_counts[r], outputs[(f + r + source) % 4], formats[f].cols,
                             (r + source) % 2);
            }
}

/* ---- the shared expert's first half ---- */

static void check_swiglu(uint32_t bits, uint32_t group, uint32_t rows, uint32_t width, uint32_t cols) {
    char name[64];
    const weight_mat gate = kernel_matrix(1, width, cols, bits, group), up = kernel_matrix(1, width, cols, bits, group);
    const test_input in = new_input(METAL_NORM, rows, cols);
    float *out = kernel_nans((size_t)rows * width);
    const metal_swiglu_args a = {
        .gate = kernel_metal_matrix(&gate), .up = kernel_metal_matrix(&up), .in = in.device, .out = DEVICE(out), .out_stride = width};
    const metal_step t = {.rows = rows};
    name_of(name, "step_swiglu", bits, rows);
    kernel_run(name, &a, sizeof a, &t, KERNEL_GRID(blocks(width, METAL_SWIGLU_OUTPUTS), 1, 1), METAL_SWIGLU_THREADS, 0,
               KERNEL_OUT({out, (size_t)rows * width * sizeof *out}));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < width; o++) {
            double gates, ups;
            const double g = exact_product(&gate, 0, o, in.prepared + (size_t)r * cols, &gates),
                         u = exact_product(&up, 0, o, in.prepared + (size_t)r * cols, &ups);
            assert_near(name, (double)out[(size_t)r * width + o], swiglu(g, u), cols, (gates + 1) * (ups + 1));
        }
    kernel_free_all();
}

static void test_swiglu(void **state) {
    (void)state;
    check_swiglu(4, 64, 1, 9, 2048);
    check_swiglu(4, 64, 8, 7, 128);
    check_swiglu(8, 32, 1, 4, 96);
    check_swiglu(8, 128, 3, 5, 384);
    check_swiglu(16, 0, 1, 3, 64);
    check_swiglu(16, 0, 2, 8, 1056);
}

/* ---- embedding ---- */

/* Where the step before left the best of its wanted rows: one of the groups has it, some an equal one of a higher id, some none. */
static metal_best *new_best(uint32_t wanted, const uint32_t *ids) {
    metal_best *best = kernel_alloc((size_t)wanted * METAL_HEAD_GROUPS * sizeof *best);
    for (uint32_t w = 0; w < wanted; w++) {
        for (uint32_t g = 0; g < METAL_HEAD_GROUPS; g++)
            best[w * METAL_HEAD_GROUPS + g] =
                g % 3 ? (metal_best){kernel_uniform(5), kernel_number(1000)} : (metal_best){-INFINITY, UINT32_MAX};
        if (ids[w] == UINT32_MAX) {
            for (uint32_t g = 0; g < METAL_HEAD_GROUPS; g++) best[w * METAL_HEAD_GROUPS + g] = (metal_best){-INFINITY, UINT32_MAX};
            continue;
        }
        best[w * METAL_HEAD_GROUPS + kernel_number(METAL_HEAD_GROUPS)] = (metal_best){6, ids[w]};
        for (int i = 0; i < 3; i++) {
            metal_best *b = &best[w * METAL_HEAD_GROUPS + kernel_number(METAL_HEAD_GROUPS)];
            if (b->value < 6) *b = (metal_best){6, ids[w] + 1 + kernel_number(9)};
        }
    }
    return best;
}

static void check_embed(uint32_t bits, uint32_t group, uint32_t cols) {
    enum { ROWS = 5, VOCABULARY = 50 };
    const weight_mat m = kernel_matrix(1, VOCABULARY, cols, bits, group);
    int32_t *ids = kernel_alloc(ROWS * sizeof *ids);
    memcpy(ids, (int32_t[ROWS]){49, -1, 0, -3, -2}, sizeof(int32_t[ROWS]));
    const uint32_t rows[ROWS] = {49, 17, 0, 0 /* nothing was picked */, 3};
    const metal_best *best = new_best(3, (uint32_t[]){17, 3, UINT32_MAX});
    float *residual = kernel_nans((size_t)ROWS * cols), want[METAL_MAX_COLS];
    const metal_embed_args a = {.w = kernel_metal_matrix(&m), .residual = DEVICE(residual)};
    const metal_step t = {.rows = ROWS, .ids = DEVICE(ids), .best_before = DEVICE(best)};
    kernel_run("embed", &a, sizeof a, &t, KERNEL_GRID(ROWS, 1, 1), 256, 0, KERNEL_OUT({residual, ROWS * cols * sizeof *residual}));
    for (uint32_t r = 0; r < ROWS; r++) {
        ref_weight_row(&m, 0, rows[r], want);
        for (uint32_t k = 0; k < cols; k++) assert_near("embed", (double)residual[r * cols + k], (double)want[k], 0, fabs((double)want[k]));
    }

    /* and in front of the first product */
    for (uint32_t n = 1; n <= ROWS; n += ROWS - 1) {
        char name[64];
        enum { OUTPUTS = 21 };
        const weight_mat w = kernel_matrix(1, OUTPUTS, cols, bits, group);
        float *gain = kernel_floats(cols, 2), *out = kernel_nans((size_t)n * OUTPUTS), x[METAL_MAX_COLS];
        ids[0] = n == 1 ? -2 : 49;
        for (size_t i = 0; i < (size_t)ROWS * cols; i++) residual[i] = NAN;
        const metal_embed_linear_args e = {.linear = {.w = kernel_metal_matrix(&w),
                                                      .in = {.source = METAL_NORM, .gain = DEVICE(gain), .eps = EPS},
                                                      .out = DEVICE(out),
                                                      .out_stride = OUTPUTS},
                                           .embed = kernel_metal_matrix(&m),
                                           .residual = DEVICE(residual)};
        const metal_step step = {.rows = n, .ids = DEVICE(ids), .best_before = DEVICE(best)};
        name_of(name, "step_embed_linear", bits, n);
        kernel_run(name, &e, sizeof e, &step, KERNEL_GRID(blocks(OUTPUTS, METAL_LINEAR_OUTPUTS), 1, 1), METAL_LINEAR_THREADS,
                   METAL_TG_EMBED, KERNEL_OUT({out, n * OUTPUTS * sizeof *out}, {residual, n * cols * sizeof *residual}));
        for (uint32_t r = 0; r < n; r++) {
            double magnitude;
            ref_weight_row(&m, 0, n == 1 ? 3 : rows[r], want);
            ref_rmsnorm(want, gain, EPS, cols, x);
            for (uint32_t k = 0; k < cols; k++)
                assert_near(name, (double)residual[r * cols + k], (double)want[k], 0, fabs((double)want[k]));
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                const double sum = exact_product(&w, 0, o, x, &magnitude);
                assert_near(name, (double)out[r * OUTPUTS + o], sum, cols, magnitude);
            }
        }
    }
    kernel_free_all();
}

static void test_embed(void **state) {
    (void)state;
    check_embed(4, 64, 128);
    check_embed(4, 32, 1056);
    check_embed(8, 128, 256);
    check_embed(16, 0, 96);
}

/* ---- head ---- */

/* A mask for most rows, each of its own density: every second id, few, one, none.  What lies in the place of a row without a mask, and
 * behind the last id, is noise. */
static uint32_t new_masks(uint32_t wanted, uint32_t tokens, uint32_t *mask) {
    const uint32_t words = METAL_MASK_WORDS(tokens);
    uint32_t masked = 0;
    for (uint32_t w = 0; w < wanted; w++, mask += words) {
        for (uint32_t i = 0; i < words; i++) mask[i] = kernel_number(0xFFFFFFFF);
        if (w % 5 == 4) continue;
        masked |= 1u << w;
        for (uint32_t id = 0; id < tokens && w % 5; id++)
            if (w % 5 > 1 || kernel_number(64)) mask[id / 32] &= ~(1u << id % 32);
        if (w % 5 == 2 && tokens) mask[tokens / 2 / 32] |= 1u << tokens / 2 % 32;
    }
    return masked;
}

static void check_head(uint32_t bits, uint32_t group, uint32_t cols, uint32_t wanted, uint32_t vocabulary, uint32_t tokens, bool masks) {
    enum { ROWS = 11 };
    char name[64];
    weight_mat m = kernel_matrix(1, vocabulary, cols, bits, group);
    if (bits == 16 && vocabulary > 19) { /* equal rows, and rows whose logits are no numbers */
        uint16_t *w = (uint16_t *)(uintptr_t)m.codes;
        for (uint32_t o = 0; o + 3 < vocabulary; o += 3) memcpy(w + (size_t)(o + 3) * cols, w + (size_t)o * cols, cols * sizeof *w);
        w[(size_t)7 * cols] = 0x7FC0;                        /* NaN */
        w[(size_t)8 * cols] = w[(size_t)19 * cols] = 0x7F80; /* +infinity, or -infinity, by the sign of the input */
    }
    const test_input in = new_input(METAL_NORM, ROWS, cols);
    uint32_t *rows = kernel_alloc(wanted * sizeof *rows);
    for (uint32_t w = 0; w < wanted; w++) rows[w] = (w * 7 + 3) % ROWS;
    float *logits = kernel_nans((size_t)wanted * vocabulary);
    metal_best *best = kernel_alloc((size_t)wanted * METAL_HEAD_GROUPS * sizeof *best);
    uint32_t *mask = kernel_alloc(((size_t)wanted * METAL_MASK_WORDS(tokens) + 1) * sizeof *mask);
    const uint32_t masked = masks ? new_masks(wanted, tokens, mask) : 0;
    void *scratch = malloc(ref_sample_scratch_bytes(vocabulary));
    const metal_head_args a = {.w = kernel_metal_matrix(&m), .in = in.device, .logits = DEVICE(logits)};
    const metal_step t = {.rows = ROWS,
                          .wanted = wanted,
                          .tokens = tokens,
                          .wanted_row = DEVICE(rows),
                          .best = DEVICE(best),
                          .mask = DEVICE(mask),
                          .masked = masked};
    name_of(name, "step_head", bits, wanted);
    kernel_run(
        name, &a, sizeof a, &t, KERNEL_GRID(METAL_HEAD_GROUPS, blocks(wanted, wanted == 1 ? 1 : METAL_STEP_ROWS), 1), METAL_LINEAR_THREADS,
        METAL_TG_HEAD,
        KERNEL_OUT({logits, (size_t)wanted * vocabulary * sizeof *logits}, {best, (size_t)wanted * METAL_HEAD_GROUPS * sizeof *best}));
    for (uint32_t w = 0; w < wanted; w++) {
        const float *x = in.prepared + (size_t)rows[w] * cols, *own = logits + (size_t)w * vocabulary;
        for (uint32_t o = 0; o < vocabulary; o++) {
            double magnitude;
            const double sum = exact_product(&m, 0, o, x, &magnitude);
            if (isfinite(sum))
                assert_near(name, (double)own[o], sum, cols, magnitude);
            else
                assert_true(isnan(sum) ? isnan(own[o]) : (double)own[o] == sum);
        }
        metal_best all = {-INFINITY, UINT32_MAX};
        for (uint32_t g = 0; g < METAL_HEAD_GROUPS; g++) {
            const metal_best b = best[w * METAL_HEAD_GROUPS + g];
            if (b.value > all.value || (b.value == all.value && b.id < all.id)) all = b;
        }
        sample_result picked;
        const sample_request request = {
            .tokens = tokens, .repetition = 1, .top_p = 1, .mask = masked >> w & 1 ? mask + (size_t)w * METAL_MASK_WORDS(tokens) : NULL};
        ref_sample(own, vocabulary, &request, scratch, &picked);
        assert_int_equal((int32_t)all.id, picked.id);
    }
    free(scratch);
    kernel_free_all();
}

static void test_head(void **state) {
    (void)state;
    check_head(4, 64, 128, 1, METAL_HEAD_GROUPS * METAL_LINEAR_OUTPUTS + 37, METAL_HEAD_GROUPS * METAL_LINEAR_OUTPUTS + 20, false);
    check_head(4, 64, 64, 9, 333, 300, false);
    check_head(8, 32, 96, 3, 320, 320, false);
    check_head(16, 0, 64, 5, 100, 90, false);
    check_head(16, 0, 64, 1, 3, 0, false); /* no candidate */
    /* held to masks */
    check_head(4, 64, 64, 1, 333, 300, true);
    check_head(4, 64, 64, 9, 333, 300, true);
    check_head(8, 32, 96, 8, 321, 321, true);
    for (int i = 0; i < 8; i++) check_head(16, 0, 64, 5, 100, 90, true); /* NaN and infinities, allowed and not */
}

/* ---- routing ---- */

/* With `parts` above 1 the logits come in so many addends. */
static void check_route(uint32_t experts, uint32_t top_k, int what, uint32_t parts) {
    enum { ROWS = 3 };
    const size_t stride = experts + 1;
    float *logits = kernel_floats(parts * ROWS * stride, 4), *sums = kernel_filled(ROWS * stride, 0);
    for (size_t i = 0; i < parts * ROWS * stride; i++) {
        if (what == 1) logits[i] = 0.25f * (float)kernel_number(4); /* many are equal */
        if (what == 2) logits[i] = i % 2 ? 0.0f : -0.0f;
        if (what == 3) logits[i] = i % 5 ? -1e30f * (float)(1 + kernel_number(3)) : 1e-40f;
    }
    for (size_t i = 0; i < parts * ROWS * stride; i++) sums[i % (ROWS * stride)] += logits[i];
    uint32_t *expert = kernel_alloc(ROWS * top_k * sizeof *expert), want_expert[METAL_MAX_TOP_K];
    float *weight = kernel_nans(ROWS * top_k), *shared = kernel_nans(ROWS), want_weight[METAL_MAX_TOP_K];
    const metal_experts_args a = {.logits = DEVICE(logits),
                                  .expert = DEVICE(expert),
                                  .weight = DEVICE(weight),
                                  .shared_weight = DEVICE(shared),
                                  .experts = experts,
                                  .top_k = top_k};
    const metal_step t = {.rows = ROWS, .router_parts = parts};
    kernel_run(
        "route", &a, sizeof a, &t, KERNEL_GRID(ROWS, 1, 1), 32, 0,
        KERNEL_OUT({logits, ROWS * stride * sizeof *logits}, {expert, ROWS * top_k * 4}, {weight, ROWS * top_k * 4}, {shared, ROWS * 4}));
    float *copy = malloc(stride * sizeof *copy);
    for (uint32_t r = 0; r < ROWS; r++) {
        memcpy(copy, sums + r * stride, stride * sizeof *copy);
        ref_top_k(copy, experts, top_k, want_expert, want_weight);
        assert_memory_equal(expert + r * top_k, want_expert, top_k * sizeof *expert);
        for (uint32_t i = 0; i < top_k; i++) assert_near("weight", (double)weight[r * top_k + i], (double)want_weight[i], 0, 1);
        assert_near("shared", (double)shared[r], (double)ref_sigmoid(sums[r * stride + experts]), 0, 1);
    }
    free(copy);
    kernel_free_all();
}

static void test_route(void **state) {
    (void)state;
    static const struct {
        uint32_t experts, top_k;
    } shapes[] = {{256, 8}, {8, 2}, {16, 4}, {1, 1}, {37, 16}, {300, 8}, {METAL_MAX_EXPERTS, METAL_MAX_TOP_K}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int what = 0; what < 4; what++) {
            check_route(shapes[i].experts, shapes[i].top_k, what, 1);
            check_route(shapes[i].experts, shapes[i].top_k, what, 2 + (uint32_t)what * 2);
        }
}

/* ---- experts ---- */

typedef struct experts_case {
    uint32_t bits, group, shared_bits, experts, top_k, hidden, width, shared_width, rows;
} experts_case;

static void check_experts(const experts_case *c) {
    char name[64];
    const uint32_t shared_group = c->shared_bits == 16 ? 0 : 32, places_n = c->rows * c->top_k, stride = c->experts + 1;
    const weight_mat gate = kernel_matrix(c->experts, c->width, c->hidden, c->bits, c->group),
                     up = kernel_matrix(c->experts, c->width, c->hidden, c->bits, c->group),
                     down = kernel_matrix(c->experts, c->hidden, c->width, c->bits, c->group),
                     shared_down = kernel_matrix(1, c->hidden, c->shared_width, c->shared_bits, shared_group);
    float *moe_in = kernel_floats((size_t)c->rows * c->hidden, 1), *logits = kernel_floats((size_t)c->rows * stride, 2),
          *shared = kernel_floats((size_t)c->rows * c->shared_width, 1), *residual = kernel_floats((size_t)c->rows * c->hidden, 1),
          *places = kernel_nans((size_t)places_n * c->width), *weight = kernel_nans(places_n), *shared_weight = kernel_nans(c->rows),
          *before = kernel_nans((size_t)c->rows * c->hidden);
    uint32_t *expert = kernel_alloc(places_n * sizeof *expert);
    memcpy(before, residual, (size_t)c->rows * c->hidden * sizeof *before);
    for (uint32_t r = 1; r < c->rows; r += 2) /* every second row chooses what the one before does, but for a few */
        for (uint32_t e = 0; e < c->experts; e++)
            if (e % 3) logits[r * stride + e] = logits[(r - 1) * stride + e];
    const metal_experts_args a = {.gate = kernel_metal_matrix(&gate),
                                  .up = kernel_metal_matrix(&up),
                                  .down = kernel_metal_matrix(&down),
                                  .shared_down = kernel_metal_matrix(&shared_down),
                                  .moe_in = DEVICE(moe_in),
                                  .logits = DEVICE(logits),
                                  .expert = DEVICE(expert),
                                  .weight = DEVICE(weight),
                                  .shared = DEVICE(shared),
                                  .shared_weight = DEVICE(shared_weight),
                                  .places = DEVICE(places),
                                  .residual = DEVICE(residual),
                                  .experts = c->experts,
                                  .top_k = c->top_k};
    const metal_step t = {.rows = c->rows};
    name_of(name, "step_experts_in", c->bits, c->rows);
    kernel_run(name, &a, sizeof a, &t, KERNEL_GRID(blocks(c->width, METAL_EXPERT_OUTPUTS), c->top_k, c->rows), METAL_LINEAR_THREADS,
               METAL_TG_EXPERTS_IN,
               KERNEL_OUT({places, (size_t)places_n * c->width * 4}, {expert, places_n * 4}, {weight, places_n * 4},
                          {shared_weight, c->rows * 4}));
    uint32_t distinct = 0;
    for (uint32_t p = 0; p < places_n; p++) {
        bool again = false;
        for (uint32_t q = 0; q < p; q++) again |= expert[q] == expert[p];
        distinct += !again;
    }
    if (kernels_watched && c->width % METAL_EXPERT_OUTPUTS == 0) /* each chosen expert once for all rows */
        assert_int_equal(kernel_loads(gate.codes), distinct * c->width * weight_row_bytes(&gate));
    float *copy = malloc(stride * sizeof *copy);
    for (uint32_t r = 0; r < c->rows; r++) {
        uint32_t want_expert[METAL_MAX_TOP_K];
        float want_weight[METAL_MAX_TOP_K];
        memcpy(copy, logits + r * stride, stride * sizeof *copy);
        ref_top_k(copy, c->experts, c->top_k, want_expert, want_weight);
        assert_memory_equal(expert + r * c->top_k, want_expert, c->top_k * sizeof *expert);
        assert_near("shared", (double)shared_weight[r], (double)ref_sigmoid(logits[r * stride + c->experts]), 0, 1);
        for (uint32_t i = 0; i < c->top_k; i++) {
            assert_near("weight", (double)weight[r * c->top_k + i], (double)want_weight[i], 0, 1);
            for (uint32_t o = 0; o < c->width; o++) {
                double gates, ups;
                const double g = exact_product(&gate, want_expert[i], o, moe_in + (size_t)r * c->hidden, &gates),
                             u = exact_product(&up, want_expert[i], o, moe_in + (size_t)r * c->hidden, &ups);
                assert_near(name, (double)places[(r * c->top_k + i) * c->width + o], swiglu(g, u), c->hidden, (gates + 1) * (ups + 1));
            }
        }
    }
    free(copy);
    name_of(name, "step_experts_out", c->bits, c->rows);
    kernel_run(name, &a, sizeof a, &t, KERNEL_GRID(blocks(c->hidden, METAL_DOWN_OUTPUTS), 1, 1), METAL_LINEAR_THREADS, METAL_TG_EXPERTS_OUT,
               KERNEL_OUT({residual, (size_t)c->rows * c->hidden * 4}));
    if (kernels_watched && c->hidden % METAL_DOWN_OUTPUTS == 0)
        assert_int_equal(kernel_loads(down.codes), distinct * c->hidden * weight_row_bytes(&down));
    for (uint32_t r = 0; r < c->rows; r++)
        for (uint32_t o = 0; o < c->hidden; o++) {
            double m, magnitude = 1, sum = (double)before[r * c->hidden + o];
            for (uint32_t i = 0; i < c->top_k; i++) {
                const uint32_t place = r * c->top_k + i;
                sum += (double)weight[place] * exact_product(&down, expert[place], o, places + (size_t)place * c->width, &m);
                magnitude += (double)weight[place] * m;
            }
            sum += (double)shared_weight[r] * exact_product(&shared_down, 0, o, shared + (size_t)r * c->shared_width, &m);
            magnitude += (double)shared_weight[r] * m;
            assert_near(name, (double)residual[r * c->hidden + o], sum, c->width * (c->top_k + 1), magnitude);
        }
    kernel_free_all();
}

static void test_experts(void **state) {
    (void)state;
    static const experts_case cases[] = {
        {4, 64, 4, 8, 2, 128, 64, 64, 1},   {4, 64, 4, 8, 2, 128, 64, 64, 8},  {4, 64, 4, 64, 8, 64, 512, 512, 1},
        {4, 64, 8, 16, 4, 256, 128, 96, 5}, {8, 32, 16, 5, 3, 96, 96, 32, 1},  {8, 32, 4, 12, 3, 96, 96, 64, 2},
        {16, 0, 16, 6, 2, 64, 64, 96, 1},   {16, 0, 8, 40, 16, 64, 32, 64, 8}, {4, 128, 8, 300, 8, 128, 128, 128, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_experts(&cases[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_linear), cmocka_unit_test(test_swiglu), cmocka_unit_test(test_embed),
                                       cmocka_unit_test(test_head),   cmocka_unit_test(test_route),  cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_gemm.c: the Metal backend's products of many rows (gemm.metal) and the lists of experts' rows (rows.metal), on this machine, against
 * double arithmetic on the weights as the reference backend dequantizes them: every format, tails in rows and outputs, both orders. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "backend/ref/plain.h"
#include "metal/kernel_run.h"
#include "unit.h"

static const struct form {
    uint32_t bits, group;
    const char *name;
} forms[] = {{4, 64, "q4"}, {8, 64, "q8"}, {16, 0, "b16"}, {4, 32, "q4"}, {4, 128, "q4"}, {8, 32, "q8"}};

enum { MOST_COLS = 256 };

typedef struct sum { /* of products, with what rounding may do to it */
    double value, magnitude;
} sum;

static sum dot(const weight_mat *m, uint32_t which, uint32_t row, const float *x) {
    float w[MOST_COLS];
    sum s = {0, 0};
    ref_weight_row(m, which, row, w);
    for (uint32_t i = 0; i < m->cols; i++) {
        s.value += (double)w[i] * (double)x[i];
        s.magnitude += fabs((double)w[i] * (double)x[i]);
    }
    return s;
}

typedef enum precision { EXACT, FAST, TENSOR } precision; /* float32; 16-bit tiles on simdgroup matrices, and by tensor operations */
static const char *const precision_names[] = {"exact", "fast", "tensor"};

/* Of a sum of n products: float32 throughout, or operands rounded to 11 bits. */
static double tolerance(uint32_t n, double magnitude, precision prec) {
    return ((n + 8) * (double)FLT_EPSILON + (prec == EXACT ? 0 : 0x1p-10)) * magnitude + 1e-30;
}

static double silu(double x) { return x / (1 + exp(-x)); }

/* silu(g)·u: its slope in g is at most 1.1, in u silu(g). */
static void check_swiglu(const char *name, float got, sum g, sum u, uint32_t cols, precision prec) {
    const double dg = tolerance(cols, g.magnitude, prec), du = tolerance(cols, u.magnitude, prec), want = silu(g.value) * u.value;
    kernel_close(name, (double)got, want,
                 1.1 * dg * (fabs(u.value) + du) + fabs(silu(g.value)) * du + 8 * (double)FLT_EPSILON * fabs(want));
}

typedef enum kind { STORE, ADD, SCALED_ADD, SWIGLU } kind;

static void check_gemm(const struct form *f, uint32_t rows, uint32_t outputs, uint32_t cols, kind k, bool narrow, precision prec) {
    const uint32_t x_stride = cols + 4, out_stride = outputs + 3,
                   tile = narrow        ? METAL_NARROW_OUTPUTS
                          : k == SWIGLU ? METAL_SWIGLU_GEMM_OUTPUTS
                                        : METAL_GEMM_OUTPUTS;
    const weight_mat w = kernel_matrix(1, outputs, cols, f->bits, f->group), up = kernel_matrix(1, outputs, cols, f->bits, f->group);
    float *x = kernel_floats((size_t)rows * x_stride - 4, 1), *scale = kernel_floats(rows, 2);
    const size_t n = (size_t)(rows - 1) * out_stride + outputs;
    float *out = kernel_floats(n, 1), *before = kernel_alloc(n * sizeof *before);
    memcpy(before, out, n * sizeof *out);
    const metal_gemm_args a = {.w = kernel_metal_matrix(&w),
                               .up = kernel_metal_matrix(&up),
                               .x = DEVICE(x),
                               .out = DEVICE(out),
                               .scale = k == SCALED_ADD ? DEVICE(scale) : 0,
                               .x_stride = x_stride,
                               .out_stride = out_stride,
                               .add = k == ADD || k == SCALED_ADD};
    const metal_step t = {.rows = rows};
    char name[64];
    snprintf(name, sizeof name, "gemm_%s%s%s_%s", k == SWIGLU ? "swiglu_" : "", narrow ? "narrow_" : "", f->name, precision_names[prec]);
    const uint32_t grid[3] = {(outputs + tile - 1) / tile, (rows + METAL_GEMM_ROWS - 1) / METAL_GEMM_ROWS, 1};
    const kernel_out written = {out, n * sizeof *out};
    kernel_run(name, &a, sizeof a, &t, grid, narrow ? METAL_NARROW_THREADS : METAL_GEMM_THREADS, narrow ? METAL_TG_NARROW : METAL_TG_GEMM,
               &written, 1);
    if (kernels_watched && outputs % tile == 0) /* each weight once for 64 rows */
        assert_int_equal(kernel_loads(w.codes), outputs * weight_row_bytes(&w) * ((rows + METAL_GEMM_ROWS - 1) / METAL_GEMM_ROWS));
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = (uint32_t)(i / out_stride), o = (uint32_t)(i % out_stride);
        if (o >= outputs) { /* between the rows */
            assert_memory_equal(&out[i], &before[i], sizeof *out);
            continue;
        }
        const sum s = dot(&w, 0, o, x + (size_t)r * x_stride);
        if (k == SWIGLU) {
            check_swiglu(name, out[i], s, dot(&up, 0, o, x + (size_t)r * x_stride), cols, prec);
            continue;
        }
        const double factor = k == SCALED_ADD ? (double)scale[r] : 1, base = k == STORE ? 0 : (double)before[i];
        kernel_close(name, (double)out[i], base + factor * s.value,
                     fabs(factor) * tolerance(cols, s.magnitude, prec) + 2 * (double)FLT_EPSILON * (fabs(base) + fabs(factor * s.value)));
    }
    kernel_free_all();
}

static void test_dense(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (precision prec = EXACT; prec <= TENSOR; prec++) {
            const uint32_t cols = forms[f].group == 128 ? 128 : forms[f].group == 64 ? 192 : 96;
            check_gemm(&forms[f], 65, 70, cols, STORE, false, prec);
            if (prec != TENSOR) check_gemm(&forms[f], 9, 17, cols, STORE, true, prec);
            check_gemm(&forms[f], 12, 33, cols, SWIGLU, false, prec);
        }
    static const uint32_t rows[] = {1, 7, 8, 63, 64, 129}, outputs[] = {1, 8, 63, 64, 65};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {
            const bool narrow = (r + 2 * o) % 3 == 0;
            check_gemm(&forms[0], rows[r], outputs[o], 64, (kind)((r + o) % 4), narrow, (r + o) % 5 == 0 ? FAST : narrow ? EXACT : TENSOR);
        }
    check_gemm(&forms[0], 63, 65, 64, ADD, false, EXACT);
    check_gemm(&forms[0], 20, 40, 64, SWIGLU, true, EXACT);
    check_gemm(&forms[1], 66, 20, 64, SCALED_ADD, false, EXACT);
}

/* The inputs in parts: each part's sums by themselves. */
static void check_parts(const struct form *f, uint32_t rows, uint32_t outputs, uint32_t cols, uint32_t parts, bool narrow, precision prec) {
    const weight_mat w = kernel_matrix(1, outputs, cols, f->bits, f->group);
    const uint32_t tile = narrow ? METAL_NARROW_OUTPUTS : METAL_GEMM_OUTPUTS;
    float *x = kernel_floats((size_t)rows * cols, 1), own[MOST_COLS];
    const size_t n = (size_t)parts * rows * outputs;
    float *out = kernel_nans(n);
    const metal_gemm_args a = {
        .w = kernel_metal_matrix(&w), .x = DEVICE(x), .out = DEVICE(out), .x_stride = cols, .out_stride = outputs, .in_parts = 1};
    const metal_step t = {.rows = rows, .router_parts = parts};
    char name[64];
    snprintf(name, sizeof name, "gemm_%s%s_%s", narrow ? "narrow_" : "", f->name, precision_names[prec]);
    kernel_run(name, &a, sizeof a, &t, KERNEL_GRID((outputs + tile - 1) / tile, (rows + METAL_GEMM_ROWS - 1) / METAL_GEMM_ROWS, parts),
               narrow ? METAL_NARROW_THREADS : METAL_GEMM_THREADS, narrow ? METAL_TG_NARROW : METAL_TG_GEMM,
               KERNEL_OUT({out, n * sizeof *out}));
    for (size_t i = 0; i < n; i++) {
        const uint32_t part = (uint32_t)(i / outputs / rows), chunks = cols / 32, r = (uint32_t)(i / outputs % rows);
        for (uint32_t k = 0; k < cols; k++) {
            const bool here = k >= chunks * part / parts * 32 && k < chunks * (part + 1) / parts * 32;
            own[k] = here ? x[(size_t)r * cols + k] : 0;
        }
        const sum s = dot(&w, 0, (uint32_t)(i % outputs), own);
        kernel_close(name, (double)out[i], s.value, tolerance(cols, s.magnitude, prec));
    }
    kernel_free_all();
}

static void test_parts(void **state) {
    (void)state;
    check_parts(&forms[1], 70, 33, 256, METAL_MAX_ROUTER_PARTS, true, EXACT);
    check_parts(&forms[1], 9, 5, 192, 4, true, FAST);
    check_parts(&forms[3], 12, 65, 96, 2, false, EXACT);
    check_parts(&forms[2], 66, 17, 160, 3, true, EXACT);
}

/* ---- experts ---- */

typedef enum routing { SPREAD, ALL_TO_ONE, SOME_NEVER } routing;

static void choose(uint32_t *expert, uint32_t rows, uint32_t top_k, uint32_t experts, routing how) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < top_k; i++) {
            uint32_t e;
            bool again;
            do {
                e = how == ALL_TO_ONE && i == 0 ? experts - 1 : kernel_number(how == SOME_NEVER ? experts / 2 + 1 : experts);
                again = false;
                for (uint32_t j = 0; j < i; j++) again |= expert[r * top_k + j] == e;
            } while (again);
            expert[r * top_k + i] = e;
        }
}

static void check_experts(const struct form *f, uint32_t rows, uint32_t top_k, uint32_t experts, uint32_t hidden, uint32_t width,
                          routing how, precision prec) {
    const uint32_t places = rows * top_k;
    const weight_mat gate = kernel_matrix(experts, width, hidden, f->bits, f->group),
                     up = kernel_matrix(experts, width, hidden, f->bits, f->group),
                     down = kernel_matrix(experts, hidden, width, f->bits, f->group);
    float *x = kernel_floats((size_t)rows * hidden, 1), *weight = kernel_floats(places, 1), *in = kernel_nans((size_t)places * width),
          *partial = kernel_nans((size_t)places * hidden), *residual = kernel_floats((size_t)rows * hidden, 1),
          *before = kernel_alloc((size_t)rows * hidden * sizeof(float));
    uint32_t *expert = kernel_alloc(places * sizeof *expert), *first = kernel_alloc((experts + 1) * sizeof *first),
             *place = kernel_alloc(places * sizeof *place);
    memcpy(before, residual, (size_t)rows * hidden * sizeof *residual);
    choose(expert, rows, top_k, experts, how);
    const metal_expert_gemm_args a = {.gate = kernel_metal_matrix(&gate),
                                      .up = kernel_metal_matrix(&up),
                                      .down = kernel_metal_matrix(&down),
                                      .moe_in = DEVICE(x),
                                      .expert = DEVICE(expert),
                                      .weight = DEVICE(weight),
                                      .first = DEVICE(first),
                                      .place = DEVICE(place),
                                      .places = DEVICE(in),
                                      .partial = DEVICE(partial),
                                      .residual = DEVICE(residual),
                                      .experts = experts,
                                      .top_k = top_k};
    const metal_step t = {.rows = rows};

    const kernel_out lists[2] = {{first, (experts + 1) * sizeof *first}, {place, places * sizeof *place}};
    kernel_run("expert_lists", &a, sizeof a, &t, (uint32_t[]){experts, 1, 1}, METAL_LISTS_THREADS, METAL_TG_LISTS, lists, 2);
    uint32_t n = 0;
    for (uint32_t e = 0; e < experts; e++) {
        assert_int_equal(first[e], n);
        for (uint32_t p = 0; p < places; p++)
            if (expert[p] == e) assert_int_equal(place[n++], p);
    }
    assert_int_equal(first[experts], places);

    char name[64];
    snprintf(name, sizeof name, "expert_gemm_in_%s_%s", f->name, precision_names[prec]);
    const kernel_out written_in = {in, (size_t)places * width * sizeof *in};
    uint64_t readings = 0; /* of an expert's weights */
    for (uint32_t e = 0; e < experts; e++) readings += (first[e + 1] - first[e] + METAL_GEMM_ROWS - 1) / METAL_GEMM_ROWS;
    const uint32_t grid_in[3] = {(width + METAL_SWIGLU_GEMM_OUTPUTS - 1) / METAL_SWIGLU_GEMM_OUTPUTS, experts, 1};
    kernel_run(name, &a, sizeof a, &t, grid_in, METAL_GEMM_THREADS, METAL_TG_GEMM, &written_in, 1);
    if (kernels_watched && width % METAL_SWIGLU_GEMM_OUTPUTS == 0)
        assert_int_equal(kernel_loads(gate.codes), readings * width * weight_row_bytes(&gate));
    for (uint32_t p = 0; p < places; p++)
        for (uint32_t o = 0; o < width; o++) {
            const float *row = x + (size_t)(p / top_k) * hidden;
            check_swiglu(name, in[(size_t)p * width + o], dot(&gate, expert[p], o, row), dot(&up, expert[p], o, row), hidden, prec);
        }

    snprintf(name, sizeof name, "expert_gemm_out_%s_%s", f->name, precision_names[prec]);
    const kernel_out written_out = {partial, (size_t)places * hidden * sizeof *partial};
    const uint32_t grid_out[3] = {(hidden + METAL_GEMM_OUTPUTS - 1) / METAL_GEMM_OUTPUTS, experts, 1};
    kernel_run(name, &a, sizeof a, &t, grid_out, METAL_GEMM_THREADS, METAL_TG_GEMM, &written_out, 1);
    if (kernels_watched && hidden % METAL_GEMM_OUTPUTS == 0)
        assert_int_equal(kernel_loads(down.codes), readings * hidden * weight_row_bytes(&down));
    for (uint32_t p = 0; p < places; p++)
        for (uint32_t o = 0; o < hidden; o++) {
            const sum s = dot(&down, expert[p], o, in + (size_t)p * width);
            kernel_close(name, (double)partial[(size_t)p * hidden + o], s.value, tolerance(width, s.magnitude, prec));
        }

    const kernel_out written = {residual, (size_t)rows * hidden * sizeof *residual};
    kernel_run("expert_combine", &a, sizeof a, &t, (uint32_t[]){rows, (hidden + METAL_SUM_VALUES - 1) / METAL_SUM_VALUES, 1},
               METAL_SUM_VALUES / 4, 0, &written, 1);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < hidden; o++) {
            double want = (double)before[(size_t)r * hidden + o], magnitude = fabs(want);
            for (uint32_t i = 0; i < top_k; i++) {
                const double v = (double)weight[r * top_k + i] * (double)partial[(size_t)(r * top_k + i) * hidden + o];
                want += v, magnitude += fabs(v);
            }
            kernel_close("expert_combine", (double)residual[(size_t)r * hidden + o], want, (top_k + 2) * (double)FLT_EPSILON * magnitude);
        }
    kernel_free_all();
}

static void test_experts(void **state) {
    (void)state;
    check_experts(&forms[0], 37, 4, 9, 128, 64, SPREAD, EXACT);
    check_experts(&forms[0], 150, 2, 5, 64, 64, ALL_TO_ONE, EXACT); /* more than one tile of rows */
    check_experts(&forms[0], 20, 3, 12, 64, 128, SOME_NEVER, FAST);
    check_experts(&forms[3], 69, 2, 3, 64, 96, SPREAD, TENSOR);
    check_experts(&forms[1], 20, 3, 12, 128, 64, SOME_NEVER, TENSOR);
    check_experts(&forms[2], 9, 2, 3, 64, 32, SPREAD, TENSOR);
    check_experts(&forms[1], 11, 2, 4, 64, 64, SPREAD, EXACT);
    check_experts(&forms[2], 9, 2, 3, 64, 32, SPREAD, EXACT);
    check_experts(&forms[4], 1, 1, 1, 128, 128, SPREAD, EXACT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_parts), cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

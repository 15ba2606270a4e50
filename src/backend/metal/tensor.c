/* tensor.c: whether wide products of many rows go by the tensor operations of Metal 4 (tensor.metal): only where its kernels, compiled and
 * run on the device, agree with the reference.
 *
 * Apple's compiler and the units behind it were never seen by who wrote the kernels, and a product that is wrong in one corner of a tile
 * would be wrong text, not an error.  The check takes milliseconds, so it is made whenever calla starts and its verdict is kept nowhere. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/metal/tensor.h"
#include "backend/ref/plain.h"
#include "base/float.h"
#include "base/log.h"

/* Two tiles of rows and two of outputs, the last ones not full; two experts, the first with more rows than a tile has. */
enum { ROWS = 70, FIRST_ROWS = 66, OUTPUTS = 96, COLS = 128, GROUP = 64, EXPERTS = 2 };
enum { WEIGHTS = EXPERTS * OUTPUTS * COLS, MOST_ARGUMENTS = 512, ALIGN = 256, TRIAL_BYTES = 1 << 18 };

/* ---- trials ---- */

calla_status metal_trial_open(metal_trial *t, backend *b, uint64_t bytes, calla_error *err) {
    *t = (metal_trial){.used = 0};
    const calla_status status = gpu_allocate(b->gpu, bytes, "a check of kernels", &t->memory, err);
    if (status) return status;
    t->arguments = metal_trial_take(t, MOST_ARGUMENTS);
    t->step = metal_trial_take(t, sizeof(metal_step));
    return CALLA_OK;
}

void *metal_trial_take(metal_trial *t, uint64_t bytes) {
    uint8_t *here = t->memory.host + t->used;
    t->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

bool metal_trial_run(backend *b, const metal_trial *t, const char *kernel, const metal_dispatch *d, const void *arguments, size_t bytes,
                     const metal_step *step) {
    metal_commands c;
    metal_dispatch own = *d;
    calla_error err;
    if (gpu_kernel(b->gpu, kernel, d->threads, &own.kernel, &err)) {
        log_warn("the tensor operations are not used: %s", err.message);
        return false;
    }
    memcpy(t->arguments, arguments, bytes);
    memcpy(t->step, step, sizeof *step);
    if (!gpu_begin(b->gpu, &c)) return false;
    gpu_bind_arguments(&c, &t->memory);
    gpu_bind_step(&c, &t->memory, (uint64_t)(t->step - t->memory.host));
    own.arguments = (uint64_t)(t->arguments - t->memory.host);
    gpu_dispatch(b->gpu, &c, &own);
    gpu_commit(b->gpu, &c);
    gpu_wait(b->gpu, 0);
    return !gpu_failure(b->gpu);
}

bool metal_trial_agrees(bool agrees, const char *kernel) {
    if (!agrees) log_warn("the tensor operations are not used: %s computes something else than the reference", kernel);
    return agrees;
}

/* ---- products ---- */

typedef struct products {
    metal_trial t;
    float *x;                                  /* [ROWS][COLS] */
    float *out;                                /* [ROWS][OUTPUTS] */
    uint32_t *first, *place;                   /* [EXPERTS + 1], [ROWS] */
    uint8_t *codes[2], *scales[2], *biases[2]; /* of gate and up, [EXPERTS][OUTPUTS][COLS] */
} products;

static uint64_t device(const products *t, const void *p) { return metal_trial_device(&t->t, p); }

static void put_bf16(uint8_t *to, uint64_t i, float v) {
    const uint16_t h = float_to_bf16(v);
    memcpy(to + 2 * i, &h, sizeof h);
}

/* Random rows and weights, which are plain bf16 numbers too. */
static void fill(products *t, uint32_t bits) {
    for (uint32_t i = 0; i < ROWS * COLS; i++) t->x[i] = metal_trial_number(1, i, 1);
    for (uint32_t i = 0; i < ROWS; i++) t->place[i] = (i * 29 + 11) % ROWS; /* any order */
    t->first[0] = 0, t->first[1] = FIRST_ROWS, t->first[2] = ROWS;
    for (int m = 0; m < 2; m++) {
        for (uint32_t i = 0; i < WEIGHTS * bits / 8; i++) t->codes[m][i] = (uint8_t)(random_uniform(2, (uint32_t)m, i) * 256);
        for (uint32_t i = 0; i < WEIGHTS && bits == 16; i++) put_bf16(t->codes[m], i, metal_trial_number(3 + (uint32_t)m, i, 0.2f));
        for (uint32_t i = 0; i < WEIGHTS / GROUP; i++) {
            put_bf16(t->scales[m], i, metal_trial_number(5 + (uint32_t)m, i, bits == 4 ? 0.02f : 0.001f));
            put_bf16(t->biases[m], i, metal_trial_number(7 + (uint32_t)m, i, 0.1f));
        }
    }
}

static metal_mat matrix(const products *t, int m, uint32_t bits, uint32_t count) {
    const uint32_t group = bits == 16 ? 0 : GROUP;
    return (metal_mat){.codes = device(t, t->codes[m]),
                       .scales = device(t, t->scales[m]),
                       .biases = device(t, t->biases[m]),
                       .count = count,
                       .rows = OUTPUTS,
                       .cols = COLS,
                       .bits = bits,
                       .group = group,
                       .groups = group ? COLS / group : 0};
}

/* ---- what the reference says ---- */

typedef struct product {
    double value, tolerance;
} product;

static product product_of(const float *w, const float *x) {
    double sum = 0, magnitude = 0;
    for (uint32_t k = 0; k < COLS; k++) {
        const double p = (double)w[k] * (double)x[k];
        sum += p;
        magnitude += fabs(p);
    }
    return (product){sum, 0x1p-9 * magnitude + 1e-6}; /* rows and weights have 11 bits; as much again for how they are added */
}

static uint32_t expert_of(const products *t, uint32_t row) {
    for (uint32_t i = 0; i < FIRST_ROWS; i++)
        if (t->place[i] == row) return 0;
    return 1;
}

/* Of an expert's output, in all rows that are its. */
static bool output_agrees(const products *t, uint32_t bits, bool pair, bool grouped, uint32_t expert, uint32_t output) {
    float gate[COLS], up[COLS], *const to[] = {gate, up};
    for (int m = 0; m < 2; m++) {
        const weight_mat w = {t->codes[m], t->scales[m], t->biases[m], EXPERTS, OUTPUTS, COLS, bits, bits == 16 ? 0 : GROUP};
        ref_weight_row(&w, expert, output, to[m]);
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        if (grouped && expert_of(t, r) != expert) continue;
        const product g = product_of(gate, t->x + r * COLS), u = product_of(up, t->x + r * COLS);
        const double silu = g.value / (1 + exp(-g.value)), want = pair ? silu * u.value : g.value;
        /* the slope of silu is at most 1.1 */
        const double tolerance = pair ? 1.1 * g.tolerance * (fabs(u.value) + u.tolerance) + fabs(silu) * u.tolerance : g.tolerance;
        if (!(fabs((double)t->out[r * OUTPUTS + output] - want) <= tolerance)) return false;
    }
    return true;
}

static bool agrees(const products *t, uint32_t bits, bool pair, bool grouped) {
    for (uint32_t e = 0; e < (grouped ? EXPERTS : 1); e++)
        for (uint32_t o = 0; o < OUTPUTS; o++)
            if (!output_agrees(t, bits, pair, grouped, e, o)) return false;
    return true;
}

/* ---- what the device says ---- */

static bool run(backend *b, const products *t, const char *name, const void *arguments, size_t bytes, uint32_t across, uint32_t down) {
    const metal_dispatch d = {.threads = METAL_GEMM_THREADS, .threadgroup_bytes = METAL_TG_GEMM, .grid = {across, down, 1}};
    const metal_step step = {.rows = ROWS};
    for (uint32_t i = 0; i < ROWS * OUTPUTS; i++) t->out[i] = NAN;
    return metal_trial_run(b, &t->t, name, &d, arguments, bytes, &step);
}

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

static bool run_dense(backend *b, const products *t, const char *name, uint32_t bits, uint32_t across) {
    const metal_gemm_args a = {.w = matrix(t, 0, bits, 1),
                               .up = matrix(t, 1, bits, 1),
                               .x = device(t, t->x),
                               .out = device(t, t->out),
                               .x_stride = COLS,
                               .out_stride = OUTPUTS};
    return run(b, t, name, &a, sizeof a, across, blocks(ROWS, METAL_GEMM_ROWS));
}

static bool run_grouped(backend *b, const products *t, const char *name, uint32_t bits, bool pair, uint32_t across) {
    const metal_expert_gemm_args a = {.gate = matrix(t, 0, bits, EXPERTS),
                                      .up = matrix(t, 1, bits, EXPERTS),
                                      .down = matrix(t, 0, bits, EXPERTS),
                                      .moe_in = device(t, t->x),
                                      .first = device(t, t->first),
                                      .place = device(t, t->place),
                                      .places = device(t, pair ? t->out : t->x),
                                      .partial = device(t, t->out),
                                      .experts = EXPERTS,
                                      .top_k = 1};
    return run(b, t, name, &a, sizeof a, across, EXPERTS);
}

static bool check_kernel(backend *b, const products *t, const char *kind, uint32_t bits, bool pair, bool grouped) {
    const uint32_t across = blocks(OUTPUTS, pair ? METAL_SWIGLU_GEMM_OUTPUTS : METAL_GEMM_OUTPUTS);
    char name[64];
    snprintf(name, sizeof name, "%s_%s_tensor", kind, bits == 4 ? "q4" : bits == 8 ? "q8" : "b16");
    if (!(grouped ? run_grouped(b, t, name, bits, pair, across) : run_dense(b, t, name, bits, across))) return false;
    return metal_trial_agrees(agrees(t, bits, pair, grouped), name);
}

static bool check_format(backend *b, products *t, uint32_t bits) {
    fill(t, bits);
    return check_kernel(b, t, "gemm", bits, false, false) && check_kernel(b, t, "gemm_swiglu", bits, true, false) &&
           check_kernel(b, t, "expert_gemm_in", bits, true, true) && check_kernel(b, t, "expert_gemm_out", bits, false, true);
}

static bool check_products(backend *b, calla_error *err) {
    products t;
    if (metal_trial_open(&t.t, b, TRIAL_BYTES, err)) return false;
    t.x = metal_trial_take(&t.t, ROWS * COLS * sizeof *t.x);
    t.out = metal_trial_take(&t.t, ROWS * OUTPUTS * sizeof *t.out);
    t.first = metal_trial_take(&t.t, (EXPERTS + 1) * sizeof *t.first);
    t.place = metal_trial_take(&t.t, ROWS * sizeof *t.place);
    for (int m = 0; m < 2; m++) {
        t.codes[m] = metal_trial_take(&t.t, WEIGHTS * 2);
        t.scales[m] = metal_trial_take(&t.t, WEIGHTS / GROUP * 2);
        t.biases[m] = metal_trial_take(&t.t, WEIGHTS / GROUP * 2);
    }
    const bool agree = check_format(b, &t, 4) && check_format(b, &t, 8) && check_format(b, &t, 16);
    gpu_release(b->gpu, &t.t.memory);
    return agree;
}

calla_status metal_check_tensor(backend *b, calla_error *err) {
    if (!b->limits.fast || b->limits.rows <= METAL_STEP_ROWS || metal_turned_off(b, WITHOUT_TENSOR_OPS) || !gpu_compile_tensor(b->gpu))
        return CALLA_OK;
    *err = (calla_error){.status = CALLA_OK};
    b->tensor = check_products(b, err) && metal_check_tensor_attention(b, err);
    if (err->status || !gpu_failure(b->gpu)) return err->status;
    return error_set(err, CALLA_E_DEVICE, "the Metal device failed when its tensor operations were tried: %s; use --without tensor-ops",
                     gpu_failure(b->gpu));
}

/* tensor_attention.c: the check of attention by tensor operations (tensor.c): rows of one sequence that see 31 … 50 positions, which are more
 * than one tile of either, the last ones not full. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/metal/tensor.h"
#include "backend/ref/plain.h"

enum { ROWS = 20, HEADS = 8 /* of one K/V head */, BEFORE = 30, POSITIONS = BEFORE + ROWS, TRIAL_BYTES = 2 << 20 };

typedef struct attended {
    metal_trial t;
    uint16_t *queries; /* [ROWS][HEADS][HEAD_DIM], half */
    float *out;        /* [ROWS][HEADS][HEAD_DIM] */
    uint8_t *kv;       /* a page: K, then V */
    uint32_t *page;
    metal_segment *segment;
} attended;

/* A query's value, which half has exactly: 0.25 … 0.5, of either sign. */
static float query_value(uint32_t i) {
    const uint32_t bits = (uint32_t)(random_uniform(11, 0, i) * 2048);
    return (bits & 1 ? -0.25f : 0.25f) * (1 + (float)(bits >> 1) / 1024);
}

static uint16_t half_of(float f) { /* such a value */
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u >> 16 & 0x8000) | ((u >> 23 & 0xFF) - 127 + 15) << 10 | (u >> 13 & 0x3FF));
}

static void fill(const attended *a, calla_kv kv) {
    float x[HEAD_DIM];
    for (uint32_t i = 0; i < ROWS * HEADS * HEAD_DIM; i++) a->queries[i] = half_of(query_value(i));
    for (uint32_t p = 0; p < POSITIONS; p++)
        for (uint32_t v = 0; v < 2; v++) {
            for (uint32_t i = 0; i < HEAD_DIM; i++) x[i] = metal_trial_number(12 + v, p * HEAD_DIM + i, 2);
            ref_kv_store(a->kv + v * kv_block_bytes(kv), kv, p, x);
        }
    for (uint32_t i = 0; i < ROWS * HEADS * HEAD_DIM; i++) a->out[i] = NAN;
    *a->page = 0;
    *a->segment = (metal_segment){.rows = ROWS, .first_position = BEFORE, .pages = 1};
}

/* The formula itself, for one query. */
static bool query_agrees(const attended *a, calla_kv kv, uint32_t row, uint32_t head) {
    const uint32_t at = (row * HEADS + head) * HEAD_DIM, seen = BEFORE + row + 1;
    double weight[POSITIONS], most = -INFINITY, all = 0, value[HEAD_DIM] = {0}, magnitude[HEAD_DIM] = {0};
    float x[HEAD_DIM];
    for (uint32_t p = 0; p < seen; p++) {
        ref_kv_load(a->kv, kv, p, x);
        weight[p] = 0;
        for (uint32_t i = 0; i < HEAD_DIM; i++) weight[p] += (double)query_value(at + i) * (double)x[i] / 16;
        most = fmax(most, weight[p]);
    }
    for (uint32_t p = 0; p < seen; p++) all += weight[p] = exp(weight[p] - most);
    for (uint32_t p = 0; p < seen; p++) {
        ref_kv_load(a->kv + kv_block_bytes(kv), kv, p, x);
        for (uint32_t i = 0; i < HEAD_DIM; i++) {
            value[i] += weight[p] / all * (double)x[i];
            magnitude[i] += weight[p] / all * fabs((double)x[i]);
        }
    }
    for (uint32_t i = 0; i < HEAD_DIM; i++) /* keys, weights and values have 11 bits */
        if (!(fabs((double)a->out[at + i] - value[i]) <= 0x1p-6 * magnitude[i])) return false;
    return true;
}

static bool agrees(const attended *a, calla_kv kv) {
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < HEADS; h++)
            if (!query_agrees(a, kv, r, h)) return false;
    return true;
}

static bool run(backend *b, const attended *a, const char *name) {
    const metal_attention_args arguments = {.out = metal_trial_device(&a->t, a->out),
                                            .kv = metal_trial_device(&a->t, a->kv),
                                            .queries = metal_trial_device(&a->t, a->queries),
                                            .out_stride = HEADS * HEAD_DIM,
                                            .heads = HEADS,
                                            .kv_heads = 1,
                                            .first = 1,
                                            .beyond = UINT32_MAX,
                                            .half_queries = 1};
    const metal_step step = {.segment = metal_trial_device(&a->t, a->segment),
                             .page_table = metal_trial_device(&a->t, a->page),
                             .rows = ROWS,
                             .segments = 1,
                             .long_splits = 1};
    const metal_dispatch d = {
        .threads = METAL_PREFILL_THREADS, .threadgroup_bytes = METAL_TG_PREFILL, .grid = {METAL_TILES(ROWS, 1), 1, 1}};
    return metal_trial_run(b, &a->t, name, &d, &arguments, sizeof arguments, &step);
}

bool metal_check_tensor_attention(backend *b, calla_error *err) {
    const calla_kv kv = b->limits.kv;
    attended a;
    char name[64];
    snprintf(name, sizeof name, "attention_%s_tensor", kv == CALLA_KV_F32 ? "kf32" : kv == CALLA_KV_BF16 ? "kb16" : "kq8");
    if (metal_trial_open(&a.t, b, TRIAL_BYTES, err)) return false;
    a.queries = metal_trial_take(&a.t, METAL_QUERIES(ROWS, HEADS) * sizeof *a.queries);
    a.out = metal_trial_take(&a.t, ROWS * HEADS * HEAD_DIM * sizeof *a.out);
    a.kv = metal_trial_take(&a.t, 2 * kv_block_bytes(kv));
    a.page = metal_trial_take(&a.t, sizeof *a.page);
    a.segment = metal_trial_take(&a.t, sizeof *a.segment);
    fill(&a, kv);
    const bool agree = run(b, &a, name) && metal_trial_agrees(agrees(&a, kv), name);
    gpu_release(b->gpu, &a.t.memory);
    return agree;
}

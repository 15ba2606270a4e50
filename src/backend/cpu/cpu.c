/* cpu.c: the CPU backend's table, memory and dispatch by kind of layer. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "backend/ref/sample.h"
#include "backend/vtables.h"
#include "base/clock.h"
#include "base/memory.h"

enum { ALIGN = 64, MAX_THREADS = 256 };

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t start = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return start;
}

static void lay_out_x(uint64_t *at, uint8_t *base, uint64_t rows, uint32_t cols, cpu_x *out) {
    enum { PARTS = 3 }; /* fine x has two, q24 three */
    const uint64_t f32 = take(at, rows * cols * 4), q8 = take(at, PARTS * rows * cols),
                   scale = take(at, PARTS * rows * (cols / CPU_GROUP + 1) * 4), sum = take(at, PARTS * rows * (cols / CPU_GROUP + 1) * 4),
                   start = take(at, PARTS * rows * (cols / CPU_GROUP + 1) * 4);
    if (!base) return;
    out->f32 = (float *)(void *)(base + f32);
    out->q8 = (int8_t *)(base + q8);
    out->scale = (float *)(void *)(base + scale);
    out->sum = (float *)(void *)(base + sum);
    out->start = (int32_t *)(void *)(base + start);
}

/* Lays out BUF_SCRATCH; base NULL only measures.  Untouched memory costs nothing, so both precisions have their place. */
static uint64_t lay_out_scratch(const model_shape *s, const backend_limits *n, uint8_t *base, cpu_scratch *out) {
    uint64_t at = 0;
    const uint64_t rows = max_u32(n->rows, n->wanted), places = (uint64_t)n->rows * s->top_k;
    const uint32_t input = max_u32(s->hidden, shape_mixer_out_values(s));
    cpu_scratch unused, *c = out ? out : &unused;
    lay_out_x(&at, base, rows, input, &c->input);
    lay_out_x(&at, base, places, s->expert_width, &c->experts);
    lay_out_x(&at, base, n->rows, s->shared_width, &c->shared);
    const uint64_t normed = take(&at, rows * input * 4);
    const uint64_t up = take(&at, (uint64_t)n->rows * s->shared_width * 4);
    const uint64_t router = take(&at, (uint64_t)n->rows * s->experts * 4);
    const uint64_t conv = take(&at, (uint64_t)n->rows * shape_conv_channels(s) * 4);
    const uint64_t alpha = take(&at, (uint64_t)n->rows * s->gdn_value_heads * 4);
    const uint64_t beta = take(&at, (uint64_t)n->rows * s->gdn_value_heads * 4);
    const uint64_t down = take(&at, (uint64_t)CPU_FEW_ROWS * (s->top_k + 1) * s->hidden * 4);
    const uint64_t list = take(&at, places * 4);
    const uint64_t rows_of = take(&at, places * 4);
    const uint64_t first = take(&at, ((uint64_t)s->experts + 1) * 4);
    const uint64_t partial = take(&at, cpu_attention_partial_bytes(s, n));
    /* of one thread: 64 outputs of two matrices of all rows, q and k of all rows of a head, what attention wants, one vector */
    uint64_t thread_bytes = 2 * rows * max_u32(CPU_WIDE, GDN_HEAD_DIM) * 4;
    if (thread_bytes < cpu_attention_thread_bytes(s)) thread_bytes = cpu_attention_thread_bytes(s);
    if (thread_bytes < (uint64_t)input * 4) thread_bytes = (uint64_t)input * 4;
    thread_bytes = (thread_bytes + ALIGN - 1) / ALIGN * ALIGN;
    const uint64_t thread = take(&at, thread_bytes * MAX_THREADS);
    const uint64_t sample = take(&at, ref_sample_scratch_bytes(s->vocabulary));
    if (!base) return at;
    c->input.fixed_order = c->experts.fixed_order = c->shared.fixed_order = n->deterministic;
    c->normed = (float *)(void *)(base + normed);
    c->up = (float *)(void *)(base + up);
    c->router = (float *)(void *)(base + router);
    c->conv = (float *)(void *)(base + conv);
    c->alpha = (float *)(void *)(base + alpha);
    c->beta = (float *)(void *)(base + beta);
    c->down = (float *)(void *)(base + down);
    c->list = (uint32_t *)(void *)(base + list);
    c->rows_of = (uint32_t *)(void *)(base + rows_of);
    c->first = (uint32_t *)(void *)(base + first);
    c->partial = (float *)(void *)(base + partial);
    c->thread = base + thread;
    c->thread_bytes = thread_bytes;
    c->sample = base + sample;
    return at;
}

static void cpu_close(backend *b) {
    if (!b) return;
    pool_close(b->pool);
    for (int i = 0; i < BUF_COUNT; i++)
        if (b->buf[i]) mem_unmap(b->buf[i], b->bytes[i]);
    mem_free(b->results);
    mem_free(b);
}

static calla_status cpu_open(const weights *w, const backend_limits *limits, backend **out, calla_error *err) {
    *out = NULL;
    if (max_u32(w->shape.hidden, shape_mixer_out_values(&w->shape)) > CPU_MAX_COLS ||
        max_u32(w->shape.expert_width, w->shape.shared_width) > CPU_MAX_COLS)
        return error_set(err, CALLA_E_UNSUPPORTED, "the cpu backend takes matrices of at most %d inputs; use --device ref", CPU_MAX_COLS);
    if (limits->threads > MAX_THREADS)
        return error_set(err, CALLA_E_ARGUMENT, "%u threads; at most %d are possible", limits->threads, MAX_THREADS);
    backend *b = mem_calloc(1, sizeof *b);
    if (!b) return error_nomem(err, "the CPU backend");
    b->w = w;
    b->s = &w->shape;
    b->limits = *limits;
    calla_status status = CALLA_OK;
    if (!(b->k = cpu_kernels_pick(err)))
        status = CALLA_E_ARGUMENT;
    else if (!(b->results = mem_calloc(limits->samples, sizeof *b->results)))
        status = error_nomem(err, "the CPU backend");
    else
        status = pool_open(limits->threads, &b->pool, err);
    if (status) {
        cpu_close(b);
        return status;
    }
    b->q8 = limits->fast && b->k->has_q8;
    *out = b;
    return CALLA_OK;
}

static buffer_want cpu_want(const backend_limits *limits, buffer_id id) {
    (void)limits, (void)id;
    return (buffer_want){4, ALIGN};
}

static uint64_t cpu_scratch_bytes(const model_shape *s, const backend_limits *limits) { return lay_out_scratch(s, limits, NULL, NULL); }

static calla_status cpu_allocate(backend *b, const uint64_t *bytes, calla_error *err) {
    for (int i = 0; i < BUF_COUNT; i++) {
        b->bytes[i] = bytes[i];
        if (!(b->buf[i] = mem_map(bytes[i])))
            return error_set(err, CALLA_E_NOMEM, "out of memory: a buffer of %llu bytes; use a smaller --context or fewer --sequences",
                             (unsigned long long)bytes[i]);
    }
    lay_out_scratch(b->s, &b->limits, b->buf[BUF_SCRATCH], &b->scratch);
    b->scratch.input.q24 = b->scratch.experts.q24 = b->scratch.shared.q24 = !b->q8 && b->k->prepare_q24 && !b->limits.deterministic;
    return CALLA_OK;
}

static calla_status cpu_begin(backend *b, const row_batch *batch, calla_error *err) {
    (void)err;
    b->batch = b->whole = batch;
    return CALLA_OK;
}

static void cpu_mixer_in(backend *b, uint32_t layer) {
    if (b->s->is_attention[layer])
        cpu_attention_in(b, layer);
    else
        cpu_gdn_in(b, layer);
}

static void cpu_mixer(backend *b, uint32_t layer) {
    if (b->s->is_attention[layer])
        cpu_attention_mix(b, layer);
    else
        cpu_gdn_mix(b, layer);
}

/* From here on the last layer may have no rows at all: a piece of a prompt of which no logits are wanted. */
static void cpu_mixer_out(backend *b, uint32_t layer) {
    if (!b->batch->rows) return;
    if (b->s->is_attention[layer])
        cpu_attention_out(b, layer);
    else
        cpu_gdn_out(b, layer);
}

static void route(backend *b, uint32_t layer) {
    if (b->batch->rows) cpu_route(b, layer);
}

static void expert_in(backend *b, uint32_t layer) {
    if (b->batch->rows) cpu_expert_in(b, layer);
}

static void expert_out(backend *b, uint32_t layer) {
    if (b->batch->rows) cpu_expert_out(b, layer);
}

static void cpu_stage_end(backend *b) { (void)b; /* each op has met its threads already */ }

static calla_status cpu_finish(backend *b, calla_error *err) {
    (void)err;
    b->batch = NULL;
    return CALLA_OK;
}

static const float *cpu_logits(backend *b, uint32_t wanted) {
    return (const float *)b->buf[BUF_LOGITS] + (size_t)wanted * b->s->vocabulary;
}

static const sample_result *cpu_sampled(backend *b, uint32_t sample) { return &b->results[sample]; }

static void cpu_peek(backend *b, buffer_id id, uint64_t first, uint64_t n, float *out) {
    memcpy(out, (const float *)b->buf[id] + first, n * sizeof *out);
}

static void cpu_describe(const backend *b, char *out, size_t n) {
    const uint32_t threads = pool_threads(b->pool);
    snprintf(out, n, "%s, %u thread%s, %s%s", b->k->name, threads, threads == 1 ? "" : "s", b->q8 ? "fast" : "exact",
             b->limits.deterministic ? ", deterministic" : "");
}

typedef struct read_run {
    const uint64_t *data;
    size_t words; /* of one task */
    _Atomic uint64_t sum;
} read_run;

static void read_task(void *context, uint32_t task, uint32_t thread) {
    read_run *run = context;
    const uint64_t *p = run->data + task * run->words;
    uint64_t s[8] = {0};
    (void)thread;
    for (size_t i = 0; i < run->words; i += 8)
        for (size_t j = 0; j < 8; j++) s[j] += p[i + j];
    for (size_t j = 0; j < 8; j++) run->sum += s[j];
}

/* 1 GiB, far beyond any cache, in tasks of 4 MiB; the best of four passes. */
static double cpu_read_rate(backend *b) {
    enum { TASKS = 256 };
    const size_t bytes = (size_t)1 << 30;
    uint64_t *data = mem_map(bytes), best = UINT64_MAX;
    if (!data) return 0;
    memset(data, 1, bytes);
    read_run run = {.data = data, .words = bytes / TASKS / sizeof *data};
    for (int pass = 0; pass < 4; pass++) {
        const uint64_t start = clock_now_ns();
        pool_run(b->pool, read_task, &run, TASKS);
        const uint64_t took = clock_now_ns() - start;
        best = took < best ? took : best;
    }
    mem_unmap(data, bytes);
    return (double)bytes * 1e9 / (double)best;
}

static const calla_optimization optimizations[CPU_OPTIMIZATIONS + 1] = {
    [CPU_EXPERT_GROUPING] = {"expert-grouping",
                             "rows that chose the same expert share its weights; off: each row's experts are computed alone"},
    [CPU_KV_SHARING] = {"kv-sharing", "the query heads of a group share each row of K and V; off: each head reads them for itself"},
    [CPU_DELTA_CHUNKS] = {"delta-chunks", "the delta rule takes some rows of a prompt together; off: one after the other"},
    [CPU_LAST_ROWS] = {"last-rows", "the last layer computes only rows whose logits are wanted; off: all rows"},
    [CPU_SPLIT_ATTENTION] = {"split-attention", "a long context is split over threads; off: one thread attends to all of a head's"},
};

const backend_vtable cpu_vtable = {
    .name = "cpu",
    .optimizations = optimizations,
    .batch_rows = 256,
    .open = cpu_open,
    .close = cpu_close,
    .load = cpu_load,
    .want = cpu_want,
    .scratch_bytes = cpu_scratch_bytes,
    .allocate = cpu_allocate,
    .copy_page = cpu_attention_copy_page,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .mixer_in = cpu_mixer_in,
    .mixer = cpu_mixer,
    .mixer_out = cpu_mixer_out,
    .route = route,
    .expert_in = expert_in,
    .expert_out = expert_out,
    .head = cpu_head,
    .stage_end = cpu_stage_end,
    .finish = cpu_finish,
    .logits = cpu_logits,
    .sampled = cpu_sampled,
    .describe = cpu_describe,
    .read_rate = cpu_read_rate,
    .dot_rates = cpu_dot_rates,
    .peek = cpu_peek,
};

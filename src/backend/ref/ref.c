/* ref.c: the reference backend's table, memory and dispatch by kind of layer. */
#include "backend/ref/ref.h"

#include <string.h>

#include "backend/ref/sample.h"
#include "backend/vtables.h"
#include "base/memory.h"

enum { ALIGN = 64 };

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint64_t take(uint64_t *at, uint64_t bytes) {
    uint64_t start = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return start;
}

/* Lays out BUF_SCRATCH; base NULL only measures. */
static uint64_t lay_out_scratch(const model_shape *s, const backend_limits *n, uint8_t *base, ref_scratch *out) {
    uint64_t at = 0;
    const uint32_t columns = max_u32(max_u32(s->hidden, shape_mixer_out_values(s)), max_u32(s->expert_width, s->shared_width));
    const uint32_t row = max_u32(max_u32(s->hidden, shape_mixer_out_values(s)), s->experts);
    const uint64_t weight = take(&at, (uint64_t)columns * 4);
    const uint64_t vec = take(&at, (uint64_t)max_u32(shape_conv_channels(s) * CONV_WIDTH, s->hidden) * 4);
    const uint64_t rows = take(&at, (uint64_t)max_u32(n->rows, n->wanted) * row * 4);
    const uint64_t conv = take(&at, (uint64_t)shape_conv_channels(s) * 4);
    const uint64_t scores = take(&at, (uint64_t)(s->attention_heads / s->kv_heads) * n->pages * KV_PAGE_TOKENS * 4);
    const uint64_t list = take(&at, (uint64_t)n->rows * s->top_k * 4);
    const uint64_t sample = take(&at, ref_sample_scratch_bytes(s->vocabulary));
    if (base)
        *out = (ref_scratch){(float *)(base + weight), (float *)(base + vec),     (float *)(base + rows), (float *)(base + conv),
                             (float *)(base + scores), (uint32_t *)(base + list), base + sample};
    return at;
}

static calla_status ref_open(const weights *w, const backend_limits *limits, backend **out, calla_error *err) {
    backend *b = mem_calloc(1, sizeof *b);
    *out = NULL;
    if (!b || !(b->results = mem_calloc(limits->samples, sizeof *b->results))) {
        mem_free(b);
        return error_nomem(err, "the reference backend");
    }
    b->w = w;
    b->s = &w->shape;
    b->limits = *limits;
    *out = b;
    return CALLA_OK;
}

static void ref_close(backend *b) {
    if (!b) return;
    for (int i = 0; i < BUF_COUNT; i++)
        if (b->buf[i]) mem_unmap(b->buf[i], b->bytes[i]);
    mem_free(b->results);
    mem_free(b);
}

static buffer_want ref_want(const backend_limits *limits, buffer_id id) {
    (void)limits, (void)id;
    return (buffer_want){4, ALIGN};
}

static uint64_t ref_scratch_bytes(const model_shape *s, const backend_limits *limits) { return lay_out_scratch(s, limits, NULL, NULL); }

static calla_status ref_allocate(backend *b, const uint64_t *bytes, calla_error *err) {
    for (int i = 0; i < BUF_COUNT; i++) {
        b->bytes[i] = bytes[i];
        if (!(b->buf[i] = mem_map(bytes[i])))
            return error_set(err, CALLA_E_NOMEM, "out of memory: a buffer of %llu bytes; use a smaller --context or fewer --sequences",
                             (unsigned long long)bytes[i]);
    }
    lay_out_scratch(b->s, &b->limits, b->buf[BUF_SCRATCH], &b->scratch);
    return CALLA_OK;
}

static calla_status ref_begin(backend *b, const row_batch *batch, calla_error *err) {
    (void)err;
    b->batch = b->whole = batch;
    return CALLA_OK;
}

static void ref_mixer_in(backend *b, uint32_t layer) {
    if (b->s->is_attention[layer])
        ref_attention_in(b, layer);
    else
        ref_gdn_in(b, &b->w->layer[layer]);
}

static void ref_mixer(backend *b, uint32_t layer) {
    if (b->s->is_attention[layer])
        ref_attention_mix(b, layer);
    else
        ref_gdn_mix(b, layer);
}

static void ref_mixer_out(backend *b, uint32_t layer) {
    if (b->s->is_attention[layer])
        ref_attention_out(b, &b->w->layer[layer]);
    else
        ref_gdn_out(b, &b->w->layer[layer]);
}

static void ref_stage_end(backend *b) { (void)b; /* ops run when called: nothing to wait for */ }

static calla_status ref_finish(backend *b, calla_error *err) {
    (void)err;
    b->batch = NULL;
    return CALLA_OK;
}

static const float *ref_logits(backend *b, uint32_t wanted) {
    return (const float *)b->buf[BUF_LOGITS] + (size_t)wanted * b->s->vocabulary;
}

static const sample_result *ref_sampled(backend *b, uint32_t sample) { return &b->results[sample]; }

static void ref_peek(backend *b, buffer_id id, uint64_t first, uint64_t n, float *out) {
    memcpy(out, (const float *)b->buf[id] + first, n * sizeof *out);
}

const backend_vtable ref_vtable = {
    .name = "ref",
    .batch_rows = 256,
    .open = ref_open,
    .close = ref_close,
    .want = ref_want,
    .scratch_bytes = ref_scratch_bytes,
    .allocate = ref_allocate,
    .copy_page = ref_attention_copy_page,
    .begin = ref_begin,
    .embed = ref_embed,
    .mixer_in = ref_mixer_in,
    .mixer = ref_mixer,
    .mixer_out = ref_mixer_out,
    .route = ref_route,
    .expert_in = ref_expert_in,
    .expert_out = ref_expert_out,
    .head = ref_head,
    .stage_end = ref_stage_end,
    .finish = ref_finish,
    .logits = ref_logits,
    .sampled = ref_sampled,
    .peek = ref_peek,
};

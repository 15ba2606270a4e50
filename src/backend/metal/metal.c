/* metal.c: the Metal backend's table, its memory, and the beginning and end of a step. */
#include "backend/metal/metal.h"

#include <stdio.h>
#include <string.h>

#include "backend/ref/plain.h"
#include "backend/ref/sample.h"
#include "backend/vtables.h"
#include "base/memory.h"

enum { ALIGN = 256 };

static const calla_optimization optimizations[] = {
    {"fused-embedding", "the first layer's projections look up a few rows' embeddings themselves"},
    {"tensor-ops", "matrix units of the M5 multiply many rows (fast precision)"},
    {NULL, NULL},
};

/* ---- opening ---- */

static calla_status check_shape(const backend *b, calla_error *err) {
    const model_shape *s = b->s;
    if (s->attention_layers && s->attention_heads / s->kv_heads > METAL_MAX_GROUP_HEADS)
        return error_set(err, CALLA_E_UNSUPPORTED,
                         "%u query heads for each key/value head; the metal backend takes up to %d: use --device cpu",
                         s->attention_heads / s->kv_heads, METAL_MAX_GROUP_HEADS);
    if (s->top_k > METAL_MAX_TOP_K || s->experts > METAL_MAX_EXPERTS)
        return error_set(err, CALLA_E_UNSUPPORTED, "%u of %u experts a token; the metal backend takes up to %d of %d: use --device cpu",
                         s->top_k, s->experts, METAL_MAX_TOP_K, METAL_MAX_EXPERTS);
    if (shape_mixer_in_values(s) % 4)
        return error_set(err, CALLA_E_UNSUPPORTED, "%u value heads; the metal backend takes an even number: use --device cpu",
                         s->gdn_value_heads);
    if (b->limits.deterministic)
        return error_set(err, CALLA_E_UNSUPPORTED,
                         "the metal backend's sums depend on what else is in a batch: leave out --deterministic, or use --device cpu");
    for (uint32_t i = 0; i < s->layers; i++) {
        const layer_weights *l = &b->w->layer[i];
        if (l->expert_gate.bits == l->expert_up.bits && l->expert_gate.group == l->expert_up.group &&
            l->shared_gate.bits == l->shared_up.bits && l->shared_gate.group == l->shared_up.group)
            continue;
        return error_set(err, CALLA_E_UNSUPPORTED, "layer %u: gate and up of an expert have different formats; use --device cpu", i);
    }
    return CALLA_OK;
}

static void metal_close(backend *b) {
    if (!b) return;
    if (b->gpu) {
        gpu_discard(&b->commands);
        gpu_wait(b->gpu, 0);
        metal_prepared_free(b);
        for (int i = 0; i < BUF_COUNT; i++) gpu_release(b->gpu, &b->buf[i]);
        for (uint32_t i = 0; i < b->weights.memories; i++) gpu_release(b->gpu, &b->weights.memory[i]);
        for (uint32_t i = 0; i < b->weights.files; i++) gpu_release(b->gpu, &b->weights.file[i].memory);
        gpu_release(b->gpu, &b->ring.memory);
        gpu_close(b->gpu);
    }
    mem_free(b->weights.layer);
    mem_free(b->noted);
    mem_free(b->sample_scratch);
    mem_free(b->results);
    mem_free(b->best_of);
    mem_free(b);
}

static calla_status open_parts(backend *b, calla_error *err) {
    b->command_work = b->limits.polite ? METAL_POLITE_WORK : METAL_COMMAND_WORK;
    b->most_noted = 6 * b->s->layers + 2;
    b->noted = mem_array(b->most_noted, sizeof *b->noted);
    b->results = mem_calloc(b->limits.samples, sizeof *b->results);
    b->best_of = mem_calloc(b->limits.samples, sizeof *b->best_of);
    b->sample_scratch = mem_alloc(ref_sample_scratch_bytes(b->s->vocabulary));
    if (!b->noted || !b->results || !b->best_of || !b->sample_scratch) return error_nomem(err, "the Metal backend");
    calla_status status = check_shape(b, err);
    if (!status) status = gpu_open(&b->gpu, &b->facts, err);
    if (status) return status;
    metal_find_files(b);
    return metal_place_weights(b, err);
}

static calla_status metal_open(const weights *w, const backend_limits *limits, backend **out, calla_error *err) {
    backend *b = *out = mem_calloc(1, sizeof *b);
    if (!b) return error_nomem(err, "the Metal backend");
    b->w = w;
    b->s = &w->shape;
    b->limits = *limits;
    const calla_status status = open_parts(b, err);
    if (!status) return CALLA_OK;
    metal_close(b);
    *out = NULL;
    return status;
}

/* ---- memory ---- */

static buffer_want metal_want(const backend_limits *limits, buffer_id id) {
    return (buffer_want){id == BUF_KV && limits->kv == CALLA_KV_BF16 ? 2 : 4, ALIGN};
}

static uint64_t metal_scratch_bytes(const model_shape *s, const backend_limits *limits) {
    metal_scratch c;
    metal_place_scratch(s, limits, 0, &c);
    return c.bytes;
}

/* All of it against what the system lets the GPU keep in memory: beyond, it swaps or fails in the middle of an answer. */
static calla_status check_room(const backend *b, const uint64_t *bytes, calla_error *err) {
    uint64_t buffers = METAL_RING * metal_ring_slot_bytes(b->s, &b->limits), largest = 0;
    for (int i = 0; i < BUF_COUNT; i++) {
        buffers += bytes[i];
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    const uint64_t need = b->weights.bytes + buffers;
    const double gb = 1e9;
    if (largest > b->facts.largest_buffer_bytes)
        return error_set(err, CALLA_E_NOMEM, "%s takes %.1f GB in one piece and %.1f are needed; use a smaller --context or --sequences",
                         b->facts.name, (double)b->facts.largest_buffer_bytes / gb, (double)largest / gb);
    if (need <= b->facts.working_set_bytes) return CALLA_OK;
    return error_set(err, CALLA_E_NOMEM,
                     "the system lets %s keep %.1f GB in memory; %.1f are needed: %.1f for weights, %.1f for the cache of %u tokens, %.1f "
                     "for %u states, "
                     "%.1f for batches of %u rows.  Use a smaller --context, --sequences or --batch-rows; or, with 8 GB to spare for "
                     "everything else, raise "
                     "the limit until the next start: sudo sysctl iogpu.wired_limit_mb=%llu",
                     b->facts.name, (double)b->facts.working_set_bytes / gb, (double)need / gb, (double)b->weights.bytes / gb,
                     (double)bytes[BUF_KV] / gb, b->limits.pages * KV_PAGE_TOKENS, (double)(bytes[BUF_STATE] + bytes[BUF_CONV]) / gb,
                     b->limits.slots, (double)(buffers - bytes[BUF_KV] - bytes[BUF_STATE] - bytes[BUF_CONV]) / gb, b->limits.rows,
                     (unsigned long long)(need / (1 << 20) + 512));
}

static calla_status metal_allocate(backend *b, const uint64_t *bytes, calla_error *err) {
    static const char *const what[BUF_COUNT] = {[BUF_KV] = "keys and values", [BUF_STATE] = "states"};
    calla_status status = check_room(b, bytes, err);
    for (uint32_t i = 0; i < b->weights.memories && !status; i++)
        status = gpu_allocate(b->gpu, b->weights.memory[i].bytes, "weights", &b->weights.memory[i], err);
    if (!status) status = metal_adopt_files(b, err);
    for (int i = 0; i < BUF_COUNT && !status; i++) status = gpu_allocate(b->gpu, bytes[i], what[i] ? what[i] : "batches", &b->buf[i], err);
    b->ring.slot_bytes = metal_ring_slot_bytes(b->s, &b->limits);
    if (!status) status = gpu_allocate(b->gpu, METAL_RING * b->ring.slot_bytes, "descriptors of batches", &b->ring.memory, err);
    if (!status) status = metal_place_weights(b, err);
    if (status) return status;
    metal_place_scratch(b->s, &b->limits, b->buf[BUF_SCRATCH].address, &b->scratch);
    status = gpu_compile(b->gpu, err);
    if (!status) status = metal_check_tensor(b, err);
    if (!status) status = metal_prepare(b, err);
    if (status) return status;
    gpu_keep_kernels(b->gpu);
    metal_count(b);
    return CALLA_OK;
}

static void metal_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens) {
    const uint64_t block = kv_block_bytes(b->limits.kv), page = 2 * b->s->kv_heads * block;
    gpu_wait(b->gpu, 0); /* what is under way may still write positions that are copied here */
    for (uint32_t layer = 0; layer < b->s->attention_layers; layer++) {
        uint8_t *pages = b->buf[BUF_KV].host + (uint64_t)layer * b->limits.pages * page;
        for (uint64_t at = 0; at < page; at += block) ref_kv_copy(pages + dst * page + at, pages + src * page + at, b->limits.kv, tokens);
    }
}

/* ---- a step ---- */

static calla_status failure(const backend *b, calla_error *err) {
    return error_set(err, CALLA_E_DEVICE, "the Metal device failed: %s; start again", gpu_failure(b->gpu));
}

static calla_status metal_begin(backend *b, const row_batch *batch, calla_error *err) {
    if (gpu_failure(b->gpu)) return failure(b, err);
    b->batch = batch;
    b->n_noted = b->n_run = 0;
    b->embedding_due = b->choice_due = false;
    b->walk = (metal_walk){.step = UINT64_MAX};
    metal_batch_write(b, batch);
    b->view = &b->whole;
    return CALLA_OK;
}

static void metal_embed(backend *b) { metal_note(b, OP_EMBED, 0); }
static void metal_mixer_in(backend *b, uint32_t layer) { metal_note(b, OP_MIXER_IN, layer); }
static void metal_mixer(backend *b, uint32_t layer) { metal_note(b, OP_MIXER, layer); }
static void metal_mixer_out(backend *b, uint32_t layer) { metal_note(b, OP_MIXER_OUT, layer); }
static void metal_route(backend *b, uint32_t layer) { metal_note(b, OP_ROUTE, layer); }
static void metal_expert_in(backend *b, uint32_t layer) { metal_note(b, OP_EXPERT_IN, layer); }
static void metal_expert_out(backend *b, uint32_t layer) { metal_note(b, OP_EXPERT_OUT, layer); }
static void metal_head(backend *b) { metal_note(b, OP_HEAD, 0); }
static void metal_stage_end(backend *b) { (void)b; /* a barrier stands in front of every op */ }

static calla_status metal_submit(backend *b, calla_error *err) {
    metal_ring *ring = &b->ring;
    metal_run_noted(b);
    metal_commit(b);
    if (gpu_failure(b->gpu)) {
        metal_batch_forget(b);
        return failure(b, err);
    }
    metal_results_due(b);
    ring->submitted[ring->at] = (metal_submitted){b->batch, gpu_committed(b->gpu)};
    ring->under_way++;
    return CALLA_OK;
}

static calla_status metal_collect(backend *b, calla_error *err) {
    metal_ring *ring = &b->ring;
    const uint32_t oldest = (ring->at + METAL_RING - --ring->under_way) % METAL_RING;
    gpu_wait_for(b->gpu, ring->submitted[oldest].commands);
    if (gpu_failure(b->gpu)) return failure(b, err);
    metal_results(b, oldest);
    return CALLA_OK;
}

/* Given up: nothing reads what it would have written. */
static calla_status metal_finish(backend *b, calla_error *err) {
    gpu_discard(&b->commands);
    gpu_wait(b->gpu, 0);
    metal_batch_forget(b);
    return gpu_failure(b->gpu) ? failure(b, err) : CALLA_OK;
}

static bool metal_runs_ahead(const backend *b, uint32_t sample) { return b->best_of[sample] != UINT32_MAX; }

static const float *metal_logits(backend *b, uint32_t wanted) {
    return (const float *)(const void *)b->buf[BUF_LOGITS].host + (uint64_t)wanted * b->s->vocabulary;
}

static const sample_result *metal_sampled(backend *b, uint32_t sample) { return &b->results[sample]; }

static void metal_describe(const backend *b, char *out, size_t n) {
    snprintf(out, n, "%s, %s, %u dispatches and %u barriers a token", b->facts.name,
             b->tensor        ? "fast with tensor operations"
             : b->limits.fast ? "fast"
                              : "exact",
             b->token_dispatches, b->token_barriers);
}

/* Weights of less than this, of a small model, may stay in the device's caches: their rate is not the memory's. */
enum { LEAST_READ_BYTES = 256 << 20 };
static double metal_read_rate(backend *b) { return b->read_bytes < LEAST_READ_BYTES ? 0 : metal_measure_reads(b); }

static void metal_peek(backend *b, buffer_id id, uint64_t first, uint64_t n, float *out) {
    metal_flush(b);
    memcpy(out, b->buf[id].host + first * sizeof *out, n * sizeof *out);
}

const backend_vtable metal_vtable = {
    .name = "metal",
    .optimizations = optimizations,
    .batch_rows = 256,
    .open = metal_open,
    .close = metal_close,
    .want = metal_want,
    .scratch_bytes = metal_scratch_bytes,
    .allocate = metal_allocate,
    .load = metal_load,
    .copy_page = metal_copy_page,
    .begin = metal_begin,
    .embed = metal_embed,
    .mixer_in = metal_mixer_in,
    .mixer = metal_mixer,
    .mixer_out = metal_mixer_out,
    .route = metal_route,
    .expert_in = metal_expert_in,
    .expert_out = metal_expert_out,
    .head = metal_head,
    .stage_end = metal_stage_end,
    .finish = metal_finish,
    .submit = metal_submit,
    .collect = metal_collect,
    .runs_ahead = metal_runs_ahead,
    .logits = metal_logits,
    .sampled = metal_sampled,
    .describe = metal_describe,
    .read_rate = metal_read_rate,
    .peek = metal_peek,
};

/* cuda.c: the CUDA backend's table, its memory, and when the noted ops run. */
#include "backend/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/ref/sample.h"
#include "backend/vtables.h"
#include "base/log.h"
#include "base/memory.h"

enum { ALIGN = 256, LEAST_MAJOR = 8, MAX_HEADS_PER_KV = 8 };

/* What --without can turn off; bit i of limits.without. */
enum { WITHOUT_GRAPH, WITHOUT_EARLY, WITHOUT_PROMPT };
static const calla_optimization optimizations[] = {
    {"graph", "decoding steps replayed as one captured graph"},
    {"dependent-launch", "kernels of a graph that start before the one in front has ended, their weights on the way"},
    {"prompt-kernels", "products of f16 rows on tensor cores for many rows (fast precision)"},
    {NULL, NULL},
};

static bool turned_off(const backend_limits *n, uint32_t bit) { return n->without >> bit & 1; }

/* ---- opening ---- */

static calla_status no_device(calla_error *err, const char *why) {
    return error_set(err, CALLA_E_UNSUPPORTED, "there is no CUDA device to compute on: %s; use --device cpu", why);
}

static calla_status find_device(backend *b, calla_error *err) {
    struct cudaDeviceProp p;
    int n = 0, shared = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e || !n) return no_device(err, e ? cudaGetErrorString(e) : "none was found");
    if ((e = cudaSetDevice(0)) || (e = cudaGetDeviceProperties(&p, 0)) ||
        (e = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0)))
        return no_device(err, cudaGetErrorString(e));
    if (p.major < LEAST_MAJOR) return no_device(err, "it is older than compute capability 8.0");
    snprintf(b->name, sizeof b->name, "%.60s", p.name);
    b->device = (cuda_device){.multiprocessors = (uint32_t)p.multiProcessorCount,
                              .shared_bytes = (uint32_t)shared - 16384, /* the kernels' own static memory */
                              .parts = b->limits.fast ? 2 : 3,
                              .early = p.major >= 9 && !turned_off(&b->limits, WITHOUT_EARLY)};
    if ((e = linear_prepare(&b->device)) || (e = moe_prepare(&b->device)) || (e = moe_rows_prepare()) || (e = gdn_prepare()) ||
        (e = attention_prepare(&b->device)))
        return error_set(err, CALLA_E_DEVICE,
                         "the kernels do not run on %s: %s; they were compiled for compute capability 8.0, 9.0 and 12.0", p.name,
                         cudaGetErrorString(e));
    return CALLA_OK;
}

static calla_status check_shape(const backend *b, calla_error *err) {
    const model_shape *s = b->s;
    if (s->attention_layers && s->attention_heads / s->kv_heads > MAX_HEADS_PER_KV)
        return error_set(err, CALLA_E_UNSUPPORTED,
                         "%u query heads for each key/value head; the cuda backend takes up to %d: use --device cpu",
                         s->attention_heads / s->kv_heads, MAX_HEADS_PER_KV);
    if (s->top_k > STEP_MAX_TOP_K)
        return error_set(err, CALLA_E_UNSUPPORTED, "%u experts a token; the cuda backend takes up to %d: use --device cpu", s->top_k,
                         STEP_MAX_TOP_K);
    if (b->limits.deterministic)
        return error_set(err, CALLA_E_UNSUPPORTED,
                         "the cuda backend's sums depend on what else is in a batch: leave out --deterministic, or use --device cpu");
    if (b->limits.kv != CALLA_KV_BF16 && b->limits.kv != CALLA_KV_F32)
        return error_set(err, CALLA_E_UNSUPPORTED, "the cuda backend keeps keys and values in bf16 or f32: use --kv bf16");
    return CALLA_OK;
}

static void cuda_close(backend *b) {
    if (!b) return;
    for (size_t i = 0; i <= CUDA_GRAPH_ROWS; i++)
        if (b->graph[i]) cudaGraphExecDestroy(b->graph[i]);
    for (size_t i = 0; i < 2; i++) {
        if (b->layer_done[i]) cudaEventDestroy(b->layer_done[i]);
        if (b->done[i]) cudaEventDestroy(b->done[i]);
    }
    for (int i = 0; i < BUF_COUNT; i++) cudaFree(b->buf[i]);
    cudaFree(b->weights.memory);
    cudaFree(b->device_batch);
    cudaFreeHost(b->host_batch);
    cudaFree(b->device_requests);
    cudaFreeHost(b->host_requests);
    cudaFreeHost(b->largest);
    cudaFreeHost(b->chosen);
    cudaFreeHost(b->host_logits);
    if (b->stream) cudaStreamDestroy(b->stream);
    mem_free(b->weights.layer);
    mem_free(b->noted);
    mem_free(b->sample_scratch);
    mem_free(b->results);
    mem_free(b);
}

static calla_status open_parts(backend *b, calla_error *err) {
    b->most_noted = 6 * b->s->layers + 2;
    b->noted = mem_array(b->most_noted, sizeof *b->noted);
    b->results = mem_calloc(b->limits.samples, sizeof *b->results);
    b->sample_scratch = mem_alloc(ref_sample_scratch_bytes(b->s->vocabulary));
    if (!b->noted || !b->results || !b->sample_scratch) return error_nomem(err, "the CUDA backend");
    calla_status status = check_shape(b, err);
    if (!status) status = find_device(b, err);
    if (!status) status = cuda_place_weights(b, NULL, err);
    if (status) return status;
    cudaError_t e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    for (size_t i = 0; i < 2 && !e; i++) e = cudaEventCreateWithFlags(&b->layer_done[i], cudaEventDisableTiming);
    for (size_t i = 0; i < 2 && !e; i++) e = cudaEventCreateWithFlags(&b->done[i], cudaEventDisableTiming);
    return e ? error_set(err, CALLA_E_DEVICE, "CUDA: no stream: %s", cudaGetErrorString(e)) : CALLA_OK;
}

static calla_status cuda_open(const weights *w, const backend_limits *limits, backend **out, calla_error *err) {
    backend *b = *out = mem_calloc(1, sizeof *b);
    if (!b) return error_nomem(err, "the CUDA backend");
    b->w = w;
    b->s = &w->shape;
    b->limits = *limits;
    const calla_status status = open_parts(b, err);
    if (!status) return CALLA_OK;
    cuda_close(b);
    *out = NULL;
    return status;
}

/* ---- memory ---- */

static buffer_want cuda_want(const backend_limits *limits, buffer_id id) {
    return (buffer_want){id == BUF_KV && limits->kv == CALLA_KV_BF16 ? 2 : 4, ALIGN};
}

static uint64_t cuda_scratch_bytes(const model_shape *s, const backend_limits *limits) { return cuda_place_scratch(s, limits, NULL, NULL); }

static calla_status check_room(const backend *b, const uint64_t *bytes, calla_error *err) {
    size_t available = 0, all = 0;
    uint64_t buffers = 0;
    for (int i = 0; i < BUF_COUNT; i++) buffers += bytes[i];
    cudaMemGetInfo(&available, &all);
    const uint64_t need = b->weights.bytes + buffers + (512u << 20); /* what the driver and the upload take for themselves */
    if (need <= available) return CALLA_OK;
    return error_set(
        err, CALLA_E_NOMEM,
        "%s has %.1f GB free; %.1f GB are needed: %.1f for weights, %.1f for the cache of %u tokens, %.1f for %u states, %.1f for "
        "batches of %u rows; use a smaller --context, --sequences or --batch-rows",
        b->name, (double)available / 1e9, (double)need / 1e9, (double)b->weights.bytes / 1e9, (double)bytes[BUF_KV] / 1e9,
        b->limits.pages * KV_PAGE_TOKENS, (double)(bytes[BUF_STATE] + bytes[BUF_CONV]) / 1e9, b->limits.slots,
        (double)(buffers - bytes[BUF_KV] - bytes[BUF_STATE] - bytes[BUF_CONV]) / 1e9, b->limits.rows);
}

static calla_status cuda_allocate(backend *b, const uint64_t *bytes, calla_error *err) {
    calla_status status = check_room(b, bytes, err);
    if (status) return status;
    cudaError_t e = cudaMalloc(&b->weights.memory, b->weights.bytes);
    for (int i = 0; i < BUF_COUNT && !e; i++) {
        b->bytes[i] = bytes[i];
        e = cudaMalloc(&b->buf[i], bytes[i] ? bytes[i] : ALIGN);
    }
    b->batch_bytes = cuda_batch_capacity(&b->limits);
    if (!e) e = cudaMalloc((void **)&b->device_batch, b->batch_bytes);
    if (!e) e = cudaHostAlloc((void **)&b->host_batch, 2 * b->batch_bytes, cudaHostAllocDefault);
    const uint64_t requests = cuda_requests_capacity(b->s, &b->limits);
    if (!e) e = cudaMalloc((void **)&b->device_requests, requests);
    if (!e) e = cudaHostAlloc((void **)&b->host_requests, 2 * requests, cudaHostAllocDefault);
    if (!e) e = cudaHostAlloc((void **)&b->largest, 2 * b->limits.wanted * sizeof *b->largest, cudaHostAllocMapped);
    if (!e) e = cudaHostAlloc((void **)&b->chosen, 2 * b->limits.samples * sizeof *b->chosen, cudaHostAllocMapped);
    if (!e) e = cudaHostAlloc((void **)&b->host_logits, (size_t)b->limits.wanted * b->s->vocabulary * sizeof(float), cudaHostAllocDefault);
    if (!e) e = cudaMemset(b->buf[BUF_SCRATCH], 0, bytes[BUF_SCRATCH]); /* the counters among it */
    if (e)
        return error_set(err, CALLA_E_NOMEM, "out of memory on %s: %s; use a smaller --context, --sequences or --batch-rows", b->name,
                         cudaGetErrorString(e));
    cuda_place_scratch(b->s, &b->limits, b->buf[BUF_SCRATCH], &b->scratch);
    return cuda_place_weights(b, b->weights.memory, err);
}

static void cuda_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens) {
    if (!b->s->attention_layers) return;
    rows_run_copy_page(b->buf[BUF_KV], b->s->attention_layers, b->limits.pages, b->s->kv_heads, b->limits.kv == CALLA_KV_F32 ? 4 : 2, src,
                       dst, tokens, b->stream);
}

/* ---- a step ---- */

static calla_status cuda_begin(backend *b, const row_batch *batch, calla_error *err) {
    b->batch = batch;
    b->at ^= 1;
    b->whole = NULL;
    b->wanted = batch->wanted;
    b->n_noted = b->n_run = 0;
    b->logits_here = false;
    b->decoding = !turned_off(&b->limits, WITHOUT_GRAPH) && batch->rows <= CUDA_GRAPH_ROWS && batch->rows == batch->segments &&
                  batch->rows == batch->wanted;
    b->prompt = b->limits.fast && batch->rows >= CUDA_PROMPT_ROWS && b->scratch.input && !b->weights.wide_scales &&
                !turned_off(&b->limits, WITHOUT_PROMPT);
    cuda_batch_send(b, batch);
    return b->error ? cuda_failure(b, err) : CALLA_OK;
}

/* Runs what is noted and has not run, op by op. */
static void run_noted(backend *b) {
    for (; b->n_run < b->n_noted; b->n_run++) {
        const cuda_noted *n = &b->noted[b->n_run];
        cuda_run_op(b, n->op, n->layer, false);
    }
    cuda_ok(b, cudaPeekAtLastError());
}

/* The host must not run far ahead of a long prompt: a cancelled one would go on for as long. */
static void wait_for_layer(backend *b, uint32_t layer) {
    cudaEvent_t done = b->layer_done[layer % 2];
    if (layer >= 2) cuda_ok(b, cudaEventSynchronize(done));
    cuda_ok(b, cudaEventRecord(done, b->stream));
}

static void note(backend *b, cuda_op op, uint32_t layer) {
    if (b->n_noted == b->most_noted) return; /* a step has no more: the model counts them */
    b->noted[b->n_noted++] = (cuda_noted){op, layer};
    if (b->decoding) return;
    run_noted(b);
    if (op == OP_EXPERT_OUT && b->batch->rows > CUDA_GRAPH_ROWS) wait_for_layer(b, layer);
}

static void cuda_embed(backend *b) { note(b, OP_EMBED, 0); }
static void cuda_mixer_in(backend *b, uint32_t layer) { note(b, OP_MIXER_IN, layer); }
static void cuda_mixer(backend *b, uint32_t layer) { note(b, OP_MIXER, layer); }
static void cuda_mixer_out(backend *b, uint32_t layer) { note(b, OP_MIXER_OUT, layer); }
static void cuda_route(backend *b, uint32_t layer) { note(b, OP_ROUTE, layer); }
static void cuda_expert_in(backend *b, uint32_t layer) { note(b, OP_EXPERT_IN, layer); }
static void cuda_expert_out(backend *b, uint32_t layer) { note(b, OP_EXPERT_OUT, layer); }
static void cuda_head(backend *b) { note(b, OP_HEAD, 0); }
static void cuda_stage_end(backend *b) { (void)b; /* kernels of one stream follow each other */ }

/* Captures the noted step; NULL where that fails (then it runs without). */
static cudaGraphExec_t capture(backend *b) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)) return NULL;
    for (uint32_t i = 0; i < b->n_noted; i++) cuda_run_op(b, b->noted[i].op, b->noted[i].layer, b->device.early && i > 0);
    cudaError_t e = cudaStreamEndCapture(b->stream, &graph);
    if (!e) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (e) log_warn("a decoding step cannot be captured as a graph: %s", cudaGetErrorString(e));
    cudaGetLastError(); /* it is not sticky: the step runs kernel by kernel */
    return e ? NULL : exec;
}

static void run_step(backend *b) {
    if (!b->decoding || b->n_run || b->n_noted < b->most_noted) {
        run_noted(b);
        return;
    }
    cudaGraphExec_t *graph = &b->graph[b->batch->rows];
    if (!*graph) *graph = capture(b);
    if (!*graph) {
        b->limits.without |= 1u << WITHOUT_GRAPH;
        run_noted(b);
        return;
    }
    b->n_run = b->n_noted;
    cuda_ok(b, cudaGraphLaunch(*graph, b->stream));
}

/* The last step's place is the other one again. */
static void forget_step(backend *b) { b->at ^= 1; }

static calla_status cuda_submit(backend *b, calla_error *err) {
    run_step(b);
    cuda_ok(b, cudaPeekAtLastError());
    if (b->error) {
        forget_step(b);
        return cuda_failure(b, err);
    }
    b->submitted[b->at] = b->batch;
    b->under_way++;
    return CALLA_OK;
}

static void cuda_pick(backend *b) {
    cuda_requests_send(b, b->batch);
    if (b->sampling.samples) sampling_run(&b->sampling, b->stream);
    cuda_ok(b, cudaPeekAtLastError());
    cuda_ok(b, cudaEventRecord(b->done[b->at], b->stream));
}

static calla_status cuda_collect(backend *b, calla_error *err) {
    const uint32_t oldest = b->under_way > 1 ? b->at ^ 1 : b->at;
    b->under_way--;
    cuda_ok(b, cudaEventSynchronize(b->done[oldest]));
    return b->error ? cuda_failure(b, err) : cuda_fetch_results(b, oldest, err);
}

/* Given up: what is noted and has not run never runs. */
static calla_status cuda_finish(backend *b, calla_error *err) {
    cuda_ok(b, cudaStreamSynchronize(b->stream));
    forget_step(b);
    return b->error ? cuda_failure(b, err) : CALLA_OK;
}

/* What the host has to pick is not known before collect. */
static bool cuda_runs_ahead(const backend *b, uint32_t sample) { return cuda_picker_of(b->batch, sample) != PICKED_BY_HOST; }

static const sample_result *cuda_sampled(backend *b, uint32_t sample) { return &b->results[sample]; }

static void cuda_describe(const backend *b, char *out, size_t n) { snprintf(out, n, "%s, %s", b->name, b->limits.fast ? "fast" : "exact"); }

static void cuda_peek(backend *b, buffer_id id, uint64_t first, uint64_t n, float *out) {
    run_noted(b);
    cuda_ok(b, cudaMemcpyAsync(out, (const float *)b->buf[id] + first, n * sizeof *out, cudaMemcpyDeviceToHost, b->stream));
    cuda_ok(b, cudaStreamSynchronize(b->stream));
}

/* 2 GiB, far beyond any cache; the best of five passes. */
static double cuda_read_rate(backend *b) {
    const uint64_t bytes = (uint64_t)2 << 30;
    void *data = NULL;
    cudaEvent_t start = NULL, end = NULL;
    float best = INFINITY;
    if (cudaMalloc(&data, bytes + ALIGN) || cudaEventCreate(&start) || cudaEventCreate(&end)) best = 0;
    if (best > 0) cudaMemsetAsync(data, 1, bytes, b->stream);
    for (int pass = 0; pass < 5 && best > 0; pass++) {
        float ms = 0;
        cudaEventRecord(start, b->stream);
        rows_run_read(data, bytes, (uint32_t *)(void *)((uint8_t *)data + bytes), b->stream);
        cudaEventRecord(end, b->stream);
        if (cudaStreamSynchronize(b->stream) || cudaEventElapsedTime(&ms, start, end) || !(ms > 0)) best = 0;
        if (ms < best) best = ms;
    }
    if (start) cudaEventDestroy(start);
    if (end) cudaEventDestroy(end);
    cudaFree(data);
    cudaGetLastError(); /* no room for the measure is no failure of the device */
    return best > 0 ? (double)bytes * 1e3 / (double)best : 0;
}

const backend_vtable cuda_vtable = {
    .name = "cuda",
    .optimizations = optimizations,
    .batch_rows = 2048,
    .open = cuda_open,
    .close = cuda_close,
    .want = cuda_want,
    .scratch_bytes = cuda_scratch_bytes,
    .allocate = cuda_allocate,
    .load = cuda_upload,
    .copy_page = cuda_copy_page,
    .begin = cuda_begin,
    .embed = cuda_embed,
    .mixer_in = cuda_mixer_in,
    .mixer = cuda_mixer,
    .mixer_out = cuda_mixer_out,
    .route = cuda_route,
    .expert_in = cuda_expert_in,
    .expert_out = cuda_expert_out,
    .head = cuda_head,
    .stage_end = cuda_stage_end,
    .finish = cuda_finish,
    .submit = cuda_submit,
    .collect = cuda_collect,
    .pick = cuda_pick,
    .runs_ahead = cuda_runs_ahead,
    .logits = cuda_fetch_logits,
    .sampled = cuda_sampled,
    .describe = cuda_describe,
    .read_rate = cuda_read_rate,
    .peek = cuda_peek,
};

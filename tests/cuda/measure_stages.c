/* measure_stages.c: where the time of a decoding step goes, on a machine with a GPU: a table of its kinds of stages.
 *
 *     measure_stages [CONTEXT [ROWS [STEPS]]]      [256 1 20]
 *
 * The real model's shapes with noise for weights, made on the device, so that no checkpoint is needed.  A step is captured as the backend
 * captures it, and so are its parts: the stages of one kind of all layers alone ("alone", by stage), and the step without them, whose
 * difference from the whole step is what they take there ("in the step": less than alone where stages overlap).  Both as the median of
 * STEPS replays.  MB are the weights, states, keys and values that a stage reads and writes; GB/s follow from the time alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/vtables.h"
#include "model/model.h"
#include "support/program.h"

enum { HIDDEN = 2048, LAYERS = 40, VOCABULARY = 248320, EXPERTS = 256, TOP_K = 8, WIDTH = 512, MOST_STEPS = 200, NOISE = 64 << 20 };

static void cuda_must(cudaError_t e, const char *what) {
    if (e) fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e)), exit(2);
}

/* ---- the real model's shapes ---- */

static weight_mat matrix(uint32_t count, uint32_t rows, uint32_t cols, uint32_t bits) {
    return (weight_mat){.count = count, .rows = rows, .cols = cols, .bits = bits, .group = 64};
}

static void make_model(weights *w) {
    model_shape *s = &w->shape;
    *s = (model_shape){.hidden = HIDDEN,
                       .layers = LAYERS,
                       .vocabulary = VOCABULARY,
                       .attention_heads = 16,
                       .kv_heads = 2,
                       .gdn_key_heads = 16,
                       .gdn_value_heads = 32,
                       .experts = EXPERTS,
                       .top_k = TOP_K,
                       .expert_width = WIDTH,
                       .shared_width = WIDTH,
                       .max_context = 262144,
                       .norm_eps = 1e-6f,
                       .rope_theta = 1e7};
    w->embed = w->lm_head = matrix(1, VOCABULARY, HIDDEN, 4);
    w->layer = take(LAYERS, sizeof *w->layer);
    for (uint32_t i = 0; i < LAYERS; i++) {
        layer_weights *l = &w->layer[i];
        s->is_attention[i] = i % 4 == 3;
        s->kind_index[i] = (uint16_t)(s->is_attention[i] ? s->attention_layers++ : s->gdn_layers++);
        l->in_qkv = matrix(1, shape_conv_channels(s), HIDDEN, 4);
        l->in_z = matrix(1, shape_gdn_values(s), HIDDEN, 4);
        l->in_a = l->in_b = matrix(1, s->gdn_value_heads, HIDDEN, 4);
        l->gdn_out = matrix(1, HIDDEN, shape_gdn_values(s), 4);
        l->q = matrix(1, 2 * shape_query_values(s), HIDDEN, 4);
        l->k = l->v = matrix(1, shape_kv_values(s), HIDDEN, 4);
        l->attn_out = matrix(1, HIDDEN, shape_query_values(s), 4);
        l->router = matrix(1, EXPERTS, HIDDEN, 8);
        l->shared_router = matrix(1, 1, HIDDEN, 8);
        l->shared_gate = l->shared_up = matrix(1, WIDTH, HIDDEN, 4);
        l->shared_down = matrix(1, HIDDEN, WIDTH, 4);
        l->expert_gate = l->expert_up = matrix(EXPERTS, WIDTH, HIDDEN, 4);
        l->expert_down = matrix(EXPERTS, HIDDEN, WIDTH, 4);
    }
}

/* Codes of any value; scales, biases and plain numbers of about 0.01, so that what is computed stays in range and ties are rare. */
static void fill(void *to, uint64_t bytes) {
    uint32_t *noise = take(NOISE / 4, 4), h = 1;
    for (uint32_t i = 0; i < NOISE / 4; i++) {
        h = h * 1664525 + 1013904223;
        noise[i] = ((h ^ h >> 13) & 0x807F807F) | 0x3C003A00;
    }
    /* a length that no tile or layer divides, so that no two layers have the same weights */
    const uint64_t step = NOISE - 4096 * 37;
    for (uint64_t at = 0; at < bytes; at += step)
        cuda_must(cudaMemcpy((uint8_t *)to + at, noise, bytes - at < step ? bytes - at : step, cudaMemcpyHostToDevice), "noise");
    free(noise);
}

/* ---- kinds of stages ---- */

typedef enum kind { EMBED, DELTA_IN, ATTENTION_IN, DELTA, ATTENTION, MIXER_OUT, ROUTE, EXPERT_IN, EXPERT_OUT, HEAD, KINDS } kind;
static const char *const kind_name[KINDS] = {"embedding", "in: delta net", "in: attention", "delta rule",  "attention",
                                             "mixer out", "route, shared", "experts in",    "experts out", "head"};

static kind kind_of(const backend *b, const cuda_noted *n) {
    const bool attention = b->s->is_attention[n->layer];
    switch (n->op) {
    case OP_EMBED: return EMBED;
    case OP_MIXER_IN: return attention ? ATTENTION_IN : DELTA_IN;
    case OP_MIXER: return attention ? ATTENTION : DELTA;
    case OP_MIXER_OUT: return MIXER_OUT;
    case OP_ROUTE: return ROUTE;
    case OP_EXPERT_IN: return EXPERT_IN;
    case OP_EXPERT_OUT: return EXPERT_OUT;
    case OP_HEAD: return HEAD;
    }
    return KINDS;
}

static double bytes_of_mat(const cuda_mat *m) { /* of one of its stacked matrices */
    return (double)m->row_tiles * m->col_tiles * (cuda_tile_bytes(m->bits) + (m->bits == 16 ? 0 : m->subs * 64));
}

/* Of one stage; experts as if no two rows chose the same. */
static double bytes_of(const backend *b, kind k, uint32_t rows, uint32_t context) {
    const model_shape *s = b->s;
    const cuda_layer *delta = &b->weights.layer[0], *attention = &b->weights.layer[3];
    switch (k) {
    case DELTA_IN: return bytes_of_mat(&delta->mixer_in.mat[0]);
    case ATTENTION_IN: return bytes_of_mat(&attention->mixer_in.mat[0]);
    case DELTA: return rows * 8.0 * (shape_gdn_values(s) * GDN_HEAD_DIM + CONV_HISTORY * shape_conv_channels(s));
    case ATTENTION: return rows * 4.0 * shape_kv_values(s) * context;
    case MIXER_OUT: return bytes_of_mat(&delta->mixer_out);
    case ROUTE: return bytes_of_mat(&delta->router) + bytes_of_mat(&delta->shared_router) + 2 * bytes_of_mat(&delta->shared_gate);
    case EXPERT_IN: return rows * s->top_k * 2 * bytes_of_mat(&delta->gate);
    case EXPERT_OUT: return rows * s->top_k * bytes_of_mat(&delta->down) + bytes_of_mat(&delta->shared_down);
    case HEAD: return bytes_of_mat(&b->weights.head);
    case EMBED:
    case KINDS: break;
    }
    return 0;
}

/* ---- graphs ---- */

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The noted ops of one kind, or all but those, as a graph: median milliseconds of a replay. */
static double time_graph(backend *b, kind k, bool alone, uint32_t steps, uint32_t *stages) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t begin, end;
    float ms[MOST_STEPS];
    *stages = 0;
    cuda_must(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (uint32_t i = 0; i < b->most_noted; i++) {
        const cuda_noted *n = &b->noted[i];
        if ((kind_of(b, n) == k) != alone) continue;
        cuda_run_op(b, n->op, n->layer, b->device.early && *stages > 0);
        ++*stages;
    }
    cuda_must(cudaStreamEndCapture(b->stream, &graph), "end of capture");
    cuda_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cuda_must(cudaEventCreate(&begin), "event");
    cuda_must(cudaEventCreate(&end), "event");
    for (uint32_t i = 0; i < steps + 3; i++) {
        cudaEventRecord(begin, b->stream);
        cuda_must(cudaGraphLaunch(exec, b->stream), "launch");
        cudaEventRecord(end, b->stream);
        cuda_must(cudaStreamSynchronize(b->stream), "step");
        cuda_must(cudaEventElapsedTime(&ms[i < 3 ? 0 : i - 3], begin, end), "time");
    }
    qsort(ms, steps, sizeof *ms, by_size);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return (double)ms[steps / 2];
}

/* ---- one step, through the backend's table, so that its batch is on the device and its ops are noted ---- */

static void run_step(const backend_vtable *vt, backend *b, uint32_t rows, uint32_t context) {
    calla_error err;
    int32_t ids[STEP_ROWS];
    uint32_t position[STEP_ROWS], segment_of[STEP_ROWS], *pages = take(b->limits.pages, sizeof *pages);
    batch_segment segment[STEP_ROWS];
    sample_request sample[STEP_ROWS];
    const uint32_t each = b->limits.pages / rows;
    for (uint32_t i = 0; i < b->limits.pages; i++) pages[i] = b->limits.pages - 1 - i;
    for (uint32_t i = 0; i < rows; i++) {
        ids[i] = (int32_t)(i * 2654435761u % VOCABULARY), position[i] = context, segment_of[i] = i;
        segment[i] = (batch_segment){i, 1, context, 2 * i, 2 * i + 1, i * each, each};
        sample[i] = (sample_request){.tokens = VOCABULARY, .top_p = 1, .repetition = 1};
    }
    const row_batch batch = {rows, rows, rows, rows, ids, position, segment_of, segment, pages, segment_of, segment_of, sample, NULL};
    must(vt->begin(b, &batch, &err), &err);
    vt->embed(b);
    for (uint32_t i = 0; i < LAYERS; i++) {
        vt->mixer_in(b, i), vt->mixer(b, i), vt->mixer_out(b, i);
        vt->route(b, i), vt->expert_in(b, i), vt->expert_out(b, i);
    }
    vt->head(b);
    must(vt->submit(b, &err), &err);
    vt->pick(b);
    must(vt->collect(b, &err), &err);
    free(pages);
}

int main(int argc, char **argv) {
    const uint32_t context = argc > 1 ? (uint32_t)atoi(argv[1]) : 256, rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 1,
                   steps = argc > 3 ? (uint32_t)atoi(argv[3]) : 20;
    if (context > 262000 || rows < 1 || rows > STEP_ROWS || steps < 1 || steps > MOST_STEPS) {
        fprintf(stderr, "usage: measure_stages [CONTEXT [ROWS [STEPS]]], up to 262000, %d and %d\n", STEP_ROWS, MOST_STEPS);
        return 2;
    }
    const backend_vtable *vt = backend_find("cuda");
    weights real = {0};
    backend *b = NULL;
    calla_error err;
    char name[128];
    make_model(&real);
    const model_options options = {.backend = vt,
                                   .batch_rows = STEP_ROWS,
                                   .max_segments = STEP_ROWS,
                                   .max_wanted = STEP_ROWS,
                                   .sequences = rows,
                                   .kv = CALLA_KV_BF16,
                                   .kv_tokens = rows * (context + KV_PAGE_TOKENS) / KV_PAGE_TOKENS * KV_PAGE_TOKENS,
                                   .fast = true};
    model_plan plan;
    model_plan_compute(&real.shape, &options, &plan);
    must(vt->open(&real, &plan.limits, &b, &err), &err);
    must(vt->allocate(b, plan.bytes, &err), &err);
    fill(b->weights.memory, b->weights.bytes);
    fill(b->buf[BUF_KV], plan.bytes[BUF_KV]);
    fill(b->buf[BUF_STATE], plan.bytes[BUF_STATE]);
    fill(b->buf[BUF_CONV], plan.bytes[BUF_CONV]);
    run_step(vt, b, rows, context);
    vt->describe(b, name, sizeof name);
    const double read_rate = vt->read_rate(b) / 1e9;
    uint32_t stages;
    const double whole = time_graph(b, KINDS, false, steps, &stages);
    printf("%s: %u rows after %u tokens, %u stages: %.1f us, %.0f steps a second; memory reads %.0f GB/s\n", name, rows, context, stages,
           whole * 1e3, 1e3 / whole, read_rate);
    printf("| stage | of them | us alone | us in the step | MB | GB/s | of the read rate | of the step "
           "|\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (kind k = 0; k < KINDS; k++) {
        uint32_t n;
        const double others = time_graph(b, k, false, steps, &n), alone = time_graph(b, k, true, steps, &n);
        const double mb = bytes_of(b, k, rows, context) / 1e6, rate = mb * n / alone;
        printf("| %s | %u | %.2f | %.2f | %.2f | %.0f | %.0f %% | %.1f %% |\n", kind_name[k], n, alone * 1e3 / n,
               (whole - others) * 1e3 / n, mb, rate, rate / read_rate * 100, (whole - others) / whole * 100);
    }
    vt->close(b);
    free(real.layer);
    return 0;
}

/* rows.c: norms of rows, the embedding, and the head. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/ref/plain.h"
#include "backend/ref/sample.h"

void *cpu_thread_scratch(const backend *b, uint32_t thread) { return b->scratch.thread + thread * b->scratch.thread_bytes; }

void cpu_each_row(backend *b, pool_task_fn fn, void *context, uint32_t rows) {
    if (rows == 1)
        fn(context, 0, 0);
    else
        pool_run(b->pool, fn, context, rows);
}

void cpu_rmsnorm(const backend *b, const float *x, const float *gain, uint32_t n, float *out) {
    const float scale = 1 / sqrtf(b->k->dot(x, x, n) / (float)n + b->s->norm_eps);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * scale * gain[i];
}

typedef struct norm_run {
    backend *b;
    const weight_vec *gain;
    const uint32_t *rows; /* NULL: row i is row i */
} norm_run;

static void norm_task(void *context, uint32_t task, uint32_t thread) {
    const norm_run *run = context;
    backend *b = run->b;
    const uint32_t H = b->s->hidden, row = run->rows ? run->rows[task] : task;
    float *gain = cpu_thread_scratch(b, thread);
    ref_load_vec(run->gain, gain);
    cpu_rmsnorm(b, (const float *)b->buf[BUF_RESIDUAL] + (size_t)row * H, gain, H,
                (float *)(uintptr_t)b->scratch.input.plain + (size_t)task * H);
    cpu_x_row(b, &b->scratch.input, task);
}

void cpu_norm_input(backend *b, const weight_vec *gain, float *out, bool fine) {
    norm_run run = {b, gain, NULL};
    cpu_x_shape(&b->scratch.input, out, b->s->hidden, b->s->hidden, b->batch->rows, fine);
    cpu_each_row(b, norm_task, &run, b->batch->rows);
}

static void embed_task(void *context, uint32_t row, uint32_t thread) {
    backend *b = context;
    (void)thread;
    int32_t id = b->batch->ids[row];
    if (id < 0) id = b->results[-1 - id].id;
    b->k->weight_row(&b->w->embed, 0, (uint32_t)id, (float *)b->buf[BUF_RESIDUAL] + (size_t)row * b->s->hidden);
}

void cpu_embed(backend *b) { cpu_each_row(b, embed_task, b, b->batch->rows); }

void cpu_head(backend *b) {
    const row_batch *t = b->batch;
    if (!t->wanted) return;
    norm_run run = {b, &b->w->final_norm, t->wanted_row};
    cpu_x_shape(&b->scratch.input, b->scratch.normed, b->s->hidden, b->s->hidden, t->wanted, false);
    cpu_each_row(b, norm_task, &run, t->wanted);
    cpu_linear job = {&b->w->lm_head, &b->scratch.input, b->buf[BUF_LOGITS], b->s->vocabulary, CPU_STORE, false};
    cpu_run_linear(b, &job, 1);
    for (uint32_t i = 0; i < t->samples; i++)
        ref_sample((const float *)b->buf[BUF_LOGITS] + (size_t)t->sample_of[i] * b->s->vocabulary, b->s->vocabulary, &t->sample[i],
                   b->scratch.sample, &b->results[i]);
}

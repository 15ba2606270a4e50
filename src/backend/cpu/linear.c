/* linear.c: matrices over the pool: jobs cut into tasks of consecutive outputs, each computed up to 64 at once.
 *
 * With few rows a task is memory being read, and the kernels fetch ahead of themselves: a task of TASK_BYTES spends little of its time on
 * the first of them, which nothing fetched, and little of what the last ones fetch is for another thread.  With many rows a task is
 * arithmetic, and 128 outputs of it are plenty. */
#include <string.h>

#include "backend/cpu/cpu.h"

enum { TASK_BYTES = 128 << 10, TASKS_PER_THREAD = 4, ROWS_AT_ONCE = 64 };

void cpu_x_shape(cpu_x *x, const float *plain, size_t stride, uint32_t cols, uint32_t rows, bool fine) {
    x->plain = plain;
    x->plain_stride = stride;
    x->cols = cols;
    x->rows = rows;
    x->groups = cols / CPU_GROUP;
    x->fine = fine;
}

/* out ← x − scale · q8: q8 is in the order of cpu_x */
static void left_over(const float *x, uint32_t cols, const int8_t *q8, const float *scale, float *out) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, q8 += CPU_GROUP, out += CPU_GROUP)
        for (uint32_t i = 0; i < CPU_GROUP / 2; i++) {
            out[2 * i] = x[2 * i] - scale[g] * (float)q8[i];
            out[2 * i + 1] = x[2 * i + 1] - scale[g] * (float)q8[CPU_GROUP / 2 + i];
        }
}

void cpu_x_row(const backend *b, cpu_x *x, uint32_t row) {
    const float *plain = x->plain + row * x->plain_stride;
    const size_t at = (size_t)row * x->cols, g = (size_t)row * x->groups;
    if (x->cols % CPU_GROUP) return; /* such a matrix has no fast kernel */
    if (!b->q8) {
        b->k->prepare_f32(plain, x->cols, x->f32 + at, x->sum + g);
        if (x->q24 && x->rows > CPU_FEW_ROWS)
            b->k->prepare_q24(plain, x->cols, (size_t)x->rows * x->cols, (size_t)x->rows * x->groups, x->q8 + at, x->scale + g, x->sum + g,
                              x->start + g);
        return;
    }
    b->k->prepare_q8(plain, x->cols, x->q8 + at, x->scale + g, x->sum + g);
    if (!x->fine) return;
    float rest[CPU_MAX_COLS];
    left_over(plain, x->cols, x->q8 + at, x->scale + g, rest);
    const size_t behind = (size_t)x->rows * x->cols, g_behind = (size_t)x->rows * x->groups;
    b->k->prepare_q8(rest, x->cols, x->q8 + behind + at, x->scale + g_behind + g, x->sum + g_behind + g);
}

static bool has_kernel(const weight_mat *m) { return m->bits == 4 && m->group == CPU_GROUP; }

static const float *plain_row(const cpu_x *x, const uint32_t *list, uint32_t i) {
    return x->plain + (list ? list[i] : i) * x->plain_stride;
}

/* Any bits and group: rows are widened whole. */
static void panel_plain(const backend *b, const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x,
                        const uint32_t *list, uint32_t n, float *acc) {
    float w[4][CPU_MAX_COLS];
    for (uint32_t j = 0; j < count; j += 4) {
        const uint32_t outputs = count - j < 4 ? count - j : 4;
        const float *rows[4], *const ws[4] = {w[0], w[1], w[2], w[3]};
        for (uint32_t o = 0; o < outputs; o++) b->k->weight_row(m, which, first + j + o, w[o]);
        for (uint32_t i = 0; i < n; i += 4) {
            const uint32_t some = n - i < 4 ? n - i : 4;
            float out[4][4];
            for (uint32_t r = 0; r < some; r++) rows[r] = plain_row(x, list, i + r);
            if (some == 4 && outputs == 4 && b->k->dots && !x->fixed_order)
                b->k->dots(ws, rows, m->cols, out);
            else
                for (uint32_t r = 0; r < some; r++)
                    for (uint32_t o = 0; o < outputs; o++) out[r][o] = b->k->dot(w[o], rows[r], m->cols);
            for (uint32_t r = 0; r < some; r++) memcpy(acc + (size_t)(i + r) * CPU_WIDE + j, out[r], outputs * sizeof *acc);
        }
    }
}

void cpu_panel(const backend *b, const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
               uint32_t n, const cpu_ahead *ahead, float *acc) {
    if (has_kernel(m) && x->fixed_order && n > 1) /* kernels for several rows sum in another order */
        for (uint32_t i = 0; i < n; i++)
            b->k->linear(m, which, first, count, x, list ? list + i : &i, 1, b->q8, i + 1 < n ? NULL : ahead, acc + (size_t)i * CPU_WIDE);
    else if (has_kernel(m))
        b->k->linear(m, which, first, count, x, list, n, b->q8, ahead, acc);
    else if (m->bits == 8 && m->group == CPU_GROUP && b->k->byte_dots && n <= CPU_FEW_ROWS)
        for (uint32_t i = 0; i < n; i++) b->k->byte_dots(m, which, first, count, plain_row(x, list, i), ahead, acc + (size_t)i * CPU_WIDE);
    else
        panel_plain(b, m, which, first, count, x, list, n, acc);
}

uint32_t cpu_task_outputs(const backend *b, const weight_mat *m, uint64_t matrices, uint32_t rows) {
    if (rows > CPU_FEW_ROWS) return CPU_TASK_OUTPUTS;
    const uint64_t share = matrices * m->rows / (TASKS_PER_THREAD * (uint64_t)pool_threads(b->pool)),
                   most = TASK_BYTES / weight_row_bytes(m), n = share < most ? share : most;
    return n < CPU_PANEL ? CPU_PANEL : (uint32_t)n / CPU_PANEL * CPU_PANEL;
}

cpu_ahead cpu_outputs_at(const weight_mat *m, uint32_t which, uint32_t first) {
    const uint64_t row = (uint64_t)which * m->rows + first, scale_bytes = 2 * weight_row_groups(m);
    if (!scale_bytes) return (cpu_ahead){m->codes + row * weight_row_bytes(m), m->codes, m->codes};
    return (cpu_ahead){m->codes + row * weight_row_bytes(m), m->scales + row * scale_bytes, m->biases + row * scale_bytes};
}

void cpu_fetch(const weight_mat *m, uint32_t which, uint32_t first) {
    __asm__ volatile(""); /* gcc drops calls of functions that only prefetch */
    cpu_ask(cpu_outputs_at(m, which, first), CPU_NEAR, CPU_NEAR / 16);
}

typedef struct linear_run {
    backend *b;
    const cpu_linear *jobs;
    uint32_t jobs_n;
    uint32_t outputs[CPU_MAX_JOBS]; /* of one task */
    uint32_t first_task[CPU_MAX_JOBS + 1];
} linear_run;

static void linear_task(void *context, uint32_t task, uint32_t thread) {
    const linear_run *run = context;
    uint32_t i = 0;
    while (task >= run->first_task[i + 1]) i++;
    const cpu_linear *job = &run->jobs[i];
    float *acc = cpu_thread_scratch(run->b, thread);
    const uint32_t begin = (task - run->first_task[i]) * run->outputs[i], rows = job->x->rows,
                   end = job->m->rows - begin < run->outputs[i] ? job->m->rows : begin + run->outputs[i];
    const bool fine = job->fine && run->b->q8 && has_kernel(job->m);
    const cpu_ahead next = cpu_outputs_at(i + 1 < run->jobs_n ? job[1].m : job->m, 0, 0); /* where this matrix ends */
    cpu_fetch(job->m, 0, begin);
    for (uint32_t first = 0; first < rows; first += ROWS_AT_ONCE) { /* so that they stay in L2 while all outputs pass */
        const uint32_t n = rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE;
        uint32_t list[2 * ROWS_AT_ONCE];
        for (uint32_t r = 0; r < n; r++) list[r] = first + r, list[n + r] = rows + first + r;
        for (uint32_t o = begin; o < end; o += CPU_WIDE) {
            const uint32_t count = end - o < CPU_WIDE ? end - o : CPU_WIDE;
            const cpu_ahead ahead = o + count < job->m->rows ? cpu_outputs_at(job->m, 0, o + count) : next;
            cpu_panel(run->b, job->m, 0, o, count, job->x, list, fine ? 2 * n : n, &ahead, acc);
            if (fine)
                for (uint32_t j = 0; j < n * CPU_WIDE; j++) acc[j] += acc[n * CPU_WIDE + j];
            for (uint32_t r = 0; r < n; r++) {
                float *out = job->out + (first + r) * job->stride + o;
                const float *in = acc + (size_t)r * CPU_WIDE;
                if (job->epilogue == CPU_STORE)
                    memcpy(out, in, count * sizeof *out);
                else
                    for (uint32_t j = 0; j < count; j++) out[j] += in[j];
            }
        }
    }
}

void cpu_run_linear(backend *b, const cpu_linear *jobs, uint32_t n) {
    linear_run run = {.b = b, .jobs = jobs, .jobs_n = n};
    for (uint32_t i = 0; i < n; i++) {
        run.outputs[i] = cpu_task_outputs(b, jobs[i].m, 1, jobs[i].x->rows);
        run.first_task[i + 1] = run.first_task[i] + (jobs[i].m->rows + run.outputs[i] - 1) / run.outputs[i];
    }
    pool_run(b->pool, linear_task, &run, run.first_task[n]);
}

/* moe.c: router, experts and the shared expert (docs/model.md, "MoE").
 *
 * Rows are grouped by the experts they chose, and each expert's weights are read once a batch.  Gate, up and SwiGLU are one task of some
 * values of one expert.  On the way out the experts are added in order of index, the shared expert last, always.  With many rows a task
 * owns some values of the hidden state of every row and passes all experts over them.  With few rows that would read the weights in
 * scraps of 16 outputs; there a task is many outputs of one expert, kept apart until all are there. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/ref/plain.h"

enum { CPU_OUT_MOST = 8 * CPU_PANEL /* values of the hidden state that a task owns on the way out */ };
_Static_assert((int)CPU_OUT_MOST + (int)CPU_WIDE <= 2 * (int)GDN_HEAD_DIM, "the threads' scratch holds the sums and a panel beside them");

typedef struct moe_run {
    backend *b;
    const layer_weights *l;
    uint32_t task_outputs, tasks_per_expert, active; /* active: experts with rows, listed in `expert` */
    const uint32_t *expert;                          /* NULL: not grouped, every place of every row is a group of its own */
} moe_run;

/* Group a: its expert, and where its places stand in the list. */
static uint32_t group_of(const moe_run *run, uint32_t a, uint32_t *begin, uint32_t *n) {
    const backend *b = run->b;
    const uint32_t e = run->expert ? run->expert[a] : ((const uint32_t *)b->buf[BUF_ROUTE_EXPERT])[a];
    *begin = run->expert ? b->scratch.first[e] : a;
    *n = run->expert ? b->scratch.first[e + 1] - *begin : 1;
    return e;
}

/* The expert of the group behind a; at the end the first one's, since there is nothing better to fetch. */
static uint32_t next_expert(const moe_run *run, uint32_t a) {
    uint32_t begin, n;
    return group_of(run, a + 1 < run->active ? a + 1 : 0, &begin, &n);
}

static float *shared_gate_values(const backend *b) { /* [rows], behind [rows][shared width] */
    return (float *)b->buf[BUF_SHARED] + (size_t)b->limits.rows * b->s->shared_width;
}

static void choose_task(void *context, uint32_t row, uint32_t thread) {
    const moe_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    const uint32_t K = s->top_k;
    (void)thread;
    ref_top_k(b->scratch.router + (size_t)row * s->experts, s->experts, K, (uint32_t *)b->buf[BUF_ROUTE_EXPERT] + (size_t)row * K,
              (float *)b->buf[BUF_ROUTE_WEIGHT] + (size_t)row * K);
    shared_gate_values(b)[row] = 1 / (1 + expf(-shared_gate_values(b)[row]));
    float *shared = (float *)b->buf[BUF_SHARED] + (size_t)row * s->shared_width;
    b->k->silu_mul(shared, b->scratch.up + (size_t)row * s->shared_width, s->shared_width);
    cpu_x_row(b, &b->scratch.shared, row);
}

void cpu_route(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    moe_run run = {.b = b, .l = l};
    cpu_norm_input(b, &l->norm_moe, b->buf[BUF_MOE_IN], false);
    const cpu_x *x = &b->scratch.input;
    const cpu_linear jobs[] = {{&l->router, x, b->scratch.router, s->experts, CPU_STORE, false},
                               {&l->shared_router, x, shared_gate_values(b), 1, CPU_STORE, false},
                               {&l->shared_gate, x, b->buf[BUF_SHARED], s->shared_width, CPU_STORE, false},
                               {&l->shared_up, x, b->scratch.up, s->shared_width, CPU_STORE, false}};
    cpu_run_linear(b, jobs, 4);
    cpu_x_shape(&b->scratch.shared, b->buf[BUF_SHARED], s->shared_width, s->shared_width, b->batch->rows, false);
    cpu_each_row(b, choose_task, &run, b->batch->rows);
}

/* Without CPU_EXPERT_GROUPING: the places as they are. */
static uint32_t list_places(backend *b) {
    const uint32_t places = b->batch->rows * b->s->top_k;
    for (uint32_t p = 0; p < places; p++) {
        b->scratch.list[p] = p;
        b->scratch.rows_of[p] = p / b->s->top_k;
    }
    return places;
}

/* Sorts places row·top_k + i by expert (counting sort, stable) and lists the experts that have any. */
static uint32_t group_rows(backend *b, uint32_t *active) {
    const uint32_t *expert = b->buf[BUF_ROUTE_EXPERT], places = b->batch->rows * b->s->top_k, E = b->s->experts;
    uint32_t *first = b->scratch.first, n = 0;
    memset(first, 0, (E + 1) * sizeof *first);
    for (uint32_t p = 0; p < places; p++) first[expert[p] + 1]++;
    for (uint32_t e = 0; e < E; e++) {
        if (first[e + 1]) active[n++] = e;
        first[e + 1] += first[e];
    }
    for (uint32_t p = 0; p < places; p++) {
        const uint32_t at = first[expert[p]]++;
        b->scratch.list[at] = p;
        b->scratch.rows_of[at] = p / b->s->top_k;
    }
    for (uint32_t e = E; e > 0; e--) first[e] = first[e - 1]; /* they had moved on to the ends */
    first[0] = 0;
    return n;
}

static void expert_in_task(void *context, uint32_t task, uint32_t thread) {
    const moe_run *run = context;
    backend *b = run->b;
    uint32_t begin, n;
    const uint32_t width = b->s->expert_width, a = task / run->tasks_per_expert, next = next_expert(run, a),
                   e = group_of(run, a, &begin, &n);
    uint32_t o = task % run->tasks_per_expert * run->task_outputs;
    const uint32_t end = width - o < run->task_outputs ? width : o + run->task_outputs;
    float *gate = cpu_thread_scratch(b, thread), *up = gate + (size_t)n * CPU_WIDE;
    cpu_fetch(&run->l->expert_gate, e, o);
    cpu_fetch(&run->l->expert_up, e, o);
    for (; o < end; o += CPU_WIDE) {
        const uint32_t count = end - o < CPU_WIDE ? end - o : CPU_WIDE;
        const cpu_ahead up_at = cpu_outputs_at(&run->l->expert_up, e, o), then = o + count < width
                                                                                     ? cpu_outputs_at(&run->l->expert_gate, e, o + count)
                                                                                     : cpu_outputs_at(&run->l->expert_gate, next, 0);
        cpu_panel(b, &run->l->expert_gate, e, o, count, &b->scratch.input, b->scratch.rows_of + begin, n, &up_at, gate);
        cpu_panel(b, &run->l->expert_up, e, o, count, &b->scratch.input, b->scratch.rows_of + begin, n, &then, up);
        for (uint32_t i = 0; i < n; i++) {
            b->k->silu_mul(gate + (size_t)i * CPU_WIDE, up + (size_t)i * CPU_WIDE, count);
            memcpy((float *)b->buf[BUF_EXPERT] + (size_t)b->scratch.list[begin + i] * width + o, gate + (size_t)i * CPU_WIDE,
                   count * sizeof *gate);
        }
    }
}

static void ready_task(void *context, uint32_t place, uint32_t thread) {
    const moe_run *run = context;
    (void)thread;
    cpu_x_row(run->b, &run->b->scratch.experts, place);
}

void cpu_expert_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    uint32_t active[MAX_EXPERTS];
    moe_run run = {.b = b, .l = &b->w->layer[layer]};
    if (cpu_does(b, CPU_EXPERT_GROUPING)) run.expert = active;
    run.active = run.expert ? group_rows(b, active) : list_places(b);
    run.task_outputs = cpu_task_outputs(b, &run.l->expert_gate, run.active, b->batch->rows);
    run.tasks_per_expert = (s->expert_width + run.task_outputs - 1) / run.task_outputs;
    pool_run(b->pool, expert_in_task, &run, run.active * run.tasks_per_expert);
    cpu_x_shape(&b->scratch.experts, b->buf[BUF_EXPERT], s->expert_width, s->expert_width, b->batch->rows * s->top_k, false);
    if (b->batch->rows <= CPU_FEW_ROWS) /* less work than a meeting of the threads */
        for (uint32_t p = 0; p < b->batch->rows * s->top_k; p++) ready_task(&run, p, 0);
    else
        pool_run(b->pool, ready_task, &run, b->batch->rows * s->top_k);
}

/* Some outputs of one expert, or behind them all of the shared one. */
static void few_out_task(void *context, uint32_t task, uint32_t thread) {
    const moe_run *run = context;
    backend *b = run->b;
    const uint32_t H = b->s->hidden, a = task / run->tasks_per_expert;
    const bool shared = a == run->active;
    uint32_t begin = b->batch->rows * b->s->top_k, n = b->batch->rows, e = 0, o = task % run->tasks_per_expert * run->task_outputs;
    if (!shared) e = group_of(run, a, &begin, &n);
    const uint32_t end = H - o < run->task_outputs ? H : o + run->task_outputs, *places = shared ? NULL : b->scratch.list + begin;
    float *acc = cpu_thread_scratch(b, thread);
    cpu_fetch(shared ? &run->l->shared_down : &run->l->expert_down, e, o);
    for (; o < end; o += CPU_WIDE) {
        const uint32_t count = end - o < CPU_WIDE ? end - o : CPU_WIDE;
        if (shared) {
            const cpu_ahead ahead = cpu_outputs_at(&run->l->shared_down, 0, o + count < H ? o + count : 0);
            cpu_panel(b, &run->l->shared_down, 0, o, count, &b->scratch.shared, NULL, n, &ahead, acc);
        } else {
            const cpu_ahead ahead = o + count < H         ? cpu_outputs_at(&run->l->expert_down, e, o + count)
                                    : a + 1 < run->active ? cpu_outputs_at(&run->l->expert_down, next_expert(run, a), 0)
                                                          : cpu_outputs_at(&run->l->shared_down, 0, 0);
            cpu_panel(b, &run->l->expert_down, e, o, count, &b->scratch.experts, places, n, &ahead, acc);
        }
        for (uint32_t i = 0; i < n; i++) /* by position in the list: each row's experts stand in order there */
            memcpy(b->scratch.down + (size_t)(begin + i) * H + o, acc + (size_t)i * CPU_WIDE, count * sizeof *acc);
    }
}

static void few_out_sum(backend *b) {
    const uint32_t H = b->s->hidden, K = b->s->top_k, rows = b->batch->rows;
    const float *route = b->buf[BUF_ROUTE_WEIGHT], *gate = shared_gate_values(b);
    enum { BLOCK = 256 };
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < H; o += BLOCK) {
            const uint32_t count = H - o < BLOCK ? H - o : BLOCK;
            float sum[BLOCK] = {0}, *to = (float *)b->buf[BUF_RESIDUAL] + (size_t)r * H + o;
            for (uint32_t i = 0; i < rows * K; i++) {
                const uint32_t place = b->scratch.list[i];
                if (place / K != r) continue;
                const float w = route[place], *in = b->scratch.down + (size_t)i * H + o;
                for (uint32_t j = 0; j < count; j++) sum[j] += w * in[j];
            }
            const float *in = b->scratch.down + (size_t)(rows * K + r) * H + o;
            for (uint32_t j = 0; j < count; j++) to[j] += sum[j] + gate[r] * in[j];
        }
}

static void expert_out_task(void *context, uint32_t task, uint32_t thread) {
    const moe_run *run = context;
    backend *b = run->b;
    const uint32_t H = b->s->hidden, K = b->s->top_k, rows = b->batch->rows, width = run->task_outputs, o = task * width,
                   end = H - o < width ? H : o + width;
    const float *route = b->buf[BUF_ROUTE_WEIGHT], *gate = shared_gate_values(b);
    float *sum = cpu_thread_scratch(b, thread), *acc = sum + (size_t)rows * width; /* [rows][width], [rows][64] */
    memset(sum, 0, (size_t)rows * width * sizeof *sum);
    for (uint32_t a = 0; a < run->active; a++) {
        uint32_t begin, n;
        const cpu_ahead next =
            a + 1 < run->active ? cpu_outputs_at(&run->l->expert_down, next_expert(run, a), o) : cpu_outputs_at(&run->l->shared_down, 0, o);
        const uint32_t e = group_of(run, a, &begin, &n), *places = b->scratch.list + begin;
        for (uint32_t p = o; p < end; p += CPU_WIDE) {
            const uint32_t count = end - p < CPU_WIDE ? end - p : CPU_WIDE;
            const cpu_ahead ahead = p + count < end ? cpu_outputs_at(&run->l->expert_down, e, p + count) : next;
            cpu_panel(b, &run->l->expert_down, e, p, count, &b->scratch.experts, places, n, &ahead, acc);
            for (uint32_t i = 0; i < n; i++) {
                const float w = route[places[i]], *in = acc + (size_t)i * CPU_WIDE;
                float *to = sum + (size_t)(places[i] / K) * width + (p - o);
                for (uint32_t j = 0; j < count; j++) to[j] += w * in[j];
            }
        }
    }
    for (uint32_t p = o; p < end; p += CPU_WIDE) {
        const uint32_t count = end - p < CPU_WIDE ? end - p : CPU_WIDE;
        const cpu_ahead ahead = cpu_outputs_at(&run->l->shared_down, 0, p + count < H ? p + count : 0);
        cpu_panel(b, &run->l->shared_down, 0, p, count, &b->scratch.shared, NULL, rows, &ahead, acc);
        for (uint32_t r = 0; r < rows; r++) {
            const float *in = sum + (size_t)r * width + (p - o), *shared = acc + (size_t)r * CPU_WIDE;
            float *to = (float *)b->buf[BUF_RESIDUAL] + (size_t)r * H + p;
            for (uint32_t j = 0; j < count; j++) to[j] += in[j] + gate[r] * shared[j];
        }
    }
}

void cpu_expert_out(backend *b, uint32_t layer) {
    uint32_t active[MAX_EXPERTS];
    moe_run run = {.b = b, .l = &b->w->layer[layer]};
    if (cpu_does(b, CPU_EXPERT_GROUPING))
        run.expert = active;
    else
        run.active = b->batch->rows * b->s->top_k;
    for (uint32_t e = 0; run.expert && e < b->s->experts; e++)
        if (b->scratch.first[e + 1] > b->scratch.first[e]) active[run.active++] = e;
    if (b->batch->rows > CPU_FEW_ROWS) {
        /* as wide as the threads' scratch takes beside a panel, and as leaves each thread some tasks */
        for (run.task_outputs = CPU_OUT_MOST; run.task_outputs > CPU_PANEL; run.task_outputs /= 2)
            if (b->s->hidden / run.task_outputs >= 2 * pool_threads(b->pool)) break;
        pool_run(b->pool, expert_out_task, &run, (b->s->hidden + run.task_outputs - 1) / run.task_outputs);
        return;
    }
    run.task_outputs = cpu_task_outputs(b, &run.l->expert_down, run.active + 1, b->batch->rows);
    run.tasks_per_expert = (b->s->hidden + run.task_outputs - 1) / run.task_outputs;
    pool_run(b->pool, few_out_task, &run, (run.active + 1) * run.tasks_per_expert);
    few_out_sum(b);
}

/* run.c: walking the prepared lists: which calls a batch needs, their grids, and the barriers between them.
 *
 * Ops of a batch of few rows are noted and recorded together at its end, so that one that is to be part of the next can wait for it.  Those
 * of a long prompt are recorded as they are called and handed over layer by layer (polite: op by op), so that the device is not idle, and
 * so that no command keeps a desktop waiting. */
#include "backend/metal/metal.h"
#include "base/clock.h"

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

static uint32_t row_parts(uint32_t rows) {
    const uint32_t parts = rows ? blocks(METAL_LEAST_THREADGROUPS, rows) : 1;
    return parts < METAL_MOST_ROW_PARTS ? parts : METAL_MOST_ROW_PARTS;
}

static uint32_t extent(const metal_view *v, uint8_t by) {
    switch ((metal_extent)by) {
    case BY_ONE: return 1;
    case BY_ROWS: return v->rows;
    case BY_SEGMENTS: return v->segments;
    case BY_WANTED: return v->wanted;
    case BY_SHORT_ROWS: return v->short_rows;
    case BY_SPLITS: return v->splits;
    case BY_LONG_SPLITS: return v->long_splits;
    case BY_GEMM_ROWS: return blocks(v->rows, METAL_GEMM_ROWS);
    case BY_GDN_CHUNKS: return METAL_GDN_CHUNKS(v->rows, v->segments);
    case BY_TILES: return METAL_TILES(v->rows, v->segments);
    case BY_ROUTER_PARTS: return v->router_parts;
    case BY_ROW_PARTS: return row_parts(v->rows);
    }
    return 0;
}

static bool applies(const metal_call *c, const metal_view *v) {
    switch ((metal_when)c->when) {
    case ALWAYS: return true;
    case IF_SINGLE: return v->single;
    case IF_NOT_SINGLE: return !v->single;
    case IF_SHORT: return v->short_rows > 0;
    case IF_LONG: return v->any_long;
    case IF_LONG_SPLIT: return v->any_long && v->long_splits > 1;
    case IF_WIDE: return c->wide * blocks(v->rows, METAL_GEMM_ROWS) >= METAL_LEAST_THREADGROUPS;
    case IF_NARROW: return c->wide * blocks(v->rows, METAL_GEMM_ROWS) < METAL_LEAST_THREADGROUPS;
    }
    return false;
}

static void barrier(backend *b) {
    metal_walk *w = &b->walk;
    if (!w->dirty) return;
    w->barriers++;
    w->dirty = false;
    if (!w->dry) gpu_barrier(&b->commands);
}

static bool have_commands(backend *b) {
    if (b->commands.buffer) return true;
    if (!gpu_begin(b->gpu, &b->commands)) return false;
    gpu_bind_arguments(&b->commands, &b->prepared.arguments);
    b->walk.step = UINT64_MAX;
    return true;
}

static void send(backend *b, const metal_view *v, const metal_dispatch *d) {
    b->walk.dispatches++;
    b->walk.dirty = true;
    if (b->walk.dry || !have_commands(b)) return;
    if (b->walk.step != v->step) gpu_bind_step(&b->commands, &b->ring.memory, b->walk.step = v->step);
    gpu_dispatch(b->gpu, &b->commands, d);
}

/* Command after command, each of as many tiles as command_work allows. */
static void send_cut(backend *b, const metal_view *v, metal_dispatch d) {
    const uint32_t tiles = d.grid[0], most = b->command_work / b->s->kv_heads / v->long_positions / METAL_CUT_TILES * METAL_CUT_TILES,
                   step = most ? most : METAL_CUT_TILES;
    const uint64_t arguments = d.arguments;
    for (uint32_t first = 0; first < tiles; first += step) {
        if (first) metal_commit(b);
        d.grid[0] = tiles - first < step ? tiles - first : step;
        d.arguments = arguments + first / METAL_CUT_TILES * METAL_ARGUMENTS_ALIGN;
        send(b, v, &d);
    }
}

static void dispatch(backend *b, const metal_call *c, const metal_view *v) {
    metal_dispatch d = {
        .kernel = c->kernel[v->rows > 1], .threads = c->threads, .threadgroup_bytes = c->threadgroup_bytes, .arguments = c->arguments};
    for (int i = 0; i < 3; i++) d.grid[i] = c->grid[i] * extent(v, c->by[i]);
    if (!v->rows || !d.grid[0] || !d.grid[1] || !d.grid[2]) return; /* none: of the last layer, where nothing is wanted */
    if (c->cut)
        send_cut(b, v, d);
    else
        send(b, v, &d);
}

static void run(backend *b, metal_op op, uint32_t layer, const metal_view *view) {
    const metal_program *p = &b->prepared.program[((uint64_t)layer * OP_COUNT + op) * PATHS + view->path];
    barrier(b);
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const metal_call *c = &b->prepared.calls[i];
        const metal_view *v = c->whole ? &b->whole : view;
        if (c->barrier) barrier(b); /* also of one that is left out: it may stand for all that follow */
        if (applies(c, v)) dispatch(b, c, v);
    }
}

/* The last layer goes on with the wanted rows alone. */
static bool goes_on_with_last(const backend *b, uint32_t layer) {
    return layer + 1 == b->s->layers && b->s->is_attention[layer] && b->batch->last && b->whole.path == MANY_ROWS;
}

static void run_few(backend *b, metal_op op, uint32_t layer) {
    if (op == OP_EMBED && !metal_turned_off(b, WITHOUT_FUSED_EMBEDDING)) {
        b->embedding_due = true;
        return;
    }
    if (op == OP_MIXER_IN && b->embedding_due) op = OP_EMBED_MIXER_IN;
    run(b, op, layer, b->view);
    b->embedding_due = false;
    b->choice_due = op == OP_ROUTE;
}

static void run_many(backend *b, metal_op op, uint32_t layer) {
    if (op == OP_MIXER_IN && goes_on_with_last(b, layer)) {
        b->view = &b->last;
        op = OP_LAST_IN;
    } else if (op == OP_MIXER && b->view == &b->last)
        op = OP_LAST_MIXER;
    if (op == OP_HEAD && b->view->wanted > METAL_STEP_ROWS)
        run(b, OP_MANY_HEAD, layer, &b->head);
    else
        run(b, op, layer, b->view);
    b->choice_due = op == OP_ROUTE && b->view->path == FEW_ROWS;
}

static void run_op(backend *b, metal_op op, uint32_t layer) {
    if (b->whole.path == FEW_ROWS)
        run_few(b, op, layer);
    else
        run_many(b, op, layer);
}

void metal_run_noted(backend *b) {
    for (; b->n_run < b->n_noted; b->n_run++) run_op(b, b->noted[b->n_run].op, b->noted[b->n_run].layer);
}

void metal_commit(backend *b) {
    gpu_commit(b->gpu, &b->commands);
    b->walk.dirty = false; /* commands follow each other */
}

void metal_note(backend *b, metal_op op, uint32_t layer) {
    if (b->n_noted == b->most_noted) return; /* a step has no more: the model counts them */
    b->noted[b->n_noted++] = (metal_noted){op, layer};
    if (b->whole.path == FEW_ROWS) return;
    metal_run_noted(b);
    if (op == OP_EXPERT_OUT || b->limits.polite) metal_commit(b);
}

void metal_flush(backend *b) {
    metal_run_noted(b);
    if (b->embedding_due) run(b, OP_EMBED, 0, b->view);
    if (b->choice_due) run(b, OP_CHOOSE, b->noted[b->n_run - 1].layer, b->view);
    b->embedding_due = b->choice_due = false;
    metal_commit(b);
    gpu_wait(b->gpu, 0);
}

/* The best of a few passes, each of so many reads that handing over the commands does not count. */
double metal_measure_reads(backend *b) {
    enum { PASSES = 3, READS = 8 };
    const metal_view view = {.rows = 1, .path = FEW_ROWS};
    uint64_t best = UINT64_MAX;
    for (int pass = 0; pass < PASSES && !gpu_failure(b->gpu); pass++) {
        const uint64_t start = clock_now_ns();
        b->walk = (metal_walk){.step = UINT64_MAX};
        for (int i = 0; i < READS; i++) run(b, OP_READ, 0, &view);
        metal_commit(b);
        gpu_wait(b->gpu, 0);
        const uint64_t took = clock_now_ns() - start;
        best = took < best ? took : best;
    }
    return gpu_failure(b->gpu) ? 0 : (double)(READS * b->read_bytes) * 1e9 / (double)(best ? best : 1);
}

void metal_count(backend *b) {
    static const metal_op layer_ops[] = {OP_MIXER_IN, OP_MIXER, OP_MIXER_OUT, OP_ROUTE, OP_EXPERT_IN, OP_EXPERT_OUT};
    b->whole =
        (metal_view){.rows = 1, .segments = 1, .wanted = 1, .short_rows = 1, .splits = METAL_MAX_SPLITS, .path = FEW_ROWS, .single = true};
    b->view = &b->whole;
    b->walk = (metal_walk){.dry = true};
    run_op(b, OP_EMBED, 0);
    for (uint32_t layer = 0; layer < b->s->layers; layer++)
        for (size_t i = 0; i < sizeof layer_ops / sizeof *layer_ops; i++) run_op(b, layer_ops[i], layer);
    run_op(b, OP_HEAD, 0);
    b->token_dispatches = b->walk.dispatches;
    b->token_barriers = b->walk.barriers;
    b->walk = (metal_walk){.dry = false};
}

/* attention.c: gated grouped-query attention over paged K and V (docs/model.md, "Attention mixer").
 *
 * The query heads of a group share each row of K and V.  A context is cut into splits at fixed positions; within a split, page by page
 * with a running softmax; the splits are then put together from the first on.  So a row's sums are in an order that depends on its
 * position alone: not on how many rows there are, nor on whether a task does one split or all of them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/ref/plain.h"

enum {
    D = HEAD_DIM,
    SPLIT_PAGES = 4,
    FEW_TASKS = 32, /* rows times K/V heads below which rows are split over tasks */
    TILE_ROWS = 8   /* most rows that share a pass over K and V */
};

/* Goes on with the wanted rows alone: moves them together in the residual. */
static void keep_wanted_rows(backend *b) {
    const uint32_t H = b->s->hidden;
    float *residual = b->buf[BUF_RESIDUAL];
    for (uint32_t i = 0; i < b->batch->wanted; i++)
        memmove(residual + (size_t)i * H, residual + (size_t)b->batch->wanted_row[i] * H, H * sizeof *residual);
    b->batch = b->batch->last;
}

void cpu_attention_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const size_t stride = shape_mixer_in_values(s);
    float *q = b->buf[BUF_MIXER_IN], *k = q + 2 * (size_t)shape_query_values(s), *v = k + shape_kv_values(s);
    cpu_norm_input(b, &l->norm_mixer, b->scratch.normed, false);
    const cpu_x *x = &b->scratch.input;
    const cpu_linear jobs[] = {
        {&l->k, x, k, stride, CPU_STORE, false}, {&l->v, x, v, stride, CPU_STORE, false}, {&l->q, x, q, stride, CPU_STORE, false}};
    if (layer + 1 < s->layers || !b->batch->last || !cpu_does(b, CPU_LAST_ROWS)) {
        cpu_run_linear(b, jobs, 3);
        return;
    }
    cpu_run_linear(b, jobs, 2); /* of all rows; the rest is for the wanted ones alone */
    keep_wanted_rows(b);
    if (!b->batch->rows) return;
    cpu_norm_input(b, &l->norm_mixer, b->scratch.normed, false);
    cpu_run_linear(b, jobs + 2, 1);
}

/* K (v = 0) or V (v = 1) of a head in a page of a layer. */
static uint8_t *kv_block(const backend *b, uint32_t layer, uint32_t page, uint32_t v, uint32_t head) {
    const model_shape *s = b->s;
    const uint64_t index = (((uint64_t)s->kind_index[layer] * b->limits.pages + page) * 2 + v) * s->kv_heads + head;
    return (uint8_t *)b->buf[BUF_KV] + index * kv_block_bytes(b->limits.kv);
}

static const uint32_t *row_pages(const row_batch *t, uint32_t row) { return t->page_table + t->segment[t->segment_of[row]].first_page; }

typedef struct attention_run {
    backend *b;
    uint32_t layer;
    uint32_t group;            /* query heads of a K/V head */
    uint32_t splits;           /* of the longest row; used where rows are split over tasks */
    uint32_t tile_rows;        /* where they are not: rows of one task */
    const uint32_t *tile;      /* [tiles] the first row of each */
    const cpu_attention *fast; /* or NULL */
    float q_gain[D], k_gain[D];
} attention_run;

/* Norms and rotates k of row `task` of the whole batch and caches k and v; norms and rotates q of row `task` of those under way, in
 * place, and divides it by √256, which is exact. */
static void cache_task(void *context, uint32_t task, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    (void)thread;
    const uint32_t position = b->whole->positions[task], page = row_pages(b->whole, task)[position / KV_PAGE_TOKENS];
    float *q = (float *)b->buf[BUF_MIXER_IN] + (size_t)task * shape_mixer_in_values(s), *k = q + 2 * (size_t)shape_query_values(s),
          *v = k + shape_kv_values(s);
    float cosine[ROTARY_DIM / 2], sine[ROTARY_DIM / 2];
    ref_rope_angles(position, s->rope_theta, cosine, sine);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        float *x = k + (size_t)h * D;
        cpu_rmsnorm(b, x, run->k_gain, D, x);
        ref_rope(x, cosine, sine);
        ref_kv_store(kv_block(b, run->layer, page, 0, h), b->limits.kv, position % KV_PAGE_TOKENS, x);
        ref_kv_store(kv_block(b, run->layer, page, 1, h), b->limits.kv, position % KV_PAGE_TOKENS, v + (size_t)h * D);
    }
    if (task >= b->batch->rows) return;
    if (b->batch->positions[task] != position) ref_rope_angles(b->batch->positions[task], s->rope_theta, cosine, sine);
    for (uint32_t h = 0; h < s->attention_heads; h++) {
        float *x = q + (size_t)h * 2 * D;
        cpu_rmsnorm(b, x, run->q_gain, D, x);
        ref_rope(x, cosine, sine);
        for (uint32_t i = 0; i < D; i++) x[i] *= 0.0625f;
    }
}

/* A part of the context of a row and K/V head: [group][256] Σ e^(s−max) v, [group] max, [group] Σ e^(s−max). */
static size_t part_values(uint32_t group) { return (size_t)group * (D + 2); }

static void part_clear(float *part, uint32_t group) {
    memset(part, 0, part_values(group) * sizeof *part);
    for (uint32_t j = 0; j < group; j++) part[(size_t)group * D + j] = -INFINITY;
}

/* sum ← sum and part together, each relative to the larger maximum. */
static void part_add(float *sum, const float *part, uint32_t group) {
    float *max = sum + (size_t)group * D, *weight = max + group;
    const float *max2 = part + (size_t)group * D, *weight2 = max2 + group;
    for (uint32_t j = 0; j < group; j++) {
        const float largest = fmaxf(max[j], max2[j]), a = expf(max[j] - largest), c = expf(max2[j] - largest);
        for (uint32_t i = 0; i < D; i++) sum[j * D + i] = a * sum[j * D + i] + c * part[j * D + i];
        weight[j] = a * weight[j] + c * weight2[j];
        max[j] = largest;
    }
}

/* What the row sees of one page, `count` tokens, goes into its part.  ahead: the next block of K, or NULL; fetch: ask for it, and for v. */
static void attend_page(const attention_run *run, const float *q, const uint8_t *k, const uint8_t *v, const uint8_t *ahead, bool fetch,
                        uint32_t count, float *part, float *p /* [group][page tokens] */) {
    const backend *b = run->b;
    const cpu_mixers *mixer = b->k->mixer;
    const cpu_attention *fast = run->fast;
    const uint32_t group = run->group, sharing = cpu_does(b, CPU_KV_SHARING) ? group : 1; /* heads that share a pass over K and V */
    float *max = part + (size_t)group * D, *sum = max + group;
    for (uint32_t j = 0; j < group; j += sharing) {
        const float *qj = q + (size_t)j * 2 * D;
        float *pj = p + (size_t)j * KV_PAGE_TOKENS;
        if (fast)
            fast->scores(qj, 2 * D, sharing, k, count, pj, KV_PAGE_TOKENS, fetch ? v : NULL);
        else
            mixer->attend_scores(qj, 2 * D, sharing, k, b->limits.kv, count, pj, KV_PAGE_TOKENS, fetch ? v : NULL);
    }
    for (uint32_t j = 0; j < group; j++) {
        float *pj = p + (size_t)j * KV_PAGE_TOKENS;
        const float largest = mixer->largest(pj, count);
        if (largest > max[j]) { /* what was summed so far was relative to a smaller maximum */
            const float shrink = expf(max[j] - largest);
            sum[j] *= shrink;
            for (uint32_t i = 0; i < D; i++) part[(size_t)j * D + i] *= shrink;
            max[j] = largest;
        }
        sum[j] += mixer->exp_sum(pj, count, max[j]);
    }
    for (uint32_t j = 0; j < group; j += sharing) {
        const float *pj = p + (size_t)j * KV_PAGE_TOKENS;
        float *out = part + (size_t)j * D;
        if (fast)
            fast->values(pj, KV_PAGE_TOKENS, sharing, v, count, out, fetch ? ahead : NULL);
        else
            mixer->attend_values(pj, KV_PAGE_TOKENS, sharing, v, b->limits.kv, count, out, fetch ? ahead : NULL);
    }
}

/* One split for rows first … first + rows - 1, which follow each other in a sequence: their parts, one after the other, cleared here.
 * Page by page, so that K and V come from memory once for all rows. */
static void attend_split(const attention_run *run, uint32_t first, uint32_t rows, uint32_t head, uint32_t split, float *parts, float *p) {
    const backend *b = run->b;
    const row_batch *t = b->batch;
    const size_t stride = shape_mixer_in_values(b->s);
    const uint32_t *pages = row_pages(t, first), tokens = t->positions[first + rows - 1] + 1; /* that the last row sees */
    const float *q = (const float *)b->buf[BUF_MIXER_IN] + first * stride + (size_t)head * run->group * 2 * D;
    for (uint32_t r = 0; r < rows; r++) part_clear(parts + r * part_values(run->group), run->group);
    for (uint32_t page = split * SPLIT_PAGES; page < (split + 1) * SPLIT_PAGES && page * KV_PAGE_TOKENS < tokens; page++) {
        const uint8_t *k = kv_block(b, run->layer, pages[page], 0, head), *v = kv_block(b, run->layer, pages[page], 1, head),
                      *ahead = (page + 1) * KV_PAGE_TOKENS < tokens ? kv_block(b, run->layer, pages[page + 1], 0, head) : NULL;
        bool fetch = true;
        for (uint32_t r = 0; r < rows; r++) {
            const uint32_t seen = t->positions[first + r] + 1;
            if (seen <= page * KV_PAGE_TOKENS) continue;
            const uint32_t count = seen - page * KV_PAGE_TOKENS < KV_PAGE_TOKENS ? seen - page * KV_PAGE_TOKENS : KV_PAGE_TOKENS;
            attend_page(run, q + r * stride, k, v, ahead, fetch, count, parts + r * part_values(run->group), p);
            fetch = false;
        }
    }
}

static uint32_t row_splits(const row_batch *t, uint32_t row) { return t->positions[row] / (SPLIT_PAGES * KV_PAGE_TOKENS) + 1; }

/* out ← the sum of all parts of a row and K/V head, divided by its weight */
static void finish_row(const attention_run *run, uint32_t row, uint32_t head, const float *sum) {
    const backend *b = run->b;
    const float *weight = sum + (size_t)run->group * (D + 1);
    float *out = (float *)b->buf[BUF_MIXER_OUT] + (size_t)row * shape_mixer_out_values(b->s) + (size_t)head * run->group * D;
    for (uint32_t j = 0; j < run->group; j++)
        for (uint32_t i = 0; i < D; i++) out[j * D + i] = sum[j * D + i] / weight[j];
}

/* Few rows: a task is a row, a K/V head and a split … */
static void split_task(void *context, uint32_t task, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const uint32_t split = task % run->splits, head = task / run->splits % b->s->kv_heads, row = task / run->splits / b->s->kv_heads;
    if (split >= row_splits(b->batch, row)) return;
    attend_split(run, row, 1, head, split, b->scratch.partial + task * part_values(run->group), cpu_thread_scratch(b, thread));
}

/* … and then their parts are put together, always in the same order. */
static void combine_task(void *context, uint32_t task, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    (void)thread;
    const uint32_t head = task % b->s->kv_heads, row = task / b->s->kv_heads, splits = row_splits(b->batch, row);
    float *sum = b->scratch.partial + (size_t)task * run->splits * part_values(run->group);
    for (uint32_t i = 1; i < splits; i++) part_add(sum, sum + i * part_values(run->group), run->group);
    finish_row(run, row, head, sum);
}

/* Many rows: a task is some rows and a K/V head, with all of their context, in the same splits and order. */
static void tile_task(void *context, uint32_t task, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const row_batch *t = b->batch;
    const uint32_t head = task % b->s->kv_heads, first = run->tile[task / b->s->kv_heads];
    const batch_segment *seg = &t->segment[t->segment_of[first]];
    const uint32_t left = seg->first_row + seg->rows - first, rows = left < run->tile_rows ? left : run->tile_rows;
    const size_t size = part_values(run->group);
    float *sums = cpu_thread_scratch(b, thread), *parts = sums + rows * size, *p = parts + rows * size;
    attend_split(run, first, rows, head, 0, sums, p);
    const uint32_t splits = row_splits(t, first + rows - 1);
    for (uint32_t i = 1; i < splits; i++) {
        attend_split(run, first, rows, head, i, parts, p);
        for (uint32_t r = 0; r < rows; r++)
            if (i < row_splits(t, first + r)) part_add(sums + r * size, parts + r * size, run->group);
    }
    for (uint32_t r = 0; r < rows; r++) finish_row(run, first + r, head, sums + r * size);
}

uint64_t cpu_attention_thread_bytes(const model_shape *s) {
    const uint32_t group = s->attention_heads / s->kv_heads;
    return (2 * TILE_ROWS * part_values(group) + (uint64_t)group * KV_PAGE_TOKENS) * sizeof(float);
}

uint64_t cpu_attention_partial_bytes(const model_shape *s, const backend_limits *limits) {
    const uint64_t splits = (limits->pages + SPLIT_PAGES - 1) / SPLIT_PAGES, rows = limits->rows * s->kv_heads;
    return (rows < FEW_TASKS ? rows : FEW_TASKS) * splits * part_values(s->attention_heads / s->kv_heads) * sizeof(float);
}

void cpu_attention_mix(backend *b, uint32_t layer) {
    const row_batch *t = b->batch;
    attention_run run = {.b = b, .layer = layer, .group = b->s->attention_heads / b->s->kv_heads};
    if (b->q8) run.fast = b->k->attention[b->limits.kv];
    ref_load_vec(&b->w->layer[layer].q_norm, run.q_gain);
    ref_load_vec(&b->w->layer[layer].k_norm, run.k_gain);
    cpu_each_row(b, cache_task, &run, b->whole->rows);
    const uint32_t tasks = t->rows * b->s->kv_heads;
    if (tasks < FEW_TASKS && cpu_does(b, CPU_SPLIT_ATTENTION)) {
        for (uint32_t r = 0; r < t->rows; r++) run.splits = row_splits(t, r) > run.splits ? row_splits(t, r) : run.splits;
        pool_run(b->pool, split_task, &run, tasks * run.splits);
        pool_run(b->pool, combine_task, &run, tasks);
        return;
    }
    run.tile_rows = tasks / (4 * pool_threads(b->pool)); /* four tasks a thread, if that many rows are there */
    run.tile_rows = run.tile_rows < 1 ? 1 : run.tile_rows < TILE_ROWS ? run.tile_rows : TILE_ROWS;
    uint32_t tiles = 0;
    for (uint32_t g = 0; g < t->segments; g++)
        for (uint32_t r = 0; r < t->segment[g].rows; r += run.tile_rows) b->scratch.list[tiles++] = t->segment[g].first_row + r;
    run.tile = b->scratch.list; /* the experts' list is not in use now */
    pool_run(b->pool, tile_task, &run, tiles * b->s->kv_heads);
}

/* out · sigmoid(gate).  The gate is the second half of each query head's projection. */
static void gate_task(void *context, uint32_t row, uint32_t thread) {
    backend *b = context;
    const model_shape *s = b->s;
    (void)thread;
    const uint32_t n = shape_query_values(s);
    const float *o = (const float *)b->buf[BUF_MIXER_OUT] + (size_t)row * shape_mixer_out_values(s);
    const float *q = (const float *)b->buf[BUF_MIXER_IN] + (size_t)row * shape_mixer_in_values(s);
    float *x = b->scratch.normed + (size_t)row * n;
    memcpy(x, o, n * sizeof *x);
    for (uint32_t h = 0; h < s->attention_heads; h++) b->k->sigmoid_mul(x + (size_t)h * D, q + (size_t)h * 2 * D + D, D);
    cpu_x_row(b, &b->scratch.input, row);
}

void cpu_attention_out(backend *b, uint32_t layer) {
    const uint32_t n = shape_query_values(b->s);
    cpu_x_shape(&b->scratch.input, b->scratch.normed, n, n, b->batch->rows, true);
    cpu_each_row(b, gate_task, b, b->batch->rows);
    cpu_linear job = {&b->w->layer[layer].attn_out, &b->scratch.input, b->buf[BUF_RESIDUAL], b->s->hidden, CPU_ADD, true};
    cpu_run_linear(b, &job, 1);
}

void cpu_attention_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens) {
    for (uint32_t layer = 0; layer < b->s->layers; layer++) {
        if (!b->s->is_attention[layer]) continue;
        for (uint32_t v = 0; v < 2; v++)
            for (uint32_t h = 0; h < b->s->kv_heads; h++)
                ref_kv_copy(kv_block(b, layer, dst, v, h), kv_block(b, layer, src, v, h), b->limits.kv, tokens);
    }
}

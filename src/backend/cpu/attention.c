/* attention.c: gated grouped-query attention over paged K and V (docs/model.md, "Attention mixer").
 *
 * The query heads of a group share each row of K and V.  One task is a row, a K/V head and a split of the context; within a split, pages
 * with a running softmax; the splits are combined when the row is used.  BUF_KV is
 * [attention layers][pages][k, v][kv heads][page tokens][256]. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/ref/plain.h"
#include "base/float.h"

enum { D = HEAD_DIM, SPLIT_TOKENS = 8 * KV_PAGE_TOKENS, ENOUGH_TASKS = 64 /* rows times heads from which on no row is split */ };

void cpu_attention_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const size_t stride = shape_mixer_in_values(s);
    float *q = b->buf[BUF_MIXER_IN], *k = q + 2 * (size_t)shape_query_values(s), *v = k + shape_kv_values(s);
    cpu_norm_input(b, &l->norm_mixer, b->scratch.normed);
    const cpu_x *x = &b->scratch.input;
    const cpu_linear jobs[] = {{&l->q, x, q, stride, CPU_STORE}, {&l->k, x, k, stride, CPU_STORE}, {&l->v, x, v, stride, CPU_STORE}};
    cpu_run_linear(b, jobs, 3);
}

/* The first row of K (v = 0) or V (v = 1) of a head in a page of a layer. */
static uint8_t *kv_page(const backend *b, uint32_t layer, uint32_t page, uint32_t v, uint32_t head) {
    const model_shape *s = b->s;
    const size_t at = ((((size_t)s->kind_index[layer] * b->limits.pages + page) * 2 + v) * s->kv_heads + head) * KV_PAGE_TOKENS * D;
    return (uint8_t *)b->buf[BUF_KV] + at * (b->limits.kv == CALLA_KV_F32 ? 4 : 2);
}

static void kv_store(const backend *b, uint8_t *rows, uint32_t row, const float *x) {
    if (b->limits.kv == CALLA_KV_F32) {
        memcpy((float *)(void *)rows + (size_t)row * D, x, D * sizeof *x);
    } else {
        uint16_t *out = (uint16_t *)(void *)rows + (size_t)row * D;
        for (uint32_t i = 0; i < D; i++) out[i] = float_to_bf16(x[i]);
    }
}

typedef struct attention_run {
    backend *b;
    uint32_t layer;
    uint32_t splits, split_tokens; /* of the longest row */
    float q_gain[D], k_gain[D];
} attention_run;

/* Norms and rotates q (in place) and k of a row, and puts k and v into the cache. */
static void cache_task(void *context, uint32_t row, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    (void)thread;
    const uint32_t position = b->batch->positions[row],
                   page = b->batch->page_table[b->batch->segment[b->batch->segment_of[row]].first_page + position / KV_PAGE_TOKENS];
    float *q = (float *)b->buf[BUF_MIXER_IN] + (size_t)row * shape_mixer_in_values(s), *k = q + 2 * (size_t)shape_query_values(s),
          *v = k + shape_kv_values(s);
    float cosine[ROTARY_DIM / 2], sine[ROTARY_DIM / 2];
    ref_rope_angles(position, s->rope_theta, cosine, sine);
    for (uint32_t h = 0; h < s->attention_heads; h++) {
        float *x = q + (size_t)h * 2 * D;
        cpu_rmsnorm(b, x, run->q_gain, D, x);
        ref_rope(x, cosine, sine);
    }
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        float *x = k + (size_t)h * D;
        cpu_rmsnorm(b, x, run->k_gain, D, x);
        ref_rope(x, cosine, sine);
        kv_store(b, kv_page(b, run->layer, page, 0, h), position % KV_PAGE_TOKENS, x);
        kv_store(b, kv_page(b, run->layer, page, 1, h), position % KV_PAGE_TOKENS, v + (size_t)h * D);
    }
}

/* One split of one row and K/V head: out [group][256] is Σ e^(s−max) v, max and sum [group]. */
static void split_task(void *context, uint32_t task, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    const uint32_t group = s->attention_heads / s->kv_heads, split = task % run->splits, head = task / run->splits % s->kv_heads,
                   row = task / run->splits / s->kv_heads, n = b->batch->positions[row] + 1;
    if ((uint64_t)split * run->split_tokens >= n) return;
    const uint32_t begin = split * run->split_tokens, end = n - begin < run->split_tokens ? n : begin + run->split_tokens;
    const uint32_t *pages = b->batch->page_table + b->batch->segment[b->batch->segment_of[row]].first_page;
    const float *q = (const float *)b->buf[BUF_MIXER_IN] + (size_t)row * shape_mixer_in_values(s) + (size_t)head * group * 2 * D;
    float *out = b->scratch.partial + (size_t)task * group * (D + 2), *max = out + (size_t)group * D, *sum = max + group;
    float *p = cpu_thread_scratch(b, thread); /* [group][SCORE_BLOCK] */
    memset(out, 0, (size_t)group * D * sizeof *out);
    const uint32_t sharing = cpu_does(b, CPU_KV_SHARING) ? group : 1; /* heads that share a pass over K and V */
    for (uint32_t j = 0; j < group; j++) max[j] = -INFINITY, sum[j] = 0;
    for (uint32_t t = begin; t < end; t += SCORE_BLOCK) {
        const uint32_t count = end - t < SCORE_BLOCK ? end - t : SCORE_BLOCK, page = pages[t / KV_PAGE_TOKENS];
        for (uint32_t j = 0; j < group; j += sharing)
            b->k->mixer->attend_scores(q + (size_t)j * 2 * D, 2 * D, sharing, kv_page(b, run->layer, page, 0, head), b->limits.kv, count,
                                       p + (size_t)j * SCORE_BLOCK, SCORE_BLOCK);
        for (uint32_t j = 0; j < group; j++) {
            float *pj = p + (size_t)j * SCORE_BLOCK, largest = max[j];
            for (uint32_t i = 0; i < count; i++) {
                pj[i] *= 0.0625f; /* 1/√256 */
                largest = pj[i] > largest ? pj[i] : largest;
            }
            if (largest > max[j]) { /* what was summed so far was relative to a smaller maximum */
                const float shrink = expf(max[j] - largest);
                sum[j] *= shrink;
                for (uint32_t i = 0; i < D; i++) out[(size_t)j * D + i] *= shrink;
                max[j] = largest;
            }
            sum[j] += b->k->mixer->exp_sum(pj, count, largest);
        }
        for (uint32_t j = 0; j < group; j += sharing)
            b->k->mixer->attend_values(p + (size_t)j * SCORE_BLOCK, SCORE_BLOCK, sharing, kv_page(b, run->layer, page, 1, head),
                                       b->limits.kv, count, out + (size_t)j * D);
    }
}

/* Puts the splits of a row together into BUF_MIXER_OUT. */
static void combine_task(void *context, uint32_t row, uint32_t thread) {
    const attention_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    (void)thread;
    const uint32_t group = s->attention_heads / s->kv_heads, splits = b->batch->positions[row] / run->split_tokens + 1;
    for (uint32_t h = 0; h < s->attention_heads; h++) {
        const size_t size = (size_t)group * (D + 2), j = h % group;
        const float *part = b->scratch.partial + ((size_t)row * s->kv_heads + h / group) * run->splits * size;
        float *out = (float *)b->buf[BUF_MIXER_OUT] + (size_t)row * shape_mixer_out_values(s) + (size_t)h * D, max = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < splits; i++) max = fmaxf(max, part[i * size + group * D + j]);
        memset(out, 0, D * sizeof *out);
        for (uint32_t i = 0; i < splits; i++) {
            const float *o = part + i * size + j * D, scale = expf(part[i * size + group * D + j] - max);
            sum += scale * part[i * size + group * D + group + j];
            for (uint32_t d = 0; d < D; d++) out[d] += scale * o[d];
        }
        for (uint32_t d = 0; d < D; d++) out[d] /= sum;
    }
}

uint64_t cpu_attention_partials(const model_shape *s, const backend_limits *limits) {
    const uint64_t rows = (uint64_t)limits->rows * s->kv_heads,
                   splits = ((uint64_t)limits->pages * KV_PAGE_TOKENS + SPLIT_TOKENS - 1) / SPLIT_TOKENS;
    return rows > ENOUGH_TASKS * splits ? rows : ENOUGH_TASKS * splits;
}

void cpu_attention_mix(backend *b, uint32_t layer) {
    const row_batch *t = b->batch;
    attention_run run = {.b = b, .layer = layer};
    uint32_t longest = 0;
    for (uint32_t r = 0; r < t->rows; r++) longest = t->positions[r] > longest ? t->positions[r] : longest;
    const bool splits = t->rows * b->s->kv_heads < ENOUGH_TASKS && cpu_does(b, CPU_SPLIT_ATTENTION);
    run.split_tokens = splits ? SPLIT_TOKENS : UINT32_MAX;
    run.splits = longest / run.split_tokens + 1;
    ref_load_vec(&b->w->layer[layer].q_norm, run.q_gain);
    ref_load_vec(&b->w->layer[layer].k_norm, run.k_gain);
    cpu_each_row(b, cache_task, &run, t->rows);
    pool_run(b->pool, split_task, &run, t->rows * b->s->kv_heads * run.splits);
    cpu_each_row(b, combine_task, &run, t->rows);
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
    cpu_x_shape(&b->scratch.input, b->scratch.normed, n, n, b->batch->rows);
    cpu_each_row(b, gate_task, b, b->batch->rows);
    cpu_linear job = {&b->w->layer[layer].attn_out, &b->scratch.input, b->buf[BUF_RESIDUAL], b->s->hidden, CPU_ADD};
    cpu_run_linear(b, &job, 1);
}

void cpu_attention_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens) {
    const size_t bytes = (size_t)tokens * D * (b->limits.kv == CALLA_KV_F32 ? 4 : 2);
    for (uint32_t layer = 0; layer < b->s->layers; layer++) {
        if (!b->s->is_attention[layer]) continue;
        for (uint32_t v = 0; v < 2; v++)
            for (uint32_t h = 0; h < b->s->kv_heads; h++) memcpy(kv_page(b, layer, dst, v, h), kv_page(b, layer, src, v, h), bytes);
    }
}

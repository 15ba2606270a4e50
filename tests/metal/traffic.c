#include "metal/traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal.h"
#include "backend/vtables.h"
#include "base/float.h"
#include "base/memory.h"
#include "base/random.h"
#include "metal/full_size.h"
#include "model/model.h"
#include "watch.h"

/* Of a layer's gains, and of an embedding: what threadgroups of products of few rows share. */
enum { VECTOR_BYTES = 4 * 2048 + 1152 };
enum { LAYERS = 4, GROUP_ROWS = 64, NARROW_BYTES = 1 << 20, NARROW_THREADGROUPS = 128 };
static const bool kinds[LAYERS] = {false, false, true, true};

struct traffic_model {
    weights w;
    model_plan plan;
    backend *b;
    int32_t *ids;
    uint32_t *positions, *segment_of, *pages;
};

static void must(calla_status status, const calla_error *err) {
    if (!status) return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static uint8_t next_random(void) {
    static uint32_t at;
    return (uint8_t)(random_uniform(7, 0, at++) * 256);
}

static void fill_random(backend *b, const metal_mat *m, uint32_t first_row, uint32_t rows) {
    uint8_t *codes = metal_weight_host(b, m->codes) + (uint64_t)first_row * m->cols * m->bits / 8;
    uint16_t *scales = (uint16_t *)(void *)metal_weight_host(b, m->scales) + (uint64_t)first_row * m->groups;
    uint16_t *biases = (uint16_t *)(void *)metal_weight_host(b, m->biases) + (uint64_t)first_row * m->groups;
    const float middle = (float)((1u << m->bits) - 1) / 2;
    for (uint64_t i = 0; i < (uint64_t)rows * m->cols * m->bits / 8; i++) codes[i] = next_random();
    for (uint64_t i = 0; i < (uint64_t)rows * m->groups; i++) scales[i] = float_to_bf16(1 / middle), biases[i] = float_to_bf16(-1);
}

static void fill_ones(backend *b, uint64_t address, uint32_t n) {
    float *v = (float *)(void *)metal_weight_host(b, address);
    for (uint32_t i = 0; i < n; i++) v[i] = 1;
}

static void *array(size_t n, size_t element) {
    void *p = calloc(n, element);
    if (!p) abort();
    return p;
}

traffic_model *traffic_open(uint32_t rows, uint32_t positions) {
    traffic_model *m = array(1, sizeof *m);
    calla_error err = {0};
    const model_options o = {.backend = &metal_vtable,
                             .batch_rows = rows,
                             .max_segments = 1,
                             .max_wanted = 1,
                             .sequences = 1,
                             .kv_tokens = positions,
                             .kv = CALLA_KV_BF16};
    m->w = full_size(LAYERS, kinds);
    model_plan_compute(&m->w.shape, &o, &m->plan);
    must(metal_vtable.open(&m->w, &m->plan.limits, &m->b, &err), &err);
    must(metal_vtable.allocate(m->b, m->plan.bytes, &err), &err);
    fill_random(m->b, &m->b->weights.embed, 0, rows);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const metal_layer *l = &m->b->weights.layer[i];
        fill_random(m->b, &l->router.mat[0], 0, l->router.mat[0].rows);
        fill_ones(m->b, l->norm_moe, m->w.shape.hidden);
    }
    m->ids = array(rows, sizeof *m->ids);
    m->positions = array(rows, sizeof *m->positions);
    m->segment_of = array(rows, sizeof *m->segment_of);
    m->pages = array(m->plan.limits.pages, sizeof *m->pages);
    for (uint32_t i = 0; i < m->plan.limits.pages; i++) m->pages[i] = i;
    return m;
}

void traffic_close(traffic_model *m) {
    metal_vtable.close(m->b);
    full_size_free(&m->w);
    free(m->ids);
    free(m->positions);
    free(m->segment_of);
    free(m->pages);
    free(m);
}

/* ---- which threadgroups do alike ---- */

static uint32_t positions_now, rows_now;

/* Not in the list: what is cheap, and the router (in 8 bits), on whose result the traffic of others depends; nor attention of a row with so
 * few positions that some of its splits are empty. */
static simt_sample sampler(const simt_dispatch *d) {
    static const struct {
        const char *kernel;
        simt_sample sample;
    } alike[] = {{"step_linear_q4", {0, 1}},
                 {"step_embed_linear_q4", {0, 1}},
                 {"step_swiglu_q4", {0, 1}},
                 {"step_experts_in", {0, 1}},
                 {"step_experts_out", {0, 1}},
                 {"step_head", {0, 1}},
                 {"step_attention_k", {0, 1}},
                 {"gemm_q4", {0, 1}},
                 {"gemm_narrow_q4", {0, 1}},
                 {"gemm_swiglu", {0, 1}},
                 {"expert_gemm", {0, 1}},
                 {"expert_combine", {0, 1}},
                 {"gdn_scan", {0, 8}} /* the parts of the two value heads of a key head */,
                 {"gdn_chunks", {1, 1}}};
    if (positions_now < METAL_MAX_SPLITS * METAL_SPLIT_POSITIONS && !strncmp(d->kernel, "step_attention_k", 16)) return (simt_sample){0, 0};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        if (!strncmp(d->kernel, alike[i].kernel, strlen(alike[i].kernel))) return alike[i].sample;
    return (simt_sample){0, 0};
}

/* ---- counting ---- */

static traffic_result *counting;

static simt_sample look_at_grid(const simt_dispatch *d) {
    const uint64_t threadgroups = (uint64_t)d->threadgroups[0] * d->threadgroups[1] * d->threadgroups[2];
    if (threadgroups < NARROW_THREADGROUPS && !counting->narrow[0]) {
        snprintf(counting->narrow, sizeof counting->narrow, "%s", d->kernel);
        counting->narrow_threadgroups = threadgroups;
    }
    return (simt_sample){0, SIMT_NONE};
}

static uint32_t part_now;

/* Of products of few rows, whose weights each lane multiplies: a group of 64 weights is 36 or 68 bytes.  Attention of a row: a value of K or V,
 * in two bytes, meets 8 heads.  The delta rule takes 7 operations for each value of the state. */
static uint64_t flops_of(const simt_dispatch_traffic *t, uint64_t weight_bytes, uint64_t cache_bytes, uint64_t state_bytes) {
    if (t->matrix_products) return t->matrix_products * 2 * 8 * 8 * 8;
    return weight_bytes / (strstr(t->kernel, "_q8") ? 68 : 36) * 2 * 64 + cache_bytes / 2 * 2 * 8 + state_bytes / 4 * 7;
}

/* Of a prompt's short pieces, which have too few rows to share out.  Gate and up of the shared expert have 512 outputs: smaller tiles would
 * dequantize each weight more than once for 64 rows, and inputs cut in parts would have to be added up before SiLU.  Chunks of 32 rows are the delta net's
 * unit, and attention would read its queries again for each part of so few positions. */
static bool has_little_to_share(const char *kernel) {
    static const struct {
        const char *kernel;
        uint32_t rows; /* up to so many */
    } few[] = {{"gemm_swiglu_narrow_", 192}, {"gdn_conv", 31}, {"gdn_chunks", 223}, {"attention_k", 247}};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (rows_now > METAL_STEP_ROWS && rows_now <= few[i].rows && !strncmp(kernel, few[i].kernel, strlen(few[i].kernel))) return true;
    return false;
}

static void note(const simt_dispatch_traffic *t) {
    traffic *p = &counting->part[strcmp(t->kernel, "embed") != 0 ? part_now : FIRST_LAYER];
    uint64_t weight_bytes = 0, cache_bytes = 0, state_bytes = 0, all = 0;
    for (uint32_t i = 0; i < t->buffers; i++) {
        const simt_traffic *b = &t->buffer[i];
        all += b->reads + b->writes;
        if (!strcmp(b->label, "weights")) {
            weight_bytes += strstr(t->kernel, "gemm") ? b->group_reads : b->reads;
            counting->again |= !strstr(t->kernel, "gemm") && b->group_reads > b->reads + t->threadgroups * VECTOR_BYTES;
        } else if (!strcmp(b->label, "keys and values")) {
            cache_bytes += b->group_reads;
            p->cache += b->group_reads + b->writes;
            p->cache_once += b->reads;
        } else if (!strcmp(b->label, "states")) {
            state_bytes += b->group_reads;
            p->states += b->group_reads + b->writes;
        } else
            p->rest += b->reads + b->writes;
    }
    p->weights += weight_bytes;
    p->flops += flops_of(t, weight_bytes, cache_bytes, state_bytes);
    p->dispatches++;
    if (part_now < HEAD_PART && (!strncmp(t->kernel, "step_experts_out", 16) || !strcmp(t->kernel, "expert_combine"))) part_now++;
    if (all <= NARROW_BYTES || t->threadgroups >= NARROW_THREADGROUPS) return;
    counting->idle_bytes += all * (NARROW_THREADGROUPS - t->threadgroups) / t->threadgroups;
    if (!counting->narrow[0] && !has_little_to_share(t->kernel)) {
        snprintf(counting->narrow, sizeof counting->narrow, "%s", t->kernel);
        counting->narrow_bytes = all;
        counting->narrow_threadgroups = t->threadgroups;
    }
}

static void count_expert_rows(const traffic_model *m, uint32_t rows, traffic_result *r) {
    const uint32_t *expert = (const uint32_t *)(const void *)m->b->buf[BUF_ROUTE_EXPERT].host, experts = m->w.shape.experts;
    uint32_t *of = array(experts, sizeof *of);
    for (uint32_t i = 0; i < rows * m->w.shape.top_k; i++) of[expert[i]]++;
    r->expert_rows = r->expert_blocks = 0;
    for (uint32_t e = 0; e < experts; e++) {
        r->expert_rows += of[e];
        r->expert_blocks += (of[e] + GROUP_ROWS - 1) / GROUP_ROWS;
    }
    free(of);
}

static void run_step(traffic_model *m, const row_batch *t, uint32_t first, uint32_t end) {
    const backend_vtable *vt = &metal_vtable;
    calla_error err = {0};
    must(vt->begin(m->b, t, &err), &err);
    vt->embed(m->b);
    if (first) metal_flush(m->b); /* else it is part of the first layer */
    for (uint32_t layer = first; layer < end; layer++) {
        vt->mixer_in(m->b, layer);
        vt->mixer(m->b, layer);
        vt->mixer_out(m->b, layer);
        vt->route(m->b, layer);
        vt->expert_in(m->b, layer);
        vt->expert_out(m->b, layer);
    }
    if (end == LAYERS) vt->head(m->b);
    metal_flush(m->b);
    must(vt->finish(m->b, &err), &err);
}

traffic_result traffic_count(traffic_model *m, const traffic_step *step) {
    traffic_result r = {.narrow = ""};
    const uint32_t rows = step->rows, end = step->position + rows, last_row = rows - 1, last_position = end - 1, zero = 0;
    const batch_segment segment = {
        .rows = rows, .first_position = step->position, .slot_src = 0, .slot_dst = 1, .pages = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS};
    batch_segment last_segment = segment;
    for (uint32_t i = 0; i < rows; i++) m->positions[i] = step->position + i;
    for (uint32_t i = 0; i < rows; i++) m->ids[i] = (int32_t)(step->tokens ? i % step->tokens : i);
    row_batch t = {.rows = rows,
                   .segments = 1,
                   .wanted = step->wanted,
                   .ids = m->ids,
                   .positions = m->positions,
                   .segment_of = m->segment_of,
                   .segment = &segment,
                   .page_table = m->pages,
                   .wanted_row = &last_row};
    row_batch last = t; /* as model.c describes it */
    last_segment.rows = last.rows = step->wanted;
    last_segment.first_position = last_position;
    last.ids = NULL;
    last.positions = &last_position;
    last.segment_of = last.wanted_row = &zero;
    last.segment = &last_segment;
    if (rows > 1) t.last = &last;
    counting = &r;
    part_now = step->first;
    positions_now = end;
    rows_now = rows;
    simt_watch_each = step->grids ? NULL : note;
    simt_sampler = step->grids ? look_at_grid : step->whole ? NULL : sampler;
    run_step(m, &t, step->first, step->end);
    simt_watch_each = NULL;
    simt_sampler = NULL;
    if (rows > METAL_STEP_ROWS && step->end < LAYERS) count_expert_rows(m, rows, &r); /* of the layer before the last */
    return r;
}

static void add(traffic *sum, const traffic *t, uint64_t times) {
    sum->weights += times * t->weights;
    sum->cache += times * t->cache;
    sum->states += times * t->states;
    sum->rest += times * t->rest;
    sum->flops += times * t->flops;
    sum->cache_once += times * t->cache_once;
    sum->dispatches += times * t->dispatches;
}

traffic traffic_of_model(const traffic_result *r) {
    static const uint64_t times[TRAFFIC_PARTS] = {1, 29, 9, 1, 1};
    traffic sum = {0};
    for (int i = 0; i < TRAFFIC_PARTS; i++) add(&sum, &r->part[i], times[i]);
    return sum;
}

uint64_t traffic_bytes(const traffic *t) { return t->weights + t->cache + t->states + t->rest; }

static uint64_t layer_bytes(const layer_weights *l, bool attention, const model_shape *s) {
    const weight_mat *const of_both[] = {&l->router, &l->shared_router, &l->shared_gate, &l->shared_up, &l->shared_down};
    const weight_mat *const of_attention[] = {&l->q, &l->k, &l->v, &l->attn_out};
    const weight_mat *const of_delta[] = {&l->in_qkv, &l->in_z, &l->in_a, &l->in_b, &l->gdn_out};
    uint64_t bytes =
        (weight_mat_bytes(&l->expert_gate) + weight_mat_bytes(&l->expert_up) + weight_mat_bytes(&l->expert_down)) / s->experts * s->top_k;
    for (size_t i = 0; i < 5; i++) bytes += weight_mat_bytes(of_both[i]);
    for (size_t i = 0; attention && i < 4; i++) bytes += weight_mat_bytes(of_attention[i]);
    for (size_t i = 0; !attention && i < 5; i++) bytes += weight_mat_bytes(of_delta[i]);
    return bytes;
}

uint64_t traffic_least_of_token(uint32_t positions) {
    weights w = full_size(40, NULL);
    const model_shape *s = &w.shape;
    const uint64_t of_cache = (uint64_t)s->attention_layers * 2 * shape_kv_values(s) * 2 * positions;
    const uint64_t of_states = (uint64_t)s->gdn_layers * 2 * sizeof(float) *
                               ((uint64_t)shape_gdn_values(s) * GDN_HEAD_DIM + (uint64_t)CONV_HISTORY * shape_conv_channels(s));
    uint64_t bytes = weight_mat_bytes(&w.lm_head) + of_cache + of_states;
    for (uint32_t i = 0; i < s->layers; i++) bytes += layer_bytes(&w.layer[i], s->is_attention[i], s);
    full_size_free(&w);
    return bytes;
}

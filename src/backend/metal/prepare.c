/* prepare.c: what each op consists of: kernels, grids, arguments, for few rows and for many; all of it before the first step.
 *
 * The arguments of every dispatch of every layer lie in one buffer that is never changed.  A call's grid depends on the batch only through
 * the extents of metal_extent. */
#include <stdio.h>
#include <string.h>

#include "backend/metal/metal.h"
#include "base/memory.h"

enum { CALLS_OF_A_LAYER = 64, MOST_ARGUMENTS = 512, MOST_READ_BYTES = 1 << 30 };

typedef struct builder {
    backend *b;
    const model_shape *s;
    calla_error *err;
    calla_status status;
    uint32_t layer;
    const metal_layer *l;
    metal_program *program; /* under way */
    bool barrier;           /* before the next call */
    bool whole;
} builder;

static metal_program *program_of(const backend *b, uint32_t layer, metal_op op, metal_path path) {
    return &b->prepared.program[((uint64_t)layer * OP_COUNT + op) * PATHS + path];
}

static void start(builder *u, metal_op op, metal_path path) {
    u->program = program_of(u->b, u->layer, op, path);
    *u->program = (metal_program){u->b->prepared.n_calls, 0};
    u->barrier = u->whole = false;
}

static uint64_t add_arguments(builder *u, const void *arguments, size_t bytes) {
    metal_prepared *p = &u->b->prepared;
    const uint64_t here = p->arguments_used;
    memcpy(p->arguments.host + here, arguments, bytes);
    p->arguments_used += (bytes + METAL_ARGUMENTS_ALIGN - 1) / METAL_ARGUMENTS_ALIGN * METAL_ARGUMENTS_ALIGN;
    return here;
}

static uint32_t kernel(builder *u, const char *name, uint32_t threads) {
    uint32_t index = 0;
    if (!u->status) u->status = gpu_kernel(u->b->gpu, name, threads, &index, u->err);
    return index;
}

static const char *format_of(const metal_mat *m) { return m->bits == 4 ? "_q4" : m->bits == 8 ? "_q8" : "_b16"; }

/* A call of kernel `name` + `format` for any number of rows. */
static metal_call *call(builder *u, const char *name, const char *format, uint32_t threads, const void *arguments, size_t bytes) {
    metal_prepared *p = &u->b->prepared;
    char whole[96];
    snprintf(whole, sizeof whole, "%s%s", name, format);
    const uint32_t k = kernel(u, whole, threads);
    metal_call *c = &p->calls[p->n_calls++];
    *c = (metal_call){.kernel = {k, k}, .threads = threads, .grid = {1, 1, 1}, .barrier = u->barrier, .whole = u->whole};
    c->arguments = add_arguments(u, arguments, bytes);
    u->program->n++;
    u->barrier = false;
    return c;
}

/* A call of a kernel for few rows, with its two instances. */
static metal_call *step_call(builder *u, const char *name, const metal_mat *m, uint32_t threads, const void *arguments, size_t bytes) {
    char one[32], more[32];
    snprintf(one, sizeof one, "%s_r1", format_of(m));
    snprintf(more, sizeof more, "%s_r8", format_of(m));
    metal_call *c = call(u, name, one, threads, arguments, bytes);
    char whole[96];
    snprintf(whole, sizeof whole, "%s%s", name, more);
    c->kernel[1] = kernel(u, whole, threads);
    return c;
}

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

static uint64_t address(const backend *b, buffer_id id) { return b->buf[id].address; }

static uint64_t shared_weight(const backend *b) {
    return address(b, BUF_SHARED) + (uint64_t)b->limits.rows * b->s->shared_width * sizeof(float);
}

/* ---- inputs ---- */

static metal_input norm_input(const backend *b, uint64_t gain) {
    return (metal_input){
        .source = METAL_NORM, .x = address(b, BUF_RESIDUAL), .x_stride = b->s->hidden, .gain = gain, .eps = b->s->norm_eps};
}

/* What the output projection takes: the mixer's output through its gate. */
static metal_input mixed_input(const builder *u) {
    const backend *b = u->b;
    const bool attention = u->s->is_attention[u->layer];
    metal_input in = {.source = attention ? METAL_GATED : METAL_GATED_NORM,
                      .x = address(b, BUF_MIXER_OUT),
                      .x_stride = shape_mixer_out_values(u->s),
                      .gate = address(b, BUF_MIXER_IN),
                      .gate_stride = shape_mixer_in_values(u->s),
                      .eps = u->s->norm_eps};
    in.gate += sizeof(float) * (attention ? HEAD_DIM : shape_conv_channels(u->s));
    if (!attention) in.gain = u->l->gdn_norm;
    return in;
}

/* ---- few rows ---- */

static metal_call *few_linear(builder *u, const metal_mat *w, const metal_input *in, uint64_t out, uint32_t stride, bool add) {
    const metal_linear_args a = {.w = *w, .in = *in, .out = out, .out_stride = stride, .add = add};
    metal_call *c = step_call(u, "step_linear", w, METAL_LINEAR_THREADS, &a, sizeof a);
    c->grid[0] = blocks(w->rows, METAL_LINEAR_OUTPUTS);
    return c;
}

static void few_parts(builder *u, const metal_parts *parts) {
    const metal_input in = norm_input(u->b, u->l->norm_mixer);
    for (uint32_t i = 0; i < parts->n; i++)
        few_linear(u, &parts->mat[i], &in, address(u->b, BUF_MIXER_IN) + parts->column[i] * sizeof(float), shape_mixer_in_values(u->s),
                   false);
}

static void few_embed_mixer_in(builder *u) {
    const metal_input in = norm_input(u->b, u->l->norm_mixer);
    start(u, OP_EMBED_MIXER_IN, FEW_ROWS);
    for (uint32_t i = 0; i < u->l->mixer_in.n; i++) {
        const metal_mat *w = &u->l->mixer_in.mat[i];
        const metal_embed_linear_args a = {.linear = {.w = *w,
                                                      .in = in,
                                                      .out = address(u->b, BUF_MIXER_IN) + u->l->mixer_in.column[i] * sizeof(float),
                                                      .out_stride = shape_mixer_in_values(u->s)},
                                           .embed = u->b->weights.embed,
                                           .residual = i ? 0 : address(u->b, BUF_RESIDUAL)};
        metal_call *c = step_call(u, "step_embed_linear", w, METAL_LINEAR_THREADS, &a, sizeof a);
        c->threadgroup_bytes = METAL_TG_EMBED;
        c->grid[0] = blocks(w->rows, METAL_LINEAR_OUTPUTS);
    }
}

static void step_gdn(builder *u, const metal_gdn_args *a) {
    metal_call *c = call(u, "step_gdn", "", METAL_GDN_THREADS, a, sizeof *a);
    c->threadgroup_bytes = METAL_TG_GDN;
    c->grid[0] = u->s->gdn_value_heads * (GDN_HEAD_DIM / METAL_GDN_COLUMNS);
    c->by[1] = BY_SEGMENTS;
    if (a->beyond == METAL_SEGMENT_ROWS) c->when = IF_SHORT;
}

static metal_gdn_args gdn_args(const builder *u) {
    const backend *b = u->b;
    const model_shape *s = u->s;
    const uint64_t slots = (uint64_t)s->kind_index[u->layer] * b->limits.slots;
    return (metal_gdn_args){.conv = u->l->conv,
                            .decay = u->l->decay,
                            .dt_bias = u->l->dt_bias,
                            .in = address(b, BUF_MIXER_IN),
                            .out = address(b, BUF_MIXER_OUT),
                            .state = address(b, BUF_STATE) + slots * shape_gdn_values(s) * GDN_HEAD_DIM * sizeof(float),
                            .window = address(b, BUF_CONV) + slots * CONV_HISTORY * shape_conv_channels(s) * sizeof(float),
                            .scratch = b->scratch.gdn,
                            .in_stride = shape_mixer_in_values(s),
                            .out_stride = shape_mixer_out_values(s),
                            .key_heads = s->gdn_key_heads,
                            .value_heads = s->gdn_value_heads,
                            .channels = shape_conv_channels(s),
                            .first = 1,
                            .beyond = UINT32_MAX};
}

static const char *kv_format(const backend *b) {
    static const char *const names[] = {[CALLA_KV_BF16] = "_kb16", [CALLA_KV_F32] = "_kf32", [CALLA_KV_Q8] = "_kq8"};
    return names[b->limits.kv];
}

static metal_attention_args attention_args(const builder *u) {
    const backend *b = u->b;
    const model_shape *s = u->s;
    const uint64_t layer_bytes = (uint64_t)b->limits.pages * 2 * s->kv_heads * kv_block_bytes(b->limits.kv);
    return (metal_attention_args){.in = address(b, BUF_MIXER_IN),
                                  .out = address(b, BUF_MIXER_OUT),
                                  .q_gain = u->l->q_norm,
                                  .k_gain = u->l->k_norm,
                                  .kv = address(b, BUF_KV) + s->kind_index[u->layer] * layer_bytes,
                                  .partial = b->scratch.partial,
                                  .in_stride = shape_mixer_in_values(s),
                                  .out_stride = shape_mixer_out_values(s),
                                  .heads = s->attention_heads,
                                  .kv_heads = s->kv_heads,
                                  .first = 1,
                                  .beyond = UINT32_MAX,
                                  .half_queries = b->limits.fast,
                                  .norm_eps = s->norm_eps};
}

static metal_call *attention_write(builder *u, const metal_attention_args *a) {
    metal_call *c = call(u, "attention_write", kv_format(u->b), 32, a, sizeof *a);
    c->grid[0] = a->heads + 2 * a->kv_heads;
    c->by[1] = BY_ROWS;
    return c;
}

static void step_attention(builder *u, const metal_attention_args *a, metal_when when) {
    metal_call *c = call(u, "step_attention", kv_format(u->b), METAL_ATTENTION_THREADS, a, sizeof *a);
    c->threadgroup_bytes = METAL_TG_ATTENTION;
    c->by[0] = BY_SPLITS;
    c->grid[1] = a->kv_heads;
    c->by[2] = BY_SHORT_ROWS;
    c->when = (uint8_t)when;
}

static void combine_call(builder *u, const char *name, const metal_attention_args *a, metal_extent by, metal_when when) {
    metal_call *c = call(u, name, "", METAL_COMBINE_THREADS, a, sizeof *a);
    c->threadgroup_bytes = METAL_TG_COMBINE;
    c->grid[0] = a->heads * METAL_COMBINE_PARTS;
    c->by[1] = (uint8_t)by;
    c->when = (uint8_t)when;
}

static void attention_combine(builder *u, const metal_attention_args *a, metal_when when) {
    combine_call(u, "step_attention_combine", a, BY_SHORT_ROWS, when);
}

static void few_attention(builder *u) {
    metal_attention_args a = attention_args(u);
    attention_write(u, &a)->when = IF_NOT_SINGLE;
    u->barrier = true;
    step_attention(u, &a, IF_NOT_SINGLE);
    a.write = 1;
    step_attention(u, &a, IF_SINGLE);
    u->barrier = true;
    attention_combine(u, &a, ALWAYS);
}

static metal_experts_args experts_args(const builder *u) {
    const backend *b = u->b;
    return (metal_experts_args){.gate = u->l->gate,
                                .up = u->l->up,
                                .down = u->l->down,
                                .shared_down = u->l->shared_down,
                                .moe_in = address(b, BUF_MOE_IN),
                                .logits = b->scratch.router_logits,
                                .expert = address(b, BUF_ROUTE_EXPERT),
                                .weight = address(b, BUF_ROUTE_WEIGHT),
                                .shared = address(b, BUF_SHARED),
                                .shared_weight = shared_weight(b),
                                .places = address(b, BUF_EXPERT),
                                .residual = address(b, BUF_RESIDUAL),
                                .experts = u->s->experts,
                                .top_k = u->s->top_k};
}

static void choose(builder *u) {
    const metal_experts_args a = experts_args(u);
    metal_call *c = call(u, "route", "", 32, &a, sizeof a);
    c->by[0] = BY_ROWS;
}

/* The router's logits; its first product also leaves the normed rows for the experts. */
static void few_router(builder *u) {
    metal_input in = norm_input(u->b, u->l->norm_moe);
    in.normed = address(u->b, BUF_MOE_IN);
    for (uint32_t i = 0; i < u->l->router.n; i++, in.normed = 0)
        few_linear(u, &u->l->router.mat[i], &in, u->b->scratch.router_logits + u->l->router.column[i] * sizeof(float), u->s->experts + 1,
                   false);
}

static void few_route(builder *u) {
    const metal_swiglu_args a = {.gate = u->l->shared_gate,
                                 .up = u->l->shared_up,
                                 .in = norm_input(u->b, u->l->norm_moe),
                                 .out = address(u->b, BUF_SHARED),
                                 .out_stride = u->s->shared_width};
    few_router(u);
    metal_call *c = step_call(u, "step_swiglu", &a.gate, METAL_SWIGLU_THREADS, &a, sizeof a);
    c->grid[0] = blocks(a.gate.rows, METAL_SWIGLU_OUTPUTS);
}

static void few_experts(builder *u) {
    const metal_experts_args a = experts_args(u);
    start(u, OP_EXPERT_IN, FEW_ROWS);
    metal_call *c = step_call(u, "step_experts_in", &a.gate, METAL_LINEAR_THREADS, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_EXPERTS_IN;
    c->grid[0] = blocks(a.gate.rows, METAL_EXPERT_OUTPUTS);
    c->grid[1] = a.top_k;
    c->by[2] = BY_ROWS;
    start(u, OP_EXPERT_OUT, FEW_ROWS);
    c = step_call(u, "step_experts_out", &a.down, METAL_LINEAR_THREADS, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_EXPERTS_OUT;
    c->grid[0] = blocks(a.down.rows, METAL_DOWN_OUTPUTS);
}

static void few_layer(builder *u) {
    start(u, OP_MIXER_IN, FEW_ROWS);
    few_parts(u, &u->l->mixer_in);
    if (u->layer == 0 && !metal_turned_off(u->b, WITHOUT_FUSED_EMBEDDING)) few_embed_mixer_in(u);
    start(u, OP_MIXER, FEW_ROWS);
    const metal_gdn_args gdn = gdn_args(u);
    if (u->s->is_attention[u->layer])
        few_attention(u);
    else
        step_gdn(u, &gdn);
    start(u, OP_MIXER_OUT, FEW_ROWS);
    const metal_input mixed = mixed_input(u);
    few_linear(u, &u->l->mixer_out, &mixed, address(u->b, BUF_RESIDUAL), u->s->hidden, true);
    start(u, OP_ROUTE, FEW_ROWS);
    few_route(u);
    start(u, OP_CHOOSE, FEW_ROWS);
    choose(u);
    few_experts(u);
}

/* ---- many rows ---- */

static void rows_input(builder *u, const metal_input *in, uint64_t out, uint32_t cols) {
    const metal_rows_args a = {.in = *in, .out = out, .cols = cols};
    metal_call *c = call(u, "rows_input", "", 256, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_ROWS;
    c->by[0] = BY_ROWS;
    c->by[1] = BY_ROW_PARTS;
}

static const char *precision_of(const backend *b, bool wide) { return wide && b->tensor ? "_tensor" : b->limits.fast ? "_fast" : "_exact"; }

/* The wide GEMM, or where its grid would be small the narrow one. */
static void gemm_calls(builder *u, const char *name, uint32_t outputs, const metal_gemm_args *a) {
    const uint32_t wide = blocks(a->w.rows, outputs);
    for (int narrow = 0; narrow < 2; narrow++) {
        char whole[64], format[32];
        snprintf(format, sizeof format, "%s%s", format_of(&a->w), precision_of(u->b, !narrow));
        snprintf(whole, sizeof whole, "%s%s", name, narrow ? "_narrow" : "");
        metal_call *c = call(u, whole, format, narrow ? METAL_NARROW_THREADS : METAL_GEMM_THREADS, a, sizeof *a);
        c->threadgroup_bytes = narrow ? METAL_TG_NARROW : METAL_TG_GEMM;
        c->grid[0] = narrow ? blocks(a->w.rows, METAL_NARROW_OUTPUTS) : wide;
        c->by[1] = BY_GEMM_ROWS;
        c->when = narrow ? IF_NARROW : IF_WIDE; /* a barrier before the wide one holds for either */
        c->wide = wide;
        if (a->in_parts) c->by[2] = BY_ROUTER_PARTS;
    }
}

static void gemm(builder *u, const metal_mat *w, uint64_t x, uint32_t x_stride, uint64_t out, uint32_t out_stride, bool add,
                 uint64_t scale) {
    const metal_gemm_args a = {.w = *w, .x = x, .out = out, .scale = scale, .x_stride = x_stride, .out_stride = out_stride, .add = add};
    gemm_calls(u, "gemm", METAL_GEMM_OUTPUTS, &a);
}

static void many_norm(builder *u, uint64_t gain) {
    const metal_input in = norm_input(u->b, gain);
    rows_input(u, &in, address(u->b, BUF_MOE_IN), u->s->hidden);
}

static void many_parts(builder *u, const metal_parts *parts, uint64_t out, uint32_t stride) {
    for (uint32_t i = 0; i < parts->n; i++)
        gemm(u, &parts->mat[i], address(u->b, BUF_MOE_IN), u->s->hidden, out + parts->column[i] * sizeof(float), stride, false, 0);
}

static void many_gdn(builder *u) {
    metal_gdn_args a = gdn_args(u);
    a.beyond = METAL_SEGMENT_ROWS;
    step_gdn(u, &a);
    a.first = METAL_SEGMENT_ROWS;
    a.beyond = UINT32_MAX;
    metal_call *c = call(u, "gdn_conv", "", 32, &a, sizeof a);
    c->by[0] = BY_GDN_CHUNKS;
    c->grid[1] = a.channels / GDN_HEAD_DIM;
    c->when = IF_LONG;
    u->barrier = true;
    c = call(u, "gdn_chunks", "", 128, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_GDN_CHUNKS;
    c->by[0] = BY_GDN_CHUNKS;
    c->grid[1] = a.key_heads;
    c->when = IF_LONG;
    u->barrier = true;
    c = call(u, "gdn_scan", "", 256, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_GDN_SCAN;
    c->grid[0] = a.value_heads * (GDN_HEAD_DIM / 32);
    c->by[1] = BY_SEGMENTS;
    c->when = IF_LONG;
}

static uint32_t most_cuts(const backend_limits *n) { return blocks(METAL_TILES(n->rows, n->segments), METAL_CUT_TILES); }

/* Attention of short and of long segments; K and V, and in `queries` the queries, are written already. */
static void many_attend(builder *u, metal_attention_args *a) {
    char format[32];
    snprintf(format, sizeof format, "%s%s", kv_format(u->b), precision_of(u->b, true));
    u->barrier = true;
    step_attention(u, a, IF_SHORT);
    metal_attention_args of_long = *a;
    of_long.first = METAL_SEGMENT_ROWS;
    of_long.partial = u->b->scratch.long_partial;
    metal_call *c = call(u, "attention", format, METAL_PREFILL_THREADS, &of_long, sizeof of_long);
    c->threadgroup_bytes = METAL_TG_PREFILL;
    c->by[0] = BY_TILES;
    c->by[2] = BY_LONG_SPLITS;
    c->grid[1] = a->kv_heads;
    c->when = IF_LONG;
    c->cut = true;
    for (uint32_t i = 1; i < most_cuts(&u->b->limits); i++) {
        of_long.first_tile = i * METAL_CUT_TILES;
        add_arguments(u, &of_long, sizeof of_long);
    }
    of_long.first_tile = 0;
    u->barrier = true;
    attention_combine(u, a, IF_SHORT);
    combine_call(u, "attention_combine", &of_long, BY_ROWS, IF_LONG_SPLIT);
}

static void many_attention(builder *u) {
    metal_attention_args a = attention_args(u);
    a.queries = u->b->scratch.queries;
    attention_write(u, &a);
    many_attend(u, &a);
}

static void many_mixer_out(builder *u) {
    const metal_input in = mixed_input(u);
    const uint32_t cols = u->l->mixer_out.cols;
    start(u, OP_MIXER_OUT, MANY_ROWS);
    rows_input(u, &in, u->b->scratch.gated, cols);
    u->barrier = true;
    gemm(u, &u->l->mixer_out, u->b->scratch.gated, cols, address(u->b, BUF_RESIDUAL), u->s->hidden, true, 0);
}

static metal_expert_gemm_args expert_gemm_args(const builder *u) {
    const backend *b = u->b;
    return (metal_expert_gemm_args){.gate = u->l->gate,
                                    .up = u->l->up,
                                    .down = u->l->down,
                                    .moe_in = address(b, BUF_MOE_IN),
                                    .expert = address(b, BUF_ROUTE_EXPERT),
                                    .weight = address(b, BUF_ROUTE_WEIGHT),
                                    .first = b->scratch.first,
                                    .place = b->scratch.place,
                                    .places = address(b, BUF_EXPERT),
                                    .partial = b->scratch.expert_out,
                                    .residual = address(b, BUF_RESIDUAL),
                                    .experts = u->s->experts,
                                    .top_k = u->s->top_k};
}

static void many_router(builder *u) {
    const metal_parts *router = &u->l->router;
    for (uint32_t i = 0; i < router->n; i++) {
        const metal_gemm_args a = {.w = router->mat[i],
                                   .x = address(u->b, BUF_MOE_IN),
                                   .out = u->b->scratch.router_logits + router->column[i] * sizeof(float),
                                   .x_stride = u->s->hidden,
                                   .out_stride = u->s->experts + 1,
                                   .in_parts = 1};
        gemm_calls(u, "gemm", METAL_GEMM_OUTPUTS, &a);
    }
}

static void many_route(builder *u) {
    const metal_expert_gemm_args lists = expert_gemm_args(u);
    const metal_gemm_args shared = {.w = u->l->shared_gate,
                                    .up = u->l->shared_up,
                                    .x = address(u->b, BUF_MOE_IN),
                                    .out = address(u->b, BUF_SHARED),
                                    .x_stride = u->s->hidden,
                                    .out_stride = u->s->shared_width};
    start(u, OP_ROUTE, MANY_ROWS);
    many_norm(u, u->l->norm_moe);
    u->barrier = true;
    many_router(u);
    gemm_calls(u, "gemm_swiglu", METAL_SWIGLU_GEMM_OUTPUTS, &shared);
    u->barrier = true;
    choose(u);
    u->barrier = true;
    metal_call *c = call(u, "expert_lists", "", METAL_LISTS_THREADS, &lists, sizeof lists);
    c->threadgroup_bytes = METAL_TG_LISTS;
    c->grid[0] = u->s->experts;
}

static void many_expert_gemm(builder *u, const char *name, const metal_mat *m, uint32_t outputs) {
    const metal_expert_gemm_args a = expert_gemm_args(u);
    char format[32];
    snprintf(format, sizeof format, "%s%s", format_of(m), precision_of(u->b, true));
    metal_call *c = call(u, name, format, METAL_GEMM_THREADS, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_GEMM;
    c->grid[0] = blocks(m->rows, outputs);
    c->grid[1] = a.experts;
}

static void many_experts(builder *u) {
    const metal_expert_gemm_args a = expert_gemm_args(u);
    start(u, OP_EXPERT_IN, MANY_ROWS);
    many_expert_gemm(u, "expert_gemm_in", &a.gate, METAL_SWIGLU_GEMM_OUTPUTS);
    start(u, OP_EXPERT_OUT, MANY_ROWS);
    many_expert_gemm(u, "expert_gemm_out", &a.down, METAL_GEMM_OUTPUTS);
    gemm(u, &u->l->shared_down, address(u->b, BUF_SHARED), u->s->shared_width, address(u->b, BUF_RESIDUAL), u->s->hidden, true,
         shared_weight(u->b));
    u->barrier = true;
    metal_call *c = call(u, "expert_combine", "", METAL_SUM_VALUES / 4, &a, sizeof a);
    c->by[0] = BY_ROWS;
    c->grid[1] = blocks(u->s->hidden, METAL_SUM_VALUES);
}

/* The last layer: K and V of all rows, then only the wanted ones, moved together in the residual; `path`: how many these are. */
static void last_layer(builder *u, metal_path path) {
    const uint32_t H = u->s->hidden;
    const metal_gather_args gather = {.x = address(u->b, BUF_RESIDUAL), .out = u->b->scratch.gathered, .cols = H};
    const metal_input gathered = {.source = METAL_PLAIN, .x = u->b->scratch.gathered, .x_stride = H};
    const uint64_t mixer_in = address(u->b, BUF_MIXER_IN);
    start(u, OP_LAST_IN, path);
    u->whole = true;
    many_norm(u, u->l->norm_mixer);
    metal_call *c = call(u, "gather_rows", "", 256, &gather, sizeof gather);
    c->by[0] = BY_WANTED;
    u->barrier = true;
    many_parts(u, &u->l->cached, mixer_in, shape_mixer_in_values(u->s));
    u->whole = false;
    rows_input(u, &gathered, address(u->b, BUF_RESIDUAL), H);
    u->barrier = true;
    if (path == FEW_ROWS) {
        few_parts(u, &u->l->query);
    } else {
        many_norm(u, u->l->norm_mixer);
        u->barrier = true;
        many_parts(u, &u->l->query, mixer_in, shape_mixer_in_values(u->s));
    }

    metal_attention_args a = attention_args(u);
    start(u, OP_LAST_MIXER, path);
    u->whole = true;
    attention_write(u, &a);
    u->whole = false;
    a.queries = u->b->scratch.queries;
    if (path == MANY_ROWS) attention_write(u, &a)->grid[0] = a.heads; /* queries alone */
    many_attend(u, &a);
}

static void many_layer(builder *u) {
    start(u, OP_MIXER_IN, MANY_ROWS);
    many_norm(u, u->l->norm_mixer);
    u->barrier = true;
    many_parts(u, &u->l->mixer_in, address(u->b, BUF_MIXER_IN), shape_mixer_in_values(u->s));
    start(u, OP_MIXER, MANY_ROWS);
    if (u->s->is_attention[u->layer])
        many_attention(u);
    else
        many_gdn(u);
    many_mixer_out(u);
    many_route(u);
    many_experts(u);
    if (u->layer + 1 < u->s->layers || !u->s->is_attention[u->layer]) return;
    last_layer(u, FEW_ROWS);
    last_layer(u, MANY_ROWS);
}

/* ---- embedding and head ---- */

static void embed(builder *u, metal_path path) {
    const metal_embed_args a = {.w = u->b->weights.embed, .residual = address(u->b, BUF_RESIDUAL)};
    start(u, OP_EMBED, path);
    metal_call *c = call(u, "embed", "", 256, &a, sizeof a);
    c->by[0] = BY_ROWS;
}

/* Of few wanted rows, with the best token of each. */
static void few_head(builder *u, metal_path path) {
    const backend *b = u->b;
    const metal_head_args a = {.w = b->weights.head, .in = norm_input(b, b->weights.final_norm), .logits = address(b, BUF_LOGITS)};
    start(u, OP_HEAD, path);
    metal_call *c = step_call(u, "step_head", &a.w, METAL_LINEAR_THREADS, &a, sizeof a);
    c->threadgroup_bytes = METAL_TG_HEAD;
    c->grid[0] = METAL_HEAD_GROUPS;
}

/* Of many wanted rows the logits alone, and the host looks through them. */
static void many_head(builder *u) {
    const backend *b = u->b;
    const uint32_t H = u->s->hidden;
    const metal_gather_args gather = {.x = address(b, BUF_RESIDUAL), .out = b->scratch.gathered, .cols = H};
    metal_input in = norm_input(b, b->weights.final_norm);
    in.x = b->scratch.gathered;
    start(u, OP_MANY_HEAD, MANY_ROWS);
    metal_call *c = call(u, "gather_rows", "", 256, &gather, sizeof gather);
    c->by[0] = BY_WANTED;
    u->barrier = true;
    rows_input(u, &in, address(b, BUF_MOE_IN), H);
    u->barrier = true;
    gemm(u, &b->weights.head, address(b, BUF_MOE_IN), H, address(b, BUF_LOGITS), b->weights.head.rows, false, 0);
}

/* The first of the weights' memories, which are larger than any cache; nothing is allocated, since there may be no room. */
static void read_memory(builder *u) {
    const metal_memory *m = &u->b->weights.memory[0];
    const uint64_t bytes = m->bytes < MOST_READ_BYTES ? m->bytes : MOST_READ_BYTES;
    const metal_read_args a = {.data = m->address, .sum = u->b->scratch.partial, .n = (uint32_t)(bytes / METAL_READ_BYTES)};
    start(u, OP_READ, FEW_ROWS);
    metal_call *c = call(u, "read_memory", "", METAL_READ_THREADS, &a, sizeof a);
    c->grid[0] = METAL_READ_GROUPS;
    u->b->read_bytes = (uint64_t)a.n * METAL_READ_BYTES;
}

static bool reserve(builder *u) {
    backend *b = u->b;
    metal_prepared *p = &b->prepared;
    p->most_calls = CALLS_OF_A_LAYER * (b->s->layers + 1);
    p->calls = mem_array(p->most_calls, sizeof *p->calls);
    p->program = mem_calloc((uint64_t)b->s->layers * OP_COUNT * PATHS, sizeof *p->program);
    if (!p->calls || !p->program) {
        u->status = error_nomem(u->err, "the list of Metal dispatches");
        return false;
    }
    const uint64_t cuts = (uint64_t)(b->s->attention_layers + 2) * most_cuts(&b->limits); /* the last layer's attention is there thrice */
    u->status = gpu_allocate(b->gpu, p->most_calls * MOST_ARGUMENTS + cuts * METAL_ARGUMENTS_ALIGN, "the arguments of dispatches",
                             &p->arguments, u->err);
    return !u->status;
}

calla_status metal_prepare(backend *b, calla_error *err) {
    builder u = {.b = b, .s = b->s, .err = err};
    const bool many = b->limits.rows > METAL_STEP_ROWS;
    if (!reserve(&u)) return u.status;
    read_memory(&u);
    embed(&u, FEW_ROWS);
    few_head(&u, FEW_ROWS);
    if (many) {
        embed(&u, MANY_ROWS);
        few_head(&u, MANY_ROWS);
        many_head(&u);
    }
    for (u.layer = 0; u.layer < b->s->layers && !u.status; u.layer++) {
        u.l = &b->weights.layer[u.layer];
        few_layer(&u);
        if (many) many_layer(&u);
    }
    return u.status;
}

void metal_prepared_free(backend *b) {
    gpu_release(b->gpu, &b->prepared.arguments);
    mem_free(b->prepared.calls);
    mem_free(b->prepared.program);
}

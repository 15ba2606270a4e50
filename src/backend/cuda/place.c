/* place.c: where on the device each weight and each scratch buffer lies.  Pure arithmetic: allocates nothing but the table of layers. */
#include "backend/cuda/cuda.h"
#include "base/memory.h"

enum { ALIGN = 256 };

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

typedef struct placer {
    uint8_t *base; /* NULL: only measure */
    uint64_t at;
    calla_error *err;
    calla_status status;
} placer;

static void *take(placer *p, uint64_t bytes) {
    void *here = p->base ? p->base + p->at : NULL;
    p->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

static float *take_vec(placer *p, uint32_t n) { return take(p, (uint64_t)n * sizeof(float)); }

static uint32_t subs_of(const weight_mat *m) { return m->bits != 16 && m->group == 32 ? 2 : 1; }

/* A matrix on the device with `rows` outputs in the format of m. */
static cuda_mat take_mat_rows(placer *p, const weight_mat *m, uint32_t rows) {
    cuda_mat out = {.count = m->count,
                    .rows = rows,
                    .cols = m->cols,
                    .row_tiles = (rows + 15) / 16,
                    .col_tiles = (m->cols + 63) / 64,
                    .bits = m->bits,
                    .subs = subs_of(m)};
    const uint64_t tiles = (uint64_t)m->count * out.row_tiles * out.col_tiles;
    if (m->cols > STEP_MAX_COLS || m->cols % 32)
        p->status =
            error_set(p->err, CALLA_E_UNSUPPORTED,
                      "a matrix of %u inputs; the cuda backend takes multiples of 32 up to %d: use --device cpu", m->cols, STEP_MAX_COLS);
    out.codes = take(p, tiles * cuda_tile_bytes(m->bits));
    if (m->bits != 16) out.scales = take(p, tiles * out.subs * 16 * sizeof(uint32_t));
    return out;
}

static cuda_mat take_mat(placer *p, const weight_mat *m) { return take_mat_rows(p, m, m->rows); }

/* Neighbours of one format become one matrix; all but the last must fill their tiles of 16 outputs. */
static cuda_parts take_parts(placer *p, const weight_mat *const *m, uint32_t n) {
    cuda_parts out = {0};
    for (uint32_t i = 0, column = 0; i < n;) {
        uint32_t rows = m[i]->rows, end = i + 1;
        while (end < n && m[end]->bits == m[i]->bits && subs_of(m[end]) == subs_of(m[i]) && rows % 16 == 0) rows += m[end++]->rows;
        out.mat[out.n] = take_mat_rows(p, m[i], rows);
        out.column[out.n++] = column;
        column += rows;
        i = end;
    }
    return out;
}

cuda_mat cuda_rows_of_mat(cuda_mat m, uint32_t first, uint32_t end) {
    const uint64_t tiles = (uint64_t)(first / 16) * m.col_tiles;
    m.codes += tiles * cuda_tile_bytes(m.bits) / sizeof *m.codes;
    if (m.scales) m.scales += tiles * m.subs * 16;
    m.rows = end - first;
    m.row_tiles = (m.rows + 15) / 16;
    return m;
}

/* The routers in one matrix where they have one format: the shared expert's logit is then one more output of the products of prompts. */
static void place_routers(placer *p, const layer_weights *l, cuda_layer *out) {
    const weight_mat *const m[] = {&l->router, &l->shared_router};
    const uint32_t experts = l->router.rows;
    out->routers = take_parts(p, m, 2);
    if (!p->base) return;
    out->router = cuda_rows_of_mat(out->routers.mat[0], 0, experts);
    out->shared_router = out->routers.n == 2 ? out->routers.mat[1] : cuda_rows_of_mat(out->routers.mat[0], experts, experts + 1);
}

static void place_mixer(placer *p, const model_shape *s, const layer_weights *l, bool attention, cuda_layer *out) {
    if (attention) {
        const weight_mat *const in[] = {&l->q, &l->k, &l->v};
        out->mixer_in = take_parts(p, in, 3);
        out->mixer_out = take_mat(p, &l->attn_out);
        out->q_norm = take_vec(p, HEAD_DIM);
        out->k_norm = take_vec(p, HEAD_DIM);
        return;
    }
    const weight_mat *const in[] = {&l->in_qkv, &l->in_z, &l->in_a, &l->in_b};
    out->mixer_in = take_parts(p, in, 4);
    out->mixer_out = take_mat(p, &l->gdn_out);
    out->gdn = (cuda_gdn_weights){.conv = take_vec(p, shape_conv_channels(s) * CONV_WIDTH),
                                  .decay = take_vec(p, s->gdn_value_heads),
                                  .dt_bias = take_vec(p, s->gdn_value_heads),
                                  .norm = take_vec(p, GDN_HEAD_DIM),
                                  .key_heads = s->gdn_key_heads,
                                  .value_heads = s->gdn_value_heads,
                                  .norm_eps = s->norm_eps};
}

calla_status cuda_place_weights(backend *b, void *memory, calla_error *err) {
    const model_shape *s = b->s;
    placer p = {.base = memory, .err = err};
    cuda_weights *w = &b->weights;
    if (!w->layer && !(w->layer = mem_calloc(s->layers, sizeof *w->layer))) return error_nomem(err, "the table of layers");
    w->embed = take_mat(&p, &b->w->embed);
    w->head = take_mat(&p, &b->w->lm_head);
    w->final_norm = take_vec(&p, s->hidden);
    w->rotary_rate = take(&p, ROTARY_DIM / 2 * sizeof(double));
    for (uint32_t i = 0; i < s->layers; i++) {
        const layer_weights *l = &b->w->layer[i];
        cuda_layer *out = &w->layer[i];
        out->norm_mixer = take_vec(&p, s->hidden);
        out->norm_moe = take_vec(&p, s->hidden);
        place_mixer(&p, s, l, s->is_attention[i], out);
        place_routers(&p, l, out);
        out->shared_gate = take_mat(&p, &l->shared_gate);
        out->shared_up = take_mat(&p, &l->shared_up);
        out->shared_down = take_mat(&p, &l->shared_down);
        out->gate = take_mat(&p, &l->expert_gate);
        out->up = take_mat(&p, &l->expert_up);
        out->down = take_mat(&p, &l->expert_down);
    }
    w->memory = memory;
    w->bytes = p.at;
    return p.status;
}

uint64_t cuda_place_scratch(const model_shape *s, const backend_limits *n, uint8_t *base, cuda_scratch *out) {
    placer p = {.base = base};
    cuda_scratch c = {0};
    const uint64_t rows = n->rows;
    c.rotary = take(&p, rows * ROTARY_DIM * 4);
    c.router_logits = take(&p, rows * (s->experts + 1) * 4);
    c.partial = take(&p, step_attention_partial_floats(s->attention_heads) * 4);
    c.squares = take(&p, rows * s->gdn_value_heads * GDN_PARTS * 4);
    c.best = take(&p, (uint64_t)n->wanted * STEP_HEAD_BLOCKS * 8);
    c.picked = take(&p, (uint64_t)n->samples * 4);
    c.gathered = take(&p, (uint64_t)n->wanted * s->hidden * 4);
    c.last_rotary = take(&p, (uint64_t)n->wanted * ROTARY_DIM * 4);
    c.adjusted = take(&p, (uint64_t)n->samples * s->vocabulary * 4);
    c.span_largest = take(&p, (uint64_t)n->samples * SAMPLING_SPANS * 4);
    c.span_weights = take(&p, (uint64_t)n->samples * SAMPLING_SPANS * sizeof *c.span_weights);
    c.counters_n = n->rows + n->rows * s->kv_heads * STEP_MAX_GROUP + 1;
    c.counters = take(&p, (uint64_t)c.counters_n * 4);
    if (n->fast && n->rows >= CUDA_PROMPT_ROWS) {
        const uint64_t places = rows * s->top_k;
        c.input = take(&p, rows * s->hidden * 2);
        c.mixed = take(&p, rows * max_u32(shape_mixer_out_values(s), s->hidden) * 2);
        c.queries = take(&p, rows * shape_query_values(s) * 2);
        c.shared = take(&p, rows * s->shared_width * 2);
        c.experts = take(&p, places * s->expert_width * 2);
        c.expert_partial = take(&p, cuda_expert_partial_bytes(n->rows, s->top_k, s->hidden));
        c.gdn = take(&p, cuda_gdn_scratch_bytes(s->gdn_key_heads, s->gdn_value_heads, n->rows));
        c.lists.first = take(&p, ((uint64_t)s->experts + 1) * 4);
        c.lists.place = take(&p, places * 4);
        c.lists.slot_of = take(&p, places * 4);
        c.lists.blocks = take(&p, cuda_expert_block_bytes(s->experts, n->rows, s->top_k));
    }
    if (out) *out = c;
    return p.at;
}

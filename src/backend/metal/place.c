/* place.c: where each weight and each scratch buffer lies.  Pure arithmetic: allocates nothing but the table of layers.
 *
 * Weights keep the file's order of bits.  They are spread over several memories, since one may not be larger than the device says; a
 * matrix's codes, scales and biases lie in one each.
 *
 * A file whose matrices all stand at multiples of 256 already is used where it is mapped, but for those that are joined with their
 * neighbours.  The published ones are not: their data begin at odd addresses. */
#include "backend/metal/metal.h"
#include "base/memory.h"

enum { ALIGN = 256 };
static const uint64_t MOST_MEMORY_BYTES = UINT64_C(4) << 30; /* smaller ones are easier to find room for */

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

typedef struct placer {
    const backend *b;
    metal_weights *w;
    uint64_t limit, at, total;
    uint32_t memory;
    calla_error *err;
    calla_status status;
} placer;

static uint64_t take(placer *p, uint64_t bytes) {
    bytes = aligned(bytes);
    if (p->at && p->at + bytes > p->limit) p->memory++, p->at = 0;
    if (bytes > p->limit || p->memory == METAL_MOST_WEIGHT_MEMORIES) {
        if (!p->status)
            p->status = error_set(p->err, CALLA_E_UNSUPPORTED,
                                  "the GPU takes no more than %.2f GB in one piece, and a matrix has %.2f; use --device cpu",
                                  (double)p->limit / 1e9, (double)bytes / 1e9);
        return 0;
    }
    metal_memory *m = &p->w->memory[p->memory];
    const uint64_t here = m->address + p->at;
    p->at += bytes;
    p->total += bytes;
    if (!m->object) m->bytes = p->at;
    return here;
}

static uint64_t take_vec(placer *p, uint32_t n) { return take(p, (uint64_t)n * sizeof(float)); }

/* Of `rows` outputs in the format of m; it lies nowhere yet. */
static metal_mat shaped(placer *p, const weight_mat *m, uint32_t rows) {
    if ((m->cols > METAL_MAX_COLS || m->cols % 32) && !p->status)
        p->status =
            error_set(p->err, CALLA_E_UNSUPPORTED,
                      "a matrix of %u inputs; the metal backend takes multiples of 32 up to %d: use --device cpu", m->cols, METAL_MAX_COLS);
    return (metal_mat){
        .count = m->count, .rows = rows, .cols = m->cols, .bits = m->bits, .group = m->group, .groups = (uint32_t)weight_row_groups(m)};
}

static metal_mat take_rows(placer *p, const weight_mat *m, uint32_t rows) {
    metal_mat out = shaped(p, m, rows);
    const uint64_t all = (uint64_t)m->count * rows;
    out.codes = take(p, all * weight_row_bytes(m));
    if (m->bits == 16) return out;
    out.scales = take(p, all * out.groups * 2);
    out.biases = take(p, all * out.groups * 2);
    return out;
}

static metal_mat take_mat(placer *p, const weight_mat *m) {
    const metal_file *f = metal_file_of(p->b, m);
    if (!f) return take_rows(p, m, m->rows);
    const uint64_t base = f->memory.address;
    metal_mat out = shaped(p, m, m->rows);
    out.codes = base + (uint64_t)(m->codes - f->data);
    if (m->bits == 16) return out;
    out.scales = base + (uint64_t)(m->scales - f->data);
    out.biases = base + (uint64_t)(m->biases - f->data);
    return out;
}

static bool same_format(const weight_mat *a, const weight_mat *b) { return a->bits == b->bits && a->group == b->group; }

static metal_parts take_parts(placer *p, const weight_mat *const *m, uint32_t n) {
    metal_parts out = {.n = 0};
    for (uint32_t i = 0, column = 0; i < n;) {
        uint32_t rows = m[i]->rows, end = i + 1;
        while (end < n && same_format(m[end], m[i])) rows += m[end++]->rows;
        out.mat[out.n] = take_rows(p, m[i], rows);
        out.column[out.n++] = column;
        column += rows;
        i = end;
    }
    return out;
}

/* Columns first … first + n - 1 of the output. */
static metal_parts part_of(const metal_parts *all, uint32_t first, uint32_t n) {
    metal_parts out = {.n = 0};
    for (uint32_t i = 0; i < all->n; i++) {
        const uint32_t begin = all->column[i], end = begin + all->mat[i].rows;
        const uint32_t from = first > begin ? first : begin, to = first + n < end ? first + n : end;
        if (from >= to) continue;
        metal_mat m = all->mat[i];
        const uint64_t skip = from - begin;
        m.rows = to - from;
        m.codes += skip * m.cols * m.bits / 8;
        if (m.scales) m.scales += skip * m.groups * 2, m.biases += skip * m.groups * 2;
        out.mat[out.n] = m;
        out.column[out.n++] = from;
    }
    return out;
}

static void place_mixer(placer *p, const model_shape *s, const layer_weights *l, bool attention, metal_layer *out) {
    if (attention) {
        const weight_mat *const in[] = {&l->q, &l->k, &l->v};
        out->mixer_in = take_parts(p, in, 3);
        out->query = part_of(&out->mixer_in, 0, l->q.rows);
        out->cached = part_of(&out->mixer_in, l->q.rows, l->k.rows + l->v.rows);
        out->mixer_out = take_mat(p, &l->attn_out);
        out->q_norm = take_vec(p, HEAD_DIM);
        out->k_norm = take_vec(p, HEAD_DIM);
        return;
    }
    const weight_mat *const in[] = {&l->in_qkv, &l->in_z, &l->in_a, &l->in_b};
    out->mixer_in = take_parts(p, in, 4);
    out->mixer_out = take_mat(p, &l->gdn_out);
    out->conv = take_vec(p, shape_conv_channels(s) * CONV_WIDTH);
    out->decay = take_vec(p, s->gdn_value_heads);
    out->dt_bias = take_vec(p, s->gdn_value_heads);
    out->gdn_norm = take_vec(p, GDN_HEAD_DIM);
}

calla_status metal_place_weights(backend *b, calla_error *err) {
    const model_shape *s = b->s;
    metal_weights *w = &b->weights;
    placer p = {.b = b, .w = w, .err = err, .limit = b->facts.largest_buffer_bytes / ALIGN * ALIGN};
    if (p.limit > MOST_MEMORY_BYTES) p.limit = MOST_MEMORY_BYTES;
    if (!w->layer && !(w->layer = mem_calloc(s->layers, sizeof *w->layer))) return error_nomem(err, "the table of layers");
    w->embed = take_mat(&p, &b->w->embed);
    w->head = take_mat(&p, &b->w->lm_head);
    w->final_norm = take_vec(&p, s->hidden);
    for (uint32_t i = 0; i < s->layers; i++) {
        const layer_weights *l = &b->w->layer[i];
        metal_layer *out = &w->layer[i];
        const weight_mat *const routers[] = {&l->router, &l->shared_router};
        out->norm_mixer = take_vec(&p, s->hidden);
        out->norm_moe = take_vec(&p, s->hidden);
        place_mixer(&p, s, l, s->is_attention[i], out);
        out->router = take_parts(&p, routers, 2);
        out->shared_gate = take_mat(&p, &l->shared_gate);
        out->shared_up = take_mat(&p, &l->shared_up);
        out->shared_down = take_mat(&p, &l->shared_down);
        out->gate = take_mat(&p, &l->expert_gate);
        out->up = take_mat(&p, &l->expert_up);
        out->down = take_mat(&p, &l->expert_down);
    }
    w->memories = p.memory + 1;
    w->bytes = p.total + metal_bytes_in_place(w);
    return p.status;
}

uint8_t *metal_weight_host(backend *b, uint64_t address) {
    for (uint32_t i = 0; i < b->weights.memories; i++) {
        const metal_memory *m = &b->weights.memory[i];
        if (address >= m->address && address - m->address < m->bytes) return m->host + (address - m->address);
    }
    return NULL;
}

static uint64_t take_scratch(metal_scratch *c, uint64_t base, uint64_t bytes) {
    const uint64_t here = base + c->bytes;
    c->bytes += aligned(bytes);
    return here;
}

/* In parts: those beyond the first are at most MAX - 1, and fill fewer than LEAST tiles, which is where cutting ends. */
static uint64_t router_values(const model_shape *s, uint64_t rows) {
    const uint64_t one = rows * (s->experts + 1), most = METAL_LEAST_THREADGROUPS * METAL_NARROW_OUTPUTS * METAL_GEMM_ROWS;
    if (rows <= METAL_STEP_ROWS) return one;
    return one + ((METAL_MAX_ROUTER_PARTS - 1) * one < most ? (METAL_MAX_ROUTER_PARTS - 1) * one : most);
}

void metal_place_scratch(const model_shape *s, const backend_limits *n, uint64_t base, metal_scratch *out) {
    const uint64_t rows = n->rows, places = rows * s->top_k, partials = rows > METAL_MOST_PARTIALS ? rows : METAL_MOST_PARTIALS;
    const uint64_t long_partials = METAL_MOST_PARTIALS + (rows < METAL_MOST_PARTIALS ? rows : METAL_MOST_PARTIALS);
    metal_scratch c = {.bytes = 0};
    c.router_logits = take_scratch(&c, base, router_values(s, rows) * 4);
    c.partial = take_scratch(&c, base, partials * s->attention_heads * METAL_PARTIAL * 4);
    c.gathered = take_scratch(&c, base, (uint64_t)n->wanted * s->hidden * 4);
    if (rows > METAL_STEP_ROWS) {
        c.gated = take_scratch(&c, base, rows * shape_mixer_out_values(s) * 4);
        c.long_partial = take_scratch(&c, base, long_partials * s->attention_heads * METAL_PARTIAL * 4);
        c.queries = take_scratch(&c, base, METAL_QUERIES(rows, s->attention_heads) * 4);
        c.gdn = take_scratch(&c, base, METAL_GDN_SCRATCH(n->rows, n->segments, s->gdn_key_heads, s->gdn_value_heads));
        c.first = take_scratch(&c, base, ((uint64_t)s->experts + 1) * 4);
        c.place = take_scratch(&c, base, places * 4);
        c.expert_out = take_scratch(&c, base, places * s->hidden * 4);
    }
    *out = c;
}

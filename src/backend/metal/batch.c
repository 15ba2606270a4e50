/* batch.c: the descriptor of a step, written into memory that the device reads.
 *
 * A ring of two slots, so that a step can be described while the one before is under way, and can name its tokens.  A slot holds up to
 * three descriptors: of all rows, of the wanted rows alone (row_batch.last), and of the head, whose rows are the wanted ones. */
#include <string.h>

#include "backend/metal/metal.h"
#include "backend/ref/plain.h"

enum { ALIGN = 256, STEPS = 3, ROTARY_BYTES = ROTARY_DIM * sizeof(float) };

typedef struct rows_at { /* offsets of what describes rows */
    uint64_t ids, positions, segment_of, segment, wanted_row, short_row, rotary;
} rows_at;

typedef struct layout {
    uint64_t step[STEPS], best, mask, page_table, bytes;
    rows_at all, last;
} layout;

static uint32_t blocks(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

static uint64_t take(uint64_t *at, uint64_t bytes) {
    const uint64_t here = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

static rows_at take_rows(uint64_t *at, uint32_t rows, uint32_t segments, uint32_t wanted) {
    rows_at r;
    r.ids = take(at, (uint64_t)rows * 4);
    r.positions = take(at, (uint64_t)rows * 4);
    r.segment_of = take(at, (uint64_t)rows * 4);
    r.segment = take(at, segments * sizeof(metal_segment));
    r.wanted_row = take(at, (uint64_t)wanted * 4);
    r.short_row = take(at, (uint64_t)rows * 4);
    r.rotary = take(at, (uint64_t)rows * ROTARY_BYTES);
    return r;
}

static layout lay_out(const model_shape *s, const backend_limits *n) {
    layout l;
    uint64_t at = 0;
    for (int i = 0; i < STEPS; i++) l.step[i] = take(&at, sizeof(metal_step));
    l.all = take_rows(&at, n->rows, n->segments, n->wanted);
    l.last = take_rows(&at, n->wanted, n->segments, n->wanted);
    l.best = take(&at, sizeof(metal_best) * METAL_HEAD_GROUPS * METAL_STEP_ROWS);
    l.mask = take(&at, sizeof(uint32_t) * METAL_MASK_WORDS((uint64_t)s->vocabulary) * METAL_STEP_ROWS);
    l.page_table = take(&at, (uint64_t)n->segments * n->pages * 4); /* may be long and mostly empty */
    l.bytes = at;
    return l;
}

uint64_t metal_ring_slot_bytes(const model_shape *s, const backend_limits *n) { return lay_out(s, n).bytes; }

static uint64_t slot(const backend *b, uint32_t at) { return b->ring.slot_bytes * at; }

const metal_best *metal_batch_best(const backend *b, uint32_t at) {
    return (const metal_best *)(const void *)(b->ring.memory.host + slot(b, at) + lay_out(b->s, &b->limits).best);
}

/* An id for the device: -1 - w names wanted row w of the step before, whose token the host need not know. */
static int32_t device_id(const backend *b, int32_t id) {
    if (id >= 0) return id;
    const uint32_t sample = (uint32_t)(-1 - id);
    if (b->best_of[sample] != UINT32_MAX) return -1 - (int32_t)b->best_of[sample];
    return b->results[sample].id < 0 ? 0 : b->results[sample].id;
}

static void write_segments(metal_segment *to, const row_batch *t) {
    for (uint32_t i = 0; i < t->segments; i++) {
        const batch_segment *s = &t->segment[i];
        to[i] = (metal_segment){s->first_row, s->rows, s->first_position, s->slot_src, s->slot_dst, s->first_page, s->pages};
    }
}

/* Blocks of about least_positions.  Where that would be some three eighths of the most there can be, all of them: with fewer than 128
 * threadgroups (of two K/V heads) part of a large device is idle while it reads what is a megabyte by then, partial sums included. */
static uint32_t count_splits(uint32_t positions, uint32_t most, uint32_t least_positions) {
    uint32_t splits = (positions + least_positions - 1) / least_positions;
    if (8 * splits >= 3 * METAL_MAX_SPLITS) splits = METAL_MAX_SPLITS;
    if (splits > most) splits = most;
    return splits < METAL_MAX_SPLITS ? splits : METAL_MAX_SPLITS;
}

/* Rows of short segments, or of few rows all; and what a view says of them. */
static void list_short_rows(const row_batch *t, uint32_t *row, metal_view *v) {
    uint32_t positions = 1, long_positions = 1;
    v->single = true;
    for (uint32_t g = 0; g < t->segments; g++) {
        const batch_segment *s = &t->segment[g];
        v->single &= s->rows <= 1;
        if (v->path == MANY_ROWS && s->rows >= METAL_SEGMENT_ROWS) {
            v->any_long = true;
            if (s->first_position + s->rows > long_positions) long_positions = s->first_position + s->rows;
            continue;
        }
        for (uint32_t i = 0; i < s->rows; i++) {
            const uint32_t seen = t->positions[s->first_row + i] + 1;
            row[v->short_rows++] = s->first_row + i;
            positions = seen > positions ? seen : positions;
        }
    }
    v->splits = count_splits(positions, v->short_rows && v->short_rows < METAL_MOST_PARTIALS ? METAL_MOST_PARTIALS / v->short_rows : 1,
                             METAL_SPLIT_POSITIONS);
    v->long_positions = long_positions;
    v->long_splits = count_splits(long_positions, t->rows ? blocks(METAL_MOST_PARTIALS, t->rows) : 1, METAL_LONG_SPLIT_POSITIONS);
}

/* As many parts as give the router's few outputs enough threadgroups; each has some of the inputs. */
static uint32_t count_router_parts(const model_shape *s, uint32_t rows) {
    const uint32_t tiles = blocks(s->experts + 1, METAL_NARROW_OUTPUTS) * blocks(rows, METAL_GEMM_ROWS), chunks = s->hidden / 32;
    const uint32_t parts = blocks(METAL_LEAST_THREADGROUPS, tiles),
                   most = chunks < METAL_MAX_ROUTER_PARTS ? chunks : METAL_MAX_ROUTER_PARTS;
    return parts < most ? parts : most;
}

static void write_rotary(const backend *b, const row_batch *t, float *to) {
    for (uint32_t r = 0; r < t->rows; r++, to += ROTARY_DIM) ref_rope_angles(t->positions[r], b->s->rope_theta, to, to + ROTARY_DIM / 2);
}

static void copy(uint8_t *to, const void *from, uint64_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

const sample_request *metal_batch_request(const row_batch *t, uint32_t wanted) {
    for (uint32_t i = 0; i < t->samples; i++)
        if (t->sample_of[i] == wanted && t->sample[i].tokens == t->sample[0].tokens) return &t->sample[i];
    return NULL;
}

/* The masks of the wanted rows, each at its row's place; returns the bits of the rows that have one.  For many wanted rows the host picks:
 * none is written. */
static uint32_t write_masks(const row_batch *t, uint32_t *to) {
    uint32_t masked = 0;
    for (uint32_t w = 0; w < t->wanted && t->wanted <= METAL_STEP_ROWS; w++) {
        const sample_request *r = metal_batch_request(t, w);
        if (!r || !r->mask) continue;
        const uint64_t words = METAL_MASK_WORDS((uint64_t)r->tokens);
        memcpy(to + w * words, r->mask, words * sizeof *to);
        masked |= 1u << w;
    }
    return masked;
}

/* Descriptor `step` of the slot for batch t, its arrays at r. */
static metal_view write_view(const backend *b, const row_batch *t, const layout *l, const rows_at *r, uint32_t step, uint32_t masked) {
    const uint64_t base = slot(b, b->ring.at), device = b->ring.memory.address + base;
    uint8_t *host = b->ring.memory.host + base;
    metal_view v = {.step = base + l->step[step],
                    .rows = t->rows,
                    .segments = t->segments,
                    .wanted = t->wanted,
                    .path = t->rows > METAL_STEP_ROWS ? MANY_ROWS : FEW_ROWS,
                    .router_parts = 1};
    if (v.path == MANY_ROWS) v.router_parts = count_router_parts(b->s, t->rows);
    int32_t *ids = (int32_t *)(void *)(host + r->ids);
    for (uint32_t i = 0; t->ids && i < t->rows; i++) ids[i] = device_id(b, t->ids[i]);
    copy(host + r->positions, t->positions, (uint64_t)t->rows * 4);
    copy(host + r->segment_of, t->segment_of, (uint64_t)t->rows * 4);
    copy(host + r->wanted_row, t->wanted_row, (uint64_t)t->wanted * 4);
    write_segments((metal_segment *)(void *)(host + r->segment), t);
    write_rotary(b, t, (float *)(void *)(host + r->rotary));
    list_short_rows(t, (uint32_t *)(void *)(host + r->short_row), &v);
    const metal_step s = {.ids = device + r->ids,
                          .positions = device + r->positions,
                          .segment_of = device + r->segment_of,
                          .segment = device + r->segment,
                          .page_table = device + l->page_table,
                          .wanted_row = device + r->wanted_row,
                          .rotary = device + r->rotary,
                          .best_before = b->ring.memory.address + slot(b, (b->ring.at + 1) % METAL_RING) + l->best,
                          .best = device + l->best,
                          .short_row = device + r->short_row,
                          .mask = device + l->mask,
                          .rows = t->rows,
                          .segments = t->segments,
                          .wanted = t->wanted,
                          .tokens = t->samples ? t->sample[0].tokens : b->s->vocabulary, /* another one is sampled by the host */
                          .splits = v.splits,
                          .short_rows = v.short_rows,
                          .long_splits = v.long_splits,
                          .masked = masked,
                          .router_parts = v.router_parts};
    memcpy(host + l->step[step], &s, sizeof s);
    return v;
}

void metal_batch_forget(backend *b) { b->ring.at = (b->ring.at + METAL_RING - 1) % METAL_RING; }

void metal_batch_write(backend *b, const row_batch *t) {
    const layout l = lay_out(b->s, &b->limits);
    b->ring.at = (b->ring.at + 1) % METAL_RING;
    uint8_t *host = b->ring.memory.host + slot(b, b->ring.at);
    const batch_segment *end = &t->segment[t->segments - 1];
    copy(host + l.page_table, t->page_table, ((uint64_t)end->first_page + end->pages) * 4);
    const uint32_t masked = write_masks(t, (uint32_t *)(void *)(host + l.mask));
    b->whole = write_view(b, t, &l, &l.all, 0, masked);
    if (t->last && b->whole.path == MANY_ROWS) b->last = write_view(b, t->last, &l, &l.last, 1, masked);
    /* where the last layer has moved the wanted rows together (run.c), the head finds them there */
    const bool moved = t->last && b->whole.path == MANY_ROWS && b->s->is_attention[b->s->layers - 1];
    metal_step s;
    memcpy(&s, host + l.step[moved ? 1 : 0], sizeof s);
    b->head = moved ? b->last : b->whole;
    b->head.step = slot(b, b->ring.at) + l.step[2];
    s.rows = b->head.rows = t->wanted;
    memcpy(host + l.step[2], &s, sizeof s);
}

/* batch.c: the descriptor of a step, from the model's arrays into pinned memory and from there to fixed addresses on the device.  Behind it
 * may stand a second one, of the wanted rows alone (row_batch.last), with the same page table. */
#include <string.h>

#include "backend/cuda/cuda.h"

enum { ALIGN = 16 };

static uint64_t take(uint64_t *at, uint64_t bytes) {
    const uint64_t here = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

typedef struct layout { /* offsets; the page table, which may be long and mostly empty, comes last */
    uint64_t counts, ids, positions, segment_of, segment, wanted_row, sample_of, page_table, bytes;
} layout;

static layout lay_out(uint32_t rows, uint32_t segments, uint32_t wanted, uint32_t samples, uint64_t pages) {
    layout l;
    uint64_t at = 0;
    l.counts = take(&at, sizeof(cuda_counts));
    l.ids = take(&at, (uint64_t)rows * 4);
    l.positions = take(&at, (uint64_t)rows * 4);
    l.segment_of = take(&at, (uint64_t)rows * 4);
    l.segment = take(&at, segments * sizeof(batch_segment));
    l.wanted_row = take(&at, (uint64_t)wanted * 4);
    l.sample_of = take(&at, (uint64_t)samples * 4);
    l.page_table = take(&at, pages * 4);
    l.bytes = at;
    return l;
}

uint64_t cuda_batch_capacity(const backend_limits *n) {
    return lay_out(n->rows, n->segments, n->wanted, n->samples, (uint64_t)n->segments * n->pages).bytes +
           lay_out(CUDA_GRAPH_ROWS, CUDA_GRAPH_ROWS, CUDA_GRAPH_ROWS, CUDA_GRAPH_ROWS, 0).bytes +
           lay_out(n->wanted, n->segments, n->wanted, n->samples, 0).bytes;
}

static void put(backend *b, uint64_t at, const void *data, uint64_t bytes) {
    if (bytes) memcpy(b->host_batch + b->at * b->batch_bytes + at, data, bytes);
}

/* The arrays of t from offset `at` on; pages: of the page table, which a second descriptor leaves out. */
static cuda_batch put_batch(backend *b, const row_batch *t, const layout *l, uint64_t at, uint64_t pages) {
    cuda_counts counts = {.rows = t->rows, .segments = t->segments, .wanted = t->wanted, .samples = t->samples};
    counts.largest_at = b->at * b->limits.wanted;
    counts.tokens = b->s->vocabulary;
    if (t->samples) counts.tokens = t->sample[0].tokens; /* another one is sampled on the host */
    put(b, at + l->counts, &counts, sizeof counts);
    if (t->ids) put(b, at + l->ids, t->ids, (uint64_t)t->rows * 4);
    put(b, at + l->positions, t->positions, (uint64_t)t->rows * 4);
    put(b, at + l->segment_of, t->segment_of, (uint64_t)t->rows * 4);
    put(b, at + l->segment, t->segment, t->segments * sizeof *t->segment);
    put(b, at + l->wanted_row, t->wanted_row, (uint64_t)t->wanted * 4);
    put(b, at + l->sample_of, t->sample_of, (uint64_t)t->samples * 4);
    put(b, at + l->page_table, t->page_table, pages * 4);
    uint8_t *d = b->device_batch + at;
    return (cuda_batch){.counts = (const void *)(d + l->counts),
                        .ids = (const void *)(d + l->ids),
                        .positions = (const void *)(d + l->positions),
                        .segment_of = (const void *)(d + l->segment_of),
                        .segment = (const void *)(d + l->segment),
                        .page_table = (const void *)(d + l->page_table),
                        .wanted_row = (const void *)(d + l->wanted_row),
                        .sample_of = (const void *)(d + l->sample_of)};
}

void cuda_batch_send(backend *b, const row_batch *t) {
    /* addresses must not move while a graph lives: its batches all use the layout of the largest */
    const uint32_t least = b->decoding ? CUDA_GRAPH_ROWS : 0;
    const batch_segment *end = &t->segment[t->segments - 1];
    const uint64_t pages = (uint64_t)end->first_page + end->pages;
    const layout l = lay_out(t->rows > least ? t->rows : least, t->segments > least ? t->segments : least,
                             t->wanted > least ? t->wanted : least, t->samples > least ? t->samples : least, pages);
    uint64_t bytes = l.bytes;
    b->on_device = put_batch(b, t, &l, 0, pages);
    if (t->last) {
        const layout last = lay_out(t->wanted, t->segments, t->wanted, t->samples, 0);
        b->last_on_device = put_batch(b, t->last, &last, l.bytes, 0);
        b->last_on_device.page_table = b->on_device.page_table;
        bytes += last.bytes;
    }
    cuda_ok(b, cudaMemcpyAsync(b->device_batch, b->host_batch + b->at * b->batch_bytes, bytes, cudaMemcpyHostToDevice, b->stream));
}

/* populate.c: every page of the weights is read once while the model is loaded.
 *
 * The weights are used in place from the map.  Left alone, a page enters the process when a token first needs it, and with 256 experts a
 * layer that goes on for thousands of tokens: each first touch costs a page fault, on virtual machines a good deal more, and with a cold
 * page cache a random read from the disk.  Going through the file once in its order, on all threads, costs less than a second of such
 * touches and reads a cold file at the disk's full speed.
 *
 * A machine without room for all of it is left alone: the pages would push each other out. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/memory.h"

enum { PIECE = 4 << 20, PAGE = 4096 /* the smallest */ };

typedef struct range {
    uintptr_t begin, end;
} range;

typedef struct populate_run {
    range *piece; /* [n] by address; NULL while they are counted */
    uint32_t n, first;
    uintptr_t page;
} populate_run;

static void populate_task(void *context, uint32_t task, uint32_t thread) {
    populate_run *run = context;
    const range *r = &run->piece[run->first + task];
    (void)thread;
#ifdef MADV_POPULATE_READ
    const uintptr_t begin = r->begin / run->page * run->page;
    madvise((void *)begin, r->end - begin, MADV_POPULATE_READ); /* a hint: older kernels refuse */
#endif
    for (uintptr_t p = r->begin; p < r->end; p += PAGE) (void)*(const volatile uint8_t *)p;
}

/* Appends the pieces of [data, data + bytes). */
static void add(populate_run *run, const void *data, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        if (run->piece) {
            const uintptr_t begin = (uintptr_t)data + at;
            run->piece[run->n] = (range){begin, begin + (bytes - at < PIECE ? bytes - at : PIECE)};
        }
        run->n++;
    }
}

static void add_matrix(populate_run *run, const weight_mat *m) {
    const uint64_t rows = (uint64_t)m->count * m->rows;
    if (!m->codes) return; /* of the other kind of layer */
    add(run, m->codes, rows * weight_row_bytes(m));
    add(run, m->scales, rows * weight_row_groups(m) * 2);
    add(run, m->biases, rows * weight_row_groups(m) * 2);
}

static void add_all(populate_run *run, const weights *w) {
    add_matrix(run, &w->embed);
    if (w->lm_head.codes != w->embed.codes) add_matrix(run, &w->lm_head);
    for (uint32_t i = 0; i < w->shape.layers; i++) {
        const layer_weights *l = &w->layer[i];
        const weight_mat *const all[] = {&l->in_qkv,      &l->in_z,       &l->in_a,        &l->in_b,          &l->gdn_out,
                                         &l->q,           &l->k,          &l->v,           &l->attn_out,      &l->router,
                                         &l->expert_gate, &l->expert_up,  &l->expert_down, &l->shared_router, &l->shared_gate,
                                         &l->shared_up,   &l->shared_down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) add_matrix(run, all[j]);
    }
}

static int by_address(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

calla_status cpu_load(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err) {
    enum { AT_ONCE = 64 }; /* pieces between two reports */
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0 && (uint64_t)pages * (uint64_t)page < b->w->text_bytes + b->w->text_bytes / 16) return CALLA_OK;
    populate_run run = {.page = (uintptr_t)page};
    add_all(&run, b->w);
    const uint32_t n = run.n;
    if (!(run.piece = mem_array(n, sizeof *run.piece))) return error_nomem(err, "a list of the weights' pages");
    run.n = 0;
    add_all(&run, b->w);
    qsort(run.piece, n, sizeof *run.piece, by_address);
    uint64_t done = 0;
    for (run.first = 0; run.first < n; run.first += AT_ONCE) {
        const uint32_t some = n - run.first < AT_ONCE ? n - run.first : AT_ONCE;
        pool_run(b->pool, populate_task, &run, some);
        for (uint32_t i = run.first; i < run.first + some; i++) done += run.piece[i].end - run.piece[i].begin;
        if (progress) progress(user, done, b->w->text_bytes);
    }
    mem_free(run.piece);
    return CALLA_OK;
}

/* load.c: weights from their files to where they are computed with, by a few threads that read the disk for themselves.
 *
 * The map is not read: its pages would stay in memory beside the copy, and twice the weights do not fit.  Reads go past the system's cache
 * where it can be asked for that. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/metal/metal.h"
#include "backend/ref/plain.h"
#include "base/memory.h"

enum { WORKERS = 4, PIECE_BYTES = 8 << 20 };

typedef struct piece {
    const uint8_t *from; /* in the map: names file and offset */
    uint8_t *to;
    uint64_t bytes;
} piece;

typedef struct loader {
    backend *b;
    piece *pieces;
    size_t n;
    uint64_t total_bytes;
    _Atomic size_t next;
    _Atomic uint64_t done_bytes;
    _Atomic uint32_t working;
    _Atomic bool failed;
    pthread_mutex_t lock; /* of the error */
    calla_error error;
} loader;

/* ---- what to read ---- */

/* Pieces of one run of bytes; to NULL: only counted. */
static void add_bytes(loader *l, const uint8_t *from, uint8_t *to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES, l->n++)
        if (l->pieces) l->pieces[l->n] = (piece){from + at, to + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES};
    l->total_bytes += bytes;
}

/* m becomes the outputs from `row` on of a matrix. */
static void add_mat(loader *l, const weight_mat *m, const metal_mat *to, uint32_t row) {
    const uint64_t rows = (uint64_t)m->count * m->rows, groups = weight_row_groups(m) * 2;
    add_bytes(l, m->codes, metal_weight_host(l->b, to->codes + row * weight_row_bytes(m)), rows * weight_row_bytes(m));
    if (!groups) return;
    add_bytes(l, m->scales, metal_weight_host(l->b, to->scales + row * groups), rows * groups);
    add_bytes(l, m->biases, metal_weight_host(l->b, to->biases + row * groups), rows * groups);
}

/* A matrix that is joined with no other. */
static void add_alone(loader *l, const weight_mat *m, const metal_mat *to) {
    if (!metal_file_of(l->b, m)) add_mat(l, m, to, 0);
}

static void add_parts(loader *l, const metal_parts *parts, const weight_mat *const *m, uint32_t n) {
    uint32_t part = 0, row = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (row == parts->mat[part].rows) part++, row = 0;
        add_mat(l, m[i], &parts->mat[part], row);
        row += m[i]->rows;
    }
}

static void add_all(loader *l) {
    const backend *b = l->b;
    l->n = 0;
    l->total_bytes = 0;
    add_alone(l, &b->w->embed, &b->weights.embed);
    add_alone(l, &b->w->lm_head, &b->weights.head);
    for (uint32_t i = 0; i < b->s->layers; i++) {
        const layer_weights *w = &b->w->layer[i];
        const metal_layer *to = &b->weights.layer[i];
        const weight_mat *const attention[] = {&w->q, &w->k, &w->v}, *const gdn[] = {&w->in_qkv, &w->in_z, &w->in_a, &w->in_b};
        const weight_mat *const routers[] = {&w->router, &w->shared_router};
        add_parts(l, &to->mixer_in, b->s->is_attention[i] ? attention : gdn, b->s->is_attention[i] ? 3 : 4);
        add_alone(l, b->s->is_attention[i] ? &w->attn_out : &w->gdn_out, &to->mixer_out);
        add_parts(l, &to->router, routers, 2);
        add_alone(l, &w->shared_gate, &to->shared_gate);
        add_alone(l, &w->shared_up, &to->shared_up);
        add_alone(l, &w->shared_down, &to->shared_down);
        add_alone(l, &w->expert_gate, &to->gate);
        add_alone(l, &w->expert_up, &to->up);
        add_alone(l, &w->expert_down, &to->down);
    }
}

/* ---- reading ---- */

static void fail(loader *l, const char *path, const char *why) {
    pthread_mutex_lock(&l->lock);
    if (!l->error.status) error_set(&l->error, CALLA_E_IO, "%s: cannot read the weights: %s", path, why);
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->failed, true);
}

typedef struct open_file {
    const char *path;
    int fd;
} open_file;

/* The file at the path may be another one than was mapped: renaming a new one over it leaves the map intact. */
static bool is_mapped_file(int fd, const weights_place *p) {
    uint8_t head[512];
    const size_t n = p->file_bytes < sizeof head ? p->file_bytes : sizeof head;
    return lseek(fd, 0, SEEK_END) == (off_t)p->file_bytes && pread(fd, head, n, 0) == (ssize_t)n && !memcmp(head, p->file_data, n);
}

static bool open_for(loader *l, const weights_place *p, open_file *f) {
    if (f->path == p->path) return true;
    if (f->fd >= 0) close(f->fd);
    *f = (open_file){p->path, open(p->path, O_RDONLY | O_CLOEXEC)};
    if (f->fd < 0) {
        fail(l, p->path, strerror(errno));
        return false;
    }
#ifdef F_NOCACHE
    fcntl(f->fd, F_NOCACHE, 1);
#endif
    if (is_mapped_file(f->fd, p)) return true;
    fail(l, p->path, "it was replaced while it was being loaded");
    return false;
}

static bool read_piece(loader *l, const piece *p, open_file *f) {
    weights_place place;
    if (!weights_locate(l->b->w, p->from, &place)) {
        fail(l, l->b->w->dir, "a tensor lies in no file");
        return false;
    }
    if (!open_for(l, &place, f)) return false;
    for (uint64_t done = 0; done < p->bytes;) {
        const ssize_t n = pread(f->fd, p->to + done, p->bytes - done, (off_t)(place.offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            fail(l, place.path, n ? strerror(errno) : "it has become shorter");
            return false;
        }
        done += (uint64_t)n;
        atomic_fetch_add(&l->done_bytes, (uint64_t)n);
    }
    return true;
}

static void *work(void *context) {
    loader *l = context;
    open_file f = {NULL, -1};
    for (size_t i; !atomic_load(&l->failed) && (i = atomic_fetch_add(&l->next, 1)) < l->n;)
        if (!read_piece(l, &l->pieces[i], &f)) break;
    if (f.fd >= 0) close(f.fd);
    atomic_fetch_sub(&l->working, 1);
    return NULL;
}

static void run_workers(loader *l, void (*progress)(void *user, uint64_t done, uint64_t total), void *user) {
    const struct timespec pause = {0, 20000000};
    pthread_t thread[WORKERS];
    uint32_t n = 0;
    atomic_init(&l->next, 0);
    atomic_init(&l->done_bytes, 0);
    atomic_init(&l->failed, false);
    atomic_init(&l->working, WORKERS);
    while (n < WORKERS && pthread_create(&thread[n], NULL, work, l) == 0) n++;
    atomic_fetch_sub(&l->working, WORKERS - n);
    while (atomic_load(&l->working)) {
        if (progress) progress(user, atomic_load(&l->done_bytes), l->total_bytes);
        nanosleep(&pause, NULL);
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(thread[i], NULL);
    if (!n) { /* no thread to be had: alone, without a word of progress */
        atomic_fetch_add(&l->working, 1);
        work(l);
    }
}

/* ---- vectors: few bytes, widened on the way ---- */

static void load_vec(backend *b, uint64_t to, const weight_vec *v) { ref_load_vec(v, (float *)(void *)metal_weight_host(b, to)); }

static void load_vectors(backend *b) {
    load_vec(b, b->weights.final_norm, &b->w->final_norm);
    for (uint32_t i = 0; i < b->s->layers; i++) {
        const layer_weights *l = &b->w->layer[i];
        const metal_layer *to = &b->weights.layer[i];
        load_vec(b, to->norm_mixer, &l->norm_mixer);
        load_vec(b, to->norm_moe, &l->norm_moe);
        if (b->s->is_attention[i]) {
            load_vec(b, to->q_norm, &l->q_norm);
            load_vec(b, to->k_norm, &l->k_norm);
            continue;
        }
        load_vec(b, to->conv, &l->conv);
        load_vec(b, to->decay, &l->a_log);
        load_vec(b, to->dt_bias, &l->dt_bias);
        load_vec(b, to->gdn_norm, &l->gdn_norm);
        float *decay = (float *)(void *)metal_weight_host(b, to->decay);
        for (uint32_t h = 0; h < l->a_log.n; h++) decay[h] = expf(decay[h]);
    }
}

calla_status metal_load(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err) {
    loader l = {.b = b};
    add_all(&l);
    l.pieces = mem_array(l.n, sizeof *l.pieces);
    if (!l.pieces) return error_nomem(err, "the list of weights to load");
    add_all(&l);
    pthread_mutex_init(&l.lock, NULL);
    load_vectors(b);
    run_workers(&l, progress, user);
    pthread_mutex_destroy(&l.lock);
    mem_free(l.pieces);
    if (progress) progress(user, l.total_bytes, l.total_bytes);
    if (!l.error.status) return CALLA_OK;
    return error_set(err, l.error.status, "%s", l.error.message);
}

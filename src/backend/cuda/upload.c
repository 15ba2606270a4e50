/* upload.c: weights from the mapped files to the device, in pieces, by a few threads.
 *
 * Each worker has a stream, a pinned buffer and a buffer on the device.  It copies the bytes of a piece (codes, scales, biases of some
 * outputs or some experts) from the map, which may read the disk, sends them, and lets the device arrange them as tiles.  While one
 * worker waits for its bytes to be sent, others copy theirs. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/ref/plain.h"
#include "base/memory.h"

enum { WORKERS = 8, STAGE_BYTES = 16 << 20, STAGE_ALIGN = 256 };

typedef struct piece { /* outputs row … of matrices first … of a matrix in the file */
    const weight_mat *from;
    const cuda_mat *to;
    uint32_t first, count, row, rows, first_row; /* first_row: of `to`, where row 0 of `from` goes */
} piece;

typedef struct upload {
    backend *b;
    piece *pieces;
    size_t n, capacity;
    uint64_t total_bytes;
    bool counting; /* the first pass only counts */
    _Atomic size_t next;
    _Atomic uint64_t done_bytes;
    _Atomic int error; /* cudaError_t of the first that failed */
    _Atomic bool wide_scales;
    _Atomic uint32_t working;
} upload;

static uint64_t row_bytes(const weight_mat *m) { return weight_row_bytes(m) + 4 * weight_row_groups(m); }

static void add_piece(upload *u, piece p) {
    if (!u->counting) u->pieces[u->n] = p;
    u->n++;
    u->total_bytes += (uint64_t)p.count * p.rows * row_bytes(p.from);
}

/* Cuts a matrix, or a stack of them, into pieces that fit the buffers. */
static void add_mat(upload *u, const weight_mat *m, const cuda_mat *to, uint32_t first_row) {
    const uint64_t whole = m->rows * row_bytes(m), room = STAGE_BYTES - 4 * STAGE_ALIGN;
    if (whole <= room) {
        const uint32_t most = (uint32_t)(room / whole);
        for (uint32_t e = 0; e < m->count; e += most)
            add_piece(u, (piece){m, to, e, most < m->count - e ? most : m->count - e, 0, m->rows, first_row});
        return;
    }
    const uint32_t most = (uint32_t)(room / row_bytes(m)) / 16 * 16; /* whole tiles; a row has at most STEP_MAX_COLS inputs */
    for (uint32_t e = 0; e < m->count; e++)
        for (uint32_t r = 0; r < m->rows; r += most)
            add_piece(u, (piece){m, to, e, 1, r, most < m->rows - r ? most : m->rows - r, first_row});
}

/* Matrices that became parts of others, in the order of place.c. */
static void add_parts(upload *u, const cuda_parts *parts, const weight_mat *const *m, uint32_t n) {
    uint32_t part = 0, row = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (row == parts->mat[part].rows) part++, row = 0;
        add_mat(u, m[i], &parts->mat[part], row);
        row += m[i]->rows;
    }
}

static void add_all(upload *u) {
    const backend *b = u->b;
    const weights *w = b->w;
    u->n = 0;
    u->total_bytes = 0;
    add_mat(u, &w->embed, &b->weights.embed, 0);
    add_mat(u, &w->lm_head, &b->weights.head, 0);
    for (uint32_t i = 0; i < b->s->layers; i++) {
        const layer_weights *l = &w->layer[i];
        const cuda_layer *to = &b->weights.layer[i];
        const weight_mat *const attention[] = {&l->q, &l->k, &l->v}, *const gdn[] = {&l->in_qkv, &l->in_z, &l->in_a, &l->in_b},
                                *const routers[] = {&l->router, &l->shared_router};
        if (b->s->is_attention[i])
            add_parts(u, &to->mixer_in, attention, 3);
        else
            add_parts(u, &to->mixer_in, gdn, 4);
        add_mat(u, b->s->is_attention[i] ? &l->attn_out : &l->gdn_out, &to->mixer_out, 0);
        add_parts(u, &to->routers, routers, 2);
        add_mat(u, &l->shared_gate, &to->shared_gate, 0);
        add_mat(u, &l->shared_up, &to->shared_up, 0);
        add_mat(u, &l->shared_down, &to->shared_down, 0);
        add_mat(u, &l->expert_gate, &to->gate, 0);
        add_mat(u, &l->expert_up, &to->up, 0);
        add_mat(u, &l->expert_down, &to->down, 0);
    }
}

/* ---- workers ---- */

/* Copies [count matrices][rows] of a field with `bytes` a row into the stage, matrix after matrix. */
static uint64_t stage_field(uint8_t *stage, uint64_t at, const uint8_t *from, uint64_t bytes, const piece *p) {
    const uint64_t rows = p->from->rows;
    for (uint32_t e = 0; e < p->count; e++)
        memcpy(stage + at + e * p->rows * bytes, from + ((p->first + e) * rows + p->row) * bytes, p->rows * bytes);
    return (at + p->count * p->rows * bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}

/* Whether some scale is 2^(2 - 4·(bits/4 - 1)) or more: 4 of 4-bit codes, 1/4 of 8-bit ones; weights up to 60 and 64. */
static bool has_wide_scale(const uint16_t *scales, uint64_t n, uint32_t bits) {
    uint32_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t magnitude = scales[i] & 0x7FFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest >= (bits == 4 ? 0x4080 : 0x3E80);
}

static cudaError_t send_piece(upload *u, const piece *p, uint8_t *stage, uint8_t *device, cudaStream_t stream) {
    const weight_mat *m = p->from;
    const uint64_t codes = weight_row_bytes(m), groups = 2 * weight_row_groups(m);
    const uint64_t scales_at = stage_field(stage, 0, m->codes, codes, p);
    const uint64_t biases_at = groups ? stage_field(stage, scales_at, m->scales, groups, p) : scales_at;
    const uint64_t bytes = groups ? stage_field(stage, biases_at, m->biases, groups, p) : scales_at;
    if (groups && has_wide_scale((const uint16_t *)(stage + scales_at), p->count * p->rows * groups / 2, m->bits))
        atomic_store(&u->wide_scales, true);
    cudaError_t e = cudaMemcpyAsync(device, stage, bytes, cudaMemcpyHostToDevice, stream);
    const repack_job job = {.codes = device,
                            .scales = device + scales_at,
                            .biases = device + biases_at,
                            .bits = m->bits,
                            .group = m->group,
                            .rows = p->rows,
                            .cols = m->cols,
                            .count = p->count,
                            .to = *p->to,
                            .first = p->first,
                            .first_row = p->first_row + p->row};
    if (!e) repack_run(&job, stream);
    if (!e) e = cudaStreamSynchronize(stream);
    return e ? e : cudaGetLastError();
}

static void fail(upload *u, cudaError_t e) {
    int none = 0;
    if (e) atomic_compare_exchange_strong(&u->error, &none, (int)e);
}

static void *work(void *context) {
    upload *u = context;
    uint8_t *stage = NULL, *device = NULL;
    cudaStream_t stream = NULL;
    cudaError_t e = cudaHostAlloc((void **)&stage, STAGE_BYTES, cudaHostAllocDefault);
    if (!e) e = cudaMalloc((void **)&device, STAGE_BYTES);
    if (!e) e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (size_t i; !e && !atomic_load(&u->error) && (i = atomic_fetch_add(&u->next, 1)) < u->n;) {
        const piece *p = &u->pieces[i];
        e = send_piece(u, p, stage, device, stream);
        atomic_fetch_add(&u->done_bytes, (uint64_t)p->count * p->rows * row_bytes(p->from));
    }
    fail(u, e);
    if (stream) cudaStreamDestroy(stream);
    cudaFree(device);
    cudaFreeHost(stage);
    atomic_fetch_sub(&u->working, 1);
    return NULL;
}

/* ---- vectors ---- */

static cudaError_t send_floats(float *to, const float *from, uint32_t n) {
    return cudaMemcpy(to, from, n * sizeof *to, cudaMemcpyHostToDevice);
}

static cudaError_t send_vec(float *to, const weight_vec *v, float *room, bool exponential) {
    ref_load_vec(v, room);
    for (uint32_t i = 0; exponential && i < v->n; i++) room[i] = expf(room[i]);
    return send_floats(to, room, v->n);
}

static cudaError_t send_vectors(backend *b, float *room) {
    const weights *w = b->w;
    double rate[ROTARY_DIM / 2];
    for (uint32_t j = 0; j < ROTARY_DIM / 2; j++) rate[j] = pow(b->s->rope_theta, -2.0 * j / ROTARY_DIM);
    cudaError_t e = cudaMemcpy(b->weights.rotary_rate, rate, sizeof rate, cudaMemcpyHostToDevice);
    if (!e) e = send_vec(b->weights.final_norm, &w->final_norm, room, false);
    for (uint32_t i = 0; i < b->s->layers && !e; i++) {
        const layer_weights *l = &w->layer[i];
        const cuda_layer *to = &b->weights.layer[i];
        e = send_vec(to->norm_mixer, &l->norm_mixer, room, false);
        if (!e) e = send_vec(to->norm_moe, &l->norm_moe, room, false);
        if (!e && b->s->is_attention[i]) {
            e = send_vec(to->q_norm, &l->q_norm, room, false);
            if (!e) e = send_vec(to->k_norm, &l->k_norm, room, false);
        } else if (!e) {
            e = send_vec((float *)to->gdn.conv, &l->conv, room, false);
            if (!e) e = send_vec((float *)to->gdn.decay, &l->a_log, room, true);
            if (!e) e = send_vec((float *)to->gdn.dt_bias, &l->dt_bias, room, false);
            if (!e) e = send_vec((float *)to->gdn.norm, &l->gdn_norm, room, false);
        }
    }
    return e;
}

/* ---- all ---- */

static void watch(upload *u, void (*progress)(void *user, uint64_t done, uint64_t total), void *user) {
    const struct timespec pause = {0, 20000000};
    while (atomic_load(&u->working)) {
        if (progress) progress(user, atomic_load(&u->done_bytes), u->total_bytes);
        nanosleep(&pause, NULL);
    }
}

static void run_workers(upload *u, void (*progress)(void *user, uint64_t done, uint64_t total), void *user) {
    pthread_t thread[WORKERS];
    uint32_t n = 0;
    atomic_init(&u->next, 0);
    atomic_init(&u->done_bytes, 0);
    atomic_init(&u->error, 0);
    atomic_init(&u->wide_scales, false);
    atomic_init(&u->working, WORKERS);
    while (n < WORKERS && pthread_create(&thread[n], NULL, work, u) == 0) n++;
    atomic_fetch_sub(&u->working, WORKERS - n);
    if (n) watch(u, progress, user);
    for (uint32_t i = 0; i < n; i++) pthread_join(thread[i], NULL);
    if (!n) { /* no thread to be had: alone, without a word of progress */
        atomic_fetch_add(&u->working, 1);
        work(u);
    }
}

calla_status cuda_upload(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err) {
    upload u = {.b = b, .counting = true};
    const uint32_t channels = shape_conv_channels(b->s) * CONV_WIDTH, longest = channels > b->s->hidden ? channels : b->s->hidden;
    add_all(&u);
    u.pieces = mem_array(u.n, sizeof *u.pieces);
    float *room = mem_array(longest > MAX_GDN_HEADS ? longest : MAX_GDN_HEADS, sizeof *room);
    cudaError_t e = cudaSuccess;
    const bool enough = u.pieces && room;
    if (enough) {
        u.counting = false;
        add_all(&u);
        e = send_vectors(b, room);
        if (!e) run_workers(&u, progress, user);
        if (!e) e = (cudaError_t)atomic_load(&u.error);
        b->weights.wide_scales = atomic_load(&u.wide_scales);
        if (!e && progress) progress(user, u.total_bytes, u.total_bytes);
    }
    mem_free(u.pieces);
    mem_free(room);
    if (!enough) return error_nomem(err, "the list of weights to upload");
    return e ? error_set(err, CALLA_E_DEVICE, "the weights could not be brought to the CUDA device: %s", cudaGetErrorString(e)) : CALLA_OK;
}

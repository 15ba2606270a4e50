/* pool.c: see pool.h.
 *
 * A stage is announced by adding one to `generation`.  Each thread has a share of consecutive tasks, takes them in order, so that what one
 * task fetches ahead is mostly its own next one, and then helps out in the shares of the others.  Workers report in `running`.  The announcement and the
 * count of sleepers are both sequentially consistent: either the owner sees a sleeper and wakes it, or the worker sees the new stage. */
#include "backend/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/memory.h"

enum { SPINS = 4000 }; /* some tens of microseconds: longer than the serial work between two stages */

typedef struct worker {
    pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

typedef struct share {
    _Alignas(64) atomic_uint next;
    uint32_t end;
} share;

struct pool {
    _Alignas(64) atomic_uint generation;
    _Alignas(64) atomic_uint running;
    _Alignas(64) pool_task_fn fn;
    void *context;
    uint32_t threads;
    share *shares; /* [threads] */
    atomic_bool stop;
    atomic_uint sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    worker *workers; /* [threads - 1] */
    uint32_t started;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_tasks(pool *p, uint32_t thread) {
    for (uint32_t i = 0; i < p->threads; i++) {
        share *s = &p->shares[(thread + i) % p->threads];
        for (uint32_t task; (task = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->end;)
            p->fn(p->context, task, thread);
    }
}

static void wait_for_stage(pool *p, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen) return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *work(void *argument) {
    worker *w = argument;
    pool *p = w->pool;
    for (unsigned seen = 0;; seen++) {
        wait_for_stage(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        take_tasks(p, w->index);
        atomic_fetch_sub_explicit(&p->running, 1, memory_order_release);
    }
}

static void announce(pool *p) {
    atomic_fetch_add(&p->generation, 1);
    if (!atomic_load(&p->sleepers)) return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

void pool_run(pool *p, pool_task_fn fn, void *context, uint32_t tasks) {
    if (tasks <= 1 || p->threads == 1) {
        for (uint32_t i = 0; i < tasks; i++) fn(context, i, 0);
        return;
    }
    p->fn = fn;
    p->context = context;
    for (uint32_t i = 0; i < p->threads; i++) {
        p->shares[i].end = (uint32_t)((uint64_t)tasks * (i + 1) / p->threads);
        atomic_store_explicit(&p->shares[i].next, (uint32_t)((uint64_t)tasks * i / p->threads), memory_order_relaxed);
    }
    atomic_store_explicit(&p->running, p->threads - 1, memory_order_relaxed);
    announce(p);
    take_tasks(p, 0);
    for (unsigned i = 0; atomic_load_explicit(&p->running, memory_order_acquire); i++) {
        if (i < SPINS)
            relax();
        else
            sched_yield(); /* a worker was scheduled away */
    }
}

uint32_t pool_threads(const pool *p) { return p->threads; }

calla_status pool_open(uint32_t threads, pool **out, calla_error *err) {
    *out = NULL;
    if (!threads) threads = cores_default();
    pool *p = mem_map(sizeof *p); /* page-aligned: its fields stand on cache lines of their own */
    if (!p) return error_nomem(err, "the thread pool");
    *p = (pool){.threads = threads, .workers = mem_calloc(threads, sizeof *p->workers), .shares = mem_map(threads * sizeof *p->shares)};
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    if (!p->workers || !p->shares) {
        pool_close(p);
        return error_nomem(err, "the thread pool");
    }
    for (; p->started < threads - 1; p->started++) {
        worker *w = &p->workers[p->started];
        *w = (worker){.pool = p, .index = p->started + 1};
        if (pthread_create(&w->thread, NULL, work, w)) {
            pool_close(p);
            return error_set(err, CALLA_E_NOMEM, "cannot start thread %u of %u; use fewer --threads", p->started + 1, threads);
        }
    }
    *out = p;
    return CALLA_OK;
}

void pool_close(pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    announce(p);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    mem_free(p->workers);
    if (p->shares) mem_unmap(p->shares, p->threads * sizeof *p->shares);
    mem_unmap(p, sizeof *p);
}

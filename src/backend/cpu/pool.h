/* pool.h: threads that meet once per stage.  They spin briefly for the next stage and then sleep.  One owner thread runs the pool. */
#ifndef CALLA_BACKEND_CPU_POOL_H
#define CALLA_BACKEND_CPU_POOL_H

#include <stdbool.h>

#include "base/error.h"

typedef struct pool pool;
/* thread: 0 … threads-1, for scratch of one's own */
typedef void (*pool_task_fn)(void *context, uint32_t task, uint32_t thread);

/* threads 0: as many as cores_default. */
calla_status pool_open(uint32_t threads, pool **out, calla_error *err);
void pool_close(pool *p);
uint32_t pool_threads(const pool *p);
/* Runs tasks 0 … tasks-1, each once, in any order on any thread, the caller's among them, and returns when all are done. */
void pool_run(pool *p, pool_task_fn fn, void *context, uint32_t tasks);

/* cores.c: physical cores that this process may use, of the fastest kind where there are several; at least 1. */
uint32_t cores_default(void);
#if defined(__linux__)
/* The same among `n` CPUs of which those marked may be used, by what the files under root say: "/", or a made-up tree. */
uint32_t cores_count(const char *root, const bool *usable, uint32_t n);
#endif

#endif

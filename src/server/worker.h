/* worker.h: one thread for work that would keep the loop thread from its sockets: parsing and tokenizing large bodies. */
#ifndef CALLA_SERVER_WORKER_H
#define CALLA_SERVER_WORKER_H

#include <event2/event.h>
#include <stdatomic.h>

#include "base/error.h"

typedef struct worker worker;

typedef struct worker_task {  /* embedded in its owner; must stay valid until done was called */
    void (*run)(void *user);  /* on the worker's thread */
    void (*done)(void *user); /* on the loop thread, exactly once, unless the worker is closed before */
    void *user;
    atomic_bool skip; /* set it when the result is no longer wanted: run is then not called, if it had not begun */
    struct worker_task *next;
} worker_task;

calla_status worker_open(struct event_base *base, worker **out, calla_error *err);
/* Waits for the thread.  Tasks whose done was not called by then are dropped: their owners free them. */
void worker_close(worker *w);
/* Tasks run in the order of submission. */
void worker_submit(worker *w, worker_task *task);

#endif

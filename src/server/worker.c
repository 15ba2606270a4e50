/* worker.c: see worker.h.  Two lists under one mutex: to do and done. */
#include "server/worker.h"

#include <pthread.h>
#include <signal.h>

#include "base/memory.h"

struct worker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    worker_task *todo, **todo_end;
    worker_task *finished, **finished_end;
    bool closing;
    struct event *news;
};

static void *work(void *user) {
    worker *w = user;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->todo && !w->closing) pthread_cond_wait(&w->wake, &w->mutex);
        worker_task *task = w->todo;
        if (!task) break;
        w->todo = task->next;
        if (!w->todo) w->todo_end = &w->todo;
        pthread_mutex_unlock(&w->mutex);
        if (!atomic_load(&task->skip)) task->run(task->user);
        pthread_mutex_lock(&w->mutex);
        task->next = NULL;
        *w->finished_end = task;
        w->finished_end = &task->next;
        event_active(w->news, EV_READ, 0);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static void on_news(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    worker *w = user;
    pthread_mutex_lock(&w->mutex);
    worker_task *task = w->finished;
    w->finished = NULL;
    w->finished_end = &w->finished;
    pthread_mutex_unlock(&w->mutex);
    while (task) {
        worker_task *next = task->next; /* done may free the task */
        task->done(task->user);
        task = next;
    }
}

calla_status worker_open(struct event_base *base, worker **out, calla_error *err) {
    worker *w = mem_calloc(1, sizeof *w);
    if (!w) return error_nomem(err, "the server's worker");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->todo_end = &w->todo;
    w->finished_end = &w->finished;
    w->news = event_new(base, -1, EV_PERSIST, on_news, w);
    /* Signals are the loop thread's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = w->news ? pthread_create(&w->thread, NULL, work, w) : -1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        if (w->news) event_free(w->news);
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->mutex);
        mem_free(w);
        return error_set(err, CALLA_E_NOMEM,
                         "cannot start the server's worker thread: too little memory, or the limit of threads is reached");
    }
    *out = w;
    return CALLA_OK;
}

void worker_close(worker *w) {
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    event_free(w->news);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    mem_free(w);
}

void worker_submit(worker *w, worker_task *task) {
    task->next = NULL;
    pthread_mutex_lock(&w->mutex);
    *w->todo_end = task;
    w->todo_end = &task->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

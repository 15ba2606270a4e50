/* job.c: see job.h.  Owns the sessions and the hand-over between the two threads: one mutex guards the queues of all jobs and the list of
 * those with news.  The engine's thread holds it for a copy of some bytes. */
#include "server/job.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

struct mailbox {
    pthread_mutex_t mutex;
    struct event *wake;
    job *news, **news_end; /* guarded by mutex */
    job *live;             /* loop thread; doubly linked */
    uint32_t n_live;
    void (*idle)(void *user);
    void *user;
};

struct job {
    mailbox *mailbox;
    calla_session *session;
    calla_matcher *matcher;   /* the engine thread's until the session is closed; or NULL */
    calla_status astray;      /* what the matcher had against a token; the engine thread's */
    void (*news)(void *user); /* NULL once released */
    void *user;
    job *next_live, *prev_live;
    /* guarded by mailbox->mutex */
    job *next_news;
    bool posted;
    char *queue; /* tokens of `stride` bytes each: head … tail, both growing; moved down when half is taken */
    size_t cap, head, tail, stride;
    uint32_t prompt_done, prompt_tokens, told_done;
    uint64_t last_token_ns;
    bool lost; /* a token found no memory: the answer has a hole and fails */
    bool ended;
    job_result result;
};

/* As queued: the head of a job_token and as many alternatives as were asked for. */
static size_t stride_of(uint32_t n_top) { return offsetof(job_token, top) + n_top * sizeof(calla_token_logprob); }

static void push_token(job *j, const calla_event *event) {
    if (j->head && j->head >= j->tail - j->head) {
        memmove(j->queue, j->queue + j->head * j->stride, (j->tail - j->head) * j->stride);
        j->tail -= j->head;
        j->head = 0;
    }
    if (j->lost || mem_grow(&j->queue, &j->cap, j->tail + 1, j->stride, SIZE_MAX / j->stride)) {
        j->lost = true;
        calla_session_cancel(j->session);
        return;
    }
    job_token token = {.id = event->id,
                       .is_stop = event->is_stop,
                       .of_prompt = event->kind == CALLA_EVENT_PROMPT_TOKEN,
                       .logprob = event->logprob,
                       .n_top = event->n_top};
    const uint64_t now = clock_now_ns();
    if (j->last_token_ns) token.after_s = (float)(now - j->last_token_ns) / 1e9f;
    if (!token.of_prompt) j->last_token_ns = now;
    const uint32_t room = (uint32_t)((j->stride - offsetof(job_token, top)) / sizeof *token.top);
    if (token.n_top > room) token.n_top = room;
    for (uint32_t i = 0; i < token.n_top; i++) token.top[i] = event->top[i];
    memcpy(j->queue + j->tail * j->stride, &token, j->stride);
    j->tail++;
}

static const uint32_t *guide_mask(void *user) { return calla_matcher_mask(((job *)user)->matcher); }

/* A token that the mask did not allow, or no memory to follow it: what comes would be held to nothing. */
static void guide_took(void *user, int32_t id) {
    job *j = user;
    if (!j->astray) j->astray = calla_matcher_took(j->matcher, id);
    if (j->astray) calla_session_cancel(j->session);
}

/* On the engine's thread. */
static void on_event(void *user, const calla_event *event) {
    job *j = user;
    mailbox *m = j->mailbox;
    pthread_mutex_lock(&m->mutex);
    if (event->kind == CALLA_EVENT_PROMPT) {
        j->prompt_done = event->prompt_done;
        j->prompt_tokens = event->prompt_tokens;
    } else if (event->kind != CALLA_EVENT_DONE)
        push_token(j, event);
    else {
        j->ended = true;
        j->result = (job_result){
            .finish = event->finish, .queue_ns = event->queue_ns, .prompt_ns = event->prompt_ns, .decode_ns = event->decode_ns};
        if (j->lost) {
            j->result.finish = CALLA_FINISH_ERROR;
            error_nomem(&j->result.error, "the queue of an answer's tokens");
        } else if (j->astray) {
            j->result.finish = CALLA_FINISH_ERROR;
            if (j->astray == CALLA_E_NOMEM)
                error_nomem(&j->result.error, "the form of an answer");
            else
                error_set(&j->result.error, CALLA_E_INTERNAL, "the answer has a token that its form does not allow");
        } else if (event->finish == CALLA_FINISH_ERROR && event->error)
            j->result.error = *event->error;
    }
    if (!j->posted) {
        j->posted = true;
        j->next_news = NULL;
        *m->news_end = j;
        m->news_end = &j->next_news;
        event_active(m->wake, EV_READ, 0);
    }
    pthread_mutex_unlock(&m->mutex);
}

static void destroy(job *j) {
    mailbox *m = j->mailbox;
    calla_session_close(j->session);
    calla_matcher_close(j->matcher);
    if (j->prev_live)
        j->prev_live->next_live = j->next_live;
    else
        m->live = j->next_live;
    if (j->next_live) j->next_live->prev_live = j->prev_live;
    m->n_live--;
    mem_free(j->queue);
    mem_free(j);
    if (!m->n_live && m->idle) m->idle(m->user);
}

static void on_wake(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    mailbox *m = user;
    for (;;) {
        pthread_mutex_lock(&m->mutex);
        job *j = m->news;
        bool ended = false;
        if (j) {
            m->news = j->next_news;
            if (!m->news) m->news_end = &m->news;
            j->posted = false;
            ended = j->ended;
        }
        pthread_mutex_unlock(&m->mutex);
        if (!j) return;
        if (j->news)
            j->news(j->user); /* may release j, which then is destroyed there if it has ended */
        else if (ended)
            destroy(j);
    }
}

calla_status mailbox_open(struct event_base *base, void (*idle)(void *user), void *user, mailbox **out, calla_error *err) {
    mailbox *m = mem_calloc(1, sizeof *m);
    if (!m) return error_nomem(err, "the server's mailbox");
    m->wake = event_new(base, -1, EV_PERSIST, on_wake, m);
    if (!m->wake) {
        mem_free(m);
        return error_nomem(err, "the server's mailbox");
    }
    pthread_mutex_init(&m->mutex, NULL);
    m->news_end = &m->news;
    m->idle = idle;
    m->user = user;
    *out = m;
    return CALLA_OK;
}

void mailbox_close(mailbox *m) {
    if (!m) return;
    m->idle = NULL;
    for (job *j = m->live; j; j = j->next_live) calla_session_cancel(j->session);
    while (m->live) destroy(m->live); /* closing a session waits for its end */
    event_free(m->wake);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m);
}

uint32_t mailbox_live(const mailbox *m) { return m->n_live; }

calla_status job_start(mailbox *m, calla_engine *engine, const int32_t *ids, size_t n, const calla_generate_options *options,
                       calla_matcher *matcher, void (*news)(void *user), void *user, job **out, calla_error *err) {
    job *j = mem_calloc(1, sizeof *j);
    if (!j) {
        calla_matcher_close(matcher);
        return error_nomem(err, "a job");
    }
    calla_generate_options guided = *options;
    if (matcher) guided.guide = (calla_guide){.mask = guide_mask, .took = guide_took, .user = j};
    j->mailbox = m;
    j->matcher = matcher;
    j->news = news;
    j->user = user;
    j->stride = stride_of(options->logprobs ? options->n_top_logprobs : 0);
    calla_status rc = calla_session_open(engine, &j->session, err);
    if (!rc) rc = calla_session_append(j->session, ids, n, err);
    if (!rc) rc = calla_session_generate(j->session, &guided, on_event, j, err);
    if (rc) {
        calla_session_close(j->session);
        calla_matcher_close(matcher);
        mem_free(j);
        return rc;
    }
    j->next_live = m->live;
    if (m->live) m->live->prev_live = j;
    m->live = j;
    m->n_live++;
    *out = j;
    return CALLA_OK;
}

bool job_take(job *j, job_token *out) {
    pthread_mutex_lock(&j->mailbox->mutex);
    const bool any = j->head < j->tail;
    if (any) {
        memcpy(out, j->queue + j->head * j->stride, j->stride);
        j->head++;
    }
    pthread_mutex_unlock(&j->mailbox->mutex);
    return any;
}

bool job_take_progress(job *j, uint32_t *done, uint32_t *of) {
    pthread_mutex_lock(&j->mailbox->mutex);
    const bool more = j->prompt_done > j->told_done;
    j->told_done = *done = j->prompt_done;
    *of = j->prompt_tokens;
    pthread_mutex_unlock(&j->mailbox->mutex);
    return more;
}

const job_result *job_get_result(job *j) {
    pthread_mutex_lock(&j->mailbox->mutex);
    const bool over = j->ended && j->head == j->tail;
    pthread_mutex_unlock(&j->mailbox->mutex);
    return over ? &j->result : NULL;
}

void job_cancel(job *j) { calla_session_cancel(j->session); }

void job_release(job *j) {
    mailbox *m = j->mailbox;
    pthread_mutex_lock(&m->mutex);
    const bool destroyable = j->ended && !j->posted; /* posted: on_wake is still to see it and destroys it */
    pthread_mutex_unlock(&m->mutex);
    j->news = NULL;
    if (destroyable)
        destroy(j);
    else
        calla_session_cancel(j->session);
}

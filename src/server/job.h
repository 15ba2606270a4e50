/* job.h: one generation of the engine, seen from the loop thread.
 *
 * The engine's thread puts tokens into the job's queue and wakes the loop once; the loop takes them when it likes.  A client that reads
 * slowly therefore leaves its answer here as tokens (20 bytes each, and 8 more per alternative asked for), at most as many as the context
 * window holds; the engine never waits for a socket. */
#ifndef CALLA_SERVER_JOB_H
#define CALLA_SERVER_JOB_H

#include <event2/event.h>

#include "base/error.h"

typedef struct mailbox mailbox; /* where jobs with news wait for the loop thread */
typedef struct job job;

typedef struct job_token {
    int32_t id;
    bool is_stop;
    bool of_prompt; /* not of the answer: calla_generate_options.prompt_logprobs */
    float logprob;
    float after_s; /* seconds since the token before was made; of the first one 0 */
    uint32_t n_top;
    calla_token_logprob top[CALLA_MAX_TOP_LOGPROBS]; /* [n_top] */
} job_token;

typedef struct job_result {
    calla_finish finish;
    calla_error error; /* with CALLA_FINISH_ERROR */
    uint64_t queue_ns, prompt_ns, decode_ns;
} job_result;

/* idle is called on the loop thread when the last session was closed. */
calla_status mailbox_open(struct event_base *base, void (*idle)(void *user), void *user, mailbox **out, calla_error *err);
/* Cancels and waits for what still runs; every job must have been released. */
void mailbox_close(mailbox *m);
/* Sessions that are open, released jobs included. */
uint32_t mailbox_live(const mailbox *m);

/* Opens a session, appends ids [n] and generates.  matcher: what the answer is held to, or NULL; the job's from here on, also where this
 * fails.  news is called on the loop thread whenever there are tokens or the result. */
calla_status job_start(mailbox *m, calla_engine *engine, const int32_t *ids, size_t n, const calla_generate_options *options,
                       calla_matcher *matcher, void (*news)(void *user), void *user, job **out, calla_error *err);
/* Takes the oldest token; false if there is none now. */
bool job_take(job *j, job_token *out);
/* How much of the prompt has been processed; false if that is what it said last time. */
bool job_take_progress(job *j, uint32_t *done, uint32_t *of);
/* Once the job has ended and all its tokens were taken; NULL before. */
const job_result *job_get_result(job *j);
/* The job will end soon; its result is still to come. */
void job_cancel(job *j);
/* Cancels if need be; no news after this.  The session is closed as soon as the engine has let go of it. */
void job_release(job *j);

#endif

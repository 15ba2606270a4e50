/* engine.h: what the files of engine/ share: engine, session and job.
 *
 * Who may touch what:
 *  - One engine thread owns the model, the queue, the running list, and every session from calla_session_generate until its job's
 *    DONE event has been delivered ("active").
 *  - An idle session belongs to its callers, under engine->lock; the engine thread may take its slot away, under the lock as well.
 *  - cancel flags are atomic.
 * Events are delivered without the lock. */
#ifndef CALLA_ENGINE_ENGINE_H
#define CALLA_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/schedule.h"
#include "engine/tally.h"
#include "model/model.h"
#include "text/text.h"

#define DEFAULT_CONTEXT 32768u
#define DEFAULT_SEQUENCES 4u
#define MAX_SEQUENCES 256u
#define SCORE_ROWS 64u /* rows of one step whose logits are all computed, for scoring: on the real vocabulary each takes 1 MB */

/* One sequence of the model, lent to a session; it stays with an idle session until another one needs it. */
typedef struct engine_slot {
    sequence *sequence;
    calla_session *owner; /* under the lock; NULL: free, or of a closed session: what it holds is garbage */
    bool running;         /* its owner is in the running list */
    uint64_t used;        /* turn of the last step, to find the idle slot that was used least recently */
    uint64_t emptied;     /* under the lock: how often it was */
} engine_slot;

/* What a job wants of the prompt's logits: a call for each row from `next` on, which begins as calla_engine_score_rows's `from`.  A job that
 * was set aside is processed again up to `next` without logits, so that each row is delivered once. */
typedef struct score_output {
    calla_row_fn fn;
    void *user;
    uint32_t next;
} score_output;

/* What a session does now, or did last. */
typedef struct job {
    calla_event_fn fn;
    void *user;
    score_output *score;                              /* NULL: nobody wants rows of the prompt, or all of them were delivered */
    score_output prompt_rows;                         /* with calla_generate_options.prompt_logprobs: what score points to */
    bool only_prompt;                                 /* generates nothing */
    sample_request sampling;                          /* without what changes from token to token */
    sample_bias *bias;                                /* [sampling.n_bias], owned */
    token_tally tally;                                /* only with penalties */
    calla_force force;                                /* n becomes 0 once it is settled that nothing (more) is forced */
    uint32_t forced;                                  /* of its ids, made so far */
    uint32_t *mask;                                   /* bitset of the vocabulary, owned: what the next token may be; only with force */
    calla_guide guide;                                /* the caller's; mask NULL: none */
    uint32_t max_tokens;                              /* at least 1, except with only_prompt and when the window is full */
    uint32_t made;                                    /* tokens generated */
    uint32_t prompt_from, prompt_tokens, prompt_done; /* prompt_from: tokens in the model when the job was first admitted */
    bool ignore_stop, admitted;
    bool was_set_aside; /* for lack of KV pages */
    uint64_t arrived_ns, admitted_ns, first_token_ns;
} job;

/* A step of the model: arrays of [info.max_sequences], in parallel. */
typedef struct engine_step {
    calla_session **planned; /* NULL: it has ended since the step was submitted, and what the step brings it is dropped */
    schedule_item *items;
    model_segment *segments;
    sample_request *requests;
    int32_t *chained; /* instead of an id: the segment of the step before that picks it */
    uint32_t n;
} engine_step;

struct calla_session {
    calla_engine *engine;
    engine_slot *slot; /* NULL: nothing of it is in the model */
    struct {           /* of a fork until its first job begins: what it shares with another session */
        engine_slot *slot;
        uint64_t emptied; /* … as long as this and */
        uint32_t tokens;  /* this are what they were */
    } origin;
    int32_t *ids; /* [n_ids], the history: appended and generated; grows in append and generate only */
    size_t cap_ids;
    uint32_t n_ids; /* written under the lock */
    bool active;    /* under the lock */
    atomic_bool cancel;
    job job;
    calla_error error;   /* of the job, valid in its DONE event */
    calla_session *next; /* in the inbox or queue */
};

struct calla_engine {
    weights *w;
    model *m;
    calla_text *text; /* NULL with options.ids_only */
    calla_engine_info info;
    int32_t stop_ids[MAX_STOP_IDS + 1]; /* of the weights' configs, and the tokenizer's */
    uint32_t n_stop_ids;
    uint32_t score_rows;

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the engine thread: a job came, or closing */
    pthread_cond_t idle; /* callers: a session became idle */

    /* under the lock */
    calla_session *inbox, **inbox_end; /* started, not yet seen by the engine thread */
    uint32_t n_active, n_running;
    bool failed;
    calla_error failure;

    atomic_bool closing; /* set under the lock */

    /* the engine thread's */
    engine_slot *slots;      /* [info.max_sequences] */
    calla_session *queue;    /* waiting, in order of arrival */
    calla_session **running; /* [info.max_sequences] in order of arrival: all older than any in the queue */
    uint32_t running_count;
    engine_step steps[2];
    engine_step *under_way; /* submitted to the model, results not yet seen; NULL: none */
    uint64_t turn;
    uint64_t set_aside; /* how often a running job had to wait for KV pages; under the lock */
};

/* As calla_engine_open, on a given backend and with a given pool of KV pages (0: as calla_engine_open).  For tests. */
calla_status engine_open_on(const calla_engine_options *options, const backend_vtable *vt, uint32_t kv_tokens, calla_engine **out,
                            calla_error *err);

/* The engine thread's function. */
void *engine_thread(void *engine);

/* session.c: hands an idle session with ids to the engine thread.  The caller holds the lock and has filled in s->job, which belongs to
 * the session from here on, whatever is returned. */
calla_status session_start(calla_session *s, calla_error *err);

/* force.c: what the next token of a job may be, by its forced tokens and its guide; NULL: anything.  check: CALLA_E_ARGUMENT if the tokens
 * cannot be forced.  took: token id was made. */
calla_status force_check(const calla_force *f, const calla_engine_info *info, calla_error *err);
const uint32_t *force_mask(job *j, const calla_engine *e);
void force_took(job *j, int32_t id);

/* score.c: how many rows a scoring job may have in the next step when `done` tokens are processed, of `wanted_rows` with logits and
 * batch_rows in all; whether those rows' logits are wanted; and their delivery (row r of the segment is token first + r). */
uint32_t score_most_rows(const score_output *out, uint32_t done, uint32_t wanted_rows, uint32_t batch_rows);
bool score_wants_rows(const score_output *out, uint32_t done);
void score_deliver(score_output *out, uint32_t first, uint32_t rows, model *m, uint32_t segment);
/* The calla_row_fn of a job with prompt_logprobs; user is its session. */
void score_prompt_row(void *user, size_t at, const float *logits);

/* sampling.c: checks the ranges of all parameters; messages name the parameter.  Ids of biases must be below vocabulary_rows. */
calla_status sampling_check(const calla_sampling *s, uint32_t vocabulary_rows, calla_error *err);
bool sampling_has_penalties(const calla_sampling *s);
sample_request sampling_request(const calla_sampling *s, uint32_t tokens); /* without bias, tally and position */
calla_sampling sampling_from_defaults(const sampling_defaults *d);

/* folder.c: what a model folder and the options come to; also for calla_inspect. */

/* Stop ids of the weights' configs and of the tokenizer (text may be NULL), without repeats: how many. */
uint32_t folder_stop_ids(const weights *w, const calla_text *text, int32_t *out /* [MAX_STOP_IDS + 1] */);
/* Opens tokenizer and template, and checks that the ids fit the embedding. */
calla_status folder_open_text(const weights *w, calla_text **out, calla_error *err);
/* The last part of the folder's path. */
void folder_name(const char *dir, char *out, size_t size);
/* Fills in defaults and checks ranges.  vt NULL: by options->device. */
calla_status folder_model_options(const calla_engine_options *options, const backend_vtable *vt, const model_shape *shape,
                                  model_options *out, uint32_t *context_tokens, calla_error *err);

#endif

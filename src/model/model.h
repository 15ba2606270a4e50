/* model.h: the model as a function from batches to logits and sampled tokens.
 *
 * Owns the plan (all memory of the device, allocated once), the pools of KV pages and state slots, and the order of work.  Knows
 * nothing of requests, text or threads: one thread uses it. */
#ifndef CALLA_MODEL_MODEL_H
#define CALLA_MODEL_MODEL_H

#include "backend/backend.h"

typedef struct model model;

typedef struct model_options {
    const backend_vtable *backend;
    uint32_t batch_rows;   /* most rows of one batch */
    uint32_t max_segments; /* most sequences in one batch */
    uint32_t max_wanted;   /* most rows of one batch whose logits are computed; at least max_segments */
    uint32_t sequences;    /* sequences (and snapshots) that hold tokens at the same time: two state slots each */
    uint32_t kv_tokens;    /* tokens of KV cache in all; rounded up to pages */
    calla_kv kv;
    uint32_t threads;   /* of a CPU; 0: one per physical core */
    bool fast;          /* 8-bit activations where the device has them */
    bool deterministic; /* backend_limits.deterministic */
    bool polite;        /* backend_limits.polite */
    bool all_rows;      /* the last layer computes all rows, not only those whose logits are wanted */
    uint32_t without;   /* optimizations turned off: backend_limits.without */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* of loading, on the caller's thread; NULL: nobody is told */
    void *progress_user;
} model_options;

/* w must outlive the model. */
calla_status model_open(const weights *w, const model_options *o, model **out, calla_error *err);
void model_close(model *m);

const model_shape *model_get_shape(const model *m);

typedef struct model_plan { /* what the plan allocates, for printing and inspect */
    uint64_t bytes[BUF_COUNT], total_bytes;
    backend_limits limits;
    uint32_t stages; /* dependent stages of one step */
} model_plan;
const model_plan *model_get_plan(const model *m);
/* Recurrent state and convolution window of one sequence; K and V of one token in all layers. */
uint64_t model_state_bytes(const model *m);
uint64_t model_kv_token_bytes(const model *m);
/* "vnni, 2 threads, exact" or "" into out [n]. */
void model_describe_device(const model *m, char *out, size_t n);
/* Bytes a second that the device reads from its memory; 0: unknown. */
double model_read_rate(model *m);
/* Operations a second in registers; zeros: unknown. */
void model_dot_rates(model *m, calla_dot_rates *out);
/* The same figures without opening anything. */
void model_plan_compute(const model_shape *s, const model_options *o, model_plan *out);

/* ---- sequences: a path of KV pages and the recurrent state after the last token ---- */

typedef struct sequence sequence;

calla_status sequence_open(model *m, sequence **out, calla_error *err); /* empty */
void sequence_close(sequence *s);
uint32_t sequence_tokens(const sequence *s);
/* A snapshot or fork: an independent sequence of the same tokens.  Shares pages and state; copies at most one page, when written. */
calla_status sequence_fork(sequence *s, sequence **out, calla_error *err);
/* The same into another sequence of the model, which forgets what it held; allocates nothing. */
void sequence_fork_into(const sequence *s, sequence *to);
/* Undoes the last committed step of this sequence (its rows are gone).  CALLA_E_ARGUMENT if there is none to undo: the previous state
 * is kept until the next step begins. */
calla_status sequence_rollback(sequence *s, calla_error *err);
/* How many more tokens could be appended to this sequence before the pool of pages is empty. */
uint32_t sequence_room(const sequence *s);
/* Forgets everything: pages and slots go back to the pools. */
void sequence_reset(sequence *s);

/* ---- steps ---- */

typedef enum model_want { WANT_NONE, WANT_LAST, WANT_ALL } model_want;

typedef struct model_segment {
    sequence *sequence;           /* each sequence at most once in a batch */
    const int32_t *ids;           /* [rows], each below the number of vocabulary rows; -1 - k: what segment k sampled in the step before */
    uint32_t rows;                /* at least 1 */
    model_want want;              /* which rows' logits */
    const sample_request *sample; /* sample from the last row; NULL: no */
} model_segment;

/* Asked between layers: true abandons the step. */
typedef bool (*model_stop_fn)(void *user);

/* Runs one batch.  CALLA_OK: every sequence has its new tokens.  CALLA_E_LIMIT: no pages or slots are left, or the batch is too
 * large; CALLA_E_CANCELLED: stop said so; CALLA_E_DEVICE.  After any failure all sequences are as before. */
calla_status model_step(model *m, const model_segment *segments, uint32_t n, model_stop_fn stop, void *user, calla_error *err);

/* The same in two halves, so that the device has its next step before the host has seen what this one sampled.  model_submit fails as
 * model_step does; when it succeeds the sequences have their tokens, and a step that turns out to be unwanted is undone by
 * sequence_rollback, before or after it is collected.  At most two steps are submitted and not collected, the second only if
 * model_runs_ahead.  model_collect waits for the oldest, whose results then are there.  After CALLA_E_DEVICE from it sequences hold
 * nothing of use.
 *
 * Between them model_pick hands over the sample requests of the segments submitted last, once, before the next step is submitted and before
 * this one is collected: if model_picks_later the device reads them only now, and at submit they need to say no more than `tokens`, so that
 * they may depend on the results of the step before, collected in between; otherwise they have been read and nothing happens. */
calla_status model_submit(model *m, const model_segment *segments, uint32_t n, model_stop_fn stop, void *user, calla_error *err);
void model_pick(model *m, const model_segment *segments);
calla_status model_collect(model *m, calla_error *err);
bool model_picks_later(const model *m);
/* Whether another step may be submitted before all that were are collected; and may then name what this segment of the last one, which
 * was picked, sampled. */
bool model_runs_ahead(const model *m);
bool model_runs_ahead_of(const model *m, uint32_t segment);

/* Results of the step that was collected last, valid until the next is submitted; logits only if none has been submitted since it. */
const float *model_logits(model *m, uint32_t segment, uint32_t row); /* row: among the segment's wanted rows */
const sample_result *model_sampled(model *m, uint32_t segment);      /* NULL if it asked for none */

/* For tests: called after the embedding (layer 0) and after each layer l (as layer l + 1), rows in batch order. */
typedef void (*model_probe_fn)(void *user, uint32_t layer, const float *residual /* [rows][H] */, uint32_t rows);
calla_status model_set_probe(model *m, model_probe_fn fn, void *user, calla_error *err);
/* For tests: zero the recurrent state of a sequence, to show that the tests would see its loss. */
void sequence_lose_state(sequence *s);

#endif

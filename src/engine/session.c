/* session.c: a sequence's side that callers see: its history of tokens, starting a job and waiting for it.
 *
 * The history is the truth: what the model holds of it can be taken away at any time and is computed again from here.  It grows in
 * append and generate only, on the caller's thread, so that the engine thread never allocates. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine.h"

calla_status calla_session_open(calla_engine *engine, calla_session **out, calla_error *err) {
    calla_session *s = *out = mem_calloc(1, sizeof *s);
    if (!s) return error_nomem(err, "a session");
    s->engine = engine;
    atomic_init(&s->cancel, false);
    return CALLA_OK;
}

static calla_status reserve(calla_session *s, size_t need, calla_error *err) {
    if (mem_grow(&s->ids, &s->cap_ids, need, sizeof *s->ids, SIZE_MAX) == 0) return CALLA_OK;
    return error_nomem(err, "the tokens of a session");
}

static calla_status check_idle(const calla_session *s, calla_error *err) {
    if (!s->active) return CALLA_OK;
    return error_set(err, CALLA_E_ARGUMENT, "the session has a job under way: wait for its end, or cancel it");
}

static calla_status fork_locked(const calla_session *s, calla_session *fork, calla_error *err) {
    calla_status status = check_idle(s, err);
    if (!status) status = reserve(fork, s->n_ids, err);
    if (status) return status;
    if (s->n_ids) memcpy(fork->ids, s->ids, s->n_ids * sizeof *s->ids);
    fork->n_ids = s->n_ids;
    fork->origin = s->origin; /* of a fork that has not begun */
    if (s->slot) {
        fork->origin.slot = s->slot;
        fork->origin.emptied = s->slot->emptied;
        fork->origin.tokens = sequence_tokens(s->slot->sequence);
    }
    return CALLA_OK;
}

calla_status calla_session_fork(const calla_session *session, calla_session **out, calla_error *err) {
    calla_engine *e = session->engine;
    calla_status status = calla_session_open(e, out, err);
    if (status) return status;
    pthread_mutex_lock(&e->lock);
    status = fork_locked(session, *out, err);
    pthread_mutex_unlock(&e->lock);
    if (status) {
        calla_session_close(*out);
        *out = NULL;
    }
    return status;
}

static void job_clear(job *j) {
    mem_free(j->bias);
    mem_free(j->mask);
    tally_close(&j->tally);
    *j = (job){0};
}

void calla_session_close(calla_session *s) {
    if (!s) return;
    calla_session_cancel(s);
    calla_session_wait(s);
    pthread_mutex_lock(&s->engine->lock);
    if (s->slot) s->slot->owner = NULL; /* the engine thread will empty it: the model is that thread's */
    pthread_mutex_unlock(&s->engine->lock);
    job_clear(&s->job);
    mem_free(s->ids);
    mem_free(s);
}

static calla_status append_locked(calla_session *s, const int32_t *ids, size_t n, calla_error *err) {
    calla_status status = check_idle(s, err);
    if (status) return status;
    uint32_t window = s->engine->info.context_tokens;
    if (n > window - s->n_ids)
        return error_set(err, CALLA_E_LIMIT,
                         "%zu tokens after %u would pass the context window of %u tokens: shorten the prompt, or use a larger --context", n,
                         s->n_ids, window);
    status = reserve(s, s->n_ids + n, err);
    if (status) return status;
    memcpy(s->ids + s->n_ids, ids, n * sizeof *ids);
    s->n_ids += (uint32_t)n;
    return CALLA_OK;
}

calla_status calla_session_append(calla_session *s, const int32_t *ids, size_t n, calla_error *err) {
    if (!n) return CALLA_OK;
    if (!ids) return error_set(err, CALLA_E_ARGUMENT, "append: ids is NULL");
    uint32_t rows = s->engine->info.vocabulary_rows;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= rows)
            return error_set(err, CALLA_E_ARGUMENT, "append: there is no token %d (number %zu); ids are 0 to %u", ids[i], i, rows - 1);
    pthread_mutex_lock(&s->engine->lock);
    calla_status status = append_locked(s, ids, n, err);
    pthread_mutex_unlock(&s->engine->lock);
    return status;
}

uint32_t calla_session_tokens(const calla_session *s) {
    pthread_mutex_lock(&s->engine->lock);
    uint32_t n = s->n_ids;
    pthread_mutex_unlock(&s->engine->lock);
    return n;
}

calla_status session_start(calla_session *s, calla_error *err) {
    calla_engine *e = s->engine;
    if (e->failed) return error_set(err, CALLA_E_DEVICE, "the device failed before (%s): restart calla", e->failure.message);
    if (atomic_load(&e->closing)) return error_set(err, CALLA_E_CANCELLED, "the engine is closing");
    if (!s->n_ids) return error_set(err, CALLA_E_ARGUMENT, "the session is empty: append the prompt's tokens first");
    s->job.arrived_ns = clock_now_ns();
    s->active = true;
    atomic_store(&s->cancel, false);
    s->next = NULL;
    *e->inbox_end = s;
    e->inbox_end = &s->next;
    e->n_active++;
    pthread_cond_signal(&e->wake);
    return CALLA_OK;
}

/* What the job owns is filled in piece by piece: on failure the caller clears it. */
static calla_status fill_job(calla_session *s, const calla_generate_options *o, calla_error *err) {
    const calla_engine_info *info = &s->engine->info;
    const calla_sampling *sampling = &o->sampling;
    job *j = &s->job;
    uint32_t room = info->context_tokens - s->n_ids;
    j->only_prompt = o->only_prompt || (o->prompt_logprobs && !room);
    j->max_tokens = o->max_tokens && o->max_tokens < room ? o->max_tokens : room;
    if (j->only_prompt) j->max_tokens = 0;
    if (o->prompt_logprobs) {
        j->prompt_rows = (score_output){.fn = score_prompt_row, .user = s};
        j->score = &j->prompt_rows;
    }
    j->ignore_stop = o->ignore_stop;
    j->sampling = sampling_request(sampling, info->vocabulary);
    j->sampling.logprob = o->logprobs || o->n_top_logprobs;
    j->sampling.n_top = o->n_top_logprobs;
    j->force = o->force;
    j->guide = o->guide;
    calla_status status = reserve(s, s->n_ids + j->max_tokens, err);
    if (!status && o->force.n) {
        j->mask = mem_array((info->vocabulary + 31u) / 32, sizeof *j->mask);
        if (!j->mask) return error_nomem(err, "the mask of forced tokens");
    }
    if (!status && sampling->n_bias) {
        j->bias = mem_array(sampling->n_bias, sizeof *j->bias);
        if (!j->bias) return error_nomem(err, "the logit bias");
        for (size_t i = 0; i < sampling->n_bias; i++) j->bias[i] = (sample_bias){sampling->bias_ids[i], sampling->bias[i]};
        j->sampling.bias = j->bias;
        j->sampling.n_bias = (uint32_t)sampling->n_bias;
    }
    if (!status && sampling_has_penalties(sampling)) {
        status = tally_open(&j->tally, info->vocabulary_rows, s->n_ids + j->max_tokens, err);
        for (uint32_t i = 0; !status && i < s->n_ids; i++) tally_add(&j->tally, s->ids[i], false);
    }
    return status;
}

calla_status calla_session_generate(calla_session *s, const calla_generate_options *options, calla_event_fn fn, void *user,
                                    calla_error *err) {
    if (!options || !fn) return error_set(err, CALLA_E_ARGUMENT, "generate: options and the event function must not be NULL");
    if (options->n_top_logprobs > CALLA_MAX_TOP_LOGPROBS)
        return error_set(err, CALLA_E_ARGUMENT, "top log-probabilities: %u are asked for, at most %d are possible", options->n_top_logprobs,
                         CALLA_MAX_TOP_LOGPROBS);
    calla_status status = sampling_check(&options->sampling, s->engine->info.vocabulary_rows, err);
    if (!status) status = force_check(&options->force, &s->engine->info, err);
    if (!status && options->guide.mask && !options->guide.took)
        status = error_set(err, CALLA_E_ARGUMENT, "guide: mask is given, but took is NULL");
    if (status) return status;
    pthread_mutex_lock(&s->engine->lock);
    status = check_idle(s, err);
    if (!status) {
        job_clear(&s->job);
        s->job.fn = fn;
        s->job.user = user;
        status = fill_job(s, options, err);
        if (!status) status = session_start(s, err);
        if (status) job_clear(&s->job);
    }
    pthread_mutex_unlock(&s->engine->lock);
    return status;
}

void calla_session_cancel(calla_session *s) {
    calla_engine *e = s->engine;
    pthread_mutex_lock(&e->lock);
    if (s->active) atomic_store(&s->cancel, true); /* seen soon: the engine thread does not sleep while a job is active */
    pthread_mutex_unlock(&e->lock);
}

void calla_session_wait(calla_session *s) {
    calla_engine *e = s->engine;
    pthread_mutex_lock(&e->lock);
    while (s->active) pthread_cond_wait(&e->idle, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

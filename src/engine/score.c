/* score.c: how likely the model finds given ids.  A score is a job like any other, of a session of its own: it takes its turns beside
 * those that generate.  A job that generates may have its prompt scored as well. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"

uint32_t score_most_rows(const score_output *out, uint32_t done, uint32_t wanted_rows, uint32_t batch_rows) {
    if (score_wants_rows(out, done)) return wanted_rows;
    return out->next - done < batch_rows ? out->next - done : batch_rows; /* a step has either context or wanted rows of a job */
}

bool score_wants_rows(const score_output *out, uint32_t done) { return done >= out->next; }

void score_deliver(score_output *out, uint32_t first, uint32_t rows, model *m, uint32_t segment) {
    if (!score_wants_rows(out, first)) return;
    for (uint32_t r = 0; r < rows; r++) out->fn(out->user, first + r, model_logits(m, segment, r));
    out->next = first + rows;
}

static double log_sum_exp(const float *x, uint32_t n) {
    float largest = -INFINITY;
    for (uint32_t i = 0; i < n; i++) largest = fmaxf(largest, x[i]);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)largest);
    return (double)largest + log(sum);
}

static int32_t largest_of(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

/* The n likeliest tokens below `tokens`, best first, of equal ones the lowest id; how many there are. */
static uint32_t likeliest(const float *logits, uint32_t tokens, uint32_t n, double log_sum, calla_token_logprob *out) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < tokens && n; i++) {
        if (!(logits[i] > (found == n ? out[n - 1].logprob : -INFINITY))) continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at && logits[i] > out[at - 1].logprob; at--) out[at] = out[at - 1];
        out[at] = (calla_token_logprob){.id = (int32_t)i, .logprob = logits[i]};
    }
    for (uint32_t i = 0; i < found; i++) out[i].logprob = (float)((double)out[i].logprob - log_sum);
    return found;
}

void score_prompt_row(void *user, size_t at, const float *logits) {
    const calla_session *s = user;
    const job *j = &s->job;
    const calla_engine_info *info = &s->engine->info;
    calla_token_logprob top[CALLA_MAX_TOP_LOGPROBS];
    calla_event event = {.kind = CALLA_EVENT_PROMPT_TOKEN, .prompt_tokens = j->prompt_tokens, .prompt_done = j->prompt_done};
    if (!at) {
        event.id = s->ids[0];
        event.logprob = NAN;
        j->fn(j->user, &event);
    }
    if (at + 1 >= s->n_ids) return;
    const double log_sum = log_sum_exp(logits, info->vocabulary_rows);
    event.id = s->ids[at + 1];
    event.logprob = (float)((double)logits[event.id] - log_sum);
    event.n_top = likeliest(logits, info->vocabulary, j->sampling.n_top, log_sum, top);
    event.top = event.n_top ? top : NULL;
    j->fn(j->user, &event);
}

/* ---- calla_engine_score_rows ---- */

typedef struct score_end {
    calla_finish finish;
    calla_error error;
} score_end;

static void score_event(void *user, const calla_event *event) {
    score_end *end = user;
    if (event->kind != CALLA_EVENT_DONE) return;
    end->finish = event->finish;
    if (event->error) end->error = *event->error;
}

calla_status calla_engine_score_rows(calla_engine *engine, const int32_t *ids, size_t n, size_t from, calla_row_fn fn, void *user,
                                     calla_error *err) {
    if (!n) return error_set(err, CALLA_E_ARGUMENT, "score: there are no ids");
    if (from >= n) return error_set(err, CALLA_E_ARGUMENT, "score: from position %zu of %zu ids: there is nothing to score", from, n);
    if (!fn) return error_set(err, CALLA_E_ARGUMENT, "score: the row function must not be NULL");
    calla_session *s = NULL;
    calla_status status = calla_session_open(engine, &s, err);
    if (status) return status;
    score_end end = {0};
    status = calla_session_append(s, ids, n, err);
    score_output out = {.fn = fn, .user = user, .next = status ? 0 : (uint32_t)from};
    if (!status) {
        pthread_mutex_lock(&engine->lock);
        s->job = (job){.fn = score_event, .user = &end, .score = &out, .only_prompt = true};
        status = session_start(s, err);
        pthread_mutex_unlock(&engine->lock);
    }
    if (!status) {
        calla_session_wait(s);
        if (end.finish == CALLA_FINISH_CANCELLED) status = error_set(err, CALLA_E_CANCELLED, "score: the engine was closed");
        if (end.finish == CALLA_FINISH_ERROR) status = error_set(err, end.error.status, "score: %s", end.error.message);
    }
    calla_session_close(s);
    return status;
}

/* ---- calla_engine_score: a few numbers of each row ---- */

typedef struct token_scores {
    const int32_t *ids; /* [n] */
    size_t n;
    uint32_t vocabulary;
    float *token_logprobs; /* [n-1] */
    int32_t *top1;         /* [n] */
    float *logits_last;    /* [vocabulary]; each of the three may be NULL */
} token_scores;

static void keep_scores(void *user, size_t at, const float *logits) {
    const token_scores *s = user;
    if (s->token_logprobs && at + 1 < s->n)
        s->token_logprobs[at] = (float)((double)logits[s->ids[at + 1]] - log_sum_exp(logits, s->vocabulary));
    if (s->top1) s->top1[at] = largest_of(logits, s->vocabulary);
    if (s->logits_last && at + 1 == s->n) memcpy(s->logits_last, logits, s->vocabulary * sizeof *logits);
}

calla_status calla_engine_score(calla_engine *engine, const int32_t *ids, size_t n, float *token_logprobs, int32_t *top1,
                                float *logits_last, calla_error *err) {
    token_scores s = {ids, n, engine->info.vocabulary_rows, token_logprobs, top1, logits_last};
    size_t from = token_logprobs || top1 || !n ? 0 : n - 1;
    return calla_engine_score_rows(engine, ids, n, from, keep_scores, &s, err);
}

/* score.c: how likely the model finds given ids.  A score is a job like any other, of a session of its own: it takes its turns beside
 * those that generate. */
#include <math.h>
#include <string.h>

#include "engine/engine.h"

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

void score_rows(const score_output *out, const int32_t *ids, uint32_t n_ids, uint32_t first, uint32_t rows, model *m, uint32_t segment) {
    uint32_t vocabulary = model_get_shape(m)->vocabulary;
    for (uint32_t r = 0; r < rows; r++) {
        const float *logits = model_logits(m, segment, r);
        uint32_t at = first + r;
        if (out->token_logprobs && at + 1 < n_ids)
            out->token_logprobs[at] = (float)((double)logits[ids[at + 1]] - log_sum_exp(logits, vocabulary));
        if (out->top1) out->top1[at] = largest_of(logits, vocabulary);
        if (out->logits_last && at + 1 == n_ids) memcpy(out->logits_last, logits, vocabulary * sizeof *logits);
    }
}

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

calla_status calla_engine_score(calla_engine *engine, const int32_t *ids, size_t n, float *token_logprobs, int32_t *top1,
                                float *logits_last, calla_error *err) {
    if (!n) return error_set(err, CALLA_E_ARGUMENT, "score: there are no ids");
    calla_session *s = NULL;
    calla_status status = calla_session_open(engine, &s, err);
    if (status) return status;
    score_end end = {0};
    score_output out = {token_logprobs, top1, logits_last};
    status = calla_session_append(s, ids, n, err);
    if (!status) {
        pthread_mutex_lock(&engine->lock);
        s->job = (job){.fn = score_event, .user = &end, .score = &out};
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

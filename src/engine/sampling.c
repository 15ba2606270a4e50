/* sampling.c: the caller's sampling parameters: ranges, defaults, and the backend's form of them. */
#include <math.h>

#include "engine/engine.h"

static calla_status check_range(const char *name, float value, float low, float high, calla_error *err) {
    if (value >= low && value <= high) return CALLA_OK; /* false for NaN */
    return error_set(err, CALLA_E_ARGUMENT, "%s is %g: it must be from %g to %g", name, (double)value, (double)low, (double)high);
}

calla_status sampling_check(const calla_sampling *s, uint32_t vocabulary_rows, calla_error *err) {
    calla_status status = check_range("temperature", s->temperature, 0, 1000, err);
    if (!status) status = check_range("top_p", s->top_p, 0, 1, err);
    if (!status) status = check_range("min_p", s->min_p, 0, 1, err);
    if (!status) status = check_range("presence_penalty", s->presence_penalty, -1000, 1000, err);
    if (!status) status = check_range("frequency_penalty", s->frequency_penalty, -1000, 1000, err);
    if (!status) status = check_range("repetition_penalty", s->repetition_penalty, 0.001f, 1000, err);
    if (status) return status;
    if (s->n_bias && (!s->bias_ids || !s->bias))
        return error_set(err, CALLA_E_ARGUMENT, "logit bias: n_bias is %zu, but an array is NULL", s->n_bias);
    if (s->n_bias > vocabulary_rows)
        return error_set(err, CALLA_E_ARGUMENT, "logit bias: %zu entries for a vocabulary of %u", s->n_bias, vocabulary_rows);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias_ids[i] < 0 || (uint32_t)s->bias_ids[i] >= vocabulary_rows)
            return error_set(err, CALLA_E_ARGUMENT, "logit bias: there is no token %d; ids are 0 to %u", s->bias_ids[i],
                             vocabulary_rows - 1);
        if (!isfinite(s->bias[i])) return error_set(err, CALLA_E_ARGUMENT, "logit bias of token %d is not a finite number", s->bias_ids[i]);
    }
    return CALLA_OK;
}

bool sampling_has_penalties(const calla_sampling *s) {
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || s->repetition_penalty != 1;
}

sample_request sampling_request(const calla_sampling *s, uint32_t tokens) {
    return (sample_request){
        .tokens = tokens,
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .presence = s->presence_penalty,
        .frequency = s->frequency_penalty,
        .repetition = s->repetition_penalty,
        .seed = s->seed,
        .choice = s->choice,
    };
}

calla_sampling sampling_from_defaults(const sampling_defaults *d) {
    return (calla_sampling){
        .temperature = d->do_sample ? d->temperature : 0,
        .top_k = d->top_k,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .presence_penalty = d->presence_penalty,
        .frequency_penalty = d->frequency_penalty,
        .repetition_penalty = d->repetition_penalty,
    };
}

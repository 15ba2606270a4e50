/* results.c: what a step brought: tokens, and logits where they lie.
 *
 * The device leaves the best token of each of the head's threadgroups, of those that the row's mask allows.  A request for more than that
 * (temperature, penalties, bias, log-probabilities) is sampled here by the reference's sampler, so that the answer is the same on every
 * device. */
#include "backend/metal/metal.h"
#include "backend/ref/sample.h"

/* It asks for the largest logit under the mask that the device had for the row. */
static bool is_answered(const sample_request *r, const sample_request *of_device) {
    const bool penalties = (r->repetition != 1.0f && r->n_seen) || r->n_counts || r->n_bias;
    return of_device && r->tokens == of_device->tokens && r->mask == of_device->mask && !(r->temperature > 0) && !penalties && !r->logprob;
}

static int32_t best_of(const metal_best *best) {
    metal_best most = best[0];
    for (uint32_t i = 1; i < METAL_HEAD_GROUPS; i++) {
        if (best[i].id == UINT32_MAX) continue;
        const bool better = most.id == UINT32_MAX || best[i].value > most.value;
        if (better || (best[i].value >= most.value && best[i].id < most.id)) most = best[i];
    }
    return most.id == UINT32_MAX ? -1 : (int32_t)most.id;
}

static bool is_known(const row_batch *t, uint32_t sample) {
    return t->wanted <= METAL_STEP_ROWS && is_answered(&t->sample[sample], metal_batch_request(t, t->sample_of[sample]));
}

void metal_results_due(backend *b) {
    const row_batch *t = b->batch;
    for (uint32_t i = 0; i < t->samples; i++) b->best_of[i] = is_known(t, i) ? t->sample_of[i] : UINT32_MAX;
}

void metal_results(backend *b, uint32_t slot) {
    const row_batch *t = b->ring.submitted[slot].batch;
    const float *logits = (const float *)(const void *)b->buf[BUF_LOGITS].host;
    for (uint32_t i = 0; i < t->samples; i++) {
        const uint32_t wanted = t->sample_of[i];
        if (is_known(t, i))
            b->results[i] = (sample_result){.id = best_of(metal_batch_best(b, slot) + (uint64_t)wanted * METAL_HEAD_GROUPS)};
        else
            ref_sample(logits + (uint64_t)wanted * b->s->vocabulary, b->s->vocabulary, &t->sample[i], b->sample_scratch, &b->results[i]);
    }
}

/* results.c: what a step brought: picked tokens, logits where they are asked for.
 *
 * The device picks the largest logit of every wanted row.  A request for more than that (temperature, penalties, bias, mask,
 * log-probabilities) is sampled here by the reference's sampler from the row's logits, so that the answer is the same on every device;
 * the token then goes back, since the next step may name it. */
#include "backend/cuda/cuda.h"
#include "backend/ref/sample.h"

static bool is_plain(const sample_request *r, uint32_t tokens) {
    const bool penalties = (r->repetition != 1.0f && r->n_seen) || r->n_counts || r->n_bias || r->mask;
    return r->tokens == tokens && !(r->temperature > 0) && !penalties && !r->logprob;
}

const float *cuda_fetch_logits(backend *b, uint32_t wanted) {
    const uint64_t values = (uint64_t)b->wanted * b->s->vocabulary;
    if (!b->logits_here) {
        cuda_ok(b, cudaMemcpyAsync(b->host_logits, b->buf[BUF_LOGITS], values * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
        cuda_ok(b, cudaStreamSynchronize(b->stream));
        b->logits_here = true;
    }
    return b->host_logits + (uint64_t)wanted * b->s->vocabulary;
}

calla_status cuda_fetch_results(backend *b, calla_error *err) {
    const row_batch *t = b->batch;
    bool sampled_here = false;
    for (uint32_t i = 0; i < t->samples; i++) {
        sample_result *r = &b->results[i];
        if (is_plain(&t->sample[i], t->sample[0].tokens)) {
            *r = (sample_result){.id = b->largest[t->sample_of[i]]};
            continue;
        }
        ref_sample(cuda_fetch_logits(b, t->sample_of[i]), b->s->vocabulary, &t->sample[i], b->sample_scratch, r);
        sampled_here = true;
        cuda_ok(b, cudaMemcpyAsync(b->scratch.picked + i, &r->id, sizeof r->id, cudaMemcpyHostToDevice, b->stream));
    }
    if (sampled_here) cuda_ok(b, cudaStreamSynchronize(b->stream));
    if (!b->error) return CALLA_OK;
    return error_set(err, CALLA_E_DEVICE, "the CUDA device failed: %s; see the system's log, and start again",
                     cudaGetErrorString(b->error));
}

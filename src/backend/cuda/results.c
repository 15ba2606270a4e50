/* results.c: what a step brought: picked tokens, logits where they are asked for.
 *
 * The device picks: the head the largest logit of every wanted row, sampling.cu what is asked for beyond that.  What neither does
 * (log-probabilities, a draw from the best of more than SAMPLING_TOP_K) is sampled here by the reference's sampler from the row's logits,
 * so that the answer is the same on every device; the token then goes back, since the next step may name it. */
#include "backend/cuda/cuda.h"
#include "backend/ref/sample.h"

const float *cuda_fetch_logits(backend *b, uint32_t wanted) {
    const uint64_t values = (uint64_t)b->wanted * b->s->vocabulary;
    if (!b->logits_here) {
        cuda_ok(b, cudaMemcpyAsync(b->host_logits, b->buf[BUF_LOGITS], values * sizeof(float), cudaMemcpyDeviceToHost, b->stream));
        cuda_ok(b, cudaStreamSynchronize(b->stream));
        b->logits_here = true;
    }
    return b->host_logits + (uint64_t)wanted * b->s->vocabulary;
}

calla_status cuda_failure(const backend *b, calla_error *err) {
    return error_set(err, CALLA_E_DEVICE, "the CUDA device failed: %s; see the system's log, and start again",
                     cudaGetErrorString(b->error));
}

calla_status cuda_fetch_results(backend *b, uint32_t at, calla_error *err) {
    const row_batch *t = b->submitted[at];
    bool sampled_here = false;
    for (uint32_t i = 0; i < t->samples; i++) {
        sample_result *r = &b->results[i];
        switch (cuda_picker_of(t, i)) {
        case PICKED_BY_HEAD: *r = (sample_result){.id = b->largest[at * b->limits.wanted + t->sample_of[i]]}; break;
        case PICKED_BY_SAMPLING: *r = (sample_result){.id = b->chosen[at * b->limits.samples + i]}; break;
        case PICKED_BY_HOST:
            ref_sample(cuda_fetch_logits(b, t->sample_of[i]), b->s->vocabulary, &t->sample[i], b->sample_scratch, r);
            sampled_here = true;
            cuda_ok(b, cudaMemcpyAsync(b->scratch.picked + i, &r->id, sizeof r->id, cudaMemcpyHostToDevice, b->stream));
        }
    }
    if (sampled_here) cuda_ok(b, cudaStreamSynchronize(b->stream));
    return b->error ? cuda_failure(b, err) : CALLA_OK;
}

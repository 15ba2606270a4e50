/* requests.c: what is to be picked from the logits of a step, from the model's requests into pinned memory and from there to the device. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/random.h"

enum { LISTED = 8192 /* entries of one request's lists that there is room for */ };

static uint32_t mask_words(uint32_t tokens) { return (tokens + 31) / 32; }

/* In words. */
static uint64_t job_capacity(const model_shape *s) { return sizeof(sampling_job) / 4 + mask_words(s->vocabulary) + 2 * (uint64_t)LISTED; }

uint64_t cuda_requests_capacity(const model_shape *s, const backend_limits *n) { return n->samples * job_capacity(s) * 4; }

static bool has_lists(const sample_request *r) { return (r->repetition != 1.0f && r->n_seen) || r->n_counts || r->n_bias; }

cuda_picker cuda_picker_of(const row_batch *t, uint32_t sample) {
    const sample_request *r = &t->sample[sample];
    if (r->logprob) return PICKED_BY_HOST;
    if (!(r->temperature > 0) && !r->mask && !has_lists(r) && r->tokens == t->sample[0].tokens) return PICKED_BY_HEAD;
    const bool few = !(r->temperature > 0) || r->top_k <= SAMPLING_TOP_K;
    return few && (uint64_t)r->n_seen + r->n_counts + r->n_bias <= LISTED ? PICKED_BY_SAMPLING : PICKED_BY_HOST;
}

static uint32_t put(uint32_t *words, uint64_t *at, const void *from, uint32_t n) {
    if (!n) return 0;
    const uint64_t here = *at;
    memcpy(words + here, from, (uint64_t)n * 4);
    *at += n;
    return (uint32_t)here;
}

static sampling_job write_job(const row_batch *t, uint32_t sample, uint32_t *words, uint64_t *at) {
    const sample_request *r = &t->sample[sample];
    sampling_job j = {.wanted = SAMPLING_NOT_HERE};
    if (cuda_picker_of(t, sample) != PICKED_BY_SAMPLING) return j;
    j = (sampling_job){.wanted = t->sample_of[sample],
                       .tokens = r->tokens,
                       .top_k = r->temperature > 0 ? r->top_k : 1,
                       .temperature = r->temperature,
                       .top_p = r->top_p,
                       .min_p = r->min_p,
                       .presence = r->presence,
                       .frequency = r->frequency,
                       .repetition = r->repetition,
                       .uniform = random_uniform(r->seed, r->choice, r->position),
                       .n_seen = r->repetition != 1.0f ? r->n_seen : 0,
                       .n_counts = r->n_counts,
                       .n_bias = r->n_bias};
    j.seen = put(words, at, r->seen, j.n_seen);
    j.counts = put(words, at, r->counts, 2 * j.n_counts);
    j.bias = put(words, at, r->bias, 2 * j.n_bias);
    if (r->mask) j.mask = put(words, at, r->mask, mask_words(r->tokens));
    return j;
}

void cuda_requests_send(backend *b, const row_batch *t) {
    const uint64_t capacity = cuda_requests_capacity(b->s, &b->limits);
    uint32_t *words = (uint32_t *)(void *)(b->host_requests + b->at * capacity);
    sampling_job *jobs = (sampling_job *)(void *)words;
    uint64_t at = t->samples * sizeof *jobs / 4;
    bool any = false, lists = false, all = false;
    for (uint32_t i = 0; i < t->samples; i++) {
        jobs[i] = write_job(t, i, words, &at);
        if (jobs[i].wanted == SAMPLING_NOT_HERE) continue;
        any = true;
        all |= !jobs[i].top_k;
        lists |= jobs[i].n_seen || jobs[i].n_counts || jobs[i].n_bias;
    }
    b->sampling.samples = 0;
    if (!any) return;
    b->sampling = (sampling_step){.jobs = (const sampling_job *)(const void *)b->device_requests,
                                  .logits = b->buf[BUF_LOGITS],
                                  .adjusted = b->scratch.adjusted,
                                  .largest = b->scratch.span_largest,
                                  .weights = b->scratch.span_weights,
                                  .picked = b->scratch.picked,
                                  .chosen = b->chosen + (uint64_t)b->at * b->limits.samples,
                                  .vocabulary = b->s->vocabulary,
                                  .samples = t->samples,
                                  .lists = lists,
                                  .all = all};
    cuda_ok(b, cudaMemcpyAsync(b->device_requests, words, at * 4, cudaMemcpyHostToDevice, b->stream));
}

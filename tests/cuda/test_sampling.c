/* test_sampling.c: tokens picked on the device against the reference's sampler, over rows of all kinds: sizes that fill no span, equal logits by
 * the thousand, logits that are no numbers, masks, penalties and draws.  Needs an NVIDIA GPU.
 *
 * usage: test_sampling [ROUNDS]      of eight rows [40]; each ten take all sizes */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/ref/sample.h"
#include "base/random.h"

enum { SAMPLES = 8, MOST = 248320, LISTED = 300 };

static uint64_t draws;
static float uniform(void) { return random_uniform(draws++, 0, 0); }
static uint32_t below(uint32_t n) { return (uint32_t)(uniform() * (float)n); }

static void must(cudaError_t e, const char *what) {
    if (!e) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static float normal(void) { return sqrtf(-2 * logf(uniform() + 1e-7f)) * cosf(6.2831853f * uniform()); }

/* A row of one of several kinds. */
static void fill(float *x, uint32_t n, uint32_t kind) {
    for (uint32_t i = 0; i < n; i++) {
        const float v = 3 * normal();
        x[i] = kind == 1   ? roundf(v)                      /* many are equal */
               : kind == 2 ? 1.5f                           /* all are */
               : kind == 3 ? (i % 700 < 20 ? 9 + v / 8 : v) /* the best lie together */
               : kind == 4 ? (below(3)   ? v
                              : below(2) ? NAN
                              : below(2) ? INFINITY
                                         : -INFINITY)
               : kind == 5 ? -INFINITY
               : kind == 6 ? (below(2) ? 0.0f : -0.0f)
                           : v;
    }
}

typedef struct lists {
    int32_t seen[LISTED];
    sample_count counts[LISTED];
    sample_bias bias[LISTED];
    uint32_t mask[MOST / 32];
} lists;

static sample_request draw_request(uint32_t tokens, lists *l) {
    static const uint32_t top_k[] = {0, 0, 1, 2, 20, 64, 255, 256};
    sample_request r = {
        .tokens = tokens, .repetition = 1, .top_p = 1, .seed = below(1 << 20), .choice = below(4), .position = below(1 << 20)};
    const uint32_t stride = tokens / LISTED + 1; /* lists hold distinct ids */
    if (below(4)) r.temperature = below(2) ? 1.0f : 0.05f + 2 * uniform(), r.top_k = top_k[below(8)];
    if (below(2)) r.top_p = 0.5f + 0.5f * uniform();
    if (below(3) == 0) r.min_p = 0.2f * uniform();
    for (uint32_t i = 0; i < LISTED; i++) {
        const int32_t id = (int32_t)(i * stride + below(stride)); /* some beyond the end */
        l->seen[i] = l->counts[i].id = l->bias[i].id = id;
        l->counts[i].count = below(4);
        l->bias[i].bias = 8 * normal();
    }
    if (below(3) == 0) r.repetition = 0.7f + uniform(), r.seen = l->seen, r.n_seen = below(LISTED);
    if (below(3) == 0) r.presence = uniform(), r.frequency = uniform(), r.counts = l->counts, r.n_counts = below(LISTED);
    if (below(3) == 0) r.bias = l->bias, r.n_bias = below(LISTED);
    if (below(2)) {
        const float part = below(3) ? uniform() : 4.0f / (float)tokens; /* few, and at times none */
        memset(l->mask, 0, sizeof l->mask);
        for (uint32_t i = 0; i < tokens; i++) l->mask[i / 32] |= (uint32_t)(uniform() < part) << i % 32;
        r.mask = l->mask;
    }
    return r;
}

static backend *open_backend(model_shape *s) {
    backend *b = calloc(1, sizeof *b);
    b->s = s;
    b->limits = (backend_limits){.wanted = SAMPLES, .samples = SAMPLES};
    must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "stream");
    const uint64_t row = (uint64_t)SAMPLES * MOST * 4;
    s->vocabulary = MOST;
    const uint64_t requests = cuda_requests_capacity(s, &b->limits);
    must(cudaMalloc(&b->buf[BUF_LOGITS], row), "logits");
    must(cudaMalloc((void **)&b->scratch.adjusted, row), "scratch");
    must(cudaMalloc((void **)&b->scratch.span_largest, (uint64_t)SAMPLES * SAMPLING_SPANS * 4), "scratch");
    must(cudaMalloc((void **)&b->scratch.span_weights, (uint64_t)SAMPLES * SAMPLING_SPANS * sizeof *b->scratch.span_weights), "scratch");
    must(cudaMalloc((void **)&b->scratch.picked, SAMPLES * 4), "tokens");
    must(cudaMalloc((void **)&b->device_requests, requests), "requests");
    must(cudaHostAlloc((void **)&b->host_requests, 2 * requests, cudaHostAllocDefault), "requests");
    must(cudaHostAlloc((void **)&b->chosen, 2 * SAMPLES * 4, cudaHostAllocMapped), "tokens");
    return b;
}

int main(int argc, char **argv) {
    const uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 40;
    static const uint32_t sizes[] = {1, 2, 31, 33, 320, 1025, 4096, 32769, 65536, 248077};
    static lists all[SAMPLES];
    static uint8_t scratch[MOST * 20];
    model_shape shape = {0};
    backend *b = open_backend(&shape);
    float *logits = malloc((uint64_t)SAMPLES * MOST * 4);
    uint32_t wrong = 0, seen = 0, here = 0, none = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        sample_request samples[SAMPLES];
        uint32_t sample_of[SAMPLES];
        int32_t picked[SAMPLES];
        const uint32_t tokens = sizes[round % 10];
        shape.vocabulary = (tokens + 319) / 320 * 320;
        for (uint32_t i = 0; i < SAMPLES; i++) {
            fill(logits + (uint64_t)i * shape.vocabulary, shape.vocabulary, i < 7 ? i : 0);
            samples[i] = draw_request(tokens, &all[i]);
            sample_of[i] = (i + round) % SAMPLES; /* and each row may be asked for in any order */
        }
        const row_batch t = {.wanted = SAMPLES, .samples = SAMPLES, .sample_of = sample_of, .sample = samples};
        b->at ^= 1;
        must(cudaMemcpy(b->buf[BUF_LOGITS], logits, (uint64_t)SAMPLES * shape.vocabulary * 4, cudaMemcpyHostToDevice), "logits");
        cuda_requests_send(b, &t);
        if (b->sampling.samples) sampling_run(&b->sampling, b->stream);
        must(cudaStreamSynchronize(b->stream), "sampling");
        must(cudaMemcpy(picked, b->scratch.picked, sizeof picked, cudaMemcpyDeviceToHost), "tokens");
        for (uint32_t i = 0; i < SAMPLES; i++) {
            sample_result want;
            seen++;
            if (cuda_picker_of(&t, i) != PICKED_BY_SAMPLING) continue;
            here++;
            ref_sample(logits + (uint64_t)sample_of[i] * shape.vocabulary, shape.vocabulary, &samples[i], scratch, &want);
            none += want.id < 0;
            if (want.id == b->chosen[b->at * SAMPLES + i] && want.id == picked[i]) continue;
            wrong++;
            printf("wrong: %u tokens, row %u, temperature %g, top_k %u, top_p %g: %d and %d, not %d\n", tokens, sample_of[i],
                   (double)samples[i].temperature, samples[i].top_k, (double)samples[i].top_p, b->chosen[b->at * SAMPLES + i], picked[i],
                   want.id);
        }
    }
    printf("%u samples, %u by the device, %u without any token, %u wrong\n", seen, here, none, wrong);
    return wrong || here < seen / 2 || !none;
}

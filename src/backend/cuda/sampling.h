/* sampling.h: tokens picked on the device, bit for bit as backend/ref/sample.h says: the border between requests.c and sampling.cu. */
#ifndef CALLA_BACKEND_CUDA_SAMPLING_H
#define CALLA_BACKEND_CUDA_SAMPLING_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SAMPLING_TOP_K = 256 /* most candidates of a draw */, SAMPLING_SPANS = 1024 /* parts of a row whose largest are kept */ };

#define SAMPLING_NOT_HERE UINT32_MAX

/* A sample_request (backend.h) on the device.  Lists and mask are offsets in 32-bit words from the first job; 0: none. */
typedef struct sampling_job {
    uint32_t wanted; /* the row of logits; SAMPLING_NOT_HERE: another picks this one */
    uint32_t tokens;
    uint32_t top_k;    /* at most SAMPLING_TOP_K; 0: all; 1: the largest, and what follows does not matter */
    float temperature; /* above 0 where top_k is not 1 */
    float top_p, min_p, presence, frequency, repetition;
    float uniform; /* random_uniform(seed, choice, position) */
    uint32_t n_seen, n_counts, n_bias;
    uint32_t seen, counts, bias, mask;
} sampling_job;

/* Sums of the weights of a span's tokens: of all, and of those of at least min_p. */
typedef struct sampling_weights {
    uint64_t total, likely;
} sampling_weights;

/* All pointers are the device's. */
typedef struct sampling_step {
    const sampling_job *jobs;  /* [samples], and behind them their lists */
    const float *logits;       /* [wanted][vocabulary] */
    float *adjusted;           /* [samples][vocabulary] scratch */
    float *largest;            /* [samples][SAMPLING_SPANS] scratch */
    sampling_weights *weights; /* [samples][SAMPLING_SPANS] scratch */
    int32_t *picked, *chosen;  /* [samples] the tokens, twice: for the next step, and for the host; -1: none is allowed */
    uint32_t vocabulary, samples;
    bool lists; /* a job has penalties or bias */
    bool all;   /* one draws from all tokens */
} sampling_step;
void sampling_run(const sampling_step *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

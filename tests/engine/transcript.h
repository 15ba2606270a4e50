/* transcript.h: what a job's events said, for tests of the engine. */
#ifndef CALLA_TESTS_TRANSCRIPT_H
#define CALLA_TESTS_TRANSCRIPT_H

#include <stdatomic.h>

#include "calla.h"

#define TRANSCRIPT_MAX 4096

typedef struct transcript {
    calla_session *session;
    uint32_t n;
    int32_t ids[TRANSCRIPT_MAX];
    float logprobs[TRANSCRIPT_MAX];
    calla_token_logprob top[TRANSCRIPT_MAX][2];
    bool last_is_stop;
    uint32_t prompt_tokens, prompt_done, prompt_events;
    atomic_uint events;  /* of any kind */
    atomic_uint done;    /* DONE events */
    uint32_t after_done; /* events after it */
    calla_finish finish;
    calla_error error;
    calla_event last;
    uint32_t cancel_after; /* cancels its session at this many tokens; 0: never */
} transcript;

/* A calla_event_fn; user is a transcript. */
void transcript_event(void *user, const calla_event *event);

/* Greedy, nothing special. */
calla_generate_options greedy_options(uint32_t max_tokens);
/* The same at temperature 1. */
calla_generate_options sampling_options(uint32_t max_tokens, uint64_t seed);
enum { TINY_STOP = 2 }; /* tiny-a's stop id */
/* Greedy, and nothing is likelier than the stop id. */
calla_generate_options stopping_options(uint32_t max_tokens);

/* Every failure of these ends the test.  tiny-a is opened on ref, whose results are the same to the last bit in any batch. */
calla_engine *open_tiny(uint32_t context_tokens, uint32_t max_sequences, uint32_t batch_rows);
/* The same in steps of 64 rows with a pool of so many KV pages; 0: as many as the sequences can fill. */
calla_engine *open_tiny_with_pages(uint32_t context_tokens, uint32_t max_sequences, uint32_t pages);
calla_session *open_session(calla_engine *e, const int32_t *ids, size_t n);
/* Clears t, starts, does not wait. */
void start(calla_session *s, const calla_generate_options *o, transcript *t);
void generate(calla_session *s, const calla_generate_options *o, transcript *t);
/* A session of its own for one prompt and answer. */
void generate_alone(calla_engine *e, const int32_t *ids, size_t n, const calla_generate_options *o, transcript *t);
/* Bit-equal ids and log-probabilities, and the same end. */
void assert_same(const transcript *a, const transcript *b);
/* ids [n] below `vocabulary` by a hash of seed. */
void random_ids(int32_t *ids, uint32_t n, uint32_t vocabulary, uint64_t seed);

#endif

/* stripes.h: a guide for tests of the engine.  A wrong count of took, a mask of another row or a mask that came late shows at once. */
#ifndef CALLA_TESTS_STRIPES_H
#define CALLA_TESTS_STRIPES_H

#include "transcript.h"

enum { STRIPES_VOCABULARY = 8192 /* at most */ };

/* Allows the ids that are `rest` modulo `modulus` after an even number of tokens, and one above each after an odd one; from `free_after`
 * tokens on anything. */
typedef struct stripes {
    uint32_t vocabulary, modulus, rest, free_after;
    uint32_t took, asked;
    int32_t ids[TRANSCRIPT_MAX];
    uint32_t mask[STRIPES_VOCABULARY / 32];
} stripes;

/* Begins anew; s is the guide's until its job's DONE event. */
calla_guide stripes_guide(stripes *s, uint32_t vocabulary, uint32_t modulus, uint32_t rest);
/* What residue the token at place i of the answer must have. */
uint32_t stripes_rest_at(const stripes *s, uint32_t i);
/* Every token of t was allowed, and told. */
void assert_guided(const stripes *s, const transcript *t);

#endif

/* form_brute.h: a form's program run slowly: byte by byte, with every stack written out, and none of what makes the matcher fast.
 * For tests. */
#ifndef CALLA_TESTS_FORM_BRUTE_H
#define CALLA_TESTS_FORM_BRUTE_H

#include "text/form/form_program.h"

typedef struct brute_config {
    uint32_t state;
    uint32_t depth;
    uint64_t count;
    struct {
        uint64_t state, count;
    } frames[FORM_MAX_FRAMES]; /* [depth], the lowest first */
} brute_config;

/* A set of configurations, with all that they reach without reading. */
typedef struct brute {
    const form_program *program;
    brute_config *configs; /* [n] */
    size_t n, cap;
} brute;

void brute_begin(brute *r, const form_program *p, uint32_t machine);
void brute_free(brute *r);
/* From a set to what a symbol leads to.  false: nothing. */
bool brute_step(const brute *from, uint32_t symbol, brute *to);
bool brute_accepts(const brute *r);
bool brute_is_free(const brute *r); /* it stands where text is free */

#endif

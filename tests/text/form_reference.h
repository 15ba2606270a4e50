/* form_reference.h: a form's program run slowly: byte by byte, with every stack written out, and none of what makes the matcher fast.
 * For tests. */
#ifndef CALLA_TESTS_FORM_REFERENCE_H
#define CALLA_TESTS_FORM_REFERENCE_H

#include "text/form/form_program.h"

typedef struct reference_config {
    uint32_t state;
    uint32_t depth;
    uint64_t count;
    struct {
        uint64_t state, count;
    } frames[FORM_MAX_FRAMES]; /* [depth], the lowest first */
} reference_config;

/* <tool_call> and </tool_call> in the texts of tests. */
#define CALL_BEGIN "\x01"
#define CALL_END "\x02"

/* A set of configurations, with all that they reach without reading. */
typedef struct form_reference {
    const form_program *program;
    reference_config *configs; /* [n] */
    size_t n, cap;
} form_reference;

void reference_begin(form_reference *r, const form_program *p, uint32_t machine);
void reference_free(form_reference *r);
/* From a set to what a symbol leads to.  false: nothing. */
bool reference_step(const form_reference *from, uint32_t symbol, form_reference *to);
bool reference_accepts(const form_reference *r);
bool reference_is_free(const form_reference *r); /* it stands where text is free */
/* A text from the root: 1: accepted; 0: a valid beginning; -1: refused. */
int reference_try(const form_program *p, const char *text, size_t n);

#endif

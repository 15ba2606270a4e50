/* form.h: what the targets of forms share: a form of the input, and a way through it that the input chooses. */
#ifndef CALLA_TESTS_FUZZ_FORM_H
#define CALLA_TESTS_FUZZ_FORM_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "calla.h"

/* The input: a byte of flags, a text up to the first NUL, and bytes that choose tokens. */
typedef struct form_input {
    unsigned flags;
    const char *source; /* [n_source] */
    size_t n_source;
    const uint8_t *way; /* [n_way] */
    size_t n_way;
} form_input;

/* false: no input. */
bool form_input_read(const uint8_t *data, size_t n, form_input *out);

/* Compiles the form.  Refused: with a message.  Else every token on the way that its masks allow is taken, one that they forbid is not,
 * and *answer is the text.  true: it ended. */
bool form_walk(const calla_form_options *options, bool thinking, const form_input *in, buffer *answer);
void form_require(bool ok, const char *what);

#endif

/* form_hand.h: programs written by hand, so that the matcher is tested on every kind of edge without the compiler. */
#ifndef CALLA_TESTS_FORM_HAND_H
#define CALLA_TESTS_FORM_HAND_H

#include "text/form/form_program.h"

/* An array [of bytes and commas, of unbounded depth] of strings of 3 to 7 characters; 2 to 4 items in each. */
form_program *hand_arrays(void);
/* A call with parameters in any order, each at most once, the first one required, and free text before it; calls may follow each other. */
form_program *hand_calls(void);
/* One of 32 words and one of 37 numbers, chosen through two levels of 64 calls each: more configurations than a set has room for. */
form_program *hand_choices(void);

#endif

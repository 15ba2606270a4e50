/* answer_output.h: the last stage of an answer: pieces on their way to the caller.
 *
 * Joins what one token printed into one piece, and holds back white space at the end of reasoning and (where calls are possible) of
 * content, since it is dropped where a tag follows. */
#ifndef CALLA_TEXT_ANSWER_OUTPUT_H
#define CALLA_TEXT_ANSWER_OUTPUT_H

#include "base/buffer.h"
#include "calla.h"

typedef struct answer_output {
    calla_piece_fn fn;
    void *user;
    bool hold_content_space;
    bool failed;           /* something was lost for want of memory; sticks */
    calla_piece_kind kind; /* of pending */
    buffer pending;
} answer_output;

void output_text(answer_output *o, calla_piece_kind kind, const char *text, size_t n);
/* A tag follows: white space at the end of what is pending is not part of the answer. */
void output_drop_space(answer_output *o);
void output_call(answer_output *o, const char *name);
void output_arguments(answer_output *o, const char *json, size_t n);
void output_call_end(answer_output *o);
void output_deliver(answer_output *o); /* what need not be held */
void output_flush(answer_output *o);   /* everything */
void output_free(answer_output *o);

#endif

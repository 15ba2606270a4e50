/* responses.h: one response of POST /v1/responses under way, as responses.c and responses_output.c see it. */
#ifndef CALLA_SERVER_RESPONSES_H
#define CALLA_SERVER_RESPONSES_H

#include "server/completion.h"
#include "server/responses_request.h"

typedef struct responses_run {
    responses_request request;  /* first */
    buffer items;               /* what the store gets: the inside of a JSON array */
    buffer echo;                /* fields that come back in the response: "instructions":…,…, */
    size_t output_at, output_n; /* where the output items stand in what responses_output_whole wrote */
    uint32_t sequence;          /* number of the next event */
    size_t open;                /* 1 + the part whose item is open; 0: none */
    buffer logprobs;            /* entries of content tokens, without commas between parts */
    size_t *logprob_ends;       /* [cap_ends] in it, of each part begun; streams only */
    size_t cap_ends;
} responses_run;

extern const completion_dialect responses_dialect;

static inline responses_run *responses_run_of(const completion *c) { return (responses_run *)c->own; }

/* responses_output.c: the functions of the dialect that write. */
void responses_output_begin(completion *c);
void responses_output_token(completion_choice *choice, const job_token *token);
void responses_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part);
void responses_output_finish(completion_choice *choice);
void responses_output_end(completion *c);
void responses_output_fail(completion *c, const api_error *e);
void responses_output_keepalive(completion *c);
void responses_output_progress(completion *c, uint32_t done, uint32_t of);
/* The response object as it is at the end; tells run->output_at and _n. */
void responses_output_whole(completion *c, buffer *out);

#endif

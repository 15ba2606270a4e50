/* text_completion.h: one request of POST /v1/completions. */
#ifndef CALLA_SERVER_TEXT_COMPLETION_H
#define CALLA_SERVER_TEXT_COMPLETION_H

#include "server/completion.h"

/* Entries of the log-probabilities not sent yet, comma-separated, as the API has them: four arrays. */
typedef struct text_logprobs {
    buffer tokens, values, tops, offsets;
    size_t offset;      /* of the next token, in characters of the text */
    calla_answer *echo; /* in a stream: the prompt under way, or NULL */
} text_logprobs;

typedef struct text_request {
    conversation conversation; /* first */
    json_object *prompt;       /* of the body */
    bool echo;
    bool nothing;   /* max_tokens 0: the prompt alone */
    buffer *echoes; /* [n_echoes], owned: the text of each prompt, if echo; in a stream with logprobs it comes with them */
    size_t n_echoes;
    text_logprobs *logprobs; /* [n_logprobs], owned: one per choice */
    size_t n_logprobs;
} text_request;

extern const completion_dialect text_completion_dialect;
extern const param_table text_completion_params;

/* The ids in an array; field names it for errors.  calla_ids_free(out) in any case. */
bool text_request_ids(json_object *array, const calla_engine_info *info, const char *field, calla_ids *out, api_error *e);
/* body [n] → r, on which conversation_init was called.  Any thread. */
bool text_request_read(text_request *r, const char *body, size_t n, api_error *e);

#endif

/* chat_request.h: the body of POST /v1/chat/completions as calla understands it.  Any thread; nothing here touches a socket. */
#ifndef CALLA_SERVER_CHAT_REQUEST_H
#define CALLA_SERVER_CHAT_REQUEST_H

#include "base/json.h"
#include "server/api_error.h"
#include "text/text.h"

enum { CHAT_MAX_STOP = 16, CHAT_MAX_STOP_BYTES = 1024, CHAT_MAX_CHOICES = 8, CHAT_MAX_BIAS = 1024, CHAT_MAX_MODEL_BYTES = 256 };

typedef struct chat_request {
    json_object *root; /* owned; what follows points into it */
    json_object *messages, *tools;
    const char *model; /* NULL: none was named */
    const char *stop[CHAT_MAX_STOP];
    size_t n_stop;
    const char *tools_json; /* NULL unless the model may call tools */
    bool stream, include_usage, logprobs, thinking, preserve_thinking, no_tools;
    bool has_thinking, has_preserve; /* said at top level, which outranks chat_template_kwargs */
    bool has_seed;
    uint32_t n, top_logprobs, max_tokens, max_completion_tokens;
    calla_sampling sampling; /* bias arrays owned */
    int32_t *bias_ids;
    float *bias;
    uint32_t vocabulary;
    buffer ignored; /* names of fields without effect */
} chat_request;

/* Parses body [n] over the engine's defaults.  On failure (false, e filled in) out needs freeing all the same. */
bool chat_request_parse(const char *body, size_t n, const calla_engine_info *info, chat_request *out, api_error *e);
void chat_request_free(chat_request *r);

/* Renders the prompt and checks that it leaves room in the window; clamps max_tokens to that room. */
bool chat_request_render(chat_request *r, const calla_text *text, uint32_t window, calla_prompt *out, api_error *e);

#endif

/* responses_request.h: the body of POST /v1/responses as calla understands it.  Any thread; nothing here touches a socket.
 *
 * Items become messages: what the assistant left behind (reasoning, message, calls) is put together again as one turn.  Tools of kind
 * function and custom are offered to the model, those of a namespace under the names of both ("space__name"); other kinds run on servers
 * of their maker and are left out with a warning, so that agents that offer them can be served. */
#ifndef CALLA_SERVER_RESPONSES_REQUEST_H
#define CALLA_SERVER_RESPONSES_REQUEST_H

#include "server/conversation.h"

enum { RESPONSES_MAX_ID_BYTES = 64, RESPONSES_MAX_TOOLS = 4096 };

/* Thoughts go to clients that ask for reasoning.encrypted_content as this and the text itself: nothing is secret from the machine that
 * thought it, and clients send back no other form. */
#define RESPONSES_THOUGHT_PREFIX "calla-thought:"

/* A tool whose name or kind the model does not see as the client wrote it. */
typedef struct responses_tool {
    char *called;      /* what the model calls it; owned */
    const char *name;  /* what the client does; of the body */
    const char *space; /* its namespace, or NULL */
    bool custom;       /* takes free text, which the model gives as the only argument "input" */
} responses_tool;

typedef struct responses_request {
    conversation conversation;                     /* first: a dialect's request begins with it */
    json_object *input, *instructions, *tool_list; /* of the body; the latter two may be NULL */
    const char *previous;                          /* previous_response_id, or NULL */
    bool store, encrypted_reasoning;
    responses_tool *tools; /* [n_tools], owned */
    size_t n_tools, cap_tools;
} responses_request;

extern const param_table responses_params;

/* Reads body [n] as far as its fields go.  r->conversation was initialised; r needs responses_request_free in any case. */
bool responses_request_parse(responses_request *r, const char *body, size_t n, api_error *e);
/* Makes messages of earlier items (an array, or NULL) and the request's own. */
bool responses_request_read_items(responses_request *r, json_object *earlier, api_error *e);
/* All but the conversation. */
void responses_request_free(responses_request *r);

/* The tool that the model calls so; NULL: a function of that name. */
const responses_tool *responses_request_tool(const responses_request *r, const char *called);

#endif

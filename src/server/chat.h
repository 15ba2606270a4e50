/* chat.h: the dialect of POST /v1/chat/completions. */
#ifndef CALLA_SERVER_CHAT_H
#define CALLA_SERVER_CHAT_H

#include "server/completion.h"

enum { CHAT_MAX_CHOICES = 8 };

typedef struct chat_request {
    conversation conversation;
    uint32_t max_completion_tokens;
} chat_request;

extern const completion_dialect chat_dialect;
extern const param_table chat_params;

/* chat_request.c: body [n] → r, on which conversation_init was called.  Any thread. */
bool chat_request_read(chat_request *r, const char *body, size_t n, api_error *e);

/* chat_messages.c: {"messages":[…]} and {"tools":[…]} of the chat dialect → the conversation. */
bool chat_read_messages(conversation *c, json_object *messages, api_error *e);
bool chat_read_tools(conversation *c, json_object *tools, api_error *e);

/* chat_output.c: the JSON of chunks and replies. */
void chat_output_begin(completion *c);
void chat_output_token(completion_choice *choice, const job_token *token);
void chat_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part);
void chat_output_token_end(completion_choice *choice);
void chat_output_finish(completion_choice *choice);
void chat_output_end(completion *c);
void chat_output_whole(completion *c, buffer *out);
void chat_output_fail(completion *c, const api_error *e);
void chat_output_progress(completion *c, uint32_t done, uint32_t of);

#endif

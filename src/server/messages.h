/* messages.h: the dialect of POST /v1/messages and of /v1/messages/count_tokens. */
#ifndef CALLA_SERVER_MESSAGES_H
#define CALLA_SERVER_MESSAGES_H

#include "server/completion.h"

typedef struct messages_request {
    conversation conversation;
    /* of the stream */
    uint32_t n_blocks;     /* content blocks begun so far: as many as parts of the answer */
    bool open;             /* the last of them is */
    calla_piece_kind kind; /* of the last */
} messages_request;

extern const completion_dialect messages_dialect;
extern const completion_dialect messages_count_dialect; /* the same prompt, counted: nothing is generated */
extern const param_table messages_params;

/* Body [n] → c, on which conversation_init was called.  Any thread. */
bool messages_request_read(conversation *c, const char *body, size_t n, api_error *e);

/* messages_blocks.c: system, messages and tools of the body, NULL where there are none → the conversation.  System first. */
bool messages_read_system(conversation *c, json_object *system, api_error *e);
bool messages_read_turns(conversation *c, json_object *messages, api_error *e);
bool messages_read_tools(conversation *c, json_object *tools, api_error *e);

/* messages_output.c: the JSON of messages, of the events of a stream, and of errors. */
void messages_output_begin(completion *c);
void messages_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part);
void messages_output_finish(completion_choice *choice);
void messages_output_end(completion *c);
void messages_output_whole(completion *c, buffer *out);
void messages_output_count(completion *c, buffer *out);
void messages_output_error(const api_error *e, buffer *out);
void messages_output_fail(completion *c, const api_error *e);
void messages_output_ping(completion *c);
void messages_output_progress(completion *c, uint32_t done, uint32_t of);

#endif

/* chat_impl.h: one chat completion under way, as chat.c and chat_output.c see it. */
#ifndef CALLA_SERVER_CHAT_IMPL_H
#define CALLA_SERVER_CHAT_IMPL_H

#include "server/chat_request.h"
#include "server/connection.h"
#include "server/job.h"
#include "server/worker.h"

typedef struct chat_choice {
    chat_completion *chat;
    uint32_t index;
    job *job;
    calla_answer *answer;
    uint32_t completion_tokens, reasoning_tokens, n_tool_calls;
    bool in_reasoning; /* what comes next belongs to the thought */
    bool stopped;      /* by a stop string: later tokens are not part of the answer */
    bool finished;
    const char *finish_reason;
    buffer logprobs;                       /* JSON entries, comma-separated: of this token if streaming, else of all */
    buffer reasoning, content, tool_calls; /* not streaming: what came so far; tool_calls as JSON */
} chat_choice;

struct chat_completion {
    server *server;
    connection *connection; /* NULL once the reply was ended or the client left */
    chat_completion *next, *prev;
    char id[40];
    int64_t created;
    worker_task task;
    bool with_worker;
    unsigned busy; /* callbacks of this chat on the stack: it is freed when the last one returns */
    buffer body;
    chat_request request;
    calla_prompt prompt;
    uint32_t prompt_tokens;
    bool prepared;   /* request and prompt are good */
    api_error error; /* otherwise why not */
    chat_choice choices[CHAT_MAX_CHOICES];
    uint32_t live; /* choices not finished */
    struct event *tick;
    uint64_t last_write_ns;
    buffer line; /* scratch for one event */
};

/* chat_output.c: JSON of chunks and replies.  Writers of events send them; all others append to out. */
void chat_output_role(chat_choice *choice);
void chat_output_piece(chat_choice *choice, const calla_piece *piece);
/* Sends log-probabilities that no piece took along, as a chunk with an empty delta. */
void chat_output_logprobs(chat_choice *choice);
void chat_output_finish(chat_choice *choice);
void chat_output_usage(chat_completion *chat);
void chat_output_done(chat_completion *chat);
void chat_output_whole(chat_completion *chat, buffer *out);
void chat_output_token_logprob(const calla_text *text, const job_token *token, buffer *out);

#endif

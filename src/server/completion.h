/* completion.h: a request that the engine answers, from body to last byte, whatever its dialect: prepare on the loop's thread (on the
 * worker's if the body is large), one job per choice, tokens to pieces, pieces to the dialect, keep-alives, cancelling, slow readers.
 *
 * A dialect is a table of functions that know the form of its JSON and nothing of when it is due.  A completion lives until its reply has
 * ended or its client has left, whichever comes first; c->connection is NULL from then on, and the functions that send do nothing. */
#ifndef CALLA_SERVER_COMPLETION_H
#define CALLA_SERVER_COMPLETION_H

#include "server/connection.h"
#include "server/conversation.h"
#include "server/job.h"
#include "server/worker.h"

typedef struct completion completion;
typedef struct completion_choice completion_choice;

enum { COMPLETION_MAX_CHOICES = 128 };

typedef enum completion_finish {
    COMPLETION_STOP,        /* the model ended its turn */
    COMPLETION_LENGTH,      /* max_tokens or the window */
    COMPLETION_TOOL_CALLS,  /* the same as STOP, with calls in the answer */
    COMPLETION_STOP_STRING, /* one of the request's; choice->stop_string */
} completion_finish;

/* A stretch of an answer: reasoning, content or one call, in the order of the answer. */
typedef struct completion_part {
    calla_piece_kind kind; /* CALLA_PIECE_REASONING, CALLA_PIECE_CONTENT or CALLA_PIECE_CALL */
    char id[40];           /* of a call: dialect->call_prefix and random digits */
    char *name;            /* of a call; owned */
    buffer text;           /* so far; of a call: its arguments, JSON once it has ended */
    size_t n_text;         /* bytes of it, also where the text itself is not kept */
    bool ended;
    bool cut; /* a call that the end of the answer cut short: its arguments are no JSON */
} completion_part;

struct completion_choice {
    completion *completion;
    uint32_t index;
    uint32_t prompt; /* which of completion->prompts it answers */
    uint32_t completion_tokens, reasoning_tokens, n_calls;
    completion_finish finish;
    const char *stop_string; /* with COMPLETION_STOP_STRING */
    completion_part *parts;  /* [n_parts]; texts are kept if the answer is not streamed, or if the dialect keeps them */
    size_t n_parts, cap_parts;
    buffer logprobs; /* the dialect's: entries not sent yet, or all of them */
    bool finished;
    /* private */
    job *job;
    calla_answer *answer;
    bool in_reasoning; /* what comes next belongs to the thought */
    bool stopped;      /* by a stop string: later tokens are not part of the answer */
    bool enough;       /* it has its single call, or a token of stop_ids: what comes later is not part of the answer */
    bool failed;       /* a piece found no memory */
};

typedef struct completion_dialect {
    const char *name;        /* for the log */
    const char *id_prefix;   /* "chatcmpl-" */
    const char *call_prefix; /* "call_" */
    size_t own_bytes;        /* of the dialect's request, zeroed; its first member is a conversation */
    bool keeps_parts;        /* texts of parts are kept while streaming, too */
    bool raw;                /* the answer is plain content, see calla_answer_options.raw */

    /* c->body → c->own (conversation_init was called) and c->prompts; may set n_prompts and n_choices (each prompt has as many).
     * n_choices 0: no job is started, `whole` is the reply.  Any thread, the only one that has c; the server itself is read-only. */
    bool (*prepare)(completion *c, api_error *e);
    /* Frees what own holds apart from the conversation; may be NULL. */
    void (*free)(completion *c);
    void (*write_error)(const api_error *e, buffer *out); /* the body of an error reply */

    /* Whole answers: the JSON of c's reply, when every choice has finished. */
    void (*whole)(completion *c, buffer *out);

    /* Streams, called in this order.  Each may send any number of events. */
    void (*begin)(completion *c);
    void (*prompt_token)(completion_choice *choice, const job_token *token); /* with c->prompt_logprobs, also of whole answers; else NULL */
    void (*token)(completion_choice *choice, const job_token *token); /* also of whole answers: before the pieces it brings; may be NULL */
    void (*piece)(completion_choice *choice, const calla_piece *piece, const completion_part *part);
    void (*token_end)(completion_choice *choice); /* behind the pieces of a token; may be NULL */
    void (*finish)(completion_choice *choice);
    void (*end)(completion *c);                                  /* every choice has finished */
    void (*fail)(completion *c, const api_error *e);             /* instead of all that is left: the dialect's event for a failure */
    void (*keepalive)(completion *c);                            /* nothing was sent for a second */
    void (*progress)(completion *c, uint32_t done, uint32_t of); /* tokens of the prompt, if conversation.return_progress; may be NULL */
} completion_dialect;

struct completion {
    const completion_dialect *dialect;
    server *server;
    connection *connection; /* NULL once the reply was ended or the client left */
    conversation *own;      /* dialect->own_bytes, owned; the dialect's request begins with it */
    char id[64];
    int64_t created; /* seconds since 1970 */
    buffer body;     /* freed after prepare */

    calla_prompt *prompts; /* [n_prompts], owned; their texts and ids are freed once the jobs have them */
    size_t n_prompts;
    bool prompt_logprobs, only_prompt; /* as in calla_generate_options; set by prepare */
    calla_form *form;                  /* that each answer is held to, or NULL; set after prepare */
    uint32_t prompt_tokens;            /* of all prompts; set after prepare */
    uint32_t cached_tokens;            /* of those, not computed again */
    completion_choice *choices;        /* [n_choices] */
    uint32_t n_choices;
    buffer line; /* scratch for one event */

    /* private */
    completion *next, *prev;
    worker_task task;
    bool with_worker;
    uint64_t begun_ns, first_token_ns;       /* the body was there; the first token of any choice was taken */
    uint64_t queue_ns, prompt_ns, decode_ns; /* the longest of the choices that have ended */
    unsigned outcome;                        /* finish_name of it */
    size_t held;                             /* bytes of the body that count in server->upload_used */
    bool prepared;                           /* own and prompts are good */
    api_error error;                         /* otherwise why not */
    unsigned busy;                           /* callbacks of this completion on the stack: it is freed when the last one returns */
    uint32_t live;                           /* choices not finished */
    struct event *tick;
    uint64_t last_write_ns;
};

/* The request of c is complete: answers it.  For routes.c. */
void completion_begin(connection *c, const completion_dialect *dialect);

/* ------------------------------------------------- for dialects: preparing ----------------------------------------------- */

/* Room for n empty prompts. */
bool completion_reserve_prompts(completion *c, size_t n, api_error *e);
/* Renders the conversation as the only prompt and checks that it fits. */
bool completion_render(completion *c, api_error *e);

/* -------------------------------------------------- for dialects: sending ------------------------------------------------ */

/* The model's name as the client gave it, or else the server's. */
const char *completion_model(const completion *c);
/* Clears c->line and returns it. */
buffer *completion_line(completion *c);
/* Sends c->line as one event: "event: NAME" if name is not NULL, "data: " and the line, which must hold no line feed.  If the line
 * found no memory, the connection is killed: a stream with a hole is worse than none. */
void completion_send(completion *c, const char *name);
void completion_send_comment(completion *c, const char *text);
/* The text of all parts of a kind: reasoning or content. */
void completion_join(const completion_choice *choice, calla_piece_kind kind, buffer *out);
/* "prompt_progress":{…} */
void completion_write_progress(const completion *c, uint32_t done, uint32_t of, buffer *out);
/* Totals over the choices. */
void completion_usage(const completion *c, uint64_t *tokens, uint64_t *reasoning_tokens);

/* ------------------------------------------------------ for the server --------------------------------------------------- */

/* Ends every completion with an error that says so.  The loop still runs. */
void completion_cancel_all(server *s);
/* After the loop: bodies still with the worker need not be read any more; then, once the worker is closed, frees all. */
void completion_abandon_all(server *s);
void completion_free_all(server *s);

#endif

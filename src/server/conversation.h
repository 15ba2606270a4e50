/* conversation.h: one request as calla understands it, in whatever dialect it came.
 *
 * Each dialect reads its body into a conversation: fields by tables of params.h, messages by the functions below.  The prompt is rendered
 * from the conversation alone, so that the same conversation gives the same bytes in each dialect.  Any thread; nothing here touches a
 * socket or the engine.
 *
 * Messages may come in any order and number.  System messages in front of the first user, assistant or tool message are folded into one
 * head; a later one stays where it stands, as a turn of its own (the model's template refuses it: this is a deviation, made so that
 * appending one leaves all earlier tokens as they were).  A last assistant message is continued by the answer.  A picture, or what else
 * is no text, in the last user message is refused; elsewhere it becomes a note.  Empty assistant messages at the end are dropped.  Results of tools come
 * in the order of the calls that they name. */
#ifndef CALLA_SERVER_CONVERSATION_H
#define CALLA_SERVER_CONVERSATION_H

#include "base/json.h"
#include "server/api_error.h"
#include "server/conversation_form.h"
#include "server/params.h"
#include "text/text.h"

enum {
    CONVERSATION_MAX_STOP = 16,
    CONVERSATION_MAX_STOP_BYTES = 1024,
    CONVERSATION_MAX_BIAS = 1024,
    CONVERSATION_MAX_MODEL_BYTES = 256,
    CONVERSATION_NO_BUDGET = UINT32_MAX /* thinking_budget: the thought may take all but the answer's reserve */
};

typedef enum conversation_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } conversation_role;

/* How firmly a request says whether to think; the firmest word holds, of two equal ones the later.  In this order: nothing; an effort
 * (reasoning_effort, reasoning.effort, output_config.effort, thinking.type adaptive); the suffix of the model's name; a plain yes or no
 * (thinking.type enabled and disabled, think); chat_template_kwargs.enable_thinking; enable_thinking. */
typedef enum thinking_word {
    THINKING_UNSAID,
    THINKING_EFFORT,
    THINKING_MODEL,
    THINKING_SWITCH,
    THINKING_TEMPLATE,
    THINKING_FIELD
} thinking_word;

struct conversation {
    const calla_engine_info *info;
    json_object *root; /* the body, owned; model and stop point into it */

    json_object *messages;             /* array, owned: {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"} */
    json_object *tools;                /* array, owned, of {"type":"function","function":{"name","description","parameters"}}; NULL: none */
    bool no_tools;                     /* tool_choice none: as if there were no tools */
    bool single_call;                  /* parallel_tool_calls false: the answer ends with its first call */
    bool continues;                    /* the last message is the assistant's, and the answer goes on from its end */
    bool continue_last, said_continue; /* what the client says of that */
    conversation_form form;
    /* What the model calls the tool that the client calls `name`; NULL: the same. */
    const char *(*called_name)(const conversation *c, const char *name);

    const char *model; /* as named by the client, or NULL */
    bool thinking;
    thinking_word thinking_said;
    uint32_t thinking_budget; /* tokens; CONVERSATION_NO_BUDGET */
    bool budget_said;         /* in tokens: outranks what an effort stands for */
    bool preserve_thinking, preserve_said;

    calla_sampling sampling;                                     /* bias arrays owned */
    bool said_temperature, said_top_p, said_presence, said_seed; /* by the client: the mode's defaults stay away */
    int32_t *bias_ids;
    float *bias;
    const char *stop[CONVERSATION_MAX_STOP];
    size_t n_stop;
    int32_t stop_ids[CONVERSATION_MAX_STOP]; /* tokens that end the answer, besides the model's own */
    size_t n_stop_ids;
    bool ignore_stop;    /* the model's own do not */
    uint32_t max_tokens; /* 0: what is left of the window; clamped to it by conversation_render */
    uint32_t n;          /* answers */
    bool stream, logprobs, return_progress;
    bool include_usage; /* in a chunk of its own at the end of a stream, where the dialect has such */
    uint32_t top_logprobs;

    buffer ignored;  /* names of fields without effect, for x-calla-ignored */
    buffer warnings; /* what was understood otherwise than sent, for x-calla-warning */

    /* private: the message under way */
    json_object *message, *calls;
    conversation_role role;
    buffer text, reasoning;
    char omitted[160];           /* its first part that is no text, in words; "": none */
    char last_user_omitted[160]; /* of the last user message so far */
    bool failed;                 /* out of memory; sticks */
};

/* Fills in what the engine's and the model's defaults say.  c may be the first member of a dialect's own request. */
void conversation_init(conversation *c, const calla_engine_info *info);
void conversation_free(conversation *c);
/* Parses body [n] into c->root, which must be an object. */
bool conversation_parse(conversation *c, const char *body, size_t n, api_error *e);

/* Fields that mean the same in each dialect: sampling, stop, thinking and what is harmless everywhere.  Offsets count from the
 * conversation, which therefore is the first member of what a dialect reads into; put it into param_table.more. */
extern const param_table conversation_params; /* goes on with foreign_params */
extern const param_table foreign_params;
/* Stop strings, whatever the dialect calls them: a param.read. */
bool conversation_read_stop(void *request, const char *name, json_object *value, api_error *e);
/* The limit of an answer's length: at least 1, or -1 (and Ollama's -2) for all that the window has left. */
bool conversation_read_length(void *request, const char *name, json_object *value, api_error *e);
/* {"include_usage":…} of chat and completions. */
bool conversation_read_stream_options(void *request, const char *name, json_object *value, api_error *e);

/* ------------------------------------------------------------ messages --------------------------------------------------- */

/* A message: begin, its parts in any order and number, end.  Running out of memory is remembered and told by conversation_close. */
void conversation_begin(conversation *c, conversation_role role);
/* Appended as it is: parts follow each other without anything between them, as the template prints them. */
void conversation_text(conversation *c, const char *text, size_t n);
void conversation_reasoning(conversation *c, const char *text, size_t n); /* of an assistant message */
/* A part that is no text.  kind: "image", or what the dialect calls it; where: its place in the body, such as messages[2].content[0]. */
void conversation_omit(conversation *c, const char *kind, const char *where);
/* A call that the assistant made.  arguments: an object, or a string that holds one; what is neither is kept as the text of a parameter
 * named "arguments".  A reference is taken.  id: what its result will name, or NULL. */
void conversation_call(conversation *c, const char *id, const char *name, json_object *arguments);
/* The message under way is the result of the call with this id (NULL: of whichever stands there). */
void conversation_answers(conversation *c, const char *id);
void conversation_end(conversation *c);

/* A tool, if it may be called: parameters is its JSON schema or NULL (a reference is taken), description may be NULL; strict: true where
 * the client says that its calls must keep to the schema, or NULL. */
void conversation_tool(conversation *c, const char *name, const char *description, json_object *parameters, json_object *strict);
/* Adds a remark for the x-calla-warning header. */
__attribute__((format(printf, 2, 3))) void conversation_warn(conversation *c, const char *format, ...);

/* After the last field and message: settles thinking, its history and the sampling defaults of the mode, folds system messages, refuses
 * what is no text and cannot be left out.  messages_name names the field for errors. */
bool conversation_close(conversation *c, const char *messages_name, api_error *e);

/* ------------------------------------------------------------ thinking --------------------------------------------------- */

/* Notes what the request says; weaker words than one noted before change nothing. */
void conversation_think(conversation *c, bool on, thinking_word word);
/* none, minimal, low, medium, high, xhigh, max: whether to think, and how long.  False if it is none of these. */
bool conversation_effort(conversation *c, const char *effort);

/* ------------------------------------------------------------- prompt ---------------------------------------------------- */

/* The JSON of the tools that may be called, or NULL: calla_answer_options.tools_json.  Valid as long as the conversation. */
const char *conversation_tools_json(const conversation *c);

/* Renders the prompt and frees the messages.  Does not look at the window. */
bool conversation_render(conversation *c, const calla_text *text, calla_prompt *out, api_error *e);
/* A prompt of so many tokens leaves room in the window: clamps max_tokens to it.  If not, the error of chat and responses. */
bool conversation_fit(conversation *c, size_t prompt_tokens, api_error *e);

#endif

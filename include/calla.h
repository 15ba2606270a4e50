/* calla.h: the public C API.
 *
 * Two halves.  Text (calla_text, calla_answer): a model folder's tokenizer and chat template, turning strings into token ids and
 * ids back into pieces of an answer.  Engine (calla_engine, calla_session): token ids in, sampled token ids out.  The engine never
 * sees strings, so that a scripted engine can stand behind the same functions in tests of the server.
 *
 * Every function that can fail returns a calla_status and, where `err` is not NULL, writes a message that names the thing (file,
 * tensor, field, limit) and what to do.  Nothing here exits the process or writes to stdout.
 */
#ifndef CALLA_H
#define CALLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum calla_status {
    CALLA_OK = 0,
    CALLA_E_NOMEM,       /* an allocation failed */
    CALLA_E_IO,          /* a file could not be opened, read or mapped */
    CALLA_E_FORMAT,      /* a file or text is malformed */
    CALLA_E_UNSUPPORTED, /* well-formed, but not something calla implements */
    CALLA_E_ARGUMENT,    /* the caller's argument is wrong */
    CALLA_E_LIMIT,       /* a stated limit would be passed (context window, queue, size) */
    CALLA_E_CANCELLED,   /* stopped by calla_session_cancel or by closing */
    CALLA_E_DEVICE,      /* the device failed */
    CALLA_E_INTERNAL     /* a broken invariant: a bug in calla */
} calla_status;

typedef struct calla_error {
    calla_status status;
    char message[1024]; /* NUL-terminated; "" after success */
} calla_error;

/* A short name such as "out of memory"; never NULL. */
const char *calla_status_name(calla_status status);

/* "0.1.0"; the commit it was built from ("unknown" outside git); the compiled backends, comma-separated. */
const char *calla_version(void);
const char *calla_commit(void);
const char *calla_backends(void);

/* Something that a device does to be faster, and that can be turned off, so that its worth can be measured. */
typedef struct calla_optimization {
    const char *name;    /* letters, digits and dashes */
    const char *meaning; /* one line: what is done, and what is done without it */
} calla_optimization;

/* Those of a device (NULL: the best one compiled in), ended by a NULL name; NULL when no device has that name. */
const calla_optimization *calla_device_optimizations(const char *device);

/* ---------------------------------------------------------------- text ---------------------------------------------------- */

/* Tokenizer and chat template of one model folder.  Immutable after opening: any number of threads may use it. */
typedef struct calla_text calla_text;

typedef struct calla_ids {
    int32_t *ids; /* [n], owned; free with calla_ids_free */
    size_t n;
} calla_ids;

typedef struct calla_prompt {
    char *text; /* [n_text] and a NUL, owned: what the template printed */
    size_t n_text;
    calla_ids ids; /* the prompt to append to a session */
    bool thinking; /* the prompt ends inside <think>: the answer begins as reasoning */
} calla_prompt;

calla_status calla_text_open(const char *model_dir, calla_text **out, calla_error *err);
void calla_text_close(calla_text *text);

/* Number of real tokens: ids 0 … n-1 decode to something, later rows of the embedding are padding. */
uint32_t calla_text_vocabulary(const calla_text *text);

/* utf8 [n] → ids.  Added tokens (<|im_start|> …) are matched.  Invalid UTF-8 is CALLA_E_FORMAT. */
calla_status calla_text_encode(const calla_text *text, const char *utf8, size_t n, calla_ids *out, calla_error *err);

/* ids [n] → bytes [*n_out] and a NUL, owned by the caller (calla_free).  Bytes that are not UTF-8 become U+FFFD.  An id without
 * a token is CALLA_E_ARGUMENT. */
calla_status calla_text_decode(const calla_text *text, const int32_t *ids, size_t n, char **out, size_t *n_out, calla_error *err);

/* json [n]: {"messages":[…], "tools":[…], "enable_thinking":bool, "preserve_thinking":bool, "add_generation_prompt":bool}; all but
 * messages optional.  Text of messages and tools never becomes control tokens. */
calla_status calla_text_render(const calla_text *text, const char *json, size_t n, calla_prompt *out, calla_error *err);

void calla_ids_free(calla_ids *ids);
void calla_prompt_free(calla_prompt *prompt);
void calla_free(void *p);

/* An answer under way: token ids → pieces of valid UTF-8, split into reasoning, content and tool calls, cut at stop strings. */
typedef struct calla_answer calla_answer;

/* A tool call comes as CALL, any number of ARGUMENTS, and CALL_END, with nothing in between. */
typedef enum calla_piece_kind {
    CALLA_PIECE_REASONING,
    CALLA_PIECE_CONTENT,
    CALLA_PIECE_CALL,      /* a tool call begins: name */
    CALLA_PIECE_ARGUMENTS, /* text is more of its arguments, which in the end are a JSON object */
    CALLA_PIECE_CALL_END
} calla_piece_kind;

typedef struct calla_piece {
    calla_piece_kind kind;
    const char *text; /* [n], valid during the callback; "" of CALL and CALL_END */
    size_t n;
    const char *name; /* of a CALL: the function's name, NUL-terminated; else NULL */
} calla_piece;

typedef void (*calla_piece_fn)(void *user, const calla_piece *piece);

typedef struct calla_answer_options {
    bool thinking;           /* calla_prompt.thinking */
    bool raw;                /* everything is content: no reasoning, no tool calls, control tokens printed as text */
    bool only_tokens;        /* a tag spelled in letters is text: of an answer that owes a form, which has its tags as tokens */
    bool held;               /* a form holds the calls that begin with their token: what looks like the end of a value is one */
    const char *const *stop; /* [n_stop] NUL-terminated strings; matched in content only, and not printed */
    size_t n_stop;
    const char *tools_json; /* the request's tools array, or NULL: types of arguments; no tools, no tool-call parsing */
    calla_piece_fn piece;   /* called from calla_answer_push and calla_answer_finish, on the caller's thread */
    void *user;
} calla_answer_options;

calla_status calla_answer_open(const calla_text *text, const calla_answer_options *options, calla_answer **out, calla_error *err);
/* *stopped becomes true when a stop string is complete: cancel the session; later pushes print nothing. */
calla_status calla_answer_push(calla_answer *answer, int32_t id, bool *stopped, calla_error *err);
/* Which of the stop strings has stopped the answer, or NULL.  Of the caller's own array. */
const char *calla_answer_stopped_by(const calla_answer *answer);
/* Prints what was held back.  cut: the model did not end the answer itself; a tool call under way then stays without its CALL_END, where
 * otherwise closing tags that are missing are taken as forgotten. */
calla_status calla_answer_finish(calla_answer *answer, bool cut, calla_error *err);
void calla_answer_close(calla_answer *answer);

/* ---- forms: answers held to a JSON schema, a regular expression, a choice, or to the tools of the request. ---- */

/* A form that an answer is held to.  Immutable, reference counted: any number of matchers on any threads.  The text it was compiled
 * with must outlive it. */
typedef struct calla_form calla_form;

typedef enum calla_form_kind {
    CALLA_FORM_NONE,
    CALLA_FORM_JSON_OBJECT,
    CALLA_FORM_JSON_SCHEMA,
    CALLA_FORM_REGEX,
    CALLA_FORM_CHOICE
} calla_form_kind;

typedef enum calla_tool_choice { CALLA_TOOLS_AUTO, CALLA_TOOLS_REQUIRED, CALLA_TOOLS_NAMED, CALLA_TOOLS_NONE } calla_tool_choice;

typedef struct calla_form_options {
    calla_form_kind kind; /* of the content; NONE: free text */
    const char *source;   /* [n_source] a JSON schema; a regular expression, of the whole content; a JSON array of strings */
    size_t n_source;
    bool strict_schema;     /* what is not understood is CALLA_E_UNSUPPORTED, which names keyword and path; else it only loosens */
    const char *tools_json; /* as calla_answer_options.tools_json, or NULL; a tool's own "strict": true is honoured */
    calla_tool_choice tool_choice;
    const char *tool_name; /* of NAMED */
    bool one_call;         /* at most one call in an answer */
} calla_form_options;

/* Bounded in states, memory and time: over it CALLA_E_LIMIT, which names the keyword and its path.  Any thread.  docs/structured.md
 * says what is understood. */
calla_status calla_form_compile(const calla_text *text, const calla_form_options *options, calla_form **out, calla_error *err);
calla_form *calla_form_share(calla_form *form); /* one more owner: returns form */
void calla_form_release(calla_form *form);      /* NULL is allowed */
size_t calla_form_bytes(calla_form *form);      /* memory that it takes by now: masks that were made are kept, up to some 25 MB */

/* One answer under way, held to a form.  One thread at a time. */
typedef struct calla_matcher calla_matcher;

/* thinking: the prompt ended inside <think>, and the form begins behind </think>.  Keeps the form alive. */
calla_status calla_matcher_open(calla_form *form, bool thinking, calla_matcher **out, calla_error *err);
/* What the next token may be: a bitset of calla_text_vocabulary bits in 32-bit words, never all zero; NULL: anything.  Valid until the
 * next call with this matcher.  A stop token is among them only where the answer may end. */
const uint32_t *calla_matcher_mask(calla_matcher *matcher);
/* The next token is id.  CALLA_E_ARGUMENT if the mask forbids it, and nothing has changed. */
calla_status calla_matcher_took(calla_matcher *matcher, int32_t id);
void calla_matcher_close(calla_matcher *matcher); /* NULL is allowed */

/* --------------------------------------------------------------- engine --------------------------------------------------- */

/* One loaded model on one device, with its own thread.  All functions below may be called from any thread. */
typedef struct calla_engine calla_engine;
/* One sequence of tokens with its state in the model. */
typedef struct calla_session calla_session;

/* Q8: 8 bits a value and a scale for each 64. */
typedef enum calla_kv { CALLA_KV_BF16 = 0, CALLA_KV_F32, CALLA_KV_Q8 } calla_kv;

/* Exact: activations in float32.  Fast, what the commands do unless told otherwise: 8-bit activations in front of 4-bit matrices, where the
 * device has kernels for it (docs/quality.md says what it costs); a device without them computes exactly. */
typedef enum calla_precision { CALLA_PRECISION_EXACT = 0, CALLA_PRECISION_FAST } calla_precision;

#define CALLA_MAX_BATCH_ROWS 8192 /* of calla_engine_options.batch_rows */

typedef struct calla_engine_options { /* zero means default */
    const char *model_dir;            /* NULL: the embedded pocket model */
    const char *device;               /* a name from calla_backends(); NULL: the best one compiled in */
    uint32_t context_tokens;          /* window of a session; default 32,768, at most the model's */
    uint32_t max_sequences;           /* sessions that generate at the same time; others wait in order; default 4 */
    uint32_t batch_rows; /* rows of one step: a long prompt is cut into chunks of at most this; default: what suits the device */
    calla_kv kv;
    calla_precision precision;
    bool deterministic;  /* the same tokens, bit by bit, whatever else runs and however a prompt is cut; slower (docs/speed.md) */
    bool polite;         /* hand a GPU its work in small pieces, so that it stays free for a desktop; somewhat slower */
    uint32_t threads;    /* of a CPU; default one per physical core */
    const char *without; /* names of the device's optimizations to turn off, with commas; NULL: none */
    /* Told, while the engine is opened and on the caller's thread, how many bytes of the weights are ready; NULL: nobody. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *progress_user;
    bool ids_only; /* open no tokenizer (the folder need not hold one): token ids in and out; calla_engine_text is NULL */
} calla_engine_options;

typedef struct calla_sampling {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float presence_penalty;   /* 0: off; generated tokens only */
    float frequency_penalty;  /* 0: off; generated tokens only */
    float repetition_penalty; /* 1: off; once per distinct token of prompt and answer */
    uint64_t seed;
    uint32_t choice;         /* which of several answers of one request: same seed, other random numbers */
    const int32_t *bias_ids; /* [n_bias] */
    const float *bias;       /* [n_bias], added to the logits */
    size_t n_bias;
} calla_sampling;

typedef struct calla_engine_info {
    char model_name[128];    /* last part of the folder's path */
    const char *device;      /* backend in use */
    char device_detail[64];  /* how it computes: "vnni, 2 threads, exact" */
    uint32_t context_tokens; /* window of a session */
    uint32_t model_context;  /* what the model was made for */
    uint32_t max_sequences;
    uint32_t batch_rows;      /* of one step */
    uint32_t vocabulary;      /* real tokens */
    uint32_t vocabulary_rows; /* rows of logits, padding included */
    uint64_t weights_bytes;   /* mapped, not copied */
    uint64_t plan_bytes;      /* allocated once: activations, KV pages, state slots */
    uint32_t stages;          /* dependent stages of one step */
    uint64_t token_bytes;     /* weights read to decode one token */
    uint64_t state_bytes;     /* recurrent state and convolution window of a sequence: read and written for each token */
    uint64_t kv_token_bytes;  /* KV cache of one token: read for each token of context */
    uint64_t
        token_flop; /* operations of the matrices for one token of a prompt, without lm_head: a multiplication and an addition are two */
    uint64_t context_flop;   /* and of attention for each token that it looks back at, itself included */
    calla_sampling defaults; /* from generation_config.json */
} calla_engine_info;

calla_status calla_engine_open(const calla_engine_options *options, calla_engine **out, calla_error *err);
/* Cancels what runs; every session must be closed before. */
void calla_engine_close(calla_engine *engine);
void calla_engine_get_info(const calla_engine *engine, calla_engine_info *out);
const calla_text *calla_engine_text(const calla_engine *engine);

typedef struct calla_engine_status {
    uint32_t running, queued;
    bool failed; /* the device failed; message says how; new jobs are refused */
    char message[256];
} calla_engine_status;
void calla_engine_get_status(const calla_engine *engine, calla_engine_status *out);

typedef enum calla_finish {
    CALLA_FINISH_STOP,      /* a stop id was sampled (it is the last token reported) */
    CALLA_FINISH_LENGTH,    /* max_tokens, only_prompt or the context window */
    CALLA_FINISH_CANCELLED, /* calla_session_cancel */
    CALLA_FINISH_ERROR      /* event.error says what */
} calla_finish;

#define CALLA_MAX_TOP_LOGPROBS 20

typedef struct calla_token_logprob {
    int32_t id;
    float logprob;
} calla_token_logprob;

typedef enum calla_event_kind {
    CALLA_EVENT_PROMPT,       /* a chunk of the prompt is done: prompt_done of prompt_tokens */
    CALLA_EVENT_PROMPT_TOKEN, /* with prompt_logprobs: a token of the sequence as it was when the job began, in order, from the first on */
    CALLA_EVENT_TOKEN,        /* one token was sampled */
    CALLA_EVENT_DONE          /* the last event of a job */
} calla_event_kind;

typedef struct calla_event {
    calla_event_kind kind;
    uint32_t prompt_tokens, prompt_done; /* tokens appended and not yet processed when the job began */
    /* TOKEN and PROMPT_TOKEN */
    int32_t id;
    bool is_stop;  /* a stop id: not part of the answer's text */
    float logprob; /* natural logarithm, of the model's own distribution (before penalties and temperature); if asked for.  NAN for the
                    * first token of a sequence: the model has no opinion of it */
    const calla_token_logprob *top; /* [n_top], best first */
    uint32_t n_top;
    /* DONE */
    calla_finish finish;
    const calla_error *error; /* with CALLA_FINISH_ERROR */
    uint32_t completion_tokens;
    uint64_t queue_ns, prompt_ns, decode_ns;
} calla_event;

/* Called on the engine's thread: copy what is needed and return at once; do not call calla functions other than
 * calla_session_cancel. */
typedef void (*calla_event_fn)(void *user, const calla_event *event);

#define CALLA_MAX_FORCED 16

/* Tokens that the answer gets whatever the model would have picked, such as the end of a thought that has gone on for too long.  None of
 * them may be a stop id; neither is the token behind them. */
typedef struct calla_force {
    uint32_t after;                   /* so many tokens of the answer come before */
    uint32_t n, n_unless;             /* n 0: nothing is forced */
    int32_t ids[CALLA_MAX_FORCED];    /* [n] */
    int32_t unless[CALLA_MAX_FORCED]; /* [n_unless]: an answer that has one of these by then is left alone */
} calla_force;

/* Says before each token what it may be.  Called on the engine's thread.  mask may be asked twice for the same token (a step was given up);
 * took comes once for each.  What is forced outranks the guide.  A mask that allows no token ends the job with an error. */
typedef struct calla_guide {
    const uint32_t *(*mask)(void *user);  /* a bit for each of info.vocabulary tokens, valid until the next call; NULL: anything */
    void (*took)(void *user, int32_t id); /* a token of the answer, forced ones too; before its event */
    void *user;                           /* not the job's: must be there until its DONE event */
} calla_guide;

typedef struct calla_generate_options {
    calla_sampling sampling; /* bias arrays are copied */
    uint32_t max_tokens;     /* 0: until the context window is full */
    bool logprobs;
    uint32_t n_top_logprobs; /* at most CALLA_MAX_TOP_LOGPROBS */
    bool ignore_stop;        /* do not end at stop ids */
    bool prompt_logprobs;    /* PROMPT_TOKEN events, with n_top_logprobs.  What the sequence holds is processed anew, at the price of logits
                              * for each of its tokens */
    bool only_prompt;        /* generate nothing */
    calla_force force;
    calla_guide guide; /* mask NULL: none */
} calla_generate_options;

calla_status calla_session_open(calla_engine *engine, calla_session **out, calla_error *err);
/* A new session with the tokens of an idle one.  What the model has processed of them is shared, and the fork's first job goes on from
 * there, unless the other session has gone on or lost its place before that job begins: then all is processed again. */
calla_status calla_session_fork(const calla_session *session, calla_session **out, calla_error *err);
/* Cancels a running job and waits for its DONE event. */
void calla_session_close(calla_session *session);
/* Adds ids [n] to the sequence; they are processed by the next generate.  CALLA_E_LIMIT if the window would overflow. */
calla_status calla_session_append(calla_session *session, const int32_t *ids, size_t n, calla_error *err);
/* Tokens of the sequence so far: appended and generated. */
uint32_t calla_session_tokens(const calla_session *session);
/* Starts a job and returns; exactly one DONE event follows if and only if CALLA_OK is returned. */
calla_status calla_session_generate(calla_session *session, const calla_generate_options *options, calla_event_fn fn, void *user,
                                    calla_error *err);
/* The job ends at the next layer boundary; the sequence keeps the tokens reported so far. */
void calla_session_cancel(calla_session *session);
/* Waits for the running job's DONE event to have been delivered. */
void calla_session_wait(calla_session *session);

/* Scores ids [n]: token_logprobs [n-1] of token t+1 at t, top1 [n], logits_last [vocabulary_rows]; each may be NULL.  Blocks. */
calla_status calla_engine_score(calla_engine *engine, const int32_t *ids, size_t n, float *token_logprobs, int32_t *top1,
                                float *logits_last, calla_error *err);

/* Gets the logits [vocabulary_rows] after ids[0 … at].  Called on the engine's thread, once for each position, in order; the logits are
 * valid during the call. */
typedef void (*calla_row_fn)(void *user, size_t at, const float *logits);

/* Calls fn for the positions from … n-1 of ids [n]; those before `from` are only context, and cost no logits.  Blocks. */
calla_status calla_engine_score_rows(calla_engine *engine, const int32_t *ids, size_t n, size_t from, calla_row_fn fn, void *user,
                                     calla_error *err);

/* Reads every scale, bias and other plain number of the weights (a ninth of the file; opening reads only some of a large one): NaN or
 * infinity among them is CALLA_E_FORMAT and names the tensor.  *bytes: how many were read; may be NULL. */
calla_status calla_engine_check_weights(calla_engine *engine, uint64_t *bytes, calla_error *err);

/* The rate at which the device reads its memory, in bytes a second: the best of a few passes over a large buffer, with the threads that
 * also compute.  0 where it cannot be measured.  Takes about a second; no session may be running. */
double calla_engine_read_rate(calla_engine *engine);

/* Operations a second that the device's threads reach with dot products of values that stand in registers, by type of the factors; 0: it
 * has no instructions for this type, or it cannot be measured.  No kernel can be faster.  Takes about a second; no session may be running. */
typedef struct calla_dot_rates {
    double f32, bf16, i8;
    double used; /* of the type that most of this engine's matrices are multiplied in */
} calla_dot_rates;
void calla_engine_dot_rates(calla_engine *engine, calla_dot_rates *out);

/* What a folder holds, as a JSON object (dimensions, tensors, bytes per token, memory at a context), owned: calla_free. */
calla_status calla_inspect(const char *model_dir, uint32_t context_tokens, char **json, calla_error *err);

/* The folder of the embedded pocket model, or NULL with err when it cannot be found. */
const char *calla_pocket_dir(calla_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* text_completion.c: POST /v1/completions: plain text goes on, without template, turns or tools.
 *
 * Prompts are taken as they are: what spells a control token becomes one, as users of this API expect, who write the template themselves. */
#include "server/text_completion.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/utf8.h"

static text_request *request_of(const completion *c) { return (text_request *)c->own; }
static bool out_of_memory(api_error *e) { return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request"); }

/* ------------------------------------------------------------- fields ---------------------------------------------------- */

static bool read_prompt(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_string) && !json_object_is_type(value, json_type_array))
        return api_error_set(e, 400, NULL, name, "%s must be a string, or an array of strings, of token ids or of arrays of those", name);
    ((text_request *)request)->prompt = value;
    return true;
}

static bool read_logprobs(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    int64_t n = 0;
    if (!params_integer(value, 0, CALLA_MAX_TOP_LOGPROBS, &n))
        return api_error_set(e, 400, NULL, name, "%s must be an integer from 0 to %d", name, CALLA_MAX_TOP_LOGPROBS);
    c->logprobs = true;
    c->top_logprobs = (uint32_t)n;
    return true;
}

static bool read_max_tokens(void *request, const char *name, json_object *value, api_error *e) {
    int64_t n;
    ((text_request *)request)->nothing = params_integer(value, 0, 0, &n);
    return ((text_request *)request)->nothing || conversation_read_length(request, name, value, e);
}

#define AT(field) .offset = offsetof(text_request, field)

static const param rows[] = {
    {.name = "prompt",
     .kind = PARAM_CUSTOM,
     .read = read_prompt,
     .type = "string or array",
     .help = "A text or an array of token ids; or an array of several of these, each of which is answered."},
    {.name = "max_tokens",
     .kind = PARAM_CUSTOM,
     .read = read_max_tokens,
     .type = "integer from 0",
     .help = "Default, and -1: what is left of the window (not 16); more is clamped to it. 0: the prompt alone, of use with `echo`."},
    {.name = "n", .kind = PARAM_UINT, AT(conversation.n), .min = 1, .max = 8, .help = "Answers to each prompt."},
    {.name = "echo", .kind = PARAM_BOOL, AT(echo), .help = "Begin with the prompt, and with its log-probabilities if there are any."},
    {.name = "logprobs",
     .kind = PARAM_CUSTOM,
     .read = read_logprobs,
     .type = "integer 0 to 20",
     .help = "Log-probabilities of the answer's tokens, with `echo` also of the prompt's, and of so many alternatives to each."},
    {.name = "stop",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_stop,
     .type = "string or array",
     .help = "Strings that end the answer; they are not part of it."},
    {.name = "stream_options",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_stream_options,
     .type = "object",
     .help = "`include_usage`: a last chunk with the numbers of tokens."},

    {.name = "suffix",
     .kind = PARAM_REFUSED,
     .harmless = params_is_empty,
     .help = "write the model's fill-in-the-middle tokens into the prompt"},
    {.name = "best_of", .kind = PARAM_REFUSED, .harmless = params_is_one, .help = "ask for n answers and choose among them"},

    {.name = "tools", .kind = PARAM_REFUSED, .harmless = params_is_empty, .help = "send messages and tools to /v1/chat/completions"},

    /* All that the model writes is text here, control tokens too. */
    {.name = "skip_special_tokens", .kind = PARAM_HARMLESS},
    /* There are no turns here, so none that begins with a thought. */
    {.name = "enable_thinking", .kind = PARAM_HARMLESS},
    {.name = "thinking_budget", .kind = PARAM_HARMLESS},
    {.name = "thinking_budget_tokens", .kind = PARAM_HARMLESS},
    {.name = "thinking_token_budget", .kind = PARAM_HARMLESS},
    {.name = "reasoning_budget", .kind = PARAM_HARMLESS},
    {.name = "think", .kind = PARAM_HARMLESS},
    {.name = "thinking", .kind = PARAM_HARMLESS},
    {.name = "reasoning_effort", .kind = PARAM_HARMLESS},
    {.name = "reasoning", .kind = PARAM_HARMLESS},
    {.name = "preserve_thinking", .kind = PARAM_HARMLESS},
    {.name = "chat_template_kwargs", .kind = PARAM_HARMLESS},
    {.name = "parallel_tool_calls", .kind = PARAM_HARMLESS},
    {.name = "continue_final_message", .kind = PARAM_HARMLESS},
};

const param_table text_completion_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows, .more = &conversation_params};

bool text_request_read(text_request *r, const char *body, size_t n, api_error *e) {
    conversation *c = &r->conversation;
    if (!conversation_parse(c, body, n, e) || !params_read(&text_completion_params, c->root, r, &c->ignored, e)) return false;
    if (!r->prompt) return api_error_set(e, 400, "missing_parameter", "prompt", "prompt is missing");
    return true;
}

/* ------------------------------------------------------------- prompts --------------------------------------------------- */

bool text_request_ids(json_object *array, const calla_engine_info *info, const char *field, calla_ids *out, api_error *e) {
    const size_t n = json_object_array_length(array);
    out->ids = mem_array(n, sizeof *out->ids);
    if (!out->ids) return out_of_memory(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id = 0;
        if (!params_integer(json_object_array_get_idx(array, i), 0, (int64_t)info->vocabulary - 1, &id))
            return api_error_set(e, 400, NULL, field, "%s[%zu] is not the id of a token; they run from 0 to %u", field, i,
                                 info->vocabulary - 1);
        out->ids[out->n++] = (int32_t)id;
    }
    return true;
}

/* The text of the prompt's tokens.  It differs from what was sent where the tokenizer normalizes: log-probabilities go with this one. */
static bool decode(const completion *c, const calla_ids *ids, buffer *out, api_error *e) {
    char *s = NULL;
    size_t n = 0;
    calla_error err;
    if (calla_text_decode(c->server->text, ids->ids, ids->n, &s, &n, &err)) return api_error_from(e, &err, "prompt");
    buffer_append(out, s, n);
    calla_free(s);
    return true;
}

/* One prompt: a string, or an array of ids.  Its text goes to echo, if that is not NULL. */
static bool read_one(completion *c, json_object *value, calla_ids *out, buffer *echo, api_error *e) {
    const calla_text *text = c->server->text;
    calla_error err;
    if (json_object_is_type(value, json_type_string)) {
        const char *s = json_object_get_string(value);
        const size_t n = (size_t)json_object_get_string_len(value);
        if (calla_text_encode(text, s, n, out, &err)) return api_error_from(e, &err, "prompt");
        if (echo && !c->own->logprobs) buffer_append(echo, s, n);
    } else if (json_object_is_type(value, json_type_array)) {
        if (!text_request_ids(value, &c->server->info, "prompt", out, e)) return false;
    } else
        return api_error_set(e, 400, NULL, "prompt", "prompt must hold strings or arrays of token ids");
    if (echo && !echo->n && !decode(c, out, echo, e)) return false;
    if (echo && echo->failed) return out_of_memory(e);
    if (!out->n) return api_error_set(e, 400, NULL, "prompt", "prompt is empty: the model has no token to begin with");
    const uint32_t asked = c->own->max_tokens; /* each prompt has its own room: the engine clamps to it */
    const bool fits = conversation_fit(c->own, out->n, e);
    c->own->max_tokens = asked ? asked : c->own->info->context_tokens;
    if (fits) return true;
    snprintf(e->param, sizeof e->param, "prompt");
    return false;
}

static bool prepare(completion *c, api_error *e) {
    text_request *r = request_of(c);
    if (!text_request_read(r, c->body.data ? c->body.data : "", c->body.n, e)) return false;
    json_object *first = json_object_is_type(r->prompt, json_type_array) ? json_object_array_get_idx(r->prompt, 0) : NULL;
    const bool several = json_object_is_type(first, json_type_string) || json_object_is_type(first, json_type_array);
    const size_t n = several ? json_object_array_length(r->prompt) : 1, n_choices = n * r->conversation.n;
    if (n > COMPLETION_MAX_CHOICES || n_choices > COMPLETION_MAX_CHOICES)
        return api_error_set(e, 400, NULL, "prompt", "%zu prompts with %u answers each are more than %d", n, r->conversation.n,
                             COMPLETION_MAX_CHOICES);
    c->only_prompt = r->nothing;
    c->prompt_logprobs = r->echo && r->conversation.logprobs;
    r->logprobs = mem_calloc(n_choices, sizeof *r->logprobs);
    if (r->logprobs) r->n_logprobs = n_choices;
    if (r->echo) r->echoes = mem_calloc(n, sizeof *r->echoes);
    if (r->echoes) r->n_echoes = n;
    if (!r->logprobs || (r->echo && !r->echoes)) return out_of_memory(e);
    if (!completion_reserve_prompts(c, n, e)) return false;
    for (size_t i = 0; i < n; i++) {
        json_object *prompt = several ? json_object_array_get_idx(r->prompt, i) : r->prompt;
        if (!read_one(c, prompt, &c->prompts[i].ids, r->echo ? &r->echoes[i] : NULL, e)) return false;
    }
    if (c->only_prompt) c->own->max_tokens = 0;
    c->n_choices = (uint32_t)n_choices;
    return true;
}

static void forget(completion *c) {
    text_request *r = request_of(c);
    for (size_t i = 0; i < r->n_logprobs; i++) {
        buffer_free(&r->logprobs[i].tokens);
        buffer_free(&r->logprobs[i].values);
        buffer_free(&r->logprobs[i].tops);
        buffer_free(&r->logprobs[i].offsets);
        calla_answer_close(r->logprobs[i].echo);
    }
    for (size_t i = 0; i < r->n_echoes; i++) buffer_free(&r->echoes[i]);
    mem_free(r->logprobs);
    mem_free(r->echoes);
}

/* ------------------------------------------------------------- output ---------------------------------------------------- */

/* A token as a JSON string; one that is no whole characters as OpenAI writes it: "bytes:\\xe2\\x80". */
static void write_token(const completion *c, int32_t id, buffer *out) {
    size_t n = 0;
    const char *bytes = tokenizer_bytes(c->server->text->tokenizer, id, &n);
    if (!bytes) n = 0;
    if (utf8_valid(bytes, n) == n) {
        json_append_string(out, bytes, n);
        return;
    }
    buffer_append_str(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) buffer_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    buffer_append_str(out, "\"");
}

/* JSON has no infinity; -9999 is what OpenAI's API says for a token that cannot come. */
static double json_logprob(float logprob) { return isfinite(logprob) ? (double)logprob : -9999.0; }

/* A token's entries.  The first of a prompt has no probability. */
static void note_token(const completion_choice *choice, const job_token *token) {
    const completion *c = choice->completion;
    text_logprobs *l = &request_of(c)->logprobs[choice->index];
    bool listed = false;
    const char *comma = l->tokens.n ? "," : "";
    buffer_append_str(&l->tokens, comma);
    write_token(c, token->id, &l->tokens);
    buffer_printf(&l->offsets, "%s%zu", comma, l->offset);
    if (isnan(token->logprob)) {
        buffer_printf(&l->values, "%snull", comma);
        buffer_printf(&l->tops, "%snull", comma);
    } else {
        buffer_printf(&l->values, "%s%.7g", comma, json_logprob(token->logprob));
        buffer_printf(&l->tops, "%s{", comma);
        for (uint32_t i = 0; i < token->n_top; i++) {
            if (i) buffer_append_str(&l->tops, ",");
            write_token(c, token->top[i].id, &l->tops);
            buffer_printf(&l->tops, ":%.7g", json_logprob(token->top[i].logprob));
            listed |= token->top[i].id == token->id;
        }
        if (!listed) { /* as OpenAI has it: the token itself always */
            if (token->n_top) buffer_append_str(&l->tops, ",");
            write_token(c, token->id, &l->tops);
            buffer_printf(&l->tops, ":%.7g", json_logprob(token->logprob));
        }
        buffer_append_str(&l->tops, "}");
    }
    size_t n = 0;
    const char *bytes = tokenizer_bytes(c->server->text->tokenizer, token->id, &n);
    for (size_t i = 0; bytes && i < n; i++) l->offset += ((unsigned char)bytes[i] & 0xC0) != 0x80; /* first bytes of characters */
}

/* "logprobs":…  What is written is forgotten. */
static void write_logprobs(const completion_choice *choice, buffer *out) {
    const completion *c = choice->completion;
    text_logprobs *l = &request_of(c)->logprobs[choice->index];
    if (!c->own->logprobs) {
        buffer_append_str(out, "\"logprobs\":null");
        return;
    }
    const struct {
        const char *name;
        buffer *list;
    } lists[] = {{"tokens", &l->tokens}, {"token_logprobs", &l->values}, {"top_logprobs", &l->tops}, {"text_offset", &l->offsets}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        buffer_printf(out, "%s\"%s\":[", i ? "," : "\"logprobs\":{", lists[i].name);
        if (lists[i].list->n) buffer_append(out, lists[i].list->data, lists[i].list->n);
        buffer_append_str(out, "]");
        out->failed |= lists[i].list->failed;
        buffer_clear(lists[i].list);
    }
    buffer_append_str(out, "}");
}

/* {"id":…,"object":…,"created":…,"model":…, */
static void begin_object(const completion *c, buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", c->id, (long long)c->created);
    json_append_str(out, completion_model(c));
    buffer_append_str(out, ",");
}

static const char *finish_reason(const completion_choice *choice) { return choice->finish == COMPLETION_LENGTH ? "length" : "stop"; }

static void send_chunk(completion_choice *choice, const char *text, size_t n, bool last) {
    completion *c = choice->completion;
    buffer *line = completion_line(c);
    begin_object(c, line);
    buffer_append_str(line, "\"choices\":[{\"text\":");
    json_append_string(line, text, n);
    buffer_printf(line, ",\"index\":%u,", choice->index);
    write_logprobs(choice, line);
    if (last)
        buffer_printf(line, ",\"finish_reason\":\"%s\"}]", finish_reason(choice));
    else
        buffer_append_str(line, ",\"finish_reason\":null}]");
    buffer_append_str(line, c->own->include_usage ? ",\"usage\":null}" : "}");
    completion_send(c, NULL);
}

static const buffer *echo_of(const completion_choice *choice) {
    const text_request *r = request_of(choice->completion);
    return r->echo ? &r->echoes[choice->prompt] : NULL;
}

static void begin(completion *c) {
    for (uint32_t i = 0; i < c->n_choices && c->connection && !c->prompt_logprobs; i++) {
        const buffer *echo = echo_of(&c->choices[i]);
        if (echo) send_chunk(&c->choices[i], echo->data, echo->n, false);
    }
}

static void send_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part) {
    (void)part;
    send_chunk(choice, piece->text, piece->n, false);
}

/* Log-probabilities of a token whose text is still held back go out without it, so that none waits for another. */
static void end_token(completion_choice *choice) {
    if (request_of(choice->completion)->logprobs[choice->index].tokens.n) send_chunk(choice, "", 0, false);
}

static void send_echo(void *choice, const calla_piece *piece) { send_chunk(choice, piece->text, piece->n, false); }

/* In a stream the prompt's tokens come as the answer's do.  No stop string counts there. */
static void take_prompt_token(completion_choice *choice, const job_token *token) {
    const completion *c = choice->completion;
    text_logprobs *l = &request_of(c)->logprobs[choice->index];
    const calla_answer_options options = {.raw = true, .piece = send_echo, .user = choice};
    bool stopped;
    note_token(choice, token);
    if (!c->own->stream) return;
    if ((!l->echo && calla_answer_open(c->server->text, &options, &l->echo, NULL)) || calla_answer_push(l->echo, token->id, &stopped, NULL))
        l->tokens.failed = true; /* out of memory: what is sent next ends the connection */
    end_token(choice);
}

/* The prompt is over: the beginning of a character that is still held back will not be whole any more. */
static void end_echo(const completion_choice *choice) {
    text_logprobs *l = &request_of(choice->completion)->logprobs[choice->index];
    if (l->echo && calla_answer_finish(l->echo, true, NULL)) l->tokens.failed = true;
    calla_answer_close(l->echo);
    l->echo = NULL;
}

static void take_token(completion_choice *choice, const job_token *token) {
    end_echo(choice);
    if (choice->completion->own->logprobs) note_token(choice, token);
}

static void finish(completion_choice *choice) {
    end_echo(choice);
    send_chunk(choice, "", 0, true);
}

static void write_usage(const completion *c, buffer *out) {
    uint64_t tokens, reasoning;
    completion_usage(c, &tokens, &reasoning);
    buffer_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u}}}",
                  c->prompt_tokens, (unsigned long long)tokens, (unsigned long long)(c->prompt_tokens + tokens), c->cached_tokens);
}

static void end(completion *c) {
    if (c->own->include_usage) {
        buffer *line = completion_line(c);
        begin_object(c, line);
        buffer_append_str(line, "\"choices\":[],");
        write_usage(c, line);
        completion_send(c, NULL);
    }
    buffer_append_str(completion_line(c), "[DONE]");
    completion_send(c, NULL);
}

static void write_choice(const completion_choice *choice, buffer *out) {
    buffer text = {0};
    const buffer *echo = echo_of(choice);
    if (echo) buffer_append(&text, echo->data, echo->n);
    completion_join(choice, CALLA_PIECE_CONTENT, &text);
    buffer_append_str(out, "{\"text\":");
    json_append_string(out, text.n ? text.data : "", text.n);
    buffer_printf(out, ",\"index\":%u,", choice->index);
    write_logprobs(choice, out);
    buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_reason(choice));
    out->failed |= text.failed;
    buffer_free(&text);
}

static void whole(completion *c, buffer *out) {
    begin_object(c, out);
    buffer_append_str(out, "\"choices\":[");
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (i) buffer_append_str(out, ",");
        write_choice(&c->choices[i], out);
    }
    buffer_append_str(out, "],");
    write_usage(c, out);
}

static void progress(completion *c, uint32_t done, uint32_t of) {
    buffer *line = completion_line(c);
    begin_object(c, line);
    buffer_append_str(line, "\"choices\":[],");
    completion_write_progress(c, done, of, line);
    buffer_append_str(line, c->own->include_usage ? ",\"usage\":null}" : "}");
    completion_send(c, NULL);
}

static void fail(completion *c, const api_error *e) {
    api_error_write(e, completion_line(c));
    completion_send(c, NULL);
}

static void keepalive(completion *c) { completion_send_comment(c, "keep-alive"); }

const completion_dialect text_completion_dialect = {
    .name = "completion",
    .id_prefix = "cmpl-",
    .call_prefix = "",
    .own_bytes = sizeof(text_request),
    .raw = true,
    .prepare = prepare,
    .free = forget,
    .write_error = api_error_write,
    .whole = whole,
    .begin = begin,
    .prompt_token = take_prompt_token,
    .token = take_token,
    .piece = send_piece,
    .token_end = end_token,
    .finish = finish,
    .end = end,
    .fail = fail,
    .keepalive = keepalive,
    .progress = progress,
};

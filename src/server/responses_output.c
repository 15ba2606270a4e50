/* responses_output.c: the JSON of a response and of the events of its stream.  Each part of the answer is an item of the output. */
#include <string.h>

#include "base/memory.h"
#include "server/chat.h"
#include "server/responses.h"

static void append_buffer(buffer *out, const buffer *text) {
    json_append_string(out, text->n ? text->data : "", text->n);
    if (text->failed) out->failed = true;
}

/* There is one choice: the answer. */
static const completion_choice *answer_of(const completion *c) { return c->choices; }

/* -------------------------------------------------------------- items ---------------------------------------------------- */

static const responses_tool *tool_of(const completion *c, const completion_part *part) {
    return part->kind == CALLA_PIECE_CALL ? responses_request_tool(&responses_run_of(c)->request, part->name) : NULL;
}

static bool is_custom(const completion *c, const completion_part *part) {
    const responses_tool *tool = tool_of(c, part);
    return tool && tool->custom;
}

/* The id of the item that part i is: the response's own, with a number behind it. */
static void write_id(const completion *c, size_t i, buffer *out) {
    const completion_part *part = &answer_of(c)->parts[i];
    const char *prefix = part->kind == CALLA_PIECE_REASONING ? "rs"
                         : part->kind == CALLA_PIECE_CONTENT ? "msg"
                         : is_custom(c, part)                ? "ctc"
                                                             : "fc";
    buffer_printf(out, "\"%s%s_%zu\"", prefix, strchr(c->id, '_'), i);
}

/* The text that a custom tool is called with: what the model gave as "input", or as its only text under another name; else all it gave. */
static void write_input(const completion_part *part, buffer *out) {
    json_object *arguments = NULL, *input = NULL;
    if (part->text.n && !json_parse(part->text.data, part->text.n, "arguments", &arguments, NULL)) {
        input = params_member(arguments, "input");
        if (!input && json_object_is_type(arguments, json_type_object) && json_object_object_length(arguments) == 1) {
            json_object_object_foreach(arguments, name, value) {
                (void)name;
                input = value;
            }
        }
    }
    if (json_object_is_type(input, json_type_string))
        json_append_string(out, json_object_get_string(input), (size_t)json_object_get_string_len(input));
    else
        append_buffer(out, &part->text);
    json_object_put(arguments);
}

/* The entries of part i, in brackets. */
static void write_logprobs(const completion *c, size_t i, buffer *out) {
    const responses_run *run = responses_run_of(c);
    const completion_choice *answer = answer_of(c);
    size_t begin = 0, end = 0;
    if (run->request.conversation.stream) {
        begin = i ? run->logprob_ends[i - 1] : 0;
        end = run->logprob_ends[i];
    } else { /* whole answers know no part of a token: all are the last message's */
        size_t last = answer->n_parts;
        while (last && answer->parts[last - 1].kind != CALLA_PIECE_CONTENT) last--;
        if (i + 1 == last) end = run->logprobs.n;
    }
    buffer_append_str(out, "[");
    if (end > begin) buffer_append(out, run->logprobs.data + begin, end - begin);
    buffer_append_str(out, "]");
    if (run->logprobs.failed) out->failed = true;
}

static void write_content(const completion *c, size_t i, bool full, buffer *out) {
    const completion_part *part = &answer_of(c)->parts[i];
    static const buffer none = {0};
    const bool reasoning = part->kind == CALLA_PIECE_REASONING;
    buffer_append_str(out, reasoning ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"text\":");
    append_buffer(out, full ? &part->text : &none);
    if (!reasoning) {
        buffer_append_str(out, ",\"annotations\":[],\"logprobs\":");
        if (full)
            write_logprobs(c, i, out);
        else
            buffer_append_str(out, "[]");
    }
    buffer_append_str(out, "}");
}

static void write_call(const completion *c, const completion_part *part, bool full, buffer *out) {
    const responses_tool *tool = tool_of(c, part);
    const bool custom = tool && tool->custom;
    buffer_printf(out, "\"call_id\":\"%s\",\"name\":", part->id);
    json_append_str(out, tool ? tool->name : part->name);
    if (tool && tool->space) {
        buffer_append_str(out, ",\"namespace\":");
        json_append_str(out, tool->space);
    }
    buffer_append_str(out, custom ? ",\"input\":" : ",\"arguments\":");
    if (!full)
        buffer_append_str(out, "\"\"");
    else if (custom)
        write_input(part, out);
    else
        append_buffer(out, &part->text);
}

/* full: with its content; else as it is announced. */
static void write_item(const completion *c, size_t i, const char *status, bool full, buffer *out) {
    const completion_part *part = &answer_of(c)->parts[i];
    buffer_append_str(out, "{\"id\":");
    write_id(c, i, out);
    buffer_printf(out, ",\"type\":\"%s\",\"status\":\"%s\",",
                  part->kind == CALLA_PIECE_REASONING ? "reasoning"
                  : part->kind == CALLA_PIECE_CONTENT ? "message"
                  : is_custom(c, part)                ? "custom_tool_call"
                                                      : "function_call",
                  status);
    if (part->kind == CALLA_PIECE_CALL) {
        write_call(c, part, full, out);
    } else {
        buffer_append_str(out,
                          part->kind == CALLA_PIECE_REASONING ? "\"summary\":[],\"content\":[" : "\"role\":\"assistant\",\"content\":[");
        if (full) write_content(c, i, true, out);
        buffer_append_str(out, "]");
        if (part->kind == CALLA_PIECE_REASONING && full && responses_run_of(c)->request.encrypted_reasoning) {
            buffer sealed = {0};
            buffer_append_str(&sealed, RESPONSES_THOUGHT_PREFIX);
            if (part->text.n) buffer_append(&sealed, part->text.data, part->text.n);
            buffer_append_str(out, ",\"encrypted_content\":");
            append_buffer(out, &sealed);
            buffer_free(&sealed);
        }
    }
    buffer_append_str(out, "}");
}

static const char *status_of(const completion *c, size_t i) {
    const completion_choice *answer = answer_of(c);
    const completion_part *part = &answer->parts[i];
    const bool last = answer->finished && answer->finish == COMPLETION_LENGTH && i + 1 == answer->n_parts;
    return last && (part->kind != CALLA_PIECE_CALL || part->cut) ? "incomplete" : "completed";
}

static void write_items(const completion *c, buffer *out) {
    for (size_t i = 0; i < answer_of(c)->n_parts; i++) {
        if (i) buffer_append_str(out, ",");
        write_item(c, i, status_of(c, i), true, out);
    }
}

/* ----------------------------------------------------------- the response ------------------------------------------------ */

static void write_usage(const completion *c, buffer *out) {
    uint64_t tokens, reasoning;
    completion_usage(c, &tokens, &reasoning);
    buffer_printf(out,
                  "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%llu,"
                  "\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                  c->prompt_tokens, c->cached_tokens, (unsigned long long)tokens, (unsigned long long)reasoning,
                  (unsigned long long)(c->prompt_tokens + tokens));
}

/* error: why it failed, or NULL. */
static void write_response(const completion *c, const char *status, const api_error *error, buffer *out) {
    responses_run *run = responses_run_of(c);
    const conversation *r = c->own;
    const size_t begin = out->n;
    const bool incomplete = !strcmp(status, "incomplete"), ended = incomplete || !strcmp(status, "completed");
    buffer_printf(out,
                  "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":false,\"error\":", c->id,
                  (long long)c->created, status);
    if (error) {
        buffer_printf(out, "{\"code\":\"%s\",\"message\":", error->code ? error->code : error->type);
        json_append_str(out, error->message);
        buffer_append_str(out, "}");
    } else
        buffer_append_str(out, "null");
    buffer_printf(out, ",\"incomplete_details\":%s,", incomplete ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buffer_append(out, run->echo.data, run->echo.n);
    buffer_append_str(out, "\"model\":");
    json_append_str(out, completion_model(c));
    buffer_printf(out,
                  ",\"parallel_tool_calls\":%s,\"service_tier\":\"default\",\"store\":%s,\"temperature\":%.7g,\"top_p\":%.7g,"
                  "\"truncation\":\"disabled\",\"output\":[",
                  r->single_call ? "false" : "true", run->request.store ? "true" : "false", (double)r->sampling.temperature,
                  (double)r->sampling.top_p);
    run->output_at = out->n - begin;
    if (ended) write_items(c, out);
    run->output_n = out->n - begin - run->output_at;
    buffer_append_str(out, "],\"usage\":");
    if (ended)
        write_usage(c, out);
    else
        buffer_append_str(out, "null");
    buffer_append_str(out, "}");
}

static const char *end_status(const completion *c) { return answer_of(c)->finish == COMPLETION_LENGTH ? "incomplete" : "completed"; }

void responses_output_whole(completion *c, buffer *out) { write_response(c, end_status(c), NULL, out); }

/* ------------------------------------------------------------- events ---------------------------------------------------- */

/* {"type":…,"sequence_number":…  What follows begins with a comma. */
static buffer *begin_event(completion *c, const char *type) {
    buffer *line = completion_line(c);
    buffer_printf(line, "{\"type\":\"%s\",\"sequence_number\":%u", type, responses_run_of(c)->sequence++);
    return line;
}

static void end_event(completion *c, const char *type) {
    buffer_append_str(&c->line, "}");
    completion_send(c, type);
}

static void send_response(completion *c, const char *type, const char *status, const api_error *error) {
    buffer *line = begin_event(c, type);
    buffer_append_str(line, ",\"response\":");
    write_response(c, status, error, line);
    end_event(c, type);
}

static void send_item(completion *c, const char *type, size_t i, const char *status, bool full) {
    buffer *line = begin_event(c, type);
    buffer_printf(line, ",\"output_index\":%zu,\"item\":", i);
    write_item(c, i, status, full, line);
    end_event(c, type);
}

/* An event about part i's item: begin_event, its place. */
static buffer *begin_item_event(completion *c, const char *type, size_t i) {
    buffer *line = begin_event(c, type);
    buffer_append_str(line, ",\"item_id\":");
    write_id(c, i, line);
    buffer_printf(line, ",\"output_index\":%zu", i);
    if (answer_of(c)->parts[i].kind != CALLA_PIECE_CALL) buffer_append_str(line, ",\"content_index\":0");
    return line;
}

static void send_part(completion *c, const char *type, size_t i, bool full) {
    buffer *line = begin_item_event(c, type, i);
    buffer_append_str(line, ",\"part\":");
    write_content(c, i, full, line);
    end_event(c, type);
}

static void send_text(completion *c, const char *type, size_t i, const char *field, const char *text, size_t n) {
    buffer *line = begin_item_event(c, type, i);
    buffer_printf(line, ",\"%s\":", field);
    json_append_string(line, text, n);
    end_event(c, type);
}

static void close_item(completion *c) {
    responses_run *run = responses_run_of(c);
    if (!run->open) return;
    const size_t i = run->open - 1;
    const completion_part *part = &answer_of(c)->parts[i];
    const char *text = part->text.n ? part->text.data : "";
    run->open = 0;
    switch (part->kind) {
    case CALLA_PIECE_REASONING:
        send_text(c, "response.reasoning_text.done", i, "text", text, part->text.n);
        send_part(c, "response.content_part.done", i, true);
        break;
    case CALLA_PIECE_CONTENT: {
        buffer *line = begin_item_event(c, "response.output_text.done", i);
        buffer_append_str(line, ",\"text\":");
        append_buffer(line, &part->text);
        buffer_append_str(line, ",\"logprobs\":");
        write_logprobs(c, i, line);
        end_event(c, "response.output_text.done");
        send_part(c, "response.content_part.done", i, true);
        break;
    }
    default:
        if (is_custom(c, part)) { /* in one piece: until its end nobody knows that the model gave what it should */
            static const char *const types[][2] = {{"response.custom_tool_call_input.delta", "delta"},
                                                   {"response.custom_tool_call_input.done", "input"}};
            for (size_t k = 0; k < 2; k++) {
                buffer *line = begin_item_event(c, types[k][0], i);
                buffer_printf(line, ",\"%s\":", types[k][1]);
                write_input(part, line);
                end_event(c, types[k][0]);
            }
        } else {
            buffer *line = begin_item_event(c, "response.function_call_arguments.done", i);
            buffer_append_str(line, ",\"name\":");
            json_append_str(line, tool_of(c, part) ? tool_of(c, part)->name : part->name);
            buffer_append_str(line, ",\"arguments\":");
            append_buffer(line, &part->text);
            end_event(c, "response.function_call_arguments.done");
        }
    }
    send_item(c, "response.output_item.done", i, status_of(c, i), true);
}

static void open_item(completion *c, size_t i) {
    responses_run *run = responses_run_of(c);
    if (mem_grow(&run->logprob_ends, &run->cap_ends, i + 1, sizeof *run->logprob_ends, SIZE_MAX / sizeof *run->logprob_ends)) {
        if (c->connection) connection_abort(c->connection, ABORT_NO_MEMORY);
        return;
    }
    run->logprob_ends[i] = run->logprobs.n;
    run->open = i + 1;
    send_item(c, "response.output_item.added", i, "in_progress", false);
    if (answer_of(c)->parts[i].kind != CALLA_PIECE_CALL) send_part(c, "response.content_part.added", i, false);
}

void responses_output_begin(completion *c) {
    send_response(c, "response.created", "in_progress", NULL);
    send_response(c, "response.in_progress", "in_progress", NULL);
}

/* Log-probabilities are those of the message: neither of thoughts nor of calls. */
void responses_output_token(completion_choice *choice, const job_token *token) {
    const completion *c = choice->completion;
    const completion_part *last = choice->n_parts ? &choice->parts[choice->n_parts - 1] : NULL;
    if (choice->in_reasoning || (last && last->kind == CALLA_PIECE_CALL && !last->ended)) return;
    if (tokenizer_is_added(c->server->text->tokenizer, token->id)) return;
    chat_output_token(choice, token);
    if (c->own->stream) return; /* a piece will take it along */
    buffer *all = &responses_run_of(c)->logprobs;
    if (choice->logprobs.n) {
        if (all->n) buffer_append_str(all, ",");
        buffer_append(all, choice->logprobs.data, choice->logprobs.n);
    }
    all->failed |= choice->logprobs.failed;
    buffer_clear(&choice->logprobs);
}

/* The entries that have gathered since the last piece of content, in brackets; they are the part's from here on. */
static void take_logprobs(completion_choice *choice, size_t i, buffer *out) {
    responses_run *run = responses_run_of(choice->completion);
    buffer *fresh = &choice->logprobs;
    const size_t begin = i ? run->logprob_ends[i - 1] : 0;
    buffer_append_str(out, "[");
    if (fresh->n) {
        buffer_append(out, fresh->data, fresh->n);
        if (run->logprobs.n > begin) buffer_append_str(&run->logprobs, ",");
        buffer_append(&run->logprobs, fresh->data, fresh->n);
    }
    buffer_append_str(out, "]");
    out->failed |= fresh->failed || run->logprobs.failed;
    run->logprob_ends[i] = run->logprobs.n;
    buffer_clear(fresh);
}

void responses_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part) {
    completion *c = choice->completion;
    const size_t i = (size_t)(part - choice->parts);
    responses_run *run = responses_run_of(c);
    if (run->open != i + 1) {
        close_item(c);
        open_item(c, i);
    }
    if (!c->connection) return;
    switch (piece->kind) {
    case CALLA_PIECE_REASONING: send_text(c, "response.reasoning_text.delta", i, "delta", piece->text, piece->n); break;
    case CALLA_PIECE_CONTENT: {
        buffer *line = begin_item_event(c, "response.output_text.delta", i);
        buffer_append_str(line, ",\"delta\":");
        json_append_string(line, piece->text, piece->n);
        buffer_append_str(line, ",\"logprobs\":");
        take_logprobs(choice, i, line);
        end_event(c, "response.output_text.delta");
        break;
    }
    case CALLA_PIECE_ARGUMENTS:
        if (!is_custom(c, part)) send_text(c, "response.function_call_arguments.delta", i, "delta", piece->text, piece->n);
        break;
    case CALLA_PIECE_CALL_END: close_item(c); break;
    default: break;
    }
}

void responses_output_finish(completion_choice *choice) { close_item(choice->completion); }

void responses_output_end(completion *c) {
    const bool incomplete = answer_of(c)->finish == COMPLETION_LENGTH;
    send_response(c, incomplete ? "response.incomplete" : "response.completed", end_status(c), NULL);
}

void responses_output_fail(completion *c, const api_error *e) { send_response(c, "response.failed", "failed", e); }

/* Some clients count events only: a comment would not keep them waiting. */
void responses_output_keepalive(completion *c) {
    begin_event(c, "keepalive");
    end_event(c, "keepalive");
}

void responses_output_progress(completion *c, uint32_t done, uint32_t of) {
    buffer *line = begin_event(c, "keepalive");
    buffer_append_str(line, ",");
    completion_write_progress(c, done, of, line);
    end_event(c, "keepalive");
}

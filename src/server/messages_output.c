/* messages_output.c: the JSON of messages, of the events of a stream, and of errors.  Knows the forms and nothing of when they are due.
 *
 * Each part of an answer is a content block; blocks are numbered and follow each other, so that the next one, or the end of the answer,
 * closes the one before. */

#include "server/entropy.h"
#include "server/messages.h"

static messages_request *own(completion *c) { return (messages_request *)c->own; }

/* -------------------------------------------------------- messages ------------------------------------------------------ */

static void write_usage(const completion *c, buffer *out) {
    uint64_t tokens, reasoning;
    completion_usage(c, &tokens, &reasoning);
    buffer_printf(out,
                  "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%llu}",
                  c->prompt_tokens - c->cached_tokens, c->cached_tokens, (unsigned long long)tokens);
}

/* "stop_reason":…,"stop_sequence":…; choice NULL: the answer has only begun. */
static void write_stop(const completion_choice *choice, buffer *out) {
    static const char *const reasons[] = {[COMPLETION_STOP] = "end_turn",
                                          [COMPLETION_LENGTH] = "max_tokens",
                                          [COMPLETION_TOOL_CALLS] = "tool_use",
                                          [COMPLETION_STOP_STRING] = "stop_sequence"};
    if (choice)
        buffer_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reasons[choice->finish]);
    else
        buffer_append_str(out, "\"stop_reason\":null,\"stop_sequence\":");
    if (choice && choice->finish == COMPLETION_STOP_STRING && choice->stop_string)
        json_append_str(out, choice->stop_string);
    else
        buffer_append_str(out, "null");
}

/* Nobody reads a signature here, but clients send back only thoughts that have one. */
static void write_signature(buffer *out) {
    char signature[40];
    entropy_id("calla", 32, signature);
    buffer_printf(out, "\"signature\":\"%s\"", signature);
}

/* A call that the end of the answer cut off may have no whole arguments: it then has none. */
static void write_input(const completion_part *part, buffer *out) {
    json_object *input = NULL;
    const bool whole = part->text.n && !json_parse(part->text.data, part->text.n, "arguments", &input, NULL) &&
                       json_object_is_type(input, json_type_object);
    json_object_put(input);
    if (whole)
        buffer_append(out, part->text.data, part->text.n);
    else
        buffer_append_str(out, "{}");
}

static void write_block(const completion_part *part, buffer *out) {
    if (part->kind == CALLA_PIECE_CALL) {
        buffer_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", part->id);
        json_append_str(out, part->name);
        buffer_append_str(out, ",\"input\":");
        write_input(part, out);
    } else {
        buffer_append_str(out,
                          part->kind == CALLA_PIECE_REASONING ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
        json_append_string(out, part->text.n ? part->text.data : "", part->text.n);
        if (part->kind == CALLA_PIECE_REASONING) {
            buffer_append_str(out, ",");
            write_signature(out);
        }
    }
    buffer_append_str(out, "}");
}

/* choice NULL: the message as it begins. */
static void write_message(completion *c, const completion_choice *choice, buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", c->id);
    json_append_str(out, completion_model(c));
    buffer_append_str(out, ",\"content\":[");
    for (size_t i = 0; choice && i < choice->n_parts; i++) {
        if (i) buffer_append_str(out, ",");
        write_block(&choice->parts[i], out);
    }
    buffer_append_str(out, "],");
    write_stop(choice, out);
    buffer_append_str(out, ",");
    write_usage(c, out);
    buffer_append_str(out, "}");
}

void messages_output_count(completion *c, buffer *out) { buffer_printf(out, "{\"input_tokens\":%u}", c->prompt_tokens); }

void messages_output_whole(completion *c, buffer *out) { write_message(c, &c->choices[0], out); }

/* --------------------------------------------------------- events ------------------------------------------------------- */

static buffer *begin_event(completion *c, const char *type) {
    buffer *line = completion_line(c);
    buffer_printf(line, "{\"type\":\"%s\"", type);
    return line;
}

static void send_event(completion *c, const char *type) {
    buffer_append_str(&c->line, "}");
    completion_send(c, type);
}

/* An event of the block begun last. */
static buffer *begin_block_event(completion *c, const char *type) {
    buffer *line = begin_event(c, type);
    buffer_printf(line, ",\"index\":%u", own(c)->n_blocks - 1);
    return line;
}

void messages_output_begin(completion *c) {
    buffer *line = begin_event(c, "message_start");
    buffer_append_str(line, ",\"message\":");
    write_message(c, NULL, line);
    send_event(c, "message_start");
}

static void close_block(completion *c) {
    messages_request *r = own(c);
    if (!r->open) return;
    if (r->kind == CALLA_PIECE_REASONING) {
        buffer *line = begin_block_event(c, "content_block_delta");
        buffer_append_str(line, ",\"delta\":{\"type\":\"signature_delta\",");
        write_signature(line);
        buffer_append_str(line, "}");
        send_event(c, "content_block_delta");
    }
    begin_block_event(c, "content_block_stop");
    send_event(c, "content_block_stop");
    r->open = false;
}

static void open_block(completion *c, const completion_part *part) {
    messages_request *r = own(c);
    r->open = true;
    r->kind = part->kind;
    r->n_blocks++;
    buffer *line = begin_block_event(c, "content_block_start");
    buffer_append_str(line, ",\"content_block\":");
    if (part->kind == CALLA_PIECE_CALL) {
        buffer_printf(line, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", part->id);
        json_append_str(line, part->name);
        buffer_append_str(line, ",\"input\":{}}");
    } else
        buffer_append_str(line, part->kind == CALLA_PIECE_REASONING ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                                                                    : "{\"type\":\"text\",\"text\":\"\"}");
    send_event(c, "content_block_start");
}

void messages_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part) {
    completion *c = choice->completion;
    if (part >= choice->parts + own(c)->n_blocks) { /* a new one */
        close_block(c);
        open_block(c, part);
    }
    if (piece->n) {
        buffer *line = begin_block_event(c, "content_block_delta");
        buffer_append_str(line, piece->kind == CALLA_PIECE_REASONING ? ",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":"
                                : piece->kind == CALLA_PIECE_CONTENT ? ",\"delta\":{\"type\":\"text_delta\",\"text\":"
                                                                     : ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
        json_append_string(line, piece->text, piece->n);
        buffer_append_str(line, "}");
        send_event(c, "content_block_delta");
    }
    if (piece->kind == CALLA_PIECE_CALL_END) close_block(c);
}

void messages_output_finish(completion_choice *choice) {
    completion *c = choice->completion;
    close_block(c);
    buffer *line = begin_event(c, "message_delta");
    buffer_append_str(line, ",\"delta\":{");
    write_stop(choice, line);
    buffer_append_str(line, "},");
    write_usage(c, line);
    send_event(c, "message_delta");
}

void messages_output_end(completion *c) {
    begin_event(c, "message_stop");
    send_event(c, "message_stop");
}

void messages_output_fail(completion *c, const api_error *e) {
    messages_output_error(e, completion_line(c));
    completion_send(c, "error");
}

void messages_output_ping(completion *c) {
    begin_event(c, "ping");
    send_event(c, "ping");
}

void messages_output_progress(completion *c, uint32_t done, uint32_t of) {
    buffer *line = begin_event(c, "ping");
    buffer_append_str(line, ",");
    completion_write_progress(c, done, of, line);
    send_event(c, "ping");
}

/* --------------------------------------------------------- errors ------------------------------------------------------- */

static const char *error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void messages_output_error(const api_error *e, buffer *out) {
    buffer_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", error_type(e->status));
    json_append_str(out, e->message);
    buffer_append_str(out, "}}");
}

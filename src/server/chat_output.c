/* chat_output.c: the JSON of chat.completion and chat.completion.chunk objects.  Knows the forms and nothing of when they are due. */
#include <math.h>

#include "base/utf8.h"
#include "server/chat.h"

/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…, */
static void begin_object(const completion *c, const char *object, buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object, (long long)c->created);
    json_append_str(out, completion_model(c));
    buffer_printf(out, ",\"system_fingerprint\":\"calla-%s\",", calla_version());
}

static buffer *begin_chunk(completion *c) {
    buffer *line = completion_line(c);
    begin_object(c, "chat.completion.chunk", line);
    return line;
}

/* Every chunk but the last has a null usage if usage was asked for. */
static void send_chunk(completion *c, bool usage_is_in) {
    buffer_append_str(&c->line, !usage_is_in && c->own->include_usage ? ",\"usage\":null}" : "}");
    completion_send(c, NULL);
}

static buffer *begin_delta(completion_choice *choice) {
    buffer *line = begin_chunk(choice->completion);
    buffer_printf(line, "\"choices\":[{\"index\":%u,\"delta\":", choice->index);
    return line;
}

static void write_logprobs(const completion_choice *choice, buffer *out) {
    const conversation *r = choice->completion->own;
    buffer_append_str(out, ",\"logprobs\":");
    if (!r->logprobs || (r->stream && !choice->logprobs.n)) {
        buffer_append_str(out, "null");
        return;
    }
    buffer_append_str(out, "{\"content\":[");
    if (choice->logprobs.n) buffer_append(out, choice->logprobs.data, choice->logprobs.n);
    buffer_append_str(out, "],\"refusal\":null}");
    if (choice->logprobs.failed) out->failed = true;
}

static void send_delta(completion_choice *choice, const char *finish_reason) {
    buffer *line = &choice->completion->line;
    write_logprobs(choice, line);
    buffer_clear(&choice->logprobs);
    if (finish_reason)
        buffer_printf(line, ",\"finish_reason\":\"%s\"}]", finish_reason);
    else
        buffer_append_str(line, ",\"finish_reason\":null}]");
    send_chunk(choice->completion, false);
}

void chat_output_begin(completion *c) {
    for (uint32_t i = 0; i < c->n_choices && c->connection; i++) {
        buffer_append_str(begin_delta(&c->choices[i]), "{\"role\":\"assistant\",\"content\":\"\"}");
        send_delta(&c->choices[i], NULL);
    }
}

static void write_reasoning(const char *text, size_t n, buffer *out) { /* clients look under either name */
    buffer_append_str(out, "\"reasoning_content\":");
    json_append_string(out, text, n);
    buffer_append_str(out, ",\"reasoning\":");
    json_append_string(out, text, n);
}

void chat_output_piece(completion_choice *choice, const calla_piece *piece, const completion_part *part) {
    if (piece->kind == CALLA_PIECE_CALL_END) return;
    buffer *line = begin_delta(choice);
    switch (piece->kind) {
    case CALLA_PIECE_REASONING:
        buffer_append_str(line, "{");
        write_reasoning(piece->text, piece->n, line);
        buffer_append_str(line, "}");
        break;
    case CALLA_PIECE_CONTENT:
        buffer_append_str(line, "{\"content\":");
        json_append_string(line, piece->text, piece->n);
        buffer_append_str(line, "}");
        break;
    case CALLA_PIECE_CALL:
        buffer_printf(line,
                      "{\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", choice->n_calls - 1,
                      part->id);
        json_append_str(line, piece->name);
        buffer_append_str(line, ",\"arguments\":\"\"}}]}");
        break;
    default:
        buffer_printf(line, "{\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", choice->n_calls - 1);
        json_append_string(line, piece->text, piece->n);
        buffer_append_str(line, "}}]}");
    }
    send_delta(choice, NULL);
}

/* Log-probabilities that no piece took along, as a chunk with an empty delta. */
void chat_output_token_end(completion_choice *choice) {
    if (!choice->logprobs.n) return;
    buffer_append_str(begin_delta(choice), "{}");
    send_delta(choice, NULL);
}

static const char *finish_reason(const completion_choice *choice) {
    switch (choice->finish) {
    case COMPLETION_LENGTH: return "length";
    case COMPLETION_TOOL_CALLS: return "tool_calls";
    default: return "stop";
    }
}

void chat_output_finish(completion_choice *choice) {
    buffer_append_str(begin_delta(choice), "{}");
    send_delta(choice, finish_reason(choice));
}

static void write_usage(const completion *c, buffer *out) {
    uint64_t tokens, reasoning;
    completion_usage(c, &tokens, &reasoning);
    buffer_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u},\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                  c->prompt_tokens, (unsigned long long)tokens, (unsigned long long)(c->prompt_tokens + tokens), c->cached_tokens,
                  (unsigned long long)reasoning);
}

void chat_output_end(completion *c) {
    if (c->own->include_usage) {
        buffer *line = begin_chunk(c);
        buffer_append_str(line, "\"choices\":[],");
        write_usage(c, line);
        send_chunk(c, true);
    }
    buffer_append_str(completion_line(c), "[DONE]");
    completion_send(c, NULL);
}

void chat_output_fail(completion *c, const api_error *e) {
    api_error_write(e, completion_line(c));
    completion_send(c, NULL);
}

void chat_output_progress(completion *c, uint32_t done, uint32_t of) {
    buffer *line = begin_chunk(c);
    buffer_append_str(line, "\"choices\":[],");
    completion_write_progress(c, done, of, line);
    send_chunk(c, false);
}

static void write_calls(const completion_choice *choice, buffer *out) {
    bool any = false;
    for (size_t i = 0; i < choice->n_parts; i++) {
        const completion_part *part = &choice->parts[i];
        if (part->kind != CALLA_PIECE_CALL) continue;
        buffer_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", any ? "," : "", part->id);
        json_append_str(out, part->name);
        buffer_append_str(out, ",\"arguments\":");
        json_append_string(out, part->text.n ? part->text.data : "", part->text.n);
        buffer_append_str(out, "}}");
        any = true;
    }
}

static void write_message(const completion_choice *choice, buffer *out) {
    buffer content = {0}, reasoning = {0};
    completion_join(choice, CALLA_PIECE_CONTENT, &content);
    completion_join(choice, CALLA_PIECE_REASONING, &reasoning);
    buffer_append_str(out, "{\"role\":\"assistant\",\"content\":");
    if (content.n || !choice->n_calls)
        json_append_string(out, content.n ? content.data : "", content.n);
    else
        buffer_append_str(out, "null");
    buffer_append_str(out, ",\"refusal\":null");
    if (reasoning.n) {
        buffer_append_str(out, ",");
        write_reasoning(reasoning.data, reasoning.n, out);
    }
    if (choice->n_calls) {
        buffer_append_str(out, ",\"tool_calls\":[");
        write_calls(choice, out);
        buffer_append_str(out, "]");
    }
    buffer_append_str(out, "}");
    if (content.failed || reasoning.failed) out->failed = true;
    buffer_free(&content);
    buffer_free(&reasoning);
}

void chat_output_whole(completion *c, buffer *out) {
    begin_object(c, "chat.completion", out);
    buffer_append_str(out, "\"choices\":[");
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const completion_choice *choice = &c->choices[i];
        buffer_printf(out, "%s{\"index\":%u,\"message\":", i ? "," : "", choice->index);
        write_message(choice, out);
        write_logprobs(choice, out);
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_reason(choice));
    }
    buffer_append_str(out, "],");
    write_usage(c, out);
    buffer_append_str(out, "}");
}

/* "token":…,"logprob":…,"bytes":[…].  A token may be a part of a character: its string is then approximate, its bytes are exact. */
static void write_token(const calla_text *text, int32_t id, float logprob, buffer *out) {
    size_t n = 0;
    const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
    if (!bytes) n = 0;
    buffer string = {0};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const int len = utf8_decode(bytes + i, n - i, &cp);
        if (len > 0)
            buffer_append(&string, bytes + i, (size_t)len);
        else
            buffer_append_str(&string, "\xEF\xBF\xBD");
        i += len > 0 ? (size_t)len : 1;
    }
    if (string.failed) out->failed = true;
    buffer_append_str(out, "\"token\":");
    json_append_string(out, string.n ? string.data : "", string.n);
    /* JSON has no infinity; -9999 is what OpenAI's API says for a token that cannot come. */
    buffer_printf(out, ",\"logprob\":%.7g,\"bytes\":[", isfinite(logprob) ? (double)logprob : -9999.0);
    for (size_t i = 0; i < n; i++) buffer_printf(out, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    buffer_append_str(out, "]");
    buffer_free(&string);
}

void chat_output_token(completion_choice *choice, const job_token *token) {
    if (!choice->completion->own->logprobs) return;
    const calla_text *text = choice->completion->server->text;
    buffer *out = &choice->logprobs;
    if (out->n) buffer_append_str(out, ",");
    buffer_append_str(out, "{");
    write_token(text, token->id, token->logprob, out);
    buffer_append_str(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < token->n_top; i++) {
        buffer_append_str(out, i ? ",{" : "{");
        write_token(text, token->top[i].id, token->top[i].logprob, out);
        buffer_append_str(out, "}");
    }
    buffer_append_str(out, "]}");
}

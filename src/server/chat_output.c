/* chat_output.c: the JSON of chat.completion and chat.completion.chunk objects.  Knows the forms and nothing of when they are due. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "server/chat_impl.h"
#include "server/entropy.h"
#include "server/reply.h"

static void append_str(buffer *out, const char *s) { json_append_string(out, s, strlen(s)); }

/* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…, */
static void begin_object(const chat_completion *chat, const char *object, buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", chat->id, object, (long long)chat->created);
    append_str(out, chat->request.model ? chat->request.model : chat->server->info.model_name);
    buffer_printf(out, ",\"system_fingerprint\":\"calla-%s\",", calla_version());
}

static buffer *begin_chunk(chat_completion *chat) {
    buffer_clear(&chat->line);
    begin_object(chat, "chat.completion.chunk", &chat->line);
    return &chat->line;
}

/* Every chunk but the last has a null usage if usage was asked for. */
static void send_chunk(chat_completion *chat, bool usage_is_in) {
    buffer *line = &chat->line;
    buffer_append_str(line, !usage_is_in && chat->request.include_usage ? ",\"usage\":null}" : "}");
    if (!chat->connection) return;
    if (line->failed) {
        connection_kill(chat->connection);
        return;
    }
    chat->last_write_ns = clock_now_ns();
    reply_stream_event(chat->connection, line->data, line->n);
}

static buffer *begin_delta(chat_choice *choice) {
    buffer *line = begin_chunk(choice->chat);
    buffer_printf(line, "\"choices\":[{\"index\":%u,\"delta\":", choice->index);
    return line;
}

static void write_logprobs(const chat_choice *choice, buffer *out) {
    buffer_append_str(out, ",\"logprobs\":");
    if (!choice->chat->request.logprobs || (choice->chat->request.stream && !choice->logprobs.n)) {
        buffer_append_str(out, "null");
        return;
    }
    buffer_append_str(out, "{\"content\":[");
    if (choice->logprobs.n) buffer_append(out, choice->logprobs.data, choice->logprobs.n);
    buffer_append_str(out, "],\"refusal\":null}");
    if (choice->logprobs.failed) out->failed = true;
}

static void send_delta(chat_choice *choice, const char *finish_reason) {
    buffer *line = &choice->chat->line;
    write_logprobs(choice, line);
    buffer_clear(&choice->logprobs);
    if (finish_reason)
        buffer_printf(line, ",\"finish_reason\":\"%s\"}]", finish_reason);
    else
        buffer_append_str(line, ",\"finish_reason\":null}]");
    send_chunk(choice->chat, false);
}

void chat_output_role(chat_choice *choice) {
    buffer_append_str(begin_delta(choice), "{\"role\":\"assistant\",\"content\":\"\"}");
    send_delta(choice, NULL);
}

/* index: place in the list, in deltas only. */
static void write_tool_call(const calla_piece *piece, int64_t index, buffer *out) {
    char id[32];
    entropy_id("call_", 24, id);
    buffer_append_str(out, "{");
    if (index >= 0) buffer_printf(out, "\"index\":%lld,", (long long)index);
    buffer_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    append_str(out, piece->name);
    buffer_append_str(out, ",\"arguments\":");
    json_append_string(out, piece->text, piece->n);
    buffer_append_str(out, "}}");
}

static void keep_piece(chat_choice *choice, const calla_piece *piece) {
    switch (piece->kind) {
    case CALLA_PIECE_REASONING: buffer_append(&choice->reasoning, piece->text, piece->n); break;
    case CALLA_PIECE_CONTENT: buffer_append(&choice->content, piece->text, piece->n); break;
    default:
        if (choice->tool_calls.n) buffer_append_str(&choice->tool_calls, ",");
        write_tool_call(piece, -1, &choice->tool_calls);
    }
}

void chat_output_piece(chat_choice *choice, const calla_piece *piece) {
    const uint32_t call = choice->n_tool_calls;
    choice->n_tool_calls += piece->kind == CALLA_PIECE_TOOL_CALL;
    if (!choice->chat->request.stream) {
        keep_piece(choice, piece);
        return;
    }
    if (piece->kind != CALLA_PIECE_TOOL_CALL && !piece->n) return;
    buffer *line = begin_delta(choice);
    if (piece->kind == CALLA_PIECE_TOOL_CALL) {
        buffer_append_str(line, "{\"tool_calls\":[");
        write_tool_call(piece, call, line);
        buffer_append_str(line, "]}");
    } else {
        buffer_append_str(line, piece->kind == CALLA_PIECE_REASONING ? "{\"reasoning_content\":" : "{\"content\":");
        json_append_string(line, piece->text, piece->n);
        buffer_append_str(line, "}");
    }
    send_delta(choice, NULL);
}

void chat_output_logprobs(chat_choice *choice) {
    if (!choice->chat->request.stream || !choice->logprobs.n) return;
    buffer_append_str(begin_delta(choice), "{}");
    send_delta(choice, NULL);
}

void chat_output_finish(chat_choice *choice) {
    if (!choice->chat->request.stream) return;
    buffer_append_str(begin_delta(choice), "{}");
    send_delta(choice, choice->finish_reason);
}

static void write_usage(const chat_completion *chat, buffer *out) {
    unsigned long long completion = 0, reasoning = 0;
    for (uint32_t i = 0; i < chat->request.n; i++) {
        completion += chat->choices[i].completion_tokens;
        reasoning += chat->choices[i].reasoning_tokens;
    }
    buffer_printf(out,
                  "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                  chat->prompt_tokens, completion, chat->prompt_tokens + completion, reasoning);
}

void chat_output_usage(chat_completion *chat) {
    buffer *line = begin_chunk(chat);
    buffer_append_str(line, "\"choices\":[],");
    write_usage(chat, line);
    send_chunk(chat, true);
}

void chat_output_done(chat_completion *chat) {
    if (chat->connection) reply_stream_event(chat->connection, "[DONE]", 6);
}

static void write_message(const chat_choice *choice, buffer *out) {
    buffer_append_str(out, "{\"role\":\"assistant\",\"content\":");
    if (choice->content.n || !choice->n_tool_calls)
        json_append_string(out, choice->content.n ? choice->content.data : "", choice->content.n);
    else
        buffer_append_str(out, "null");
    buffer_append_str(out, ",\"refusal\":null");
    if (choice->reasoning.n) {
        buffer_append_str(out, ",\"reasoning_content\":");
        json_append_string(out, choice->reasoning.data, choice->reasoning.n);
    }
    if (choice->n_tool_calls) {
        buffer_append_str(out, ",\"tool_calls\":[");
        if (choice->tool_calls.n) buffer_append(out, choice->tool_calls.data, choice->tool_calls.n);
        buffer_append_str(out, "]");
    }
    buffer_append_str(out, "}");
    if (choice->content.failed || choice->reasoning.failed || choice->tool_calls.failed) out->failed = true;
}

void chat_output_whole(chat_completion *chat, buffer *out) {
    begin_object(chat, "chat.completion", out);
    buffer_append_str(out, "\"choices\":[");
    for (uint32_t i = 0; i < chat->request.n; i++) {
        const chat_choice *choice = &chat->choices[i];
        buffer_printf(out, "%s{\"index\":%u,\"message\":", i ? "," : "", choice->index);
        write_message(choice, out);
        write_logprobs(choice, out);
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", choice->finish_reason);
    }
    buffer_append_str(out, "],");
    write_usage(chat, out);
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

void chat_output_token_logprob(const calla_text *text, const job_token *token, buffer *out) {
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

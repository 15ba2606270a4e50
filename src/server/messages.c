/* messages.c: see messages.h.  Owns the table of fields of the messages API. */
#include "server/messages.h"

#include <stddef.h>
#include <string.h>

/* Read by messages_request_read when all other fields were: their order in the prompt is not that in the body. */
static bool read_later(void *request, const char *name, json_object *value, api_error *e) {
    (void)request, (void)name, (void)value, (void)e;
    return true;
}

static bool read_tools(void *request, const char *name, json_object *value, api_error *e) {
    (void)name;
    return messages_read_tools(request, value, e);
}

static const param rows[] = {
    {.name = "messages",
     .kind = PARAM_CUSTOM,
     .read = read_later,
     .type = "array",
     .help = "Roles `user`, `assistant` and `system`. Blocks that only other servers write become a note in the text."},
    {.name = "system",
     .kind = PARAM_CUSTOM,
     .read = read_later,
     .type = "string or array",
     .help =
         "The billing line that some agents put in front (`x-anthropic-billing-header: …`) is left out: it would make every prompt new."},
    {.name = "tools",
     .kind = PARAM_CUSTOM,
     .read = read_tools,
     .type = "array",
     .help = "Those with an `input_schema`. Tools that Anthropic's servers run are named in `x-calla-warning`."},
    {.name = "tool_choice",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_tool_choice,
     .type = "object",
     .help = "Of type `auto`, `any`, `none`, or `tool` with a name; `disable_parallel_tool_use`: the answer ends with its first call."},
    {.name = "max_tokens",
     .kind = PARAM_UINT,
     .offset = offsetof(messages_request, conversation.max_tokens),
     .min = 1,
     .max = UINT32_MAX,
     .help = "Most tokens of thought and answer. Default, and at most: what is left of the window."},
    {.name = "output_format",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_format,
     .type = "object",
     .help = "An older place of `output_config.format`."},
    {.name = "stop_sequences", .kind = PARAM_CUSTOM, .read = conversation_read_stop, .type = "array", .help = "At most 16 strings."},

    {.name = "mcp_servers",
     .kind = PARAM_REFUSED,
     .harmless = params_is_empty,
     .help = "this server calls no others; offer their tools as tools"},

    {.name = "container", .kind = PARAM_HARMLESS},
    {.name = "context_management", .kind = PARAM_HARMLESS},
    {.name = "cache_control", .kind = PARAM_HARMLESS},
    {.name = "inference_geo", .kind = PARAM_HARMLESS},
    {.name = "speed", .kind = PARAM_HARMLESS},
    {.name = "betas", .kind = PARAM_HARMLESS},
    {.name = "anthropic_version", .kind = PARAM_HARMLESS},
};
const param_table messages_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows, .more = &conversation_params};

/* -------------------------------------------------------------- read ----------------------------------------------------- */

bool messages_request_read(conversation *c, const char *body, size_t n, api_error *e) {
    if (!conversation_parse(c, body, n, e) || !params_read(&messages_params, c->root, c, &c->ignored, e)) return false;
    /* A client that did not ask for thoughts expects none, whatever its effort: agents turn them off by leaving `thinking` out. */
    if (!params_member(c->root, "thinking")) conversation_think(c, false, THINKING_EFFORT);
    if (!messages_read_system(c, params_member(c->root, "system"), e) || !messages_read_turns(c, params_member(c->root, "messages"), e))
        return false;
    json_object_object_del(c->root, "messages"); /* may be as large as the body, and is in the conversation now */
    return conversation_close(c, "messages", e);
}

static bool prepare_count(completion *c, api_error *e) {
    return messages_request_read(c->own, c->body.data, c->body.n, e) && completion_reserve_prompts(c, 1, e) &&
           conversation_render(c->own, c->server->text, c->prompts, e);
}

static bool prepare(completion *c, api_error *e) {
    if (!prepare_count(c, e)) return false;
    const size_t tokens = c->prompts[0].ids.n;
    const uint32_t window = c->server->info.context_tokens;
    if (tokens >= window) /* the words by which agents see that they have to shorten their history */
        return api_error_set(e, 400, "context_length_exceeded", "messages", "prompt is too long: %zu tokens > %u maximum", tokens, window);
    c->n_choices = 1;
    return conversation_fit(c->own, tokens, e);
}

const completion_dialect messages_dialect = {
    .name = "messages",
    .id_prefix = "msg_",
    .call_prefix = "toolu_",
    .own_bytes = sizeof(messages_request),
    .prepare = prepare,
    .write_error = messages_output_error,
    .whole = messages_output_whole,
    .begin = messages_output_begin,
    .piece = messages_output_piece,
    .finish = messages_output_finish,
    .end = messages_output_end,
    .fail = messages_output_fail,
    .keepalive = messages_output_ping,
    .progress = messages_output_progress,
};

const completion_dialect messages_count_dialect = {
    .name = "count_tokens",
    .id_prefix = "count_",
    .own_bytes = sizeof(messages_request),
    .prepare = prepare_count,
    .write_error = messages_output_error,
    .whole = messages_output_count,
};

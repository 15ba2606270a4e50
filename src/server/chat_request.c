/* chat_request.c: the body of POST /v1/chat/completions → chat_request.  Owns the table of fields of the chat API. */
#include "server/chat.h"

#include <stddef.h>
#include <string.h>

/* ------------------------------------------------------ fields of their own kind ----------------------------------------- */

static bool read_messages(void *request, const char *name, json_object *value, api_error *e) {
    (void)name;
    return chat_read_messages(request, value, e);
}

static bool read_tools(void *request, const char *name, json_object *value, api_error *e) {
    (void)name;
    return chat_read_tools(request, value, e);
}

/* What tool_choice was called before there were other tools than functions. */
static bool read_function_call(void *request, const char *name, json_object *value, api_error *e) {
    const char *word = params_string(value);
    if (word && !strcmp(word, "none")) ((conversation *)request)->no_tools = true;
    if (word && (!strcmp(word, "none") || !strcmp(word, "auto"))) return true;
    return api_error_set(e, 400, "unsupported_parameter", name, "%s must be \"none\" or \"auto\": send tools and tool_choice instead",
                         name);
}

/* ----------------------------------------------------------- harmless values --------------------------------------------- */

static bool is_text_modality(json_object *value) {
    if (!json_object_is_type(value, json_type_array) || json_object_array_length(value) != 1) return false;
    const char *only = params_string(json_object_array_get_idx(value, 0));
    return only && !strcmp(only, "text");
}

/* ------------------------------------------------------------- the table -------------------------------------------------- */

#define AT(field) .offset = offsetof(chat_request, field)

static const param rows[] = {
    {.name = "messages",
     .kind = PARAM_CUSTOM,
     .read = read_messages,
     .type = "array",
     .help = "Roles system, developer, user, assistant, tool and function, in any order. A last assistant message is continued."},
    {.name = "tools",
     .kind = PARAM_CUSTOM,
     .read = read_tools,
     .type = "array",
     .help = "Functions that the model may call. Tools of other kinds are left out with a warning."},
    {.name = "tool_choice",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_tool_choice,
     .type = "string or object",
     .help =
         "`auto`, `none`, `required`, or an object: of type `function` the tool that must be called, of type `allowed_tools` those that "
         "may be."},
    {.name = "function_call",
     .kind = PARAM_CUSTOM,
     .read = read_function_call,
     .type = "string",
     .help = "`none` or `auto`: an older name of `tool_choice`."},
    {.name = "stream_options",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_stream_options,
     .type = "object",
     .help = "`include_usage`: the last chunk of a stream holds the usage."},
    {.name = "n", .kind = PARAM_UINT, AT(conversation.n), .min = 1, .max = CHAT_MAX_CHOICES, .help = "Answers to the same prompt."},
    {.name = "max_tokens",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_length,
     .type = "integer from 1",
     .help = "Most tokens of the answer, thoughts included; more than the window has left is that. Default, and -1: all of it."},
    {.name = "max_completion_tokens",
     .kind = PARAM_UINT,
     AT(max_completion_tokens),
     .min = 1,
     .max = UINT32_MAX,
     .help = "The same; outranks max_tokens."},
    {.name = "stop",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_stop,
     .type = "string or array",
     .help = "At most 16 strings that end the answer, thoughts aside."},
    {.name = "logprobs", .kind = PARAM_BOOL, AT(conversation.logprobs), .help = "Log-probabilities of the answer's tokens."},
    {.name = "top_logprobs",
     .kind = PARAM_UINT,
     AT(conversation.top_logprobs),
     .min = 0,
     .max = CALLA_MAX_TOP_LOGPROBS,
     .help = "And of so many alternatives at each place."},

    {.name = "functions", .kind = PARAM_REFUSED, .harmless = params_is_empty, .help = "send tools instead"},
    {.name = "modalities", .kind = PARAM_REFUSED, .harmless = is_text_modality, .help = "this server answers in text only"},
    {.name = "audio", .kind = PARAM_REFUSED, .help = "this server answers in text only"},
    {.name = "web_search_options", .kind = PARAM_REFUSED, .help = "this server searches nothing; offer a tool that does"},
    {.name = "echo", .kind = PARAM_REFUSED, .harmless = params_is_false, .help = "the chat API returns the answer only"},

    {.name = "prediction", .kind = PARAM_HARMLESS}, /* makes answers faster, not different */
    {.name = "verbosity", .kind = PARAM_HARMLESS},  /* a wish that no answer can be held to; agents send it along */
};

const param_table chat_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows, .more = &conversation_params};

/* -------------------------------------------------------------- read ----------------------------------------------------- */

bool chat_request_read(chat_request *r, const char *body, size_t n, api_error *e) {
    conversation *c = &r->conversation;
    if (!conversation_parse(c, body, n, e) || !params_read(&chat_params, c->root, r, &c->ignored, e)) return false;
    if (!params_member(c->root, "messages")) return api_error_set(e, 400, "missing_parameter", "messages", "messages is missing");
    json_object_object_del(c->root, "messages"); /* may be as large as the body, and is in the conversation now */
    if (c->top_logprobs && !c->logprobs) return api_error_set(e, 400, NULL, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (c->include_usage && !c->stream) return api_error_set(e, 400, NULL, "stream_options", "stream_options needs stream to be true");
    if (r->max_completion_tokens) c->max_tokens = r->max_completion_tokens;
    return conversation_close(c, "messages", e);
}

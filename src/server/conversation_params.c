/* conversation_params.c: the fields that mean the same in each dialect, and what they do to the conversation. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/conversation.h"

/* ------------------------------------------------------------ thinking --------------------------------------------------- */

void conversation_think(conversation *c, bool on, thinking_word word) {
    if (word < c->thinking_said) return;
    c->thinking = on;
    c->thinking_said = word;
}

bool conversation_effort(conversation *c, const char *effort) {
    static const struct {
        const char *name;
        uint32_t budget;
    } efforts[] = {{"none", 0},
                   {"minimal", 512},
                   {"low", 2048},
                   {"medium", 8192},
                   {"high", CONVERSATION_NO_BUDGET},
                   {"xhigh", CONVERSATION_NO_BUDGET},
                   {"max", CONVERSATION_NO_BUDGET}};
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        if (strcmp(efforts[i].name, effort) != 0) continue;
        conversation_think(c, efforts[i].budget > 0, THINKING_EFFORT);
        if (efforts[i].budget && !c->budget_said) c->thinking_budget = efforts[i].budget;
        return true;
    }
    return false;
}

static void say_budget(conversation *c, int64_t tokens) {
    c->thinking_budget = (uint32_t)tokens;
    c->budget_said = true;
}

static bool read_effort(void *request, const char *name, json_object *value, api_error *e) {
    const char *effort = params_string(value);
    if (effort && conversation_effort(request, effort)) return true;
    return api_error_set(e, 400, NULL, name, "%s must be none, minimal, low, medium, high, xhigh or max", name);
}

/* {"effort":…} of the responses dialect and of several gateways; what else it may hold concerns summaries. */
static bool read_reasoning(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    json_object *effort = params_member(value, "effort"), *enabled = params_member(value, "enabled");
    int64_t tokens;
    if (json_object_is_type(enabled, json_type_boolean)) conversation_think(request, json_object_get_boolean(enabled), THINKING_SWITCH);
    if (params_integer(params_member(value, "max_tokens"), 1, UINT32_MAX - 1, &tokens)) say_budget(request, tokens);
    return !effort || read_effort(request, "reasoning.effort", effort, e);
}

/* {"type":"enabled","budget_tokens":…}, "disabled" or "adaptive": the messages dialect, and others after it. */
static bool read_thinking(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    if (json_object_is_type(value, json_type_boolean)) {
        conversation_think(c, json_object_get_boolean(value), THINKING_SWITCH);
        return true;
    }
    const char *type = params_string(params_member(value, "type"));
    json_object *budget = params_member(value, "budget_tokens");
    int64_t tokens = 0;
    if (type && !strcmp(type, "enabled"))
        conversation_think(c, true, THINKING_SWITCH);
    else if (type && !strcmp(type, "disabled"))
        conversation_think(c, false, THINKING_SWITCH);
    else if (type && !strcmp(type, "adaptive"))
        conversation_think(c, true, THINKING_EFFORT);
    else
        return api_error_set(e, 400, NULL, name, "%s.type must be enabled, disabled or adaptive", name);
    if (!budget) return true;
    if (!params_integer(budget, 1, UINT32_MAX - 1, &tokens))
        return api_error_set(e, 400, NULL, "thinking.budget_tokens", "thinking.budget_tokens must be a positive integer");
    say_budget(c, tokens);
    return true;
}

/* {"effort":…, "format":…}: the messages dialect. */
static bool read_output_config(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    json_object *effort = params_member(value, "effort"), *format = params_member(value, "format");
    if (format && !conversation_read_format(request, "output_config.format", format, e)) return false;
    return !effort || read_effort(request, "output_config.effort", effort, e);
}

static bool read_think(void *request, const char *name, json_object *value, api_error *e) {
    if (json_object_is_type(value, json_type_boolean))
        conversation_think(request, json_object_get_boolean(value), THINKING_SWITCH);
    else
        return read_effort(request, name, value, e);
    return true;
}

static bool read_enable_thinking(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    conversation_think(request, json_object_get_boolean(value), THINKING_FIELD);
    return true;
}

static bool read_thinking_budget(void *request, const char *name, json_object *value, api_error *e) {
    int64_t tokens = 0;
    if (!params_integer(value, -1, UINT32_MAX - 1, &tokens))
        return api_error_set(e, 400, NULL, name, "%s must be an integer, 0 or more, or -1 for no limit", name);
    if (!tokens) conversation_think(request, false, THINKING_SWITCH);
    if (tokens > 0) say_budget(request, tokens);
    return true;
}

static bool read_parallel(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    ((conversation *)request)->single_call = !json_object_get_boolean(value);
    return true;
}

typedef struct template_kwargs {
    bool thinking, preserve_thinking;
    bool said_thinking, said_preserve;
} template_kwargs;

static const param kwargs_rows[] = {
    {.name = "enable_thinking",
     .kind = PARAM_BOOL,
     .offset = offsetof(template_kwargs, thinking),
     .said_offset = offsetof(template_kwargs, said_thinking)},
    {.name = "preserve_thinking",
     .kind = PARAM_BOOL,
     .offset = offsetof(template_kwargs, preserve_thinking),
     .said_offset = offsetof(template_kwargs, said_preserve)},
};
static const param_table kwargs_table = {.prefix = "chat_template_kwargs.", .rows = kwargs_rows, .n = 2};

static bool read_template_kwargs(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    template_kwargs k = {0};
    if (!params_read(&kwargs_table, value, &k, &c->ignored, e)) return false;
    if (k.said_thinking) conversation_think(c, k.thinking, THINKING_TEMPLATE);
    if (k.said_preserve && !c->preserve_said) c->preserve_thinking = k.preserve_thinking;
    c->preserve_said |= k.said_preserve;
    return true;
}

/* ------------------------------------------------------------- the model ------------------------------------------------- */

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static bool read_model(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    if (!json_object_is_type(value, json_type_string)) return api_error_set(e, 400, NULL, name, "%s must be a string", name);
    if (json_object_get_string_len(value) > CONVERSATION_MAX_MODEL_BYTES)
        return api_error_set(e, 400, NULL, name, "%s is longer than %d bytes", name, CONVERSATION_MAX_MODEL_BYTES);
    c->model = json_object_get_string(value);
    if (ends_with(c->model, "-thinking")) conversation_think(c, true, THINKING_MODEL);
    if (ends_with(c->model, "-instruct")) conversation_think(c, false, THINKING_MODEL);
    return true;
}

/* ------------------------------------------------------------- sampling -------------------------------------------------- */

static bool read_seed(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    int64_t seed = 0;
    if (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == INT64_MAX)
        c->sampling.seed = json_object_get_uint64(value); /* above int64 */
    else if (params_integer(value, INT64_MIN, INT64_MAX, &seed))
        c->sampling.seed = (uint64_t)seed;
    else
        return api_error_set(e, 400, NULL, name, "%s must be an integer of 64 bits", name);
    c->said_seed = true;
    return true;
}

static bool read_top_k(void *request, const char *name, json_object *value, api_error *e) {
    int64_t k = 0;
    if (!params_integer(value, -1, INT32_MAX, &k))
        return api_error_set(e, 400, NULL, name, "%s must be an integer; 0 or -1 turns it off", name);
    ((conversation *)request)->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return true;
}

static bool read_top_p(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    const bool number = json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    const double p = number ? json_object_get_double(value) : -1;
    if (!(p >= 0 && p <= 1)) return api_error_set(e, 400, NULL, name, "%s must be a number from 0 to 1", name);
    c->sampling.top_p = p > 1e-6 ? (float)p : 1e-6f; /* what clients mean by 0: the best token only */
    c->said_top_p = true;
    return true;
}

static bool add_stop(conversation *c, const char *name, json_object *value, api_error *e) {
    const char *text = params_string(value);
    if (!text || !*text || strlen(text) > CONVERSATION_MAX_STOP_BYTES)
        return api_error_set(e, 400, NULL, name, "%s must hold strings of 1 to %d bytes without NUL", name, CONVERSATION_MAX_STOP_BYTES);
    c->stop[c->n_stop++] = text;
    return true;
}

bool conversation_read_stop(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    c->n_stop = 0;
    if (!json_object_is_type(value, json_type_array)) return add_stop(c, name, value, e);
    if (json_object_array_length(value) > CONVERSATION_MAX_STOP)
        return api_error_set(e, 400, NULL, name, "%s holds more than %d strings", name, CONVERSATION_MAX_STOP);
    for (size_t i = 0; i < json_object_array_length(value); i++)
        if (!add_stop(c, name, json_object_array_get_idx(value, i), e)) return false;
    return true;
}

bool conversation_read_length(void *request, const char *name, json_object *value, api_error *e) {
    int64_t n = 0;
    if (!params_integer(value, -2, UINT32_MAX, &n) || !n)
        return api_error_set(e, 400, NULL, name, "%s must be an integer, 1 or more, or -1 for what the window has left", name);
    ((conversation *)request)->max_tokens = n < 0 ? 0 : (uint32_t)n;
    return true;
}

bool conversation_read_stream_options(void *request, const char *name, json_object *value, api_error *e) {
    static const param rows[] = {
        {.name = "include_usage", .kind = PARAM_BOOL, .offset = offsetof(conversation, include_usage)},
        {.name = "include_obfuscation", .kind = PARAM_HARMLESS},
    };
    static const param_table table = {.prefix = "stream_options.", .rows = rows, .n = sizeof rows / sizeof *rows};
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    return params_read(&table, value, request, &((conversation *)request)->ignored, e);
}

static bool read_logit_bias(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    const size_t n = (size_t)json_object_object_length(value);
    if (n > CONVERSATION_MAX_BIAS) return api_error_set(e, 400, NULL, name, "%s names more than %d tokens", name, CONVERSATION_MAX_BIAS);
    if (!n) return true;
    c->bias_ids = mem_array(n, sizeof *c->bias_ids);
    c->bias = mem_array(n, sizeof *c->bias);
    if (!c->bias_ids || !c->bias) return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for %s", name);
    size_t i = 0;
    json_object_object_foreach(value, key, bias) {
        char *end = NULL;
        const unsigned long id = strtoul(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || strlen(key) > 9 || id >= c->info->vocabulary)
            return api_error_set(e, 400, NULL, name, "%s: %.20s is not the id of a token; they run from 0 to %u", name, key,
                                 c->info->vocabulary - 1);
        const bool number = json_object_is_type(bias, json_type_int) || json_object_is_type(bias, json_type_double);
        const double d = number ? json_object_get_double(bias) : 1e9;
        if (!(d >= -100 && d <= 100))
            return api_error_set(e, 400, NULL, name, "%s: the bias of token %.20s must be a number from -100 to 100", name, key);
        c->bias_ids[i] = (int32_t)id;
        c->bias[i++] = (float)d;
    }
    c->sampling.bias_ids = c->bias_ids;
    c->sampling.bias = c->bias;
    c->sampling.n_bias = n;
    return true;
}

/* ------------------------------------------------------------- the table ------------------------------------------------- */

#define AT(field) .offset = offsetof(conversation, field)
#define SAID(field) .said_offset = offsetof(conversation, field)

static const param rows[] = {
    {.name = "model",
     .kind = PARAM_CUSTOM,
     .read = read_model,
     .type = "string",
     .help = "Any name is served and echoed. One that ends in `-thinking` or `-instruct` turns thoughts on or off."},
    {.name = "stream", .kind = PARAM_BOOL, AT(stream), .help = "Send the answer as server-sent events."},
    {.name = "temperature",
     .kind = PARAM_FLOAT,
     AT(sampling.temperature),
     SAID(said_temperature),
     .min = 0,
     .max = 2,
     .help = "0 takes the likeliest token. Default: the checkpoint's with thoughts, 0.7 without."},
    {.name = "top_p",
     .kind = PARAM_CUSTOM,
     .read = read_top_p,
     .type = "number from 0 to 1",
     .help = "Default: the checkpoint's with thoughts, 0.8 without."},
    {.name = "top_k",
     .kind = PARAM_CUSTOM,
     .read = read_top_k,
     .type = "integer",
     .help = "0 or -1 turns it off. Default: the checkpoint's."},
    {.name = "min_p", .kind = PARAM_FLOAT, AT(sampling.min_p), .min = 0, .max = 1, .help = "Default 0: off."},
    {.name = "presence_penalty",
     .kind = PARAM_FLOAT,
     AT(sampling.presence_penalty),
     SAID(said_presence),
     .min = -2,
     .max = 2,
     .help = "On generated tokens only. Default: the checkpoint's with thoughts, 1.5 without."},
    {.name = "frequency_penalty",
     .kind = PARAM_FLOAT,
     AT(sampling.frequency_penalty),
     .min = -2,
     .max = 2,
     .help = "On generated tokens only. Default 0."},
    {.name = "repetition_penalty",
     .kind = PARAM_FLOAT,
     AT(sampling.repetition_penalty),
     .min = 0.01,
     .max = 10,
     .help = "Once per distinct token of prompt and answer. Default 1: off."},
    {.name = "seed", .kind = PARAM_CUSTOM, .read = read_seed, .type = "integer", .help = "The same seed and request give the same answer."},
    {.name = "logit_bias",
     .kind = PARAM_CUSTOM,
     .read = read_logit_bias,
     .type = "object",
     .help = "Token ids and what is added to their logits, -100 to 100; at most 1024."},
    {.name = "enable_thinking",
     .kind = PARAM_CUSTOM,
     .read = read_enable_thinking,
     .type = "boolean",
     .help = "Whether to think before the answer. Outranks all other spellings."},
    {.name = "thinking_budget",
     .kind = PARAM_CUSTOM,
     .read = read_thinking_budget,
     .type = "integer",
     .help = "Most tokens of the thought; then it is closed and the answer begins. 0: no thought; -1: no limit."},
    {.name = "thinking_budget_tokens", .kind = PARAM_CUSTOM, .read = read_thinking_budget, .type = "integer", .help = "The same."},
    {.name = "thinking_token_budget", .kind = PARAM_CUSTOM, .read = read_thinking_budget, .type = "integer", .help = "The same."},
    {.name = "reasoning_budget", .kind = PARAM_CUSTOM, .read = read_thinking_budget, .type = "integer", .help = "The same."},
    {.name = "think", .kind = PARAM_CUSTOM, .read = read_think, .type = "boolean or effort", .help = "Another spelling."},
    {.name = "thinking",
     .kind = PARAM_CUSTOM,
     .read = read_thinking,
     .type = "object",
     .help = "`{\"type\": \"enabled\", \"budget_tokens\": N}`, `disabled` or `adaptive`."},
    {.name = "reasoning_effort",
     .kind = PARAM_CUSTOM,
     .read = read_effort,
     .type = "string",
     .help = "`none` turns thoughts off; `minimal`, `low` and `medium` stand for budgets of 512, 2048 and 8192 tokens; `high`, `xhigh` and "
             "`max` for none."},
    {.name = "reasoning", .kind = PARAM_CUSTOM, .read = read_reasoning, .type = "object", .help = "`{\"effort\": …}` as above."},
    {.name = "output_config",
     .kind = PARAM_CUSTOM,
     .read = read_output_config,
     .type = "object",
     .help = "`{\"effort\": …}` as above; its `format` is that of `response_format`, with the schema in it."},
    {.name = "preserve_thinking",
     .kind = PARAM_BOOL,
     AT(preserve_thinking),
     SAID(preserve_said),
     .help = "Keep the thoughts of earlier turns in the prompt. Default: on when the client sends any back, "
             "and when thoughts are off."},
    {.name = "chat_template_kwargs",
     .kind = PARAM_CUSTOM,
     .read = read_template_kwargs,
     .type = "object",
     .help = "`enable_thinking` and `preserve_thinking` as above, after the fields themselves."},
    {.name = "parallel_tool_calls",
     .kind = PARAM_CUSTOM,
     .read = read_parallel,
     .type = "boolean",
     .help = "`false`: the answer ends with its first call of a tool."},
    {.name = "return_progress",
     .kind = PARAM_BOOL,
     AT(return_progress),
     .help = "In streams: report how much of the prompt has been processed."},

    {.name = "response_format",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_format,
     .type = "object",
     .help = "`{\"type\": \"json_schema\", \"json_schema\": {\"schema\": …, \"strict\": …}}`, `json_object` or `text`. See structured.md."},
    {.name = "guided_json",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_guided_json,
     .type = "object or string",
     .help = "A JSON schema that the content is held to."},
    {.name = "json_schema", .kind = PARAM_CUSTOM, .read = conversation_read_guided_json, .type = "object", .help = "The same."},
    {.name = "guided_regex",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_guided_regex,
     .type = "string",
     .help = "A regular expression of the whole content."},
    {.name = "guided_choice",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_guided_choice,
     .type = "array",
     .help = "Strings of which the content is one."},
    {.name = "structured_outputs",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_structured_outputs,
     .type = "object",
     .help = "`json`, `regex`, `choice`: another spelling of the `guided_` fields."},

    {.name = "guided_grammar", .kind = PARAM_REFUSED, .help = "send a guided_regex or a JSON schema"},
    {.name = "grammar", .kind = PARAM_REFUSED, .help = "send a guided_regex or a JSON schema"},

    {.name = "user", .kind = PARAM_HARMLESS},
    {.name = "metadata", .kind = PARAM_HARMLESS},
    {.name = "store", .kind = PARAM_HARMLESS},
    {.name = "service_tier", .kind = PARAM_HARMLESS},
    {.name = "safety_identifier", .kind = PARAM_HARMLESS},
    {.name = "prompt_cache_key", .kind = PARAM_HARMLESS},
    {.name = "prompt_cache_retention", .kind = PARAM_HARMLESS},
};

const param_table conversation_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows, .more = &foreign_params};

/* chat_request.c: see chat_request.h.  Owns the table of fields of the chat API. */
#include "server/chat_request.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/messages.h"
#include "server/params.h"

/* ------------------------------------------------------ fields of their own kind ----------------------------------------- */

static bool read_messages(void *request, const char *name, json_object *value, api_error *e) {
    (void)name;
    ((chat_request *)request)->messages = value;
    return messages_check(value, e);
}

static bool read_tools(void *request, const char *name, json_object *value, api_error *e) {
    (void)name;
    ((chat_request *)request)->tools = value;
    return messages_check_tools(value, e);
}

static bool read_tool_choice(void *request, const char *name, json_object *value, api_error *e) {
    const char *word = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    ((chat_request *)request)->no_tools = !strcmp(word, "none");
    if (!strcmp(word, "none") || !strcmp(word, "auto")) return true;
    return api_error_set(e, 400, "unsupported_parameter", name, "%s can be \"auto\" or \"none\": calls cannot be forced yet", name);
}

static bool read_model(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_string)) return api_error_set(e, 400, NULL, name, "%s must be a string", name);
    if (json_object_get_string_len(value) > CHAT_MAX_MODEL_BYTES)
        return api_error_set(e, 400, NULL, name, "%s is longer than %d bytes", name, CHAT_MAX_MODEL_BYTES);
    r->model = json_object_get_string(value);
    return true;
}

static bool read_seed(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    int64_t seed = 0;
    if (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == INT64_MAX)
        r->sampling.seed = json_object_get_uint64(value); /* above int64 */
    else if (params_integer(value, INT64_MIN, INT64_MAX, &seed))
        r->sampling.seed = (uint64_t)seed;
    else
        return api_error_set(e, 400, NULL, name, "%s must be an integer of 64 bits", name);
    r->has_seed = true;
    return true;
}

static bool read_top_k(void *request, const char *name, json_object *value, api_error *e) {
    int64_t k = 0;
    if (!params_integer(value, -1, INT32_MAX, &k))
        return api_error_set(e, 400, NULL, name, "%s must be an integer; 0 or -1 turns it off", name);
    ((chat_request *)request)->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return true;
}

static bool add_stop(chat_request *r, const char *name, json_object *value, api_error *e) {
    const int n = json_object_is_type(value, json_type_string) ? json_object_get_string_len(value) : 0;
    const char *text = n ? json_object_get_string(value) : "";
    if (!n || n > CHAT_MAX_STOP_BYTES || strlen(text) != (size_t)n)
        return api_error_set(e, 400, NULL, name, "%s must hold strings of 1 to %d bytes without NUL", name, CHAT_MAX_STOP_BYTES);
    r->stop[r->n_stop++] = text;
    return true;
}

static bool read_stop(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_array)) return add_stop(r, name, value, e);
    if (json_object_array_length(value) > CHAT_MAX_STOP)
        return api_error_set(e, 400, NULL, name, "%s holds more than %d strings", name, CHAT_MAX_STOP);
    for (size_t i = 0; i < json_object_array_length(value); i++)
        if (!add_stop(r, name, json_object_array_get_idx(value, i), e)) return false;
    return true;
}

static bool read_logit_bias(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    const size_t n = (size_t)json_object_object_length(value);
    if (n > CHAT_MAX_BIAS) return api_error_set(e, 400, NULL, name, "%s names more than %d tokens", name, CHAT_MAX_BIAS);
    if (!n) return true;
    r->bias_ids = mem_array(n, sizeof *r->bias_ids);
    r->bias = mem_array(n, sizeof *r->bias);
    if (!r->bias_ids || !r->bias) return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for %s", name);
    size_t i = 0;
    json_object_object_foreach(value, key, bias) {
        char *end = NULL;
        const unsigned long id = strtoul(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || strlen(key) > 9 || id >= r->vocabulary)
            return api_error_set(e, 400, NULL, name, "%s: %.20s is not the id of a token; they run from 0 to %u", name, key,
                                 r->vocabulary - 1);
        const bool number = json_object_is_type(bias, json_type_int) || json_object_is_type(bias, json_type_double);
        const double d = number ? json_object_get_double(bias) : 1e9;
        if (!(d >= -100 && d <= 100))
            return api_error_set(e, 400, NULL, name, "%s: the bias of token %.20s must be a number from -100 to 100", name, key);
        r->bias_ids[i] = (int32_t)id;
        r->bias[i++] = (float)d;
    }
    r->sampling.bias_ids = r->bias_ids;
    r->sampling.bias = r->bias;
    r->sampling.n_bias = n;
    return true;
}

static bool read_thinking(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    r->thinking = json_object_get_boolean(value);
    r->has_thinking = true;
    return true;
}

static bool read_preserve(void *request, const char *name, json_object *value, api_error *e) {
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    r->preserve_thinking = json_object_get_boolean(value);
    r->has_preserve = true;
    return true;
}

typedef struct template_kwargs {
    bool thinking, preserve_thinking;
} template_kwargs;

static const param kwargs_table[] = {
    {.name = "enable_thinking", .kind = PARAM_BOOL, .offset = offsetof(template_kwargs, thinking)},
    {.name = "preserve_thinking", .kind = PARAM_BOOL, .offset = offsetof(template_kwargs, preserve_thinking)},
};

static json_object *object_member(json_object *object, const char *name) {
    json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return value;
}

/* Read after everything else: what is said at top level outranks it. */
static bool apply_template_kwargs(chat_request *r, api_error *e) {
    json_object *value = object_member(r->root, "chat_template_kwargs");
    if (!value) return true;
    template_kwargs k = {.thinking = r->thinking, .preserve_thinking = r->preserve_thinking};
    if (!params_read(kwargs_table, sizeof kwargs_table / sizeof *kwargs_table, value, "chat_template_kwargs.", &k, &r->ignored, e))
        return false;
    if (!r->has_thinking) r->thinking = k.thinking;
    if (!r->has_preserve) r->preserve_thinking = k.preserve_thinking;
    return true;
}

static bool read_template_kwargs(void *request, const char *name, json_object *value, api_error *e) {
    (void)request;
    return json_object_is_type(value, json_type_object) || api_error_set(e, 400, NULL, name, "%s must be an object", name);
}

typedef struct stream_options {
    bool include_usage;
} stream_options;

static bool read_stream_options(void *request, const char *name, json_object *value, api_error *e) {
    static const param table[] = {
        {.name = "include_usage", .kind = PARAM_BOOL, .offset = offsetof(stream_options, include_usage)},
        {.name = "include_obfuscation", .kind = PARAM_HARMLESS},
    };
    chat_request *r = request;
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    stream_options o = {0};
    if (!params_read(table, sizeof table / sizeof *table, value, "stream_options.", &o, &r->ignored, e)) return false;
    r->include_usage = o.include_usage;
    return true;
}

/* ----------------------------------------------------------- harmless values --------------------------------------------- */

static bool is_text_format(json_object *value) {
    json_object *type = json_object_is_type(value, json_type_object) ? object_member(value, "type") : NULL;
    return json_object_is_type(type, json_type_string) && !strcmp(json_object_get_string(type), "text");
}

static bool is_text_modality(json_object *value) {
    if (!json_object_is_type(value, json_type_array) || json_object_array_length(value) != 1) return false;
    json_object *only = json_object_array_get_idx(value, 0);
    return json_object_is_type(only, json_type_string) && !strcmp(json_object_get_string(only), "text");
}

static bool is_true(json_object *value) { return json_object_is_type(value, json_type_boolean) && json_object_get_boolean(value); }
static bool is_false(json_object *value) { return json_object_is_type(value, json_type_boolean) && !json_object_get_boolean(value); }
static bool is_empty_array(json_object *value) { return json_object_is_type(value, json_type_array) && !json_object_array_length(value); }

/* ------------------------------------------------------------- the table -------------------------------------------------- */

#define AT(field) .offset = offsetof(chat_request, field)

static const param table[] = {
    {.name = "messages", .kind = PARAM_CUSTOM, .read = read_messages},
    {.name = "model", .kind = PARAM_CUSTOM, .read = read_model},
    {.name = "tools", .kind = PARAM_CUSTOM, .read = read_tools},
    {.name = "tool_choice", .kind = PARAM_CUSTOM, .read = read_tool_choice},
    {.name = "stream", .kind = PARAM_BOOL, AT(stream)},
    {.name = "stream_options", .kind = PARAM_CUSTOM, .read = read_stream_options},
    {.name = "n", .kind = PARAM_UINT, AT(n), .min = 1, .max = CHAT_MAX_CHOICES},
    {.name = "max_tokens", .kind = PARAM_UINT, AT(max_tokens), .min = 1, .max = UINT32_MAX},
    {.name = "max_completion_tokens", .kind = PARAM_UINT, AT(max_completion_tokens), .min = 1, .max = UINT32_MAX},
    {.name = "temperature", .kind = PARAM_FLOAT, AT(sampling.temperature), .min = 0, .max = 2},
    {.name = "top_p", .kind = PARAM_FLOAT, AT(sampling.top_p), .min = 0, .max = 1},
    {.name = "top_k", .kind = PARAM_CUSTOM, .read = read_top_k},
    {.name = "min_p", .kind = PARAM_FLOAT, AT(sampling.min_p), .min = 0, .max = 1},
    {.name = "presence_penalty", .kind = PARAM_FLOAT, AT(sampling.presence_penalty), .min = -2, .max = 2},
    {.name = "frequency_penalty", .kind = PARAM_FLOAT, AT(sampling.frequency_penalty), .min = -2, .max = 2},
    {.name = "repetition_penalty", .kind = PARAM_FLOAT, AT(sampling.repetition_penalty), .min = 0.01, .max = 10},
    {.name = "seed", .kind = PARAM_CUSTOM, .read = read_seed},
    {.name = "stop", .kind = PARAM_CUSTOM, .read = read_stop},
    {.name = "logprobs", .kind = PARAM_BOOL, AT(logprobs)},
    {.name = "top_logprobs", .kind = PARAM_UINT, AT(top_logprobs), .min = 0, .max = CALLA_MAX_TOP_LOGPROBS},
    {.name = "logit_bias", .kind = PARAM_CUSTOM, .read = read_logit_bias},
    {.name = "enable_thinking", .kind = PARAM_CUSTOM, .read = read_thinking},
    {.name = "preserve_thinking", .kind = PARAM_CUSTOM, .read = read_preserve},
    {.name = "chat_template_kwargs", .kind = PARAM_CUSTOM, .read = read_template_kwargs},

    {.name = "response_format", .kind = PARAM_REFUSED, .harmless = is_text_format, .help = "ask for JSON in the prompt and check it"},
    {.name = "parallel_tool_calls", .kind = PARAM_REFUSED, .harmless = is_true, .help = "the model may always call several tools"},
    {.name = "functions", .kind = PARAM_REFUSED, .harmless = is_empty_array, .help = "send tools instead"},
    {.name = "function_call", .kind = PARAM_REFUSED, .help = "send tools and tool_choice instead"},
    {.name = "modalities", .kind = PARAM_REFUSED, .harmless = is_text_modality, .help = "this server answers in text only"},
    {.name = "audio", .kind = PARAM_REFUSED, .help = "this server answers in text only"},
    {.name = "prediction", .kind = PARAM_HARMLESS}, /* makes answers faster, not different */
    {.name = "web_search_options", .kind = PARAM_REFUSED, .help = "this server searches nothing; offer a tool that does"},
    {.name = "echo", .kind = PARAM_REFUSED, .harmless = is_false, .help = "the chat API returns the answer only"},
    {.name = "guided_json", .kind = PARAM_REFUSED, .help = "ask for JSON in the prompt and check it"},
    {.name = "guided_regex", .kind = PARAM_REFUSED, .help = "ask for the form in the prompt and check it"},
    {.name = "guided_choice", .kind = PARAM_REFUSED, .help = "list the choices in the prompt and check the answer"},
    {.name = "guided_grammar", .kind = PARAM_REFUSED, .help = "ask for the form in the prompt and check it"},
    {.name = "grammar", .kind = PARAM_REFUSED, .help = "ask for the form in the prompt and check it"},
    {.name = "json_schema", .kind = PARAM_REFUSED, .help = "ask for JSON in the prompt and check it"},

    {.name = "user", .kind = PARAM_HARMLESS},
    {.name = "metadata", .kind = PARAM_HARMLESS},
    {.name = "store", .kind = PARAM_HARMLESS},
    {.name = "service_tier", .kind = PARAM_HARMLESS},
    {.name = "safety_identifier", .kind = PARAM_HARMLESS},
    {.name = "prompt_cache_key", .kind = PARAM_HARMLESS},
};

/* ---------------------------------------------------------- parse, render ------------------------------------------------- */

bool chat_request_parse(const char *body, size_t n, const calla_engine_info *info, chat_request *out, api_error *e) {
    *out = (chat_request){.n = 1, .thinking = true, .sampling = info->defaults, .vocabulary = info->vocabulary};
    calla_error err;
    if (json_parse(body, n, "body", &out->root, &err)) return api_error_from(e, &err, NULL);
    if (!json_object_is_type(out->root, json_type_object)) return api_error_set(e, 400, NULL, NULL, "the body must be a JSON object");
    if (!params_read(table, sizeof table / sizeof *table, out->root, "", out, &out->ignored, e)) return false;
    if (!apply_template_kwargs(out, e)) return false;
    if (!out->messages) return api_error_set(e, 400, "missing_parameter", "messages", "messages is missing");
    if (out->top_logprobs && !out->logprobs) return api_error_set(e, 400, NULL, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (out->include_usage && !out->stream) return api_error_set(e, 400, NULL, "stream_options", "stream_options needs stream to be true");
    if (out->sampling.top_p <= 0) out->sampling.top_p = 1e-6f; /* what clients mean by 0: the best token only */
    if (out->max_completion_tokens) out->max_tokens = out->max_completion_tokens;
    if (out->no_tools || (out->tools && !json_object_array_length(out->tools))) out->tools = NULL;
    if (out->tools) {
        out->tools_json = json_object_to_json_string_ext(out->tools, JSON_C_TO_STRING_PLAIN);
        if (!out->tools_json) return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request's tools");
    }
    return true;
}

void chat_request_free(chat_request *r) {
    json_object_put(r->root);
    mem_free(r->bias_ids);
    mem_free(r->bias);
    buffer_free(&r->ignored);
    *r = (chat_request){0};
}

bool chat_request_render(chat_request *r, const calla_text *text, uint32_t window, calla_prompt *out, api_error *e) {
    const template_request request = {
        .messages = r->messages, .tools = r->tools, .thinking = r->thinking, .preserve_thinking = r->preserve_thinking};
    calla_error err;
    if (text_render(text, &request, out, &err)) return api_error_from(e, &err, "messages");
    json_object_object_del(r->root, "messages"); /* may be as large as the body, and is in the prompt now */
    r->messages = NULL;
    if (out->ids.n >= window) {
        const size_t n = out->ids.n;
        calla_prompt_free(out);
        return api_error_set(e, 400, "context_length_exceeded", "messages",
                             "This model's maximum context length is %u tokens. However, your messages resulted in %zu tokens.", window, n);
    }
    const uint32_t room = window - (uint32_t)out->ids.n;
    if (!r->max_tokens || r->max_tokens > room) r->max_tokens = room;
    return true;
}

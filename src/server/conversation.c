/* conversation.c: see conversation.h.  Owns the internal form of messages, which is what the template reads.  Fields common to all
 * dialects are conversation_params.c. */
#include "server/conversation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

enum { MAX_WARNING_BYTES = 768 };

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

void conversation_init(conversation *c, const calla_engine_info *info) {
    c->info = info;
    c->n = 1;
    c->thinking = true;
    c->thinking_budget = CONVERSATION_NO_BUDGET;
    c->sampling = info->defaults;
}

static void drop_message(conversation *c) {
    json_object_put(c->message);
    json_object_put(c->calls);
    c->message = c->calls = NULL;
}

void conversation_free(conversation *c) {
    drop_message(c);
    json_object_put(c->messages);
    json_object_put(c->tools);
    conversation_form_free(&c->form);
    json_object_put(c->root);
    mem_free(c->bias_ids);
    mem_free(c->bias);
    buffer_free(&c->text);
    buffer_free(&c->reasoning);
    buffer_free(&c->ignored);
    buffer_free(&c->warnings);
    *c = (conversation){0};
}

bool conversation_parse(conversation *c, const char *body, size_t n, api_error *e) {
    calla_error err;
    if (json_parse(body, n, "body", &c->root, &err)) return api_error_from(e, &err, NULL);
    return json_object_is_type(c->root, json_type_object) || api_error_set(e, 400, NULL, NULL, "the body must be a JSON object");
}

void conversation_warn(conversation *c, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7F) *p = '?'; /* a header line holds ASCII */
    const size_t n = strlen(text);
    if (c->warnings.n + n + 2 > MAX_WARNING_BYTES || (c->warnings.n && strstr(c->warnings.data, text))) return;
    if (c->warnings.n) buffer_append_str(&c->warnings, "; ");
    buffer_append(&c->warnings, text, n);
}

/* ------------------------------------------------------------ messages --------------------------------------------------- */

/* object.key = value, whose reference is taken also on failure. */
static void put(conversation *c, json_object *object, const char *key, json_object *value) {
    if (value && object && !json_object_object_add(object, key, value)) return;
    json_object_put(value);
    c->failed = true;
}

static void append(conversation *c, json_object **array, json_object *value) {
    if (!*array) *array = json_object_new_array();
    if (value && *array && !json_object_array_add(*array, value)) return;
    json_object_put(value);
    c->failed = true;
}

static json_object *new_string(const buffer *b) { return json_object_new_string_len(b->n ? b->data : "", (int)b->n); }

void conversation_begin(conversation *c, conversation_role role) {
    drop_message(c);
    c->message = json_object_new_object();
    c->role = role;
    *c->omitted = 0;
    buffer_clear(&c->text);
    buffer_clear(&c->reasoning);
    put(c, c->message, "role", json_object_new_string(role_names[role]));
}

void conversation_text(conversation *c, const char *text, size_t n) { buffer_append(&c->text, text, n); }
void conversation_reasoning(conversation *c, const char *text, size_t n) { buffer_append(&c->reasoning, text, n); }

void conversation_omit(conversation *c, const char *kind, const char *where) {
    buffer_printf(&c->text, "[%s omitted: text-only server]", kind);
    if (!*c->omitted) snprintf(c->omitted, sizeof c->omitted, "%s is of type %.40s", where, kind);
    conversation_warn(c, "%.40s omitted: this server takes text only", kind);
}

/* arguments as an object; the reference goes over.  NULL only when out of memory. */
static json_object *arguments_object(conversation *c, json_object *arguments) {
    if (json_object_is_type(arguments, json_type_object)) return arguments;
    if (!arguments) return json_object_new_object();
    json_object *parsed = NULL;
    if (json_object_is_type(arguments, json_type_string)) {
        const size_t n = (size_t)json_object_get_string_len(arguments);
        if (!n) {
            json_object_put(arguments);
            return json_object_new_object();
        }
        if (!json_parse(json_object_get_string(arguments), n, "arguments", &parsed, NULL) &&
            json_object_is_type(parsed, json_type_object)) {
            json_object_put(arguments);
            return parsed;
        }
        json_object_put(parsed);
    }
    conversation_warn(c, "arguments of a call that are no JSON object were kept as text");
    json_object *object = json_object_new_object();
    put(c, object, "arguments", arguments);
    return object;
}

void conversation_call(conversation *c, const char *id, const char *name, json_object *arguments) {
    json_object *call = json_object_new_object();
    if (id) put(c, call, "id", json_object_new_string(id));
    put(c, call, "name", json_object_new_string(name));
    put(c, call, "arguments", arguments_object(c, arguments));
    append(c, &c->calls, call);
}

void conversation_answers(conversation *c, const char *id) {
    if (id) put(c, c->message, "tool_call_id", json_object_new_string(id));
}

void conversation_end(conversation *c) {
    c->failed |= c->text.failed || c->reasoning.failed;
    if (c->role == ROLE_USER) memcpy(c->last_user_omitted, c->omitted, sizeof c->omitted);
    put(c, c->message, "content", new_string(&c->text));
    if (c->role == ROLE_ASSISTANT && c->reasoning.n) put(c, c->message, "reasoning_content", new_string(&c->reasoning));
    if (c->calls) put(c, c->message, "tool_calls", json_object_get(c->calls));
    append(c, &c->messages, json_object_get(c->message));
    drop_message(c);
}

void conversation_tool(conversation *c, const char *name, const char *description, json_object *parameters, json_object *strict) {
    const bool is_strict = json_object_is_type(strict, json_type_boolean) && json_object_get_boolean(strict);
    if (!conversation_form_tool(&c->form, name, parameters, is_strict)) c->failed = true;
    json_object *tool = json_object_new_object(), *function = json_object_new_object();
    put(c, tool, "type", json_object_new_string("function"));
    put(c, function, "name", json_object_new_string(name));
    if (description) put(c, function, "description", json_object_new_string(description));
    if (parameters) put(c, function, "parameters", parameters);
    put(c, tool, "function", function);
    append(c, &c->tools, tool);
}

/* ------------------------------------------------------------- closing --------------------------------------------------- */

static json_object *message_at(const conversation *c, size_t i) { return json_object_array_get_idx(c->messages, i); }

static bool has_role(const conversation *c, size_t i, conversation_role role) {
    return !strcmp(json_object_get_string(params_member(message_at(c, i), "role")), role_names[role]);
}

static size_t string_bytes(json_object *message, const char *key) {
    json_object *value = params_member(message, key);
    return value ? (size_t)json_object_get_string_len(value) : 0;
}

static size_t message_count(const conversation *c) { return c->messages ? json_object_array_length(c->messages) : 0; }

/* Agents end some requests with an empty turn of the assistant: it says nothing. */
static void drop_empty_tail(conversation *c) {
    for (size_t n; (n = message_count(c)) > 0; json_object_array_del_idx(c->messages, n - 1, 1)) {
        json_object *last = message_at(c, n - 1);
        if (!has_role(c, n - 1, ROLE_ASSISTANT) || string_bytes(last, "content") || string_bytes(last, "reasoning_content") ||
            params_member(last, "tool_calls"))
            return;
    }
}

/* System messages in front of the first user message become one, at the head; without a user message, those that lead. */
static void fold_system(conversation *c) {
    const size_t n = message_count(c);
    size_t end = 0, count = 0;
    while (end < n && !has_role(c, end, ROLE_USER)) end++;
    if (end == n)
        for (end = 0; end < n && has_role(c, end, ROLE_SYSTEM);) end++;
    buffer head = {0};
    for (size_t i = 0; i < end; i++) {
        if (!has_role(c, i, ROLE_SYSTEM)) continue;
        json_object *content = params_member(message_at(c, i), "content");
        if (count++ && head.n && string_bytes(message_at(c, i), "content")) buffer_append_str(&head, "\n\n");
        buffer_append(&head, json_object_get_string(content), (size_t)json_object_get_string_len(content));
    }
    if (count && !(count == 1 && has_role(c, 0, ROLE_SYSTEM))) {
        json_object *folded = json_object_new_array(), *system = json_object_new_object();
        put(c, system, "role", json_object_new_string("system"));
        put(c, system, "content", new_string(&head));
        append(c, &folded, system);
        for (size_t i = 0; i < n; i++)
            if (i >= end || !has_role(c, i, ROLE_SYSTEM)) append(c, &folded, json_object_get(message_at(c, i)));
        json_object_put(c->messages);
        c->messages = folded;
    }
    c->failed |= head.failed;
    buffer_free(&head);
}

/* A result of a tool that names its call. */
typedef struct tool_result {
    json_object *message; /* a reference */
    size_t at;            /* where such a message stands */
    int call;             /* number of the call among all */
} tool_result;

static int by_call(const void *a, const void *b) {
    const tool_result *x = a, *y = b;
    if (x->call != y->call) return x->call < y->call ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Results [n] between two messages of the assistant: those places take them in the order of their calls. */
static void place_results(conversation *c, tool_result *results, size_t n) {
    size_t *places = n > 1 ? mem_array(n, sizeof *places) : NULL;
    if (n > 1 && !places) c->failed = true;
    for (size_t i = 0; places && i < n; i++) places[i] = results[i].at;
    if (places) qsort(results, n, sizeof *results, by_call);
    for (size_t i = 0; i < n; i++)
        if (!places || json_object_array_put_idx(c->messages, places[i], results[i].message)) json_object_put(results[i].message);
    mem_free(places);
}

/* Numbers the calls of a message, from `first` on; the number of the next one. */
static int note_calls(conversation *c, json_object *numbers, json_object *message, int first) {
    json_object *calls = params_member(message, "tool_calls");
    for (size_t i = 0; calls && i < json_object_array_length(calls); i++, first++) {
        const char *id = params_string(params_member(json_object_array_get_idx(calls, i), "id"));
        if (id) put(c, numbers, id, json_object_new_int(first));
    }
    return first;
}

/* The prompt does not say which call a result belongs to, so the order has to; clients send results as they come in. */
static void order_results(conversation *c) {
    const size_t n = message_count(c);
    json_object *numbers = json_object_new_object();
    tool_result *results = n ? mem_array(n, sizeof *results) : NULL;
    size_t n_results = 0;
    int n_calls = 0;
    if (!numbers || (n && !results)) c->failed = true;
    for (size_t i = 0; !c->failed && i < n; i++) {
        json_object *message = message_at(c, i), *number = NULL;
        const char *id = params_string(params_member(message, "tool_call_id"));
        if (has_role(c, i, ROLE_ASSISTANT)) {
            place_results(c, results, n_results);
            n_results = 0;
            n_calls = note_calls(c, numbers, message, n_calls);
        } else if (id && json_object_object_get_ex(numbers, id, &number))
            results[n_results++] = (tool_result){json_object_get(message), i, json_object_get_int(number)};
    }
    place_results(c, results, n_results);
    mem_free(results);
    json_object_put(numbers);
}

/* Some clients send a thought within the content, tags and all; the template takes it from there. */
static bool any_reasoning(const conversation *c) {
    for (size_t i = 0; i < message_count(c); i++)
        if (string_bytes(message_at(c, i), "reasoning_content") ||
            (has_role(c, i, ROLE_ASSISTANT) && strstr(json_object_get_string(params_member(message_at(c, i), "content")), "</think>")))
            return true;
    return false;
}

/* What the model card of Qwen3.6-35B-A3B gives for answers without a thought; generation_config.json has the values for thinking. */
static void apply_mode_defaults(conversation *c) {
    if (c->thinking || c->sampling.temperature <= 0) return; /* the engine's default is greedy: whoever made it so wants it */
    if (!c->said_temperature) c->sampling.temperature = 0.7f;
    if (!c->said_top_p) c->sampling.top_p = 0.8f;
    if (!c->said_presence) c->sampling.presence_penalty = 1.5f;
}

bool conversation_close(conversation *c, const char *messages_name, api_error *e) {
    if (c->failed) return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request"); /* messages may lack a role */
    drop_empty_tail(c);
    fold_system(c);
    order_results(c);
    if (c->failed || c->warnings.failed || c->ignored.failed)
        return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request");
    const size_t n = message_count(c);
    if (!n) return api_error_set(e, 400, NULL, messages_name, "%s must hold at least one message", messages_name);
    if (*c->last_user_omitted) {
        char where[sizeof c->last_user_omitted];
        snprintf(where, sizeof where, "%.*s", (int)strcspn(c->last_user_omitted, " "), c->last_user_omitted);
        return api_error_set(e, 400, "unsupported_content", where, "%s, but this server takes text only", c->last_user_omitted);
    }
    c->continues = has_role(c, n - 1, ROLE_ASSISTANT) && !params_member(message_at(c, n - 1), "tool_calls");
    if (c->said_continue && c->continue_last && !c->continues)
        return api_error_set(e, 400, NULL, "continue_final_message", "continue_final_message: the last of %s is not the assistant's text",
                             messages_name);
    if (c->said_continue && !c->continue_last) c->continues = false;
    /* Past turns stand in the prompt as they did when they were generated, so that it goes on from there: with the thoughts that the client
     * sends back, and where none were asked for with the empty ones that their answers followed. */
    if (!c->preserve_said) c->preserve_thinking = !c->thinking || any_reasoning(c);
    if (c->no_tools) {
        json_object_put(c->tools);
        c->tools = NULL;
    }
    apply_mode_defaults(c);
    return conversation_form_close(c, e);
}

/* ------------------------------------------------------------- prompt ---------------------------------------------------- */

const char *conversation_tools_json(const conversation *c) {
    return c->tools ? json_object_to_json_string_ext(c->tools, JSON_C_TO_STRING_PLAIN) : NULL;
}

bool conversation_render(conversation *c, const calla_text *text, calla_prompt *out, api_error *e) {
    const template_request request = {.messages = c->messages,
                                      .tools = c->tools,
                                      .thinking = c->thinking,
                                      .preserve_thinking = c->preserve_thinking,
                                      .any_order = true,
                                      .continue_last = c->continues};
    calla_error err;
    if (text_render(text, &request, out, &err)) return api_error_from(e, &err, "messages");
    json_object_put(c->messages); /* may be as large as the body, and is in the prompt now */
    c->messages = NULL;
    return true;
}

bool conversation_fit(conversation *c, size_t prompt_tokens, api_error *e) {
    const uint32_t window = c->info->context_tokens;
    if (prompt_tokens >= window)
        return api_error_set(e, 400, "context_length_exceeded", "messages",
                             "This model's maximum context length is %u tokens. However, your messages resulted in %zu tokens.", window,
                             prompt_tokens);
    const uint32_t room = window - (uint32_t)prompt_tokens;
    if (!c->max_tokens || c->max_tokens > room) c->max_tokens = room;
    return true;
}

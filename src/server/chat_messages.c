/* chat_messages.c: messages and tools as the chat dialect has them → the conversation.  Whatever a client can have got from a server
 * before is taken back: history is sent again with each turn, and refusing it would end the chat for good. */
#include <stdio.h>
#include <string.h>

#include "server/chat.h"

/* A message under way, and its place for errors. */
typedef struct reader {
    conversation *c;
    const char *role;
    char where[64];
    api_error *e;
} reader;

static void add_text(conversation *c, json_object *text) {
    conversation_text(c, json_object_get_string(text), (size_t)json_object_get_string_len(text));
}

static bool is_one_of(const char *word, const char *const *words) {
    for (; *words; words++)
        if (!strcmp(word, *words)) return true;
    return false;
}

static bool read_part(reader *r, json_object *part, const char *where) {
    static const char *const texts[] = {"text", "input_text", "output_text", NULL};
    static const char *const images[] = {"image_url", "image", "input_image", NULL};
    const char *type = params_string(params_member(part, "type"));
    if (json_object_is_type(part, json_type_string)) {
        add_text(r->c, part);
        return true;
    }
    if (!type) return api_error_set(r->e, 400, NULL, where, "%s must be an object with a type", where);
    if (is_one_of(type, images)) {
        conversation_omit(r->c, "image", where);
        return true;
    }
    const bool refusal = !strcmp(type, "refusal");
    if (!refusal && !is_one_of(type, texts)) {
        conversation_omit(r->c, type, where); /* a file, a sound, and what other servers may have written */
        return true;
    }
    json_object *text = params_member(part, refusal ? "refusal" : "text");
    if (!json_object_is_type(text, json_type_string))
        return api_error_set(r->e, 400, NULL, where, "%s must have a text, and it must be a string", where);
    add_text(r->c, text);
    return true;
}

static bool read_content(reader *r, json_object *message) {
    json_object *content = params_member(message, "content");
    char name[96];
    snprintf(name, sizeof name, "%s.content", r->where);
    if (json_object_is_type(content, json_type_string)) {
        add_text(r->c, content);
        return true;
    }
    if (!content) {
        if (r->c->role == ROLE_ASSISTANT || r->c->role == ROLE_TOOL) return true; /* one that only calls tools; one that says nothing */
        return api_error_set(r->e, 400, NULL, name, "%s is missing: a %s message needs one", name, r->role);
    }
    if (!json_object_is_type(content, json_type_array))
        return api_error_set(r->e, 400, NULL, name, "%s must be a string or an array of text parts", name);
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        char part[128];
        snprintf(part, sizeof part, "%s[%zu]", name, i);
        if (!read_part(r, json_object_array_get_idx(content, i), part)) return false;
    }
    return true;
}

static bool read_call(reader *r, json_object *call, const char *where) {
    json_object *function = params_member(call, "function");
    if (!function) function = call;
    json_object *custom = params_member(call, "custom"), *arguments = params_member(function, "arguments");
    if (custom) function = custom, arguments = params_member(custom, "input");
    const char *name = params_string(params_member(function, "name"));
    if (!name || !*name) return api_error_set(r->e, 400, NULL, where, "%s: the function's name must be a string", where);
    conversation_call(r->c, params_string(params_member(call, "id")), name, json_object_get(arguments));
    return true;
}

static bool read_calls(reader *r, json_object *message) {
    json_object *calls = params_member(message, "tool_calls"), *old = params_member(message, "function_call");
    char where[128];
    if (calls && !json_object_is_type(calls, json_type_array))
        return api_error_set(r->e, 400, NULL, r->where, "%s.tool_calls must be an array", r->where);
    for (size_t i = 0; calls && i < json_object_array_length(calls); i++) {
        snprintf(where, sizeof where, "%s.tool_calls[%zu]", r->where, i);
        if (!read_call(r, json_object_array_get_idx(calls, i), where)) return false;
    }
    snprintf(where, sizeof where, "%s.function_call", r->where);
    return !old || read_call(r, old, where);
}

static bool read_reasoning(reader *r, json_object *message) {
    json_object *reasoning = params_member(message, "reasoning_content");
    if (!reasoning) reasoning = params_member(message, "reasoning");
    if (!reasoning) return true;
    if (!json_object_is_type(reasoning, json_type_string))
        return api_error_set(r->e, 400, NULL, r->where, "%s.reasoning_content must be a string", r->where);
    conversation_reasoning(r->c, json_object_get_string(reasoning), (size_t)json_object_get_string_len(reasoning));
    return true;
}

static bool read_role(reader *r, json_object *message, conversation_role *out) {
    static const struct {
        const char *name;
        conversation_role role;
    } roles[] = {{"system", ROLE_SYSTEM},       {"developer", ROLE_SYSTEM}, {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT}, {"tool", ROLE_TOOL},        {"function", ROLE_TOOL}};
    char name[96];
    snprintf(name, sizeof name, "%s.role", r->where);
    const char *role = params_string(params_member(message, "role"));
    if (!role) return api_error_set(r->e, 400, NULL, name, "%s is missing or not a string", name);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i].name)) {
            r->role = roles[i].name;
            *out = roles[i].role;
            return true;
        }
    return api_error_set(r->e, 400, NULL, name, "%s is %.40s, but must be system, developer, user, assistant, tool or function", name,
                         role);
}

static bool read_message(reader *r, json_object *message) {
    conversation_role role = ROLE_USER;
    if (!json_object_is_type(message, json_type_object)) return api_error_set(r->e, 400, NULL, r->where, "%s must be an object", r->where);
    if (!read_role(r, message, &role)) return false;
    conversation_begin(r->c, role);
    if (!read_content(r, message)) return false;
    if (role == ROLE_TOOL) conversation_answers(r->c, params_string(params_member(message, "tool_call_id")));
    if (role == ROLE_ASSISTANT && (!read_reasoning(r, message) || !read_calls(r, message))) return false;
    conversation_end(r->c);
    return true;
}

bool chat_read_messages(conversation *c, json_object *messages, api_error *e) {
    if (!json_object_is_type(messages, json_type_array) || !json_object_array_length(messages))
        return api_error_set(e, 400, NULL, "messages", "messages must be an array of at least one message");
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        reader r = {.c = c, .e = e};
        snprintf(r.where, sizeof r.where, "messages[%zu]", i);
        if (!read_message(&r, json_object_array_get_idx(messages, i))) return false;
    }
    return true;
}

bool chat_read_tools(conversation *c, json_object *tools, api_error *e) {
    if (!json_object_is_type(tools, json_type_array)) return api_error_set(e, 400, NULL, "tools", "tools must be an array");
    for (size_t i = 0; i < json_object_array_length(tools); i++) {
        char name[64];
        snprintf(name, sizeof name, "tools[%zu]", i);
        json_object *tool = json_object_array_get_idx(tools, i), *function = params_member(tool, "function");
        const char *type = params_string(params_member(tool, "type"));
        if (!json_object_is_type(tool, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
        if (type && strcmp(type, "function") != 0) { /* another server's */
            conversation_warn(c, "tools of type %.40s were left out", type);
            continue;
        }
        if (!function) function = tool; /* as the responses dialect has it */
        const char *function_name = params_string(params_member(function, "name"));
        if (!function_name || !*function_name) return api_error_set(e, 400, NULL, name, "%s.function must be an object with a name", name);
        conversation_tool(c, function_name, params_string(params_member(function, "description")),
                          json_object_get(params_member(function, "parameters")), params_member(function, "strict"));
    }
    return true;
}

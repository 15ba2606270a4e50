/* messages.c: see messages.h.  What the template itself refuses (the order of roles, tool calls of a wrong shape) is left to it. */
#include "server/messages.h"

#include <stdio.h>
#include <string.h>

static bool check_parts(json_object *parts, const char *where, api_error *e) {
    for (size_t i = 0; i < json_object_array_length(parts); i++) {
        char name[96];
        snprintf(name, sizeof name, "%s[%zu]", where, i);
        json_object *part = json_object_array_get_idx(parts, i), *type = NULL, *text = NULL;
        if (json_object_is_type(part, json_type_object)) json_object_object_get_ex(part, "type", &type);
        const char *kind = json_object_is_type(type, json_type_string) ? json_object_get_string(type) : NULL;
        if (!kind) return api_error_set(e, 400, NULL, name, "%s must be an object with a type", name);
        if (strcmp(kind, "text") != 0)
            return api_error_set(e, 400, "unsupported_content", name, "%s is of type %.40s, but this server takes text only", name, kind);
        if (!json_object_object_get_ex(part, "text", &text) || !json_object_is_type(text, json_type_string))
            return api_error_set(e, 400, NULL, name, "%s must have a text, and it must be a string", name);
    }
    return true;
}

static bool check_content(json_object *message, size_t i, const char *role, api_error *e) {
    char name[64];
    snprintf(name, sizeof name, "messages[%zu].content", i);
    json_object *content = NULL;
    json_object_object_get_ex(message, "content", &content);
    if (!content) {
        if (!strcmp(role, "assistant")) return true; /* one that only calls tools */
        return api_error_set(e, 400, NULL, name, "%s is missing: a %s message needs one", name, role);
    }
    if (json_object_is_type(content, json_type_string)) return true;
    if (json_object_is_type(content, json_type_array)) return check_parts(content, name, e);
    return api_error_set(e, 400, NULL, name, "%s must be a string or an array of text parts", name);
}

static bool check_role(json_object *message, size_t i, const char **out, api_error *e) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    char name[64];
    snprintf(name, sizeof name, "messages[%zu].role", i);
    json_object *role = NULL;
    if (!json_object_object_get_ex(message, "role", &role) || !json_object_is_type(role, json_type_string))
        return api_error_set(e, 400, NULL, name, "%s is missing or not a string", name);
    const char *text = json_object_get_string(role);
    if (!strcmp(text, "developer")) { /* what newer clients call system */
        json_object *system = json_object_new_string("system");
        if (!system || json_object_object_add(message, "role", system)) {
            json_object_put(system);
            return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request");
        }
        text = "system";
    }
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++)
        if (!strcmp(text, roles[r])) {
            *out = roles[r];
            return true;
        }
    return api_error_set(e, 400, NULL, name, "%s is %.40s, but must be system, developer, user, assistant or tool", name, text);
}

bool messages_check(json_object *messages, api_error *e) {
    if (!json_object_is_type(messages, json_type_array) || !json_object_array_length(messages))
        return api_error_set(e, 400, NULL, "messages", "messages must be an array of at least one message");
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        json_object *message = json_object_array_get_idx(messages, i), *calls = NULL, *reasoning = NULL;
        const char *role = "";
        char name[64];
        snprintf(name, sizeof name, "messages[%zu]", i);
        if (!json_object_is_type(message, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
        if (!check_role(message, i, &role, e) || !check_content(message, i, role, e)) return false;
        json_object_object_get_ex(message, "tool_calls", &calls);
        if (calls && !json_object_is_type(calls, json_type_array))
            return api_error_set(e, 400, NULL, name, "%s.tool_calls must be an array", name);
        json_object_object_get_ex(message, "reasoning_content", &reasoning);
        if (reasoning && !json_object_is_type(reasoning, json_type_string))
            return api_error_set(e, 400, NULL, name, "%s.reasoning_content must be a string", name);
    }
    return true;
}

bool messages_check_tools(json_object *tools, api_error *e) {
    if (!json_object_is_type(tools, json_type_array)) return api_error_set(e, 400, NULL, "tools", "tools must be an array");
    for (size_t i = 0; i < json_object_array_length(tools); i++) {
        char name[64];
        snprintf(name, sizeof name, "tools[%zu]", i);
        json_object *tool = json_object_array_get_idx(tools, i), *type = NULL, *function = NULL, *function_name = NULL;
        if (!json_object_is_type(tool, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
        json_object_object_get_ex(tool, "type", &type);
        if (!json_object_is_type(type, json_type_string) || strcmp(json_object_get_string(type), "function") != 0)
            return api_error_set(e, 400, "unsupported_tool", name, "%s.type must be \"function\"", name);
        json_object_object_get_ex(tool, "function", &function);
        if (!json_object_is_type(function, json_type_object) || !json_object_object_get_ex(function, "name", &function_name) ||
            !json_object_is_type(function_name, json_type_string) || !json_object_get_string_len(function_name))
            return api_error_set(e, 400, NULL, name, "%s.function must be an object with a name", name);
    }
    return true;
}

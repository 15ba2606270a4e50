/* messages_blocks.c: system, messages and tools of the messages dialect → the conversation.  Owns the meaning of content blocks.
 *
 * A block that calla does not know must not end a conversation: clients send their history again and again, and some of it was written by
 * other servers.  It becomes a note in the text. */
#include <stdio.h>
#include <string.h>

#include "server/messages.h"

enum { MAX_PLACE = 128 }; /* bytes of a place in the body, such as messages[2].content[0] */

static bool word_is(json_object *value, const char *word) {
    return json_object_is_type(value, json_type_string) && !strcmp(json_object_get_string(value), word);
}

static const char *type_of(json_object *block) {
    const char *type = params_string(params_member(block, "type"));
    return type ? type : "";
}

static void add_text(conversation *c, json_object *text) {
    conversation_text(c, json_object_get_string(text), (size_t)json_object_get_string_len(text));
}

/* -------------------------------------------------------- content ------------------------------------------------------- */

/* Places in nested lists: "messages[3].content[0].content[1]". */
static void place_of(char *out, const char *where, size_t i) { snprintf(out, MAX_PLACE, "%.90s[%zu]", where, i); }

typedef bool (*block_fn)(conversation *c, json_object *block, const char *where, api_error *e);

/* content: a string or an array of objects with a type.  A missing one is empty. */
static bool each_block(conversation *c, json_object *content, const char *where, block_fn fn, api_error *e) {
    if (!content) return true;
    if (json_object_is_type(content, json_type_string)) {
        add_text(c, content);
        return true;
    }
    if (!json_object_is_type(content, json_type_array))
        return api_error_set(e, 400, NULL, where, "%s must be a string or an array of blocks", where);
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        char place[MAX_PLACE];
        place_of(place, where, i);
        if (!fn(c, json_object_array_get_idx(content, i), place, e)) return false;
    }
    return true;
}

static bool add_text_block(conversation *c, json_object *block, const char *where, api_error *e) {
    json_object *text = params_member(block, "text");
    if (!json_object_is_type(text, json_type_string)) return api_error_set(e, 400, NULL, where, "%s.text must be a string", where);
    add_text(c, text);
    return true;
}

static void add_note(conversation *c, const char *type) {
    char note[96];
    if (strlen(type) > 40) type = "block"; /* no such type is known, and cutting one might cut a character */
    conversation_text(c, note, (size_t)snprintf(note, sizeof note, "[%s omitted: text-only server]", type));
    conversation_warn(c, "%s omitted", type);
}

static bool add_text_or_note(conversation *c, json_object *block, const char *where, api_error *e) {
    const char *type = type_of(block);
    if (!*type) return api_error_set(e, 400, NULL, where, "%s must be an object with a type", where);
    if (!strcmp(type, "text")) return add_text_block(c, block, where, e);
    add_note(c, type);
    return true;
}

/* A document's source if it holds text: "text" with data, "content" with blocks. */
static json_object *text_source(json_object *block) {
    json_object *source = params_member(block, "source");
    const bool holds =
        (word_is(params_member(source, "type"), "text") && json_object_is_type(params_member(source, "data"), json_type_string)) ||
        word_is(params_member(source, "type"), "content");
    return holds ? source : NULL;
}

/* What a text-only model can have of a block: its text, or a note that it is not there. */
static bool add_any(conversation *c, json_object *block, const char *where, api_error *e) {
    const char *type = type_of(block);
    json_object *source = !strcmp(type, "document") ? text_source(block) : NULL;
    if (!strcmp(type, "search_result")) return each_block(c, params_member(block, "content"), where, add_any, e);
    if (!source) return add_text_or_note(c, block, where, e);
    if (word_is(params_member(source, "type"), "content")) return each_block(c, params_member(source, "content"), where, add_any, e);
    add_text(c, params_member(source, "data"));
    return true;
}

/* What the user asks about now is not left out: the answer would be about nothing.  A document beside the result of a tool is what the tool
 * has read: agents put it there. */
static bool check_readable(json_object *block, bool beside_result, const char *where, api_error *e) {
    const char *type = type_of(block);
    if (strcmp(type, "image") != 0 && (beside_result || strcmp(type, "document") != 0 || text_source(block))) return true;
    return api_error_set(e, 400, "unsupported_content", where, "%s is of type %s, but this server takes text only", where, type);
}

/* ------------------------------------------------------- messages ------------------------------------------------------- */

static bool add_result(conversation *c, json_object *block, const char *where, api_error *e) {
    char place[MAX_PLACE];
    snprintf(place, sizeof place, "%.100s.content", where);
    conversation_begin(c, ROLE_TOOL);
    conversation_answers(c, params_string(params_member(block, "tool_use_id")));
    if (!each_block(c, params_member(block, "content"), place, add_any, e)) return false;
    conversation_end(c);
    return true;
}

static bool is_result(json_object *block) { return !strcmp(type_of(block), "tool_result"); }

/* Of a user message's content, which may be a string: how many blocks are results of tools. */
static size_t count_results(json_object *content) {
    size_t count = 0;
    for (size_t i = 0; json_object_is_type(content, json_type_array) && i < json_object_array_length(content); i++)
        count += is_result(json_object_array_get_idx(content, i));
    return count;
}

/* A user message may hold results of tools, which are messages of their own in calla; one that holds nothing else leaves no user message. */
static bool add_user(conversation *c, json_object *content, bool newest, const char *where, api_error *e) {
    const size_t n = json_object_is_type(content, json_type_array) ? json_object_array_length(content) : 0;
    const bool results = count_results(content) > 0;
    bool open = !n;
    if (open) conversation_begin(c, ROLE_USER);
    if (!n && !each_block(c, content, where, add_any, e)) return false;
    for (size_t i = 0; i < n; i++) {
        char place[MAX_PLACE];
        place_of(place, where, i);
        json_object *block = json_object_array_get_idx(content, i);
        const bool result = is_result(block);
        if (newest && !check_readable(block, results, place, e)) return false;
        if (result && open) conversation_end(c);
        if (!result && !open) conversation_begin(c, ROLE_USER);
        open = !result;
        if (!(result ? add_result : add_any)(c, block, place, e)) return false;
    }
    if (open) conversation_end(c);
    return true;
}

/* The last message in which the user says something beside the results of tools; SIZE_MAX: there is none. */
static size_t find_newest(json_object *messages) {
    for (size_t i = json_object_array_length(messages); i-- > 0;) {
        json_object *message = json_object_array_get_idx(messages, i), *content = params_member(message, "content");
        if (!word_is(params_member(message, "role"), "user")) continue;
        const size_t n = json_object_is_type(content, json_type_array) ? json_object_array_length(content) : 0;
        if (!n || count_results(content) < n) return i;
    }
    return SIZE_MAX;
}

static bool add_assistant_block(conversation *c, json_object *block, const char *where, api_error *e) {
    const char *type = type_of(block);
    if (!strcmp(type, "thinking")) {
        json_object *text = params_member(block, "thinking");
        if (!json_object_is_type(text, json_type_string)) return api_error_set(e, 400, NULL, where, "%s.thinking must be a string", where);
        conversation_reasoning(c, json_object_get_string(text), (size_t)json_object_get_string_len(text));
        return true;
    }
    if (!strcmp(type, "redacted_thinking")) return true; /* another server's: nobody here can read it */
    if (strcmp(type, "tool_use") != 0) return add_text_or_note(c, block, where, e);
    const char *name = params_string(params_member(block, "name"));
    if (!name || !*name) return api_error_set(e, 400, NULL, where, "%s.name must be the name of a tool", where);
    conversation_call(c, params_string(params_member(block, "id")), name, json_object_get(params_member(block, "input")));
    return true;
}

static bool add_message(conversation *c, json_object *message, bool newest, const char *where, api_error *e) {
    const char *role = params_string(params_member(message, "role"));
    char place[MAX_PLACE];
    if (!role) return api_error_set(e, 400, NULL, where, "%s must be an object with a role", where);
    snprintf(place, sizeof place, "%.100s.content", where);
    json_object *content = params_member(message, "content");
    if (!strcmp(role, "user")) return add_user(c, content, newest, place, e);
    const bool assistant = !strcmp(role, "assistant");
    if (!assistant && strcmp(role, "system") != 0)
        return api_error_set(e, 400, NULL, where, "%s.role is %.40s, but must be user, assistant or system", where, role);
    conversation_begin(c, assistant ? ROLE_ASSISTANT : ROLE_SYSTEM);
    if (!each_block(c, content, place, assistant ? add_assistant_block : add_text_or_note, e)) return false;
    conversation_end(c);
    return true;
}

bool messages_read_turns(conversation *c, json_object *messages, api_error *e) {
    if (!messages) return api_error_set(e, 400, "missing_parameter", "messages", "messages is missing");
    if (!json_object_is_type(messages, json_type_array) || !json_object_array_length(messages))
        return api_error_set(e, 400, NULL, "messages", "messages must be an array of at least one message");
    const size_t newest = find_newest(messages);
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        char place[MAX_PLACE];
        place_of(place, "messages", i);
        if (!add_message(c, json_object_array_get_idx(messages, i), i == newest, place, e)) return false;
    }
    return true;
}

/* -------------------------------------------------------- system -------------------------------------------------------- */

/* Some agents put a line in front of their system text to be billed by.  It holds a number that differs in each request: as part of the
 * prompt it would make every token behind it a new one. */
static const char *skip_billing_line(const char *text, size_t *n) {
    static const char prefix[] = "x-anthropic-billing-header:";
    if (*n < sizeof prefix - 1 || memcmp(text, prefix, sizeof prefix - 1) != 0) return text;
    const char *end = memchr(text, '\n', *n);
    const size_t skip = end ? (size_t)(end - text) + 1 : *n;
    *n -= skip;
    return text + skip;
}

static void add_system_text(conversation *c, json_object *text) {
    size_t n = (size_t)json_object_get_string_len(text);
    const char *begin = skip_billing_line(json_object_get_string(text), &n);
    if (!n) return;
    conversation_begin(c, ROLE_SYSTEM);
    conversation_text(c, begin, n);
    conversation_end(c);
}

/* A string or text blocks; each block is a system message of its own, as if the chat dialect had sent several. */
bool messages_read_system(conversation *c, json_object *system, api_error *e) {
    if (!system) return true;
    if (json_object_is_type(system, json_type_string)) {
        add_system_text(c, system);
        return true;
    }
    if (!json_object_is_type(system, json_type_array))
        return api_error_set(e, 400, NULL, "system", "system must be a string or an array of text blocks");
    for (size_t i = 0; i < json_object_array_length(system); i++) {
        json_object *text = params_member(json_object_array_get_idx(system, i), "text");
        if (!json_object_is_type(text, json_type_string))
            return api_error_set(e, 400, NULL, "system", "system[%zu] must be a block with a text", i);
        add_system_text(c, text);
    }
    return true;
}

/* --------------------------------------------------------- tools -------------------------------------------------------- */

bool messages_read_tools(conversation *c, json_object *tools, api_error *e) {
    if (!tools) return true;
    if (!json_object_is_type(tools, json_type_array)) return api_error_set(e, 400, NULL, "tools", "tools must be an array");
    for (size_t i = 0; i < json_object_array_length(tools); i++) {
        char place[MAX_PLACE];
        place_of(place, "tools", i);
        json_object *tool = json_object_array_get_idx(tools, i), *schema = params_member(tool, "input_schema");
        const char *type = type_of(tool), *name = params_string(params_member(tool, "name"));
        if (!json_object_is_type(tool, json_type_object)) return api_error_set(e, 400, NULL, place, "%s must be an object", place);
        if (*type && strcmp(type, "custom") != 0 && !schema) { /* run by Anthropic's servers, or known to its models by heart */
            conversation_warn(c, "%s (%.40s) cannot be offered", place, type);
            continue;
        }
        if (!name || !*name) return api_error_set(e, 400, NULL, place, "%s must have a name", place);
        if (schema && !json_object_is_type(schema, json_type_object))
            return api_error_set(e, 400, NULL, place, "%s.input_schema must be an object", place);
        conversation_tool(c, name, params_string(params_member(tool, "description")), json_object_get(schema),
                          params_member(tool, "strict"));
    }
    return true;
}

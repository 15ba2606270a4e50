/* responses_request.c: see responses_request.h.  Owns the table of fields of the responses dialect, and which items and tools it knows. */
#include "server/responses_request.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* ------------------------------------------------------------- fields ---------------------------------------------------- */

static bool read_input(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_string) && !json_object_is_type(value, json_type_array))
        return api_error_set(e, 400, NULL, name, "%s must be a string or an array of items", name);
    ((responses_request *)request)->input = value;
    return true;
}

static bool read_instructions(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_string)) return api_error_set(e, 400, NULL, name, "%s must be a string", name);
    ((responses_request *)request)->instructions = value;
    return true;
}

static bool read_previous(void *request, const char *name, json_object *value, api_error *e) {
    const char *id = params_string(value);
    if (!id || strlen(id) > RESPONSES_MAX_ID_BYTES) return api_error_set(e, 400, NULL, name, "%s must be the id of a response", name);
    ((responses_request *)request)->previous = id;
    return true;
}

static bool read_tools(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_array)) return api_error_set(e, 400, NULL, name, "%s must be an array", name);
    ((responses_request *)request)->tool_list = value;
    return true;
}

static bool read_include(void *request, const char *name, json_object *value, api_error *e) {
    responses_request *r = request;
    if (!json_object_is_type(value, json_type_array)) return api_error_set(e, 400, NULL, name, "%s must be an array", name);
    for (size_t i = 0; i < json_object_array_length(value); i++) {
        const char *what = params_string(json_object_array_get_idx(value, i));
        if (!what) return api_error_set(e, 400, NULL, name, "%s must hold strings", name);
        if (!strcmp(what, "reasoning.encrypted_content"))
            r->encrypted_reasoning = true;
        else if (!strcmp(what, "message.output_text.logprobs"))
            r->conversation.logprobs = true;
        else
            conversation_warn(&r->conversation, "include: there is no %.64s", what);
    }
    return true;
}

static bool read_text(void *request, const char *name, json_object *value, api_error *e) {
    static const param rows[] = {{.name = "format", .kind = PARAM_CUSTOM, .read = conversation_read_format},
                                 {.name = "verbosity", .kind = PARAM_HARMLESS}}; /* a wish: see chat */
    static const param_table table = {.prefix = "text.", .rows = rows, .n = 2};
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    return params_read(&table, value, request, &((conversation *)request)->ignored, e);
}

static bool read_stream_options(void *request, const char *name, json_object *value, api_error *e) {
    static const param rows[] = {{.name = "include_obfuscation", .kind = PARAM_HARMLESS}};
    static const param_table table = {.prefix = "stream_options.", .rows = rows, .n = 1};
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    return params_read(&table, value, request, &((conversation *)request)->ignored, e);
}

static bool read_metadata(void *request, const char *name, json_object *value, api_error *e) {
    (void)request;
    return json_object_is_type(value, json_type_object) || api_error_set(e, 400, NULL, name, "%s must be an object", name);
}

#define AT(field) .offset = offsetof(responses_request, field)

static const param rows[] = {
    {.name = "input",
     .kind = PARAM_CUSTOM,
     .read = read_input,
     .type = "string or array",
     .help = "Text, or items: messages, reasoning, calls of tools and their outputs. Items of other kinds are left out with a warning."},
    {.name = "instructions", .kind = PARAM_CUSTOM, .read = read_instructions, .type = "string", .help = "A system message at the head."},
    {.name = "previous_response_id",
     .kind = PARAM_CUSTOM,
     .read = read_previous,
     .type = "string",
     .help = "Goes on from a response that this server still remembers (in memory, the most recently used ones)."},
    {.name = "store",
     .kind = PARAM_BOOL,
     AT(store),
     .help = "Whether to remember the response: for `previous_response_id`, for items that are sent as "
             "`item_reference`, and for `GET`. Default true."},
    {.name = "max_output_tokens",
     .kind = PARAM_UINT,
     AT(conversation.max_tokens),
     .min = 1,
     .max = INT32_MAX,
     .help = "Thoughts included. Default: what is left of the window; more is clamped to it."},
    {.name = "tools",
     .kind = PARAM_CUSTOM,
     .read = read_tools,
     .type = "array",
     .help = "Of type `function`, `custom` and `namespace`; other kinds are left out with a warning."},
    {.name = "tool_choice",
     .kind = PARAM_CUSTOM,
     .read = conversation_read_tool_choice,
     .type = "string or object",
     .help = "`auto`, `none`, `required`, or an object: of type `function` or `custom` the tool that must be called, of type "
             "`allowed_tools` those that may be."},
    {.name = "include",
     .kind = PARAM_CUSTOM,
     .read = read_include,
     .type = "array",
     .help = "`reasoning.encrypted_content`: thoughts in the form that clients send back; `message.output_text.logprobs`."},
    {.name = "top_logprobs",
     .kind = PARAM_UINT,
     AT(conversation.top_logprobs),
     .min = 0,
     .max = CALLA_MAX_TOP_LOGPROBS,
     .help = "Alternatives to each token; with it log-probabilities are included."},
    {.name = "text",
     .kind = PARAM_CUSTOM,
     .read = read_text,
     .type = "object",
     .help = "Its `format` is `{\"type\": \"json_schema\", \"schema\": …, \"strict\": …}`, `json_object` or `text`."},
    {.name = "stream_options", .kind = PARAM_CUSTOM, .read = read_stream_options, .type = "object", .help = "Nothing in it has an effect."},
    {.name = "metadata", .kind = PARAM_CUSTOM, .read = read_metadata, .type = "object", .help = "Comes back in the response."},

    {.name = "background",
     .kind = PARAM_REFUSED,
     .harmless = params_is_false,
     .help = "a response is made while its client waits: use stream"},
    {.name = "conversation", .kind = PARAM_REFUSED, .help = "use previous_response_id"},
    {.name = "prompt", .kind = PARAM_REFUSED, .help = "there are no stored prompts: send instructions and input"},

    /* What does not fit in the window is an error, whatever this says. */
    {.name = "truncation", .kind = PARAM_HARMLESS},
    /* Counts calls that the server itself would run. */
    {.name = "max_tool_calls", .kind = PARAM_HARMLESS},
};

const param_table responses_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows, .more = &conversation_params};

/* ------------------------------------------------------------- tools ----------------------------------------------------- */

const responses_tool *responses_request_tool(const responses_request *r, const char *called) {
    for (size_t i = 0; i < r->n_tools; i++)
        if (!strcmp(r->tools[i].called, called)) return &r->tools[i];
    return NULL;
}

/* "space__name", or name; owned by the caller, NULL when out of memory. */
static char *called_name(const char *space, const char *name) {
    if (!space) return mem_strdup(name);
    buffer out = {0};
    const size_t n = strlen(space);
    buffer_append(&out, space, n);
    if (n < 2 || strcmp(space + n - 2, "__") != 0) buffer_append_str(&out, "__");
    buffer_append_str(&out, name);
    return buffer_take(&out);
}

static const char *called_by_model(const conversation *c, const char *name) {
    const responses_request *r = (const responses_request *)c;
    if (responses_request_tool(r, name)) return name;
    for (size_t i = 0; i < r->n_tools; i++)
        if (!strcmp(r->tools[i].name, name)) return r->tools[i].called;
    return name;
}

/* The schema of a tool that takes free text. */
static json_object *input_schema(conversation *c, json_object *format) {
    buffer text = {0};
    json_object *schema = NULL;
    const char *syntax = params_string(params_member(format, "syntax")), *definition = params_string(params_member(format, "definition"));
    buffer_append_str(&text, "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",\"description\":");
    buffer description = {0};
    buffer_append_str(&description, "The whole input, as plain text.");
    if (definition) buffer_printf(&description, " It must follow this %s grammar:\n%s", syntax ? syntax : "", definition);
    json_append_string(&text, description.data ? description.data : "", description.n);
    buffer_append_str(&text, "}},\"required\":[\"input\"]}");
    if (description.failed || text.failed || json_parse(text.data, text.n, "schema", &schema, NULL)) c->failed = true;
    buffer_free(&description);
    buffer_free(&text);
    return schema;
}

static bool add_tool(responses_request *r, json_object *tool, const char *space, const char *where, api_error *e);

static bool add_namespace(responses_request *r, json_object *tool, const char *name, const char *where, api_error *e) {
    json_object *members = params_member(tool, "tools");
    for (size_t i = 0; json_object_is_type(members, json_type_array) && i < json_object_array_length(members); i++) {
        char at[96];
        snprintf(at, sizeof at, "%.60s.tools[%zu]", where, i);
        if (!add_tool(r, json_object_array_get_idx(members, i), name, at, e)) return false;
    }
    return true;
}

static bool add_tool(responses_request *r, json_object *tool, const char *space, const char *where, api_error *e) {
    conversation *c = &r->conversation;
    const char *type = params_string(params_member(tool, "type")), *name = params_string(params_member(tool, "name"));
    if (!type) return api_error_set(e, 400, NULL, where, "%s must be an object with a type", where);
    const bool function = !strcmp(type, "function"), custom = !strcmp(type, "custom"), group = !strcmp(type, "namespace") && !space;
    if (!function && !custom && !group) {
        conversation_warn(c, "tools of type %.40s were left out", type);
        return true;
    }
    if (!name || !*name) return api_error_set(e, 400, NULL, where, "%s must have a name", where);
    if (group) return add_namespace(r, tool, name, where, e);
    if (r->n_tools == RESPONSES_MAX_TOOLS) return api_error_set(e, 400, NULL, where, "there are more than %d tools", RESPONSES_MAX_TOOLS);
    if (mem_grow(&r->tools, &r->cap_tools, r->n_tools + 1, sizeof *r->tools, SIZE_MAX / sizeof *r->tools)) {
        c->failed = true;
        return true;
    }
    char *called = called_name(space, name);
    if (!called || responses_request_tool(r, called)) {
        c->failed |= !called;
        if (called) conversation_warn(c, "%s: there is a tool %.64s already", where, called);
        mem_free(called);
        return true;
    }
    r->tools[r->n_tools++] = (responses_tool){.called = called, .name = name, .space = space, .custom = custom};
    json_object *parameters = params_member(tool, "parameters");
    conversation_tool(c, called, params_string(params_member(tool, "description")),
                      custom ? input_schema(c, params_member(tool, "format")) : json_object_get(parameters), params_member(tool, "strict"));
    return true;
}

/* ------------------------------------------------------------- items ----------------------------------------------------- */

/* Where the assistant's turn under way has come to: what comes earlier in a turn begins another one. */
typedef enum turn { TURN_NONE, TURN_REASONING, TURN_TEXT, TURN_CALLS } turn;

typedef struct reading {
    responses_request *r;
    turn turn;
    char where[64]; /* input[3] */
    api_error *e;
} reading;

static void end_turn(reading *in) {
    if (in->turn != TURN_NONE) conversation_end(&in->r->conversation);
    in->turn = TURN_NONE;
}

static void enter_turn(reading *in, turn to) {
    if (in->turn > to) end_turn(in);
    if (in->turn == TURN_NONE) conversation_begin(&in->r->conversation, ROLE_ASSISTANT);
    in->turn = to;
}

static void add_string(conversation *c, json_object *string) {
    conversation_text(c, json_object_get_string(string), (size_t)json_object_get_string_len(string));
}

/* Content of a message or output of a tool: a string or parts.  Tools and the assistant may have said nothing, as in chat. */
static bool add_content(reading *in, json_object *content, const char *field) {
    conversation *c = &in->r->conversation;
    char where[96];
    if (!content && (c->role == ROLE_ASSISTANT || c->role == ROLE_TOOL)) return true;
    snprintf(where, sizeof where, "%s.%s", in->where, field);
    if (json_object_is_type(content, json_type_string)) {
        add_string(c, content);
        return true;
    }
    if (!json_object_is_type(content, json_type_array))
        return api_error_set(in->e, 400, NULL, where, "%s must be a string or an array of parts", where);
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        json_object *part = json_object_array_get_idx(content, i);
        const char *type = params_string(params_member(part, "type"));
        snprintf(where, sizeof where, "%s.%s[%zu]", in->where, field, i);
        if (!type) return api_error_set(in->e, 400, NULL, where, "%s must be an object with a type", where);
        json_object *text = params_member(part, !strcmp(type, "refusal") ? "refusal" : "text");
        if (json_object_is_type(text, json_type_string))
            add_string(c, text);
        else if (!strcmp(type, "input_text") || !strcmp(type, "output_text") || !strcmp(type, "text"))
            return api_error_set(in->e, 400, NULL, where, "%s must have a text, and it must be a string", where);
        else
            conversation_omit(c, !strcmp(type, "input_image") ? "image" : type, where);
    }
    return true;
}

static bool add_message(reading *in, json_object *item) {
    static const struct {
        const char *name;
        conversation_role role;
    } roles[] = {{"user", ROLE_USER}, {"assistant", ROLE_ASSISTANT}, {"system", ROLE_SYSTEM}, {"developer", ROLE_SYSTEM}};
    const char *name = params_string(params_member(item, "role"));
    for (size_t i = 0; name && i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(name, roles[i].name) != 0) continue;
        if (roles[i].role == ROLE_ASSISTANT) {
            enter_turn(in, TURN_TEXT);
            return add_content(in, params_member(item, "content"), "content");
        }
        end_turn(in);
        conversation_begin(&in->r->conversation, roles[i].role);
        const bool ok = add_content(in, params_member(item, "content"), "content");
        conversation_end(&in->r->conversation);
        return ok;
    }
    return api_error_set(in->e, 400, NULL, in->where, "%s.role must be user, assistant, system or developer", in->where);
}

static size_t add_texts(reading *in, json_object *parts) {
    size_t n = 0;
    for (size_t i = 0; json_object_is_type(parts, json_type_array) && i < json_object_array_length(parts); i++) {
        json_object *text = params_member(json_object_array_get_idx(parts, i), "text");
        if (!json_object_is_type(text, json_type_string)) continue;
        conversation_reasoning(&in->r->conversation, json_object_get_string(text), (size_t)json_object_get_string_len(text));
        n++;
    }
    return n;
}

/* The thought itself if the client has kept it; else its encrypted form, if it is ours; else its summary, which some clients put it in. */
static bool add_reasoning(reading *in, json_object *item) {
    json_object *sealed = params_member(item, "encrypted_content");
    static const char prefix[] = RESPONSES_THOUGHT_PREFIX;
    const size_t skip = sizeof prefix - 1;
    enter_turn(in, TURN_REASONING);
    if (add_texts(in, params_member(item, "content"))) return true;
    if (json_object_is_type(sealed, json_type_string) && (size_t)json_object_get_string_len(sealed) >= skip &&
        !memcmp(json_object_get_string(sealed), prefix, skip))
        conversation_reasoning(&in->r->conversation, json_object_get_string(sealed) + skip,
                               (size_t)json_object_get_string_len(sealed) - skip);
    else
        add_texts(in, params_member(item, "summary"));
    return true;
}

static bool add_call(reading *in, json_object *item, bool custom) {
    conversation *c = &in->r->conversation;
    const char *name = params_string(params_member(item, "name")), *space = params_string(params_member(item, "namespace"));
    if (!name || !*name) return api_error_set(in->e, 400, NULL, in->where, "%s must have a name", in->where);
    char *called = called_name(space, name);
    json_object *arguments = params_member(item, custom ? "input" : "arguments");
    enter_turn(in, TURN_CALLS);
    if (!custom)
        json_object_get(arguments);
    else {
        json_object *object = json_object_new_object();
        if (!object || json_object_object_add(object, "input", json_object_get(arguments))) c->failed = true;
        arguments = object;
    }
    if (called)
        conversation_call(c, params_string(params_member(item, "call_id")), called, arguments);
    else
        json_object_put(arguments);
    c->failed |= !called;
    mem_free(called);
    return true;
}

static bool add_output(reading *in, json_object *item) {
    end_turn(in);
    conversation_begin(&in->r->conversation, ROLE_TOOL);
    conversation_answers(&in->r->conversation, params_string(params_member(item, "call_id")));
    const bool ok = add_content(in, params_member(item, "output"), "output");
    conversation_end(&in->r->conversation);
    return ok;
}

static bool add_item(reading *in, json_object *item) {
    const char *type = params_string(params_member(item, "type"));
    if (!json_object_is_type(item, json_type_object)) return api_error_set(in->e, 400, NULL, in->where, "%s must be an object", in->where);
    if (!type ? params_member(item, "role") != NULL : !strcmp(type, "message")) return add_message(in, item);
    if (!type) return api_error_set(in->e, 400, NULL, in->where, "%s must have a type", in->where);
    if (!strcmp(type, "reasoning")) return add_reasoning(in, item);
    if (!strcmp(type, "function_call")) return add_call(in, item, false);
    if (!strcmp(type, "custom_tool_call")) return add_call(in, item, true);
    if (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output")) return add_output(in, item);
    conversation_warn(&in->r->conversation, "items of type %.40s were left out", type);
    return true;
}

static bool add_items(reading *in, json_object *items, const char *name) {
    const size_t n = items ? json_object_array_length(items) : 0;
    for (size_t i = 0; i < n; i++) {
        snprintf(in->where, sizeof in->where, "%s[%zu]", name, i);
        if (!add_item(in, json_object_array_get_idx(items, i))) return false;
    }
    return true;
}

bool responses_request_read_items(responses_request *r, json_object *earlier, api_error *e) {
    conversation *c = &r->conversation;
    reading in = {.r = r, .e = e};
    if (r->instructions) {
        conversation_begin(c, ROLE_SYSTEM);
        add_string(c, r->instructions);
        conversation_end(c);
    }
    if (!add_items(&in, earlier, "previous")) return false;
    if (json_object_is_type(r->input, json_type_array)) {
        if (!add_items(&in, r->input, "input")) return false;
    } else {
        end_turn(&in);
        conversation_begin(c, ROLE_USER);
        add_string(c, r->input);
        conversation_end(c);
    }
    end_turn(&in);
    return conversation_close(c, "input", e);
}

/* ------------------------------------------------------------- whole ----------------------------------------------------- */

bool responses_request_parse(responses_request *r, const char *body, size_t n, api_error *e) {
    conversation *c = &r->conversation;
    r->store = true;
    c->called_name = called_by_model;
    if (!conversation_parse(c, body, n, e) || !params_read(&responses_params, c->root, r, &c->ignored, e)) return false;
    if (!r->input) return api_error_set(e, 400, "missing_parameter", "input", "input is missing");
    if (c->top_logprobs) c->logprobs = true;
    for (size_t i = 0; r->tool_list && i < json_object_array_length(r->tool_list); i++) {
        char where[32];
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!add_tool(r, json_object_array_get_idx(r->tool_list, i), NULL, where, e)) return false;
    }
    return true;
}

void responses_request_free(responses_request *r) {
    for (size_t i = 0; i < r->n_tools; i++) mem_free(r->tools[i].called);
    mem_free(r->tools);
    r->tools = NULL;
    r->n_tools = r->cap_tools = 0;
}

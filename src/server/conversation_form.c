/* conversation_form.c: see conversation_form.h. */
#include "server/conversation_form.h"

#include <stdio.h>
#include <string.h>

#include "server/conversation.h"

enum { JSON_FLAGS = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE };

/* ---------------------------------------------------------- the content -------------------------------------------------- */

static bool set_form(void *request, calla_form_kind kind, const char *name, json_object *source, bool loose, api_error *e) {
    conversation_form *f = &((conversation *)request)->form;
    if (f->kind) return api_error_set(e, 400, NULL, name, "%s and %s both say what form the answer has: send one of them", f->field, name);
    f->kind = kind;
    f->source = source;
    f->loose = loose;
    snprintf(f->field, sizeof f->field, "%s", name);
    return true;
}

static bool is_schema(json_object *value) {
    return json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_boolean);
}

bool conversation_read_format(void *request, const char *name, json_object *value, api_error *e) {
    const char *type = params_string(params_member(value, "type"));
    if (!type) return api_error_set(e, 400, NULL, name, "%s must be an object with a type", name);
    if (!strcmp(type, "text")) return true;
    json_object *inner = params_member(value, "json_schema"), *holder = inner ? inner : value;
    json_object *schema = params_member(holder, "schema"), *strict = params_member(holder, "strict");
    if (!strcmp(type, "json_object") && !schema) return set_form(request, CALLA_FORM_JSON_OBJECT, name, NULL, false, e);
    if (strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0)
        return api_error_set(e, 400, "unsupported_parameter", name, "%s.type is %.40s, but must be text, json_object or json_schema", name,
                             type);
    if (!is_schema(schema)) return api_error_set(e, 400, NULL, name, "%s must have a schema, and it must be an object", name);
    if (strict && !json_object_is_type(strict, json_type_boolean))
        return api_error_set(e, 400, NULL, name, "%s.strict must be true or false", name);
    return set_form(request, CALLA_FORM_JSON_SCHEMA, name, schema, strict && !json_object_get_boolean(strict), e);
}

bool conversation_read_guided_json(void *request, const char *name, json_object *value, api_error *e) {
    if (!is_schema(value) && !params_string(value))
        return api_error_set(e, 400, NULL, name, "%s must be a JSON schema, as an object or as a string that holds one", name);
    return set_form(request, CALLA_FORM_JSON_SCHEMA, name, value, false, e);
}

bool conversation_read_guided_regex(void *request, const char *name, json_object *value, api_error *e) {
    if (!params_string(value)) return api_error_set(e, 400, NULL, name, "%s must be a string without NUL", name);
    return set_form(request, CALLA_FORM_REGEX, name, value, false, e);
}

bool conversation_read_guided_choice(void *request, const char *name, json_object *value, api_error *e) {
    bool good = json_object_is_type(value, json_type_array) && json_object_array_length(value);
    for (size_t i = 0; good && i < json_object_array_length(value); i++)
        good = json_object_is_type(json_object_array_get_idx(value, i), json_type_string);
    if (!good) return api_error_set(e, 400, NULL, name, "%s must be an array of strings, one at least", name);
    return set_form(request, CALLA_FORM_CHOICE, name, value, false, e);
}

/* The newer spelling of the guided_ fields.  How white space is written is the form's own affair: its other fields have no effect. */
bool conversation_read_structured_outputs(void *request, const char *name, json_object *value, api_error *e) {
    static const param rows[] = {
        {.name = "json", .kind = PARAM_CUSTOM, .read = conversation_read_guided_json},
        {.name = "regex", .kind = PARAM_CUSTOM, .read = conversation_read_guided_regex},
        {.name = "choice", .kind = PARAM_CUSTOM, .read = conversation_read_guided_choice},
        {.name = "grammar", .kind = PARAM_REFUSED, .help = "send a regex or a JSON schema"},
        {.name = "structural_tag", .kind = PARAM_REFUSED, .help = "send tools, or a JSON schema"},
    };
    static const param_table table = {.prefix = "structured_outputs.", .rows = rows, .n = sizeof rows / sizeof *rows};
    if (!json_object_is_type(value, json_type_object)) return api_error_set(e, 400, NULL, name, "%s must be an object", name);
    json_object *any = params_member(value, "json_object");
    if (any && json_object_get_boolean(any) && !set_form(request, CALLA_FORM_JSON_OBJECT, name, NULL, false, e)) return false;
    return params_read(&table, value, request, &((conversation *)request)->ignored, e);
}

/* ------------------------------------------------------------- calls ------------------------------------------------------ */

const char *conversation_named_tool(json_object *value) {
    static const char *const holders[] = {"function", "custom"};
    const char *name = params_string(params_member(value, "name"));
    for (size_t i = 0; !name && i < 2; i++) name = params_string(params_member(params_member(value, holders[i]), "name"));
    return name;
}

static bool set_mode(conversation *c, const char *word) {
    static const struct {
        const char *word;
        calla_tool_choice choice;
    } words[] = {{"auto", CALLA_TOOLS_AUTO}, {"none", CALLA_TOOLS_NONE}, {"required", CALLA_TOOLS_REQUIRED}, {"any", CALLA_TOOLS_REQUIRED}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i].word) != 0) continue;
        c->form.choice = words[i].choice;
        c->no_tools = words[i].choice == CALLA_TOOLS_NONE;
        return true;
    }
    return false;
}

/* {"type":"allowed_tools","mode":…,"tools":[…]}, or the same within its allowed_tools. */
static bool read_allowed(conversation *c, const char *name, json_object *value, api_error *e) {
    json_object *inner = params_member(value, "allowed_tools"), *holder = inner ? inner : value;
    const char *mode = params_string(params_member(holder, "mode"));
    json_object *tools = params_member(holder, "tools");
    bool good = json_object_is_type(tools, json_type_array) && json_object_array_length(tools) && mode && set_mode(c, mode);
    for (size_t i = 0; good && i < json_object_array_length(tools); i++)
        good = conversation_named_tool(json_object_array_get_idx(tools, i)) != NULL;
    if (!good)
        return api_error_set(e, 400, NULL, name, "%s of type allowed_tools must have a mode, auto or required, and tools, each with a name",
                             name);
    c->form.allowed = tools;
    return true;
}

bool conversation_read_tool_choice(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    const char *word = params_string(value), *type = word ? word : params_string(params_member(value, "type"));
    json_object *alone = params_member(value, "disable_parallel_tool_use");
    if (json_object_is_type(alone, json_type_boolean)) c->single_call = json_object_get_boolean(alone);
    if (type && set_mode(c, type)) return true;
    if (type && !word && !strcmp(type, "allowed_tools")) return read_allowed(c, name, value, e);
    const bool names = type && !word && (!strcmp(type, "function") || !strcmp(type, "tool") || !strcmp(type, "custom"));
    if (!names)
        return api_error_set(e, 400, "unsupported_parameter", name,
                             "%s must be auto, none, required or any, or an object that names one of the tools", name);
    c->form.tool = conversation_named_tool(value);
    c->form.choice = CALLA_TOOLS_NAMED;
    return c->form.tool || api_error_set(e, 400, NULL, name, "%s must name a tool", name);
}

/* object.key = value, whose reference is taken also on failure. */
static bool put(json_object *object, const char *key, json_object *value) {
    if (value && object && !json_object_object_add(object, key, value)) return true;
    json_object_put(value);
    return false;
}

bool conversation_form_tool(conversation_form *f, const char *name, json_object *parameters, bool strict) {
    if (!f->tools) f->tools = json_object_new_array();
    json_object *tool = json_object_new_object(), *function = json_object_new_object();
    bool ok = put(tool, "type", json_object_new_string("function")) && put(function, "name", json_object_new_string(name)) &&
              (!parameters || put(function, "parameters", json_object_get(parameters))) &&
              (!strict || put(function, "strict", json_object_new_boolean(true)));
    ok &= put(tool, "function", function);
    if (ok && f->tools && !json_object_array_add(f->tools, tool)) {
        f->strict_tools |= strict;
        return true;
    }
    json_object_put(tool);
    return false;
}

/* ------------------------------------------------------------ closing ----------------------------------------------------- */

static const char *tool_name_at(const conversation_form *f, size_t i) {
    return params_string(params_member(params_member(json_object_array_get_idx(f->tools, i), "function"), "name"));
}

static size_t tool_count(const conversation_form *f) { return f->tools ? json_object_array_length(f->tools) : 0; }

static bool is_offered(const conversation_form *f, const char *name) {
    for (size_t i = 0; i < tool_count(f); i++)
        if (!strcmp(tool_name_at(f, i), name)) return true;
    return false;
}

static bool is_allowed(const conversation *c, const char *name) {
    const json_object *allowed = c->form.allowed;
    for (size_t i = 0; i < json_object_array_length(allowed); i++) {
        const char *other = conversation_named_tool(json_object_array_get_idx(allowed, i));
        if (c->called_name) other = c->called_name(c, other);
        if (!strcmp(other, name)) return true;
    }
    return false;
}

/* All others are in the prompt, so that its beginning stays the same from request to request, but the form has no call of them. */
static bool keep_allowed(conversation *c, api_error *e) {
    conversation_form *f = &c->form;
    for (size_t i = tool_count(f); i-- > 0;)
        if (!is_allowed(c, tool_name_at(f, i))) json_object_array_del_idx(f->tools, i, 1);
    return tool_count(f) || api_error_set(e, 400, NULL, "tool_choice", "tool_choice allows none of the tools that the request offers");
}

bool conversation_form_close(conversation *c, api_error *e) {
    conversation_form *f = &c->form;
    if (c->no_tools) {
        json_object_put(f->tools);
        f->tools = NULL;
        f->strict_tools = false;
    }
    const bool forced = f->choice == CALLA_TOOLS_REQUIRED || f->choice == CALLA_TOOLS_NAMED;
    if (forced && !tool_count(f))
        return api_error_set(e, 400, NULL, "tool_choice", "tool_choice asks for a call, but the request offers no tools");
    if (f->choice == CALLA_TOOLS_NAMED && c->called_name) f->tool = c->called_name(c, f->tool);
    if (f->choice == CALLA_TOOLS_NAMED && !is_offered(f, f->tool))
        return api_error_set(e, 400, NULL, "tool_choice", "tool_choice names %.100s, which is none of the tools that the request offers",
                             f->tool);
    if (f->allowed && !keep_allowed(c, e)) return false;
    const char *field = forced ? "tool_choice" : f->field;
    if (c->continues && (forced || f->kind))
        return api_error_set(e, 400, "unsupported_parameter", field,
                             "%s cannot be kept when the last message is the assistant's: the form would begin in the middle. End with a "
                             "message of the user",
                             field);
    if (!forced || !f->kind) return true;
    conversation_warn(c, "%s has no effect: tool_choice asks for a call", f->field);
    f->kind = CALLA_FORM_NONE;
    f->source = NULL;
    return true;
}

void conversation_form_free(conversation_form *f) {
    json_object_put(f->tools);
    *f = (conversation_form){0};
}

/* ----------------------------------------------------------- compiling ---------------------------------------------------- */

bool conversation_has_form(const conversation *c) { return c->form.tools || conversation_form_is_owed(c); }

bool conversation_form_options(const conversation *c, calla_form_options *out, api_error *e) {
    const conversation_form *f = &c->form;
    *out = (calla_form_options){.kind = f->kind,
                                .strict_schema = !f->loose,
                                .tool_choice = f->tools ? f->choice : CALLA_TOOLS_NONE,
                                .tool_name = f->tool,
                                .one_call = c->single_call};
    if (json_object_is_type(f->source, json_type_string)) {
        out->source = json_object_get_string(f->source);
        out->n_source = (size_t)json_object_get_string_len(f->source);
    } else if (f->source)
        out->source = json_object_to_json_string_length(f->source, JSON_FLAGS, &out->n_source);
    if (f->tools) out->tools_json = json_object_to_json_string_ext(f->tools, JSON_FLAGS);
    if ((out->source || !f->source) && (out->tools_json || !f->tools)) return true;
    return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the form of the answer");
}

bool conversation_form_is_owed(const conversation *c) {
    const conversation_form *f = &c->form;
    return f->kind || f->strict_tools || f->allowed || f->choice == CALLA_TOOLS_REQUIRED || f->choice == CALLA_TOOLS_NAMED;
}

bool conversation_form_error(const conversation *c, const calla_error *err, api_error *e) {
    const conversation_form *f = &c->form;
    const bool client = err->status == CALLA_E_UNSUPPORTED || err->status == CALLA_E_LIMIT || err->status == CALLA_E_FORMAT ||
                        err->status == CALLA_E_ARGUMENT;
    if (!client) return api_error_from(e, err, NULL);
    if (!f->kind || !strncmp(err->message, "tool", 4))
        return api_error_set(e, 400, "invalid_function_parameters", "tools", "%s", err->message);
    const bool schema = f->kind == CALLA_FORM_JSON_SCHEMA;
    return api_error_set(e, 400, schema ? "invalid_json_schema" : "unsupported_parameter", f->field, "%s: %s", f->field, err->message);
}

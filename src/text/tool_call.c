/* tool_call.c: see tool_call.h. */
#include "text/tool_call.h"

#include <string.h>

#include "base/memory.h"
#include "text/template_value.h"

static const char function_open[] = "<function=", function_close[] = "</function>";
static const char parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

enum { MAX_NAME = 256 }; /* of parameters that are looked for where a closing tag is missing */

typedef struct cursor {
    const char *text; /* [n] */
    size_t n, at;
    bool ended;
} cursor;

static size_t skip_space(const char *text, size_t n, size_t at) {
    while (at < n && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) at++;
    return at;
}

/* 1: word is at `at`; -1: the text ends inside word; 0: something else. */
static int at_word(const char *text, size_t n, size_t at, const char *word) {
    const size_t length = strlen(word), left = n - at;
    if (memcmp(text + at, word, left < length ? left : length) != 0) return 0;
    return left < length ? -1 : 1;
}

/* The name from `at` to the next '>'.  1, and *end is the '>'; -1: the text ends first; 0: no name. */
static int read_name(const char *text, size_t n, size_t at, size_t *end) {
    for (size_t i = at; i < n; i++) {
        if (text[i] == '>') {
            *end = i;
            return 1;
        }
        if (text[i] == '\n' || text[i] == 0) return 0;
    }
    return -1;
}

/* <function=NAME> after white space: where NAME begins and ends. */
static tool_call_state read_function(const char *text, size_t n, size_t *name, size_t *end) {
    const size_t at = skip_space(text, n, 0);
    const int open = at_word(text, n, at, function_open);
    if (open <= 0) return open ? TOOL_CALL_INCOMPLETE : TOOL_CALL_MALFORMED;
    *name = *end = at + strlen(function_open);
    const int named = read_name(text, n, *name, end);
    if (named < 0) return TOOL_CALL_INCOMPLETE;
    return named == 0 || *end == *name ? TOOL_CALL_MALFORMED : TOOL_CALL_COMPLETE;
}

/* 1: a tag stands at `at` that may come behind the function's name or a parameter; -1: the text ends inside one; 0: something else. */
static int at_tag(const char *text, size_t n, size_t at) {
    const char *const tags[] = {parameter_open, parameter_close, function_close};
    int found = 0;
    for (size_t i = 0; i < 3; i++) {
        const int here = at_word(text, n, at, tags[i]);
        if (here > 0) return 1;
        if (here < 0) found = -1;
    }
    return found;
}

tool_call_state tool_call_head(const tool_set *set, const char *text, size_t n, bool known_only) {
    size_t name = 0, end = 0;
    bool known = true;
    const tool_call_state state = read_function(text, n, &name, &end);
    if (state == TOOL_CALL_INCOMPLETE && known_only && name && !tool_set_has_prefix(set, text + name, n - name)) return TOOL_CALL_MALFORMED;
    if (state != TOOL_CALL_COMPLETE) return state;
    if (known_only) tool_set_find(set, text + name, end - name, &known);
    const int next = at_tag(text, n, skip_space(text, n, end + 1));
    if (!known || next == 0) return TOOL_CALL_MALFORMED;
    return next > 0 ? TOOL_CALL_COMPLETE : TOOL_CALL_INCOMPLETE;
}

/* Whether something stands at `at` that may follow a parameter. */
static int at_follower(const cursor *c, size_t at) {
    at = skip_space(c->text, c->n, at);
    if (at == c->n) return c->ended ? 1 : -1;
    return at_tag(c->text, c->n, at);
}

/* Whether the line at `at` begins a parameter that the tool has. */
static bool at_known_parameter(const cursor *c, size_t at, json_object *properties) {
    size_t end;
    char name[MAX_NAME];
    if (at_word(c->text, c->n, at, parameter_open) <= 0) return false;
    at += strlen(parameter_open);
    if (read_name(c->text, c->n, at, &end) <= 0 || end - at >= sizeof name) return false;
    memcpy(name, c->text + at, end - at);
    name[end - at] = 0;
    return value_has(properties, name);
}

/* Whether the line at `at` ends the function, and nothing but another function or the end comes after. */
static bool at_last_close(const cursor *c, size_t at) {
    if (at_word(c->text, c->n, at, function_close) <= 0) return false;
    at = skip_space(c->text, c->n, at + strlen(function_close));
    return (at == c->n && c->ended) || (at < c->n && at_word(c->text, c->n, at, function_open) > 0);
}

/* Finds the end of the value that begins at c->at; c->at moves behind it and its closing tag. */
static tool_call_state find_value_end(cursor *c, json_object *properties, size_t *end) {
    bool closes = false;
    for (size_t i = c->at; i < c->n; i++) {
        if (c->text[i] != '<') continue;
        if (at_word(c->text, c->n, i, parameter_close) > 0) {
            const size_t behind = i + strlen(parameter_close);
            const int follower = at_follower(c, behind);
            if (follower == 0) { /* a part of the value, which will be closed properly then */
                closes = true;
                continue;
            }
            *end = i;
            c->at = behind;
            return follower > 0 ? TOOL_CALL_COMPLETE : TOOL_CALL_INCOMPLETE;
        }
        const bool line_start = i == c->at || c->text[i - 1] == '\n';
        if (line_start && !closes && i > c->at && (at_known_parameter(c, i, properties) || at_last_close(c, i))) {
            *end = c->at = i; /* the closing tag is missing */
            return TOOL_CALL_COMPLETE;
        }
    }
    return TOOL_CALL_INCOMPLETE;
}

/* <parameter=NAME>VALUE</parameter>, c->at behind "<parameter=". */
static tool_call_state read_parameter(cursor *c, json_object *parameters, json_object *arguments) {
    size_t name_end, value_end = 0;
    const int named = read_name(c->text, c->n, c->at, &name_end);
    if (named <= 0) return named ? TOOL_CALL_INCOMPLETE : TOOL_CALL_MALFORMED;
    const char *name_start = c->text + c->at;
    const size_t n_name = name_end - c->at;
    c->at = name_end + 1;
    size_t value_start = c->at;
    const tool_call_state state = find_value_end(c, value_get(parameters, "properties"), &value_end);
    if (state != TOOL_CALL_COMPLETE) return state;
    if (value_start < value_end && c->text[value_start] == '\n') value_start++; /* the template's own line ends */
    if (value_start < value_end && c->text[value_end - 1] == '\n') value_end--;
    char *name = mem_strndup(name_start, n_name);
    json_object *value = NULL;
    bool ok = name && tool_value(parameters, name, c->text + value_start, value_end - value_start, &value);
    if (ok && json_object_object_add(arguments, name, value) < 0) {
        json_object_put(value);
        ok = false;
    }
    mem_free(name);
    return ok ? TOOL_CALL_COMPLETE : TOOL_CALL_NOMEM;
}

static tool_call_state read_parameters(cursor *c, json_object *parameters, json_object *arguments) {
    for (;;) {
        c->at = skip_space(c->text, c->n, c->at);
        if (c->at == c->n) return c->ended ? TOOL_CALL_COMPLETE : TOOL_CALL_INCOMPLETE;
        const int tag = at_tag(c->text, c->n, c->at);
        if (tag <= 0) return tag ? TOOL_CALL_INCOMPLETE : TOOL_CALL_MALFORMED;
        if (at_word(c->text, c->n, c->at, function_close) > 0) {
            c->at += strlen(function_close);
            return TOOL_CALL_COMPLETE;
        }
        if (at_word(c->text, c->n, c->at, parameter_close) > 0) { /* a closing tag too many */
            c->at += strlen(parameter_close);
            continue;
        }
        c->at += strlen(parameter_open);
        const tool_call_state state = read_parameter(c, parameters, arguments);
        if (state != TOOL_CALL_COMPLETE) return state;
    }
}

tool_call_state tool_call_parse(const tool_set *set, const char *text, size_t n, bool ended, tool_call *call) {
    size_t name = 0, name_end = 0;
    bool known;
    tool_call_state state = read_function(text, n, &name, &name_end);
    if (state != TOOL_CALL_COMPLETE) return state;
    cursor c = {.text = text, .n = n, .at = name_end + 1, .ended = ended};
    json_object *arguments = json_object_new_object();
    if (!arguments) return TOOL_CALL_NOMEM;
    state = read_parameters(&c, tool_set_find(set, text + name, name_end - name, &known), arguments);
    if (state == TOOL_CALL_COMPLETE) {
        size_t n_json = 0;
        const char *json = json_object_to_json_string_length(arguments, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE,
                                                             &n_json); /* numbers keep their text */
        buffer_clear(&call->name);
        buffer_clear(&call->arguments);
        buffer_append(&call->name, text + name, name_end - name);
        if (json) buffer_append(&call->arguments, json, n_json);
        if (!json || call->name.failed || call->arguments.failed) state = TOOL_CALL_NOMEM;
        call->n_text = c.at;
    }
    json_object_put(arguments);
    return state;
}

void tool_call_free(tool_call *call) {
    buffer_free(&call->name);
    buffer_free(&call->arguments);
    *call = (tool_call){0};
}

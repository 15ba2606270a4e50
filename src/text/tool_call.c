/* tool_call.c: see tool_call.h.
 *
 * A value of a string is printed as it comes, up to what may be its end; any other is kept until it is whole, since only then is known
 * whether it is JSON. */
#include "text/tool_call.h"

#include <string.h>

static const char function_open[] = "<function=", function_close[] = "</function>";
static const char parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

enum { MAX_NAME = 256 }; /* of parameters that are looked for where a closing tag is missing */

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

/* ------------------------------------------------------------- values ---------------------------------------------------- */

typedef struct cursor {
    const char *text; /* [n] */
    size_t n, at;
    bool ended;
} cursor;

/* Whether something stands at `at` that may follow a parameter: 1, 0, or -1 where the text ends too early. */
static int at_follower(const cursor *c, size_t at) {
    at = skip_space(c->text, c->n, at);
    if (at == c->n) return c->ended ? 1 : -1;
    return at_tag(c->text, c->n, at);
}

/* Whether the line at `at` begins a parameter that the tool has. */
static int at_known_parameter(const tool_stream *t, const cursor *c, size_t at) {
    char name[MAX_NAME];
    const int open = at_word(c->text, c->n, at, parameter_open);
    if (open <= 0) return open;
    at += strlen(parameter_open);
    const size_t most = c->n - at < MAX_NAME ? c->n : at + MAX_NAME;
    size_t end;
    const int named = read_name(c->text, most, at, &end);
    if (named <= 0) return most == c->n ? named : 0;
    memcpy(name, c->text + at, end - at);
    name[end - at] = 0;
    return tool_has_parameter(t->parameters, name);
}

/* Whether the line at `at` ends the function, and nothing but another function (1) or the end (2) comes after. */
static int at_last_close(const cursor *c, size_t at) {
    const int close = at_word(c->text, c->n, at, function_close);
    if (close <= 0) return close;
    at = skip_space(c->text, c->n, at + strlen(function_close));
    if (at == c->n) return c->ended ? 2 : -1;
    return at_word(c->text, c->n, at, function_open);
}

/* Where the value under way ends that goes on at c->at: COMPLETE, *end is its end and *behind what follows its closing tag.
 * INCOMPLETE: *end is where it may end. */
static tool_call_state find_value_end(tool_stream *t, const cursor *c, size_t *end, size_t *behind) {
    for (size_t i = c->at; i < c->n; i++) {
        if (c->text[i] != '<') continue;
        *end = *behind = i;
        const int close = at_word(c->text, c->n, i, parameter_close);
        if (close < 0) return TOOL_CALL_INCOMPLETE;
        if (close > 0) {
            const int follower = at_follower(c, i + strlen(parameter_close));
            *behind = i + strlen(parameter_close);
            if (follower) return follower > 0 ? TOOL_CALL_COMPLETE : TOOL_CALL_INCOMPLETE;
            t->closes = !t->set->held; /* a part of the value */
            continue;
        }
        const bool first = i == c->at && t->value_at == 0;
        if (first || (i == c->at ? t->last : c->text[i - 1]) != '\n') continue;
        /* Is the closing tag missing?  Where the surroundings were closed right behind </function>, there is no doubt. */
        const int last = at_last_close(c, i), known = at_known_parameter(t, c, i);
        if (last == 2 || ((last > 0 || known > 0) && !t->closes)) return TOOL_CALL_COMPLETE;
        if (last < 0 || (known < 0 && !t->closes)) return TOOL_CALL_INCOMPLETE;
    }
    *end = *behind = c->n;
    return TOOL_CALL_INCOMPLETE;
}

/* s [n] as the inside of a JSON string. */
static void print_string(const char *s, size_t n, buffer *json) {
    buffer quoted = {0};
    json_append_string(&quoted, s, n);
    if (quoted.failed)
        json->failed = true;
    else
        buffer_append(json, quoted.data + 1, quoted.n - 2);
    buffer_free(&quoted);
}

/* More of the value, which is not its end. */
static void add_value(tool_stream *t, const char *s, size_t n, buffer *json) {
    if (!n) return;
    const bool line_end = t->value_at == 0 && *s == '\n'; /* the template's own */
    t->value_at += n;
    t->last = s[n - 1];
    if (line_end) s++, n--;
    if (!n || t->repeated) return;
    if (t->printing) {
        print_string(s, n, json);
        return;
    }
    buffer_append(&t->value, s, n);
    json->failed |= t->value.failed;
    if (json->failed || tool_value_may_wait(t->parameters, t->parameter.data, t->value.data, t->value.n)) return;
    t->printing = true;
    buffer_append_str(json, "\"");
    print_string(t->value.data, t->value.n, json);
    buffer_clear(&t->value);
}

/* The value ends behind s [n]. */
static void end_value(tool_stream *t, const char *s, size_t n, buffer *json) {
    if (n && s[n - 1] == '\n' && !(n == 1 && t->value_at == 0)) n--; /* the template's own */
    add_value(t, s, n, json);
    t->state = STREAM_BETWEEN;
    if (t->repeated) return;
    if (t->printing) {
        buffer_append_str(json, "\"");
        return;
    }
    json_object *value = NULL;
    const char *printed = NULL;
    size_t n_printed = 0;
    if (tool_value(t->parameters, t->parameter.data, t->value.n ? t->value.data : "", t->value.n, &value))
        printed = json_object_to_json_string_length(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n_printed);
    if (printed)
        buffer_append(json, printed, n_printed); /* numbers keep their text */
    else
        json->failed = true;
    json_object_put(value);
}

/* A parameter begins.  name [n] */
static void begin_value(tool_stream *t, const char *name, size_t n, buffer *json) {
    buffer_clear(&t->parameter);
    buffer_append(&t->parameter, n ? name : "", n);
    buffer_clear(&t->value);
    t->state = STREAM_VALUE;
    t->closes = t->printing = false;
    t->value_at = 0;
    const bool first = !t->seen;
    if (first) t->seen = json_object_new_object();
    if (!t->seen || t->parameter.failed) {
        json->failed = true;
        return;
    }
    t->repeated = json_object_object_get_ex(t->seen, t->parameter.data, NULL);
    if (t->repeated) return;
    if (json_object_object_add(t->seen, t->parameter.data, NULL)) json->failed = true;
    if (!first) buffer_append_str(json, ",");
    json_append_string(json, t->parameter.data, t->parameter.n);
    buffer_append_str(json, ":");
    if (!tool_value_may_wait(t->parameters, t->parameter.data, "", 0)) {
        t->printing = true;
        buffer_append_str(json, "\"");
    }
}

/* ------------------------------------------------------------- a call ---------------------------------------------------- */

void tool_stream_begin(tool_stream *t, const tool_set *set) {
    t->set = set;
    t->parameters = NULL;
    json_object_put(t->seen);
    t->seen = NULL;
    t->state = STREAM_HEAD;
    buffer_clear(&t->name);
}

static tool_call_state read_head(tool_stream *t, cursor *c, buffer *json) {
    size_t name = 0, end = 0;
    bool known;
    const tool_call_state state = read_function(c->text, c->n, &name, &end);
    if (state != TOOL_CALL_COMPLETE) return state;
    buffer_append(&t->name, c->text + name, end - name);
    json->failed |= t->name.failed;
    t->parameters = tool_set_find(t->set, c->text + name, end - name, &known);
    buffer_append_str(json, "{");
    c->at = end + 1;
    t->state = STREAM_BETWEEN;
    return TOOL_CALL_COMPLETE;
}

/* To the next value, or to the end of the call: COMPLETE, and the state is STREAM_HEAD then. */
static tool_call_state read_between(tool_stream *t, cursor *c, buffer *json) {
    for (;;) {
        c->at = skip_space(c->text, c->n, c->at);
        const bool all = c->at == c->n;
        const int tag = all ? -1 : at_tag(c->text, c->n, c->at);
        if (tag < 0 && !(all && c->ended)) return TOOL_CALL_INCOMPLETE;
        if (tag == 0) return TOOL_CALL_MALFORMED;
        const bool end = all || at_word(c->text, c->n, c->at, function_close) > 0;
        if (end) {
            if (!all) c->at += strlen(function_close);
            buffer_append_str(json, "}");
            t->state = STREAM_HEAD;
            return TOOL_CALL_COMPLETE;
        }
        if (at_word(c->text, c->n, c->at, parameter_close) > 0) { /* a closing tag too many */
            c->at += strlen(parameter_close);
            continue;
        }
        const size_t name = c->at + strlen(parameter_open);
        size_t name_end;
        const int named = read_name(c->text, c->n, name, &name_end);
        if (named <= 0) return named ? TOOL_CALL_INCOMPLETE : TOOL_CALL_MALFORMED;
        begin_value(t, c->text + name, name_end - name, json);
        c->at = name_end + 1;
        return TOOL_CALL_COMPLETE;
    }
}

static tool_call_state read_value(tool_stream *t, cursor *c, buffer *json) {
    size_t end, behind;
    const tool_call_state state = find_value_end(t, c, &end, &behind);
    if (state == TOOL_CALL_COMPLETE) {
        end_value(t, c->text + c->at, end - c->at, json);
        c->at = behind;
        return state;
    }
    if (end > c->at && c->text[end - 1] == '\n') end--; /* may be the template's own */
    add_value(t, c->text + c->at, end - c->at, json);
    c->at = end;
    return state;
}

tool_call_state tool_stream_read(tool_stream *t, const char *text, size_t n, bool ended, size_t *used, buffer *json) {
    cursor c = {.text = text, .n = n, .ended = ended};
    tool_call_state state;
    do {
        switch (t->state) {
        case STREAM_HEAD: state = read_head(t, &c, json); break;
        case STREAM_BETWEEN: state = read_between(t, &c, json); break;
        default: state = read_value(t, &c, json);
        }
        if (json->failed) state = TOOL_CALL_NOMEM;
    } while (state == TOOL_CALL_COMPLETE && t->state != STREAM_HEAD);
    *used = c.at;
    return state;
}

void tool_stream_close(tool_stream *t, const char *rest, size_t n, buffer *json) {
    if (t->state == STREAM_VALUE) {
        const size_t at = n && *rest == '\n'; /* a closing tag may have been read of which was not certain whether it is one */
        end_value(t, rest, at_word(rest, n, at, parameter_close) > 0 ? at : n, json);
    }
    buffer_append_str(json, "}");
    t->state = STREAM_HEAD;
}

void tool_stream_free(tool_stream *t) {
    json_object_put(t->seen);
    buffer_free(&t->name);
    buffer_free(&t->parameter);
    buffer_free(&t->value);
    *t = (tool_stream){0};
}

tool_call_state tool_call_parse(const tool_set *set, const char *text, size_t n, bool ended, tool_call *call) {
    tool_stream_begin(&call->stream, set);
    buffer_clear(&call->arguments);
    return tool_stream_read(&call->stream, text, n, ended, &call->n_text, &call->arguments);
}

void tool_call_free(tool_call *call) {
    tool_stream_free(&call->stream);
    buffer_free(&call->arguments);
    *call = (tool_call){0};
}

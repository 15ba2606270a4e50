/* form_compile.c: calla_form_options → a program. */
#include <string.h>

#include "base/utf8.h"
#include "text/form/form_regex.h"
#include "text/form/form_tools.h"

/* What lives as long as a compilation. */
typedef struct compilation {
    form_build b;
    const calla_form_options *options;
    json_object *source; /* of a schema or a choice */
    tool_set tools;
    form_tools calls;
    schema_doc doc;
    uint32_t content; /* machine, or FORM_NONE */
    bool has_calls;
    uint32_t root;
} compilation;

/* ------------------------------------------------------------- the content ----------------------------------------------- */

static void build_regex(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const compilation *c = user;
    calla_error why;
    const regex_node *r = regex_parse(&b->work, c->options->source, c->options->n_source, &why);
    if (r)
        regex_to_dfa(r, REGEX_UTF8, true, n, out);
    else
        form_fail(&b->work, why.status, "regular expression: %s", why.message);
}

static void build_choice(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const compilation *c = user;
    const nfa_part whole = nfa_nothing(n);
    for (size_t i = 0; i < json_object_array_length(c->source) && !form_failed(&b->work); i++) {
        json_object *value = json_object_array_get_idx(c->source, i);
        if (!json_object_is_type(value, json_type_string)) {
            form_fail(&b->work, CALLA_E_ARGUMENT, "choice: [%zu] must be a string", i);
            break;
        }
        const nfa_part text = nfa_bytes(n, json_object_get_string(value), (size_t)json_object_get_string_len(value));
        nfa_skip(n, whole.from, text.from);
        nfa_skip(n, text.to, whole.to);
    }
    dfa_from_nfa(n, whole, out);
}

static void read_source(compilation *c, const char *what) {
    form_work *w = &c->b.work;
    if (!form_failed(w)) w->status = json_parse(c->options->source, c->options->n_source, what, &c->source, w->err);
}

static uint32_t schema_content(compilation *c) {
    read_source(c, "schema");
    if (form_failed(&c->b.work)) return FORM_NONE;
    c->doc = (schema_doc){.root = c->source, .where = "schema", .strict = c->options->strict_schema};
    schema_set *set = schema_set_new(&c->b, &c->doc);
    schema_set_add(&c->b, set, c->source, "#", FORM_NONE);
    return schema_machine(&c->b, set, SCHEMA_JSON);
}

static uint32_t choice_content(compilation *c) {
    bool fresh;
    read_source(c, "choice");
    if (form_failed(&c->b.work)) return FORM_NONE;
    if (!json_object_is_type(c->source, json_type_array) || json_object_array_length(c->source) == 0) {
        form_fail(&c->b.work, CALLA_E_ARGUMENT, "choice: must be an array of strings that is not empty");
        return FORM_NONE;
    }
    c->b.work.where = "choice";
    return form_machine_of(&c->b, "choice", sizeof "choice", build_choice, c, &fresh);
}

static uint32_t regex_content(compilation *c) {
    bool fresh;
    if (utf8_valid(c->options->source, c->options->n_source) != c->options->n_source) {
        form_fail(&c->b.work, CALLA_E_ARGUMENT, "regular expression: not valid UTF-8");
        return FORM_NONE;
    }
    c->b.work.where = "regular expression";
    const uint32_t machine = form_machine_of(&c->b, "regex", sizeof "regex", build_regex, c, &fresh);
    if (!form_failed(&c->b.work)) c->b.machines[machine].wide = true;
    return machine;
}

static uint32_t content_machine(compilation *c) {
    if (c->options->kind == CALLA_FORM_NONE) return FORM_NONE;
    if (c->options->kind == CALLA_FORM_JSON_OBJECT) return json_any_machine(&c->b, JSON_ANY_OBJECT, false);
    if (!c->options->source) {
        form_fail(&c->b.work, CALLA_E_ARGUMENT, "form: this kind needs a source");
        return FORM_NONE;
    }
    switch (c->options->kind) {
    case CALLA_FORM_JSON_SCHEMA: return schema_content(c);
    case CALLA_FORM_CHOICE: return choice_content(c);
    case CALLA_FORM_REGEX: return regex_content(c);
    case CALLA_FORM_NONE:
    case CALLA_FORM_JSON_OBJECT: break;
    }
    form_fail(&c->b.work, CALLA_E_ARGUMENT, "form: no such kind");
    return FORM_NONE;
}

/* ------------------------------------------------------------- the answer ------------------------------------------------ */

/* A free state that nothing leaves. */
static void build_free(form_build *b, form_dfa *out, bool tool_begin) {
    if (!form_grow(&b->work, &out->states, &out->cap_states, 1, sizeof *out->states) ||
        !form_grow(&b->work, &out->edges, &out->cap_edges, 1, sizeof *out->edges))
        return;
    out->states[0] = (dfa_state){.n_edges = tool_begin, .accepts = true};
    out->edges[0] = (dfa_edge){FORM_TOOL_BEGIN, FORM_TOOL_BEGIN, 0};
    out->n_states = 1;
    out->n_edges = tool_begin;
}

static void build_root(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const compilation *c = user;
    if (c->content == FORM_NONE && !c->has_calls) {
        build_free(b, out, c->options->tool_choice != CALLA_TOOLS_NONE || !c->tools.tools);
        return;
    }
    const nfa_part whole = nfa_nothing(n), calls = form_tool_calls(b, &c->calls, n);
    nfa_skip(n, whole.from, calls.from);
    nfa_skip(n, calls.to, whole.to);
    if (c->options->tool_choice == CALLA_TOOLS_AUTO) {
        if (c->content == FORM_NONE) {
            nfa_skip(n, whole.from, whole.to);
        } else {
            const nfa_part content = nfa_call(n, c->content);
            nfa_skip(n, whole.from, content.from);
            nfa_skip(n, content.to, whole.to);
        }
    }
    dfa_from_nfa(n, whole, out);
}

/* The root behind at most two line ends, which the template puts behind </think>. */
static void build_thought(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    (void)b;
    const compilation *c = user;
    nfa_part lines = nfa_optional(n, nfa_seq(n, nfa_text(n, "\n"), nfa_optional(n, nfa_text(n, "\n"))));
    dfa_from_nfa(n, nfa_seq(n, lines, nfa_call(n, c->root)), out);
}

static void find_calls(compilation *c) {
    const calla_form_options *o = c->options;
    form_work *w = &c->b.work;
    if (!form_failed(w)) w->status = tool_set_open(&c->tools, o->tools_json, w->err);
    if (form_failed(w)) return;
    c->has_calls = c->tools.tools && o->tool_choice != CALLA_TOOLS_NONE;
    c->calls = (form_tools){.set = &c->tools, .one_call = o->one_call};
    if (!c->has_calls && (o->tool_choice == CALLA_TOOLS_REQUIRED || o->tool_choice == CALLA_TOOLS_NAMED))
        form_fail(w, CALLA_E_ARGUMENT, "tool_choice: asks for a call, and there are no tools");
    if (o->tool_choice != CALLA_TOOLS_NAMED || form_failed(w)) return;
    bool known = false;
    if (o->tool_name) tool_set_find(&c->tools, o->tool_name, strlen(o->tool_name), &known);
    if (!known) form_fail(w, CALLA_E_ARGUMENT, "tool_choice: there is no tool \"%.80s\"", o->tool_name ? o->tool_name : "");
    c->calls.only = o->tool_name;
}

static calla_status compile(compilation *c, form_program **out) {
    form_build *b = &c->b;
    bool fresh;
    find_calls(c);
    c->content = form_failed(&b->work) ? FORM_NONE : content_machine(c);
    const bool free_text = c->content == FORM_NONE && (!c->has_calls || c->options->tool_choice == CALLA_TOOLS_AUTO);
    b->work.where = c->has_calls ? "tools" : "form";
    b->work.path = "";
    b->work.keyword = NULL;
    c->root = c->content;
    if (c->has_calls || c->content == FORM_NONE) c->root = form_machine_of(b, "root", sizeof "root", build_root, c, &fresh);
    uint32_t thought = c->root;
    if (!free_text) thought = form_machine_of(b, "thought", sizeof "thought", build_thought, c, &fresh);
    if (!form_failed(&b->work) && free_text) b->machines[c->root].free = true;
    form_build_run(b);
    return form_link(b, c->root, thought, out);
}

calla_status form_program_compile(const calla_form_options *options, form_program **out, calla_error *err) {
    *out = NULL;
    calla_error ignored;
    compilation c = {.options = options};
    form_build_open(&c.b, err ? err : &ignored);
    const calla_status status = compile(&c, out);
    form_build_close(&c.b);
    json_object_put(c.source);
    tool_set_close(&c.tools);
    return status;
}

/* form_tools.c: see form_tools.h.
 *
 * The text is the chat template's, to the letter:
 *     <tool_call>\n<function=NAME>\n(<parameter=NAME>\nVALUE\n</parameter>\n)*</function>\n</tool_call>
 * Parameters come in any order, each at most once, the required ones before </function>: the frame's count has a bit for each.  How a
 * value is written depends on how tool_set.c will read it: as text where its schema admits a string, else as JSON. */
#include "text/form/form_tools.h"

#include <string.h>

#include "base/utf8.h"
#include "text/form/form_text.h"
#include "text/template_value.h"

enum { MAX_BITS = 64 /* parameters in any order; with more they come in the schema's */ };

typedef struct function_user {
    const schema_set *leaf;
    json_object *parameters;
} function_user;

static uint32_t join(form_nfa *n, uint32_t from, nfa_part part) {
    nfa_skip(n, from, part.from);
    return part.to;
}

/* A name that tool_call.c reads back. */
static bool is_name(const char *s, size_t n) { return n && !memchr(s, '>', n) && !memchr(s, '\n', n) && !memchr(s, 0, n); }

/* ------------------------------------------------------------- parameters ------------------------------------------------ */

static void join_parameter(form_build *b, const function_user *u, form_nfa *n, const schema_property *p, uint32_t from, uint32_t to) {
    if (!is_name(p->name, p->n_name)) {
        schema_refuse(b, u->leaf->doc, u->leaf->members[0].path, "properties", "\"%.60s\" cannot be the name of a parameter", p->name);
        return;
    }
    const bool string = tool_value_is_text(u->parameters, p->name);
    uint32_t at = join(n, from, nfa_text(n, "<parameter="));
    at = join(n, join(n, at, nfa_bytes(n, p->name, p->n_name)), nfa_text(n, ">\n"));
    at = join(n, at, nfa_call(n, schema_machine(b, p->value, string ? SCHEMA_TEXT : SCHEMA_PARAMETER)));
    nfa_skip(n, at, to);
}

/* Parameters of a tool that names none: text, since tool_set.c knows of no types. */
static void join_others(form_build *b, form_nfa *n, uint32_t from, uint32_t to) {
    nfa_part c = nfa_alt(n, nfa_code_points(n, 1, '\n' - 1), nfa_code_points(n, '\n' + 1, '>' - 1));
    c = nfa_plus(n, nfa_alt(n, c, nfa_code_points(n, '>' + 1, 0x10FFFF)));
    const uint32_t at = join(n, join(n, join(n, from, nfa_text(n, "<parameter=")), c), nfa_text(n, ">\n"));
    nfa_skip(n, join(n, at, nfa_call(n, text_machine(b))), to);
}

static uint32_t join_symbol(form_nfa *n, uint32_t from, uint32_t symbol) { return join(n, from, nfa_symbol(n, symbol)); }

/* Behind "<function=NAME>\n". */
static void build_function(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const function_user *u = user;
    schema_properties p;
    schema_properties_of(b, u->leaf, &p);
    const nfa_part whole = nfa_nothing(n);
    uint32_t at = nfa_node(n);
    uint64_t required = 0;
    nfa_skip(n, whole.from, at);
    for (size_t i = 0; i < p.n && !form_failed(&b->work); i++) {
        const schema_property *property = &p.items[i];
        if (p.n <= MAX_BITS) {
            const uint64_t bit = (uint64_t)1 << i;
            if (property->required) required |= bit;
            if (!property->value->impossible) join_parameter(b, u, n, property, join_symbol(n, at, form_guard_of(b, FORM_UNUSED, bit)), at);
            continue;
        }
        const uint32_t next = nfa_node(n);
        if (!property->value->impossible) join_parameter(b, u, n, property, at, next);
        if (!property->required) nfa_skip(n, at, next);
        at = next;
    }
    if (!p.n && p.others && !p.others->n) join_others(b, n, at, at);
    if (required) at = join_symbol(n, at, form_guard_of(b, FORM_ALL, required));
    nfa_skip(n, join(n, at, nfa_text(n, "</function>")), whole.to);
    schema_at(b, u->leaf, "properties");
    dfa_from_nfa(n, whole, out);
}

/* ------------------------------------------------------------- functions ------------------------------------------------- */

typedef struct function_parts {
    form_nfa *n;
    json_object *parameters;
    uint32_t from, to;
    bool any;
} function_parts;

static void add_function_leaf(form_build *b, const schema_set *leaf, void *user) {
    function_parts *f = user;
    if (!(schema_types(leaf) & TYPE_OBJECT)) return;
    function_user *u = form_alloc(&b->work, sizeof *u);
    size_t n;
    const void *key = schema_key(b, leaf, 'F', &n);
    if (!u || !key) return;
    *u = (function_user){leaf, f->parameters};
    bool fresh;
    schema_at(b, leaf, NULL);
    nfa_skip(f->n, join(f->n, f->from, nfa_call(f->n, form_machine_of(b, key, n, build_function, u, &fresh))), f->to);
    f->any = true;
}

static void add_function(form_build *b, const form_tools *tools, size_t i, form_nfa *n, nfa_part whole) {
    const char *name;
    size_t n_name;
    json_object *function = tool_set_function(tools->set, i, &name, &n_name);
    bool known = false;
    schema_doc *doc = form_alloc(&b->work, sizeof *doc);
    if (!doc || !name || !is_name(name, n_name) || utf8_valid(name, n_name) != n_name) return;
    if (tools->only && strcmp(tools->only, name) != 0) return;
    json_object *parameters = tool_set_find(tools->set, name, n_name, &known);
    *doc = (schema_doc){.root = parameters, .strict = json_object_get_boolean(value_get(function, "strict")), .in_call = true};
    doc->where = form_print(&b->work, "tools[%zu] (%.80s)", i, name);
    const uint32_t at = join(n, join(n, whole.from, nfa_bytes(n, name, n_name)), nfa_text(n, ">\n"));
    function_parts f = {.n = n, .parameters = parameters, .from = at, .to = whole.to};
    schema_set *set = schema_set_new(b, doc);
    if (parameters) schema_set_add(b, set, parameters, "#", FORM_NONE);
    if (!form_failed(&b->work)) schema_each_leaf(b, set, add_function_leaf, &f);
    if (f.any || form_failed(&b->work)) return;
    if (doc->strict)
        form_fail(&b->work, CALLA_E_UNSUPPORTED, "%s: #: type: the parameters must be an object", doc->where);
    else
        add_function_leaf(b, schema_set_new(b, doc), &f); /* any parameters */
}

/* Behind "<function=". */
static void build_functions(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const form_tools *tools = user;
    const nfa_part whole = nfa_nothing(n);
    const size_t count = tools->set->tools ? json_object_array_length(tools->set->tools) : 0;
    for (size_t i = 0; i < count && !form_failed(&b->work); i++) {
        const char *name, *other;
        size_t n_name, n_other, same = 0;
        if (!tool_set_function(tools->set, i, &name, &n_name) || !name) continue;
        while (tool_set_function(tools->set, same, &other, &n_other), !other || strcmp(other, name) != 0) same++;
        if (same == i) add_function(b, tools, i, n, whole); /* the first of a name is the one that is found */
    }
    b->work.where = "tools";
    b->work.path = "";
    b->work.keyword = NULL;
    dfa_from_nfa(n, whole, out);
}

nfa_part form_tool_calls(form_build *b, const form_tools *tools, form_nfa *n) {
    bool fresh;
    b->work.where = "tools";
    b->work.path = "";
    b->work.keyword = NULL;
    const uint32_t functions = form_machine_of(b, "functions", sizeof "functions", build_functions, tools, &fresh);
    const nfa_part whole = nfa_nothing(n);
    const uint32_t begin = nfa_node(n);
    nfa_skip(n, whole.from, begin);
    uint32_t at = join(n, join_symbol(n, begin, FORM_TOOL_BEGIN), nfa_text(n, "\n<function="));
    at = join(n, join(n, at, nfa_call(n, functions)), nfa_text(n, "\n"));
    at = join_symbol(n, at, FORM_TOOL_END);
    nfa_skip(n, at, whole.to);
    if (tools->one_call) return whole;
    at = join(n, at, nfa_text(n, "\n")); /* the template's, before one more call; but who has begun the line may stop as well */
    nfa_skip(n, at, begin);
    nfa_skip(n, at, whole.to);
    return whole;
}

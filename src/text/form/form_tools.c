/* form_tools.c: see form_tools.h.
 *
 * The text is the chat template's:
 *     <tool_call>\n<function=NAME>\n(<parameter=NAME>\nVALUE\n</parameter>\n)*</function>\n</tool_call>
 * and with it the slips that models make and tool_call.c mends, since a mask that forbids one leaves the model with something worse:
 * line ends between tags may be missing or two, </parameter> may come twice, and before a line that begins one of the tool's
 * parameters or ends the function it may be missing.
 *
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

/* The nodes of a function's automaton. */
typedef struct function_nodes {
    uint32_t between; /* a parameter, or the end */
    uint32_t slipped; /* the same at the start of a line, where the last value was not closed */
    uint32_t behind;  /* a value: what closes it */
    uint32_t exact;   /* the same, of a value that would be another with a line end more */
} function_nodes;

static void join_closing(form_nfa *n, uint32_t from, bool exact, const function_nodes *f, uint32_t closed) {
    nfa_skip(n, join(n, from, text_closing(n, exact)), closed);
    nfa_skip(n, join(n, from, nfa_text(n, "\n")), f->slipped);
}

/* "<parameter=NAME>" and its value, from one node to those behind it. */
static void join_parameter(form_build *b, const function_user *u, form_nfa *n, const schema_property *p, uint32_t from,
                           const function_nodes *f) {
    const bool string = tool_value_is_text(u->parameters, p->name);
    uint32_t at = join(n, from, nfa_text(n, "<parameter="));
    at = join(n, join(n, at, nfa_bytes(n, p->name, p->n_name)), nfa_text(n, ">"));
    at = join(n, at, string ? nfa_text(n, "\n") : nfa_optional(n, nfa_text(n, "\n")));
    const uint32_t value = schema_machine(b, p->value, string ? SCHEMA_TEXT : SCHEMA_PARAMETER);
    const bool exact = string && value != text_machine(b, false);
    nfa_skip(n, join(n, at, nfa_call(n, value)), exact ? f->exact : f->behind);
}

static nfa_part name_character(form_nfa *n) {
    const nfa_part c = nfa_alt(n, nfa_code_points(n, 1, '\n' - 1), nfa_code_points(n, '\n' + 1, '>' - 1));
    return nfa_alt(n, c, nfa_code_points(n, '>' + 1, 0x10FFFF));
}

/* Of what others may be nothing is said. */
static bool is_open(const schema_set *others) {
    for (uint32_t i = 0; others && i < others->n; i++)
        if (json_object_object_length(others->members[i].schema)) return false;
    return others != NULL;
}

/* Parameters of other names, for tools that say that these may be: text, since tool_set.c knows no type of theirs. */
static void join_others(form_build *b, form_nfa *n, const schema_properties *p, uint32_t from, uint32_t to) {
    form_dfa all = {0}, named = {0}, others = {0};
    form_nfa names = {.work = &b->work};
    dfa_from_nfa(&names, nfa_plus(&names, name_character(&names)), &all);
    nfa_part known = nfa_nothing(&names);
    for (size_t i = 0; i < p->n; i++) known = nfa_alt(&names, known, nfa_bytes(&names, p->items[i].name, p->items[i].n_name));
    dfa_from_nfa(&names, known, &named);
    dfa_combine(&b->work, &all, &named, DFA_WITHOUT, &others);
    const uint32_t at = join(n, join(n, join(n, from, nfa_text(n, "<parameter=")), nfa_dfa(n, &others)), nfa_text(n, ">\n"));
    nfa_skip(n, join(n, at, nfa_call(n, text_machine(b, false))), to);
    form_nfa_free(&names);
    form_dfa_free(&all);
    form_dfa_free(&named);
    form_dfa_free(&others);
}

static uint32_t join_symbol(form_nfa *n, uint32_t from, uint32_t symbol) { return join(n, from, nfa_symbol(n, symbol)); }

/* What every parameter of more than MAX_BITS leads to: the next ones, in the schema's order.  Without slips: the place in the order would
 * be lost. */
static uint32_t join_in_order(form_build *b, const function_user *u, form_nfa *n, const schema_properties *p, uint32_t at) {
    for (size_t i = 0; i < p->n && !form_failed(&b->work); i++) {
        const schema_property *property = &p->items[i];
        const uint32_t next = nfa_node(n), behind = nfa_node(n);
        const function_nodes f = {.behind = behind, .exact = behind};
        if (!property->value->impossible) join_parameter(b, u, n, property, at, &f);
        nfa_skip(n, join(n, behind, text_closing(n, true)), next);
        if (!property->required) nfa_skip(n, at, next);
        at = next;
    }
    return at;
}

/* Each at most once: before it stands the guard of its bit.  Returns the bits of those that are required. */
static uint64_t join_in_any_order(form_build *b, const function_user *u, form_nfa *n, const schema_properties *p, const function_nodes *f) {
    uint64_t required = 0;
    for (size_t i = 0; i < p->n && !form_failed(&b->work); i++) {
        const schema_property *property = &p->items[i];
        const uint64_t bit = (uint64_t)1 << i;
        if (property->required) required |= bit;
        if (property->value->impossible) continue;
        const uint32_t guard = form_guard_of(b, FORM_UNUSED, bit), at = join_symbol(n, f->between, guard);
        if (tool_has_parameter(u->parameters, property->name)) nfa_join(n, f->slipped, guard, guard, at);
        join_parameter(b, u, n, property, at, f);
    }
    return required;
}

static bool has_names(form_build *b, const function_user *u, const schema_properties *p) {
    for (size_t i = 0; i < p->n; i++) {
        if (is_name(p->items[i].name, p->items[i].n_name)) continue;
        schema_refuse(b, u->leaf->doc, u->leaf->members[0].path, "properties", "\"%.60s\" cannot be the name of a parameter",
                      p->items[i].name);
        p->items[i].value->impossible = true;
    }
    return !form_failed(&b->work);
}

/* Behind "<function=NAME>". */
static void build_function(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const function_user *u = user;
    schema_properties p;
    schema_properties_of(b, u->leaf, &p);
    if (!has_names(b, u, &p)) return;
    const nfa_part whole = nfa_nothing(n);
    const function_nodes f = {.between = nfa_node(n), .slipped = nfa_node(n), .behind = nfa_node(n), .exact = nfa_node(n)};
    nfa_skip(n, join(n, whole.from, text_gap(n)), f.between);
    uint32_t last = f.between;
    uint64_t required = 0;
    if (p.n > MAX_BITS)
        last = join_in_order(b, u, n, &p, last);
    else
        required = join_in_any_order(b, u, n, &p, &f);
    if (is_open(p.others) && p.n <= MAX_BITS) join_others(b, n, &p, f.between, f.behind);
    join_closing(n, f.behind, false, &f, f.between);
    join_closing(n, f.exact, true, &f, f.between);
    const uint32_t end = nfa_node(n), guard = required ? form_guard_of(b, FORM_ALL, required) : 0;
    const uint32_t before[] = {last, f.slipped};
    for (size_t i = 0; i < 2; i++) {
        if (required)
            nfa_join(n, before[i], guard, guard, end);
        else
            nfa_skip(n, before[i], end);
    }
    nfa_skip(n, join(n, end, nfa_text(n, "</function>")), whole.to);
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
    const uint32_t at = join(n, join(n, whole.from, nfa_bytes(n, name, n_name)), nfa_text(n, ">"));
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
    uint32_t at = join(n, join(n, join_symbol(n, begin, FORM_TOOL_BEGIN), text_gap(n)), nfa_text(n, "<function="));
    at = join(n, join(n, at, nfa_call(n, functions)), text_gap(n));
    at = join_symbol(n, at, FORM_TOOL_END);
    nfa_skip(n, at, whole.to);
    if (tools->one_call) return whole;
    at = join(n, at, text_gap(n)); /* the template's line end before one more call; but who has begun the line may stop as well */
    nfa_skip(n, at, begin);
    nfa_skip(n, at, whole.to);
    return whole;
}

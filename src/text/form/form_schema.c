/* form_schema.c: a set of schemas → the machine of its values (form_schema.h). */
#include "text/form/form_schema.h"

#include "base/memory.h"
#include "text/form/form_text.h"

typedef struct value_user {
    const schema_set *set;
    schema_form form;
} value_user;

/* What a value's machine is put together in. */
typedef struct value_parts {
    form_nfa *n;
    const schema_set *leaf;
    schema_form form;
    nfa_part whole;
    form_dfa content; /* of SCHEMA_TEXT: what a text may be */
} value_parts;

static void add_part(value_parts *v, nfa_part part) {
    nfa_skip(v->n, v->whole.from, part.from);
    nfa_skip(v->n, part.to, v->whole.to);
}

static void add_literal(form_build *b, json_object *value, void *user) {
    value_parts *v = user;
    const bool string = json_object_is_type(value, json_type_string);
    if (v->form != SCHEMA_TEXT) {
        if (v->form == SCHEMA_JSON || !string) add_part(v, json_literal(b, v->n, value, v->leaf->doc->in_call));
        return;
    }
    if (!value) add_part(v, nfa_text(v->n, "null"));
    if (!string) return;
    const char *text = json_object_get_string(value);
    const size_t length = (size_t)json_object_get_string_len(value);
    if (v->content.n_states == 0) text_content_dfa(b, false, &v->content);
    if (v->content.n_states && dfa_accepts(&v->content, text, length)) add_part(v, nfa_bytes(v->n, text, length));
}

static void add_leaf(form_build *b, const schema_set *leaf, void *user) {
    value_parts *v = user;
    form_nfa *n = v->n;
    v->leaf = leaf;
    if (schema_each_value(b, leaf, add_literal, v)) return;
    unsigned types = schema_types(leaf);
    if (types & TYPE_NULL) add_part(v, nfa_text(n, "null"));
    if (v->form == SCHEMA_TEXT) {
        if (types & TYPE_STRING) add_part(v, nfa_call(n, schema_string(b, leaf, true)));
        return;
    }
    if (types & TYPE_BOOLEAN) add_part(v, nfa_alt(n, nfa_text(n, "true"), nfa_text(n, "false")));
    if (types & (TYPE_INTEGER | TYPE_FRACTION)) add_part(v, nfa_call(n, schema_number(b, leaf, !(types & TYPE_FRACTION))));
    if ((types & TYPE_STRING) && v->form == SCHEMA_JSON) add_part(v, nfa_call(n, schema_string(b, leaf, false)));
    if (types & TYPE_ARRAY) add_part(v, nfa_call(n, schema_array(b, leaf)));
    if (types & TYPE_OBJECT) add_part(v, nfa_call(n, schema_object(b, leaf)));
}

static bool has_values(const schema_set *set) {
    json_object *ignored;
    for (uint32_t i = 0; i < set->n; i++)
        if (schema_has(&set->members[i], "const", &ignored) || schema_has(&set->members[i], "enum", &ignored)) return true;
    return false;
}

/* What makes a value's machine large, if it is. */
static const char *choice_keyword(const schema_set *set) {
    return schema_has_alternatives(set) ? "anyOf" : has_values(set) ? "enum" : "type";
}

static void build_value(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const value_user *u = user;
    value_parts v = {.n = n, .form = u->form, .whole = nfa_nothing(n)};
    schema_each_leaf(b, u->set, add_leaf, &v);
    form_dfa_free(&v.content);
    schema_at(b, u->set, choice_keyword(u->set));
    dfa_from_nfa(n, v.whole, out);
}

/* The machine of a set with one type and nothing to choose, FORM_NONE: there is a choice. */
static uint32_t single_machine(form_build *b, const schema_set *set, schema_form form) {
    if (set->impossible || schema_has_alternatives(set) || has_values(set)) return FORM_NONE;
    if (!set->n && form == SCHEMA_JSON) return json_any_machine(b, JSON_ANY_VALUE, set->doc->in_call);
    const unsigned types = schema_types(set);
    if (form == SCHEMA_TEXT && (types & (TYPE_STRING | TYPE_NULL)) == TYPE_STRING) return schema_string(b, set, true);
    if (form != SCHEMA_JSON) return FORM_NONE;
    switch (types) {
    case TYPE_INTEGER: return schema_number(b, set, true);
    case TYPE_INTEGER | TYPE_FRACTION: return schema_number(b, set, false);
    case TYPE_STRING: return schema_string(b, set, false);
    case TYPE_ARRAY: return schema_array(b, set);
    case TYPE_OBJECT: return schema_object(b, set);
    default: return FORM_NONE;
    }
}

uint32_t schema_machine(form_build *b, const schema_set *set, schema_form form) {
    if (!set || form_failed(&b->work)) return 0;
    schema_at(b, set, NULL);
    const uint32_t single = single_machine(b, set, form);
    if (single != FORM_NONE) return single;
    value_user *user = form_alloc(&b->work, sizeof *user);
    size_t n;
    const void *key = schema_key(b, set, 'V' + ((unsigned)form << 8), &n);
    if (!user || !key) return 0;
    *user = (value_user){set, form};
    bool fresh;
    schema_at(b, set, choice_keyword(set));
    return form_machine_of(b, key, n, build_value, user, &fresh);
}

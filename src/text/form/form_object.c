/* form_object.c: objects (form_schema.h): keys in the order of the schema, those that are not required may be left out. */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_schema.h"
#include "text/form/form_text.h"

/* ------------------------------------------------------------- what is said ---------------------------------------------- */

static json_object *declared(const schema_member *m) {
    json_object *properties = schema_get(m, "properties");
    return json_object_is_type(properties, json_type_object) ? properties : NULL;
}

/* What each member says of property `name`. */
static schema_set *property_value(form_build *b, const schema_set *leaf, const char *name) {
    schema_set *set = schema_set_new(b, leaf->doc);
    for (uint32_t i = 0; i < leaf->n && set && !form_failed(&b->work); i++) {
        const schema_member *m = &leaf->members[i];
        json_object *value;
        if (declared(m) && json_object_object_get_ex(declared(m), name, &value))
            schema_set_add(b, set, value, form_print(&b->work, "%s/properties/%s", m->path, name), FORM_NONE);
        else if (schema_has(m, "additionalProperties", &value))
            schema_set_add(b, set, value, form_print(&b->work, "%s/additionalProperties", m->path), FORM_NONE);
    }
    return set;
}

typedef struct names {
    form_build *b;
    schema_properties *out;
    size_t cap;
    form_table table;
} names;

static bool same_name(const void *user, uint32_t item, const void *key) {
    const names *s = user;
    return strcmp(s->out->items[item].name, key) == 0;
}

static void add_name(names *s, const char *name, bool required) {
    const uint64_t hash = form_hash(name, strlen(name));
    const uint32_t found = form_table_find(&s->table, hash, same_name, s, name);
    if (found != FORM_NONE) {
        s->out->items[found].required |= required;
        return;
    }
    if (s->out->n == s->cap) { /* the old ones stay with the compilation's memory */
        const size_t cap = s->cap ? 2 * s->cap : 16;
        schema_property *items = form_alloc(&s->b->work, cap * sizeof *items);
        if (!items) return;
        if (s->out->n) memcpy(items, s->out->items, s->out->n * sizeof *items);
        s->out->items = items;
        s->cap = cap;
    }
    s->out->items[s->out->n] = (schema_property){.name = name, .n_name = strlen(name), .required = required};
    form_table_add(&s->b->work, &s->table, hash, (uint32_t)s->out->n++);
}

/* Others beside those that are named: where some schema has properties they are written only if asked for, since it is what nearly every
 * schema means; each additionalProperties holds of them. */
static void find_others(form_build *b, const schema_set *leaf, schema_properties *out) {
    bool asked = false, any_declared = false;
    schema_set *others = schema_set_new(b, leaf->doc);
    for (uint32_t i = 0; i < leaf->n && others; i++) {
        json_object *value;
        any_declared |= declared(&leaf->members[i]) != NULL;
        if (!schema_has(&leaf->members[i], "additionalProperties", &value)) continue;
        asked = true;
        schema_set_add(b, others, value, form_print(&b->work, "%s/additionalProperties", leaf->members[i].path), FORM_NONE);
    }
    out->closed = others && others->impossible;
    out->others = !out->closed && (asked || !any_declared) ? others : NULL;
}

void schema_properties_of(form_build *b, const schema_set *leaf, schema_properties *out) {
    *out = (schema_properties){0};
    names s = {.b = b, .out = out};
    for (uint32_t i = 0; i < leaf->n && !form_failed(&b->work); i++) {
        json_object *properties = declared(&leaf->members[i]);
        if (!properties) continue;
        json_object_object_foreach(properties, name, value) {
            (void)value;
            add_name(&s, name, false);
        }
    }
    for (uint32_t i = 0; i < leaf->n && !form_failed(&b->work); i++) {
        json_object *required = schema_get(&leaf->members[i], "required");
        if (!json_object_is_type(required, json_type_array)) continue;
        for (size_t k = 0; k < json_object_array_length(required) && !form_failed(&b->work); k++) {
            json_object *name = json_object_array_get_idx(required, k);
            if (json_object_is_type(name, json_type_string)) add_name(&s, json_object_get_string(name), true);
        }
    }
    form_table_free(&s.table);
    for (size_t i = 0; i < out->n && !form_failed(&b->work); i++) out->items[i].value = property_value(b, leaf, out->items[i].name);
    find_others(b, leaf, out);
    if (form_failed(&b->work)) *out = (schema_properties){0};
}

/* ------------------------------------------------------------- machines -------------------------------------------------- */

/* Keys that none of the names is. */
static void build_other_key(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const schema_set *leaf = user;
    schema_properties p;
    schema_properties_of(b, leaf, &p);
    form_dfa all = {0}, named = {0}, left = {0};
    nfa_part text = nfa_seq(n, nfa_text(n, "\""), nfa_star(n, json_code_points(n, 0, 0x10FFFF)));
    dfa_from_nfa(n, nfa_seq(n, text, nfa_text(n, "\"")), &all);
    nfa_part keys = nfa_nothing(n);
    for (size_t i = 0; i < p.n && !form_failed(&b->work); i++)
        keys = nfa_alt(n, keys, json_string_literal(n, p.items[i].name, p.items[i].n_name, false));
    dfa_from_nfa(n, keys, &named);
    dfa_combine(&b->work, &all, &named, DFA_WITHOUT, leaf->doc->in_call ? &left : out);
    form_dfa_free(&all);
    form_dfa_free(&named);
    if (!leaf->doc->in_call) return;
    form_dfa closing = {0};
    text_closing_dfa(n, &closing);
    dfa_combine(&b->work, &left, &closing, DFA_WITHOUT, out);
    form_dfa_free(&closing);
    form_dfa_free(&left);
}

static uint32_t other_key(form_build *b, const schema_set *leaf, const schema_properties *p) {
    if (!p->n) return json_any_machine(b, JSON_ANY_STRING, leaf->doc->in_call);
    size_t n;
    const void *key = schema_key(b, leaf, 'K', &n);
    bool fresh;
    schema_at(b, leaf, "additionalProperties");
    const uint32_t machine = form_machine_of(b, key, n, build_other_key, leaf, &fresh);
    if (fresh) b->machines[machine].wide = true;
    return machine;
}

/* "name": value, from one node to another. */
static void join_property(form_build *b, form_nfa *n, uint32_t from, nfa_part key, const schema_set *value, uint32_t to) {
    nfa_part p = nfa_seq(n, nfa_seq(n, key, nfa_text(n, ":")), json_space(b, n));
    p = nfa_seq(n, p, nfa_call(n, schema_machine(b, value, SCHEMA_JSON)));
    nfa_skip(n, from, p.from);
    nfa_skip(n, p.to, to);
}

/* A comma and white space, from one node to another. */
static void join_comma(form_build *b, form_nfa *n, uint32_t from, uint32_t to) {
    const nfa_part comma = nfa_seq(n, nfa_text(n, ","), json_space(b, n));
    nfa_skip(n, from, comma.from);
    nfa_skip(n, comma.to, to);
}

/* Two rows of nodes, one between any two properties: in the upper nothing was written yet, in the lower something was, so that a comma
 * comes first.  A property leads to the lower row; what may be left out is passed by in both. */
static void build_object(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const schema_set *leaf = user;
    schema_properties p;
    schema_properties_of(b, leaf, &p);
    schema_at(b, leaf, "properties");
    const nfa_part whole = nfa_nothing(n);
    const nfa_part open = nfa_seq(n, nfa_text(n, "{"), json_space(b, n));
    nfa_skip(n, whole.from, open.from);
    uint32_t none = open.to, some = nfa_node(n);
    for (size_t i = 0; i < p.n && !form_failed(&b->work); i++) {
        const uint32_t key = nfa_node(n), next_none = nfa_node(n), next_some = nfa_node(n);
        nfa_skip(n, none, key);
        if (i) join_comma(b, n, some, key);
        if (!p.items[i].required) {
            nfa_skip(n, none, next_none);
            nfa_skip(n, some, next_some);
        }
        if (!p.items[i].value->impossible)
            join_property(b, n, key, json_string_literal(n, p.items[i].name, p.items[i].n_name, leaf->doc->in_call), p.items[i].value,
                          next_some);
        none = next_none;
        some = next_some;
    }
    schema_at(b, leaf, "properties");
    if (p.others) {
        const uint32_t key = nfa_node(n);
        nfa_skip(n, none, key);
        join_comma(b, n, some, key);
        join_property(b, n, key, nfa_call(n, other_key(b, leaf, &p)), p.others, some);
    }
    const nfa_part space = json_space(b, n), close = nfa_text(n, "}");
    nfa_skip(n, none, close.from);
    nfa_skip(n, some, space.from);
    nfa_skip(n, space.to, close.from);
    nfa_skip(n, close.to, whole.to);
    schema_at(b, leaf, "properties");
    dfa_from_nfa(n, whole, out);
}

uint32_t schema_object(form_build *b, const schema_set *leaf) {
    if (!leaf->n) return json_any_machine(b, JSON_ANY_OBJECT, leaf->doc->in_call);
    size_t n;
    const void *key = schema_key(b, leaf, 'O', &n);
    bool fresh;
    schema_at(b, leaf, "properties");
    return form_machine_of(b, key, n, build_object, leaf, &fresh);
}

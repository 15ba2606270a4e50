/* form_array.c: arrays (form_schema.h): items that have their own schemas, then any number of others within bounds. */
#include "text/form/form_schema.h"

/* prefixItems, or, before draft 2020, an array as items. */
static json_object *own_items(const schema_member *m) {
    json_object *items = schema_get(m, "prefixItems");
    if (!items) items = schema_get(m, "items");
    return json_object_is_type(items, json_type_array) ? items : NULL;
}

size_t schema_prefix(const schema_set *leaf) {
    size_t most = 0;
    for (uint32_t i = 0; i < leaf->n; i++) {
        json_object *own = own_items(&leaf->members[i]);
        if (own && json_object_array_length(own) > most) most = json_object_array_length(own);
    }
    return most;
}

schema_set *schema_item(form_build *b, const schema_set *leaf, size_t i) {
    schema_set *set = schema_set_new(b, leaf->doc);
    for (uint32_t k = 0; k < leaf->n && set && !form_failed(&b->work); k++) {
        const schema_member *m = &leaf->members[k];
        json_object *own = own_items(m), *rest;
        if (own && i < json_object_array_length(own)) {
            const char *keyword = schema_get(m, "prefixItems") ? "prefixItems" : "items";
            schema_set_add(b, set, json_object_array_get_idx(own, i), form_print(&b->work, "%s/%s/%zu", m->path, keyword, i), FORM_NONE);
            continue;
        }
        const char *keyword = "items";
        if (!schema_has(m, keyword, &rest) || json_object_is_type(rest, json_type_array)) {
            keyword = "additionalItems"; /* it means nothing without an array as items */
            if (!json_object_is_type(schema_get(m, "items"), json_type_array) || !schema_has(m, keyword, &rest)) continue;
        }
        schema_set_add(b, set, rest, form_print(&b->work, "%s/%s", m->path, keyword), FORM_NONE);
    }
    return set && !set->impossible ? set : NULL;
}

typedef struct array_bounds {
    uint64_t least, most; /* items; FORM_MAX_COUNT: any number */
    size_t own;
} array_bounds;

static array_bounds bounds_of(form_build *b, const schema_set *leaf) {
    array_bounds a = {.least = schema_most(leaf, "minItems", 0), .most = schema_least(leaf, "maxItems", FORM_MAX_COUNT)};
    if (a.least > SCHEMA_MAX_ITEMS) a.least = 0; /* loosened, or form_schema_set.c has refused it */
    if (a.most > SCHEMA_MAX_ITEMS) a.most = FORM_MAX_COUNT;
    a.own = schema_prefix(leaf);
    for (size_t i = 0; i <= a.own && i < a.most && !form_failed(&b->work); i++)
        if (!schema_item(b, leaf, i)) a.most = i; /* an item that cannot be ends the array */
    if (a.own > a.most) a.own = (size_t)a.most;
    return a;
}

/* A guard, from one node to a new one; value 0 of MIN, or no bound at all: nothing is asked. */
static uint32_t join_guard(form_build *b, form_nfa *n, uint32_t from, form_guard_kind kind, uint64_t value) {
    if (kind == FORM_MIN ? value == 0 : value >= FORM_MAX_COUNT) return from;
    const uint32_t to = nfa_node(n), guard = form_guard_of(b, kind, value);
    nfa_join(n, from, guard, guard, to);
    return to;
}

static uint32_t join(form_nfa *n, uint32_t from, nfa_part part) {
    nfa_skip(n, from, part.from);
    return part.to;
}

/* Behind item number i, or before the first, stands node `at`: what closes the array there, and what leads to another item. */
static void build_array(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const schema_set *leaf = user;
    const array_bounds a = bounds_of(b, leaf);
    const nfa_part whole = nfa_nothing(n);
    const uint32_t close = nfa_node(n);
    schema_at(b, leaf, "items");
    uint32_t at = join(n, whole.from, nfa_seq(n, nfa_text(n, "["), json_space(b, n)));
    for (size_t i = 0; i < a.own && !form_failed(&b->work); i++) {
        if (i >= a.least) nfa_skip(n, i ? join(n, at, json_space(b, n)) : at, close);
        if (i) at = join(n, at, nfa_seq(n, nfa_text(n, ","), json_space(b, n)));
        at = join(n, at, nfa_call(n, schema_machine(b, schema_item(b, leaf, i), SCHEMA_JSON)));
    }
    const uint64_t least = a.least > a.own ? a.least - a.own : 0, most = a.most >= FORM_MAX_COUNT ? a.most : a.most - a.own;
    /* with the own items alone, it may end if no others are due */
    if (!least) nfa_skip(n, a.own ? join(n, at, json_space(b, n)) : at, close);
    if (most && least <= most) {
        /* without an upper bound, count no further than to the lower one: INC and MIN of the same value would end the array, so the
         * count goes on */
        const uint64_t limit = most < FORM_MAX_COUNT || !least ? most : FORM_MAX_COUNT - 1;
        const schema_set *item = schema_item(b, leaf, a.own);
        const uint32_t value = item ? schema_machine(b, item, SCHEMA_JSON) : 0, behind = nfa_node(n), element = nfa_node(n);
        uint32_t next = join_guard(b, n, at, FORM_INC, limit);
        if (a.own) next = join(n, next, nfa_seq(n, nfa_text(n, ","), json_space(b, n)));
        nfa_skip(n, next, element);
        nfa_skip(n, join(n, element, nfa_call(n, value)), behind);
        next = join_guard(b, n, behind, FORM_INC, limit);
        nfa_skip(n, join(n, next, nfa_seq(n, nfa_text(n, ","), json_space(b, n))), element);
        nfa_skip(n, join(n, join_guard(b, n, behind, FORM_MIN, least), json_space(b, n)), close);
    }
    nfa_skip(n, join(n, close, nfa_text(n, "]")), whole.to);
    schema_at(b, leaf, "items");
    dfa_from_nfa(n, whole, out);
}

uint32_t schema_array(form_build *b, const schema_set *leaf) {
    if (!leaf->n) return json_any_machine(b, JSON_ANY_ARRAY, leaf->doc->in_call);
    size_t n;
    const void *key = schema_key(b, leaf, 'A', &n);
    bool fresh;
    schema_at(b, leaf, "items");
    return form_machine_of(b, key, n, build_array, leaf, &fresh);
}

/* form_schema_facts.c: what a set of schemas says of a value (form_schema.h). */
#include <string.h>

#include "text/form/form_schema.h"
#include "text/template_value.h"

enum { MAX_NESTING = 32 /* of values that are compared with a schema */ };

json_object *schema_get(const schema_member *m, const char *keyword) { return value_get(m->schema, keyword); }
bool schema_has(const schema_member *m, const char *keyword, json_object **value) {
    return json_object_object_get_ex(m->schema, keyword, value);
}

bool schema_count(const schema_member *m, const char *keyword, uint64_t *value) {
    json_object *found = schema_get(m, keyword);
    if (!json_object_is_type(found, json_type_int) && !json_object_is_type(found, json_type_double)) return false;
    const double d = json_object_get_double(found);
    if (!(d >= 0)) return false;
    *value = d >= (double)FORM_MAX_COUNT ? (uint64_t)FORM_MAX_COUNT : (uint64_t)d;
    return true;
}

uint64_t schema_most(const schema_set *leaf, const char *keyword, uint64_t otherwise) {
    uint64_t most = otherwise, value;
    for (uint32_t i = 0; i < leaf->n; i++)
        if (schema_count(&leaf->members[i], keyword, &value) && value > most) most = value;
    return most;
}

uint64_t schema_least(const schema_set *leaf, const char *keyword, uint64_t otherwise) {
    uint64_t least = otherwise, value;
    for (uint32_t i = 0; i < leaf->n; i++)
        if (schema_count(&leaf->members[i], keyword, &value) && value < least) least = value;
    return least;
}

/* ------------------------------------------------------------- types ----------------------------------------------------- */

/* JSON schema's, and those of other languages that tool_set.c knows.  own: only JSON schema's.  0: no type. */
static unsigned type_named(json_object *name, bool own) {
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_FRACTION},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT},   {"bool", TYPE_BOOLEAN},
                 {"int", TYPE_INTEGER},   {"str", TYPE_STRING},      {"list", TYPE_ARRAY},      {"float", TYPE_INTEGER | TYPE_FRACTION},
                 {"dict", TYPE_OBJECT}};
    enum { OWN = 7 };
    for (size_t i = 0; i < (own ? OWN : sizeof names / sizeof *names); i++)
        if (value_is(name, names[i].name)) return names[i].types;
    return 0;
}

bool schema_is_type(json_object *name) { return type_named(name, true) != 0; }

static unsigned type_or_any(json_object *name) {
    const unsigned types = type_named(name, false);
    return types ? types : TYPE_ALL; /* form_schema_set.c has refused it, or it only loosens */
}

static unsigned type_of(json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: return TYPE_NULL;
    case json_type_boolean: return TYPE_BOOLEAN;
    case json_type_int: return TYPE_INTEGER;
    case json_type_double: { /* 1.0 is an integer */
        const double d = json_object_get_double(value);
        return d >= -9e15 && d <= 9e15 && d == (double)(int64_t)d ? TYPE_INTEGER : TYPE_FRACTION;
    }
    case json_type_string: return TYPE_STRING;
    case json_type_array: return TYPE_ARRAY;
    case json_type_object: return TYPE_OBJECT;
    }
    return 0;
}

static unsigned member_types(const schema_member *m) {
    json_object *type = schema_get(m, "type");
    if (!type) return TYPE_ALL;
    unsigned types = 0;
    if (json_object_is_type(type, json_type_array))
        for (size_t i = 0; i < json_object_array_length(type); i++) types |= type_or_any(json_object_array_get_idx(type, i));
    else
        types = type_or_any(type);
    return json_object_get_boolean(schema_get(m, "nullable")) ? types | TYPE_NULL : types;
}

/* A schema of properties or items that names no type is meant for objects or arrays (as tool_set.c reads it), although it holds of all
 * else too. */
static unsigned types_meant(const schema_set *leaf) {
    unsigned types = 0;
    json_object *ignored;
    for (uint32_t i = 0; i < leaf->n; i++) {
        const schema_member *m = &leaf->members[i];
        if (schema_has(m, "type", &ignored) || schema_has(m, "enum", &ignored) || schema_has(m, "const", &ignored)) return TYPE_ALL;
        if (schema_has(m, "properties", &ignored)) types |= TYPE_OBJECT;
        if (schema_has(m, "items", &ignored) || schema_has(m, "prefixItems", &ignored)) types |= TYPE_ARRAY;
    }
    return types ? types : TYPE_ALL;
}

unsigned schema_types(const schema_set *leaf) {
    unsigned types = types_meant(leaf);
    for (uint32_t i = 0; i < leaf->n; i++) types &= member_types(&leaf->members[i]);
    return types;
}

/* ------------------------------------------------------------- values ---------------------------------------------------- */

static bool is_number(json_object *value) { return type_of(value) & (TYPE_INTEGER | TYPE_FRACTION); }

static bool equal_values(json_object *a, json_object *b) {
    return is_number(a) && is_number(b) ? schema_numbers_equal(a, b) : json_object_equal(a, b) != 0;
}

/* The member's enum or const allows value, or it has neither. */
static bool among_values(const schema_member *m, json_object *value) {
    json_object *constant, *values;
    if (schema_has(m, "const", &constant) && !equal_values(constant, value)) return false;
    if (!schema_has(m, "enum", &values) || !json_object_is_type(values, json_type_array)) return true;
    for (size_t i = 0; i < json_object_array_length(values); i++)
        if (equal_values(json_object_array_get_idx(values, i), value)) return true;
    return false;
}

typedef struct question {
    json_object *value;
    unsigned depth;
    bool yes;
} question;

static bool admits(form_build *b, const schema_set *set, json_object *value, unsigned depth);

static bool admits_array(form_build *b, const schema_set *leaf, json_object *value, unsigned depth) {
    const size_t n = json_object_array_length(value);
    if (n < schema_most(leaf, "minItems", 0) || n > schema_least(leaf, "maxItems", FORM_MAX_COUNT)) return false;
    for (size_t i = 0; i < n && !form_failed(&b->work); i++) {
        const schema_set *item = schema_item(b, leaf, i);
        if (!item || !admits(b, item, json_object_array_get_idx(value, i), depth)) return false;
    }
    return true;
}

static bool admits_object(form_build *b, const schema_set *leaf, json_object *value, unsigned depth) {
    schema_properties p;
    schema_properties_of(b, leaf, &p);
    for (size_t i = 0; i < p.n; i++) {
        json_object *member;
        const bool there = json_object_object_get_ex(value, p.items[i].name, &member);
        if (there ? !admits(b, p.items[i].value, member, depth) : p.items[i].required) return false;
    }
    json_object_object_foreach(value, key, member) {
        bool declared = false;
        for (size_t i = 0; i < p.n; i++) declared |= strcmp(p.items[i].name, key) == 0;
        if (declared) continue;
        if (p.closed || (p.others && !admits(b, p.others, member, depth))) return false;
    }
    return true;
}

static void admits_leaf(form_build *b, const schema_set *leaf, void *user) {
    question *q = user;
    const unsigned type = type_of(q->value);
    if (q->yes || !(schema_types(leaf) & type)) return;
    for (uint32_t i = 0; i < leaf->n; i++)
        if (!among_values(&leaf->members[i], q->value)) return;
    if (is_number(q->value) && !schema_number_fits(b, leaf, q->value)) return;
    if (type == TYPE_STRING && !schema_string_fits(b, leaf, json_object_get_string(q->value), (size_t)json_object_get_string_len(q->value)))
        return;
    if (type == TYPE_ARRAY && !admits_array(b, leaf, q->value, q->depth + 1)) return;
    if (type == TYPE_OBJECT && !admits_object(b, leaf, q->value, q->depth + 1)) return;
    q->yes = true;
}

static bool admits(form_build *b, const schema_set *set, json_object *value, unsigned depth) {
    question q = {.value = value, .depth = depth};
    if (depth > MAX_NESTING) form_fail_limit(&b->work, "levels");
    if (form_spend(&b->work, 20)) schema_each_leaf(b, set, admits_leaf, &q);
    return q.yes;
}

bool schema_admits(form_build *b, const schema_set *set, json_object *value) { return admits(b, set, value, 0); }

/* Whether the leaf is only enum and type, which is the common case and costs nothing to ask. */
static bool is_plain(const schema_set *leaf) {
    json_object *ignored;
    for (uint32_t i = 0; i < leaf->n; i++) {
        static const char *const asks[] = {"minimum",          "maximum",   "exclusiveMinimum",
                                           "exclusiveMaximum", "minLength", "maxLength",
                                           "pattern",          "format",    "items",
                                           "prefixItems",      "minItems",  "maxItems",
                                           "properties",       "required",  "additionalProperties",
                                           "additionalItems"};
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++)
            if (schema_has(&leaf->members[i], asks[k], &ignored)) return false;
    }
    return true;
}

bool schema_each_value(form_build *b, const schema_set *leaf, void (*fn)(form_build *b, json_object *value, void *user), void *user) {
    json_object *values = NULL, *constant = NULL;
    bool found = false;
    for (uint32_t i = 0; i < leaf->n && !found; i++) {
        if (schema_has(&leaf->members[i], "const", &constant))
            values = NULL, found = true;
        else if (schema_has(&leaf->members[i], "enum", &values) && json_object_is_type(values, json_type_array))
            found = true;
    }
    if (!found) return false;
    const bool plain = is_plain(leaf);
    const size_t n = values ? json_object_array_length(values) : 1;
    for (size_t i = 0; i < n && form_spend(&b->work, 20); i++) {
        json_object *value = values ? json_object_array_get_idx(values, i) : constant;
        bool good = schema_types(leaf) & type_of(value);
        if (plain && leaf->n > 1)
            for (uint32_t k = 0; k < leaf->n; k++) good = good && among_values(&leaf->members[k], value);
        if (good && !plain) good = schema_admits(b, leaf, value);
        if (good) fn(b, value, user);
    }
    return true;
}

/* ------------------------------------------------------------- apart ----------------------------------------------------- */

static bool apart(form_build *b, const schema_set *x, const schema_set *y, unsigned depth);

typedef struct both {
    const schema_set *other;
    unsigned depth;
    bool apart;
} both;

static void apart_value(form_build *b, json_object *value, void *user) {
    both *p = user;
    p->apart = p->apart && !schema_admits(b, p->other, value);
}

static void apart_inner(form_build *b, const schema_set *y, void *user) {
    both *p = user;
    p->apart = p->apart && apart(b, p->other, y, p->depth);
}

static void apart_outer(form_build *b, const schema_set *x, void *user) {
    both *p = user;
    both inner = {.other = x, .depth = p->depth, .apart = true};
    if (p->apart) schema_each_leaf(b, p->other, apart_inner, &inner);
    p->apart = p->apart && inner.apart;
}

/* Nothing that is written for set x is valid for set y. */
static bool apart_sets(form_build *b, const schema_set *x, const schema_set *y, unsigned depth) {
    both p = {.other = y, .depth = depth, .apart = true};
    schema_each_leaf(b, x, apart_outer, &p);
    return p.apart;
}

static const schema_property *property_of(const schema_properties *p, const char *name) {
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->items[i].name, name) == 0) return &p->items[i];
    return NULL;
}

static bool apart_objects(form_build *b, const schema_set *x, const schema_set *y, unsigned depth) {
    schema_properties px, py;
    schema_properties_of(b, x, &px);
    schema_properties_of(b, y, &py);
    for (size_t i = 0; i < py.n; i++)
        if (py.items[i].required && !property_of(&px, py.items[i].name) && !px.others) return true;
    for (size_t i = 0; i < px.n && !form_failed(&b->work); i++) {
        const schema_property *here = &px.items[i], *there = property_of(&py, here->name);
        if (!here->required && !(there && there->required)) continue;
        if (!there && here->required && py.closed) return true;
        const schema_set *value = there ? there->value : py.others;
        if (value && apart_sets(b, here->value, value, depth + 1)) return true;
    }
    return false;
}

static bool apart(form_build *b, const schema_set *x, const schema_set *y, unsigned depth) {
    const unsigned common = schema_types(x) & schema_types(y);
    if (!common || y->impossible) return true;
    if (depth > 8 || !form_spend(&b->work, 50)) return false;
    both p = {.other = y, .apart = true};
    if (schema_each_value(b, x, apart_value, &p)) return p.apart;
    p = (both){.other = x, .apart = true};
    if (schema_each_value(b, y, apart_value, &p)) return p.apart;
    if (common & (TYPE_NULL | TYPE_BOOLEAN | TYPE_STRING | TYPE_ARRAY)) return false;
    if ((common & (TYPE_INTEGER | TYPE_FRACTION)) && !schema_numbers_apart(b, x, y)) return false;
    return !(common & TYPE_OBJECT) || apart_objects(b, x, y, depth);
}

bool schema_apart(form_build *b, const schema_set *a, const schema_set *b_set) { return apart(b, a, b_set, 0); }

/* form_schema_set.c: sets of schemas (form_schema.h): what belongs to one, and which keywords are understood. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/form/form_schema.h"
#include "text/template_value.h"

enum { VISIT_STEPS = 1500 /* so that about 20,000 schemas may be looked at */ };

void schema_refuse(form_build *b, const schema_doc *doc, const char *path, const char *keyword, const char *format, ...) {
    if (!doc->strict || form_failed(&b->work)) return;
    char message[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(message, sizeof message, format, ap);
    va_end(ap);
    form_fail(&b->work, CALLA_E_UNSUPPORTED, "%s: %s: %s: %s", doc->where, path, keyword, message);
}

void schema_at(form_build *b, const schema_set *set, const char *keyword) {
    b->work.where = set->doc->where;
    b->work.path = set->n ? set->members[0].path : "#";
    b->work.keyword = keyword;
}

schema_set *schema_set_new(form_build *b, const schema_doc *doc) {
    schema_set *set = form_alloc(&b->work, sizeof *set);
    if (!set) return NULL;
    set->doc = doc;
    set->n = set->chosen = 0;
    set->impossible = false;
    return set;
}

/* ------------------------------------------------------------- keywords -------------------------------------------------- */

typedef enum value_kind {
    ANNOTATION,
    ANYTHING,
    COUNT,
    NUMBER,
    STRING,
    STRINGS,
    SCHEMA,
    SCHEMAS,
    SCHEMA_MAP,
    VALUES,
    TYPES,
    ITEMS
} value_kind;

static const struct {
    const char *name;
    value_kind kind;
} keywords[] = {
    {"title", ANNOTATION},
    {"description", ANNOTATION},
    {"default", ANNOTATION},
    {"examples", ANNOTATION},
    {"example", ANNOTATION},
    {"$schema", ANNOTATION},
    {"$comment", ANNOTATION},
    {"deprecated", ANNOTATION},
    {"readOnly", ANNOTATION},
    {"writeOnly", ANNOTATION},
    {"$defs", ANNOTATION},
    {"definitions", ANNOTATION},
    {"$id", ANNOTATION},
    {"id", ANNOTATION},
    {"contentEncoding", ANNOTATION},
    {"contentMediaType", ANNOTATION},
    {"contentSchema", ANNOTATION},
    {"strict", ANNOTATION},
    {"nullable", ANYTHING},
    {"const", ANYTHING},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"pattern", STRING},
    {"format", STRING},
    {"$ref", STRING},
    {"required", STRINGS},
    {"additionalProperties", SCHEMA},
    {"additionalItems", SCHEMA},
    {"items", ITEMS},
    {"prefixItems", SCHEMAS},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"allOf", SCHEMAS},
    {"properties", SCHEMA_MAP},
    {"enum", VALUES},
    {"type", TYPES},
};

static bool is_schema(json_object *value) {
    return json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_boolean);
}

static bool all_of(json_object *list, bool (*is)(json_object *)) {
    if (!json_object_is_type(list, json_type_array)) return false;
    for (size_t i = 0; i < json_object_array_length(list); i++)
        if (!is(json_object_array_get_idx(list, i))) return false;
    return true;
}

static bool is_string(json_object *value) { return json_object_is_type(value, json_type_string); }

static bool is_number(json_object *value) {
    return json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
}

static bool is_map(json_object *value) {
    if (!json_object_is_type(value, json_type_object)) return false;
    json_object_object_foreach(value, key, schema) {
        (void)key;
        if (!is_schema(schema)) return false;
    }
    return true;
}

/* NULL, or what the value must be. */
static const char *wrong_value(value_kind kind, const char *keyword, json_object *value) {
    switch (kind) {
    case COUNT: return is_number(value) && json_object_get_double(value) >= 0 ? NULL : "must be a number of 0 or more";
    case NUMBER: return is_number(value) ? NULL : "must be a number";
    case STRING: return is_string(value) ? NULL : "must be a string";
    case STRINGS: return all_of(value, is_string) ? NULL : "must be an array of strings";
    case SCHEMA: return is_schema(value) ? NULL : "must be a schema";
    case SCHEMAS:
        if (!all_of(value, is_schema)) return "must be an array of schemas";
        return json_object_array_length(value) || strcmp(keyword, "prefixItems") == 0 ? NULL : "must not be empty";
    case SCHEMA_MAP: return is_map(value) ? NULL : "must be an object of schemas";
    case VALUES:
        if (!json_object_is_type(value, json_type_array) || !json_object_array_length(value)) return "must be an array that is not empty";
        return NULL;
    case TYPES:
        return is_string(value) || (all_of(value, is_string) && json_object_array_length(value)) ? NULL : "must be a type or several";
    case ITEMS: return is_schema(value) || all_of(value, is_schema) ? NULL : "must be a schema";
    case ANNOTATION:
    case ANYTHING: break;
    }
    return NULL;
}

static void check_keywords(form_build *b, const schema_doc *doc, json_object *schema, const char *path) {
    json_object_object_foreach(schema, key, value) {
        size_t i = 0;
        const size_t n = sizeof keywords / sizeof *keywords;
        while (i < n && strcmp(keywords[i].name, key) != 0) i++;
        if (i == n) {
            schema_refuse(b, doc, path, key, "this keyword is not supported: leave it out");
            continue;
        }
        const char *wrong = wrong_value(keywords[i].kind, key, value);
        if (wrong) schema_refuse(b, doc, path, key, "%s", wrong);
    }
    const schema_member m = {.schema = schema};
    static const char *const bounded[] = {"maxItems", "minItems"};
    for (size_t i = 0; i < 2; i++) {
        uint64_t count;
        if (!schema_count(&m, bounded[i], &count) || count <= SCHEMA_MAX_ITEMS) continue;
        if (!doc->strict) continue; /* loosened, see form_array.c */
        form_fail(&b->work, CALLA_E_LIMIT, "%s: %s: %s: may be at most %d", doc->where, path, bounded[i], SCHEMA_MAX_ITEMS);
    }
    json_object *type = schema_get(&m, "type");
    const bool list = json_object_is_type(type, json_type_array);
    for (size_t i = 0; i < (list ? json_object_array_length(type) : is_string(type)); i++) {
        json_object *name = list ? json_object_array_get_idx(type, i) : type;
        if (is_string(name) && !schema_is_type(name))
            schema_refuse(b, doc, path, "type", "\"%.60s\" is no type: string, number, integer, boolean, null, array and object are",
                          json_object_get_string(name));
    }
    json_object *format = schema_get(&m, "format");
    if (is_string(format) && !schema_format(json_object_get_string(format)))
        schema_refuse(b, doc, path, "format", "\"%.60s\" is not supported: date, date-time, uuid and email are",
                      json_object_get_string(format));
    json_object *values = schema_get(&m, "enum");
    if (json_object_is_type(values, json_type_array) && json_object_array_length(values) > SCHEMA_MAX_VALUES)
        form_fail(&b->work, CALLA_E_LIMIT, "%s: %s: enum: may have at most %d values", doc->where, path, SCHEMA_MAX_VALUES);
}

/* ------------------------------------------------------------- references ------------------------------------------------ */

/* One step of a JSON pointer, with ~0, ~1 and %XX undone; returns where the next begins. */
static const char *read_step(const char *p, char *out, size_t size) {
    size_t n = 0;
    while (*p && *p != '/') {
        char c = *p++;
        if (c == '%') {
            const char hex[3] = {p[0], p[0] ? p[1] : 0, 0};
            char *end;
            const long value = strtol(hex, &end, 16);
            if (end == hex + 2) {
                c = (char)value;
                p += 2;
            }
        }
        if (c == '~' && (*p == '0' || *p == '1')) c = *p++ == '0' ? '~' : '/';
        if (n + 1 < size) out[n++] = c;
    }
    out[n] = 0;
    return p;
}

static json_object *resolve(json_object *root, const char *reference) {
    if (*reference != '#' || (reference[1] && reference[1] != '/')) return NULL;
    json_object *at = root;
    for (const char *p = reference + 1; *p == '/' && at;) {
        char step[1024];
        p = read_step(p + 1, step, sizeof step);
        if (json_object_is_type(at, json_type_array)) {
            char *end;
            const unsigned long i = strtoul(step, &end, 10);
            at = *step && !*end ? json_object_array_get_idx(at, i) : NULL;
        } else {
            at = value_get(at, step);
        }
    }
    return is_schema(at) ? at : NULL;
}

/* ------------------------------------------------------------- sets ------------------------------------------------------ */

static bool comes_from_itself(const schema_set *set, json_object *schema, uint32_t from) {
    for (; from != FORM_NONE; from = set->members[from].from)
        if (set->members[from].schema == schema) return true;
    return false;
}

static bool has_member(const schema_set *set, json_object *schema) {
    for (uint32_t i = 0; i < set->n; i++)
        if (set->members[i].schema == schema) return true;
    return false;
}

void schema_set_add(form_build *b, schema_set *set, json_object *schema, const char *path, uint32_t from) {
    if (!set || !path || form_failed(&b->work)) return;
    b->work.where = set->doc->where;
    b->work.path = path;
    b->work.keyword = NULL;
    if (!form_spend(&b->work, VISIT_STEPS)) return;
    if (json_object_is_type(schema, json_type_boolean)) {
        set->impossible |= !json_object_get_boolean(schema);
        return;
    }
    if (!json_object_is_type(schema, json_type_object)) {
        schema_refuse(b, set->doc, path, "schema", "must be an object or a boolean");
        return;
    }
    if (comes_from_itself(set, schema, from)) {
        schema_refuse(b, set->doc, path, "$ref", "refers to itself, and nothing lies between");
        return;
    }
    if (has_member(set, schema)) return;
    if (set->n == SCHEMA_MAX_MEMBERS) {
        form_fail_limit(&b->work, "schemas that hold of one value");
        return;
    }
    const uint32_t member = set->n++;
    set->members[member] = (schema_member){schema, path, from};
    check_keywords(b, set->doc, schema, path);
    json_object *reference = schema_get(&set->members[member], "$ref");
    if (is_string(reference)) {
        const char *pointer = json_object_get_string(reference);
        json_object *target = resolve(set->doc->root, pointer);
        if (target)
            schema_set_add(b, set, target, form_print(&b->work, "%s", pointer), member);
        else
            schema_refuse(b, set->doc, path, "$ref", "\"%.100s\" is not a schema in this document", pointer);
    }
    json_object *all = schema_get(&set->members[member], "allOf");
    if (!json_object_is_type(all, json_type_array)) return;
    for (size_t i = 0; i < json_object_array_length(all) && !form_failed(&b->work); i++)
        schema_set_add(b, set, json_object_array_get_idx(all, i), form_print(&b->work, "%s/allOf/%zu", path, i), member);
}

static json_object *alternatives(const schema_set *set, uint32_t position) {
    json_object *list = schema_get(&set->members[position / 2], position % 2 ? "oneOf" : "anyOf");
    return json_object_is_type(list, json_type_array) && json_object_array_length(list) ? list : NULL;
}

bool schema_has_alternatives(const schema_set *set) {
    for (uint32_t i = set->chosen; i < 2 * set->n; i++)
        if (alternatives(set, i)) return true;
    return false;
}

typedef struct leaves {
    const schema_set **items;
    size_t n, cap;
} leaves;

static void each_leaf_from(form_build *b, const schema_set *set, uint32_t position, schema_leaf_fn fn, void *user);

/* set with one branch of its alternatives at position. */
static schema_set *with_branch(form_build *b, const schema_set *set, uint32_t position, size_t i) {
    schema_set *branch = form_alloc(&b->work, sizeof *branch);
    if (!branch) return NULL;
    *branch = *set;
    branch->chosen = position + 1;
    const char *path = form_print(&b->work, "%s/%s/%zu", set->members[position / 2].path, position % 2 ? "oneOf" : "anyOf", i);
    schema_set_add(b, branch, json_object_array_get_idx(alternatives(set, position), i), path, position / 2);
    return form_failed(&b->work) ? NULL : branch;
}

static void collect_leaf(form_build *b, const schema_set *leaf, void *user) {
    leaves *l = user;
    if (form_grow(&b->work, &l->items, &l->cap, l->n + 1, sizeof *l->items)) l->items[l->n++] = leaf;
}

/* oneOf is written as anyOf, which is the same only where no value is valid for two. */
static void check_apart(form_build *b, const schema_set *set, uint32_t position, const leaves *branches, size_t n) {
    for (size_t i = 0; i < n && !form_failed(&b->work); i++)
        for (size_t j = 0; j < n && !form_failed(&b->work); j++)
            for (size_t x = 0; x < branches[i].n && i != j; x++)
                for (size_t y = 0; y < branches[j].n && form_spend(&b->work, 50); y++) {
                    if (schema_apart(b, branches[i].items[x], branches[j].items[y])) continue;
                    schema_refuse(b, set->doc, set->members[position / 2].path, "oneOf",
                                  "one value could be valid for %zu and for %zu: use anyOf, or give each a property with another const", i,
                                  j);
                    return;
                }
}

static void each_leaf_from(form_build *b, const schema_set *set, uint32_t position, schema_leaf_fn fn, void *user) {
    while (position < 2 * set->n && !alternatives(set, position)) position++;
    if (form_failed(&b->work)) return;
    if (position >= 2 * set->n) {
        if (!set->impossible && schema_types(set)) fn(b, set, user);
        return;
    }
    const size_t n = json_object_array_length(alternatives(set, position));
    const bool one = position % 2 && set->doc->strict && n > 1;
    leaves *branches = one ? form_alloc(&b->work, n * sizeof *branches) : NULL;
    if (branches) memset(branches, 0, n * sizeof *branches);
    for (size_t i = 0; i < n && !form_failed(&b->work); i++) {
        const schema_set *branch = with_branch(b, set, position, i);
        if (!branch) break;
        if (branches) each_leaf_from(b, branch, position + 1, collect_leaf, &branches[i]);
        if (!branches) each_leaf_from(b, branch, position + 1, fn, user);
    }
    if (!branches) return;
    check_apart(b, set, position, branches, n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < branches[i].n && !form_failed(&b->work); j++) fn(b, branches[i].items[j], user);
        mem_free(branches[i].items);
    }
}

void schema_each_leaf(form_build *b, const schema_set *set, schema_leaf_fn fn, void *user) {
    each_leaf_from(b, set, set->chosen, fn, user);
}

static int by_address(const void *a, const void *b) {
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

const void *schema_key(form_build *b, const schema_set *set, unsigned tag, size_t *n) {
    uintptr_t *key = form_alloc(&b->work, (set->n + 2) * sizeof *key);
    *n = 0;
    if (!key) return NULL;
    key[0] = tag | (set->impossible ? 1u << 16 : 0) | (set->doc->in_call ? 1u << 17 : 0);
    key[1] = (uintptr_t)set->doc;
    for (uint32_t i = 0; i < set->n; i++) key[i + 2] = (uintptr_t)set->members[i].schema;
    qsort(key + 2, set->n, sizeof *key, by_address);
    *n = (set->n + 2) * sizeof *key;
    return key;
}

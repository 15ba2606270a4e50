/* tool_set.c: see tool_set.h.
 *
 * The model writes arguments as bare text, so that 42 may be a number or a string: only the schema knows.  Its types are collected
 * through anyOf, oneOf, allOf, enum, const and references within the schema, which is what client libraries generate; constraints
 * other than types are the client's to check. */
#include "text/tool_set.h"

#include <string.h>
#include <strings.h>

#include "text/template_value.h"

enum { TYPE_NULL = 1, TYPE_BOOLEAN = 2, TYPE_NUMBER = 4, TYPE_STRING = 8, TYPE_OBJECT = 16, TYPE_ARRAY = 32 };
enum { MAX_SCHEMA_STEPS = 1024 /* schemas looked at for one value: references may fan out */, MAX_KEY = 256 };

calla_status tool_set_open(tool_set *set, const char *tools_json, calla_error *err) {
    *set = (tool_set){0};
    if (!tools_json) return CALLA_OK;
    calla_status status = json_parse(tools_json, strlen(tools_json), "tools", &set->tools, err);
    if (status) return status;
    if (set->tools && !json_object_is_type(set->tools, json_type_array)) {
        tool_set_close(set);
        return error_set(err, CALLA_E_ARGUMENT, "tools: must be an array");
    }
    if (set->tools && json_object_array_length(set->tools) == 0) tool_set_close(set);
    return CALLA_OK;
}

void tool_set_close(tool_set *set) {
    json_object_put(set->tools);
    *set = (tool_set){0};
}

json_object *tool_set_function(const tool_set *set, size_t i, const char **name, size_t *n) {
    json_object *tool = json_object_array_get_idx(set->tools, i);
    json_object *function = value_get(tool, "function");
    if (!function) function = tool;
    json_object *value = value_get(function, "name");
    *name = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
    *n = *name ? (size_t)json_object_get_string_len(value) : 0;
    return function;
}

json_object *tool_set_find(const tool_set *set, const char *name, size_t n, bool *known) {
    *known = false;
    const size_t tools = set->tools ? json_object_array_length(set->tools) : 0;
    for (size_t i = 0; i < tools; i++) {
        const char *other;
        size_t n_other;
        json_object *function = tool_set_function(set, i, &other, &n_other);
        if (!other || n_other != n || memcmp(other, name, n) != 0) continue;
        *known = true;
        json_object *parameters = value_get(function, "parameters");
        return parameters ? parameters : value_get(function, "input_schema");
    }
    return NULL;
}

bool tool_set_has_prefix(const tool_set *set, const char *name, size_t n) {
    const size_t tools = set->tools ? json_object_array_length(set->tools) : 0;
    for (size_t i = 0; i < tools; i++) {
        const char *other;
        size_t n_other;
        tool_set_function(set, i, &other, &n_other);
        if (other && n_other >= n && memcmp(other, name, n) == 0) return true;
    }
    return false;
}

/* ------------------------------------------------------------- types ----------------------------------------------------- */

static unsigned type_named(json_object *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"null", TYPE_NULL},  {"boolean", TYPE_BOOLEAN}, {"bool", TYPE_BOOLEAN}, {"integer", TYPE_NUMBER},
                 {"int", TYPE_NUMBER}, {"number", TYPE_NUMBER},   {"float", TYPE_NUMBER}, {"string", TYPE_STRING},
                 {"str", TYPE_STRING}, {"object", TYPE_OBJECT},   {"dict", TYPE_OBJECT},  {"array", TYPE_ARRAY},
                 {"list", TYPE_ARRAY}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (value_is(name, types[i].name)) return types[i].type;
    return 0;
}

static unsigned type_of(json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null: return TYPE_NULL;
    case json_type_boolean: return TYPE_BOOLEAN;
    case json_type_double:
    case json_type_int: return TYPE_NUMBER;
    case json_type_string: return TYPE_STRING;
    case json_type_object: return TYPE_OBJECT;
    case json_type_array: return TYPE_ARRAY;
    }
    return 0;
}

/* "#/a/b" within root, or NULL. */
static json_object *resolve(json_object *root, json_object *reference) {
    if (!json_object_is_type(reference, json_type_string)) return NULL;
    const char *p = json_object_get_string(reference);
    if (*p++ != '#') return NULL;
    while (root && *p == '/') {
        p++;
        const char *end = p + strcspn(p, "/");
        char key[MAX_KEY];
        if ((size_t)(end - p) >= sizeof key) return NULL;
        memcpy(key, p, (size_t)(end - p));
        key[end - p] = 0;
        root = value_get(root, key);
        p = end;
    }
    return root;
}

static unsigned schema_types(json_object *root, json_object *schema, int *left);

static unsigned union_of(json_object *root, json_object *list, int *left, unsigned (*each)(json_object *, json_object *, int *)) {
    unsigned types = 0;
    if (!json_object_is_type(list, json_type_array)) return 0;
    for (size_t i = 0; i < json_object_array_length(list) && *left > 0; i++) types |= each(root, json_object_array_get_idx(list, i), left);
    return types;
}

static unsigned each_named(json_object *root, json_object *name, int *left) {
    (void)root;
    (void)left;
    return type_named(name);
}

static unsigned each_value(json_object *root, json_object *value, int *left) {
    (void)root;
    (void)left;
    return type_of(value);
}

/* The types that a schema admits; 0: nothing is known. */
static unsigned schema_types(json_object *root, json_object *schema, int *left) {
    if (--*left < 0 || !json_object_is_type(schema, json_type_object)) return 0;
    json_object *type = value_get(schema, "type"), *constant;
    unsigned types = json_object_is_type(type, json_type_array) ? union_of(root, type, left, each_named) : type_named(type);
    if (types) return json_object_get_boolean(value_get(schema, "nullable")) ? types | TYPE_NULL : types;
    types |= union_of(root, value_get(schema, "enum"), left, each_value);
    if (json_object_object_get_ex(schema, "const", &constant)) types |= type_of(constant);
    types |= schema_types(root, resolve(root, value_get(schema, "$ref")), left);
    types |= union_of(root, value_get(schema, "anyOf"), left, schema_types);
    types |= union_of(root, value_get(schema, "oneOf"), left, schema_types);
    types |= union_of(root, value_get(schema, "allOf"), left, schema_types);
    if (!types && value_has(schema, "properties")) types = TYPE_OBJECT;
    if (!types && value_has(schema, "items")) types = TYPE_ARRAY;
    return types;
}

/* ------------------------------------------------------------- values ---------------------------------------------------- */

static bool is_word(const char *text, size_t n, const char *word) { return n == strlen(word) && strncasecmp(text, word, n) == 0; }

static bool new_string(const char *text, size_t n, json_object **out) {
    *out = json_object_new_string_len(text, (int)n);
    return *out != NULL;
}

/* What is asked of the property `name`. */
typedef struct property {
    const char *name;
    bool known;
    unsigned types;
} property;

/* Looks for the property in a schema, and in all that holds with it or instead of it. */
static void find_property(json_object *root, json_object *schema, property *p, int *left) {
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    if (--*left < 0 || !json_object_is_type(schema, json_type_object)) return;
    json_object *own;
    if (json_object_object_get_ex(value_get(schema, "properties"), p->name, &own)) {
        p->known = true;
        p->types |= schema_types(root, own, left);
    }
    find_property(root, resolve(root, value_get(schema, "$ref")), p, left);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        json_object *list = value_get(schema, lists[i]);
        if (!json_object_is_type(list, json_type_array)) continue;
        for (size_t k = 0; k < json_object_array_length(list) && *left > 0; k++)
            find_property(root, json_object_array_get_idx(list, k), p, left);
    }
}

static property property_of(json_object *parameters, const char *name) {
    int left = MAX_SCHEMA_STEPS;
    property p = {.name = name};
    find_property(parameters, parameters, &p, &left);
    return p;
}

static unsigned types_of(json_object *parameters, const char *name) { return property_of(parameters, name).types; }

bool tool_has_parameter(json_object *parameters, const char *name) { return property_of(parameters, name).known; }

bool tool_value_may_wait(json_object *parameters, const char *name, const char *text, size_t n) {
    const unsigned types = types_of(parameters, name);
    if (types && !(types & TYPE_STRING)) return true;
    if (!(types & TYPE_NULL)) return false;
    size_t from = 0, to = n;
    while (from < n && strchr(" \t\r\n", text[from]) && text[from]) from++;
    while (to > from && strchr(" \t\r\n", text[to - 1]) && text[to - 1]) to--;
    const size_t word = to - from;
    return word < 4 ? to == n && strncasecmp(text + from, "null", word) == 0 : word == 4 && strncasecmp(text + from, "null", 4) == 0;
}

bool tool_value_is_text(json_object *parameters, const char *name) {
    const unsigned types = types_of(parameters, name);
    return types == 0 || (types & TYPE_STRING);
}

bool tool_value(json_object *parameters, const char *name, const char *text, size_t n, json_object **out) {
    const unsigned types = types_of(parameters, name);
    const char *s = text;
    size_t m = n;
    while (m && strchr(" \t\r\n", *s) && *s) s++, m--;
    while (m && strchr(" \t\r\n", s[m - 1]) && s[m - 1]) m--;
    *out = NULL;
    if (types == 0) return new_string(text, n, out);
    if ((types & TYPE_NULL) && is_word(s, m, "null")) return true;
    if (types & TYPE_STRING) return new_string(text, n, out);
    if (is_word(s, m, "null") || is_word(s, m, "none")) return true; /* wrong unless nullable, and for the client to refuse */
    if ((types & TYPE_BOOLEAN) && (is_word(s, m, "true") || is_word(s, m, "false"))) { /* also Python's True */
        *out = json_object_new_boolean(*s == 't' || *s == 'T');
        return *out != NULL;
    }
    calla_error err;
    const calla_status status = json_parse(s, m, name, out, &err);
    if (status == CALLA_E_NOMEM) return false;
    if (status == CALLA_OK && *out && !json_object_is_type(*out, json_type_string)) return true;
    json_object_put(*out);
    return new_string(text, n, out);
}

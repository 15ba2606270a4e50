/* form_schema.h: JSON schemas → machines.
 *
 * The unit is the set: schemas that all must hold of one value.  A schema's $ref and allOf only add to its set, a property of a set is
 * the set of that property in each member, and anyOf and oneOf give alternatives of sets: so one way serves merging, references with
 * siblings, and recursion, for equal sets are one machine. */
#ifndef CALLA_TEXT_FORM_FORM_SCHEMA_H
#define CALLA_TEXT_FORM_FORM_SCHEMA_H

#include "text/form/form_any.h"

enum { SCHEMA_MAX_MEMBERS = 64, SCHEMA_MAX_ITEMS = 65535, SCHEMA_MAX_LENGTH = 1 << 20, SCHEMA_MAX_VALUES = 16384 };

/* A document that references resolve in. */
typedef struct schema_doc {
    json_object *root;
    const char *where; /* "schema", "tools[0] (name)" */
    bool strict;       /* what is not understood fails; else it is left out */
    bool in_call;      /* values stand within the parameters of a tool call */
} schema_doc;

typedef struct schema_member {
    json_object *schema; /* an object */
    const char *path;    /* "#/properties/a" */
    uint32_t from;       /* the member whose $ref, allOf, anyOf or oneOf brought it in, or FORM_NONE */
} schema_member;

typedef struct schema_set {
    const schema_doc *doc;
    uint32_t n;
    uint32_t chosen; /* of the anyOf (2·member) and oneOf (2·member + 1) before here one branch was added already */
    bool impossible; /* false is among the schemas */
    schema_member members[SCHEMA_MAX_MEMBERS];
} schema_set;

typedef enum schema_type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, /* a number is an integer or a fraction */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
} schema_type;

/* How a value is written. */
typedef enum schema_form {
    SCHEMA_JSON,
    SCHEMA_PARAMETER, /* in a tool call: JSON that is no string */
    SCHEMA_TEXT       /* in a tool call: a string as bare text */
} schema_form;

/* ---- sets: form_schema_set.c ---- */

schema_set *schema_set_new(form_build *b, const schema_doc *doc);
/* Adds a schema and all that its $ref and allOf bring in. */
void schema_set_add(form_build *b, schema_set *set, json_object *schema, const char *path, uint32_t from);
/* Calls fn with each set that has one branch of every anyOf and oneOf, and is not impossible.  They live as long as b. */
typedef void (*schema_leaf_fn)(form_build *b, const schema_set *leaf, void *user);
void schema_each_leaf(form_build *b, const schema_set *set, schema_leaf_fn fn, void *user);
bool schema_has_alternatives(const schema_set *set);
/* The member's keyword is refused: fails if the document is strict. */
__attribute__((format(printf, 5, 6))) void schema_refuse(form_build *b, const schema_doc *doc, const char *path, const char *keyword,
                                                         const char *format, ...);
/* Bytes that are the same for equal sets: for form_machine_of. */
const void *schema_key(form_build *b, const schema_set *set, unsigned tag, size_t *n);
void schema_at(form_build *b, const schema_set *set, const char *keyword); /* what the messages name from here on */

/* ---- what a set says: form_schema_facts.c ---- */

unsigned schema_types(const schema_set *leaf);
bool schema_is_type(json_object *name);
json_object *schema_get(const schema_member *m, const char *keyword); /* NULL: not there, or null */
bool schema_has(const schema_member *m, const char *keyword, json_object **value);
/* A count such as maxItems of one member: true, and *value saturates. */
bool schema_count(const schema_member *m, const char *keyword, uint64_t *value);
/* The largest (or smallest) of the members'. */
uint64_t schema_most(const schema_set *leaf, const char *keyword, uint64_t otherwise);
uint64_t schema_least(const schema_set *leaf, const char *keyword, uint64_t otherwise);
/* The values that enum or const allow, of those that all else of the leaf admits: calls fn for each.  false: neither is there. */
bool schema_each_value(form_build *b, const schema_set *leaf, void (*fn)(form_build *b, json_object *value, void *user), void *user);
/* Whether value is valid, as far as calla understands the schema. */
bool schema_admits(form_build *b, const schema_set *set, json_object *value);
/* No value that is written for `a` is valid for `b_set`; in doubt false. */
bool schema_apart(form_build *b, const schema_set *a, const schema_set *b_set);

/* ---- machines: form_schema.c, and one file for each type ---- */

uint32_t schema_machine(form_build *b, const schema_set *set, schema_form form);
uint32_t schema_object(form_build *b, const schema_set *leaf);
uint32_t schema_array(form_build *b, const schema_set *leaf);
uint32_t schema_string(form_build *b, const schema_set *leaf, bool bare);
uint32_t schema_number(form_build *b, const schema_set *leaf, bool integer);

/* ---- objects: form_object.c ---- */

typedef struct schema_property {
    const char *name;
    size_t n_name;
    bool required;
    schema_set *value;
} schema_property;

typedef struct schema_properties {
    schema_property *items; /* [n], in the order in which they are written */
    size_t n;
    schema_set *others; /* of properties beside them; NULL: none is written */
    bool closed;        /* and none would be valid */
} schema_properties;

void schema_properties_of(form_build *b, const schema_set *leaf, schema_properties *out);

/* ---- arrays: form_array.c ---- */

/* What holds of item i; NULL: there is no such item.  i >= schema_prefix: of all the others. */
schema_set *schema_item(form_build *b, const schema_set *leaf, size_t i);
size_t schema_prefix(const schema_set *leaf); /* items that have their own schemas */

/* ---- numbers: form_number.c ---- */

bool schema_number_fits(form_build *b, const schema_set *leaf, json_object *value); /* within the bounds */
bool schema_numbers_apart(form_build *b, const schema_set *a, const schema_set *b_set);
/* A number's text in the one spelling of its value, to compare: 1.0 and 1. */
bool schema_numbers_equal(json_object *a, json_object *b);

/* ---- strings: form_string.c ---- */

const char *schema_format(const char *name); /* the expression of a format, NULL: not supported */
bool schema_string_fits(form_build *b, const schema_set *leaf, const char *s, size_t n);

#endif

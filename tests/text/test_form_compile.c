/* test_form_compile.c: what a form's program accepts and refuses, for every keyword, read by the reference of form_reference.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit.h"
#include "base/memory.h"
#include "form_reference.h"

static form_program *compile(const calla_form_options *o) {
    form_program *p = NULL;
    calla_error err = {0};
    if (form_program_compile(o, &p, &err)) fail_msg("%s: %s", o->source ? o->source : "form", err.message);
    assert_non_null(p);
    return p;
}

/* Finishes any beginning: what may be read next is chosen by a seed, until the answer may end and the seed says so; near the end of the
 * budget the least symbol that leads on.  No dead end may ever be met. */
static void walk(const form_program *p, unsigned seed, const char *what) {
    form_reference at = {0}, next = {0};
    reference_begin(&at, p, p->root);
    unsigned state = seed * 2654435761u + 1;
    for (int i = 0; i < 160; i++) {
        state = state * 1664525u + 1013904223u;
        if (reference_accepts(&at) && (state >> 28) == 0) break;
        uint32_t first = (state >> 8) % FORM_SYMBOLS, symbol = first;
        static const char likely[] = "\"}],:0a1{[ e";
        if (state >> 31) first = symbol = (unsigned char)likely[(state >> 8) % (sizeof likely - 1)];
        bool read = false;
        do {
            read = reference_step(&at, symbol, &next);
            symbol = (symbol + 1) % FORM_SYMBOLS;
        } while (!read && symbol != first);
        if (!read && !reference_accepts(&at)) fail_msg("%s: a dead end on walk %u behind %d symbols", what, seed, i);
        if (!read) break;
        const form_reference swap = at;
        at = next;
        next = swap;
    }
    reference_free(&at);
    reference_free(&next);
}

static void check_texts(const form_program *p, const char *what, const char *const *accepted, const char *const *refused) {
    for (; accepted && *accepted; accepted++)
        if (reference_try(p, *accepted, strlen(*accepted)) != 1) fail_msg("%s: does not accept %s", what, *accepted);
    for (; refused && *refused; refused++)
        if (reference_try(p, *refused, strlen(*refused)) == 1) fail_msg("%s: accepts %s", what, *refused);
    for (unsigned seed = 0; seed < 6; seed++) walk(p, seed, what);
}

#define TEXTS(...)                                                                                                                         \
    (const char *const[]) { __VA_ARGS__, NULL }

static void test_json_object(void **state) {
    (void)state;
    form_program *p = compile(&(calla_form_options){.kind = CALLA_FORM_JSON_OBJECT});
    check_texts(p, "any object",
                TEXTS("{}", "{\"a\":1}", "{\"a\": [1, 2.5, -3e-7, \"x\\u00e9\\n\\ud83d\\ude00\", null, true, false, {}, []]}",
                      "{\n  \"a\": {\n    \"b\": []\n  }\n}", "{\"\xF0\x9F\x98\x80\":\"\xC3\xA9\"}", "{ }"),
                TEXTS("[]", "1", "", "{", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\\u0000\"}", "{\"a\":\"\\ud800\"}", "{\"a\":1e999}",
                      "{\"a\":\"\x80\"}", "{\"a\":\"\t\"}", "{}\n\n", "{\"a\":nul}", "{\"a\":12345678901234567890}"));
    form_program_free(p);
}

/* ------------------------------------------------------------- schemas --------------------------------------------------- */

typedef struct schema_case {
    const char *schema;
    const char *accepted[10], *refused[14];
} schema_case;

static void check_schema(const schema_case *c) {
    form_program *p = compile(
        &(calla_form_options){.kind = CALLA_FORM_JSON_SCHEMA, .source = c->schema, .n_source = strlen(c->schema), .strict_schema = true});
    check_texts(p, c->schema, c->accepted, c->refused);
    form_program_free(p);
}

static void check_cases(const schema_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) check_schema(&cases[i]);
}
#define CHECK(cases) check_cases(cases, sizeof(cases) / sizeof *(cases))

static void test_types(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{}", {"1", "\"a\"", "null", "{\"a\":[]}", "[1,{}]", "true"}, {"", "nul", "tru", "01"}},
        {"true", {"1", "{}"}, {""}},
        {"{\"type\":\"null\"}", {"null"}, {"0", "\"null\"", ""}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "True", "1"}},
        {"{\"type\":\"string\"}", {"\"\"", "\"a\\u0041\\ud83d\\ude00\""}, {"1", "\"", "\"\\u0000\"", "\"\\udc00\"", "\"\n\""}},
        {"{\"type\":\"integer\"}", {"0", "-1", "123456789012345678"}, {"-0", "1.0", "1e3", "1234567890123456789", "01", "-", "+1"}},
        {"{\"type\":\"number\"}", {"0", "-0.5", "1e-7", "1.5E+300", "12.25"}, {"1e999", "1.", ".5", "12e3", "0x1", "1e308"}},
        {"{\"type\":[\"string\",\"null\"]}", {"null", "\"a\""}, {"1", "{}", "nul"}},
        {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"a\""}, {"1"}},
        {"{\"type\":\"array\"}", {"[]", "[1, \"a\", []]", "[\n  1\n]"}, {"{}", "[1,]", "[,1]", "[1 2]", "["}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\": 1}"}, {"[]", "{\"a\"}"}},
        {"{\"type\":\"string\",\"title\":\"t\",\"description\":\"d\",\"default\":1,\"examples\":[2],\"$schema\":\"s\",\"$comment\":\"c\","
         "\"deprecated\":true,\"readOnly\":true,\"writeOnly\":false,\"$id\":\"i\"}",
         {"\"a\""},
         {"1"}},
    };
    CHECK(cases);
}

static void test_objects(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
         {"{\"a\":1}", "{\"a\":1,\"b\":\"x\"}", "{ \"a\": 1, \"b\": \"x\" }", "{\n\t\"a\": 1\n}"},
         {"{}", "{\"b\":\"x\"}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"c\":1}", "{\"a\":1,}", "{\"a\":\"1\"}", "{\"a\":1\"b\":\"x\"}",
          "{\"a\":1,\"a\":1}", "{,\"a\":1}"}},
        {"{\"properties\":{\"a\":{},\"ab\":{},\"b\":{}}}",
         {"{}", "{\"a\":1}", "{\"ab\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"a\":1,\"ab\":2,\"b\":3}"},
         {"{\"b\":1,\"a\":1}", "{\"c\":1}", "1"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{}", "{\"a\":null}", "{\"b\":1}", "{\"a\":null,\"b\":1,\"aa\":2}", "{\"\":1}"},
         {"{\"a\":1}", "{\"b\":null}", "{\"b\":1,\"a\":null}", "{\"\\u0061\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":true}",
         {"{\"b\":1}", "{\"a\":{},\"c\":[]}"},
         {"{\"a\"}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", {"{\"x\":1}", "{\"x\":null,\"y\":2}"}, {"{}", "{\"y\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":{\"type\":\"integer\"}}}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}", "{\"a\":1,\"b\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\\\"\\n/\xC3\xA9\":{\"const\":1}},\"required\":[\"a\\\"\\n/\xC3\xA9\"]}",
         {"{\"a\\\"\\n/\xC3\xA9\":1}"},
         {"{}"}},
    };
    CHECK(cases);
}

static void test_arrays(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", {"[]", "[1]", "[1,2, 3]", "[ ]"}, {"[\"a\"]", "[1,]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}", {"[1,2]", "[1,2,3,4]"}, {"[]", "[1]", "[1\n]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":2}", {"[]", "[1]", "[1,2]"}, {"[1,2,3]", "[1,2,"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", {"[1,2]", "[1,2,3]"}, {"[1]", "[1,2,3,4]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
         {"[]", "[1]", "[1,\"a\"]"},
         {"[\"a\"]", "[1,\"a\",2]", "[1,2]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,null]", "[1,null,null]"},
         {"[1]", "[1,null,null,null]", "[1,1]", "[null,null]"}},
        {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"additionalItems\":false,\"minItems\":2,\"maxItems\":"
         "2}",
         {"[1,null]", "[ 1, null ]"},
         {"[1]", "[1,null,1]", "[]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"minItems\":1}", {"[1]", "[1,{},\"x\"]"}, {"[]", "[\"x\"]"}},
        {"{\"items\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1},\"minItems\":1}",
         {"[[true]]", "[[true],[false,true]]"},
         {"[]", "[[]]", "[[true],[]]"}},
        {"{\"type\":\"array\",\"items\":{},\"minItems\":65535}", {NULL}, {"[]", "[1,2]"}},
    };
    CHECK(cases);
}

static void test_numbers(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}", {"0", "1", "42", "99", "100"}, {"-1", "101", "1000", "00", "1.0", "-0"}},
        {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":7}",
         {"-12", "-1", "-9", "-10", "0", "7"},
         {"-13", "8", "10", "-20", "-100", "-0"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":5,\"exclusiveMaximum\":8}", {"6", "7"}, {"5", "8", "60", "0"}},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         {"0", "9007199254740991", "-9007199254740991"},
         {"9007199254740992", "-9007199254740992", "10000000000000000"}},
        {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", {"2", "3"}, {"1", "4"}},
        {"{\"type\":\"number\",\"minimum\":0.1,\"maximum\":2.25}",
         {"0.1", "0.10", "1", "2", "2.25", "2.250", "0.100001", "2.2"},
         {"0.09", "0", "2.251", "2.3", "3", "0.0999", "10"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", {"0.0001", "1", "99999"}, {"0", "0.0", "-1", "-0.5"}},
        {"{\"type\":\"number\",\"exclusiveMaximum\":0}", {"-0.0001", "-1"}, {"0", "-0.0", "1", "-0"}},
        {"{\"type\":\"number\",\"minimum\":1e2,\"maximum\":1.5e2}", {"100", "150", "149.9"}, {"99", "151"}},
        {"{\"type\":\"number\",\"maximum\":-2.5}", {"-2.5", "-3", "-2.50", "-1000"}, {"-2.4", "0", "-2", "2.5"}},
        {"{\"type\":\"number\",\"minimum\":1e300}", {NULL}, {NULL}},
        {"{\"minimum\":10,\"type\":\"integer\",\"allOf\":[{\"maximum\":12},{\"minimum\":11}]}", {"11", "12"}, {"10", "13"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].accepted[0]) check_schema(&cases[i]);
}

static void test_strings(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xF0\x9F\x98\x80\"", "\"\\ud83d\\ude00\\n\"", "\"\\\\\\\"\\/\""},
         {"\"a\"", "\"abcd\"", "\"\"", "\"\\n\""}},
        {"{\"type\":\"string\",\"minLength\":1}", {"\"a\"", "\"aaaaaaaaaaaaaaaaaaaaaaa\""}, {"\"\""}},
        {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
        {"{\"type\":\"string\",\"maxLength\":1000000000}", {"\"\"", "\"a\""}, {"1"}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\\d{2}$\"}",
         {"\"a12\"", "\"abc00\""},
         {"\"a1\"", "\"d12\"", "\"a123\"", "\"xa12\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\"", "\"\\nb\"", "\"\\\"b\""}, {"\"a\"", "\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\S+\\\\n\\\"$\"}", {"\"a\\n\\\"\""}, {"\"a\"", "\"\\n\\\"\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]*$\",\"minLength\":2,\"maxLength\":4}",
         {"\"ab\"", "\"abcd\""},
         {"\"a\"", "\"abcde\"", "\"AB\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]{2,4}$\",\"maxLength\":100}", {"\"ab\"", "\"abcd\""}, {"\"a\"", "\"abcde\""}},
        {"{\"allOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"pattern\":\"z$\"}]}",
         {"\"az\"", "\"abcz\""},
         {"\"a\"", "\"z\"", "\"ba z\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"2023-04-30\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"", "\"2023-00-01\"", "\"2023-1-1\"", "\"2023-01-00\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}",
         {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.123+02:00\""},
         {"\"2024-02-29\"", "\"2024-02-29T24:00:00Z\"", "\"2024-01-01T00:00:00\"", "\"2024-01-01T00:00:60Z\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\"", "\"\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}",
         {"\"a@b.co\"", "\"a.b+c@x-y.example\""},
         {"\"a\"", "\"@b.co\"", "\"a@b\"", "\"a@.co\"", "\"a@b-.co\""}},
        {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":"
         "\"^(?:[A-Za-z0-9_'+\\\\-]+\\\\.)*[A-Za-z0-9_'+\\\\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\"}",
         {"\"a.b@example.org\""},
         {"\"a@b.c\"", "\"a@b\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}"
         "-"
         "[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000)$\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\"", "\"00000000-0000-0000-0000-000000000000\""},
         {"\"123e4567-e89b-02d3-a456-426614174000\""}},
    };
    CHECK(cases);
}

static void test_values(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"enum\":[\"a\",\"ab\",1,null,true,{\"k\":[1,2]}]}",
         {"\"a\"", "\"ab\"", "1", "null", "true", "{\"k\":[1,2]}", "{ \"k\": [1, 2] }"},
         {"\"abc\"", "false", "2", "{\"k\":[1]}", "\"\""}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
        {"{\"const\":\"x\\\"y\\n\"}", {"\"x\\\"y\\n\""}, {"\"x\"", "1"}},
        {"{\"const\":null}", {"null"}, {"0"}},
        {"{\"enum\":[1,2,3,4],\"minimum\":2,\"exclusiveMaximum\":4}", {"2", "3"}, {"1", "4"}},
        {"{\"enum\":[\"a1\",\"b\",\"c2\"],\"pattern\":\"\\\\d\"}", {"\"a1\"", "\"c2\""}, {"\"b\""}},
        {"{\"enum\":[{\"a\":1},{\"a\":\"x\"},{}],\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}",
         {"{\"a\":1}"},
         {"{\"a\":\"x\"}", "{}"}},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]},{\"enum\":[2.0,5]}]}", {"2"}, {"1", "3", "4", "5"}},
    };
    CHECK(cases);
}

static void test_combinations(void **state) {
    (void)state;
    static const schema_case cases[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1},{\"type\":\"null\"}]}",
         {"1", "\"a\"", "null"},
         {"\"ab\"", "true"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],"
         "\"anyOf\":[{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]},{\"properties\":{\"c\":{\"type\":\"null\"}}}]}",
         {"{\"a\":1,\"b\":null}", "{\"a\":1,\"c\":null}", "{\"a\":1}"},
         {"{\"b\":null}", "{\"a\":1,\"b\":null,\"c\":null}"}},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"x\"},\"v\":{\"type\":\"integer\"}},\"required\":[\"t\",\"v\"]"
         "},"
         "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"y\"},\"v\":{\"type\":\"string\"}},\"required\":[\"t\",\"v\"]}]}",
         {"{\"t\":\"x\",\"v\":1}", "{\"t\":\"y\",\"v\":\"s\"}"},
         {"{\"t\":\"x\",\"v\":\"s\"}", "{\"t\":\"z\",\"v\":1}"}},
        {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":4},{\"type\":\"integer\",\"minimum\":5},{\"type\":\"string\"}]}",
         {"4", "5", "\"\""},
         {"null"}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"integer\"},\"a\":{\"maximum\":3}}}]}",
         {"{\"a\":1}", "{\"a\":3,\"b\":9}"},
         {"{\"a\":4}", "{\"b\":1}"}},
        {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":"
         "[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}}}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
         {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
        {"{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
         {"{}", "{\"c\":[{\"c\":[]},{}]}"},
         {"{\"c\":[1]}"}},
        {"{\"definitions\":{\"a/b~c d\":{\"type\":\"integer\"}},\"$ref\":\"#/definitions/a~1b~0c%20d\",\"maximum\":3}", {"3", "-5"}, {"4"}},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/base\"}],\"properties\":{\"kid\":{\"$ref\":\"#\"}},\"$defs\":{\"base\":{\"type\":\"object\","
         "\"properties\":{\"id\":{\"type\":\"integer\"}},\"required\":[\"id\"]}}}",
         {"{\"id\":1}", "{\"kid\":{\"id\":2},\"id\":1}"},
         {"{\"kid\":{}}", "{}"}},
        {"{\"type\":\"object\",\"properties\":{\"list\":{\"type\":\"array\",\"items\":false},\"x\":{\"type\":\"array\",\"items\":{\"$ref\":"
         "\"#/$defs/never\"}}},"
         "\"$defs\":{\"never\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/never\"}},\"required\":[\"n\"]}}}",
         {"{\"list\":[]}", "{\"x\":[]}", "{\"list\":[],\"x\":[ ]}"},
         {"{\"list\":[1]}", "{\"x\":[{}]}"}},
    };
    CHECK(cases);
}

/* ------------------------------------------------------------- what is refused ------------------------------------------- */

static void check_error(const calla_form_options *o, calla_status status, const char *const *parts) {
    form_program *p = NULL;
    calla_error err = {0};
    const calla_status got = form_program_compile(o, &p, &err);
    if (got != status) fail_msg("%.300s: status %d, not %d: %s", o->source ? o->source : "tools", got, status, err.message);
    assert_null(p);
    for (; *parts; parts++)
        if (!strstr(err.message, *parts)) fail_msg("%.300s: no \"%s\" in: %s", o->source ? o->source : "tools", *parts, err.message);
}

static void test_unsupported(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        calla_status status;
        const char *parts[3];
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}", CALLA_E_UNSUPPORTED, {"schema: #/properties/a: not"}},
        {"{\"type\":\"array\",\"uniqueItems\":true}", CALLA_E_UNSUPPORTED, {"#: uniqueItems"}},
        {"{\"type\":\"array\",\"items\":{\"multipleOf\":2,\"type\":\"integer\"}}", CALLA_E_UNSUPPORTED, {"#/items: multipleOf"}},
        {"{\"patternProperties\":{}}", CALLA_E_UNSUPPORTED, {"patternProperties"}},
        {"{\"if\":{}}", CALLA_E_UNSUPPORTED, {"if"}},
        {"{\"type\":\"string\",\"format\":\"uri\"}", CALLA_E_UNSUPPORTED, {"#: format", "uri"}},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", CALLA_E_UNSUPPORTED, {"#: pattern", "looking ahead"}},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", CALLA_E_UNSUPPORTED, {"#: pattern", "malformed"}},
        {"{\"$ref\":\"#/$defs/x\"}", CALLA_E_UNSUPPORTED, {"#: $ref", "#/$defs/x"}},
        {"{\"$ref\":\"#\"}", CALLA_E_UNSUPPORTED, {"$ref", "itself"}},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", CALLA_E_UNSUPPORTED, {"$ref", "itself"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", CALLA_E_UNSUPPORTED, {"#: oneOf", "0 and for 1"}},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"const\":\"a\"}]}", CALLA_E_UNSUPPORTED, {"oneOf"}},
        {"{\"minLength\":\"1\"}", CALLA_E_UNSUPPORTED, {"minLength: must be a number"}},
        {"{\"anyOf\":[]}", CALLA_E_UNSUPPORTED, {"anyOf"}},
        {"{\"enum\":[]}", CALLA_E_UNSUPPORTED, {"enum"}},
        {"{\"properties\":[]}", CALLA_E_UNSUPPORTED, {"properties"}},
        {"[]", CALLA_E_UNSUPPORTED, {"object or a boolean"}},
        {"false", CALLA_E_ARGUMENT, {"schema: #: type: admits no answer"}},
        {"{\"type\":\"strng\"}", CALLA_E_UNSUPPORTED, {"#: type: \"strng\" is no type"}},
        {"{\"type\":[\"null\",\"int\"]}", CALLA_E_UNSUPPORTED, {"#: type: \"int\" is no type"}},
        {"{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}},\"required\":[\"n\"]}",
         CALLA_E_ARGUMENT,
         {"schema: #/properties/n: minimum: admits no answer"}},
        {"{\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":1},\"minItems\":1}",
         CALLA_E_ARGUMENT,
         {"schema: #/items: maxLength: admits no answer"}},
        {"{\"properties\":{\"a\":{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}},\"required\":[\"a\"]}",
         CALLA_E_ARGUMENT,
         {"schema: #/properties/a: type: admits no answer"}},
        {"{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", CALLA_E_ARGUMENT, {"admits no answer"}},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":1}", CALLA_E_ARGUMENT, {"admits no answer"}},
        {"{\"type\":\"array\",\"items\":false,\"minItems\":1}", CALLA_E_ARGUMENT, {"admits no answer"}},
        {"{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}", CALLA_E_ARGUMENT, {"nest without end"}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"additionalProperties\":false}]}",
         CALLA_E_ARGUMENT,
         {"admits no answer"}},
        {"{", CALLA_E_FORMAT, {"schema"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(
            &(calla_form_options){
                .kind = CALLA_FORM_JSON_SCHEMA, .source = cases[i].schema, .n_source = strlen(cases[i].schema), .strict_schema = true},
            cases[i].status, cases[i].parts);
    /* what is not strict only loosens */
    static const char *const loose[] = {"{\"type\":\"array\",\"uniqueItems\":true}",
                                        "{\"type\":\"string\",\"pattern\":\"(?=a)\"}",
                                        "{\"$ref\":\"#/$defs/x\"}",
                                        "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
                                        "{\"anyOf\":[]}",
                                        "{\"type\":\"array\",\"minItems\":1000000000}",
                                        "{\"type\":\"any\"}",
                                        "{\"not\":{\"type\":\"string\"}}"};
    for (size_t i = 0; i < sizeof loose / sizeof *loose; i++)
        form_program_free(compile(&(calla_form_options){.kind = CALLA_FORM_JSON_SCHEMA, .source = loose[i], .n_source = strlen(loose[i])}));
}

/* ------------------------------------------------------------- other kinds ----------------------------------------------- */

static void test_regex(void **state) {
    (void)state;
    static const struct {
        const char *expression;
        const char *accepted[6], *refused[6];
    } cases[] = {
        {"a|bc", {"a", "bc"}, {"", "ab", "abc", "b"}},
        {"[a-c]{2,3}x?", {"ab", "abc", "abx", "abcx"}, {"a", "abcd", "abxx"}},
        {"\\d+(?:\\.\\d+)?", {"1", "10.5"}, {"1.", ".5", ""}},
        {"^a.c$",
         {"abc",
          "a\xC3\xA9"
          "c",
          "a\xF0\x9F\x98\x80"
          "c"},
         {"a\nc", "ac",
          "a\xC3"
          "c"}},
        {"[^\\s\"]+", {"ab", "\xE2\x82\xAC"}, {"a b", "\"", ""}},
        {"(?<year>\\d{4})-\\x41\\u0042\\u{1F600}", {"2024-AB\xF0\x9F\x98\x80"}, {"2024-AB"}},
        {"(a*)*b", {"b", "aaab"}, {"a", "ba"}},
        {"(^a|b)c", {"ac", "bc"}, {"c"}},
        {"a$b|c", {"c"}, {"ab", "a"}},
        {"\\W\\D\\S", {"-ab"}, {"a-b", "-1b", "-a "}},
        {"x{2}y{0,}z{1}", {"xxz", "xxyyz"}, {"xz", "xxy"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        form_program *p = compile(
            &(calla_form_options){.kind = CALLA_FORM_REGEX, .source = cases[i].expression, .n_source = strlen(cases[i].expression)});
        check_texts(p, cases[i].expression, cases[i].accepted, cases[i].refused);
        form_program_free(p);
    }
    static const struct {
        const char *expression;
        calla_status status;
    } wrong[] = {{"(", CALLA_E_ARGUMENT},         {"a)", CALLA_E_ARGUMENT},          {"[", CALLA_E_ARGUMENT},
                 {"*", CALLA_E_ARGUMENT},         {"[b-a]", CALLA_E_ARGUMENT},       {"a{2,1}", CALLA_E_ARGUMENT},
                 {"\\", CALLA_E_ARGUMENT},        {"\\u{110000}", CALLA_E_ARGUMENT}, {"\\xg0", CALLA_E_ARGUMENT},
                 {"\xFF", CALLA_E_ARGUMENT},      {"(?!a)", CALLA_E_UNSUPPORTED},    {"(?<=a)", CALLA_E_UNSUPPORTED},
                 {"(a)\\1", CALLA_E_UNSUPPORTED}, {"\\bword", CALLA_E_UNSUPPORTED},  {"\\p{L}", CALLA_E_UNSUPPORTED},
                 {"(?i:a)", CALLA_E_UNSUPPORTED}, {"a^b", CALLA_E_ARGUMENT}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_error(&(calla_form_options){.kind = CALLA_FORM_REGEX, .source = wrong[i].expression, .n_source = strlen(wrong[i].expression)},
                    wrong[i].status, TEXTS("regular expression"));
}

static void test_choice(void **state) {
    (void)state;
    const char *source = "[\"yes\",\"no\",\"yesterday\",\"\xC3\xA9\"]";
    form_program *p = compile(&(calla_form_options){.kind = CALLA_FORM_CHOICE, .source = source, .n_source = strlen(source)});
    check_texts(p, source, TEXTS("yes", "no", "yesterday", "\xC3\xA9"), TEXTS("", "y", "yester", "yesno", "\"yes\""));
    form_program_free(p);
    static const char *const wrong[] = {"[]", "{}", "[1]", "\"a\""};
    for (size_t i = 0; i < 4; i++)
        check_error(&(calla_form_options){.kind = CALLA_FORM_CHOICE, .source = wrong[i], .n_source = strlen(wrong[i])}, CALLA_E_ARGUMENT,
                    TEXTS("choice"));
}

#define TOOLS                                                                                                                              \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"                          \
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"                                          \
    "\"unit\":{\"enum\":[\"c\",\"f\"]},\"where\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}},"                      \
    "\"short\":{\"type\":\"string\",\"maxLength\":2}},\"required\":[\"city\"]}}},"                                                         \
    "{\"type\":\"function\",\"function\":{\"name\":\"getAll\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]"
#define HEAD CALL_BEGIN "\n<function="
#define TAIL "</function>\n" CALL_END
#define CITY "<parameter=city>\nParis\n</parameter>\n"

static void test_tools(void **state) {
    (void)state;
    calla_form_options o = {.tools_json = TOOLS, .tool_choice = CALLA_TOOLS_REQUIRED};
    form_program *p = compile(&o);
    assert_true(p->owed);
    check_texts(p, "required",
                TEXTS(HEAD "get>\n" CITY TAIL, HEAD "getAll>\n" TAIL, HEAD "getAll>\n" TAIL "\n",
                      HEAD "get>\n" CITY TAIL "\n" HEAD "getAll>\n" TAIL, HEAD "get>\n<parameter=days>\n3\n</parameter>\n" CITY TAIL,
                      HEAD "get>\n" CITY "<parameter=unit>\nf\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\na\n<b>\n\n</parameter>\n" TAIL, HEAD "get>\n<parameter=city>\n\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=where>\n{\"s\": \"<\\/parameter>\"}\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=where>\n{\"s\":\"</parameter>\"}\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\n\xC3\xA9\xC3\xA9\n</parameter>\n" TAIL),
                TEXTS("", "text", HEAD "get>\n" TAIL, HEAD "put>\n" TAIL, HEAD "get>\n" CITY CITY TAIL,
                      HEAD "get>\n" CITY "<parameter=days>\n0\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=days>\n\"3\"\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=other>\n3\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=unit>\nk\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\n<parameter=days>\n\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=where>\n{\"s\":\"</parameter><parameter=a>\"}\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\nabc\n</parameter>\n" TAIL, HEAD "get>\n" CITY "</function>\n",
                      HEAD "get>\n" CITY TAIL "\n\n\n"));
    /* what a text may hold, and what ends it */
    check_texts(p, "texts",
                TEXTS(HEAD "get>\n<parameter=city>\na</parameter>b\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\n</parameter>\n x</parameter>\n</invoke>\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\nx <parameter=days>\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\n</function>\nx\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\n</tool_call>\n<tool_call>\n</parameter>\n" TAIL),
                TEXTS(HEAD "get>\n<parameter=city>\na\n</parameter>\n<b>\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\na\n</parameter>" CALL_END, HEAD "get>\n<parameter=city>\na\n</function>\n",
                      HEAD "get>\n<parameter=city>\na\n</parameter>\n<parameter=city>\nb\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\n\n\n\n\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\n</parameter>x\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\na" CALL_END "\n</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\na" CALL_BEGIN "\n</parameter>\n" TAIL));
    /* slips that tool_call.c mends */
    check_texts(p, "slips",
                TEXTS(CALL_BEGIN "<function=get>" CITY "</function>" CALL_END, CALL_BEGIN "\n\n<function=get>\n\n" CITY "\n" TAIL,
                      HEAD "get>\n<parameter=city>\nParis</parameter>\n" TAIL,
                      HEAD "get>\n<parameter=city>\nParis\n</parameter>\n</parameter>\n" TAIL, HEAD "get>\n<parameter=city>\nParis\n" TAIL,
                      HEAD "get>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=days>3</parameter>\n" TAIL, HEAD "get>\n" CITY "<parameter=days>\n3\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\na\n" TAIL),
                TEXTS(HEAD "get>\n<parameter=days>\n3\n" TAIL,
                      HEAD "get>\n<parameter=city>\nParis\n<parameter=city>\nx\n</parameter>\n" TAIL,
                      HEAD "get>\n" CITY "<parameter=short>\na</parameter>\n" TAIL));
    form_program_free(p);
    o.one_call = true;
    o.tool_choice = CALLA_TOOLS_NAMED;
    o.tool_name = "getAll";
    p = compile(&o);
    check_texts(p, "named", TEXTS(HEAD "getAll>\n" TAIL),
                TEXTS(HEAD "get>\n" CITY TAIL, HEAD "getAll>\n" TAIL "\n" HEAD "getAll>\n" TAIL, ""));
    form_program_free(p);
    o = (calla_form_options){.tools_json = TOOLS, .tool_choice = CALLA_TOOLS_AUTO};
    p = compile(&o);
    assert_false(p->owed);
    check_texts(p, "auto", TEXTS("", "text", "text " HEAD "getAll>\n" TAIL, "</function>"),
                TEXTS(HEAD "get>\n" TAIL, "a" HEAD "getAll>\n"));
    form_program_free(p);
    o.kind = CALLA_FORM_JSON_OBJECT;
    p = compile(&o);
    check_texts(p, "an object or a call", TEXTS("{}", "{\"a\":1}", HEAD "getAll>\n" TAIL), TEXTS("", "text", "{}" HEAD "getAll>\n" TAIL));
    form_program_free(p);
    o = (calla_form_options){.tools_json = TOOLS, .tool_choice = CALLA_TOOLS_NONE};
    p = compile(&o);
    check_texts(p, "none", TEXTS("", "text"), TEXTS(CALL_BEGIN));
    form_program_free(p);
    p = compile(&(calla_form_options){0});
    check_texts(p, "nothing", TEXTS("", "text", CALL_BEGIN, "a" CALL_BEGIN "b" CALL_BEGIN), NULL);
    form_program_free(p);
}

/* Which parameters of other names a tool may have. */
static void test_other_parameters(void **state) {
    (void)state;
#define A "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}"
#define NAMED(NAME, VALUE) HEAD "f>\n<parameter=" NAME ">\n" VALUE "\n</parameter>\n" TAIL
    static const struct {
        const char *parameters;
        bool others;
    } cases[] = {{"{}", true},
                 {"{\"type\":\"object\"}", true},
                 {"{" A "}", false},
                 {"{" A ",\"additionalProperties\":false}", false},
                 {"{" A ",\"additionalProperties\":{\"type\":\"integer\"}}", false}, /* it would be read as a string */
                 {"{" A ",\"additionalProperties\":true}", true},
                 {"{" A ",\"additionalProperties\":{}}", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tools[512];
        snprintf(tools, sizeof tools, "[{\"name\":\"f\",\"parameters\":%s}]", cases[i].parameters);
        form_program *p = compile(&(calla_form_options){.tool_choice = CALLA_TOOLS_REQUIRED, .tools_json = tools});
        const char *const other[] = {NAMED("b", "x\ny"), NAMED("aa", "1"),
                                     HEAD "f>\n<parameter=b>\n1\n</parameter>\n<parameter=c>\n1\n" TAIL, NULL};
        check_texts(p, tools, cases[i].others ? other : NULL, cases[i].others ? NULL : other);
        check_texts(p, tools, TEXTS(HEAD "f>\n" TAIL, NAMED("a", "1")), TEXTS(NAMED("b\n", "x"), NAMED("", "x")));
        if (strstr(tools, "integer")) check_texts(p, tools, NULL, TEXTS(NAMED("a", "x")));
        form_program_free(p);
    }
#undef A
#undef NAMED
}

static void test_tools_refused(void **state) {
    (void)state;
    check_error(&(calla_form_options){.tool_choice = CALLA_TOOLS_REQUIRED}, CALLA_E_ARGUMENT, TEXTS("tool_choice"));
    check_error(&(calla_form_options){.tool_choice = CALLA_TOOLS_NAMED, .tools_json = TOOLS, .tool_name = "x"}, CALLA_E_ARGUMENT,
                TEXTS("\"x\""));
    check_error(&(calla_form_options){.tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":"
                                                    "{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}}]"},
                CALLA_E_UNSUPPORTED, TEXTS("tools[0] (f): #/properties/a: not"));
    form_program *p = compile(&(calla_form_options){
        .tool_choice = CALLA_TOOLS_REQUIRED,
        .tools_json = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}},\"required\":[\"a\"]}}]"});
    check_texts(p, "not strict", TEXTS(HEAD "f>\n<parameter=a>\nx\n</parameter>\n" TAIL), TEXTS(HEAD "f>\n" TAIL));
    form_program_free(p);
    /* a required parameter that cannot be */
    check_error(&(calla_form_options){.tool_choice = CALLA_TOOLS_REQUIRED,
                                      .tools_json = "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":false},"
                                                    "\"required\":[\"a\"]}}]"},
                CALLA_E_ARGUMENT, TEXTS("admits no answer"));
}

/* ------------------------------------------------------------- budgets --------------------------------------------------- */

static void check_limit(const char *schema, const char *keyword) {
    check_error(&(calla_form_options){.kind = CALLA_FORM_JSON_SCHEMA, .source = schema, .n_source = strlen(schema), .strict_schema = true},
                CALLA_E_LIMIT, TEXTS(keyword, "#/properties/a"));
}

static void test_budgets(void **state) {
    (void)state;
#define IN_A(schema) "{\"type\":\"object\",\"properties\":{\"a\":" schema "}}"
    check_limit(IN_A("{\"type\":\"string\",\"pattern\":\"((a{1,1000}){1,1000}){1,1000}\"}"), "pattern");
    check_limit(IN_A("{\"type\":\"string\",\"pattern\":\"^(.*a.{30})$\"}"), "pattern");
    check_limit(IN_A("{\"type\":\"array\",\"maxItems\":1000000000}"), "maxItems");
    check_limit(IN_A("{\"type\":\"array\",\"minItems\":1000000000}"), "minItems");
    check_limit(IN_A("{\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":100000}"), "maxLength");
    const size_t size = 2 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    size_t n = (size_t)snprintf(text, size, "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[0");
    for (int i = 1; i < 100000; i++) n += (size_t)snprintf(text + n, size - n, ",%d", i);
    snprintf(text + n, size - n, "]}}}");
    check_limit(text, "enum");
    /* more required levels than an answer may nest */
    n = (size_t)snprintf(text, size, "%s", "{\"type\":\"integer\"}");
    for (int i = 0; i < 60; i++) {
        static const char open[] = "{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":";
        memmove(text + sizeof open - 1, text, n + 1);
        memcpy(text, open, sizeof open - 1);
        n += sizeof open - 1;
        n += (size_t)snprintf(text + n, size - n, "}}");
    }
    form_program *p = NULL;
    calla_error err;
    const calla_status status = form_program_compile(
        &(calla_form_options){.kind = CALLA_FORM_JSON_SCHEMA, .source = text, .n_source = n, .strict_schema = true}, &p, &err);
    assert_true(status == CALLA_OK || status == CALLA_E_FORMAT); /* json.h reads 128 levels */
    form_program_free(p);
    memset(text, '[', size); /* is not read to its end */
    check_error(&(calla_form_options){.kind = CALLA_FORM_JSON_SCHEMA, .source = text, .n_source = size}, CALLA_E_FORMAT,
                TEXTS("byte 128: nesting deeper"));
    free(text);
}

/* ------------------------------------------------------------- memory ---------------------------------------------------- */

static int fail_at(void *user, uint64_t number) {
    (void)number;
    uint64_t *left = user;
    return (*left)-- == 0;
}

/* Each allocation fails once: out of memory is reported, and nothing is lost (leaks are the sanitizer's to see). */
static void test_out_of_memory(void **state) {
    (void)state;
    const char *schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^x+$\",\"maxLength\":3},"
        "\"b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":2},\"c\":{\"oneOf\":[{\"const\":1},{\"const\":\"s\"}]},"
        "\"d\":{\"type\":\"string\",\"minLength\":1}},\"additionalProperties\":{\"type\":\"number\",\"minimum\":0.5}}";
    const calla_form_options o = {
        .kind = CALLA_FORM_JSON_SCHEMA, .source = schema, .n_source = strlen(schema), .strict_schema = true, .tools_json = TOOLS};
    uint64_t total = mem_allocations();
    form_program_free(compile(&o));
    total = mem_allocations() - total;
    for (uint64_t i = 0; i < total; i += 1 + i / 40) {
        uint64_t left = i;
        form_program *p = NULL;
        calla_error err = {0};
        mem_set_failure(fail_at, &left);
        const calla_status status = form_program_compile(&o, &p, &err);
        mem_set_failure(NULL, NULL);
        if (status != CALLA_E_NOMEM) fail_msg("allocation %llu of %llu: %s", (unsigned long long)i, (unsigned long long)total, err.message);
        assert_null(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_object),      cmocka_unit_test(test_types),
        cmocka_unit_test(test_objects),          cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_numbers),          cmocka_unit_test(test_strings),
        cmocka_unit_test(test_values),           cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_unsupported),      cmocka_unit_test(test_regex),
        cmocka_unit_test(test_choice),           cmocka_unit_test(test_tools),
        cmocka_unit_test(test_other_parameters), cmocka_unit_test(test_tools_refused),
        cmocka_unit_test(test_budgets),          cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_form_compile.c: what a form's program accepts and refuses, for every keyword, read by the reference of form_reference.h. */
#include <stdlib.h>
#include <string.h>

#include "form_reference.h"
#include "../unit.h"

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
    form_reference *r = reference_open(p, p->root);
    unsigned state = seed * 2654435761u + 1;
    for (int i = 0; i < 160; i++) {
        state = state * 1664525u + 1013904223u;
        if (reference_may_end(r) && (state >> 28) == 0) break;
        uint32_t first = (state >> 8) % FORM_SYMBOLS, symbol = first;
        static const char likely[] = "\"}],:0a1{[ e";
        if (state >> 31) first = symbol = (unsigned char)likely[(state >> 8) % (sizeof likely - 1)];
        bool read = false;
        do {
            read = reference_read(r, symbol);
            symbol = (symbol + 1) % FORM_SYMBOLS;
        } while (!read && symbol != first);
        if (!read && !reference_may_end(r)) fail_msg("%s: a dead end on walk %u behind %d symbols", what, seed, i);
        if (!read) break;
    }
    reference_close(r);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_json.c: the strict reader, the trees built from it, and how strings are written. */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

/* ------------------------------------------------------------- what is accepted ------------------------------------------ */

static const struct {
    const char *text;
    const char *error; /* NULL: accepted; else how the message begins */
} cases[] = {
    {"{}", NULL},
    {" [ ] ", NULL},
    {"null", NULL},
    {"\"\"", NULL},
    {"-0", NULL},
    {"1.5e-10", NULL},
    {"[1E+5,0.0,0e0]", NULL},
    {"9223372036854775807", NULL},
    {"-9223372036854775808", NULL},
    {"18446744073709551615", NULL},
    {"100000000000000000000.0", NULL},
    {"{\"a\":[{\"b\":{}},[[]]],\"c\":null}", NULL},
    {"\"\xC2\x80\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\x7F\"", NULL},
    {"\"\\u0000\\u001f\\uD83D\\uDE00\"", NULL},
    {"\"\\ud800\"", NULL},
    {"", "byte 0: the text ends where a value is expected"},
    {"  ", "byte 2: the text ends where a value is expected"},
    {"{} {}", "byte 3: more text after the end of the value"},
    {"[1,]", "byte 3: a value is expected, not ']'"},
    {"[,1]", "byte 1: a value or ']' is expected, not ','"},
    {"[1 2]", "byte 3: ',' or ']' is expected, not '2'"},
    {"[1", "byte 2: the text ends where ',' or ']' is expected"},
    {"[1}", "byte 2: ',' or ']' is expected, not '}'"},
    {"{\"a\":1,}", "byte 7: a key in quotes is expected, not '}'"},
    {"{,}", "byte 1: a key in quotes or '}' is expected, not ','"},
    {"{\"a\"}", "byte 4: ':' after the key is expected, not '}'"},
    {"{\"a\":}", "byte 5: a value is expected, not '}'"},
    {"{a:1}", "byte 1: a key in quotes or '}' is expected, not 'a'"},
    {"{'a':1}", "byte 1: a key in quotes or '}' is expected, not '''"},
    {"{\"a\\u0000b\":1}", "byte 1: a key with \\u0000"},
    {"NaN", "byte 0: a value is expected, not 'N'"},
    {"nan", "byte 0: a value is expected, not 'n'"},
    {"Infinity", "byte 0: a value is expected, not 'I'"},
    {"-Infinity", "byte 1: a digit is expected, not 'I'"},
    {"'a'", "byte 0: a value is expected, not '''"},
    {"// c\n1", "byte 0: a value is expected, not '/'"},
    {"tru", "byte 0: a value is expected, not 't'"},
    {"truex", "byte 4: more text after the end of the value"},
    {"01", "byte 0: a number with leading zeros"},
    {"-01", "byte 0: a number with leading zeros"},
    {"+1", "byte 0: a value is expected, not '+'"},
    {"1.", "byte 2: the text ends where a digit after the point is expected"},
    {".5", "byte 0: a value is expected, not '.'"},
    {"1e", "byte 2: the text ends where a digit of the exponent is expected"},
    {"1e+", "byte 3: the text ends where a digit of the exponent is expected"},
    {"0x10", "byte 1: more text"},
    {"-", "byte 1: the text ends where a digit is expected"},
    {"18446744073709551616", "byte 0: an integer outside 64 bits"},
    {"[0, -9223372036854775809]", "byte 4: an integer outside 64 bits"},
    {"100000000000000000000", "byte 0: an integer outside 64 bits"},
    {"\"abc", "byte 0: a string that does not end"},
    {"\"\\", "byte 1: an escape that is none of"},
    {"\"\\x41\"", "byte 1: an escape that is none of"},
    {"\"\\u12G4\"", "byte 1: an escape that is none of"},
    {"\"\\u123", "byte 1: an escape that is none of"},
    {"\"a\nb\"", "byte 2: a raw control character in a string: write it as \\u000a"},
    {"\"12345678\x1f\"", "byte 9: a raw control character in a string: write it as \\u001f"},
    {"\"\xFF\"", "byte 1: invalid UTF-8 (0xff)"},
    {"\"\xC0\x80\"", "byte 1: invalid UTF-8"},
    {"\"\xE0\x9F\xBF\"", "byte 1: invalid UTF-8"},
    {"\"\xED\xA0\x80\"", "byte 1: invalid UTF-8"},
    {"\"\xF4\x90\x80\x80\"", "byte 1: invalid UTF-8"},
    {"\"ab\xC3", "byte 3: invalid UTF-8"},
    {"\xEF\xBB\xBF{}", "byte 0: a value is expected, not the byte 0xef"},
    {"\x0C{}", "byte 0: a value is expected, not the byte 0x0c"},
};

static void accepts_and_refuses(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].text);
        char *exact = malloc(n + 1); /* sanitizers see a read past the end */
        assert_non_null(exact);
        memcpy(exact, cases[i].text, n);
        exact = realloc(exact, n ? n : 1);
        json_reader r;
        json_reader_init(&r, exact, n);
        json_token token;
        while ((token = json_next(&r)) != JSON_END && token != JSON_ERROR) {
        }
        if (!cases[i].error)
            assert_string_equal(r.error, "");
        else if (strncmp(r.error, cases[i].error, strlen(cases[i].error)) != 0)
            fail_msg("%s: got \"%s\"", cases[i].text, r.error);
        json_reader_free(&r);

        calla_error err = {0};
        json_object *tree = NULL;
        const calla_status status = json_parse(exact, n, "body", &tree, &err);
        assert_int_equal(status, cases[i].error ? CALLA_E_FORMAT : CALLA_OK);
        if (cases[i].error) {
            assert_null(tree);
            assert_memory_equal(err.message, "body: byte ", 11);
        }
        json_object_put(tree);
        free(exact);
    }
}

static void refuses_deep_nesting(void **state) {
    (void)state;
    char text[2 * JSON_MAX_DEPTH + 2];
    calla_error err = {0};
    json_object *tree;
    memset(text, '[', JSON_MAX_DEPTH);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    assert_int_equal(json_parse(text, 2 * JSON_MAX_DEPTH, "body", &tree, &err), CALLA_OK);
    json_object_put(tree);
    memset(text, '[', JSON_MAX_DEPTH + 1);
    memset(text + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
    assert_int_equal(json_parse(text, sizeof text, "body", &tree, &err), CALLA_E_FORMAT);
    assert_string_equal(err.message, "body: byte 128: nesting deeper than 128 levels");
}

/* A few megabytes must not become gigabytes of tree. */
static void refuses_too_many_values(void **state) {
    (void)state;
    const size_t n = 600000;
    char *text = mem_alloc(3 * n + 2);
    calla_error err = {0};
    json_object *tree;
    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 0; i < n; i++) memcpy(text + 1 + 3 * i, "[],", 3);
    memcpy(text + 3 * n, "]", 2);
    assert_int_equal(json_parse(text, 3 * n + 1, "body", &tree, &err), CALLA_E_FORMAT);
    assert_string_equal(err.message, "body: too many values");
    assert_null(tree);
    mem_free(text);
}

/* ------------------------------------------------------------- the reader ------------------------------------------------ */

static void expect_text(json_reader *r, json_token token, const char *text, size_t n) {
    assert_int_equal(json_next(r), token);
    assert_int_equal(r->n_text, n);
    assert_memory_equal(r->text, text, n);
}

static void returns_tokens_in_order(void **state) {
    (void)state;
    static const char text[] = "{\"plain\": \"in place\", \"e\\u00e9\": [1, -2.50, true, false, null, \"\\ud83d\\ude00\\n\"], \"o\": {}}";
    json_reader r;
    json_reader_init(&r, text, sizeof text - 1);
    assert_int_equal(json_next(&r), JSON_OBJECT_BEGIN);
    expect_text(&r, JSON_KEY, "plain", 5);
    assert_ptr_equal(r.text, text + 2); /* nothing escaped: no copy */
    expect_text(&r, JSON_STRING, "in place", 8);
    assert_ptr_equal(r.text, text + 11);
    expect_text(&r, JSON_KEY, "e\xC3\xA9", 3);
    assert_int_equal(json_next(&r), JSON_ARRAY_BEGIN);
    expect_text(&r, JSON_NUMBER, "1", 1);
    assert_true(r.is_integer && r.fits_signed && r.fits_unsigned && r.integer == 1 && r.unsigned_integer == 1);
    expect_text(&r, JSON_NUMBER, "-2.50", 5);
    assert_false(r.is_integer);
    assert_int_equal(json_next(&r), JSON_TRUE);
    assert_int_equal(json_next(&r), JSON_FALSE);
    assert_int_equal(json_next(&r), JSON_NULL);
    expect_text(&r, JSON_STRING, "\xF0\x9F\x98\x80\n", 5);
    assert_int_equal(json_next(&r), JSON_ARRAY_END);
    expect_text(&r, JSON_KEY, "o", 1);
    assert_int_equal(json_next(&r), JSON_OBJECT_BEGIN);
    assert_int_equal(json_next(&r), JSON_OBJECT_END);
    assert_int_equal(json_next(&r), JSON_OBJECT_END);
    assert_int_equal(json_next(&r), JSON_END);
    assert_int_equal(json_next(&r), JSON_END);
    json_reader_free(&r);
}

static void says_which_integers_fit(void **state) {
    (void)state;
    static const char text[] = "[-9223372036854775808, 9223372036854775807, 9223372036854775808, 18446744073709551615, -1]";
    json_reader r;
    json_reader_init(&r, text, sizeof text - 1);
    json_next(&r);
    assert_int_equal(json_next(&r), JSON_NUMBER);
    assert_true(r.fits_signed && !r.fits_unsigned && r.integer == INT64_MIN);
    json_next(&r);
    assert_true(r.fits_signed && r.fits_unsigned && r.integer == INT64_MAX);
    json_next(&r);
    assert_true(!r.fits_signed && r.fits_unsigned && r.unsigned_integer == (uint64_t)INT64_MAX + 1);
    json_next(&r);
    assert_true(!r.fits_signed && r.fits_unsigned && r.unsigned_integer == UINT64_MAX);
    json_next(&r);
    assert_true(r.fits_signed && !r.fits_unsigned && r.integer == -1);
    json_reader_free(&r);
}

static void lone_surrogates_become_replacement_characters(void **state) {
    (void)state;
    static const struct {
        const char *text, *decoded;
    } surrogates[] = {
        {"\"\\ud800\"", "\xEF\xBF\xBD"},
        {"\"\\udfff\"", "\xEF\xBF\xBD"},
        {"\"\\ud800x\"", "\xEF\xBF\xBDx"},
        {"\"\\ud800\\u0041\"", "\xEF\xBF\xBD"
                               "A"},
        {"\"\\ud800\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\"\\ude00\\ud83d\"", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\"\\ud83d\\n\"", "\xEF\xBF\xBD\n"},
        {"\"\\uD834\\uDD1E\"", "\xF0\x9D\x84\x9E"},
    };
    for (size_t i = 0; i < sizeof surrogates / sizeof *surrogates; i++) {
        json_reader r;
        json_reader_init(&r, surrogates[i].text, strlen(surrogates[i].text));
        expect_text(&r, JSON_STRING, surrogates[i].decoded, strlen(surrogates[i].decoded));
        assert_int_equal(json_next(&r), JSON_END);
        json_reader_free(&r);
    }
}

static void finds_every_special_byte_at_every_place(void **state) {
    (void)state;
    static const unsigned char special[] = {0x00, 0x1F, '"', '\\', 0x80, 0xFF};
    for (size_t s = 0; s < sizeof special; s++)
        for (size_t at = 0; at < 24; at++) {
            char text[32];
            memset(text, 'a', sizeof text);
            text[0] = '"';
            text[1 + at] = (char)special[s];
            text[26] = '"'; /* a filler before it: a backslash must not escape it */
            json_reader r;
            json_reader_init(&r, text, special[s] == '"' ? 2 + at : 27);
            if (special[s] == '"') {
                expect_text(&r, JSON_STRING, "aaaaaaaaaaaaaaaaaaaaaaaa", at);
            } else {
                char start[32];
                snprintf(start, sizeof start, "byte %zu: ", at + 1);
                assert_int_equal(json_next(&r), JSON_ERROR);
                assert_memory_equal(r.error, start, strlen(start));
            }
            json_reader_free(&r);
        }
}

static void skips_whole_values(void **state) {
    (void)state;
    static const char text[] = "[{\"a\":[1,{\"b\":2}]}, [[],[]], \"s\", 7]";
    json_reader r;
    json_reader_init(&r, text, sizeof text - 1);
    assert_int_equal(json_next(&r), JSON_ARRAY_BEGIN);
    for (int i = 0; i < 3; i++) assert_true(json_skip(&r, json_next(&r)));
    expect_text(&r, JSON_NUMBER, "7", 1);
    assert_int_equal(json_next(&r), JSON_ARRAY_END);
    json_reader_free(&r);
    json_reader_init(&r, "[{\"a\":", 6);
    assert_int_equal(json_next(&r), JSON_ARRAY_BEGIN);
    assert_false(json_skip(&r, json_next(&r)));
    assert_false(json_skip(&r, JSON_ERROR));
    json_reader_free(&r);
}

/* ------------------------------------------------------------- trees ----------------------------------------------------- */

static void trees_keep_order_text_and_length(void **state) {
    (void)state;
    static const char text[] = "{\"z\":1.0,\"a\":1e5,\"big\":18446744073709551615,\"nul\":\"a\\u0000b\",\"none\":null,\"z\":[true]}";
    calla_error err = {0};
    json_object *tree;
    assert_int_equal(json_parse(text, sizeof text - 1, "body", &tree, &err), CALLA_OK);
    assert_string_equal(json_object_to_json_string_ext(tree, JSON_C_TO_STRING_PLAIN),
                        "{\"z\":[true],\"a\":1e5,\"big\":18446744073709551615,\"nul\":\"a\\u0000b\",\"none\":null}");
    assert_int_equal(json_object_get_string_len(json_object_object_get(tree, "nul")), 3);
    assert_true(json_object_get_uint64(json_object_object_get(tree, "big")) == UINT64_MAX);
    assert_true(json_object_is_type(json_object_object_get(tree, "a"), json_type_double));
    assert_true(json_object_object_get_ex(tree, "none", NULL));
    json_object_put(tree);
}

static int fail_at(void *user, uint64_t number) {
    const uint64_t *bad = user;
    return number == *bad;
}

/* Each allocation in turn fails: an error, no leak, nothing half-built. */
static void survives_failing_allocations(void **state) {
    (void)state;
    static const char text[] =
        "{\"\\u0061\":[1.5,\"\\n\",{\"b\":2.5}],\"long key to grow the buffer\":\"long \\u0041 text to grow the buffer\"}";
    uint64_t failures = 0;
    for (uint64_t i = 0;; i++) {
        uint64_t bad = mem_allocations() + i;
        calla_error err = {0};
        json_object *tree;
        mem_set_failure(fail_at, &bad);
        const calla_status status = json_parse(text, sizeof text - 1, "body", &tree, &err);
        mem_set_failure(NULL, NULL);
        if (status == CALLA_OK) {
            json_object_put(tree);
            break;
        }
        assert_int_equal(status, CALLA_E_NOMEM);
        assert_null(tree);
        assert_non_null(strstr(err.message, "body"));
        failures++;
    }
    assert_true(failures >= 3);
}

/* ------------------------------------------------------------- writing --------------------------------------------------- */

static void writes_strings_as_python_does(void **state) {
    (void)state;
    static const char s[] = "\x00\x01\x1f \"\\/\b\f\n\r\t\x7f\xC3\xA9";
    buffer b = {0};
    json_append_string(&b, s, sizeof s - 1);
    assert_string_equal(b.data, "\"\\u0000\\u0001\\u001f \\\"\\\\/\\b\\f\\n\\r\\t\x7f\xC3\xA9\"");
    buffer_clear(&b);
    json_append_string(&b, "", 0);
    assert_string_equal(b.data, "\"\"");
    buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_and_refuses),
        cmocka_unit_test(refuses_deep_nesting),
        cmocka_unit_test(refuses_too_many_values),
        cmocka_unit_test(returns_tokens_in_order),
        cmocka_unit_test(says_which_integers_fit),
        cmocka_unit_test(lone_surrogates_become_replacement_characters),
        cmocka_unit_test(finds_every_special_byte_at_every_place),
        cmocka_unit_test(skips_whole_values),
        cmocka_unit_test(trees_keep_order_text_and_length),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(writes_strings_as_python_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

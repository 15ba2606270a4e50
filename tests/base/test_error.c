/* test_error.c: messages are cut between characters; every status has a name; files are named in what goes wrong with them. */
#include "../unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/float.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"

static void fills_in_status_and_message(void **state) {
    (void)state;
    calla_error err;
    assert_int_equal(error_set(&err, CALLA_E_IO, "%s: %d", "file", 7), CALLA_E_IO);
    assert_int_equal(err.status, CALLA_E_IO);
    assert_string_equal(err.message, "file: 7");
    assert_int_equal(error_set(NULL, CALLA_E_LIMIT, "nobody listens"), CALLA_E_LIMIT);
    assert_int_equal(error_nomem(&err, "a thing"), CALLA_E_NOMEM);
    assert_non_null(strstr(err.message, "a thing"));
}

static void cuts_long_messages_between_characters(void **state) {
    (void)state;
    for (size_t ascii = 0; ascii < 4; ascii++) {
        char text[2048] = "";
        memset(text, 'a', ascii);
        while (strlen(text) < 1500) strcat(text, "\xF0\x9F\x98\x80");
        calla_error err;
        error_set(&err, CALLA_E_FORMAT, "%s", text);
        const size_t n = strlen(err.message);
        assert_true(n < sizeof err.message && n > sizeof err.message - 9);
        assert_int_equal(utf8_valid(err.message, n), n);
    }
}

static void every_status_has_a_name(void **state) {
    (void)state;
    for (int i = CALLA_OK; i <= CALLA_E_INTERNAL; i++) assert_string_not_equal(calla_status_name((calla_status)i), "unknown status");
    assert_string_equal(calla_status_name((calla_status)999), "unknown status");
}

static void files_are_read_whole_or_named(void **state) {
    (void)state;
    const char *models = getenv("CALLA_MODELS");
    assert_non_null(models);
    char *path = path_join(models, "pocket/chat_template.jinja"), *missing = path_join("/", "nowhere"), *text;
    size_t n;
    file_map map;
    calla_error err;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &err), CALLA_OK);
    assert_int_equal(file_map_open(path, &map, &err), CALLA_OK);
    assert_int_equal(map.n, n);
    assert_memory_equal(map.data, text, n);
    assert_int_equal(text[n], 0);
    file_map_close(&map);
    mem_free(text);
    assert_int_equal(file_read(path, n - 1, &text, &n, &err), CALLA_E_LIMIT);
    assert_non_null(strstr(err.message, path));
    assert_string_equal(missing, "/nowhere");
    assert_int_equal(file_read(missing, 10, &text, &n, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, missing));
    assert_int_equal(file_map_open(models, &map, &err), CALLA_E_IO); /* a folder */
    mem_free(path);
    mem_free(missing);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xFFFF; h++) {
        const float f = float_from_bf16((uint16_t)h);
        if (f == f && float_to_bf16(f) != h) fail_msg("0x%04x", h);
        if (f != f && (float_from_bf16(float_to_bf16(f)) == float_from_bf16(float_to_bf16(f)))) fail_msg("NaN 0x%04x", h);
    }
    assert_int_equal(float_to_bf16(0x1.01p0f), 0x3F80); /* a tie: down to even */
    assert_int_equal(float_to_bf16(0x1.03p0f), 0x3F82); /* a tie: up to even */
    assert_int_equal(float_to_bf16(0x1.010002p0f), 0x3F81);
    assert_int_equal(float_to_bf16(0x1.fffffep127f), 0x7F80);
}

static void random_numbers_are_fixed(void **state) {
    (void)state;
    /* SplitMix64 seeded with 0: its first two published outputs */
    assert_true(random_mix(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu);
    assert_true(random_mix(2 * (uint64_t)0x9E3779B97F4A7C15u) == 0x6E789E6AA1B965F4u);
    double sum = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        const float u = random_uniform(7, 0, i);
        assert_true(u >= 0 && u < 1);
        sum += (double)u;
    }
    assert_true(sum > 4900 && sum < 5100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_in_status_and_message), cmocka_unit_test(cuts_long_messages_between_characters),
        cmocka_unit_test(every_status_has_a_name),     cmocka_unit_test(files_are_read_whole_or_named),
        cmocka_unit_test(bf16_rounds_to_nearest_even), cmocka_unit_test(random_numbers_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_buffer.c: growable byte arrays: what is appended, the maximum, and failure that sticks. */
#include "../unit.h"

#include <string.h>

#include "base/buffer.h"
#include "base/memory.h"

static int fail_always(void *user, uint64_t number) {
    (void)user;
    (void)number;
    return 1;
}

static void appends(void **state) {
    (void)state;
    buffer b = {0};
    buffer_append(&b, "a\0b", 3);
    buffer_append_str(&b, "cd");
    buffer_append_char(&b, 'e');
    buffer_printf(&b, "%d-%s", 42, "x");
    assert_false(b.failed);
    assert_int_equal(b.n, 10);
    assert_memory_equal(b.data, "a\0bcde42-x", 11);
    buffer_clear(&b);
    assert_int_equal(b.n, 0);
    assert_string_equal(b.data, "");
    buffer_free(&b);
    assert_null(b.data);
}

static void prints_long_texts(void **state) {
    (void)state;
    char s[1001];
    memset(s, 'x', 1000);
    s[1000] = 0;
    buffer b = {0};
    buffer_printf(&b, "<%s>", s);
    assert_int_equal(b.n, 1002);
    assert_true(b.data[0] == '<' && b.data[1001] == '>');
    assert_memory_equal(b.data + 1, s, 1000);
    buffer_free(&b);
}

static void keeps_to_its_maximum(void **state) {
    (void)state;
    buffer b = {.max = 5};
    buffer_append_str(&b, "abc");
    buffer_append_str(&b, "def"); /* would be 6: changes nothing and sticks */
    assert_true(b.failed);
    buffer_append_str(&b, "d");
    assert_string_equal(b.data, "abc");
    assert_null(buffer_take(&b));
    assert_true(b.failed);
    buffer_clear(&b);
    buffer_append_str(&b, "abcde");
    assert_false(b.failed);
    assert_string_equal(b.data, "abcde");
    buffer_free(&b);
}

static void gives_its_data_away(void **state) {
    (void)state;
    buffer b = {0};
    char *p = buffer_take(&b);
    assert_string_equal(p, "");
    mem_free(p);
    buffer_append_str(&b, "text");
    p = buffer_take(&b);
    assert_string_equal(p, "text");
    assert_true(!b.data && !b.n && !b.cap);
    mem_free(p);
}

static void failure_sticks(void **state) {
    (void)state;
    char s[400];
    memset(s, 'x', sizeof s - 1);
    s[sizeof s - 1] = 0;
    buffer b = {0};
    mem_set_failure(fail_always, NULL);
    buffer_append_str(&b, "a");
    assert_true(b.failed && !b.data);
    buffer_clear(&b);
    buffer_printf(&b, "%s", s);
    assert_true(b.failed);
    buffer_clear(&b);
    assert_null(buffer_take(&b));
    mem_set_failure(NULL, NULL);
    buffer_append_str(&b, "a");
    assert_true(b.failed && b.n == 0);
    buffer_free(&b);
    assert_false(b.failed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),
        cmocka_unit_test(prints_long_texts),
        cmocka_unit_test(keeps_to_its_maximum),
        cmocka_unit_test(gives_its_data_away),
        cmocka_unit_test(failure_sticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

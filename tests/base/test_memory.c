/* test_memory.c: allocation through base/memory.h: overflow, growth, and failures on demand. */
#include "../unit.h"

#include <string.h>

#include "base/memory.h"

static int fail_always(void *user, uint64_t number) {
    (void)user;
    (void)number;
    return 1;
}

static int fail_one(void *user, uint64_t number) {
    const uint64_t *bad = user;
    return number == *bad;
}

static void sizes_are_checked(void **state) {
    (void)state;
    assert_null(mem_array(SIZE_MAX / 2, 4));
    assert_null(mem_calloc(SIZE_MAX / 2, 4));
    assert_null(mem_strndup("a", SIZE_MAX));
    void *p = mem_alloc(0), *q = mem_calloc(0, 8), *r = mem_array(0, 8);
    assert_true(p && q && r); /* nothing is a valid request */
    mem_free(p);
    mem_free(q);
    mem_free(r);
    mem_free(NULL);
}

static void strings_are_copied(void **state) {
    (void)state;
    char *a = mem_strdup("hello"), *b = mem_strndup("hello", 2), *c = mem_strndup(NULL, 0);
    assert_string_equal(a, "hello");
    assert_string_equal(b, "he");
    assert_string_equal(c, "");
    mem_free(a);
    mem_free(b);
    mem_free(c);
}

static void growing_doubles_up_to_the_maximum(void **state) {
    (void)state;
    uint32_t *items = NULL;
    size_t cap = 0;
    assert_int_equal(mem_grow(&items, &cap, 1, sizeof *items, 100), 0);
    assert_int_equal(cap, 8);
    items[7] = 7;
    assert_int_equal(mem_grow(&items, &cap, 9, sizeof *items, 100), 0);
    assert_int_equal(cap, 16);
    assert_int_equal(items[7], 7);
    assert_int_equal(mem_grow(&items, &cap, 65, sizeof *items, 100), 0);
    assert_int_equal(cap, 100);
    assert_int_equal(mem_grow(&items, &cap, 101, sizeof *items, 100), -1);
    assert_int_equal(mem_grow(&items, &cap, SIZE_MAX / 2, sizeof *items, SIZE_MAX), -1); /* bytes overflow */
    assert_int_equal(items[7], 7);
    mem_set_failure(fail_always, NULL);
    assert_int_equal(mem_grow(&items, &cap, 100, sizeof *items, 100), 0); /* fits: nothing is asked for */
    assert_int_equal(mem_grow(&items, &cap, 200, sizeof *items, 1000), -1);
    mem_set_failure(NULL, NULL);
    assert_int_equal(items[7], 7);
    assert_int_equal(cap, 100);
    mem_free(items);
}

static void mapped_memory_is_zero(void **state) {
    (void)state;
    unsigned char *p = mem_map(1 << 20);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    assert_int_equal(p[0] | p[(1 << 20) - 1], 0);
    mem_unmap(p, 1 << 20);
    mem_unmap(NULL, 1 << 20);
}

static void chosen_allocations_fail(void **state) {
    (void)state;
    uint64_t bad = mem_allocations() + 1;
    mem_set_failure(fail_one, &bad);
    void *first = mem_alloc(1), *second = mem_alloc(1), *third = mem_alloc(1);
    assert_true(first && !second && third);
    mem_set_failure(fail_always, NULL);
    assert_null(mem_alloc(1));
    assert_null(mem_calloc(1, 1));
    assert_null(mem_array(1, 1));
    assert_null(mem_strdup("a"));
    assert_null(mem_map(4096));
    assert_null(mem_realloc(first, 100)); /* first stays valid */
    mem_set_failure(NULL, NULL);
    assert_int_equal(mem_allocations(), bad + 8);
    mem_free(first);
    mem_free(third);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(growing_doubles_up_to_the_maximum),
        cmocka_unit_test(mapped_memory_is_zero),
        cmocka_unit_test(chosen_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

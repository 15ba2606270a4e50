/* The memory behind previous_response_id: conversations as trees of turns, the bound, what goes first. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/responses_store.h"

static responses_store *open_store(size_t max_bytes) {
    responses_store *s = NULL;
    calla_error err;
    assert_int_equal(responses_store_open(max_bytes, &s, &err), CALLA_OK);
    return s;
}

static void put(responses_store *s, const char *id, const char *previous, const char *items) {
    responses_store_put(s, id, previous, items, strlen(items));
}

/* NULL: it must not be there. */
static void expect(responses_store *s, const char *id, const char *items) {
    buffer out = {0};
    buffer_append_str(&out, "");
    assert_int_equal(responses_store_get(s, id, &out), items != NULL);
    if (items) assert_string_equal(out.data, items);
    buffer_free(&out);
}

static void test_turns_follow_each_other(void **state) {
    (void)state;
    responses_store *s = open_store(1 << 20);
    put(s, "a", NULL, "1,2");
    put(s, "b", "a", "3");
    put(s, "c", "b", "");
    put(s, "d", "c", "4");
    put(s, "other", "a", "5"); /* a branch */
    put(s, "lost", "nothing", "6");
    put(s, "a", NULL, "7"); /* an id is given once */
    expect(s, "a", "1,2");
    expect(s, "d", "1,2,3,4");
    expect(s, "other", "1,2,5");
    expect(s, "lost", NULL);
    expect(s, "", NULL);
    responses_store_close(s);
}

static void test_the_least_recently_used_end_goes_first(void **state) {
    (void)state;
    char items[3001];
    memset(items, '1', sizeof items - 1);
    items[sizeof items - 1] = 0;
    responses_store *s = open_store(10000); /* three of them */
    put(s, "a", NULL, items);
    put(s, "b", "a", items);
    put(s, "c", NULL, items);
    buffer out = {0};
    assert_true(responses_store_get(s, "a", &out)); /* used: but b stands on it, and goes before it */
    put(s, "d", NULL, items);
    expect(s, "b", NULL);
    expect(s, "c", items);
    put(s, "e", "a", items);
    expect(s, "d", NULL);
    expect(s, "c", items);
    assert_in_range(responses_store_bytes(s), 9000, 10000);
    put(s, "f", "e", items); /* a chain of three takes all */
    expect(s, "c", NULL);
    buffer_clear(&out);
    assert_true(responses_store_get(s, "f", &out));
    assert_int_equal(out.n, 3 * 3000 + 2);
    buffer_free(&out);
    responses_store_close(s);
}

static void test_what_is_larger_than_the_bound_is_not_kept(void **state) {
    (void)state;
    char items[3001];
    memset(items, '1', sizeof items - 1);
    items[sizeof items - 1] = 0;
    responses_store *s = open_store(1000);
    put(s, "a", NULL, items);
    expect(s, "a", NULL);
    assert_int_equal(responses_store_bytes(s), 0);
    put(s, "b", NULL, "1");
    expect(s, "b", "1");
    responses_store_close(s);
}

static void test_many(void **state) {
    (void)state;
    responses_store *s = open_store(1 << 20);
    char id[32], previous[32] = "";
    for (int i = 0; i < 20000; i++) {
        snprintf(id, sizeof id, "r%d", i);
        put(s, id, i % 10 ? previous : NULL, "1");
        memcpy(previous, id, sizeof id);
        assert_true(responses_store_bytes(s) <= 1 << 20);
    }
    expect(s, "r19999", "1,1,1,1,1,1,1,1,1,1");
    expect(s, "r0", NULL);
    responses_store_close(s);
}

static int fail_one(void *user, uint64_t number) {
    (void)number;
    return (*(int *)user)-- == 0;
}

static void test_without_memory_nothing_is_kept(void **state) {
    (void)state;
    responses_store *s = open_store(1 << 20);
    for (int at = 0; at < 3; at++) {
        int left = at;
        mem_set_failure(fail_one, &left);
        put(s, "a", NULL, "1");
        mem_set_failure(NULL, NULL);
        expect(s, "a", NULL);
    }
    put(s, "a", NULL, "1");
    expect(s, "a", "1");
    responses_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_follow_each_other),
        cmocka_unit_test(test_the_least_recently_used_end_goes_first),
        cmocka_unit_test(test_what_is_larger_than_the_bound_is_not_kept),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_without_memory_nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

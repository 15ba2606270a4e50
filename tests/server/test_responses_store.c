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
    const stored_response r = {.input = items, .n_input = strlen(items)};
    responses_store_put(s, id, previous, &r);
}

/* The output is what stands in the response's brackets. */
static void put_whole(responses_store *s, const char *id, const char *previous, const char *input, const char *whole) {
    const size_t begin = (size_t)(strchr(whole, '[') - whole) + 1, end = (size_t)(strrchr(whole, ']') - whole);
    const stored_response r = {input, strlen(input), whole, strlen(whole), begin, end - begin};
    responses_store_put(s, id, previous, &r);
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

static void test_what_a_response_was_made_from_and_what_it_is(void **state) {
    (void)state;
    responses_store *s = open_store(1 << 20);
    buffer out = {0};
    put_whole(s, "resp_a", NULL, "1", "{\"output\":[2,3]}");
    put_whole(s, "resp_b", "resp_a", "4", "{\"output\":[]}");
    put_whole(s, "resp_c", "resp_b", "", "{\"output\":[{\"id\":\"msg_c_0\"},{\"id\":\"fc_c_1\",\"name\":\"f\"}]}");
    expect(s, "resp_b", "1,2,3,4");
    expect(s, "resp_c", "1,2,3,4,{\"id\":\"msg_c_0\"},{\"id\":\"fc_c_1\",\"name\":\"f\"}");
    assert_true(responses_store_get_input(s, "resp_c", &out));
    assert_string_equal(out.data, "1,2,3,4");
    buffer_clear(&out);
    assert_true(responses_store_get_whole(s, "resp_a", &out));
    assert_string_equal(out.data, "{\"output\":[2,3]}");
    assert_false(responses_store_get_whole(s, "resp_x", &out));
    buffer_clear(&out);
    assert_true(responses_store_get_output(s, "resp_a", &out));
    assert_string_equal(out.data, "2,3");
    assert_false(responses_store_get_output(s, "resp_x", &out));
    buffer_free(&out);
    responses_store_close(s);
}

/* What others have gone on from is kept for them, and is gone with the last of them. */
static void test_deleting(void **state) {
    (void)state;
    responses_store *s = open_store(1 << 20);
    put(s, "a", NULL, "1");
    put(s, "b", "a", "2");
    put(s, "c", "b", "3");
    put(s, "d", "b", "4");
    assert_true(responses_store_delete(s, "a"));
    assert_true(responses_store_delete(s, "b"));
    assert_false(responses_store_delete(s, "b"));
    expect(s, "b", NULL);
    expect(s, "c", "1,2,3");
    put(s, "e", "b", "5"); /* nothing goes on from it any more */
    expect(s, "e", NULL);
    assert_true(responses_store_delete(s, "c"));
    expect(s, "d", "1,2,4");
    assert_true(responses_store_bytes(s) > 0);
    assert_true(responses_store_delete(s, "d"));
    assert_int_equal(responses_store_bytes(s), 0);
    put(s, "a", NULL, "6");
    expect(s, "a", "6");
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
        cmocka_unit_test(test_what_a_response_was_made_from_and_what_it_is),
        cmocka_unit_test(test_deleting),
        cmocka_unit_test(test_without_memory_nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

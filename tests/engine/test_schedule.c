/* Which rows make a batch: equal shares, decoding first, pages by age. */
#include "unit.h"

#include "base/random.h"
#include "engine/schedule.h"

#define PLENTY 100000u

static void test_shares(void **state) {
    (void)state;
    schedule_item one[1] = {{0, 1000, 256, 0}};
    assert_int_equal(schedule_rows(one, 1, 256, PLENTY), SCHEDULE_FULL);
    assert_int_equal(one[0].rows, 256);

    /* two that decode, a long prompt and a short one: the short one is done in one step */
    schedule_item mixed[4] = {{500, 1, 256, 0}, {0, 30000, 256, 0}, {0, 40, 256, 0}, {77, 1, 256, 0}};
    assert_int_equal(schedule_rows(mixed, 4, 256, PLENTY), SCHEDULE_FULL);
    assert_int_equal(mixed[0].rows, 1);
    assert_int_equal(mixed[3].rows, 1);
    assert_int_equal(mixed[2].rows, 40);
    assert_int_equal(mixed[1].rows, 256 - 42);

    schedule_item equal[3] = {{0, 9000, 256, 0}, {0, 9000, 256, 0}, {0, 9000, 256, 0}};
    schedule_rows(equal, 3, 256, PLENTY);
    assert_int_equal(equal[0].rows + equal[1].rows + equal[2].rows, 256);
    for (int i = 0; i < 3; i++) assert_in_range(equal[i].rows, 85, 86);

    schedule_item narrow[3] = {{0, 9000, 8, 0}, {0, 9000, 256, 0}, {0, 3, 256, 0}}; /* its own limit */
    schedule_rows(narrow, 3, 256, PLENTY);
    assert_int_equal(narrow[0].rows, 8);
    assert_int_equal(narrow[1].rows, 256 - 11);

    schedule_item tight[4] = {{0, 50, 4, 0}, {0, 50, 4, 0}, {9, 1, 4, 0}, {0, 50, 4, 0}}; /* never less than one row */
    schedule_rows(tight, 4, 4, PLENTY);
    for (int i = 0; i < 4; i++) assert_int_equal(tight[i].rows, 1);
}

static void test_pages(void **state) {
    (void)state;
    /* 256 tokens of the older one and 100 of the younger need two pages */
    schedule_item items[2] = {{0, 256, 512, 0}, {0, 100, 512, 0}};
    assert_int_equal(schedule_rows(items, 2, 512, 2), SCHEDULE_FULL);
    assert_int_equal(schedule_rows(items, 2, 512, 1), SCHEDULE_BLOCKED);
    assert_int_equal(items[0].rows, 256); /* the older one is served */
    assert_int_equal(items[1].rows, 0);

    schedule_item cut[1] = {{200, 300, 512, 0}}; /* 56 in its own page, 256 in the free one: all fit into less than two */
    assert_int_equal(schedule_rows(cut, 1, 512, 1), SCHEDULE_FULL);
    assert_int_equal(cut[0].rows, 300);
    assert_int_equal(schedule_rows(cut, 1, 512, 0), SCHEDULE_CUT);
    assert_int_equal(cut[0].rows, 56);

    schedule_item full[2] = {{511, 1, 8, 0}, {512, 1, 8, 0}}; /* room in the page; no room */
    assert_int_equal(schedule_rows(full, 2, 8, 0), SCHEDULE_BLOCKED);
    assert_int_equal(full[0].rows, 1);
    assert_int_equal(full[1].rows, 0);
}

static void test_fits(void **state) {
    (void)state;
    uint32_t running[2] = {256, 257};
    assert_true(schedule_fits(running, 0, 100000, 1)); /* the first one always */
    assert_true(schedule_fits(running, 2, 256, 4));    /* 1 + 2 + 1 */
    assert_false(schedule_fits(running, 2, 257, 4));
    assert_false(schedule_fits(running, 2, 256, 3));
}

static void test_random_batches(void **state) {
    (void)state;
    for (uint32_t trial = 0; trial < 20000; trial++) {
        schedule_item items[8];
        uint32_t n = 1 + (uint32_t)(random_uniform(trial, 0, 0) * 8), batch = n + (uint32_t)(random_uniform(trial, 0, 1) * 300);
        uint32_t pages = (uint32_t)(random_uniform(trial, 0, 2) * 12), used = 0, rows = 0;
        for (uint32_t i = 0; i < n; i++) {
            bool decodes = random_uniform(trial, 1, i) < 0.5f;
            items[i].processed = (uint32_t)(random_uniform(trial, 2, i) * 2000);
            items[i].pending = decodes ? 1 : 1 + (uint32_t)(random_uniform(trial, 3, i) * 700);
            items[i].max_rows = random_uniform(trial, 4, i) < 0.2f ? 1 + (uint32_t)(random_uniform(trial, 5, i) * 64) : batch;
        }
        schedule_result result = schedule_rows(items, n, batch, pages);
        bool none = false, less = false;
        for (uint32_t i = 0; i < n; i++) {
            rows += items[i].rows;
            used += (items[i].processed + items[i].rows + 255) / 256 - (items[i].processed + 255) / 256;
            assert_true(items[i].rows <= items[i].pending && items[i].rows <= items[i].max_rows);
            none |= items[i].rows == 0;
            less |= items[i].rows < items[i].pending && items[i].rows < items[i].max_rows;
        }
        assert_true(rows <= batch && used <= pages);
        assert_int_equal(none, result == SCHEDULE_BLOCKED);
        if (result == SCHEDULE_FULL) assert_true(rows == batch || !less); /* no row is left over while someone could use it */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_random_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

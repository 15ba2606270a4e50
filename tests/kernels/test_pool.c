/* test_pool.c: the CPU backend's pool: every task once, whatever the number of threads; sleepers wake; cores are counted from captured
 * topologies. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/pool.h"
#include "unit.h"

enum { TASKS = 300 };

typedef struct tally {
    atomic_uint count[TASKS];
    atomic_uint wrong_thread;
    uint32_t threads;
} tally;

static void task(void *context, uint32_t i, uint32_t thread) {
    tally *t = context;
    atomic_fetch_add(&t->count[i], 1);
    if (thread >= t->threads) atomic_fetch_add(&t->wrong_thread, 1);
}

static void test_every_task_once(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        pool *p;
        assert_int_equal(pool_open(threads, &p, NULL), CALLA_OK);
        assert_int_equal(pool_threads(p), threads);
        tally t = {.threads = threads};
        for (uint32_t round = 0; round < 300; round++) {
            if (round % 100 == 50) nanosleep(&(struct timespec){0, 20000000}, NULL); /* long enough for the workers to sleep */
            pool_run(p, task, &t, round % 7 == 0 ? 0 : TASKS - round % 3);
        }
        uint32_t rounds = 0, last = 0;
        for (uint32_t round = 0; round < 300; round++) rounds += round % 7 != 0, last += round % 7 != 0 && round % 3 == 0;
        assert_int_equal(atomic_load(&t.count[0]), rounds);
        assert_int_equal(atomic_load(&t.count[TASKS - 1]), last);
        assert_int_equal(atomic_load(&t.wrong_thread), 0);
        pool_close(p);
    }
}

static void test_default_threads(void **state) {
    (void)state;
    pool *p;
    assert_int_equal(pool_open(0, &p, NULL), CALLA_OK);
    assert_in_range(pool_threads(p), 1, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
    assert_int_equal(pool_threads(p), pool_physical_cores("/"));
    pool_close(p);
    assert_true(pool_physical_cores("/nonexistent/") >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_task_once), cmocka_unit_test(test_default_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_pool.c: the CPU backend's pool: every task once, whatever the number of threads; sleepers wake; cores are counted from made-up
 * topologies. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    assert_int_equal(pool_threads(p), cores_default());
    pool_close(p);
}

#if defined(__linux__)

static char tree[64];

/* A file under `tree` with one line; its folders are made. */
static void put(const char *path, const char *line) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", tree, path);
    for (char *at = strchr(whole + strlen(tree), '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        assert_true(!mkdir(whole, 0700) || errno == EEXIST);
        *at = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", line);
    fclose(f);
}

static uint32_t count(const char *usable) { /* "1101": CPUs 0, 1 and 3 */
    bool mine[16] = {false};
    const uint32_t n = (uint32_t)strlen(usable);
    for (uint32_t i = 0; i < n; i++) mine[i] = usable[i] == '1';
    return cores_count(tree, mine, n);
}

static void test_cores(void **state) {
    (void)state;
    snprintf(tree, sizeof tree, "/tmp/calla-cores-XXXXXX");
    assert_non_null(mkdtemp(tree));
    strcat(tree, "/");
    assert_int_equal(count("11110000"), 4); /* nothing is known: every CPU is a core */
    assert_int_equal(count("00000000"), 1);
    /* two fast cores of two threads, which the second numbers with a comma, then four slow ones */
    const char *siblings[8] = {"0-1", "0-1", "2,3", "2,3", "4", "5", "6", "7"};
    for (int cpu = 0; cpu < 8; cpu++) {
        char path[128];
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        put(path, siblings[cpu]);
    }
    assert_int_equal(count("11111111"), 6);
    put("sys/devices/cpu_atom/cpus", "4-7");
    put("sys/devices/cpu_core/cpus", "0-3");
    assert_int_equal(count("11111111"), 2);
    assert_int_equal(count("01010000"), 2); /* a core of which only the second thread is ours */
    assert_int_equal(count("01110011"), 2);
    assert_int_equal(count("00001111"), 4); /* none of the fast ones is ours */
    put("sys/devices/cpu_core/cpus", "0,2-3");
    assert_int_equal(count("11111111"), 2);
    put("sys/devices/cpu_core/cpus", "");
    assert_int_equal(count("11111111"), 6);
    char remove[128];
    snprintf(remove, sizeof remove, "rm -r %s", tree);
    assert_int_equal(system(remove), 0);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once),
        cmocka_unit_test(test_default_threads),
#if defined(__linux__)
        cmocka_unit_test(test_cores),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

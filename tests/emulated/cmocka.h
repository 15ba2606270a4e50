/* cmocka.h: the little of cmocka that tests/kernels/test_cpu.c uses, for processors that this machine emulates and has no libraries for.
 * The first failure ends the program. */
#ifndef CALLA_TESTS_EMULATED_CMOCKA_H
#define CALLA_TESTS_EMULATED_CMOCKA_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f) {#f, f}
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define fail() emulated_check(false, "fail()", __FILE__, __LINE__)
#define assert_true(x) emulated_check((x), #x, __FILE__, __LINE__)
#define cmocka_run_group_tests_name(name, tests, setup, teardown) emulated_run(name, tests, sizeof(tests) / sizeof *(tests))

static inline void emulated_check(bool holds, const char *what, const char *file, int line) {
    if (holds) return;
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    exit(1);
}

static inline int emulated_run(const char *name, const struct CMUnitTest *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        printf("%s: %s\n", name, tests[i].name);
        fflush(stdout);
        tests[i].run(NULL);
    }
    return 0;
}

#endif

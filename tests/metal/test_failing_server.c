/* test_failing_server.c: a server on a Metal device that fails while it answers: the request ends with the reason, the server lives, and
 * /health says what happened. */
#include "fake_metal.h"
#include "support/failing_server.h"
#include "unit.h"

enum { OUT_OF_MEMORY = 8, PAGE_FAULT = 3, TIMEOUT = 2, RESET = 1 }; /* MTLCommandBufferError */

static void plant(void *user) { fake_metal_is.next_buffer_error = *(const int *)user; }

static void check_failure(int error, const char *why) {
    char names[512];
    check_failing_server(&(failing_server){.device = "metal", .max_tokens = 2, .plant = plant, .user = &error, .why = why});
    if (fake_metal_broken()) fail_msg("a rule of Metal was broken");
    if (fake_metal_living(names, sizeof names)) fail_msg("still alive: %s", names);
}

static void test_out_of_memory(void **state) {
    (void)state;
    check_failure(OUT_OF_MEMORY, "ran out of memory");
}

static void test_reset(void **state) {
    (void)state;
    check_failure(RESET, "was reset or lost");
}

static void test_command_errors(void **state) {
    (void)state;
    check_failure(PAGE_FAULT, "beyond its memory");
    check_failure(TIMEOUT, "ran for too long");
    check_failure(FAKE_METAL_INTERACTIVITY, "ran for too long");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_reset),
                                       cmocka_unit_test(test_command_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_failing_server.c: a server on a CUDA device that breaks while it answers: the request ends with the reason, the server lives, and
 * /health says what happened.  Needs an NVIDIA GPU, and is the process's last use of it. */
#include <pthread.h>
#include <unistd.h>

#include "support/failing_server.h"
#include "unit.h"

void cuda_fault(void); /* fault.cu */

static void *break_soon(void *unused) {
    usleep(300000); /* the answer of 8,000 tokens takes some seconds */
    cuda_fault();
    return unused;
}

static void plant(void *user) { assert_int_equal(pthread_create(user, NULL, break_soon, NULL), 0); }

static void test_fault(void **state) {
    (void)state;
    pthread_t thread;
    check_failing_server(&(failing_server){
        .device = "cuda", .max_tokens = 8000, .plant = plant, .user = &thread, .why = "the CUDA device failed: an illegal memory access"});
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fault)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

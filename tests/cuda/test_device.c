/* test_device.c: the engine on a CUDA device: a card without enough room is refused with the figures before anything is loaded; loading is
 * told; a cancelled job ends soon.  Needs an NVIDIA GPU.
 *
 * usage: test_device [DIR]      of the model [pocket] */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/transcript.h"
#include "support/arrays.h"
#include "unit.h"

enum { PROMPT = 30000, PATIENCE_MS = 250, LOADING_S = 8 /* of a model of 20 GB, from the page cache */ };

static const char *dir;

typedef struct told {
    uint32_t times;
    uint64_t last, total;
    bool back; /* it went back, or beyond the end */
} told;

static void on_progress(void *user, uint64_t done, uint64_t total) {
    told *t = user;
    t->back |= done < t->last || done > total || (t->total && total != t->total);
    t->times++, t->last = done, t->total = total;
}

static calla_engine_options options(told *t) {
    return (calla_engine_options){.model_dir = dir,
                                  .device = "cuda",
                                  .ids_only = true,
                                  .context_tokens = PROMPT + 2000,
                                  .max_sequences = 2,
                                  .batch_rows = 4096,
                                  .precision = CALLA_PRECISION_FAST,
                                  .progress = on_progress,
                                  .progress_user = t};
}

static void test_too_small(void **state) {
    (void)state;
    const size_t left = 600u << 20; /* the backend leaves 512 MB to the driver and the upload */
    size_t available, all;
    void *taken;
    told t = {0};
    calla_engine *e = NULL;
    calla_error err = {0};
    const calla_engine_options o = options(&t);
    assert_int_equal(cudaMemGetInfo(&available, &all), cudaSuccess);
    assert_int_equal(cudaMalloc(&taken, available - left), cudaSuccess);
    assert_int_equal(calla_engine_open(&o, &e, &err), CALLA_E_NOMEM);
    print_message("%s\n", err.message);
    assert_null(e);
    assert_non_null(strstr(err.message, "GB free; "));
    assert_non_null(strstr(err.message, "are needed: "));
    assert_non_null(strstr(err.message, "--context"));
    assert_int_equal(t.times, 0);
    cudaFree(taken);
    if (calla_engine_open(&o, &e, &err)) fail_msg("with room again: %s", err.message);
    calla_engine_close(e);
}

static void test_loading_is_told(void **state) {
    (void)state;
    told t = {0};
    calla_engine *e = NULL;
    calla_engine_info info;
    calla_error err = {0};
    const calla_engine_options o = options(&t);
    const uint64_t begun = clock_now_ns();
    if (calla_engine_open(&o, &e, &err)) fail_msg("%s", err.message);
    const double seconds = (double)(clock_now_ns() - begun) / 1e9;
    calla_engine_get_info(e, &info);
    print_message("opened in %.2f s: %.2f GB, told %u times; %u stages a step\n", seconds, (double)t.total / 1e9, t.times, info.stages);
    assert_true(t.times > 1 && !t.back);
    assert_int_equal(t.last, t.total);
    assert_true(t.total >= info.weights_bytes / 2);
    assert_true(seconds <= LOADING_S); /* test_too_small has read it before */
    assert_true(info.stages <= 250);
    calla_engine_close(e);
}

/* The time from the call to the last event, of a job that has made so many events. */
static double cancel_after(calla_engine *e, const int32_t *ids, uint32_t n, uint32_t events, uint32_t sleep_us) {
    static transcript t;
    const calla_generate_options o = sampling_options(1500, 1);
    calla_session *s = open_session(e, ids, n);
    start(s, &o, &t);
    while (atomic_load(&t.events) < events) usleep(100);
    usleep(sleep_us);
    const uint64_t begun = clock_now_ns();
    calla_session_cancel(s);
    calla_session_wait(s);
    const double ms = (double)(clock_now_ns() - begun) / 1e6;
    assert_int_equal(atomic_load(&t.done), 1);
    assert_int_equal(t.finish, CALLA_FINISH_CANCELLED);
    calla_session_close(s);
    return ms;
}

static void test_cancel(void **state) {
    (void)state;
    static int32_t ids[PROMPT];
    told t = {0};
    calla_engine *e = NULL;
    calla_engine_info info;
    calla_error err = {0};
    const calla_engine_options o = options(&t);
    double prompt = 0, answer = 0;
    if (calla_engine_open(&o, &e, &err)) fail_msg("%s", err.message);
    calla_engine_get_info(e, &info);
    random_ids(ids, PROMPT, info.vocabulary, 1);
    for (uint32_t i = 0; i < 10; i++) {
        const double ms = cancel_after(e, ids, PROMPT, 1, i * 700), token_ms = cancel_after(e, ids, 100, 20, i * 100);
        prompt = ms > prompt ? ms : prompt;
        answer = token_ms > answer ? token_ms : answer;
    }
    print_message("cancelled within %.1f ms in a prompt, %.1f ms in an answer\n", prompt, answer);
    assert_true(prompt <= PATIENCE_MS && answer <= PATIENCE_MS);
    calla_engine_close(e);
}

int main(int argc, char **argv) {
    dir = argc > 1 ? argv[1] : test_models("pocket");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_too_small), cmocka_unit_test(test_loading_is_told),
                                       cmocka_unit_test(test_cancel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_barriers.c: a barrier that the host forgets between stages is found: of a token each in turn is lost, of a prompt every fifth, and
 * the watched device must report two dispatches of one stage that touch the same bytes. */
#include <stdio.h>
#include <string.h>

#include "fake_metal.h"
#include "metal/small_model.h"
#include "support/arrays.h"
#include "unit.h"

enum { PROMPT = 20 };

static weights *w;

/* A step of so many rows; false: the device failed. */
static bool step(uint32_t rows) {
    calla_error err = {0};
    model *m;
    sequence *s;
    int32_t ids[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    const model_options o = small_model(PROMPT);
    if (model_open(w, &o, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(sequence_open(m, &s, &err), CALLA_OK);
    const model_segment g = {.sequence = s, .ids = ids, .rows = rows, .want = WANT_LAST};
    const calla_status status = model_step(m, &g, 1, NULL, NULL, &err);
    sequence_close(s);
    model_close(m);
    assert_true(!status || status == CALLA_E_DEVICE);
    return !status;
}

static void lose_each(uint32_t rows, uint32_t first, uint32_t every) {
    const uint64_t before = fake_metal_count.barriers;
    assert_true(step(rows));
    assert_null(fake_metal_broken());
    const uint32_t barriers = (uint32_t)(fake_metal_count.barriers - before);
    assert_true(barriers > 10);
    for (uint32_t i = first; i <= barriers; i += every) {
        fake_metal_is.lost_barrier = i;
        const bool ran = step(rows);
        const char *broken = fake_metal_broken();
        if (ran || !broken || !strstr(broken, "data race between dispatches of one stage"))
            fail_msg("%u rows: nobody missed barrier %u of %u", rows, i, barriers);
    }
}

static void test_token(void **state) {
    (void)state;
    lose_each(1, 1, 1);
}

static void test_prompt(void **state) {
    (void)state;
    /* Not among them is the one before the last layer's cache is written, which a prompt could do without: K and V are a stage older. */
    lose_each(PROMPT, 2, 5);
}

static int open_weights(void **state) {
    (void)state;
    calla_error err = {0};
    return weights_open(test_data("checkpoints/tiny-a"), &w, &err) ? -1 : 0;
}

static int close_weights(void **state) {
    (void)state;
    weights_close(w);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_token), cmocka_unit_test(test_prompt)};
    return cmocka_run_group_tests(tests, open_weights, close_weights);
}

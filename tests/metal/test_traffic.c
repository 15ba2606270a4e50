/* test_traffic.c: hard intensities of the real model's steps on Metal, from the loads and stores that happen (traffic.h). */
#include "fake_metal.h"
#include "metal/traffic.h"
#include "unit.h"

enum { ROWS = 72, BLOCKS = 2 /* of 64 rows */, LEAST_PIECE = 248, MOST_ROWS = 2048 };

static traffic_model *m;

static traffic_result count(const traffic_step *step) {
    const traffic_result r = traffic_count(m, step);
    const char *broken = fake_metal_broken();
    if (broken) fail_msg("%s", broken);
    assert_false(r.again);
    return r;
}

static void assert_wide(const traffic_result *r) {
    if (r->narrow[0])
        fail_msg("%s moves %llu bytes on %llu threadgroups", r->narrow, (unsigned long long)r->narrow_bytes,
                 (unsigned long long)r->narrow_threadgroups);
}

/* A token moves at most 1.03 times what it has to. */
static void test_token(void **state) {
    (void)state;
    static const uint32_t positions[] = {256, 448};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const traffic_step step = {.rows = 1, .position = positions[i] - 1, .wanted = true, .end = HEAD_PART};
        const traffic_result r = count(&step);
        const traffic t = traffic_of_model(&r);
        const double ratio = (double)traffic_bytes(&t) / (double)traffic_least_of_token(positions[i]);
        print_message("token %u: %.1f MB, %.4f times the least\n", positions[i], (double)traffic_bytes(&t) / 1e6, ratio);
        assert_true(ratio > 0.99 && ratio <= 1.03);
        assert_in_range(t.dispatches, 250, 330);
        assert_wide(&r);
    }
}

/* Pieces of prompts that are worth it give every kernel 128 threadgroups or more: that holds whatever it moves.  The row whose logits are
 * wanted goes on as a token does. */
static void test_grids(void **state) {
    (void)state;
    for (uint32_t rows = LEAST_PIECE; rows <= MOST_ROWS; rows += rows < 2 * LEAST_PIECE ? 1 : 61) {
        const traffic_step step = {.rows = rows, .end = HEAD_PART, .grids = true};
        const traffic_result r = traffic_count(m, &step);
        if (r.narrow[0]) fail_msg("of %u rows: %s has %llu threadgroups", rows, r.narrow, (unsigned long long)r.narrow_threadgroups);
    }
}

/* Of a shorter piece only what moves a megabyte. */
static void test_short_piece(void **state) {
    (void)state;
    const traffic_step step = {.rows = 36, .first = DELTA_LAYER, .end = LAST_LAYER, .tokens = 4};
    const traffic_result r = count(&step);
    assert_wide(&r);
}

/* What a few threadgroups of each grid say of all of them. */
static void test_samples(void **state) {
    (void)state;
    traffic_step step = {.rows = 1, .position = 255, .first = ATTENTION_LAYER, .end = LAST_LAYER};
    const traffic_result sampled = count(&step);
    step.whole = true;
    const traffic_result whole = count(&step);
    assert_true(sampled.part[ATTENTION_LAYER].weights > 10000000);
    assert_memory_equal(&sampled.part[ATTENTION_LAYER], &whole.part[ATTENTION_LAYER], sizeof(traffic));
}

/* Of a prompt each weight is dequantized once for 64 rows, or all that its expert has; each byte of K and V that is read serves 64 queries. */
static void test_prompt(void **state) {
    (void)state;
    const traffic_step step = {.rows = ROWS, .position = ROWS, .first = ATTENTION_LAYER, .end = LAST_LAYER, .tokens = 4};
    const traffic_result r = count(&step);
    const uint64_t row_bytes = 2048 / 64 * 36, router = 257 * (2048 / 64 * 68), expert = 3 * 512 * row_bytes;
    const uint64_t dense = (9216 + 4096 /* with half as many inputs twice as many rows */ + 3 * 512) * row_bytes + router;
    const uint64_t position_bytes = 2 * 2 * 256 * 2, least = dense * BLOCKS + expert * r.expert_blocks;
    uint64_t positions = 0; /* that tiles of 8 rows by 8 heads go through */
    for (uint64_t row = 0; row < ROWS; row += 8) positions += ROWS + row + 8;
    assert_wide(&r);
    assert_int_equal(r.expert_rows, ROWS * 8);
    assert_int_equal(r.part[ATTENTION_LAYER].cache, (positions + ROWS) * position_bytes); /* read, and written once */
    assert_in_range(r.part[ATTENTION_LAYER].weights, least, least + 100000);              /* and gains */
}

static int open_model(void **state) {
    (void)state;
    m = traffic_open(MOST_ROWS, 2 * MOST_ROWS);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    traffic_close(m);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_token), cmocka_unit_test(test_grids), cmocka_unit_test(test_short_piece),
                                       cmocka_unit_test(test_samples), cmocka_unit_test(test_prompt)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}

/* test_deterministic.c: with deterministic sums a row's logits are the same bits, alone or among others, in a prompt cut anyhow, and
 * whether or not the logits of other rows are wanted: in both precisions, for each type of cache, on the backend that
 * CALLA_TEST_DEVICE names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

enum { PROMPT = 1200, ROWS = 400, SHORT = 50, SEQUENCES = 4 };

static uint64_t random_state;
static uint32_t below(uint32_t n) { return (uint32_t)(random_mix(random_state += 0x9E3779B97F4A7C15u) % n); }

static void assert_same_bits(const float *got, const float *want, size_t n) {
    if (!memcmp(got, want, n * sizeof *got)) return;
    fprintf(stderr, "logits differ by %g\n", largest_difference(got, want, n));
    fail();
}

static void assert_logits(rig *r, uint32_t segment, uint32_t row, const float *want) {
    assert_same_bits(model_logits(r->m, segment, row), want, r->w->shape.vocabulary);
}

/* Pieces of random size, of which all logits are wanted, or the last row's, or none. */
static void check_cut(rig *r, const int32_t *ids, uint32_t n, const float *whole, uint32_t most) {
    const uint32_t V = r->w->shape.vocabulary;
    sequence *s = rig_sequence(r);
    for (uint32_t i = 0; i < n;) {
        const uint32_t rows = 1 + below(most < n - i ? most : n - i);
        const model_want want = i + rows == n ? WANT_LAST : (model_want)below(3);
        const model_segment g = {.sequence = s, .ids = ids + i, .rows = rows, .want = want};
        assert_int_equal(model_step(r->m, &g, 1, NULL, NULL, NULL), CALLA_OK);
        for (uint32_t j = 0; j < rows && want == WANT_ALL; j++) assert_logits(r, 0, j, whole + (size_t)(i + j) * V);
        i += rows;
        if (want == WANT_LAST) assert_logits(r, 0, 0, whole + (size_t)(i - 1) * V);
    }
    sequence_close(s);
}

/* Sequences that begin at other places of the same text, advancing at random speeds in common batches. */
static void check_batch(rig *r, const int32_t *ids) {
    const uint32_t V = r->w->shape.vocabulary;
    sequence *s[SEQUENCES];
    float *alone[SEQUENCES];
    uint32_t done[SEQUENCES] = {0};
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        alone[i] = rig_run(r, ids + i, SHORT, 17);
        s[i] = rig_sequence(r);
    }
    for (bool more = true; more;) {
        model_segment g[SEQUENCES];
        uint32_t count = 0, who[SEQUENCES];
        more = false;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            const uint32_t left = SHORT - done[i], wish = below(3) ? 1 : below(40), rows = wish < left ? wish : left;
            more |= left > 0;
            if (!rows) continue;
            who[count] = i;
            g[count++] = (model_segment){.sequence = s[i], .ids = ids + i + done[i], .rows = rows, .want = WANT_LAST};
        }
        if (!count) continue;
        assert_int_equal(model_step(r->m, g, count, NULL, NULL, NULL), CALLA_OK);
        for (uint32_t j = 0; j < count; j++) {
            done[who[j]] += g[j].rows;
            assert_logits(r, j, 0, alone[who[j]] + (size_t)(done[who[j]] - 1) * V);
        }
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) sequence_close(s[i]), free(alone[i]);
}

static void check(const char *dir, uint32_t n, calla_kv kv, bool fast) {
    rig r = rig_open_deterministic(dir, n, ROWS, SEQUENCES, kv, fast, false);
    int32_t ids[PROMPT];
    random_state = 1;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)below(r.w->shape.vocabulary < 256 ? r.w->shape.vocabulary : 256);
    float *whole = rig_run(&r, ids, n, ROWS);
    check_cut(&r, ids, n, whole, 1);
    check_cut(&r, ids, n, whole, 6);
    check_cut(&r, ids, n, whole, 300);
    check_batch(&r, ids);
    rig_close(&r);
    r = rig_open_deterministic(dir, n, ROWS, SEQUENCES, kv, fast, true);
    check_cut(&r, ids, n, whole, 300);
    free(whole);
    rig_close(&r);
}

/* n of the longest prompts passes the first split of a context */
static void check_precisions(const char *dir, uint32_t n) {
    check(dir, test_short() ? 60 : n, CALLA_KV_BF16, false);
    check(dir, 60, CALLA_KV_F32, true);
    check(dir, test_short() ? 60 : 150, CALLA_KV_Q8, true);
}

static void test_tiny_a(void **state) {
    (void)state;
    check_precisions(test_data("checkpoints/tiny-a"), PROMPT);
}

static void test_tiny_c(void **state) {
    (void)state;
    check_precisions(test_data("checkpoints/tiny-c"), 300);
}

static void test_pocket(void **state) {
    (void)state;
    check_precisions(test_models("pocket"), 150);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny_a), cmocka_unit_test(test_tiny_c), cmocka_unit_test(test_pocket)},
                            few[] = {cmocka_unit_test(test_tiny_a)};
    return test_short() ? cmocka_run_group_tests(few, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}

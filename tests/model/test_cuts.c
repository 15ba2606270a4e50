/* test_cuts.c: any way of cutting a prompt into steps, or of mixing sequences in a batch, gives bit-equal logits on ref,
 * and the same logits within a tolerance on faster backends (CALLA_TEST_DEVICE). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

static uint64_t random_state;
static uint32_t below(uint32_t n) { return (uint32_t)(random_mix(random_state += 0x9E3779B97F4A7C15u) % n); }

static int32_t *prompt_of(const char *name, int p, size_t *n) {
    char path[128], key[32];
    snprintf(path, sizeof path, "checkpoints/%s.reference.safetensors", name);
    snprintf(key, sizeof key, "p%d.ids", p);
    arrays *ref = arrays_open(test_data(path));
    int32_t *ids = arrays_i32(ref, key, n);
    arrays_close(ref);
    return ids;
}

static rig open_rig(const char *name, uint32_t sequences, calla_kv kv) {
    char path[128];
    snprintf(path, sizeof path, "checkpoints/%s", name);
    return rig_open(test_data(path), 2304, 700, sequences, kv);
}

static void check_cuts(const char *name, int prompt, calla_kv kv) {
    rig r = open_rig(name, 1, kv);
    const uint32_t V = r.w->shape.vocabulary;
    size_t n;
    int32_t *ids = prompt_of(name, prompt, &n);
    float *whole = rig_run(&r, ids, (uint32_t)n, 700), *single = rig_run(&r, ids, (uint32_t)n, 1);
    assert_same_logits(&r, single, whole, n * V);
    free(single);
    for (int round = 0; round < (test_short() ? 2 : 4); round++) {
        random_state = (uint64_t)round;
        float *cut = malloc(n * V * sizeof *cut);
        assert_non_null(cut);
        sequence *s = rig_sequence(&r);
        for (uint32_t i = 0; i < n;) {
            uint32_t rows = 1 + below(round % 2 ? 7 : 300);
            if (rows > n - i) rows = (uint32_t)n - i;
            rig_append(&r, s, ids + i, rows, cut + (size_t)i * V, NULL);
            i += rows;
        }
        sequence_close(s);
        assert_same_logits(&r, cut, whole, n * V);
        free(cut);
    }
    free(whole), free(ids);
    rig_close(&r);
}

static void test_cuts_tiny_a(void **state) {
    (void)state;
    check_cuts("tiny-a", test_short() ? 6 : 7, CALLA_KV_F32);
    check_cuts("tiny-a", test_short() ? 6 : 7, CALLA_KV_BF16);
}

static void test_cuts_tiny_b(void **state) {
    (void)state;
    check_cuts("tiny-b", test_short() ? 4 : 6, CALLA_KV_F32);
}

static void test_cuts_tiny_c(void **state) {
    (void)state;
    check_cuts("tiny-c", 2, CALLA_KV_F32);
}

/* Several sequences that advance at random speeds in mixed batches: each gets what it gets alone. */
static void test_mixed_batches(void **state) {
    (void)state;
    enum { S = 8 };
    rig r = open_rig("tiny-a", S, CALLA_KV_BF16);
    const uint32_t V = r.w->shape.vocabulary;
    int32_t *ids[S];
    float *alone[S];
    size_t n[S];
    uint32_t done[S] = {0};
    sequence *s[S];
    for (int i = 0; i < S; i++) {
        ids[i] = prompt_of("tiny-a", test_short() ? i % 7 : i, &n[i]);
        alone[i] = rig_run(&r, ids[i], (uint32_t)n[i], 700);
        s[i] = rig_sequence(&r);
    }
    random_state = 77;
    for (bool more = true; more;) {
        model_segment g[S];
        uint32_t count = 0, budget = 120, who[S];
        more = false;
        for (int i = 0; i < S; i++) {
            uint32_t left = (uint32_t)n[i] - done[i], rows = below(3) ? 1 : below(60);
            if (rows > left) rows = left;
            if (rows > budget) rows = budget;
            more |= left > 0;
            if (!rows) continue;
            budget -= rows;
            who[count] = (uint32_t)i;
            g[count++] = (model_segment){.sequence = s[i], .ids = ids[i] + done[i], .rows = rows, .want = WANT_ALL};
        }
        if (!count) continue;
        assert_int_equal(model_step(r.m, g, count, NULL, NULL, NULL), CALLA_OK);
        for (uint32_t j = 0; j < count; j++)
            for (uint32_t row = 0; row < g[j].rows; row++, done[who[j]]++)
                assert_same_logits(&r, model_logits(r.m, j, row), alone[who[j]] + (size_t)done[who[j]] * V, V);
    }
    for (int i = 0; i < S; i++) {
        assert_int_equal(sequence_tokens(s[i]), n[i]);
        sequence_close(s[i]);
        free(ids[i]), free(alone[i]);
    }
    rig_close(&r);
}

/* More sequences than a device may take for few rows, each with its last row wanted alone. */
static void test_last_rows_of_many(void **state) {
    (void)state;
    enum { S = 9 };
    rig r = open_rig("tiny-a", S, CALLA_KV_BF16);
    const uint32_t V = r.w->shape.vocabulary;
    size_t n;
    int32_t *ids = prompt_of("tiny-a", 6, &n);
    assert_true(n >= S + 2);
    float *whole = rig_run(&r, ids, (uint32_t)n, 700);
    model_segment g[S];
    for (uint32_t i = 0; i < S; i++) g[i] = (model_segment){.sequence = rig_sequence(&r), .ids = ids, .rows = 3 + i, .want = WANT_LAST};
    assert_int_equal(model_step(r.m, g, S, NULL, NULL, NULL), CALLA_OK);
    for (uint32_t i = 0; i < S; i++) {
        assert_same_logits(&r, model_logits(r.m, i, 0), whole + (size_t)(2 + i) * V, V);
        sequence_close(g[i].sequence);
    }
    free(whole), free(ids);
    rig_close(&r);
}

/* What the step before sampled can be the next step's input without passing the caller. */
static void test_chained_tokens(void **state) {
    (void)state;
    rig r = open_rig("tiny-a", 2, CALLA_KV_F32);
    const uint32_t V = r.w->shape.vocabulary;
    const sample_request greedy = {.tokens = V, .top_p = 1, .repetition = 1};
    const int32_t prompts[2][3] = {{5, 6, 7}, {9, 8, 250}};
    sequence *chained[2] = {rig_sequence(&r), rig_sequence(&r)};
    int32_t expected[2][6];
    for (int i = 0; i < 2; i++) { /* by hand, one sequence after the other */
        sequence *s = rig_sequence(&r);
        const int32_t *in = prompts[i];
        uint32_t rows = 3;
        for (int t = 0; t < 6; t++) {
            model_segment g = {.sequence = s, .ids = in, .rows = rows, .sample = &greedy};
            assert_int_equal(model_step(r.m, &g, 1, NULL, NULL, NULL), CALLA_OK);
            expected[i][t] = model_sampled(r.m, 0)->id;
            assert_int_equal(expected[i][t], (int32_t)row_argmax(model_logits(r.m, 0, 0), V));
            in = &expected[i][t], rows = 1;
        }
        sequence_close(s);
    }
    for (int t = 0; t < 6; t++) {
        const int32_t before[2] = {-2, -1}; /* this sequence was the other segment of the step before */
        const bool swap = t % 2;            /* order of the segments changes from step to step */
        model_segment g[2];
        for (int j = 0; j < 2; j++) {
            int i = swap ? 1 - j : j;
            g[j] = (model_segment){.sequence = chained[i], .ids = t ? &before[j] : prompts[i], .rows = t ? 1 : 3, .sample = &greedy};
        }
        assert_int_equal(model_step(r.m, g, 2, NULL, NULL, NULL), CALLA_OK);
        for (int j = 0; j < 2; j++) assert_int_equal(model_sampled(r.m, (uint32_t)j)->id, expected[swap ? 1 - j : j][t]);
    }
    sequence_close(chained[0]), sequence_close(chained[1]);
    rig_close(&r);
}

/* test_cuts [PATTERN]: without the tests whose names match it */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_skip_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_tiny_a),   cmocka_unit_test(test_cuts_tiny_b),       cmocka_unit_test(test_cuts_tiny_c),
        cmocka_unit_test(test_mixed_batches), cmocka_unit_test(test_last_rows_of_many), cmocka_unit_test(test_chained_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

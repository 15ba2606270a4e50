/* test_state.c: snapshots, restoring, rolling back, cancelling and running out, on tiny-c, whose heads remember up to 20,000 tokens;
 * and proof that these tests would see a lost state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

enum { MOST = 1000, PAGE = KV_PAGE_TOKENS };

static uint32_t N = MOST; /* tokens, of the recorded ones */

/* With few tokens one place, inside a page, is enough. */
static size_t most_cuts(size_t n) { return N < MOST ? 1 : test_short() ? 2 : n; }

typedef struct fixture {
    rig r;
    int32_t *ids;
    uint32_t V;
    float *want; /* [V] last logits of all N tokens, undisturbed */
} fixture;

static int set_up_with(void **state, calla_kv kv) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    size_t n;
    arrays *ref = arrays_open(test_data("checkpoints/tiny-c.reference.safetensors"));
    f->ids = arrays_i32(ref, "p3.ids", &n);
    arrays_close(ref);
    if (n != MOST) return -1;
    const char *dir = test_data("checkpoints/tiny-c");
    f->r = kv == CALLA_KV_Q8
               ? rig_open_deterministic(dir, N, 512, 3, kv, false, false) /* a code that rounds otherwise would move logits far */
               : rig_open(dir, N, 512, 3, kv);
    f->V = f->r.w->shape.vocabulary;
    f->want = malloc(f->V * sizeof *f->want);
    sequence *s = rig_sequence(&f->r);
    for (uint32_t i = 0; i < N; i += N / 4) rig_append(&f->r, s, f->ids + i, N / 4, NULL, f->want);
    sequence_close(s);
    *state = f;
    return 0;
}

static int set_up(void **state) { return set_up_with(state, CALLA_KV_BF16); }
static int set_up_q8(void **state) { return set_up_with(state, CALLA_KV_Q8); }

static int tear_down(void **state) {
    fixture *f = *state;
    rig_close(&f->r);
    free(f->ids), free(f->want), free(f);
    return 0;
}

static void feed(fixture *f, sequence *s, uint32_t from, uint32_t to, float *last) {
    for (uint32_t i = from; i < to;) {
        uint32_t rows = to - i < 512 ? to - i : 512;
        rig_append(&f->r, s, f->ids + i, rows, NULL, last);
        i += rows;
    }
}

static void assert_last(fixture *f, sequence *s, uint32_t from) {
    float *last = malloc(f->V * sizeof *last);
    assert_non_null(last);
    feed(f, s, from, N, last);
    assert_same_logits(&f->r, last, f->want, f->V);
    free(last);
}

/* At points inside a page and on its edge: snapshot, go on (elsewhere), restore, go on again: the same logits; and the original too. */
static void test_snapshot(void **state) {
    fixture *f = *state;
    const uint32_t cuts[] = {PAGE - 1, 1, PAGE, 777};
    for (size_t c = 0; c < most_cuts(sizeof cuts / sizeof *cuts); c++) {
        sequence *s = rig_sequence(&f->r), *snapshot, *other;
        feed(f, s, 0, cuts[c], NULL);
        assert_int_equal(sequence_fork(s, &snapshot, NULL), CALLA_OK);
        const int32_t wrong[3] = {1, 2, 3}; /* the original goes astray: it must not spoil the shared page */
        rig_append(&f->r, s, wrong, 3, NULL, NULL);
        assert_int_equal(sequence_fork(snapshot, &other, NULL), CALLA_OK);
        sequence_close(s);
        assert_int_equal(sequence_tokens(snapshot), cuts[c]);
        assert_last(f, snapshot, cuts[c]);
        assert_last(f, other, cuts[c]);
        sequence_close(snapshot);
        sequence_close(other);
    }
}

static void test_rollback(void **state) {
    fixture *f = *state;
    const uint32_t cuts[] = {PAGE - 1, 0, PAGE};
    for (size_t c = 0; c < most_cuts(sizeof cuts / sizeof *cuts); c++) {
        sequence *s = rig_sequence(&f->r);
        const int32_t wrong[PAGE + 3] = {4, 5, 6};
        feed(f, s, 0, cuts[c], NULL);
        rig_append(&f->r, s, wrong, PAGE + 3, NULL, NULL);
        assert_int_equal(sequence_rollback(s, NULL), CALLA_OK);
        assert_int_equal(sequence_tokens(s), cuts[c]);
        assert_int_equal(sequence_rollback(s, NULL), CALLA_E_ARGUMENT); /* one step only */
        assert_last(f, s, cuts[c]);
        sequence_close(s);
    }
}

static bool stop_at_third_layer(void *user) { return ++*(int *)user == 3; }

/* A step that is abandoned between layers leaves every sequence of the batch as it was. */
static void test_cancel(void **state) {
    fixture *f = *state;
    sequence *a = rig_sequence(&f->r), *b = rig_sequence(&f->r);
    const uint32_t fed = 3 * N / 10;
    feed(f, a, 0, fed, NULL);
    feed(f, b, 0, 40, NULL);
    model_segment g[2] = {{.sequence = a, .ids = f->ids + fed, .rows = N / 5},
                          {.sequence = b, .ids = f->ids + 40, .rows = 1, .want = WANT_LAST}};
    int calls = 0;
    calla_error err;
    assert_int_equal(model_step(f->r.m, g, 2, stop_at_third_layer, &calls, &err), CALLA_E_CANCELLED);
    assert_int_equal(calls, 3);
    assert_int_equal(sequence_tokens(a), fed);
    assert_int_equal(sequence_tokens(b), 40);
    assert_last(f, a, fed);
    assert_last(f, b, 40);
    sequence_close(a), sequence_close(b);
}

static void test_limits(void **state) {
    fixture *f = *state;
    if (N < MOST) skip(); /* no device has a part in it */
    calla_error err;
    rig small = rig_open(test_data("checkpoints/tiny-c"), 0, 512, 2, CALLA_KV_BF16); /* two pages in all, two sequences */
    sequence *a = rig_sequence(&small), *b = rig_sequence(&small), *c = rig_sequence(&small);
    assert_int_equal(sequence_room(a), 2 * PAGE);
    rig_append(&small, a, f->ids, PAGE, NULL, NULL);
    rig_append(&small, b, f->ids, PAGE - 1, NULL, NULL);
    assert_int_equal(sequence_room(a), 0);
    assert_int_equal(sequence_room(b), 1);
    model_segment g = {.sequence = a, .ids = f->ids, .rows = 1};
    assert_int_equal(model_step(small.m, &g, 1, NULL, NULL, &err), CALLA_E_LIMIT);
    assert_non_null(strstr(err.message, "KV"));
    assert_int_equal(sequence_tokens(a), PAGE);
    rig_append(&small, b, f->ids, 1, NULL, NULL); /* its last place is still there */
    sequence_reset(a);
    assert_int_equal(sequence_tokens(a), 0);
    rig_append(&small, c, f->ids, PAGE, NULL, NULL);
    const int32_t bad[] = {(int32_t)f->V, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        g = (model_segment){.sequence = a, .ids = &bad[i], .rows = 1};
        assert_int_equal(model_step(small.m, &g, 1, NULL, NULL, &err), CALLA_E_ARGUMENT);
    }
    g = (model_segment){.sequence = a, .ids = f->ids, .rows = 513};
    assert_int_equal(model_step(small.m, &g, 1, NULL, NULL, &err), CALLA_E_LIMIT);
    model_segment twice[2] = {{.sequence = a, .ids = f->ids, .rows = 1}, {.sequence = a, .ids = f->ids, .rows = 1}};
    assert_int_equal(model_step(small.m, twice, 2, NULL, NULL, &err), CALLA_E_ARGUMENT);
    sequence_close(a), sequence_close(b), sequence_close(c);
    rig_close(&small);
}

/* The fault planted: a state lost at a chunk or page edge moves the last logits far beyond any tolerance. */
static void test_a_lost_state_is_seen(void **state) {
    fixture *f = *state;
    const uint32_t cuts[] = {PAGE, MOST - 100};
    float *last = malloc(f->V * sizeof *last);
    assert_non_null(last);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts && cuts[c] < N; c++) {
        sequence *s = rig_sequence(&f->r);
        feed(f, s, 0, cuts[c], NULL);
        sequence_lose_state(s);
        feed(f, s, cuts[c], N, last);
        double d = largest_difference(last, f->want, f->V);
        print_message("state lost at %u of %u: last logits move by %.2f\n", cuts[c], N, d);
        assert_true(d > 1);
        sequence_close(s);
    }
    free(last);
}

static void test_stages(void **state) {
    fixture *f = *state; /* every step above ended in exactly plan.stages boundaries, or model_step would have failed */
    assert_int_equal(model_get_plan(f->r.m)->stages, 6 * f->r.w->shape.layers + 2);
    model_shape real = f->r.w->shape;
    real.layers = 40;
    model_plan plan;
    model_plan_compute(
        &real, &(model_options){.backend = backend_find(NULL), .batch_rows = 1, .max_segments = 1, .sequences = 1, .kv_tokens = 1}, &plan);
    assert_in_range(plan.stages, 6 * 40 + 2, 250);
}

/* Codes of 8 bits and four scales of 32 bits for a row of 256 values. */
static void test_kv_bytes(void **state) {
    fixture *f = *state;
    const model_shape *s = &f->r.w->shape;
    const uint64_t row = f->r.kv == CALLA_KV_Q8 ? 256 + 4 * 4 : 256 * 2;
    assert_int_equal(model_kv_token_bytes(f->r.m), 2 * row * s->kv_heads * s->attention_layers);
}

/* test_state [TOKENS]: of 1,000; at least 260, a multiple of 20 */
int main(int argc, char **argv) {
    if (argc > 1) N = (uint32_t)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest q8_tests[] = {cmocka_unit_test(test_snapshot), cmocka_unit_test(test_rollback),
                                          cmocka_unit_test(test_kv_bytes)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_bytes), cmocka_unit_test(test_snapshot), cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_cancel),   cmocka_unit_test(test_limits),   cmocka_unit_test(test_a_lost_state_is_seen),
        cmocka_unit_test(test_stages),
    };
    const int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    if (test_short() || !rig_is_taken(test_data("checkpoints/tiny-c"), CALLA_KV_Q8, true)) return failed;
    return failed + cmocka_run_group_tests(q8_tests, set_up_q8, tear_down);
}

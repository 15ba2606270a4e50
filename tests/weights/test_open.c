/* test_open.c: the checkpoints of the tests and the embedded model opened as they are, at every alignment, and with every allocation
 * failing once. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "support/arrays.h"
#include "support/shift_checkpoint.h"
#include "support/temp_dir.h"
#include "weights/weights.h"

static weights *open_ok(const char *dir) {
    weights *w;
    calla_error err;
    if (weights_open(dir, &w, &err)) fail_msg("%s", err.message);
    return w;
}

/* The figures are counted from the files' headers by another program. */
static void test_folders(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        uint32_t layers, hidden, vocabulary, stop_ids;
        uint64_t text_bytes, token_bytes;
    } cases[] = {
        {"checkpoints/tiny-a", 4, 128, 320, 1, 934564, 579820},
        {"checkpoints/tiny-b", 8, 256, 512, 1, 11420688, 6038688},
        {"checkpoints/tiny-c", 8, 128, 320, 1, 2291536, 1605016},
        {"pocket", 8, 256, 8192, 2, 12786704, 6298784},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weights *w = open_ok(strcmp(cases[i].dir, "pocket") ? test_data(cases[i].dir) : test_models("pocket"));
        assert_int_equal(w->shape.layers, cases[i].layers);
        assert_int_equal(w->shape.hidden, cases[i].hidden);
        assert_int_equal(w->shape.vocabulary, cases[i].vocabulary);
        assert_int_equal(w->n_stop_ids, cases[i].stop_ids);
        assert_int_equal(w->text_bytes, cases[i].text_bytes);
        assert_int_equal(w->token_bytes, cases[i].token_bytes);
        assert_int_equal(w->skipped_vision + w->skipped_mtp, 0);
        calla_error err;
        assert_int_equal(weights_check(w, &err), CALLA_OK);
        weights_close(w);
    }
}

static void test_pocket_generation(void **state) {
    (void)state;
    weights *w = open_ok(test_models("pocket"));
    assert_int_equal(w->stop_ids[0], 8162);
    assert_int_equal(w->stop_ids[1], 8160);
    assert_true(w->sampling.do_sample && w->sampling.top_k == 20 && w->sampling.temperature == 1 && w->sampling.top_p == 0.95f);
    weights_close(w);
}

typedef struct sum {
    uint64_t hash, bytes, n;
    uintptr_t residue; /* of the first tensor's address mod 16 */
} sum;

static bool add_tensor(void *user, const tensor_info *t) {
    sum *s = user;
    if (!s->n) s->residue = (uintptr_t)t->data % 16;
    for (uint64_t i = 0; i < t->bytes; i++) s->hash = (s->hash ^ t->data[i]) * 0x100000001B3u;
    s->bytes += t->bytes;
    s->n++;
    return true;
}

static bool stop_at_third(void *user, const tensor_info *t) {
    (void)t;
    return ++*(int *)user < 3;
}

static void test_each_tensor(void **state) {
    (void)state;
    weights *w = open_ok(test_data("checkpoints/tiny-a"));
    sum s = {0};
    int calls = 0;
    weights_each_tensor(w, add_tensor, &s);
    assert_int_equal(s.n, 182);
    assert_int_equal(s.bytes, w->text_bytes);
    weights_each_tensor(w, stop_at_third, &calls);
    assert_int_equal(calls, 3);
    weights_close(w);
}

/* The data of a file may begin anywhere: the same bytes are bound. */
static void test_alignments(void **state) {
    (void)state;
    char *dir = temp_dir_new();
    sum want = {0};
    for (unsigned residue = 0; residue < 16; residue++) {
        shift_checkpoint(test_data("checkpoints/tiny-a"), dir, residue);
        weights *w = open_ok(dir);
        sum got = {0};
        weights_each_tensor(w, add_tensor, &got);
        assert_int_equal(got.residue, residue);
        if (!residue) want = got;
        assert_int_equal(got.hash, want.hash);
        assert_int_equal(got.n, want.n);
        calla_error err;
        assert_int_equal(weights_check(w, &err), CALLA_OK);
        weights_close(w);
    }
    temp_dir_remove(dir);
}

typedef struct failing {
    uint64_t from;
    bool onwards;
} failing;

static int fail_allocation(void *user, uint64_t number) {
    const failing *f = user;
    return f->onwards ? number >= f->from : number == f->from;
}

/* Each allocation fails once, alone and with all that follow: an error without a leak (under ASan), never a crash or a success that
 * lacks something. */
static void test_no_memory(void **state) {
    (void)state;
    char *dir = temp_dir_new();
    shift_checkpoint(test_data("checkpoints/tiny-a"), dir, 3);
    for (int onwards = 0; onwards < 2; onwards++) {
        unsigned failures = 0;
        for (uint64_t i = 0;; i++, failures++) {
            weights *w;
            calla_error err = {0};
            failing f = {mem_allocations() + i, onwards};
            mem_set_failure(fail_allocation, &f);
            const calla_status status = weights_open(dir, &w, &err);
            const bool reached = mem_allocations() > f.from;
            mem_set_failure(NULL, NULL);
            if (!status) {
                assert_false(reached);
                weights_close(w);
                break;
            }
            if (status != CALLA_E_NOMEM) fail_msg("allocation %u: %s", failures, err.message);
            assert_non_null(strstr(err.message, "memory"));
            assert_null(w);
        }
        assert_true(failures > 20);
    }
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders),    cmocka_unit_test(test_pocket_generation), cmocka_unit_test(test_each_tensor),
        cmocka_unit_test(test_alignments), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

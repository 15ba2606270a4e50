/* What calla eval and calla selftest compute and read: distributions, the file of --record, recorded runs. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "cli/record.h"
#include "cli/recorded_runs.h"
#include "support/temp_dir.h"

enum { N = 500 };

static void random_logits(float *x, uint32_t n, uint64_t seed, float scale) {
    for (uint32_t i = 0; i < n; i++) x[i] = scale * (random_uniform(seed, 0, i) - 0.5f);
}

/* ---- distributions ---- */

static double exact_log_sum(const float *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i]);
    return log(sum);
}

static void test_top(void **state) {
    (void)state;
    static float x[N];
    random_logits(x, N, 1, 20);
    x[17] = x[400] = x[3] = 11; /* equal ones, the largest: the lowest id first */
    row_top row;
    assert_true(distribution_top(x, N, 250, TOP_MAX, &row));
    const double sum = exact_log_sum(x, N);
    assert_int_equal(row.n, TOP_MAX);
    assert_int_equal(row.ids[0], 3);
    assert_int_equal(row.ids[1], 17);
    assert_int_equal(row.ids[2], 400);
    double mass = exp((double)row.rest_logprob);
    for (uint32_t i = 0; i < row.n; i++) {
        assert_true(i == 0 || row.logprobs[i] <= row.logprobs[i - 1]);
        assert_true(fabs((double)row.logprobs[i] - ((double)x[row.ids[i]] - sum)) < 1e-5);
        mass += exp((double)row.logprobs[i]);
        uint32_t larger = 0;
        for (uint32_t j = 0; j < N; j++) larger += x[j] > x[row.ids[i]];
        assert_true(larger <= i);
    }
    assert_true(fabs(mass - 1) < 1e-5);
    assert_true(fabs((double)row.target_logprob - ((double)x[250] - sum)) < 1e-5);
    assert_true(distribution_top(x, 5, 0, TOP_MAX, &row)); /* all by name */
    assert_int_equal(row.n, 5);
    assert_true(isinf(row.rest_logprob) && row.rest_logprob < 0);
    for (int i = 0; i < N; i++) x[i] = 2; /* ties everywhere, at the end of the named ones as well */
    assert_true(distribution_top(x, N, 0, 8, &row));
    assert_true(fabs((double)row.rest_logprob - log(492.0 / 500)) < 1e-6);
    x[499] = NAN;
    assert_false(distribution_top(x, N, 0, 1, &row));
    x[499] = -INFINITY;
    assert_false(distribution_top(x, N, 0, 1, &row));
}

/* KL over the named outcomes and the rest, in the plainest way. */
static double plain_divergence(const row_top *p, const float *x, uint32_t n) {
    const double log_sum = exact_log_sum(x, n);
    double kl = 0, rest = 1;
    for (uint32_t i = 0; i < p->n; i++) {
        const double q = (double)x[p->ids[i]] - log_sum;
        kl += exp((double)p->logprobs[i]) * ((double)p->logprobs[i] - q);
        rest -= exp(q);
    }
    return kl + exp((double)p->rest_logprob) * ((double)p->rest_logprob - log(rest));
}

static void test_divergence(void **state) {
    (void)state;
    static float x[N], y[N], scratch[N];
    row_top p;
    for (uint64_t seed = 0; seed < 20; seed++) {
        random_logits(x, N, seed, 10);
        assert_true(distribution_top(x, N, 0, TOP_MAX, &p));
        const double self = distribution_divergence(&p, x, N, scratch);
        assert_true(self >= 0 && self < 1e-6);
        for (uint32_t i = 0; i < N; i++) y[i] = x[i] + 0.2f * (random_uniform(seed, 1, i) - 0.5f) + 3; /* a shift changes nothing */
        const double kl = distribution_divergence(&p, y, N, scratch), plain = plain_divergence(&p, y, N);
        assert_true(kl > 1e-5 && fabs(kl - plain) < 1e-7 + 1e-3 * plain);
        double all = 0; /* over each outcome by itself it can only be more */
        for (uint32_t i = 0; i < N; i++) {
            const double a = (double)x[i] - exact_log_sum(x, N), b = (double)y[i] - exact_log_sum(y, N);
            all += exp(a) * (a - b);
        }
        assert_true(kl <= all + 1e-6);
    }
    /* two outcomes: (0.9, 0.1) from (0.5, 0.5) */
    const float known[2] = {logf(0.9f), logf(0.1f)}, even[2] = {1, 1};
    assert_true(distribution_top(known, 2, 0, 1, &p));
    assert_true(fabs(distribution_divergence(&p, even, 2, scratch) - (0.9 * log(1.8) + 0.1 * log(0.2))) < 1e-6);
    /* mass where the other has none at all: large, but a number */
    const float lonely[2] = {0, -5000};
    assert_true(distribution_top(even, 2, 0, 1, &p));
    const double far = distribution_divergence(&p, lonely, 2, scratch);
    assert_true(isfinite(far) && far > 100);
}

static void test_percentile(void **state) {
    (void)state;
    float x[200];
    for (int i = 0; i < 200; i++) x[i] = (float)((i * 77) % 200 + 1); /* 1 … 200 in some order */
    assert_true(distribution_percentile(x, 200, 0.99) == 198);
    assert_true(distribution_percentile(x, 200, 0.5) == 100);
    assert_true(distribution_percentile(x, 200, 1) == 200);
    assert_true(distribution_percentile(x, 1, 0.99) == 1);
}

/* ---- the file of --record ---- */

static const char about[] = "{\"calla\":\"test\"}";

static void make_record(buffer *b, uint32_t positions, uint32_t top) {
    float x[40];
    const record r = {.top = top,
                      .vocabulary_rows = 40,
                      .positions = positions,
                      .window = 8,
                      .stride = 4,
                      .tokens = 99,
                      .about = about,
                      .n_about = sizeof about - 1};
    record_append_header(b, &r);
    for (uint32_t i = 0; i < positions; i++) {
        row_top row;
        random_logits(x, 40, i, 12);
        assert_true(distribution_top(x, 40, (int32_t)i, top, &row));
        record_append_row(b, &row);
    }
    assert_false(b->failed);
}

static void test_record_is_read_back(void **state) {
    (void)state;
    const uint32_t tops[] = {1, 5, 40};
    for (int t = 0; t < 3; t++) {
        buffer b = {0};
        make_record(&b, 7, tops[t]);
        record r;
        calla_error err = {0};
        if (record_parse(b.data, b.n, "f", &r, &err)) fail_msg("%s", err.message);
        assert_int_equal(r.positions, 7);
        assert_int_equal(r.top, tops[t]);
        assert_int_equal(r.window, 8);
        assert_int_equal(r.stride, 4);
        assert_true(r.tokens == 99);
        assert_int_equal(r.n_about, sizeof about - 1);
        assert_memory_equal(r.about, about, r.n_about);
        for (uint32_t i = 0; i < 7; i++) {
            float x[40];
            row_top want, got;
            random_logits(x, 40, i, 12);
            assert_true(distribution_top(x, 40, (int32_t)i, tops[t], &want));
            record_row(&r, i, &got);
            assert_int_equal(got.target, i);
            assert_memory_equal(got.ids, want.ids, tops[t] * 4);
            assert_memory_equal(got.logprobs, want.logprobs, tops[t] * 4);
            assert_memory_equal(&got.rest_logprob, &want.rest_logprob, 4);
            assert_memory_equal(&got.target_logprob, &want.target_logprob, 4);
        }
        buffer_free(&b);
    }
}

/* One u32 of a good file replaced; every such file must be refused with a message that names it. */
static void refuse(const buffer *good, size_t at, uint32_t value) {
    char *data = mem_alloc(good->n);
    assert_non_null(data);
    memcpy(data, good->data, good->n);
    memcpy(data + at, &value, 4);
    record r;
    calla_error err = {0};
    if (!record_parse(data, good->n, "the-file", &r, &err)) fail_msg("offset %zu: accepted %u", at, value);
    assert_non_null(strstr(err.message, "the-file"));
    assert_null(r.rows);
    mem_free(data);
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static void test_broken_records(void **state) {
    (void)state;
    buffer b = {0};
    make_record(&b, 3, 5);
    const size_t rows = 48 + sizeof about - 1, second = rows + 12 + 5 * 8;
    refuse(&b, 0, 0);  /* magic */
    refuse(&b, 8, 2);  /* version */
    refuse(&b, 12, 0); /* top */
    refuse(&b, 12, 65);
    refuse(&b, 12, 4);  /* then the size is wrong */
    refuse(&b, 16, 4);  /* fewer rows of vocabulary than named tokens */
    refuse(&b, 16, 20); /* ids beyond it */
    refuse(&b, 20, 0);  /* positions */
    refuse(&b, 20, 4);
    refuse(&b, 20, UINT32_MAX);
    refuse(&b, 24, 3);          /* window below stride */
    refuse(&b, 28, 0);          /* stride */
    refuse(&b, 40, UINT32_MAX); /* description */
    refuse(&b, 40, sizeof about);
    refuse(&b, 44, 1);
    refuse(&b, 48, 0x20202020);           /* description: not JSON */
    refuse(&b, second, 40);               /* target */
    refuse(&b, second + 4, bits_of(NAN)); /* its log-probability */
    refuse(&b, second + 4, bits_of(-INFINITY));
    refuse(&b, second + 4, bits_of(0.5f));
    refuse(&b, second + 8, bits_of(NAN)); /* the rest's */
    refuse(&b, second + 8, bits_of(INFINITY));
    refuse(&b, second + 8, bits_of(-1e-3f)); /* a sum above one */
    refuse(&b, second + 12, 40);             /* an id */
    refuse(&b, second + 12, UINT32_MAX);
    uint32_t first_id;
    memcpy(&first_id, b.data + second + 12, 4);
    refuse(&b, second + 16, first_id);     /* twice */
    refuse(&b, second + 32, bits_of(-30)); /* log-probabilities that rise */
    refuse(&b, second + 36, bits_of(NAN));
    record r;
    calla_error err;
    for (size_t n = 0; n < b.n; n++) assert_int_not_equal(record_parse(b.data, n, "f", &r, &err), CALLA_OK);
    buffer_append_char(&b, 0);
    assert_int_equal(record_parse(b.data, b.n, "f", &r, &err), CALLA_E_FORMAT);
    buffer_free(&b);
}

static void test_token_hash(void **state) {
    (void)state;
    const int32_t a[] = {1, 2, 3}, b[] = {1, 3, 2}, c[] = {1, 2, 3, 0};
    assert_true(record_hash_tokens(NULL, 0) == 0xCBF29CE484222325u);
    assert_true(record_hash_tokens(a, 3) != record_hash_tokens(b, 3));
    assert_true(record_hash_tokens(a, 3) == record_hash_tokens(c, 3));
    assert_true(record_hash_tokens(a, 3) != record_hash_tokens(c, 4));
}

/* ---- recorded runs ---- */

static char *folder;

static void put(const char *name, const char *text) { write_file(folder, name, text, strlen(text)); }

static int open_folder(void **state) {
    (void)state;
    folder = temp_dir_new();
    return 0;
}

static int close_folder(void **state) {
    (void)state;
    temp_dir_remove(folder);
    return 0;
}

static const char good_index[] = "{\"model\":\"m\",\"shape\":{\"hidden\":8},\"bits\":4,\"runs\":[\"a.json\"]}";
static const char good_run[] = "{\"prompt_token_ids\":[5,6],\"steps\":["
                               "{\"chosen\":7,\"topk\":[[7,-0.125],[8,-0.25],[9,-3]]},{\"chosen\":9,\"topk\":[[9,-1.5]]}],\"more\":null}";

static void test_runs_are_read(void **state) {
    (void)state;
    calla_error err = {0};
    recorded_index index;
    recorded_run run;
    put("runs.json", good_index);
    put("a.json", good_run);
    if (recorded_index_open(folder, &index, &err)) fail_msg("%s", err.message);
    assert_int_equal(index.n, 1);
    assert_int_equal(index.bits, 4);
    assert_string_equal(index.model, "m");
    if (recorded_run_open(folder, recorded_index_file(&index, 0), &run, &err)) fail_msg("%s", err.message);
    const int32_t ids[] = {5, 6, 7, 9};
    assert_int_equal(run.n_prompt, 2);
    assert_int_equal(run.n_steps, 2);
    assert_memory_equal(run.ids, ids, sizeof ids);
    assert_true(recorded_step_gap(&run.steps[0], 7) == 0);
    assert_true(recorded_step_gap(&run.steps[0], 8) == 0.125f);
    assert_true(recorded_step_gap(&run.steps[0], 9) == 2.875f);
    assert_true(recorded_step_gap(&run.steps[0], 10) < 0);
    recorded_run_close(&run);
    recorded_index_close(&index);
}

static void test_broken_runs(void **state) {
    (void)state;
    static const char *const indexes[] = {
        "",
        "[]",
        "{}",
        "{\"model\":\"m\",\"shape\":{},\"bits\":4,\"runs\":[\"a.json\"]}",
        "{\"model\":\"m\",\"shape\":{\"hidden\":8},\"bits\":4,\"runs\":[]}",
        "{\"model\":\"m\",\"shape\":{\"hidden\":8},\"bits\":4,\"runs\":[\"../a.json\"]}",
        "{\"model\":\"m\",\"shape\":{\"hidden\":8},\"bits\":4,\"runs\":[7]}",
        "{\"model\":\"m\",\"shape\":{\"hidden\":8},\"bits\":\"4\",\"runs\":[\"a.json\"]}",
    };
    static const char *const runs[] = {
        "",
        "7",
        "{\"prompt_token_ids\":[],\"steps\":[{\"chosen\":7,\"topk\":[[7,-1]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[]}",
        "{\"prompt_token_ids\":[-1],\"steps\":[{\"chosen\":7,\"topk\":[[7,-1]]}]}",
        "{\"prompt_token_ids\":[4294967296],\"steps\":[{\"chosen\":7,\"topk\":[[7,-1]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"topk\":[[7,-1]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":7,\"topk\":[]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":7,\"topk\":[[7]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":7,\"topk\":[[7,\"-1\"]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":7,\"topk\":[[7,-1],[8,-0.5]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":7,\"topk\":[[7,1e999]]}]}",
        "{\"prompt_token_ids\":[1],\"steps\":[[]]}",
    };
    calla_error err = {0};
    recorded_index index;
    recorded_run run;
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        put("runs.json", indexes[i]);
        if (recorded_index_open(folder, &index, &err) != CALLA_E_FORMAT) fail_msg("accepted %s", indexes[i]);
        assert_non_null(strstr(err.message, "runs.json"));
    }
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        put("a.json", runs[i]);
        if (recorded_run_open(folder, "a.json", &run, &err) != CALLA_E_FORMAT) fail_msg("accepted %s", runs[i]);
        assert_non_null(strstr(err.message, "a.json"));
    }
    assert_int_equal(recorded_run_open(folder, "missing.json", &run, &err), CALLA_E_IO);
}

static int fail_at(void *user, uint64_t number) { return number == *(uint64_t *)user; }

static void test_runs_without_memory(void **state) {
    (void)state;
    put("a.json", good_run);
    bool done = false;
    uint64_t failures = 0;
    for (uint64_t i = 0; !done; i++) {
        recorded_run run;
        uint64_t victim = mem_allocations() + i;
        mem_set_failure(fail_at, &victim);
        calla_status status = recorded_run_open(folder, "a.json", &run, NULL);
        mem_set_failure(NULL, NULL);
        done = mem_allocations() <= victim;
        if (status) {
            assert_int_equal(status, CALLA_E_NOMEM);
            assert_null(run.ids);
            failures++;
        }
        recorded_run_close(&run);
        assert_true(i < 1000);
    }
    assert_true(failures >= 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_percentile),
        cmocka_unit_test(test_record_is_read_back),
        cmocka_unit_test(test_broken_records),
        cmocka_unit_test(test_token_hash),
        cmocka_unit_test(test_runs_are_read),
        cmocka_unit_test(test_broken_runs),
        cmocka_unit_test(test_runs_without_memory),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}

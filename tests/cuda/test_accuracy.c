/* test_accuracy.c: what fast precision costs, whatever kernels a token goes through: the whole distribution after each token beside that of
 * the cpu in float32, as KL per token; and the same for exact precision on the device.
 *
 * usage: test_accuracy [N]      pocket's first 8 or 16 [16] windows of 1,024 tokens: mean at most 1.5e-4, and no token beyond 0.5
 *        test_accuracy tiny-b…  a few tokens of these checkpoints: all kernels of a whole model, for compute-sanitizer
 *
 * Eight sequences go through each checkpoint as prompts, one row at a time, all eight at once, and in batches that mix rows of prompts with
 * single ones.  The device is cuda, or what CALLA_TEST_DEVICE names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "model/model.h"
#include "support/arrays.h"
#include "unit.h"

enum { SEQUENCES = 8, ROWS = 256 };

typedef enum way { PROMPTS, SINGLE, TOGETHER, MIXED, WAYS } way;
static const char *const way_name[WAYS] = {"prompts", "row by row", "eight at once", "mixed batches"};

typedef struct tally {
    double sum, worst;
    size_t n, same;
} tally;

typedef struct texts {
    const weights *w;
    const int32_t *ids; /* [SEQUENCES][length] */
    uint32_t length, V;
    float *want; /* [SEQUENCES][length][V] log-probabilities; while they are made: logits */
} texts;

static void to_logprobs(float *row, uint32_t n) {
    double max = (double)row[0], sum = 0;
    for (uint32_t i = 1; i < n; i++) max = (double)row[i] > max ? (double)row[i] : max;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)row[i] - max);
    const double all = max + log(sum);
    for (uint32_t i = 0; i < n; i++) row[i] = (float)((double)row[i] - all);
}

static uint32_t best_of(const float *row, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static void compare(tally *t, const float *want, const float *logits, uint32_t n) {
    float *got = malloc(n * sizeof *got);
    double kl = 0;
    assert_non_null(got);
    memcpy(got, logits, n * sizeof *got);
    to_logprobs(got, n);
    for (uint32_t i = 0; i < n; i++) kl += exp((double)want[i]) * ((double)want[i] - (double)got[i]);
    t->n++;
    t->same += best_of(want, n) == best_of(got, n);
    t->sum += kl;
    if (!(kl <= t->worst)) t->worst = isnan(kl) ? INFINITY : kl;
    free(got);
}

/* How many of a sequence's next tokens go into the next batch. */
static uint32_t rows_of(way how, uint32_t which, const uint32_t *done, uint32_t tokens, uint32_t budget, uint64_t *random) {
    uint32_t rows = 1;
    if (how == PROMPTS || how == SINGLE) {
        for (uint32_t i = 0; i < which; i++)
            if (done[i] < tokens) return 0; /* one after the other */
        rows = how == PROMPTS ? ROWS : 1;
    } else if (how == MIXED && random_mix(*random += 0x9E3779B97F4A7C15u) % 4 == 0) {
        rows = 1 + (uint32_t)(random_mix(*random) >> 20) % 150;
    }
    rows = rows < tokens - done[which] ? rows : tokens - done[which];
    return rows < budget ? rows : budget;
}

/* The first `tokens` of the first `sequences`.  t NULL: keeps the logits as what is wanted. */
static void run(const texts *x, uint32_t sequences, uint32_t tokens, const char *device, bool fast, way how, tally *t) {
    calla_error err;
    model *m;
    sequence *s[SEQUENCES];
    uint32_t done[SEQUENCES] = {0};
    uint64_t random = 7;
    const model_options o = {.backend = backend_find(device),
                             .batch_rows = ROWS,
                             .max_segments = SEQUENCES,
                             .max_wanted = ROWS,
                             .sequences = SEQUENCES,
                             .kv_tokens = SEQUENCES * (x->length + KV_PAGE_TOKENS),
                             .kv = fast ? CALLA_KV_BF16 : CALLA_KV_F32,
                             .fast = fast};
    if (model_open(x->w, &o, &m, &err)) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < SEQUENCES; i++) assert_int_equal(sequence_open(m, &s[i], &err), CALLA_OK);
    for (uint32_t n = 1; n;) {
        model_segment g[SEQUENCES];
        uint32_t of[SEQUENCES], budget = ROWS;
        n = 0;
        for (uint32_t i = 0; i < sequences; i++) {
            const uint32_t rows = done[i] < tokens ? rows_of(how, i, done, tokens, budget, &random) : 0;
            if (!rows) continue;
            budget -= rows;
            of[n] = i;
            g[n++] = (model_segment){.sequence = s[i], .ids = x->ids + (size_t)i * x->length + done[i], .rows = rows, .want = WANT_ALL};
        }
        if (!n) break;
        if (model_step(m, g, n, NULL, NULL, &err)) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < g[i].rows; r++) {
                float *want = x->want + ((size_t)of[i] * x->length + done[of[i]]++) * x->V;
                if (t)
                    compare(t, want, model_logits(m, i, r), x->V);
                else
                    memcpy(want, model_logits(m, i, r), x->V * sizeof *want);
            }
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) sequence_close(s[i]);
    model_close(m);
}

static void find_wanted(const texts *x) {
    run(x, SEQUENCES, x->length, "cpu", false, PROMPTS, NULL);
    for (size_t i = 0; i < (size_t)SEQUENCES * x->length; i++) to_logprobs(x->want + i * x->V, x->V);
}

static const char *device(void) {
    const char *name = getenv("CALLA_TEST_DEVICE");
    return name ? name : "cuda";
}

static bool judge(const char *what, const char *precision, const char *how, const tally *t, double mean, double worst) {
    const bool good = t->sum / (double)t->n <= mean && t->worst <= worst;
    print_message("%s, %s, %s: %zu tokens, KL %.1e on average, %.1e at most, the best token the same in %.2f %%%s\n", what, precision, how,
                  t->n, t->sum / (double)t->n, t->worst, 100.0 * (double)t->same / (double)t->n, good ? "" : ": TOO FAR");
    return good;
}

static texts open_texts(const weights *w, uint32_t length) {
    texts x = {.w = w, .length = length, .V = w->shape.vocabulary};
    x.want = malloc((size_t)SEQUENCES * length * x.V * sizeof *x.want);
    assert_non_null(x.want);
    return x;
}

static uint32_t windows = 16;

static void test_pocket(void **state) {
    (void)state;
    enum { WINDOW = 1024, WINDOWS = 16 };
    calla_error err;
    weights *w;
    size_t n;
    arrays *ref = arrays_open(test_data("model/pocket.eval.safetensors"));
    int32_t *ids = arrays_i32(ref, "ids", &n);
    tally fast[WAYS] = {0}, exact = {0};
    assert_int_equal(n, WINDOW * WINDOWS + 1);
    if (weights_open(test_models("pocket"), &w, &err)) fail_msg("%s", err.message);
    texts x = open_texts(w, WINDOW);
    for (uint32_t i = 0; i < windows; i += SEQUENCES) {
        x.ids = ids + (size_t)i * WINDOW;
        find_wanted(&x);
        run(&x, SEQUENCES, WINDOW, device(), false, PROMPTS, &exact);
        for (way how = 0; how < WAYS; how++) run(&x, SEQUENCES, how == SINGLE ? 128 : WINDOW, device(), true, how, &fast[how]);
    }
    bool good = judge("pocket", "exact", way_name[PROMPTS], &exact, 1e-8, 1e-5);
    for (way how = 0; how < WAYS; how++) good &= judge("pocket", "fast", way_name[how], &fast[how], 1.5e-4, 0.5);
    assert_true(good);
    free(x.want), free(ids);
    weights_close(w);
    arrays_close(ref);
}

static char **names; /* of checkpoints, NULL behind the last */

/* Random weights, so that routers are near ties all the time and a token may go another way: limits are wide, since what is looked for here
 * is what a sanitizer sees. */
static void test_checkpoints(void **state) {
    (void)state;
    enum { LENGTH = 40 };
    static const uint32_t tokens[WAYS] = {LENGTH, 2, 4, LENGTH}, sequences[WAYS] = {2, 2, SEQUENCES, 3};
    bool good = true;
    for (char **name = names; *name; name++) {
        calla_error err;
        weights *w;
        char path[64];
        int32_t ids[SEQUENCES * LENGTH];
        snprintf(path, sizeof path, "checkpoints/%.40s", *name);
        if (weights_open(test_data(path), &w, &err)) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < SEQUENCES * LENGTH; i++) ids[i] = (int32_t)(random_mix(i + 1) % 256);
        texts x = open_texts(w, LENGTH);
        x.ids = ids;
        find_wanted(&x);
        for (way how = 0; how < WAYS; how++) {
            tally t = {0};
            run(&x, sequences[how], tokens[how], device(), true, how, &t);
            good &= judge(*name, "fast", way_name[how], &t, 0.1, 4);
        }
        free(x.want);
        weights_close(w);
    }
    assert_true(good);
}

int main(int argc, char **argv) {
    const struct CMUnitTest pocket[] = {cmocka_unit_test(test_pocket)}, checkpoints[] = {cmocka_unit_test(test_checkpoints)};
    names = argv + 1;
    if (argc > 1 && atoi(argv[1])) windows = (uint32_t)atoi(argv[1]) == SEQUENCES ? SEQUENCES : 2 * SEQUENCES;
    return argc > 1 && !atoi(argv[1]) ? cmocka_run_group_tests(checkpoints, NULL, NULL) : cmocka_run_group_tests(pocket, NULL, NULL);
}

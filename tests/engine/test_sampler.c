/* The reference sampler: cases computed by hand, invariants, and the distribution of what it draws. */
#include "unit.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "backend/ref/sample.h"
#include "base/clock.h"
#include "base/random.h"
#include "support/arrays.h"

#define MAX_ROWS 300000u

static uint64_t scratch[MAX_ROWS * 3];

static sample_request neutral(uint32_t tokens) { return (sample_request){.tokens = tokens, .temperature = 1, .top_p = 1, .repetition = 1}; }

static sample_result pick(const float *logits, uint32_t rows, const sample_request *r) {
    sample_result out;
    assert_true(rows <= MAX_ROWS && ref_sample_scratch_bytes(rows) <= sizeof scratch);
    ref_sample(logits, rows, r, scratch, &out);
    return out;
}

static int32_t greedy(const float *logits, uint32_t rows, sample_request r) {
    r.temperature = 0;
    return pick(logits, rows, &r).id;
}

/* ids [8]: how often each of the first 8 tokens was drawn at `draws` positions. */
static void draw_many(const float *logits, uint32_t rows, sample_request r, uint32_t draws, uint32_t *counts) {
    for (int i = 0; i < 8; i++) counts[i] = 0;
    for (r.position = 0; r.position < draws; r.position++) {
        int32_t id = pick(logits, rows, &r).id;
        assert_in_range(id, 0, 7);
        counts[id]++;
    }
}

static void test_exp(void **state) {
    (void)state;
    assert_true(sample_exp(0.0f) == 1.0f);
    assert_true(sample_exp(-28.1f) == 0.0f && sample_exp(-INFINITY) == 0.0f && sample_exp(NAN) == 0.0f);
    for (int i = 0; i < 70000; i++) {
        float z = -0.0004f * (float)i;
        double truth = exp((double)z);
        assert_true(fabs((double)sample_exp(z) - truth) <= truth * 0x1p-23);
    }
}

static void test_greedy(void **state) {
    (void)state;
    float ties[6] = {1, 3, 2, 3, -0.0f, 3};
    assert_int_equal(greedy(ties, 6, neutral(6)), 1); /* the lowest id of equal ones */
    float zeros[3] = {-0.0f, 0.0f, -0.0f};
    assert_int_equal(greedy(zeros, 3, neutral(3)), 0);
    float padded[4] = {1, 2, 9, 9};
    assert_int_equal(greedy(padded, 4, neutral(2)), 1); /* padding rows are never picked */
    float wild[4] = {NAN, -INFINITY, -FLT_MAX, NAN};
    assert_int_equal(greedy(wild, 4, neutral(4)), 2);
    float endless[3] = {5, INFINITY, INFINITY};
    assert_int_equal(greedy(endless, 3, neutral(3)), 1);
}

static void test_nothing_allowed(void **state) {
    (void)state;
    float bad[3] = {NAN, -INFINITY, NAN}, good[3] = {1, 2, 3};
    uint32_t none = 0;
    for (int t = 0; t < 2; t++) {
        sample_request r = neutral(3);
        r.temperature = (float)t;
        r.logprob = true;
        r.n_top = 3;
        sample_result out = pick(bad, 3, &r);
        assert_int_equal(out.id, -1);
        assert_int_equal(out.n_top, 0);
        r.mask = &none;
        assert_int_equal(pick(good, 3, &r).id, -1);
    }
}

static void test_nan_is_never_drawn(void **state) {
    (void)state;
    float x[8] = {NAN, 0, NAN, 0, -INFINITY, 0, NAN, NAN};
    sample_request r = neutral(8);
    uint32_t counts[8];
    draw_many(x, 8, r, 3000, counts);
    assert_int_equal(counts[1] + counts[3] + counts[5], 3000);
    float endless[8] = {INFINITY, 1, INFINITY, 2, NAN, -INFINITY, FLT_MAX, -FLT_MAX};
    draw_many(endless, 8, r, 3000, counts);
    assert_int_equal(counts[0] + counts[2] + counts[6], 3000);
}

/* A15. */
static void test_penalties(void **state) {
    (void)state;
    /* repetition 2: 4 → 2, -1 → -2; once, however often an id was seen in the text */
    float x[4] = {4, 3, -1, -1.5f};
    int32_t seen[2] = {0, 2};
    sample_request r = neutral(4);
    r.seen = seen;
    r.n_seen = 2;
    r.repetition = 2;
    assert_int_equal(greedy(x, 4, r), 1);
    float y[2] = {-1, -1.5f}; /* -1·2 < -1.5 */
    r = neutral(2);
    r.seen = (int32_t[]){0};
    r.n_seen = 1;
    r.repetition = 2;
    assert_int_equal(greedy(y, 2, r), 1);
    r.repetition = 1.4f; /* -1.4 > -1.5 */
    assert_int_equal(greedy(y, 2, r), 0);

    /* presence once, frequency per occurrence: 5 - 0.5 - 3·1 = 1.5; 3 - 0.5 - 1 = 1.5: the lowest id wins; 1.4 stays */
    float z[3] = {5, 3, 1.4f};
    sample_count counts[2] = {{0, 3}, {1, 1}};
    r = neutral(3);
    r.counts = counts;
    r.n_counts = 2;
    r.presence = 0.5f;
    r.frequency = 1;
    assert_int_equal(greedy(z, 3, r), 0);
    counts[0].count = 4;
    assert_int_equal(greedy(z, 3, r), 1);
    counts[1].count = 2;
    assert_int_equal(greedy(z, 3, r), 2);
    counts[0].count = counts[1].count = 0; /* never generated: no presence penalty either */
    assert_int_equal(greedy(z, 3, r), 0);

    /* repetition comes before presence: (4 / 2) - 1 = 1 < 1.2, but (4 - 1) / 2 = 1.5 */
    float w[2] = {4, 1.2f};
    r = neutral(2);
    r.seen = (int32_t[]){0};
    r.n_seen = 1;
    r.repetition = 2;
    r.counts = (sample_count[]){{0, 1}};
    r.n_counts = 1;
    r.presence = 1;
    assert_int_equal(greedy(w, 2, r), 1);
}

static void test_bias_and_mask(void **state) {
    (void)state;
    float x[40] = {[0] = 5, [33] = 4, [39] = 3};
    sample_request r = neutral(40);
    sample_bias bias[3] = {{33, 1.5f}, {39, -100}, {0, 0}};
    r.bias = bias;
    r.n_bias = 3;
    assert_int_equal(greedy(x, 40, r), 33);
    uint32_t mask[2] = {1u << 7, 1u << (39 - 32)}; /* a mask comes after bias: 7 has logit 0, 39 has -97 */
    r.mask = mask;
    assert_int_equal(greedy(x, 40, r), 7);
    mask[0] = 0;
    assert_int_equal(greedy(x, 40, r), 39);
    r.temperature = 1;
    assert_int_equal(pick(x, 40, &r).id, 39);
    sample_bias outside[2] = {{-1, 50}, {40, 50}}; /* no effect, no harm */
    r = neutral(40);
    r.bias = outside;
    r.n_bias = 2;
    assert_int_equal(greedy(x, 40, r), 0);
    sample_bias endless = {5, INFINITY}; /* -inf + inf is NaN, which is -inf */
    float y[6] = {1, 1, 1, 1, 1, -INFINITY};
    r.bias = &endless;
    r.n_bias = 1;
    r.tokens = 6;
    assert_int_equal(greedy(y, 6, r), 0);
}

static void test_top_k_one_is_greedy(void **state) {
    (void)state;
    float x[500];
    for (uint32_t seed = 0; seed < 200; seed++) {
        for (uint32_t i = 0; i < 500; i++) x[i] = floorf(random_uniform(seed, 7, i) * 60); /* many ties */
        sample_request r = neutral(500);
        r.temperature = 1.7f;
        r.top_k = 1;
        r.position = seed;
        int32_t best = greedy(x, 500, r);
        assert_int_equal(pick(x, 500, &r).id, best);
        r.top_k = 0;
        r.top_p = 0; /* at least one candidate stays */
        assert_int_equal(pick(x, 500, &r).id, best);
        r.top_p = 1;
        r.temperature = 1e-30f;
        r.top_k = 400;                    /* by full sort */
        int32_t id = pick(x, 500, &r).id; /* one of the largest */
        assert_true(x[id] == x[best]);
        r.top_k = 0;
        r.min_p = 1;
        id = pick(x, 500, &r).id;
        assert_true(x[id] == x[best]);
    }
}

/* Which of the tokens can be drawn at all, as a bit set. */
static uint32_t support(const float *logits, uint32_t rows, sample_request r) {
    uint32_t counts[8], bits = 0;
    draw_many(logits, rows, r, 20000, counts);
    for (uint32_t i = 0; i < 8; i++) bits |= (counts[i] > 0 ? 1u : 0u) << i;
    return bits;
}

static void test_filters(void **state) {
    (void)state;
    /* probabilities 0.4, 0.3, 0.2, 0.1, in mixed order */
    float x[5] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f), -INFINITY};
    sample_request r = neutral(5);
    assert_int_equal(support(x, 5, r), 0xF);
    r.top_k = 2;
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3);
    r.top_k = 300; /* more than there are */
    assert_int_equal(support(x, 5, r), 0xF);
    r = neutral(5);
    r.top_p = 0.69f; /* 0.4 + 0.3 reaches it */
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3);
    r.top_p = 0.71f;
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3 | 1 << 2);
    r = neutral(5);
    r.min_p = 0.51f; /* of 0.4: 0.204 */
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3);
    r.min_p = 0.49f;
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3 | 1 << 2);
    /* the order: top-p counts what top-k left: of 0.4 and 0.3 the first has 0.571, so 0.55 keeps one; of all four, two */
    r = neutral(5);
    r.top_p = 0.55f;
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3);
    r.top_k = 2;
    assert_int_equal(support(x, 5, r), 1 << 1);
    /* temperature comes first: at 4 the probabilities are 0.306, 0.285, 0.257, 0.217 (of 1.065) */
    r = neutral(5);
    r.temperature = 4;
    r.min_p = 0.8f; /* 0.2 / 0.4 → 0.841, 0.1 / 0.4 → 0.707 */
    assert_int_equal(support(x, 5, r), 1 << 1 | 1 << 3 | 1 << 2);
    /* ties at the edge of top-k: the lowest id stays */
    float ties[4] = {1, 2, 1, 1};
    r = neutral(4);
    r.top_k = 2;
    assert_int_equal(support(ties, 4, r), 1 << 1 | 1 << 0);
}

/* The heap (top_k up to 256), the full sort, and a naive sort must agree on the candidates and so on every draw. */
static int by_logit(const void *a, const void *b) {
    const calla_token_logprob *x = a, *y = b;
    if (x->logprob != y->logprob) return x->logprob > y->logprob ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t naive(const float *logits, uint32_t n, const sample_request *r) {
    static calla_token_logprob sorted[2000];
    for (uint32_t i = 0; i < n; i++) sorted[i] = (calla_token_logprob){(int32_t)i, logits[i]};
    qsort(sorted, n, sizeof *sorted, by_logit);
    uint32_t kept = r->top_k && r->top_k < n ? r->top_k : n;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < kept; i++) total += exp((double)(sorted[i].logprob - sorted[0].logprob) / (double)r->temperature);
    for (uint32_t i = 0; i < kept; i++) {
        double w = exp((double)(sorted[i].logprob - sorted[0].logprob) / (double)r->temperature);
        if (i && (sum >= (double)r->top_p * total || w < (double)r->min_p))
            kept = i;
        else
            sum += w;
    }
    double target = (double)random_uniform(r->seed, r->choice, r->position) * sum;
    sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        sum += exp((double)(sorted[i].logprob - sorted[0].logprob) / (double)r->temperature);
        if (sum > target) return sorted[i].id;
    }
    return sorted[0].id;
}

static void test_against_naive(void **state) {
    (void)state;
    static float x[2000];
    uint32_t differ = 0, draws = 0;
    for (uint32_t trial = 0; trial < (test_short() ? 300 : 1500); trial++) {
        uint32_t n = 1 + (uint32_t)(random_uniform(trial, 0, 0) * 1999);
        for (uint32_t i = 0; i < n; i++) x[i] = (random_uniform(trial, 1, i) - 0.5f) * 16;
        for (uint32_t i = 0; i < n; i += 3) x[i] = roundf(x[i]); /* some ties */
        sample_request r = neutral(n);
        r.seed = trial;
        r.temperature = 0.3f + random_uniform(trial, 2, 0) * 2;
        const uint32_t ks[6] = {0, 1, 20, 256, 257, 1000};
        r.top_k = ks[trial % 6];
        r.top_p = trial % 4 < 2 ? 1.0f : 0.2f + 0.79f * random_uniform(trial, 2, 1);
        r.min_p = trial % 8 < 4 ? 0.0f : 0.3f * random_uniform(trial, 2, 2);
        for (r.position = 0; r.position < 4; r.position++) {
            differ += pick(x, n, &r).id != naive(x, n, &r);
            draws++;
        }
    }
    assert_true(differ * 1000 < draws); /* only where rounding decides: the target falls on the edge between two candidates */
}

static void test_distribution(void **state) {
    (void)state;
    const double p[8] = {0.30, 0.22, 0.16, 0.12, 0.09, 0.06, 0.035, 0.015};
    float x[8];
    for (int i = 0; i < 8; i++) x[7 - i] = logf((float)p[i]) + 3;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        sample_request r = neutral(8);
        r.seed = seed;
        r.choice = (uint32_t)(seed % 3);
        r.top_k = seed % 2 ? 0 : 8;
        uint32_t counts[8];
        const uint32_t n = test_short() ? 10000 : 40000;
        draw_many(x, 8, r, n, counts);
        double chi = 0;
        for (int i = 0; i < 8; i++) chi += pow(counts[7 - i] - p[i] * n, 2) / (p[i] * n);
        assert_true(chi < 24.3); /* 7 degrees of freedom: 0.1 % lie above; the seeds are fixed */
        assert_true(chi > 0.6);  /* and 0.1 % below */
    }
    /* at temperature 2 the probabilities go with their square roots */
    double root = 0;
    for (int i = 0; i < 8; i++) root += sqrt(p[i]);
    sample_request r = neutral(8);
    r.temperature = 2;
    uint32_t counts[8];
    draw_many(x, 8, r, 40000, counts);
    double chi = 0;
    for (int i = 0; i < 8; i++) chi += pow(counts[7 - i] - sqrt(p[i]) / root * 40000, 2) / (sqrt(p[i]) / root * 40000);
    assert_true(chi < 24.3);
}

static void test_random_number(void **state) {
    (void)state;
    float x[64] = {0};
    uint32_t same_seed = 0, same_choice = 0, same_position = 0;
    for (uint32_t i = 0; i < 500; i++) {
        sample_request r = neutral(64);
        r.seed = i;
        r.position = i * 3;
        int32_t id = pick(x, 64, &r).id;
        assert_int_equal(id, (int32_t)(random_uniform(i, 0, i * 3) * 64)); /* equal weights: the u-th of them */
        assert_int_equal(pick(x, 64, &r).id, id);
        r.choice = 1;
        same_choice += pick(x, 64, &r).id == id;
        r.choice = 0;
        r.position++;
        same_position += pick(x, 64, &r).id == id;
        r.position--;
        r.seed += 1000;
        same_seed += pick(x, 64, &r).id == id;
    }
    assert_true(same_seed < 25 && same_choice < 25 && same_position < 25); /* 1 in 64 by chance */
}

static void test_logprobs(void **state) {
    (void)state;
    float x[6] = {1, 2, 3, 3, 0, 10}; /* the last one is padding: it counts in the sum but is never reported */
    double sum = exp(1) + exp(2) + 2 * exp(3) + 1 + exp(10);
    sample_request r = neutral(5);
    r.temperature = 0;
    r.logprob = true;
    r.n_top = 3;
    r.bias = (sample_bias[]){{4, 50}};
    r.n_bias = 1;
    sample_result out = pick(x, 6, &r);
    assert_int_equal(out.id, 4); /* by its bias, which the log-probability does not know */
    assert_true(fabs((double)out.logprob + log(sum)) < 1e-6);
    assert_int_equal(out.n_top, 3);
    const int32_t best[3] = {2, 3, 1};
    const double logit[3] = {3, 3, 2};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.top[i].id, best[i]);
        assert_true(fabs((double)out.top[i].logprob - (logit[i] - log(sum))) < 1e-6);
    }
    r.n_top = 20;
    out = pick(x, 6, &r);
    assert_int_equal(out.n_top, 5); /* no more than there are */
    r.logprob = false;
    assert_int_equal(pick(x, 6, &r).n_top, 0);

    static float large[MAX_ROWS]; /* a million-fold sum keeps its digits: all equal → -log n */
    sample_request q = neutral(MAX_ROWS);
    q.logprob = true;
    for (uint32_t i = 0; i < MAX_ROWS; i++) large[i] = 80;
    assert_true(fabs((double)pick(large, MAX_ROWS, &q).logprob + log(MAX_ROWS)) < 1e-6);
}

static void test_large_vocabulary(void **state) {
    (void)state;
    const uint32_t n = 248320;
    static float x[248320];
    for (uint32_t i = 0; i < n; i++) {
        float u = random_uniform(5, 0, i) + random_uniform(5, 1, i) + random_uniform(5, 2, i);
        x[i] = (u - 1.5f) * 8;
    }
    /* A flat distribution has more mass in its tail than float32 could add up: of n equal weights each part of the range is as likely. */
    static float flat[248320];
    uint32_t part[10] = {0};
    sample_request r = neutral(n);
    for (r.position = 0; r.position < 400; r.position++) part[pick(flat, n, &r).id * 10LL / n]++;
    for (int i = 0; i < 10; i++) assert_in_range(part[i], 15, 70);

    r = neutral(n);
    r.top_p = 0.95f;
    uint64_t start = clock_now_ns();
    int32_t sum = 0;
    for (r.position = 0; r.position < 20; r.position++) sum ^= pick(x, n, &r).id;
    uint64_t sorted = clock_now_ns() - start;
    r.top_k = 20;
    start = clock_now_ns();
    for (r.position = 0; r.position < 20; r.position++) sum ^= pick(x, n, &r).id;
    uint64_t heaped = clock_now_ns() - start;
    print_message("248,320 logits: top-p %.2f ms, top-k 20 %.2f ms a token (%d)\n", (double)sorted / 20e6, (double)heaped / 20e6, sum & 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_nothing_allowed),
        cmocka_unit_test(test_nan_is_never_drawn),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_bias_and_mask),
        cmocka_unit_test(test_top_k_one_is_greedy),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_against_naive),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_random_number),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

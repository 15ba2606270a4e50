/* test_bpe.c: merging against the rule itself, done the slow way, on random merge tables: orderly ones, and such in which a merge comes
 * before the one that makes its parts; and the queue against a plain search. */
#include "../unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "text/bpe.h"

enum { ALPHABET = 4, MERGES = 60, MAX_WORD = 400 };

static uint64_t seed;
static uint64_t draw(uint64_t n) { return random_mix(seed += 0x9E3779B97F4A7C15u) % n; }

/* ids 0 … 255 are bytes, 256 … are results. */
typedef struct table {
    int32_t left[MERGES], right[MERGES], result[MERGES];
    size_t n;
    bpe bpe;
} table;

/* Random merges over the first few bytes.  Tokens are made in a random order first; a shuffle of some ranks then puts uses before
 * their makers. */
static void make_table(table *t, bool shuffle) {
    int32_t byte_ids[256];
    for (int i = 0; i < 256; i++) byte_ids[i] = i;
    t->n = 0;
    while (t->n < MERGES) {
        const int32_t known = ALPHABET + (int32_t)t->n;
        int32_t part[2];
        for (int k = 0; k < 2; k++) {
            const int32_t x = (int32_t)draw((uint64_t)known);
            part[k] = x < ALPHABET ? 'a' + x : 256 + x - ALPHABET;
        }
        if (draw(3) == 0) part[1] = part[0]; /* a pair of equals can overlap itself */
        size_t i = 0;
        while (i < t->n && (t->left[i] != part[0] || t->right[i] != part[1])) i++;
        if (i < t->n) continue;
        t->left[t->n] = part[0];
        t->right[t->n] = part[1];
        t->result[t->n] = 256 + (int32_t)t->n;
        t->n++;
    }
    for (size_t swaps = shuffle ? MERGES : 0; swaps--;) {
        const size_t a = draw(MERGES), b = draw(MERGES);
        const int32_t left = t->left[a], right = t->right[a], result = t->result[a];
        t->left[a] = t->left[b], t->right[a] = t->right[b], t->result[a] = t->result[b];
        t->left[b] = left, t->right[b] = right, t->result[b] = result;
    }
    assert_true(bpe_init(&t->bpe, byte_ids, MERGES));
    for (size_t i = 0; i < t->n; i++) assert_true(bpe_add(&t->bpe, t->left[i], t->right[i], t->result[i]));
    assert_false(bpe_add(&t->bpe, t->left[3], t->right[3], t->result[3]));
    bpe_seal(&t->bpe);
}

static size_t encode_slowly(const table *t, const unsigned char *word, size_t n, int32_t *out) {
    for (size_t i = 0; i < n; i++) out[i] = word[i];
    for (;;) {
        size_t best_rank = t->n, best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t r = 0; r < best_rank; r++) {
                if (t->left[r] == out[i] && t->right[r] == out[i + 1]) best_rank = r, best = i;
            }
        }
        if (best_rank == t->n) return n;
        out[best] = t->result[best_rank];
        n--;
        memmove(out + best + 1, out + best + 2, (n - best - 1) * sizeof *out);
    }
}

static void compare_tables(bool shuffle) {
    size_t merged = 0;
    for (int round = 0; round < 150; round++) {
        table t;
        make_table(&t, shuffle);
        bpe_work work = {0};
        for (int i = 0; i < 40; i++) {
            unsigned char word[MAX_WORD];
            /* Lengths around the border between the two ways, and some long ones. */
            const size_t n = 1 + draw(i % 4 ? 60 : MAX_WORD);
            const uint64_t letters = 1 + draw(ALPHABET);
            for (size_t k = 0; k < n; k++) word[k] = (unsigned char)('a' + draw(letters));
            int32_t expected[MAX_WORD], got[MAX_WORD];
            const size_t n_expected = encode_slowly(&t, word, n, expected), n_got = bpe_encode(&t.bpe, &work, word, n, got);
            if (n_got != n_expected || memcmp(got, expected, n_got * sizeof *got) != 0)
                fail_msg("round %d, word %d of %zu bytes: %zu ids, expected %zu, or others", round, i, n, n_got, n_expected);
            merged += n - n_got;
        }
        bpe_work_free(&work);
        bpe_free(&t.bpe);
    }
    assert_true(merged > 10000);
}

static void test_orderly_merges(void **state) {
    (void)state;
    seed = 1;
    compare_tables(false);
}

static void test_disorderly_merges(void **state) {
    (void)state;
    seed = 2;
    compare_tables(true);
}

/* Random pushes, removals and pops against an array that is searched. */
static void test_queue(void **state) {
    (void)state;
    enum { N = 300, RANKS = 9000 };
    seed = 3;
    bpe_queue q = {0};
    for (int round = 0; round < 50; round++) {
        assert_true(bpe_queue_reserve(&q, RANKS, N));
        uint32_t rank_of[N];
        memset(rank_of, 0xFF, sizeof rank_of);
        const uint64_t ranks = round % 2 ? RANKS : 5;
        for (int step = 0; step < 3000; step++) {
            const uint32_t at = (uint32_t)draw(N);
            const uint64_t action = draw(5);
            if (action < 3 && rank_of[at] == BPE_QUEUE_END) {
                rank_of[at] = (uint32_t)draw(ranks);
                bpe_queue_push(&q, at, rank_of[at]);
            } else if (action == 3) {
                bpe_queue_remove(&q, at);
                rank_of[at] = BPE_QUEUE_END;
            } else if (action == 4) {
                uint32_t best = BPE_QUEUE_END, rank = 0;
                for (uint32_t i = 0; i < N; i++) {
                    if (rank_of[i] != BPE_QUEUE_END && (best == BPE_QUEUE_END || rank_of[i] < rank_of[best])) best = i;
                }
                assert_int_equal(bpe_queue_pop(&q, &rank), best);
                if (best == BPE_QUEUE_END) continue;
                assert_int_equal(rank, rank_of[best]);
                rank_of[best] = BPE_QUEUE_END;
            }
        }
        for (uint32_t rank; bpe_queue_pop(&q, &rank) != BPE_QUEUE_END;) {
        }
    }
    bpe_queue_free(&q);
}

static int fail_from(void *user, uint64_t number) { return number >= *(uint64_t *)user; }

static void test_out_of_memory(void **state) {
    (void)state;
    seed = 4;
    table t;
    make_table(&t, false);
    unsigned char word[MAX_WORD];
    memset(word, 'a', sizeof word);
    int32_t out[MAX_WORD];
    uint64_t allowed = 0;
    for (size_t n = 0; !n; allowed++) {
        bpe_work work = {0};
        uint64_t first = mem_allocations() + allowed;
        mem_set_failure(fail_from, &first);
        n = bpe_encode(&t.bpe, &work, word, sizeof word, out);
        mem_set_failure(NULL, NULL);
        bpe_work_free(&work);
    }
    assert_true(allowed > 5);
    bpe_free(&t.bpe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orderly_merges),
        cmocka_unit_test(test_disorderly_merges),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

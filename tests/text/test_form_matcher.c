/* test_form_matcher.c: masks and what is taken, against a slow reference that runs the program byte by byte (form_reference.c): at points
 * of random walks, for every token of the vocabulary.
 *
 * usage: test_form_matcher [MODEL_DIR] */
#include "../unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/memory.h"
#include "form_hand.h"
#include "form_reference.h"
#include "form_walk.h"
#include "text/form/form_impl.h"
#include "text/text.h"

static calla_text *text;
static int32_t n_ids, stop_id, call_id, call_end_id, think_id, think_end_id;
static size_t n_words;

typedef struct form_case {
    const char *name;
    bool narrowed;               /* there are more configurations than are kept: masks may allow less than the reference */
    form_program *(*hand)(void); /* written by hand, or compiled of: */
    calla_form_options options;
} form_case;

static const form_case cases[] = {
    {.name = "arrays by hand", .hand = hand_arrays},
    {.name = "calls by hand", .hand = hand_calls},
    {.name = "choices by hand", .narrowed = true, .hand = hand_choices},
#include "form_cases.h"
};
enum { N_CASES = sizeof cases / sizeof *cases };

static calla_form *compile(const form_case *c) {
    calla_form_options options = c->options;
    calla_form *form;
    calla_error err;
    options.n_source = options.source ? strlen(options.source) : 0;
    if (c->hand ? form_open(text, c->hand(), &form, &err) : calla_form_compile(text, &options, &form, &err))
        fail_msg("%s: %s", c->name, err.message);
    return form;
}

static calla_matcher *open_matcher(calla_form *form, bool thinking) {
    calla_matcher *m;
    calla_error err;
    if (calla_matcher_open(form, thinking, &m, &err)) fail_msg("%s", err.message);
    return m;
}

static bool has_bit(const uint32_t *mask, int32_t id) { return mask[id / 32] >> id % 32 & 1; }

static const unsigned char *bytes_of(int32_t id, size_t *n) { return (const unsigned char *)tokenizer_bytes(text->tokenizer, id, n); }

static uint64_t rounds(uint64_t n) { return getenv("CALLA_TEST_SHORT") ? (n + 7) / 8 : n; }

/* ------------------------------------------------------------- walks ----------------------------------------------------- */

/* The token of the byte that goes on with what ends a parameter's text. */
static int32_t closing_byte(const buffer *written) {
    static const char closing[] = "\n</parameter>\n";
    size_t n = written->n < sizeof closing - 2 ? written->n : sizeof closing - 2;
    while (n && memcmp(written->data + written->n - n, closing, n) != 0) n--;
    for (int32_t id = 0; id < n_ids; id++) {
        size_t length;
        const unsigned char *bytes = bytes_of(id, &length);
        if (bytes && length == 1 && *bytes == (unsigned char)closing[n]) return id;
    }
    return -1;
}

/* A token of the mask (NULL: any).  hurry: one that may bring the end nearer, behind what was written; NULL: none. */
static int32_t choose(const uint32_t *mask, uint64_t *dice, const buffer *hurry) {
    if (!mask) return walk_roll(dice, 3) ? (int32_t)walk_roll(dice, 256) : walk_roll(dice, 3) ? call_id : stop_id;
    const int32_t closing = hurry && walk_roll(dice, 8) ? closing_byte(hurry) : -1;
    if (closing >= 0 && has_bit(mask, closing) && !has_bit(mask, stop_id) && !has_bit(mask, call_end_id)) return closing;
    const int32_t id = walk_choose(text, mask, dice, hurry != NULL);
    assert_true(id >= 0);
    return id;
}

/* Where the reference stands before and behind a token, and something to write on. */
typedef struct slow {
    form_reference at, after, scratch;
    bool begun; /* the answer has more than line ends */
} slow;

static void slow_free(slow *s) {
    reference_free(&s->at);
    reference_free(&s->after);
    reference_free(&s->scratch);
}

static void swap(form_reference *a, form_reference *b) {
    const form_reference c = *a;
    *a = *b;
    *b = c;
}

/* What the reference says of a token; then s->after is behind it. */
static bool slow_takes(slow *s, int32_t id) {
    size_t n;
    const unsigned char *bytes = bytes_of(id, &n);
    if (!bytes) return false;
    if (id == stop_id) return reference_accepts(&s->at);
    if (id == call_id) return reference_step(&s->at, FORM_TOOL_BEGIN, &s->after);
    if (id == call_end_id) return reference_step(&s->at, FORM_TOOL_END, &s->after);
    if ((id == think_id || id == think_end_id) && !s->begun) return false; /* a tag */
    if (tokenizer_is_special(text->tokenizer, id) || !reference_step(&s->at, bytes[0], &s->after)) return false;
    for (size_t i = 1; i < n; i++) {
        if (!reference_step(&s->after, bytes[i], &s->scratch)) return false;
        swap(&s->after, &s->scratch);
    }
    return true;
}

static void expect_mask(const form_case *c, slow *s, const uint32_t *mask, const buffer *written) {
    for (int32_t id = 0; id < (int32_t)n_words * 32; id++) {
        const bool expected = id < n_ids && slow_takes(s, id);
        size_t n = 0;
        if (c->narrowed ? has_bit(mask, id) && !expected : has_bit(mask, id) != expected)
            fail_msg("%s: behind \"%.*s\" token %d \"%s\" must be %s", c->name, (int)written->n, written->n ? written->data : "", (int)id,
                     id < n_ids && bytes_of(id, &n) ? (const char *)bytes_of(id, &n) : "", expected ? "allowed" : "forbidden");
    }
}

enum { STEPS = 60, MOST_STEPS = 4000 };

/* One walk to the end.  check: at one of so many points the mask is compared for all tokens; 0: never. */
static size_t walk(const form_case *c, calla_form *form, uint64_t seed, size_t check) {
    calla_matcher *m = open_matcher(form, false);
    uint64_t dice = seed;
    const size_t patience = walk_roll(&dice, STEPS);
    slow s = {0};
    buffer written = {0};
    reference_begin(&s.at, form->program, form->program->root);
    size_t steps = 0;
    for (int32_t id = -1; id != stop_id; steps++) {
        const uint32_t *mask = calla_matcher_mask(m);
        if (steps > MOST_STEPS) fail_msg("%s: no end behind \"%.*s\"", c->name, (int)written.n, written.data);
        assert_true(mask || reference_is_free(&s.at));
        if (mask && !reference_is_free(&s.at) && check && walk_roll(&dice, check) == 0) expect_mask(c, &s, mask, &written);
        id = choose(mask, &dice, steps >= patience ? &written : NULL);
        size_t n;
        if (calla_matcher_took(m, id))
            fail_msg("%s: behind \"%.*s\" token %d was allowed, not taken", c->name, (int)written.n, written.data, (int)id);
        if (!reference_is_free(&s.at) || id == call_id) {
            if (!slow_takes(&s, id)) fail_msg("%s: behind \"%.*s\" token %d is wrong", c->name, (int)written.n, written.data, (int)id);
            if (id != stop_id) swap(&s.at, &s.after);
        }
        const unsigned char *bytes = bytes_of(id, &n);
        buffer_append(&written, bytes, n);
        for (size_t i = 0; i < n; i++) s.begun |= bytes[i] != '\n';
    }
    for (int i = 0; i < 2; i++) { /* the end stays the end */
        const uint32_t *mask = calla_matcher_mask(m);
        for (int32_t id = 0; id < (int32_t)n_words * 32; id++) assert_int_equal(has_bit(mask, id), id == stop_id);
        assert_int_equal(calla_matcher_took(m, 0), CALLA_E_ARGUMENT);
        assert_int_equal(calla_matcher_took(m, stop_id), CALLA_OK);
    }
    calla_matcher_close(m);
    slow_free(&s);
    buffer_free(&written);
    return steps;
}

static void masks_are_what_the_reference_allows(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *form = compile(&cases[i]);
        for (uint64_t seed = 0; seed < rounds(4); seed++) walk(&cases[i], form, seed, 12);
        calla_form_release(form);
    }
}

static void walks_come_to_an_end(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *form = compile(&cases[i]);
        for (uint64_t seed = 0; seed < rounds(16); seed++) walk(&cases[i], form, seed + 100, 0);
        calla_form_release(form);
    }
}

/* ------------------------------------------------------- what is taken --------------------------------------------------- */

/* Tokens of a random walk of at most n steps, and where that leads. */
static size_t make_path(calla_form *form, uint64_t seed, size_t n, int32_t *path) {
    calla_matcher *m = open_matcher(form, false);
    uint64_t dice = seed;
    size_t i = 0;
    for (; i < n; i++) {
        path[i] = choose(calla_matcher_mask(m), &dice, NULL);
        if (path[i] == stop_id || calla_matcher_took(m, path[i])) break;
    }
    calla_matcher_close(m);
    return i;
}

static calla_matcher *follow(calla_form *form, const int32_t *path, size_t n) {
    calla_matcher *m = open_matcher(form, false);
    for (size_t i = 0; i < n; i++) assert_int_equal(calla_matcher_took(m, path[i]), CALLA_OK);
    return m;
}

/* For every token: a matcher that has gone the same way takes exactly what the mask allows, and else is as it was. */
static void what_the_mask_allows_is_taken(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *form = compile(&cases[i]);
        int32_t path[6];
        const size_t n = make_path(form, i, 1 + i % 6, path);
        calla_matcher *m = follow(form, path, n);
        const uint32_t *mask = calla_matcher_mask(m);
        calla_matcher *fresh = follow(form, path, n);
        for (int32_t id = -1; mask && id < (int32_t)n_words * 32 + 1; id++) {
            const bool allowed = id >= 0 && id < (int32_t)n_words * 32 && has_bit(mask, id);
            assert_int_equal(calla_matcher_took(fresh, id), allowed ? CALLA_OK : CALLA_E_ARGUMENT);
            if (allowed) {
                calla_matcher_close(fresh); /* at any time */
                fresh = follow(form, path, n);
            }
        }
        calla_matcher_close(fresh);
        calla_matcher_close(m);
        calla_form_release(form);
    }
}

/* A mask that was kept is the one that is made anew. */
static void kept_masks_are_right(void **state) {
    (void)state;
    uint32_t *copy = test_malloc(n_words * sizeof *copy);
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *used = compile(&cases[i]);
        for (uint64_t seed = 0; seed < rounds(6); seed++) {
            int32_t path[40];
            calla_form *fresh = compile(&cases[i]);
            const size_t n = make_path(used, seed, 40, path);
            calla_matcher *a = open_matcher(used, false), *b = open_matcher(fresh, false);
            for (size_t k = 0; k < n; k++) {
                const uint32_t *kept = calla_matcher_mask(a), *made = calla_matcher_mask(b);
                assert_int_equal(kept == NULL, made == NULL);
                if (kept) {
                    memcpy(copy, kept, n_words * sizeof *copy);
                    assert_memory_equal(copy, made, n_words * sizeof *copy);
                    assert_memory_equal(copy, calla_matcher_mask(a), n_words * sizeof *copy); /* asked twice */
                }
                assert_int_equal(calla_matcher_took(a, path[k]), CALLA_OK);
                assert_int_equal(calla_matcher_took(b, path[k]), CALLA_OK);
            }
            calla_matcher_close(a);
            calla_matcher_close(b);
            calla_form_release(fresh);
        }
        calla_form_release(used);
    }
    test_free(copy);
}

/* ------------------------------------------------------------ thoughts --------------------------------------------------- */

static void a_thought_is_free_but_must_lead_to_the_form(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *form = compile(&cases[i]);
        calla_matcher *m = open_matcher(form, true);
        const uint32_t *mask = calla_matcher_mask(m);
        assert_int_equal(mask != NULL, form->program->owed);
        for (int32_t id = 0; mask && id < (int32_t)n_words * 32; id++) {
            size_t n;
            const bool control = id == call_id || tokenizer_is_special(text->tokenizer, id);
            assert_int_equal(has_bit(mask, id), id < n_ids && bytes_of(id, &n) && !control);
        }
        if (mask) {
            assert_int_equal(calla_matcher_took(m, stop_id), CALLA_E_ARGUMENT);
            assert_int_equal(calla_matcher_took(m, call_id), CALLA_E_ARGUMENT);
        }
        for (int32_t id = 0; id < 400; id++) assert_int_equal(calla_matcher_took(m, id), CALLA_OK);
        assert_int_equal(calla_matcher_took(m, think_end_id), CALLA_OK);
        mask = calla_matcher_mask(m);
        slow s = {0};
        reference_begin(&s.at, form->program, form->program->thought);
        if (!reference_is_free(&s.at)) expect_mask(&cases[i], &s, mask, &(buffer){0});
        const char *const white[] = {"\n\n", "\n"};
        for (size_t k = 0; k < 2 && form->program->thought != form->program->root; k++) { /* as the template has it, or half of it */
            calla_ids ids;
            calla_error err;
            assert_int_equal(calla_text_encode(text, white[k], strlen(white[k]), &ids, &err), CALLA_OK);
            calla_matcher *behind = open_matcher(form, true);
            assert_int_equal(calla_matcher_took(behind, think_end_id), CALLA_OK);
            for (size_t j = 0; j < ids.n; j++) assert_int_equal(calla_matcher_took(behind, ids.ids[j]), CALLA_OK);
            calla_matcher_close(behind);
            calla_ids_free(&ids);
        }
        slow_free(&s);
        calla_matcher_close(m);
        calla_form_release(form);
    }
}

/* ------------------------------------------------------------- trouble --------------------------------------------------- */

typedef struct shared_walks {
    calla_form *form;
    const form_case *c;
    uint64_t seed;
    size_t steps;
} shared_walks;

static void *run_walks(void *user) {
    shared_walks *w = user;
    for (uint64_t i = 0; i < rounds(4); i++) w->steps += walk(w->c, w->form, w->seed + i, 40);
    calla_form_release(w->form);
    return NULL;
}

/* Two threads walk the same ways at the same time, then one alone: what they keep for each other is right. */
static void threads_share_a_form(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        calla_form *form = compile(&cases[i]);
        pthread_t threads[2];
        shared_walks w[3];
        for (size_t k = 0; k < 3; k++) w[k] = (shared_walks){.form = calla_form_share(form), .c = &cases[i], .seed = 1000 + i};
        for (size_t k = 0; k < 2; k++) assert_int_equal(pthread_create(&threads[k], NULL, run_walks, &w[k]), 0);
        for (size_t k = 0; k < 2; k++) pthread_join(threads[k], NULL);
        run_walks(&w[2]);
        assert_int_equal(w[0].steps, w[1].steps);
        assert_int_equal(w[0].steps, w[2].steps);
        calla_form_release(form);
    }
}

static int fails_at(void *user, uint64_t number) { return number == *(uint64_t *)user; }
static int fails_from(void *user, uint64_t number) { return number >= *(uint64_t *)user; }

/* Whatever allocation fails: nothing is lost, a mask is not zero and allows nothing that is wrong, and a token is either taken or not. */
static void memory_may_run_out(void **state) {
    (void)state;
    uint32_t *right = test_malloc(n_words * sizeof *right);
    for (size_t i = 0; i < N_CASES; i++) {
        for (int lasting = 0; lasting < 2; lasting++) {
            for (uint64_t more = 0; more < rounds(32); more++) {
                calla_form *form = compile(&cases[i]), *twin = compile(&cases[i]);
                int32_t path[4];
                const size_t n = make_path(twin, more, 4, path);
                calla_matcher *m, *sound = open_matcher(twin, false);
                calla_error err;
                uint64_t at = mem_allocations() + more;
                mem_set_failure(lasting ? fails_from : fails_at, &at);
                const calla_status opened = calla_matcher_open(form, false, &m, &err);
                mem_set_failure(NULL, NULL);
                assert_true(opened ? opened == CALLA_E_NOMEM && !m : m != NULL);
                for (size_t k = 0; m && k < n; k++) {
                    const uint32_t *mask = calla_matcher_mask(sound);
                    if (mask) memcpy(right, mask, n_words * sizeof *right);
                    at = mem_allocations() + more % 8;
                    mem_set_failure(lasting ? fails_from : fails_at, &at);
                    const uint32_t *narrow = calla_matcher_mask(m);
                    const calla_status took = calla_matcher_took(m, path[k]);
                    mem_set_failure(NULL, NULL);
                    uint32_t any = 0;
                    for (size_t j = 0; narrow && j < n_words; j++) {
                        any |= narrow[j];
                        assert_int_equal(narrow[j] & ~right[j], 0);
                    }
                    assert_int_equal(narrow == NULL, mask == NULL);
                    assert_true(!narrow || any);
                    assert_true(took == CALLA_OK || took == CALLA_E_NOMEM);
                    if (took) assert_int_equal(calla_matcher_took(m, path[k]), CALLA_OK);
                    assert_int_equal(calla_matcher_took(sound, path[k]), CALLA_OK);
                }
                calla_matcher_close(m);
                calla_matcher_close(sound);
                calla_form_release(form);
                calla_form_release(twin);
            }
        }
    }
    test_free(right);
}

int main(int argc, char **argv) {
    char pocket[4096];
    calla_error err;
    snprintf(pocket, sizeof pocket, "%s/pocket", getenv("CALLA_MODELS"));
    if (calla_text_open(argc > 1 ? argv[1] : pocket, &text, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    n_ids = (int32_t)calla_text_vocabulary(text);
    n_words = ((size_t)n_ids + 31) / 32;
    stop_id = tokenizer_stop_id(text->tokenizer);
    call_id = tokenizer_find_added(text->tokenizer, "<tool_call>");
    call_end_id = tokenizer_find_added(text->tokenizer, "</tool_call>");
    think_id = tokenizer_find_added(text->tokenizer, "<think>");
    think_end_id = tokenizer_find_added(text->tokenizer, "</think>");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_the_reference_allows),
        cmocka_unit_test(walks_come_to_an_end),
        cmocka_unit_test(what_the_mask_allows_is_taken),
        cmocka_unit_test(kept_masks_are_right),
        cmocka_unit_test(a_thought_is_free_but_must_lead_to_the_form),
        cmocka_unit_test(threads_share_a_form),
        cmocka_unit_test(memory_may_run_out),
    };
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    calla_text_close(text);
    return failures;
}

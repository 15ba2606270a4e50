/* test_form_trie.c: the vocabulary as a trie: every token that text is made of is in it, once, and a walk with jumps sees what it should.
 *
 * usage: test_form_trie [MODEL_DIR] */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/text.h"

static calla_text *text;
static const form_trie *trie;

static void test_every_token_once(void **state) {
    (void)state;
    const uint32_t n_ids = calla_text_vocabulary(text);
    unsigned char *seen = test_calloc(n_ids, 1), bytes[1 << 16];
    uint32_t end_of[1 << 10];
    size_t n_seen = 0;
    for (uint32_t i = 0; i < trie->n_nodes; i++) {
        const form_trie_node *node = &trie->nodes[i];
        assert_in_range(node->depth, 1, i ? trie->nodes[i - 1].depth + 1 : 1);
        assert_in_range(node->skip, i + 1, node->depth > 1 ? end_of[node->depth - 1] : trie->n_nodes);
        if (node->depth > 1) assert_true(node->skip <= end_of[node->depth - 1]);
        assert_true(node->skip == trie->n_nodes || trie->nodes[node->skip].depth <= node->depth);
        assert_true(node->depth < 1 << 10);
        end_of[node->depth] = node->skip;
        bytes[node->depth - 1] = node->byte;
        if (node->token < 0) {
            assert_int_equal(trie->nodes[i + 1].depth, node->depth + 1); /* something is below it */
            continue;
        }
        size_t n;
        const char *of_token = tokenizer_bytes(text->tokenizer, node->token, &n);
        assert_int_equal(n, node->depth);
        assert_memory_equal(of_token, bytes, n);
        assert_false(seen[node->token]++);
        n_seen++;
    }
    for (uint32_t id = 0; id < n_ids; id++) {
        size_t n;
        const char *of_token = tokenizer_bytes(text->tokenizer, (int32_t)id, &n);
        const bool tool_tag = (int32_t)id == trie->call_id || (int32_t)id == trie->call_end_id;
        const bool wanted = of_token && !tokenizer_is_special(text->tokenizer, (int32_t)id) && !tool_tag;
        assert_int_equal(seen[id], wanted);
        if (wanted && n == 1) assert_int_equal(trie->of_byte[*(const unsigned char *)of_token], id);
        if (wanted) assert_true(n <= trie->longest);
    }
    assert_true(n_seen > 256);
    assert_true(seen[trie->think_id] && seen[trie->think_end_id] && !seen[trie->stop_id]);
    test_free(seen);
}

/* Siblings come in the order of their bytes, so that a trie has one shape. */
static void test_siblings_are_ordered(void **state) {
    (void)state;
    for (uint32_t i = 0; i < trie->n_nodes; i++) {
        const uint32_t next = trie->nodes[i].skip;
        if (next < trie->n_nodes && trie->nodes[next].depth == trie->nodes[i].depth)
            assert_true(trie->nodes[next].byte > trie->nodes[i].byte);
    }
}

/* Counted one by one, in every bound up to the longest token; what the mask had stays, and what `from` has not is not added. */
static void test_short_tokens(void **state) {
    (void)state;
    uint32_t *from = test_calloc(trie->n_words, sizeof *from), *mask = test_calloc(trie->n_words, sizeof *mask);
    for (uint32_t i = 0; i < trie->n_words; i++) from[i] = UINT32_C(0x9E3779B9) * (i + 1);
    for (uint32_t most = 0; most <= trie->longest; most++) {
        for (uint32_t i = 0; i < trie->n_words; i++) mask[i] = i % 7 ? 0 : 0x10;
        form_trie_add_short(trie, from, most, mask);
        for (uint32_t i = 0; i < trie->n_nodes; i++) {
            const int32_t id = trie->nodes[i].token;
            if (id < 0) continue;
            size_t n;
            const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
            const uint32_t characters = form_count_characters((const unsigned char *)bytes, n), word = (uint32_t)id / 32, bit = id % 32;
            assert_int_equal(form_trie_characters(trie, id), characters);
            const bool there = word % 7 == 0 && bit == 4, added = characters <= most && from[word] >> bit & 1;
            assert_int_equal(mask[word] >> bit & 1, there || added);
        }
    }
    test_free(from);
    test_free(mask);
}

static void test_control_tokens(void **state) {
    (void)state;
    assert_int_equal(trie->stop_id, tokenizer_find_added(text->tokenizer, "<|im_end|>"));
    assert_int_equal(trie->call_id, tokenizer_find_added(text->tokenizer, "<tool_call>"));
    assert_int_equal(trie->call_end_id, tokenizer_find_added(text->tokenizer, "</tool_call>"));
    assert_int_equal(trie->think_end_id, tokenizer_find_added(text->tokenizer, "</think>"));
    assert_int_equal(trie->think_id, tokenizer_find_added(text->tokenizer, "<think>"));
    assert_true(trie->think_id >= 0 && trie->call_id >= 0 && trie->call_end_id >= 0 && trie->think_end_id >= 0);
}

static int fails_at(void *user, uint64_t number) { return number == *(uint64_t *)user; }

static void test_out_of_memory(void **state) {
    (void)state;
    calla_error err;
    for (uint64_t more = 0;; more++) {
        uint64_t at = mem_allocations() + more;
        form_trie *built;
        mem_set_failure(fails_at, &at);
        const calla_status status = form_trie_build(text->tokenizer, &built, &err);
        mem_set_failure(NULL, NULL);
        form_trie_free(built);
        if (!status) {
            assert_true(more >= 4);
            break;
        }
        assert_int_equal(status, CALLA_E_NOMEM);
        assert_null(built);
    }
}

int main(int argc, char **argv) {
    char pocket[4096];
    calla_error err;
    form_locals *commons;
    snprintf(pocket, sizeof pocket, "%s/pocket", getenv("CALLA_MODELS"));
    if (calla_text_open(argc > 1 ? argv[1] : pocket, &text, &err) || text_forms(text, &trie, &commons, &err))
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_once), cmocka_unit_test(test_siblings_are_ordered), cmocka_unit_test(test_short_tokens),
        cmocka_unit_test(test_control_tokens),   cmocka_unit_test(test_out_of_memory),
    };
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    calla_text_close(text);
    return failures;
}

/* test_tokenizer_real.c: the tokenizer of the real model, rebuilt from its merges in both forms that its files come in, against ids that
 * the official tokenizer gave; and what opening and encoding cost.
 *
 * usage: test_tokenizer_real STRINGS_JSON PAIRS_JSON VECTORS */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "text/tokenizer_impl.h"
#include "vectors.h"

static const char *vectors_path;
static char *json_path[2]; /* "a b", ["a", "b"] */
static tokenizer *opened[2];

static tokenizer *open_form(int form) {
    char config_path[1024];
    snprintf(config_path, sizeof config_path, "%s/text/real/tokenizer_config.json", getenv("CALLA_TEST_DATA"));
    calla_error err;
    file_map json, config;
    assert_int_equal(file_map_open(json_path[form], &json, &err), CALLA_OK);
    assert_int_equal(file_map_open(config_path, &config, &err), CALLA_OK);
    tokenizer *t;
    const tokenizer_file files[2] = {{(const char *)json.data, json.n, json_path[form]},
                                     {(const char *)config.data, config.n, config_path}};
    const double start = cpu_seconds();
    const calla_status status = tokenizer_parse(&files[0], &files[1], &t, &err);
    if (status) fail_msg("%s", err.message);
    printf("%s: %.1f MB opened in %.3f s\n", json_path[form], 1e-6 * (double)json.n, cpu_seconds() - start);
    file_map_close(&json);
    file_map_close(&config);
    return t;
}

static int open_both(void **state) {
    (void)state;
    for (int form = 0; form < 2; form++) opened[form] = open_form(form);
    return 0;
}

static int close_both(void **state) {
    (void)state;
    for (int form = 0; form < 2; form++) tokenizer_close(opened[form]);
    return 0;
}

static void test_files_have_the_real_size(void **state) {
    (void)state;
    const size_t size[2] = {12807982, 19989343};
    for (int form = 0; form < 2; form++) {
        calla_error err;
        file_map map;
        assert_int_equal(file_map_open(json_path[form], &map, &err), CALLA_OK);
        assert_int_equal(map.n, size[form]);
        file_map_close(&map);
    }
}

static void test_facts(void **state) {
    (void)state;
    for (int form = 0; form < 2; form++) {
        const tokenizer *t = opened[form];
        assert_int_equal(tokenizer_vocabulary(t), 248077);
        assert_int_equal(t->bpe.n_merges, 247587);
        assert_int_equal(t->added.n, 33);
        assert_int_equal(tokenizer_stop_id(t), 248046);
        assert_int_equal(tokenizer_find_added(t, "<think>"), 248068);
        assert_false(tokenizer_is_special(t, 248068));
        assert_true(tokenizer_is_special(t, 248046));
        assert_int_equal(tokenizer_find_added(t, "<|audio_pad|>"), 248076); /* only tokenizer_config.json of the official form has it */
        size_t n;
        assert_null(tokenizer_bytes(t, 248077, &n));
        assert_null(tokenizer_bytes(t, 248319, &n));
    }
}

/* A23, A24: the ids of the official tokenizer. */
static void test_vectors(void **state) {
    (void)state;
    json_object *vectors = vectors_read(vectors_path);
    const size_t n = json_object_array_length(vectors);
    assert_int_equal(n, 168);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        json_object *v = json_object_array_get_idx(vectors, i);
        const char *name = json_object_get_string(json_object_object_get(v, "name"));
        for (int form = 0; form < 2; form++)
            wrong += !vector_holds(opened[form], name, json_object_object_get(v, "text"), json_object_object_get(v, "ids"), NULL);
    }
    json_object_put(vectors);
    assert_int_equal(wrong, 0);
}

static void test_chat_template_cases(void **state) {
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s/text/chat_template_cases.json", getenv("CALLA_TEST_DATA"));
    json_object *cases = vectors_read(path);
    size_t done = 0, wrong = 0;
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        json_object *c = json_object_array_get_idx(cases, i), *ids = json_object_object_get(c, "token_ids");
        if (!ids) continue;
        done++;
        wrong += !vector_holds(opened[0], json_object_get_string(json_object_object_get(c, "name")), json_object_object_get(c, "rendered"),
                               ids, NULL);
    }
    json_object_put(cases);
    assert_int_equal(done, 33);
    assert_int_equal(wrong, 0);
}

static void repeat(char *text, size_t n, const char *piece, size_t n_piece) {
    for (size_t i = 0; i < n; i++) text[i] = piece[i % n_piece];
}

static double least(double a, double b) { return a < b ? a : b; }

/* One word of 2 MB must cost about twice as much as one of 1 MB; with a sanitizer, of 256 KB and 128 KB. */
static void test_time_grows_with_length(void **state) {
    (void)state;
    const size_t most = getenv("CALLA_TEST_SHORT") ? 1 << 17 : 1 << 20;
    static const struct {
        const char *name, *piece;
        size_t n;
    } words[] = {
        {"one letter", "a", 1},
        {"spaces", " ", 1},
        {"newlines", "\n", 1},
        {"signs", "=", 1},
        {"letters", "qxzjvkwpyfbghmcdlunrsioaet", 26},
        {"a letter with marks", "e\xCC\x81\xCC\xA3", 5},
        {"Chinese", "\xE4\xB8\xAD\xE6\x96\x87\xE6\xB5\x8B\xE8\xAF\x95", 12},
        /* Pairs whose merge comes before the one that makes its parts, see bpe.h. */
        {"utkan", "utkan", 5},
    };
    char *text = mem_alloc(4 * most);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = most / words[i].n * words[i].n;
        repeat(text, 4 * n, words[i].piece, words[i].n);
        /* Measured again if a busy machine got in the way, and then over two doublings: 3 times for each.  A quadratic encoder takes 4 and
         * 16 times as long and would never pass. */
        double one = 1e9, two = 1e9;
        for (int attempt = 0; attempt < 8 && (!attempt || two > 3 * one); attempt++) {
            one = least(one, encode_seconds(opened[0], text, n, 6));
            two = least(two, encode_seconds(opened[0], text, 2 * n, 6));
        }
        printf("%-20s %.3f s, twice as much %.3f s: %.2f times, %.1f MB/s\n", words[i].name, one, two, two / one, 2e-6 * (double)n / two);
        if (two > 3 * one) assert_true(encode_seconds(opened[0], text, 4 * n, 6) <= 9 * one);
    }
    mem_free(text);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: %s STRINGS_JSON PAIRS_JSON VECTORS\n", argv[0]), 2;
    json_path[0] = argv[1];
    json_path[1] = argv[2];
    vectors_path = argv[3];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_have_the_real_size),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_chat_template_cases),
        cmocka_unit_test(test_time_grows_with_length),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}

/* test_tokenizer.c: the pocket tokenizer against recorded ids; where added tokens are matched; a small tokenizer whose files are
 * changed in every way that must be refused; memory that runs out.
 *
 * usage: test_tokenizer TOKENS CHATS GREEDY */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/tokenizer_impl.h"
#include "vectors.h"

static const char *tokens_path, *chats_path, *greedy_path;
static tokenizer *pocket;

static int open_pocket(void **state) {
    (void)state;
    char *dir = path_join(getenv("CALLA_MODELS"), "pocket");
    calla_error err;
    const calla_status status = tokenizer_open(dir, &pocket, &err);
    if (status) fprintf(stderr, "%s\n", err.message);
    mem_free(dir);
    return status != CALLA_OK;
}

static int close_pocket(void **state) {
    (void)state;
    tokenizer_close(pocket);
    return 0;
}

/* ----------------------------------------------------------- recorded ids ------------------------------------------------ */

static void check_vectors(const char *path, const char *text, const char *ids, const char *decoded, size_t expected) {
    json_object *vectors = vectors_read(path);
    const size_t n = json_object_array_length(vectors);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        json_object *v = json_object_array_get_idx(vectors, i);
        char name[32];
        snprintf(name, sizeof name, "vector %zu", i);
        wrong += !vector_holds(pocket, name, json_object_object_get(v, text), json_object_object_get(v, ids),
                               json_object_object_get(v, decoded));
    }
    json_object_put(vectors);
    assert_int_equal(n, expected);
    assert_int_equal(wrong, 0);
}

static void test_tokens(void **state) {
    (void)state;
    check_vectors(tokens_path, "text", "ids", "decoded", 2500);
}

static void test_chats(void **state) {
    (void)state;
    check_vectors(chats_path, "text", "ids", "text", 232);
}

static void test_greedy(void **state) {
    (void)state;
    check_vectors(greedy_path, "prompt_text", "prompt_ids", "prompt_text", 18);
}

static void test_facts(void **state) {
    (void)state;
    size_t n;
    assert_int_equal(tokenizer_vocabulary(pocket), 8186);
    assert_int_equal(tokenizer_stop_id(pocket), 8162);
    assert_int_equal(tokenizer_find_added(pocket, "<|im_end|>"), 8162);
    assert_int_equal(tokenizer_find_added(pocket, "<|im_end|"), -1);
    assert_int_equal(tokenizer_find_added(pocket, "the"), -1);
    assert_true(tokenizer_is_added(pocket, 8162));
    assert_true(tokenizer_is_special(pocket, 8162));
    assert_true(tokenizer_is_added(pocket, tokenizer_find_added(pocket, "<think>")));
    assert_false(tokenizer_is_special(pocket, tokenizer_find_added(pocket, "<think>")));
    static const int32_t none[] = {-1, 8186, 8191, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_null(tokenizer_bytes(pocket, none[i], &n));
        assert_false(tokenizer_is_added(pocket, none[i]));
        assert_false(tokenizer_is_special(pocket, none[i]));
    }
    assert_false(tokenizer_is_added(pocket, 5));
}

/* --------------------------------------------------------------- origin -------------------------------------------------- */

/* ids of s, with the runs given (ended by SIZE_MAX), written as text with control tokens as {id}. */
static const char *encode_with_runs(const char *s, const size_t *runs) {
    static char out[512];
    size_t n_runs = 0;
    while (runs[n_runs] != SIZE_MAX) n_runs++;
    calla_ids ids;
    calla_error err;
    if (tokenizer_encode(pocket, s, strlen(s), (text_origin){runs, n_runs}, &ids, &err)) fail_msg("%s", err.message);
    size_t n = 0;
    for (size_t i = 0; i < ids.n; i++) {
        size_t n_bytes;
        const char *bytes = tokenizer_bytes(pocket, ids.ids[i], &n_bytes);
        if (tokenizer_is_added(pocket, ids.ids[i]))
            n += (size_t)snprintf(out + n, sizeof out - n, "{%d}", (int)ids.ids[i]);
        else
            n += (size_t)snprintf(out + n, sizeof out - n, "%.*s", (int)n_bytes, bytes);
    }
    mem_free(ids.ids);
    return out;
}

#define RUNS(...) ((const size_t[]){__VA_ARGS__, SIZE_MAX})

static void test_control_tokens_come_from_the_template_alone(void **state) {
    (void)state;
    const char *end = "<|im_end|>"; /* 10 bytes, id 8162 */
    assert_string_equal(encode_with_runs(end, RUNS(10)), "{8162}");
    assert_string_equal(encode_with_runs(end, RUNS(0, 10)), "<|im_end|>");
    for (size_t cut = 1; cut < 10; cut++) { /* half of it from either side */
        assert_string_equal(encode_with_runs(end, RUNS(cut, 10 - cut)), "<|im_end|>");
        assert_string_equal(encode_with_runs(end, RUNS(0, cut, 10 - cut)), "<|im_end|>");
        assert_string_equal(encode_with_runs(end, RUNS(cut, 0, 10 - cut)), "{8162}"); /* no content between */
    }
    const char *twice = "<|im_end|><|im_end|>";
    assert_string_equal(encode_with_runs(twice, RUNS(10, 10)), "{8162}<|im_end|>");
    assert_string_equal(encode_with_runs(twice, RUNS(0, 10, 10)), "<|im_end|>{8162}");
    assert_string_equal(encode_with_runs(twice, RUNS(0, 0, 20)), "{8162}{8162}");
    assert_string_equal(encode_with_runs("a<|im_end|>b<think>c", RUNS(1, 10, 1, 7, 1)), "a<|im_end|>b<think>c");
    assert_string_equal(encode_with_runs("a<|im_end|>b<think>c", RUNS(11, 9)), "a{8162}b<think>c");
    /* A token that only seems to begin. */
    assert_string_equal(encode_with_runs("<<|im_<|im_end|>|im_end|>", RUNS(25)), "<<|im_{8162}|im_end|>");
}

/* Where content holds no control token, its origin changes nothing: words run across the borders. */
static void test_words_run_across_borders(void **state) {
    (void)state;
    const char *s = "<|im_start|>user\nThe capital of France, e\xCC\x81t\xC3\xA9<|im_end|>\n";
    const size_t n = strlen(s);
    calla_ids whole, split;
    calla_error err;
    assert_int_equal(tokenizer_encode(pocket, s, n, (text_origin){0}, &whole, &err), CALLA_OK);
    for (size_t cut = 12; cut < n - 11; cut++) {
        const size_t runs[] = {cut, n - 11 - cut, 11};
        assert_int_equal(tokenizer_encode(pocket, s, n, (text_origin){runs, 3}, &split, &err), CALLA_OK);
        assert_int_equal(split.n, whole.n);
        assert_memory_equal(split.ids, whole.ids, whole.n * sizeof *whole.ids);
        mem_free(split.ids);
    }
    mem_free(whole.ids);
}

static void test_bad_arguments(void **state) {
    (void)state;
    calla_ids ids;
    calla_error err;
    static const struct {
        const char *text;
        size_t n, at;
    } broken[] = {
        {"ab\xFF", 3, 2}, {"\xC3", 1, 0}, {"x\xED\xA0\x80", 4, 1}, {"\xC0\x80", 2, 0}, {"\xF4\x90\x80\x80", 4, 0}, {"\xE4\xB8", 2, 0},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(tokenizer_encode(pocket, broken[i].text, broken[i].n, (text_origin){0}, &ids, &err), CALLA_E_FORMAT);
        char expected[64];
        snprintf(expected, sizeof expected, "the text is not UTF-8 at byte %zu", broken[i].at);
        assert_non_null(strstr(err.message, expected));
        assert_null(ids.ids);
    }
    assert_int_equal(tokenizer_encode(pocket, "abc", 3, (text_origin){RUNS(1, 1), 2}, &ids, &err), CALLA_E_ARGUMENT);
    assert_int_equal(tokenizer_encode(pocket, "abc", 3, (text_origin){RUNS(2, 2), 2}, &ids, &err), CALLA_E_ARGUMENT);
    const size_t wrapped[] = {SIZE_MAX, 4};
    assert_int_equal(tokenizer_encode(pocket, "abc", 3, (text_origin){wrapped, 2}, &ids, &err), CALLA_E_ARGUMENT);
    assert_int_equal(tokenizer_encode(pocket, "", 0, (text_origin){0}, &ids, &err), CALLA_OK);
    assert_int_equal(ids.n, 0);
    assert_int_equal(tokenizer_encode(pocket, "a\0b", 3, (text_origin){0}, &ids, &err), CALLA_OK); /* NUL is a character like others */
    assert_int_equal(ids.n, 3);
    mem_free(ids.ids);
}

/* ----------------------------------------------------------- a small file ------------------------------------------------ */

static char *small_json; /* 256 bytes and a few merges */
static const char small_config[] =
    "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<end>\",\"normalized\":false,\"special\":true},\"301\":{\"content\":\"<end>!\","
    "\"special\":false,"
    "\"lstrip\":false,\"rstrip\":false,\"single_word\":false,\"normalized\":false}},\"chat_template\":[1,{}],\"eos_token\":\"<end>\"}";

static int make_small_json(void **state) {
    (void)state;
    buffer b = {0};
    buffer_append_str(
        &b,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":300,\"content\":\"<end>\",\"single_word\":"
        "false,"
        "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{"
        "\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_append_string(&b, pretokenize_regex[0], strlen(pretokenize_regex[0]));
    buffer_append_str(
        &b,
        "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
        "\"use_regex\":false}]},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"ignore_merges\":false,\"vocab\":{");
    byte_level alphabet;
    byte_level_init(&alphabet);
    for (uint32_t cp = 0; cp < BYTE_LEVEL_CODES; cp++) {
        if (alphabet.byte_of[cp] < 0) continue;
        char text[5] = {0};
        utf8_encode(cp, text);
        json_append_string(&b, text, strlen(text));
        buffer_printf(&b, ":%d,", alphabet.byte_of[cp]);
    }
    buffer_append_str(&b, "\"ab\":256,\"abc\":257,\"\xC4\xA0"
                          "a\":258,\"\xE2\x82\xAC\":299},\"merges\":[\"a b\",\"ab c\",[\"\xC4\xA0\",\"a\"]]}}");
    small_json = buffer_take(&b);
    return !small_json;
}

static int free_small_json(void **state) {
    (void)state;
    mem_free(small_json);
    return 0;
}

/* s with its first `from` (which must be there) replaced. */
static char *replaced(const char *s, const char *from, const char *to) {
    const char *at = strstr(s, from);
    if (!at) fail_msg("the file has no %s", from);
    buffer b = {0};
    buffer_append(&b, s, (size_t)(at - s));
    buffer_append_str(&b, to);
    buffer_append_str(&b, at + strlen(from));
    return buffer_take(&b);
}

static calla_status parse(const char *json, const char *config, tokenizer **t, calla_error *err) {
    const tokenizer_file files[2] = {{json, strlen(json), "dir/tokenizer.json"},
                                     {config, config ? strlen(config) : 0, "dir/tokenizer_config.json"}};
    return tokenizer_parse(&files[0], config ? &files[1] : NULL, t, err);
}

static void assert_ids(const tokenizer *t, const char *text, const int32_t *expected, size_t n) {
    calla_ids ids;
    calla_error err;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), (text_origin){0}, &ids, &err), CALLA_OK);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, expected, n * sizeof *expected);
    mem_free(ids.ids);
}

#define ASSERT_IDS(t, text, ...)                                                                                                           \
    assert_ids(t, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void assert_small_works(const tokenizer *t) {
    ASSERT_IDS(t, "abc abab a", 257, 32, 256, 256, 258);
    ASSERT_IDS(t, "<end>a<end", 300, 'a', '<', 'e', 'n', 'd');
}

static void test_small(void **state) {
    (void)state;
    tokenizer *t;
    calla_error err;
    if (parse(small_json, small_config, &t, &err)) fail_msg("%s", err.message);
    assert_small_works(t);
    ASSERT_IDS(t, "<end>!<end>?", 301, 300, '?'); /* the longest */
    assert_int_equal(tokenizer_stop_id(t), 300);
    assert_true(tokenizer_is_special(t, 300));
    assert_false(tokenizer_is_special(t, 301));
    assert_int_equal(tokenizer_vocabulary(t), 302);
    size_t n;
    assert_null(tokenizer_bytes(t, 298, &n)); /* a gap */
    assert_memory_equal(tokenizer_bytes(t, 258, &n), " a", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_bytes(t, 299, &n), "\xE2\x82\xAC", 3); /* not of the alphabet: its own text */
    assert_int_equal(n, 3);
    tokenizer_close(t);
    if (parse(small_json, NULL, &t, &err)) fail_msg("%s", err.message);
    assert_small_works(t);
    assert_int_equal(tokenizer_stop_id(t), -1);
    tokenizer_close(t);
}

/* Changes that are allowed. */
static void test_accepted_files(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"\"a b\"", "[\"a\",\"b\"]"},
        {"\"a b\"", "[ \"a\" , \"\\u0062\" ]"},
        {"\"dropout\":null", "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\",\"fuse_unk\":true,\"byte_fallback\":false"},
        {"\"dropout\":null", "\"some_new_option\":null,\"another\":false"},
        {"\"post_processor\":null",
         "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true}"},
        {"\"version\":\"1.0\",", ""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *json = replaced(small_json, changes[i][0], changes[i][1]);
        tokenizer *t;
        calla_error err;
        if (parse(json, NULL, &t, &err)) fail_msg("%s", err.message);
        assert_small_works(t);
        tokenizer_close(t);
        mem_free(json);
    }
}

/* Keys in another order: merges before the vocabulary. */
static void test_merges_first(void **state) {
    (void)state;
    char *merges = strstr(small_json, ",\"merges\":");
    char *tail = replaced(merges, "]}}", "],");
    char *cut = mem_strndup(small_json, (size_t)(merges - small_json));
    char *json = replaced(cut, "\"vocab\":", tail + 1);
    char *whole = replaced(json, "[\"\xC4\xA0\",\"a\"]],", "[\"\xC4\xA0\",\"a\"]],\"vocab\":");
    buffer b = {0};
    buffer_append_str(&b, whole);
    buffer_append_str(&b, "}}");
    tokenizer *t;
    calla_error err;
    if (parse(b.data, NULL, &t, &err)) fail_msg("%s", err.message);
    assert_small_works(t);
    tokenizer_close(t);
    buffer_free(&b);
    mem_free(tail);
    mem_free(cut);
    mem_free(json);
    mem_free(whole);
}

/* A25: the older regex: marks are signs, with a notice in the log. */
static void test_older_regex(void **state) {
    (void)state;
    char *json = replaced(small_json, "[\\\\p{L}\\\\p{M}]+", "\\\\p{L}+"),
         *older = replaced(json, "\\\\p{L}\\\\p{M}\\\\p{N}]+", "\\\\p{L}\\\\p{N}]+");
    tokenizer *t;
    calla_error err;
    log_set_level(LOG_QUIET);
    const calla_status status = parse(older, NULL, &t, &err);
    log_set_level(LOG_WARN);
    if (status) fail_msg("%s", err.message);
    assert_int_equal(t->rule, PRETOKENIZE_NO_MARKS);
    assert_small_works(t);
    tokenizer_close(t);
    mem_free(json);
    mem_free(older);
}

typedef struct refusal {
    const char *from, *to;
    calla_status status;
    const char *message; /* part of it */
} refusal;

static void assert_refused(const refusal *r, bool config) {
    char *changed = r->from ? replaced(config ? small_config : small_json, r->from, r->to) : mem_strdup(r->to);
    tokenizer *t;
    calla_error err;
    const calla_status status = config ? parse(small_json, changed, &t, &err) : parse(changed, small_config, &t, &err);
    if (status != r->status || !strstr(err.message, r->message))
        fail_msg("%s → %s: status %d, \"%s\"", r->from, r->to, (int)status, err.message);
    assert_non_null(strstr(err.message, config ? "dir/tokenizer_config.json: " : "dir/tokenizer.json: "));
    assert_int_equal(utf8_valid(err.message, strlen(err.message)), strlen(err.message));
    assert_null(t);
    mem_free(changed);
}

static void test_refused_files(void **state) {
    (void)state;
    static const refusal cases[] = {
        {NULL, "", CALLA_E_FORMAT, "not JSON: byte 0"},
        {NULL, "[]", CALLA_E_FORMAT, "the file is not an object"},
        {NULL, "{}", CALLA_E_FORMAT, "json: normalizer is missing"},
        {"]}}", "]}", CALLA_E_FORMAT, "not JSON: byte"},
        {"]}}", "]}} x", CALLA_E_FORMAT, "not JSON: byte"},
        {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", CALLA_E_UNSUPPORTED, "json: truncation is an object or array"},
        {"\"padding\":null", "\"padding\":{}", CALLA_E_UNSUPPORTED, "padding"},
        {"\"padding\":null", "\"padding\":null,\"padding\":null", CALLA_E_FORMAT, "json: padding stands twice"},
        {"\"version\"", "\"news\":{\"a\":1},\"version\"", CALLA_E_UNSUPPORTED, "json: news is unknown"},
        {"{\"type\":\"NFC\"}", "null", CALLA_E_FORMAT, "normalizer is not an object"},
        {"\"NFC\"", "\"NFKC\"", CALLA_E_UNSUPPORTED, "normalizer.type is \"NFKC\""},
        {"\"NFC\"", "\"NFC\",\"lowercase\":true", CALLA_E_UNSUPPORTED, "normalizer.lowercase is unknown"},
        {"\"type\":\"NFC\"", "", CALLA_E_FORMAT, "normalizer.type is missing"},
        {"\"Sequence\"", "\"Split\"", CALLA_E_UNSUPPORTED, "pre_tokenizer.type is \"Split\""},
        {"(?i:'s", "(?i:'z", CALLA_E_UNSUPPORTED, "the pre-tokenizer's regex is not one that calla knows: (?i:'z"},
        {"\"Regex\"", "\"String\"", CALLA_E_UNSUPPORTED, "pattern.String is unknown"},
        {"\"Isolated\"", "\"Removed\"", CALLA_E_UNSUPPORTED, "behavior is \"Removed\""},
        {"\"invert\":false", "\"invert\":true", CALLA_E_UNSUPPORTED, "invert is true"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", CALLA_E_UNSUPPORTED, "add_prefix_space is true"},
        {"\"use_regex\":false", "\"use_regex\":true", CALLA_E_UNSUPPORTED, "use_regex is true"},
        {",\"use_regex\":false", "", CALLA_E_FORMAT, "use_regex is missing"},
        {"\"use_regex\":false}", "\"use_regex\":false},{\"type\":\"Digits\"}", CALLA_E_FORMAT, "is not a Split and a ByteLevel"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}", CALLA_E_UNSUPPORTED, "post_processor.type"},
        {"{\"type\":\"ByteLevel\"},\"model\"", "{\"type\":\"WordPiece\"},\"model\"", CALLA_E_UNSUPPORTED, "decoder.type is \"WordPiece\""},
        {"\"BPE\"", "\"Unigram\"", CALLA_E_UNSUPPORTED, "model.type is \"Unigram\""},
        {"\"BPE\"", "\"BPE\\u0000\"", CALLA_E_UNSUPPORTED, "model.type is"},
        {"\"dropout\":null", "\"dropout\":0.1", CALLA_E_UNSUPPORTED, "model.dropout is 0.1"},
        {"\"dropout\":null", "\"unk_token\":\"<unk>\"", CALLA_E_UNSUPPORTED, "model.unk_token is \"<unk>\""},
        {"\"dropout\":null", "\"continuing_subword_prefix\":\"##\"", CALLA_E_UNSUPPORTED, "model.continuing_subword_prefix"},
        {"\"dropout\":null", "\"end_of_word_suffix\":\"</w>\"", CALLA_E_UNSUPPORTED, "model.end_of_word_suffix"},
        {"\"dropout\":null", "\"byte_fallback\":true", CALLA_E_UNSUPPORTED, "model.byte_fallback is true"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true", CALLA_E_UNSUPPORTED, "model.ignore_merges is true"},
        {"\"ignore_merges\":false",
         "\"ignore_merges\":"
         "\"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"
         "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"
         "\xC3\xA9\xC3\xA9"
         "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"
         "\xC3\xA9\"",
         CALLA_E_UNSUPPORTED, "model.ignore_merges is \"\xC3\xA9"},
        {"\"vocab\":{", "\"vocab\":[{", CALLA_E_FORMAT, "model.vocab is not an object"},
        {"\"ab\":256", "\"ab\":255", CALLA_E_FORMAT, "id 255 is given to two tokens"},
        {"\"ab\":256", "\"ab\":256,\"ab\":290", CALLA_E_FORMAT, "\"ab\" stands twice"},
        {"\"ab\":256", "\"ab\":-1", CALLA_E_FORMAT, "the id of \"ab\" is not a whole number"},
        {"\"ab\":256", "\"ab\":1048576", CALLA_E_FORMAT, "the id of \"ab\" is not a whole number below 1048576"},
        {"\"ab\":256", "\"ab\":4294967552", CALLA_E_FORMAT, "the id of \"ab\""},
        {"\"ab\":256", "\"ab\":18446744073709551615", CALLA_E_FORMAT, "the id of \"ab\""},
        {"\"ab\":256", "\"ab\":2.5", CALLA_E_FORMAT, "the id of \"ab\""},
        {"\"ab\":256", "\"ab\":\"256\"", CALLA_E_FORMAT, "the id of \"ab\""},
        {"\"ab\":256", "\"\":256", CALLA_E_FORMAT, "a token is empty"},
        {"\"!\":33,", "", CALLA_E_FORMAT, "no token for the single byte 0x21"},
        {"\"a b\"", "\"a b c\"", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "\"ab\"", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "\" b\"", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "[\"a\"]", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "[\"a\",\"b\",\"c\"]", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "[\"a\",1]", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"a b\"", "7", CALLA_E_FORMAT, "model.merges[0] is neither"},
        {"\"ab c\"", "\"b a\"", CALLA_E_FORMAT, "model.merges[1]: its parts and their sum must be in model.vocab"},
        {"\"ab c\"", "\"\xE2\x82\xAC c\"", CALLA_E_FORMAT, "model.merges[1] is neither"},
        {"\"ab c\"", "\"a b\"", CALLA_E_FORMAT, "model.merges[1]: the pair stands twice"},
        {"\"merges\":[", "\"merges\":{\"a\":[", CALLA_E_FORMAT, "model.merges is not an array"},
        {"\"id\":300,", "", CALLA_E_FORMAT, "an added token has no id"},
        {"\"id\":300,", "\"id\":\"x\",", CALLA_E_FORMAT, "an added token's id is not"},
        {"\"id\":300,", "\"id\":97,", CALLA_E_FORMAT, "added token \"<end>\" has id 97, but that is another token's"},
        {"\"content\":\"<end>\"", "\"content\":\"\"", CALLA_E_FORMAT, "content is not a string with something in it"},
        {"\"content\":\"<end>\"", "\"content\":\"ab\"", CALLA_E_FORMAT, "added token \"ab\" has id 300, but it has another one as well"},
        {"\"special\":true", "\"special\":1", CALLA_E_FORMAT, "special is not true or false"},
        {"\"normalized\":false", "\"normalized\":true", CALLA_E_UNSUPPORTED, "added_tokens[].normalized is true"},
        {"\"lstrip\":false", "\"lstrip\":true", CALLA_E_UNSUPPORTED, "added_tokens[].lstrip is true"},
        {"\"rstrip\":false", "\"rstrip\":true", CALLA_E_UNSUPPORTED, "added_tokens[].rstrip is true"},
        {"\"single_word\":false", "\"single_word\":true", CALLA_E_UNSUPPORTED, "added_tokens[].single_word is true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_refused(&cases[i], false);
}

static void test_refused_configs(void **state) {
    (void)state;
    static const refusal cases[] = {
        {NULL, "null", CALLA_E_FORMAT, "the file is not an object"},
        {"\"300\"", "\"x\"", CALLA_E_FORMAT, "\"x\" is not an id below"},
        {"\"300\"", "\"-1\"", CALLA_E_FORMAT, "\"-1\" is not an id below"},
        {"\"300\"", "\"1048576\"", CALLA_E_FORMAT, "\"1048576\" is not an id below"},
        {"\"300\"", "\"3000000000000000000000\"", CALLA_E_FORMAT, "is not an id below"},
        {"\"300\"", "\"\"", CALLA_E_FORMAT, "\"\" is not an id below"},
        {"\"300\"", "\"302\"", CALLA_E_FORMAT, "added token \"<end>\" has id 302, but it has another one as well"},
        {"\"301\"", "\"300\"", CALLA_E_FORMAT, "added token \"<end>!\" has id 300, but that is another token's"},
        {"\"301\"", "\"97\"", CALLA_E_FORMAT, "that is another token's"},
        {"\"301\":{", "\"301\":{\"id\":5,", CALLA_E_FORMAT, "301 has another id inside"},
        {"\"lstrip\":false", "\"lstrip\":true", CALLA_E_UNSUPPORTED, "lstrip is true"},
        {"\"eos_token\":\"<end>\"", "\"eos_token\":\"<stop>\"", CALLA_E_FORMAT, "eos_token \"<stop>\" is not among the added tokens"},
        {"\"eos_token\":\"<end>\"", "\"eos_token\":7", CALLA_E_FORMAT, "eos_token"},
        {"\"eos_token\"", "\"add_bos_token\":true,\"eos_token\"", CALLA_E_UNSUPPORTED, "add_bos_token is true"},
        {"\"eos_token\"", "\"add_prefix_space\":true,\"eos_token\"", CALLA_E_UNSUPPORTED, "add_prefix_space is true"},
        {"\"eos_token\"", "\"split_special_tokens\":true,\"eos_token\"", CALLA_E_UNSUPPORTED, "split_special_tokens is true"},
        {"\"eos_token\"", "\"clean_up_tokenization_spaces\":true,\"eos_token\"", CALLA_E_UNSUPPORTED,
         "clean_up_tokenization_spaces is true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_refused(&cases[i], true);
    char *object = replaced(small_config, "\"<end>\"}", "{\"__type\":\"AddedToken\",\"content\":\"<end>\",\"lstrip\":false}}");
    tokenizer *t;
    calla_error err;
    if (parse(small_json, object, &t, &err)) fail_msg("%s", err.message);
    assert_int_equal(tokenizer_stop_id(t), 300);
    tokenizer_close(t);
    mem_free(object);
}

/* Cut anywhere, the files give an error and nothing else. */
static void test_truncated_files(void **state) {
    (void)state;
    char *json = mem_strdup(small_json);
    for (size_t n = strlen(json); n--;) {
        json[n] = 0;
        tokenizer *t;
        calla_error err;
        assert_int_equal(parse(json, NULL, &t, &err), CALLA_E_FORMAT);
    }
    mem_free(json);
}

static void test_missing_files(void **state) {
    (void)state;
    tokenizer *t;
    calla_error err;
    assert_int_equal(tokenizer_open("/nonexistent", &t, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "/nonexistent/tokenizer.json"));
    assert_null(t);
}

/* --------------------------------------------------------- out of memory ------------------------------------------------- */

static int fail_one(void *user, uint64_t number) { return number == *(uint64_t *)user; }
static int fail_from(void *user, uint64_t number) { return number >= *(uint64_t *)user; }

/* Each allocation of opening and encoding fails in turn, once alone and once with all that follow. */
static void test_out_of_memory(void **state) {
    (void)state;
    static const mem_fail_fn modes[] = {fail_one, fail_from};
    /* An added token, a change by NFC, a long word. */
    char text[256] = "<end>e\xCC\x81 ";
    memset(text + strlen(text), 'a', 100);
    for (int mode = 0; mode < 2; mode++) {
        for (uint64_t skip = 0;; skip++) {
            tokenizer *t;
            calla_ids ids = {0};
            calla_error err;
            uint64_t number = mem_allocations() + skip;
            mem_set_failure(modes[mode], &number);
            calla_status status = parse(small_json, small_config, &t, &err);
            if (!status) status = tokenizer_encode(t, text, strlen(text), (text_origin){0}, &ids, &err);
            mem_set_failure(NULL, NULL);
            const bool reached = mem_allocations() > number;
            if (status) assert_int_equal(status, CALLA_E_NOMEM);
            mem_free(ids.ids);
            tokenizer_close(t);
            if (reached) continue;
            assert_true(skip > 30);
            assert_int_equal(status, CALLA_OK);
            break;
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: %s TOKENS CHATS GREEDY\n", argv[0]), 2;
    tokens_path = argv[1];
    chats_path = argv[2];
    greedy_path = argv[3];
    const struct CMUnitTest recorded[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_chats),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_control_tokens_come_from_the_template_alone),
        cmocka_unit_test(test_words_run_across_borders),
        cmocka_unit_test(test_bad_arguments),
    };
    const struct CMUnitTest files[] = {
        cmocka_unit_test(test_small),           cmocka_unit_test(test_accepted_files), cmocka_unit_test(test_merges_first),
        cmocka_unit_test(test_older_regex),     cmocka_unit_test(test_refused_files),  cmocka_unit_test(test_refused_configs),
        cmocka_unit_test(test_truncated_files), cmocka_unit_test(test_missing_files),  cmocka_unit_test(test_out_of_memory),
    };
    const int failed = cmocka_run_group_tests(recorded, open_pocket, close_pocket);
    return failed + cmocka_run_group_tests(files, make_small_json, free_small_json);
}

/* /tokenize, /detokenize, /apply-template and /props over real sockets. */
#include "unit.h"

#include <string.h>

#include "base/memory.h"
#include "harness.h"

HARNESS_OF_FILE(NULL, NULL)

/* The reply's tree, the caller's. */
static json_object *post(const char *path, const char *body, int status) {
    reply r;
    harness_post_to(&h, path, body, &r);
    if (r.status != status) fail_msg("%s %s: %d %s", path, body, r.status, r.body.data ? r.body.data : "");
    json_object *tree = reply_json_body(&r);
    reply_free(&r);
    return tree;
}

static void test_props_name_the_defaults(void **state) {
    (void)state;
    reply r;
    harness_get(&h, "/props", &r);
    assert_int_equal(r.status, 200);
    json_object *tree = reply_json_body(&r);
    assert_int_equal(json_int(tree, "default_generation_settings.n_ctx"), 4096);
    assert_int_equal(json_int(tree, "default_generation_settings.params.top_k"), 20);
    json_object *top_p = json_at(tree, "default_generation_settings.params.top_p");
    assert_true((float)json_object_get_double(top_p) == 0.95f);
    assert_int_equal(json_int(tree, "total_slots"), 4);
    assert_string_equal(json_str(tree, "model_alias"), "scripted");
    json_object_put(tree);
    reply_free(&r);
}

static void test_text_goes_there_and_back(void **state) {
    (void)state;
    json_object *tree = post("/tokenize", "{\"content\":\"na\\u00efve \\ud83e\\udd80 <|im_end|>\\n\"}", 200);
    assert_int_equal(json_int(tree, "count"), (int64_t)json_object_array_length(json_at(tree, "tokens")));
    assert_int_equal(json_int(tree, "max_model_len"), 4096);
    buffer body = {0};
    buffer_printf(&body, "{\"tokens\":%s}", json_object_to_json_string(json_at(tree, "tokens")));
    json_object_put(tree);
    tree = post("/detokenize", body.data, 200);
    assert_string_equal(json_str(tree, "content"), "na\xC3\xAFve \xF0\x9F\xA6\x80 <|im_end|>\n");
    assert_string_equal(json_str(tree, "prompt"), json_str(tree, "content"));
    json_object_put(tree);
    buffer_free(&body);
}

static void test_control_tokens_on_request_only(void **state) {
    (void)state;
    json_object *tokens = post("/tokenize", "{\"prompt\":\"<|im_end|>\"}", 200);
    json_object *letters = post("/tokenize", "{\"prompt\":\"<|im_end|>\",\"parse_special\":false}", 200);
    assert_int_equal(json_int(tokens, "count"), 1);
    assert_true(json_int(letters, "count") > 3);
    json_object_put(tokens);
    json_object_put(letters);
}

static void test_pieces_are_text_or_bytes(void **state) {
    (void)state;
    json_object *tree = post("/tokenize", "{\"content\":\"Hi \\ud83e\\udd80\",\"with_pieces\":true}", 200), *list = json_at(tree, "tokens");
    assert_string_equal(json_str(list, "0.piece"), "Hi");
    buffer bytes = {0};
    for (size_t i = 1; i < json_object_array_length(list); i++) {
        json_object *piece = json_at(json_object_array_get_idx(list, i), "piece");
        assert_true(json_object_is_type(piece, json_type_array));
        for (size_t k = 0; k < json_object_array_length(piece); k++)
            buffer_append_char(&bytes, (char)json_object_get_int(json_object_array_get_idx(piece, k)));
    }
    assert_string_equal(bytes.data, " \xF0\x9F\xA6\x80");
    buffer_free(&bytes);
    json_object_put(tree);
}

static void test_the_prompt_of_a_chat(void **state) {
    (void)state;
    json_object *tree = post("/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"enable_thinking\":false}", 200);
    assert_string_equal(json_str(tree, "prompt"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    assert_true(json_int(tree, "count") > 5);
    json_object_put(tree);
}

/* Larger than what the loop's own thread takes. */
static void test_a_large_text(void **state) {
    (void)state;
    buffer body = {0};
    buffer_append_str(&body, "{\"content\":\"");
    for (int i = 0; i < 100000; i++) buffer_append_str(&body, "many ");
    buffer_append_str(&body, "\"}");
    json_object *tree = post("/tokenize", body.data, 200);
    assert_in_range(json_int(tree, "count"), 100000, 300000);
    json_object_put(tree);
    buffer_free(&body);
}

static void test_refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/tokenize", "{}", "content"},
        {"/tokenize", "{\"content\":[\"a\"]}", "content"},
        {"/tokenize", "{\"content\":\"a\",\"parse_special\":1}", "parse_special"},
        {"/detokenize", "{}", "tokens"},
        {"/detokenize", "{\"tokens\":\"a\"}", "tokens"},
        {"/detokenize", "{\"tokens\":[1,-1]}", "tokens"},
        {"/detokenize", "{\"tokens\":[1.5]}", "tokens"},
        {"/apply-template", "{}", "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_object *tree = post(cases[i].path, cases[i].body, 400);
        assert_string_equal(json_str(tree, "error.param"), cases[i].param);
        json_object_put(tree);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_props_name_the_defaults),        cmocka_unit_test(test_text_goes_there_and_back),
        cmocka_unit_test(test_control_tokens_on_request_only), cmocka_unit_test(test_pieces_are_text_or_bytes),
        cmocka_unit_test(test_the_prompt_of_a_chat),           cmocka_unit_test(test_a_large_text),
        cmocka_unit_test(test_refusals_name_the_field),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* What a build and a folder say of themselves: version, backends, where pocket lies, inspect. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "calla.h"
#include "support/arrays.h"

static int64_t number_at(json_object *root, const char *object, const char *key) {
    json_object *v = object ? json_object_object_get(root, object) : root;
    assert_non_null(v);
    v = json_object_object_get(v, key);
    assert_true(json_object_is_type(v, json_type_int));
    return json_object_get_int64(v);
}

static json_object *inspect(const char *dir, uint32_t context_tokens) {
    char *text = NULL;
    calla_error err = {0};
    json_object *root = NULL;
    if (calla_inspect(dir, context_tokens, &text, &err)) fail_msg("%s", err.message);
    assert_int_equal(json_parse(text, strlen(text), "inspect", &root, &err), CALLA_OK);
    calla_free(text);
    return root;
}

static void test_inspect_pocket(void **state) {
    (void)state;
    json_object *root = inspect(test_models("pocket"), 0);
    assert_string_equal(json_object_get_string(json_object_object_get(root, "model_name")), "pocket");
    assert_int_equal(number_at(root, "shape", "hidden"), 256);
    assert_int_equal(number_at(root, "shape", "layers"), 8);
    assert_int_equal(number_at(root, "shape", "attention_layers"), 2);
    assert_int_equal(number_at(root, "shape", "gdn_layers"), 6);
    assert_int_equal(number_at(root, "shape", "vocabulary_rows"), 8192);
    assert_int_equal(number_at(root, NULL, "vocabulary"), 8186);
    assert_int_equal(number_at(root, "shape", "experts"), 16);
    assert_int_equal(number_at(root, "shape", "experts_per_token"), 4);
    assert_int_equal(number_at(root, "memory", "context_tokens"), 32768);
    /* 2 layers, k and v, 1 head of 256, bf16: 2,048 bytes a token, for the window and a page for each of 4 sequences */
    assert_int_equal(number_at(root, "memory", "kv_bytes"), (32768 + 4 * 256) * 2048);
    int64_t text = number_at(root, "tensors", "text_bytes"), token = number_at(root, "tensors", "bytes_per_token");
    assert_true(text > 12000000 && text <= number_at(root, "tensors", "file_bytes"));
    assert_true(token > text / 4 && token < text);
    json_object *stop = json_object_object_get(root, "stop_ids");
    assert_int_equal(json_object_array_length(stop), 2);
    /* every matrix is 4 bits in groups of 64, but routers and the shared experts' gates, 2 · 8 of 8 bits */
    json_object *forms = json_object_object_get(root, "quantization");
    bool eight = false;
    for (size_t i = 0; i < json_object_array_length(forms); i++) {
        json_object *f = json_object_array_get_idx(forms, i);
        if (number_at(f, NULL, "bits") != 8) continue;
        eight = true;
        assert_int_equal(number_at(f, NULL, "group"), 64);
        assert_int_equal(number_at(f, NULL, "matrices"), 16);
    }
    assert_true(eight);
    json_object_put(root);
    root = inspect(test_models("pocket"), 1024);
    assert_int_equal(number_at(root, "memory", "kv_bytes"), (1024 + 4 * 256) * 2048);
    json_object_put(root);
}

static void test_inspect_without_tokenizer(void **state) {
    (void)state;
    json_object *root = inspect(test_data("checkpoints/tiny-a"), 100);
    assert_int_equal(number_at(root, "shape", "vocabulary_rows"), 320);
    assert_null(json_object_object_get(root, "vocabulary"));
    json_object_put(root);
    char *text = (char *)"";
    calla_error err;
    assert_int_equal(calla_inspect("/nowhere", 0, &text, &err), CALLA_E_IO);
    assert_null(text);
    assert_non_null(strstr(err.message, "/nowhere"));
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(calla_version(), "0.1.0");
    assert_true(strlen(calla_commit()) >= 7);
    const char *names = calla_backends();
    assert_non_null(strstr(names, "ref"));
    assert_ptr_equal(names, calla_backends());
}

/* Before anything has found it: an environment that names a wrong folder is an error, not a reason to look elsewhere. */
static void test_pocket_dir(void **state) {
    (void)state;
    calla_error err;
    setenv("CALLA_POCKET", "/nowhere/pocket", 1);
    assert_null(calla_pocket_dir(&err));
    assert_int_equal(err.status, CALLA_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/pocket"));
    calla_engine *e;
    assert_int_equal(calla_engine_open(NULL, &e, &err), CALLA_E_IO);
    setenv("CALLA_POCKET", test_models("pocket"), 1);
    const char *dir = calla_pocket_dir(&err);
    assert_non_null(dir);
    assert_string_equal(dir, test_models("pocket"));
    unsetenv("CALLA_POCKET");
    assert_ptr_equal(calla_pocket_dir(&err), dir);
    calla_engine_info info;
    assert_int_equal(calla_engine_open(NULL, &e, &err), CALLA_OK);
    calla_engine_get_info(e, &info);
    assert_string_equal(info.model_name, "pocket");
    calla_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pocket_dir), /* first: it is found once */
        cmocka_unit_test(test_inspect_pocket),
        cmocka_unit_test(test_inspect_without_tokenizer),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

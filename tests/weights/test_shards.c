/* test_shards.c: several files with an index that must agree with them, and files that are not what they should be. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "draft.h"
#include "support/arrays.h"
#include "support/temp_dir.h"

#define NORM "language_model.model.norm.weight"
#define A_LOG "language_model.model.layers.2.linear_attn.A_log"

static draft *d;

static int open_draft(void **state) {
    (void)state;
    d = draft_open(test_data("checkpoints/tiny-a"));
    for (size_t i = 0; i < d->n; i++) d->tensors[i].shard = i % 5 == 0 ? 2 : 7; /* all of a matrix need not be in one file */
    return 0;
}

static int close_draft(void **state) {
    (void)state;
    draft_close(d);
    return 0;
}

/* Opens what lies in the draft's folder now. */
static void folder_refused(calla_status status, const char *word, const char *other) {
    weights *w;
    calla_error err = {0};
    const calla_status got = weights_open(d->dir, &w, &err);
    if (got != status) fail_msg("expected %s, got %s: %s", calla_status_name(status), calla_status_name(got), err.message);
    if (!strstr(err.message, word) || !strstr(err.message, other)) fail_msg("expected '%s' and '%s' in: %s", word, other, err.message);
    assert_null(w);
}

static bool check_order(void *user, const tensor_info *t) {
    tensor_info *last = user;
    if (last->file) {
        assert_true(strcmp(last->file, t->file) <= 0);
        if (!strcmp(last->file, t->file)) assert_ptr_equal(last->data + last->bytes, t->data);
    }
    *last = *t;
    return true;
}

static void test_shards(void **state) {
    (void)state;
    weights *w, *single;
    calla_error err;
    if (draft_try(d, &w, &err)) fail_msg("%s", err.message);
    assert_int_equal(weights_open(test_data("checkpoints/tiny-a"), &single, &err), CALLA_OK);
    assert_int_equal(w->text_bytes, single->text_bytes);
    assert_int_equal(w->token_bytes, single->token_bytes);
    for (uint32_t i = 0; i < w->shape.layers; i++) {
        const weight_mat *a = &w->layer[i].expert_down, *b = &single->layer[i].expert_down;
        assert_memory_equal(a->codes, b->codes, a->count * a->rows * weight_row_bytes(a));
        assert_memory_equal(a->scales, b->scales, a->count * a->rows * weight_row_groups(a) * 2);
    }
    tensor_info last = {0};
    weights_each_tensor(w, check_order, &last);
    assert_string_equal(last.file, "model-7.safetensors");
    weights_close(w);
    weights_close(single);
}

static void with_map(const char *tensor, const char *file_json) {
    json_object_put(d->map);
    d->map = draft_right_map(d);
    if (!file_json)
        json_object_object_del(d->map, tensor);
    else
        json_object_object_add(d->map, tensor, json_tokener_parse(file_json));
}

static void test_index_disagrees(void **state) {
    (void)state;
    draft_find(d, A_LOG)->shard = 2;
    with_map(A_LOG, "\"model-7.safetensors\"");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors.index.json", A_LOG, "said to be in model-7.safetensors, but it is in model-2",
                  NULL);
    with_map(A_LOG, NULL);
    draft_refused(d, CALLA_E_FORMAT, "model-2.safetensors", A_LOG, "weight_map does not list it", NULL);
    with_map("language_model.x", "\"model-2.safetensors\"");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors.index.json", "language_model.x", "model-2.safetensors does not hold it", NULL);
    with_map("language_model.x", "\"model-3.safetensors\"");
    draft_refused(d, CALLA_E_IO, "model-3.safetensors", "cannot open", NULL);
    const char *outside[] = {"\"../model-2.safetensors\"",
                             "\"/etc/passwd\"",
                             "\"a/b.safetensors\"",
                             "\"..safetensors\"",
                             "\".safetensors\"",
                             "\"model.bin\"",
                             "\"\""};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        with_map(NORM, outside[i]);
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors.index.json", NORM, "not a plain *.safetensors file name", NULL);
    }
    with_map(NORM, "7");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors.index.json", "not the name of a file", NULL);
    with_map("\n", "\"model-2.safetensors\"");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors.index.json", "control character", NULL);
}

static void test_in_two_shards(void **state) {
    (void)state;
    draft_tensor *t = draft_add(d, "vision_tower.x", "F32", "4");
    t->shard = 2;
    t = draft_add(d, "vision_tower.y", "F32", "4");
    t->shard = 7;
    draft_write(d);
    weights *w;
    calla_error err;
    assert_int_equal(draft_try(d, &w, &err), CALLA_OK);
    weights_close(w);
    snprintf(t->name, sizeof t->name, "vision_tower.x"); /* the same in both */
    draft_refused(d, CALLA_E_FORMAT, "model-7.safetensors", "vision_tower.x", "it is also in model-2.safetensors", NULL);
}

static void test_index_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "not a JSON object"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":[]}", "weight_map is not an object"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\"}", "not valid JSON"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\"}} 1", "not valid JSON"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\"},\"weight_map\":{}}", "given twice"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":[]}}", "not the name of a file"},
    };
    draft_write(d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(d->dir, "model.safetensors.index.json", cases[i].text, strlen(cases[i].text));
        folder_refused(CALLA_E_FORMAT, "model.safetensors.index.json", cases[i].word);
    }
}

static void test_listed_twice(void **state) {
    (void)state;
    size_t n;
    draft_write(d);
    char *text = slurp_file(d->dir, "model.safetensors.index.json", &n);
    char *twice = NULL, *end = strrchr(text, '}');
    *end = 0;
    *strrchr(text, '}') = 0;
    char *file = draft_find(d, NORM)->shard == 2 ? "model-2.safetensors" : "model-7.safetensors";
    assert_true(asprintf(&twice, "%s,\"" NORM "\":\"%s\"}}", text, file) > 0);
    write_file(d->dir, "model.safetensors.index.json", twice, strlen(twice));
    folder_refused(CALLA_E_FORMAT, NORM, "weight_map lists it twice");
    free(twice);
    free(text);
}

/* The last byte missing, one too many, and some further cuts: in the header and at its end. */
static void test_cut_file(void **state) {
    (void)state;
    size_t n;
    uint64_t header;
    for (size_t i = 0; i < d->n; i++) d->tensors[i].shard = 0;
    draft_write(d);
    char *data = slurp_file(d->dir, "model.safetensors", &n);
    memcpy(&header, data, 8);
    const size_t cuts[] = {0, 1, 7, 8, 9, 100, header, 7 + header, 8 + header, 9 + header, n / 2, n - 4096, n - 2, n - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        write_file(d->dir, "model.safetensors", data, cuts[i]);
        folder_refused(CALLA_E_FORMAT, "model.safetensors", "");
    }
    data = realloc(data, n + 1);
    data[n] = 0;
    write_file(d->dir, "model.safetensors", data, n + 1);
    folder_refused(CALLA_E_FORMAT, "model.safetensors", "the last 1 bytes of the file belong to no tensor");
    free(data);
}

static void test_missing_files(void **state) {
    (void)state;
    char path[512];
    draft_write(d);
    snprintf(path, sizeof path, "%s/model-7.safetensors", d->dir);
    assert_int_equal(unlink(path), 0);
    folder_refused(CALLA_E_IO, "model-7.safetensors", "cannot open");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", d->dir);
    assert_int_equal(unlink(path), 0);
    folder_refused(CALLA_E_IO, d->dir, "neither model.safetensors.index.json nor model.safetensors");
    write_file(d->dir, "generation_config.json", "{\"top_p\":2}", 11);
    folder_refused(CALLA_E_FORMAT, "generation_config.json: top_p is 2", "a number from 0 to 1");
    snprintf(path, sizeof path, "%s/config.json", d->dir);
    assert_int_equal(unlink(path), 0);
    folder_refused(CALLA_E_IO, "config.json", "cannot open");
    weights *w;
    calla_error err;
    assert_int_equal(weights_open("/nonexistent/folder", &w, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "/nonexistent/folder"));
    write_file(d->dir, "config.json", "x", 1);
    assert_int_equal(weights_open(path, &w, &err), CALLA_E_IO);
    assert_non_null(strstr(err.message, "not a folder"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_draft, close_draft)
        TEST(test_shards),       TEST(test_index_disagrees), TEST(test_in_two_shards), TEST(test_index_text),
        TEST(test_listed_twice), TEST(test_cut_file),        TEST(test_missing_files),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

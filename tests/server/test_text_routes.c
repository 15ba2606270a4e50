/* /tokenize, /detokenize, /apply-template and /props over real sockets. */
#include "unit.h"

#include <string.h>

#include "harness.h"

static harness h;

static int setup(void **state) {
    (void)state;
    harness_open(&h, NULL, NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    harness_close(&h);
    return 0;
}

static void props_name_the_defaults(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(props_name_the_defaults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* fuzz_template.c: any JSON as a request.  It renders or fails with a message; the text is valid UTF-8, its runs cover it, and with or
 * without origins it is the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_template: %s\n", what);
    abort();
}

static bool is_true(json_object *root, const char *key) { return json_object_get_boolean(json_object_object_get(root, key)); }

static void render(json_object *root, template_kind kind) {
    template_request request = {.messages = json_object_object_get(root, "messages"), .tools = json_object_object_get(root, "tools")};
    request.thinking = is_true(root, "enable_thinking");
    request.preserve_thinking = is_true(root, "preserve_thinking");
    request.vision_ids = is_true(root, "add_vision_id");
    request.no_generation_prompt = is_true(root, "no_generation_prompt");
    template_output ours, reference;
    calla_error err = {0};
    const calla_status status = template_render(kind, &request, &ours, &err);
    request.reference = true;
    require(template_render(kind, &request, &reference, &err) == status, "origins change the outcome");
    if (status) {
        require(err.message[0] != 0, "an error without a message");
        return;
    }
    size_t sum = 0;
    for (size_t i = 0; i < ours.n_runs; i++) sum += ours.runs[i];
    require(sum == ours.text.n, "the runs do not cover the text");
    require(reference.n_runs == 1 && reference.runs[0] == ours.text.n, "the reference is all template");
    require(ours.text.n == reference.text.n && !memcmp(ours.text.data, reference.text.data, ours.text.n), "origins change the text");
    require(utf8_valid(ours.text.data, ours.text.n) == ours.text.n, "the text is not UTF-8");
    template_output_free(&ours);
    template_output_free(&reference);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_object *root;
    calla_error err;
    if (json_parse((const char *)data, n, "input", &root, &err)) return 0;
    if (json_object_is_type(root, json_type_object)) {
        render(root, TEMPLATE_QWEN36);
        render(root, TEMPLATE_QWEN35);
    }
    json_object_put(root);
    return 0;
}

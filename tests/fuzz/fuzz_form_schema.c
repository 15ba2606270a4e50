/* fuzz_form_schema.c: any text as a JSON schema, of the content or of a strict tool's parameters.  What is accepted can be walked
 * through, and content that ended is JSON. */
#include "base/json.h"
#include "form.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { THINKING = 1, LOOSE = 2, TOOL = 4, REQUIRED = 8, ONE_CALL = 16 };

static void walk_content(const form_input *in) {
    const calla_form_options options = {.kind = CALLA_FORM_JSON_SCHEMA,
                                        .source = in->source,
                                        .n_source = in->n_source,
                                        .strict_schema = !(in->flags & LOOSE),
                                        .tool_choice = CALLA_TOOLS_NONE};
    buffer answer = {0};
    if (form_walk(&options, in->flags & THINKING, in, &answer)) {
        json_object *value = NULL;
        calla_error err;
        form_require(!json_parse(answer.data, answer.n, "answer", &value, &err), "the answer is not JSON");
        json_object_put(value);
    }
    buffer_free(&answer);
}

/* The parameters go in as they are, so that they can be any text within the tools. */
static void walk_tool(const form_input *in) {
    buffer tools = {0}, answer = {0};
    buffer_printf(&tools, "[{\"function\":{\"name\":\"f\",\"strict\":%s,\"parameters\":", in->flags & LOOSE ? "false" : "true");
    buffer_append(&tools, in->source, in->n_source);
    buffer_printf(&tools, "}},{\"function\":{\"name\":\"fg\"}}]");
    buffer_append(&tools, "", 1);
    const calla_form_options options = {.tools_json = tools.data,
                                        .tool_choice = in->flags & REQUIRED ? CALLA_TOOLS_REQUIRED : CALLA_TOOLS_NAMED,
                                        .tool_name = "f",
                                        .one_call = in->flags & ONE_CALL};
    form_require(!tools.failed, "out of memory");
    form_walk(&options, in->flags & THINKING, in, &answer);
    buffer_free(&tools);
    buffer_free(&answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    form_input in;
    if (!form_input_read(data, n, &in)) return 0;
    if (in.flags & TOOL)
        walk_tool(&in);
    else
        walk_content(&in);
    return 0;
}

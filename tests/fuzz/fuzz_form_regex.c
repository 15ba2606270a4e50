/* fuzz_form_regex.c: any text as a regular expression, of the whole content, or as the pattern of a string.  What is accepted can be
 * walked through, and an answer that ended is UTF-8. */
#include "base/json.h"
#include "base/utf8.h"
#include "form.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { THINKING = 1, PATTERN = 2, LENGTHS = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    form_input in;
    if (!form_input_read(data, n, &in)) return 0;
    calla_form_options options = {
        .kind = CALLA_FORM_REGEX, .source = in.source, .n_source = in.n_source, .strict_schema = true, .tool_choice = CALLA_TOOLS_NONE};
    json_object *schema = NULL;
    if (in.flags & PATTERN) { /* text that is not UTF-8 as well: json.h refuses it */
        schema = json_object_new_object();
        form_require(schema != NULL, "out of memory");
        json_object_object_add(schema, "type", json_object_new_string("string"));
        json_object_object_add(schema, "pattern", json_object_new_string_len(in.source, (int)in.n_source));
        if (in.flags & LENGTHS) json_object_object_add(schema, "minLength", json_object_new_int(2));
        if (in.flags & LENGTHS) json_object_object_add(schema, "maxLength", json_object_new_int(9));
        options.kind = CALLA_FORM_JSON_SCHEMA;
        options.source = json_object_to_json_string_length(schema, JSON_C_TO_STRING_PLAIN, &options.n_source);
    }
    buffer answer = {0};
    if (form_walk(&options, in.flags & THINKING, &in, &answer) && answer.n)
        form_require(utf8_valid(answer.data, answer.n) == answer.n, "the answer is not UTF-8");
    buffer_free(&answer);
    json_object_put(schema);
    return 0;
}

/* template.c: calla template: messages → the text and ids that the model would be given. */
#include "base/memory.h"
#include "cli/cli.h"

int command_template(const options *o) {
    calla_error err = {0};
    calla_text *text = NULL;
    char *input = NULL;
    size_t n = 0;
    calla_prompt prompt = {0};
    const char *dir = cli_model_dir(o, &err);
    if (!dir) return cli_fail_error(&err);
    calla_status status = calla_text_open(dir, &text, &err);
    if (status == CALLA_OK) status = cli_read_input("-", &input, &n, &err);
    if (status == CALLA_OK) status = calla_text_render(text, input, n, &prompt, &err);
    if (status == CALLA_OK) {
        buffer out = {0};
        buffer_append_str(&out, "{\"text\":");
        json_append_string(&out, prompt.text, prompt.n_text);
        buffer_append_str(&out, ",\"ids\":");
        cli_append_ids(&out, prompt.ids.ids, prompt.ids.n);
        buffer_append_str(&out, "}\n");
        status = cli_write_output("-", &out, &err);
        calla_prompt_free(&prompt);
    }
    mem_free(input);
    if (text) calla_text_close(text);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

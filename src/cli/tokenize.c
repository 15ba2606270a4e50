/* tokenize.c: calla tokenize: text → {"ids":[…]}, or back. */
#include "base/memory.h"
#include "cli/cli.h"

static calla_status encode(const calla_text *text, const char *input, size_t n, buffer *out, calla_error *err) {
    calla_ids ids = {0};
    calla_status status = calla_text_encode(text, input, n, &ids, err);
    if (status != CALLA_OK) return status;
    buffer_append_str(out, "{\"ids\":");
    cli_append_ids(out, ids.ids, ids.n);
    buffer_append_str(out, "}\n");
    calla_ids_free(&ids);
    return CALLA_OK;
}

static calla_status decode(const calla_text *text, const char *input, size_t n, buffer *out, calla_error *err) {
    calla_ids ids = {0};
    calla_status status = cli_parse_ids(input, n, "standard input", &ids, err);
    if (status != CALLA_OK) return status;
    char *decoded = NULL;
    size_t n_decoded = 0;
    status = calla_text_decode(text, ids.ids, ids.n, &decoded, &n_decoded, err);
    if (status == CALLA_OK) {
        buffer_append_str(out, "{\"text\":");
        json_append_string(out, decoded, n_decoded);
        buffer_append_str(out, "}\n");
        calla_free(decoded);
    }
    calla_ids_free(&ids);
    return status;
}

int command_tokenize(const options *o) {
    calla_error err = {0};
    calla_text *text = NULL;
    char *input = NULL;
    size_t n = 0;
    buffer out = {0};
    const char *dir = cli_model_dir(o, &err);
    if (!dir) return cli_fail_error(&err);
    calla_status status = calla_text_open(dir, &text, &err);
    if (status == CALLA_OK) status = cli_read_input("-", &input, &n, &err);
    if (status == CALLA_OK) status = (o->value[OPTION_DECODE].given ? decode : encode)(text, input, n, &out, &err);
    if (status == CALLA_OK) status = cli_write_output("-", &out, &err);
    buffer_free(&out);
    mem_free(input);
    if (text) calla_text_close(text);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

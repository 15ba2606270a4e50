/* cli.c: see cli.h. */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/memory.h"

__attribute__((format(printf, 1, 0))) static void print_line(const char *format, va_list ap) {
    char line[2048];
    vsnprintf(line, sizeof line, format, ap);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = ' '; /* one error stays one line, and nothing steers the terminal */
    fflush(stdout);
    fprintf(stderr, "calla: %s\n", line);
}

int cli_fail(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    print_line(format, ap);
    va_end(ap);
    return EXIT_RUNTIME;
}

int cli_fail_usage(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    print_line(format, ap);
    va_end(ap);
    return EXIT_USAGE;
}

void cli_note(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    print_line(format, ap);
    va_end(ap);
}

int cli_fail_error(const calla_error *err) { return cli_fail("%s", err->message[0] ? err->message : calla_status_name(err->status)); }

const char *cli_model_dir(const options *o, calla_error *err) {
    const char *dir = o->value[OPTION_MODEL].text;
    return dir ? dir : calla_pocket_dir(err);
}

calla_status cli_engine_options(const options *o, calla_engine_options *out, calla_error *err) {
    memset(out, 0, sizeof *out);
    out->model_dir = cli_model_dir(o, err);
    if (!out->model_dir) return err->status;
    out->device = o->value[OPTION_DEVICE].text;
    out->context_tokens = (uint32_t)o->value[OPTION_CONTEXT].integer;
    out->batch_rows = (uint32_t)o->value[OPTION_BATCH_ROWS].integer;
    out->max_sequences = (uint32_t)o->value[OPTION_SEQUENCES].integer;
    out->kv = (calla_kv)o->value[OPTION_KV].integer; /* the choices stand in the order of the enum */
    out->precision = o->value[OPTION_PRECISION].integer ? CALLA_PRECISION_FAST : CALLA_PRECISION_EXACT;
    out->deterministic = o->value[OPTION_DETERMINISTIC].given;
    out->polite = o->value[OPTION_POLITE].given;
    out->threads = (uint32_t)o->value[OPTION_THREADS].integer;
    out->without = o->value[OPTION_WITHOUT].text;
    return CALLA_OK;
}

calla_status cli_read_input(const char *path, char **out, size_t *n, calla_error *err) {
    bool from_stdin = strcmp(path, "-") == 0;
    const char *name = from_stdin ? "standard input" : path;
    *out = NULL;
    FILE *file = from_stdin ? stdin : fopen(path, "rb");
    if (!file) return error_set(err, CALLA_E_IO, "cannot open %s: %s", name, strerror(errno));
    buffer b = {.max = INPUT_MAX};
    char piece[1 << 16];
    size_t got;
    while ((got = fread(piece, 1, sizeof piece, file)) > 0 && !b.failed) buffer_append(&b, piece, got);
    calla_status status = CALLA_OK;
    if (ferror(file))
        status = error_set(err, CALLA_E_IO, "cannot read %s: %s", name, strerror(errno));
    else if (b.failed)
        status = error_set(err, CALLA_E_LIMIT, "%s does not fit in memory, or is larger than %zu bytes", name, INPUT_MAX);
    if (!from_stdin) fclose(file);
    *n = b.n;
    if (status == CALLA_OK && !(*out = buffer_take(&b))) status = error_nomem(err, name);
    buffer_free(&b);
    return status;
}

calla_status cli_parse_ids(const char *json, size_t n, const char *what, calla_ids *out, calla_error *err) {
    memset(out, 0, sizeof *out);
    json_object *root = NULL, *array = NULL;
    calla_status status = json_parse(json, n, what, &root, err);
    if (status != CALLA_OK) return status;
    if (!json_object_object_get_ex(root, "ids", &array) || !json_object_is_type(array, json_type_array)) {
        json_object_put(root);
        return error_set(err, CALLA_E_FORMAT, "%s: expected an object with an array \"ids\", as calla tokenize prints it", what);
    }
    size_t count = json_object_array_length(array);
    out->ids = mem_array(count, sizeof *out->ids);
    if (!out->ids) status = error_nomem(err, "token ids");
    for (; status == CALLA_OK && out->n < count; out->n++) {
        json_object *item = json_object_array_get_idx(array, out->n);
        int64_t id = json_object_get_int64(item);
        if (!json_object_is_type(item, json_type_int) || id < 0 || id > INT32_MAX)
            status = error_set(err, CALLA_E_FORMAT, "%s: ids[%zu] is not a token id (a whole number from 0)", what, out->n);
        else
            out->ids[out->n] = (int32_t)id;
    }
    json_object_put(root);
    if (status != CALLA_OK) calla_ids_free(out);
    return status;
}

void cli_append_ids(buffer *b, const int32_t *ids, size_t n) {
    buffer_append_char(b, '[');
    for (size_t i = 0; i < n; i++) buffer_printf(b, "%s%d", i ? "," : "", (int)ids[i]);
    buffer_append_char(b, ']');
}

calla_status cli_write_output(const char *path, buffer *b, calla_error *err) {
    bool to_stdout = strcmp(path, "-") == 0;
    const char *name = to_stdout ? "standard output" : path;
    calla_status status = CALLA_OK;
    FILE *file = NULL;
    if (b->failed) {
        status = error_nomem(err, "the result");
    } else if (!(file = to_stdout ? stdout : fopen(path, "wb"))) {
        status = error_set(err, CALLA_E_IO, "cannot create %s: %s", name, strerror(errno));
    } else {
        bool ok = fwrite(b->data, 1, b->n, file) == b->n && fflush(file) == 0;
        int why = errno;
        if (!to_stdout && fclose(file) != 0) ok = false, why = errno;
        if (!ok) status = error_set(err, CALLA_E_IO, "cannot write %s: %s", name, strerror(why));
    }
    buffer_free(b);
    return status;
}

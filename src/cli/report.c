/* report.c: see report.h. */
#include "cli/report.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"

enum { NAME_WIDTH = 18 };

void report_append_text(buffer *b, const char *name, const char *value) {
    buffer_printf(b, ",\"%s\":", name);
    json_append_str(b, value);
}

void report_append_number(buffer *b, const char *name, double value) { buffer_printf(b, ",\"%s\":%.17g", name, value); }

void report_append_count(buffer *b, const char *name, uint64_t value) { buffer_printf(b, ",\"%s\":%llu", name, (unsigned long long)value); }

void report_append_build(buffer *b, const calla_engine_info *info, const options *o) {
    buffer_printf(b, "\"calla\":\"%s\",\"commit\":\"%s\"", calla_version(), calla_commit());
    report_append_text(b, "model", info->model_name);
    report_append_count(b, "vocabulary_rows", info->vocabulary_rows);
    report_append_text(b, "device", info->device);
    report_append_text(b, "device_detail", info->device_detail);
    report_append_text(b, "precision", o->value[OPTION_PRECISION].text);
    report_append_text(b, "kv", o->value[OPTION_KV].text);
    buffer_printf(b, ",\"deterministic\":%s", o->value[OPTION_DETERMINISTIC].given ? "true" : "false");
    report_append_text(b, "without", o->value[OPTION_WITHOUT].text ? o->value[OPTION_WITHOUT].text : "");
}

void report_print_line(const char *name, const char *format, ...) {
    va_list ap;
    printf("%-*s", NAME_WIDTH, name);
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    putchar('\n');
}

void report_print_build(const calla_engine_info *info, const options *o) {
    report_print_line("calla", "%s (commit %s)", calla_version(), calla_commit());
    report_print_line("model", "%s", info->model_name);
    const char *without = o->value[OPTION_WITHOUT].text;
    report_print_line("device", "%s%s%s%s, precision %s, KV %s%s%s", info->device, info->device_detail[0] ? " (" : "", info->device_detail,
                      info->device_detail[0] ? ")" : "", o->value[OPTION_PRECISION].text, o->value[OPTION_KV].text,
                      without ? ", without " : "", without ? without : "");
}

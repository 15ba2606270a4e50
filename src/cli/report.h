/* report.h: what both instruments say of what computed: version, model, device and the options that change results. */
#ifndef CALLA_CLI_REPORT_H
#define CALLA_CLI_REPORT_H

#include "base/buffer.h"
#include "cli/options.h"

/* Members of a JSON object without its braces: "calla", "commit", "model", "vocabulary_rows", "device", "device_detail", "precision",
 * "kv", "deterministic", "without". */
void report_append_build(buffer *b, const calla_engine_info *info, const options *o);
/* The same in lines of "name  value", NAME_WIDTH columns for the name. */
void report_print_build(const calla_engine_info *info, const options *o);
__attribute__((format(printf, 2, 3))) void report_print_line(const char *name, const char *format, ...);

/* Members of a JSON object, with a comma before them. */
void report_append_text(buffer *b, const char *name, const char *value);
void report_append_number(buffer *b, const char *name, double value); /* finite; read back as it was */
void report_append_count(buffer *b, const char *name, uint64_t value);

#endif

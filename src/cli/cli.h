/* cli.h: what the commands share.  Only this folder talks to the terminal, sets exit codes and reads standard input; it sees calla.h,
 * text/ and base/ (and server/server.h for `calla serve`). */
#ifndef CALLA_CLI_CLI_H
#define CALLA_CLI_CLI_H

#include <stdio.h>

#include "base/json.h"
#include "cli/options.h"

/* Exit codes. */
enum { EXIT_OK = 0, EXIT_RUNTIME = 1, EXIT_USAGE = 2 };

/* Largest file or standard input that a command reads. */
#define INPUT_MAX ((size_t)1 << 30)

/* One function per command; what each returns is the exit code. */
int command_run(const options *o);
int command_serve(const options *o);
int command_inspect(const options *o);
int command_tokenize(const options *o);
int command_template(const options *o);
int command_eval(const options *o);
int command_selftest(const options *o);
int command_bench(const options *o);

/* help.c: everything below is printed from the table in option_table.c. */
void help_print_overall(FILE *out);
void help_print_command(FILE *out, command_id command);
void help_print_markdown(FILE *out); /* docs/options.md */
void help_print_version(FILE *out);

/* Prints "calla: …" as one line on stderr and returns EXIT_RUNTIME (or EXIT_USAGE). */
__attribute__((format(printf, 1, 2))) int cli_fail(const char *format, ...);
__attribute__((format(printf, 1, 2))) int cli_fail_usage(const char *format, ...);
/* The same for an error from below; "" before the colon if what is NULL. */
int cli_fail_error(const calla_error *err);

/* A note on stderr that is not a failure: one line, "calla: …". */
__attribute__((format(printf, 1, 2))) void cli_note(const char *format, ...);

/* The folder of --model, or of pocket; NULL with err. */
const char *cli_model_dir(const options *o, calla_error *err);
/* The engine options that the command line gives; the caller may go on to change them. */
calla_status cli_engine_options(const options *o, calla_engine_options *out, calla_error *err);

/* Reads a file to its end ("-": standard input): [*n] bytes and a NUL, the caller's (mem_free). */
calla_status cli_read_input(const char *path, char **out, size_t *n, calla_error *err);
/* Reads {"ids":[…]}: other keys are ignored, ids must be whole numbers in int32 range.  `what` names the source in errors. */
calla_status cli_parse_ids(const char *json, size_t n, const char *what, calla_ids *out, calla_error *err);

/* Appends "[1,2,3]". */
void cli_append_ids(buffer *b, const int32_t *ids, size_t n);
/* Writes b to a file ("-": standard output) and frees b.  A buffer that failed is an out-of-memory error. */
calla_status cli_write_output(const char *path, buffer *b, calla_error *err);

#endif

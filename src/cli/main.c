/* main.c: picks the command.  Knows no option: the table in option_table.c does. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

static int (*const command_function[COMMAND_COUNT])(const options *) = {
    [COMMAND_RUN] = command_run,           [COMMAND_SERVE] = command_serve,       [COMMAND_INSPECT] = command_inspect,
    [COMMAND_TOKENIZE] = command_tokenize, [COMMAND_TEMPLATE] = command_template, [COMMAND_EVAL] = command_eval,
    [COMMAND_SELFTEST] = command_selftest, [COMMAND_BENCH] = command_bench,
};

/* A standard stream that was closed by the caller must not become the number of the next file opened: fill it with /dev/null, opened
 * the wrong way round, so that using it is still an error that gets reported. */
static void occupy_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) != -1) continue;
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) _exit(EXIT_RUNTIME);
    }
}

/* Reports what stdio could not write: a full disk, a closed stream. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    return code == EXIT_OK ? cli_fail("cannot write standard output") : code;
}

static int unknown_command(const char *typed) {
    const char *nearest = command_nearest(typed);
    if (nearest) return cli_fail_usage("unknown command \"%s\"; did you mean \"%s\"? (calla --help lists all)", typed, nearest);
    return cli_fail_usage("unknown command \"%s\" (calla --help lists all)", typed);
}

static int print_help(int argc, char *const *argv) {
    if (argc == 0) return help_print_overall(stdout), EXIT_OK;
    if (argc > 1) return cli_fail_usage("help takes one command");
    if (strcmp(argv[0], "--markdown") == 0) return help_print_markdown(stdout), EXIT_OK;
    int command = command_find(argv[0]);
    if (command < 0) return unknown_command(argv[0]);
    return help_print_command(stdout, (command_id)command), EXIT_OK;
}

int main(int argc, char **argv) {
    occupy_standard_streams();
    if (argc < 2) {
        help_print_overall(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return finish(print_help(argc - 2, argv + 2));
    if (strcmp(name, "--version") == 0) return help_print_version(stdout), finish(EXIT_OK);
    int command = command_find(name);
    if (command < 0) {
        if (name[0] == '-') return cli_fail_usage("the command comes first: calla COMMAND %s (calla --help lists the commands)", name);
        return unknown_command(name);
    }
    options o;
    calla_error err = {0};
    if (options_parse((command_id)command, argc - 2, argv + 2, &o, &err) != CALLA_OK) return cli_fail_usage("%s", err.message);
    if (o.value[OPTION_HELP].given) return help_print_command(stdout, (command_id)command), finish(EXIT_OK);
    log_level usual = command == COMMAND_SERVE ? LOG_INFO : LOG_WARN;
    log_set_level(o.value[OPTION_LOG].given ? (log_level)o.value[OPTION_LOG].integer : usual);
    return finish(command_function[command](&o));
}

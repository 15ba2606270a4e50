/* help.c: --help, --version and docs/options.md, printed from the table in option_table.c. */
#include <string.h>

#include "cli/cli.h"

enum { PAGE_WIDTH = 100, HELP_COLUMN = 34 };

/* Prints text in lines of at most PAGE_WIDTH columns, the first of which begins at column `at`, the others at `indent`.  Columns are
 * characters, not bytes. */
static void print_wrapped(FILE *out, const char *text, int at, int indent) {
    int column = at;
    bool first = true;
    while (*text) {
        size_t n = strcspn(text, " ");
        int width = 0;
        for (size_t i = 0; i < n; i++) width += ((unsigned char)text[i] & 0xC0) != 0x80;
        if (!first && column + 1 + width > PAGE_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += width;
        text += n;
        text += strspn(text, " ");
        first = false;
    }
    fputc('\n', out);
}

static bool takes(command_id command, int id) { return option_table[id].commands >> command & 1; }

static bool has_range(const option_spec *s) { return s->type == OPTION_INTEGER || s->type == OPTION_NUMBER || s->type == OPTION_LIST; }

static void print_option(FILE *out, const option_spec *s) {
    char text[1024], range[128];
    int column = fprintf(out, "  --%s%s%s", s->name, s->value ? " " : "", s->value ? s->value : "");
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    size_t n = (size_t)snprintf(text, sizeof text, "%s", s->help);
    if (has_range(s)) {
        option_describe_range(s, range, sizeof range);
        n += (size_t)snprintf(text + n, sizeof text - n, "; %s", range);
    }
    const char *absent = s->preset ? s->preset : s->otherwise;
    if (absent) n += (size_t)snprintf(text + n, sizeof text - n, " [%s]", absent);
    if (s->env) snprintf(text + n, sizeof text - n, " (%s)", s->env);
    print_wrapped(out, text, HELP_COLUMN, HELP_COLUMN);
}

void help_print_overall(FILE *out) {
    fprintf(out, "calla runs one model, Qwen3.6-35B-A3B, and its small relatives.\n\nUsage: calla COMMAND [OPTIONS]\n\n");
    for (int c = 0; c < COMMAND_COUNT; c++) fprintf(out, "  %-10s %s\n", command_table[c].name, command_table[c].summary);
    fprintf(out,
            "\n  calla COMMAND --help    the options of a command\n"
            "  calla --version         version, commit, devices\n\n"
            "Without --model, the small embedded model \"pocket\" is used: try\n\n  %s\n",
            command_table[COMMAND_RUN].example);
}

void help_print_command(FILE *out, command_id command) {
    const command_spec *c = &command_table[command];
    fprintf(out, "calla %s: %s.\n\nUsage: calla %s [OPTIONS]", c->name, c->summary, c->name);
    if (c->argument) fprintf(out, " [%s]", c->argument);
    fprintf(out, "\n\n");
    print_wrapped(out, c->details, 0, 0);
    fprintf(out, "\n  %s\n\nOptions; in brackets what holds without one, in parentheses its environment variable:\n\n", c->example);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (takes(command, i)) print_option(out, &option_table[i]);
    fprintf(out, "\nExit codes: 0 done, 1 it failed, 2 the command line or an environment variable is wrong.\n");
}

/* One cell of a table: a bar would end it. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void help_print_markdown(FILE *out) {
    fprintf(out,
            "# Commands and options\n\n"
            "Printed by `calla help --markdown` from the table in src/cli/option_table.c; a test fails when this file is behind.\n"
            "The command line wins over the environment, the environment over the default. A flag is switched on by 1 in its variable.\n"
            "CALLA_POCKET names the folder of the pocket model where calla is not to look for it itself.\n\n"
            "Exit codes: 0 done, 1 it failed, 2 the command line or an environment variable is wrong. Errors are one line on standard "
            "error.\n");
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const command_spec *spec = &command_table[c];
        fprintf(out, "\n## calla %s%s%s%s\n\n%s.\n\n%s\n\n```\n%s\n```\n\n", spec->name, spec->argument ? " [" : "",
                spec->argument ? spec->argument : "", spec->argument ? "]" : "", spec->summary, spec->details, spec->example);
        fprintf(out, "| option | value | without it | environment | |\n|---|---|---|---|---|\n");
        for (int i = 0; i < OPTION_COUNT; i++) {
            const option_spec *s = &option_table[i];
            char range[128] = "";
            if (!takes((command_id)c, i)) continue;
            if (has_range(s))
                option_describe_range(s, range, sizeof range);
            else if (s->value)
                snprintf(range, sizeof range, "%s", s->value);
            fprintf(out, "| `--%s` | ", s->name);
            print_cell(out, range);
            fprintf(out, " | %s | %s | ", s->preset ? s->preset : s->otherwise ? s->otherwise : "", s->env ? s->env : "");
            print_cell(out, s->help);
            fprintf(out, " |\n");
        }
    }
}

void help_print_version(FILE *out) {
    fprintf(out, "calla %s (commit %s, devices: %s)\n", calla_version(), calla_commit(), calla_backends());
}

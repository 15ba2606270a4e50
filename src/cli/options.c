/* options.c: reading the command line and the environment by the table in option_table.c. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Edit distance (Levenshtein) of two words; anything beyond MAX_WORD letters counts as far away. */
enum { MAX_WORD = 40, FAR = 1000 };

static int word_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    if (n > MAX_WORD || m > MAX_WORD) return FAR;
    int row[MAX_WORD + 1];
    for (size_t j = 0; j <= m; j++) row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

/* A guess is worth printing if at most a third of the word is wrong. */
static bool is_near(int distance, const char *typed) { return distance <= 1 + (int)strlen(typed) / 3; }

int command_find(const char *name) {
    for (int c = 0; c < COMMAND_COUNT; c++)
        if (strcmp(command_table[c].name, name) == 0) return c;
    return -1;
}

const char *command_nearest(const char *typed) {
    const char *nearest = NULL;
    int least = FAR;
    for (int c = 0; c < COMMAND_COUNT; c++) {
        int d = word_distance(typed, command_table[c].name);
        if (d < least) least = d, nearest = command_table[c].name;
    }
    return is_near(least, typed) ? nearest : NULL;
}

static bool takes(command_id command, option_id id) { return option_table[id].commands >> command & 1; }

void option_describe_range(const option_spec *spec, char *out, size_t n) {
    bool bounded = spec->max < 1e15;
    switch (spec->type) {
    case OPTION_FLAG: snprintf(out, n, "no value"); break;
    case OPTION_TEXT: snprintf(out, n, "text"); break;
    case OPTION_CHOICE: snprintf(out, n, "one of %s", spec->value); break;
    case OPTION_INTEGER:
        if (bounded)
            snprintf(out, n, "a whole number from %.0f to %.0f", spec->min, spec->max);
        else
            snprintf(out, n, "a whole number below 2^64");
        break;
    case OPTION_LIST:
        snprintf(out, n, "whole numbers from %.0f to %.0f, at most %d, with commas", spec->min, spec->max, OPTION_LIST_MAX);
        break;
    case OPTION_NUMBER: snprintf(out, n, "a number %s %g to %g", spec->above_min ? "above" : "from", spec->min, spec->max); break;
    }
}

/* The index of text among "a|b|c", or -1. */
static int choice_index(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t m = strcspn(choices, "|");
        if (m == n && memcmp(choices, text, n) == 0) return i;
        if (choices[m] == 0) return -1;
        choices += m + 1;
    }
}

/* Whether text is spelled as a decimal number: keeps out what strtod also takes (hexadecimal, "inf", leading blanks). */
static bool is_decimal(const char *text) { return *text && text[strspn(text, "+-.0123456789eE")] == 0; }

/* A whole number in the option's range: *end is where it stops. */
static bool read_whole(const option_spec *spec, const char *text, uint64_t *out, char **end) {
    if (*text < '0' || *text > '9') return false; /* strtoull takes blanks and signs as well */
    errno = 0;
    *out = strtoull(text, end, 10);
    return errno == 0 && (double)*out >= spec->min && (double)*out <= spec->max;
}

static bool read_list(const option_spec *spec, option_value *v) {
    uint64_t member;
    char *at = NULL;
    v->n_list = 0;
    for (const char *text = v->text;; text = at + 1) {
        if (v->n_list == OPTION_LIST_MAX || !read_whole(spec, text, &member, &at)) return false;
        v->list[v->n_list++] = (uint32_t)member;
        if (*at == 0) return true;
        if (*at != ',') return false;
    }
}

/* Turns v->text into a number, index or list.  `said` is how the user gave it: "--port" or "CALLA_PORT". */
static calla_status read_value(const option_spec *spec, const char *said, option_value *v, calla_error *err) {
    bool ok = true;
    char *end = NULL;
    errno = 0;
    switch (spec->type) {
    case OPTION_FLAG: break;
    case OPTION_TEXT: ok = *v->text != 0; break;
    case OPTION_CHOICE: {
        int i = choice_index(spec->value, v->text);
        ok = i >= 0;
        v->integer = (uint64_t)(ok ? i : 0);
        break;
    }
    case OPTION_INTEGER: ok = read_whole(spec, v->text, &v->integer, &end) && *end == 0; break;
    case OPTION_LIST: ok = read_list(spec, v); break;
    case OPTION_NUMBER:
        ok = is_decimal(v->text);
        if (!ok) break;
        v->number = strtod(v->text, &end);
        ok = end != v->text && *end == 0 && isfinite(v->number) && v->number <= spec->max &&
             (spec->above_min ? v->number > spec->min : v->number >= spec->min);
        break;
    }
    if (ok) return CALLA_OK;
    char range[128];
    option_describe_range(spec, range, sizeof range);
    return error_set(err, CALLA_E_ARGUMENT, "%s takes %s, not \"%s\"", said, *v->text ? range : "a value", v->text);
}

/* The option that the n letters at name spell: the command's own, else one of another command, else -1. */
static int option_find(command_id command, const char *name, size_t n) {
    int found = -1;
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (strlen(option_table[i].name) != n || memcmp(option_table[i].name, name, n) != 0) continue;
        if (takes(command, (option_id)i)) return i;
        found = i;
    }
    return found;
}

static calla_status unknown_option(command_id command, const char *name, size_t n, calla_error *err) {
    const char *command_name = command_table[command].name;
    char typed[MAX_WORD + 1];
    snprintf(typed, sizeof typed, "%.*s", (int)(n > MAX_WORD ? MAX_WORD : n), name);
    const char *nearest = NULL;
    int least = FAR;
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!takes(command, (option_id)i)) continue;
        int d = word_distance(typed, option_table[i].name);
        if (d < least) least = d, nearest = option_table[i].name;
    }
    if (nearest && is_near(least, typed))
        return error_set(err, CALLA_E_ARGUMENT, "unknown option --%s; did you mean --%s? (calla %s --help lists all)", typed, nearest,
                         command_name);
    return error_set(err, CALLA_E_ARGUMENT, "unknown option --%s (calla %s --help lists all)", typed, command_name);
}

/* An option that exists, but not here: say where. */
static calla_status misplaced_option(command_id command, option_id id, calla_error *err) {
    char where[128] = "";
    const char *name = option_table[id].name;
    size_t n = 0;
    for (int c = 0; c < COMMAND_COUNT && n < sizeof where; c++)
        if (takes((command_id)c, (option_id)option_find((command_id)c, name, strlen(name))))
            n += (size_t)snprintf(where + n, sizeof where - n, "%s%s", n ? ", " : "", command_table[c].name);
    return error_set(err, CALLA_E_ARGUMENT, "--%s is an option of %s, not of %s", name, where, command_table[command].name);
}

static calla_status read_option(options *o, int argc, char *const *argv, int *at, calla_error *err) {
    const char *word = argv[*at];
    if (strcmp(word, "-h") == 0) word = "--help";
    if (word[1] != '-')
        return error_set(err, CALLA_E_ARGUMENT,
                         "unknown option %s: options are written with two dashes, text that begins with one after --", word);
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    int id = option_find(o->command, name, n);
    if (id < 0) return unknown_option(o->command, name, n, err);
    const option_spec *spec = &option_table[id];
    if (!takes(o->command, (option_id)id)) return misplaced_option(o->command, (option_id)id, err);
    option_value *v = &o->value[id];
    if (v->given) return error_set(err, CALLA_E_ARGUMENT, "--%s is given twice", spec->name);
    v->given = true;
    if (spec->type == OPTION_FLAG) {
        if (equals) return error_set(err, CALLA_E_ARGUMENT, "--%s takes no value", spec->name);
        return CALLA_OK;
    }
    if (!equals && *at + 1 >= argc)
        return error_set(err, CALLA_E_ARGUMENT, "--%s needs a value: --%s %s", spec->name, spec->name, spec->value);
    v->text = equals ? equals + 1 : argv[++*at];
    char said[MAX_WORD + 3];
    snprintf(said, sizeof said, "--%s", spec->name);
    return read_value(spec, said, v, err);
}

static calla_status read_environment(options *o, option_id id, calla_error *err) {
    const option_spec *spec = &option_table[id];
    option_value *v = &o->value[id];
    const char *text = spec->env ? getenv(spec->env) : NULL;
    if (v->given || !text || !*text) return CALLA_OK; /* an empty variable is an unset one */
    if (spec->type == OPTION_FLAG) {
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return error_set(err, CALLA_E_ARGUMENT, "%s takes 0 or 1, not \"%s\"", spec->env, text);
        v->given = *text == '1';
        return CALLA_OK;
    }
    v->given = true;
    v->text = text;
    return read_value(spec, spec->env, v, err);
}

calla_status options_parse(command_id command, int argc, char *const *argv, options *out, calla_error *err) {
    const command_spec *c = &command_table[command];
    memset(out, 0, sizeof *out);
    out->command = command;
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && word[0] == '-' && word[1]) {
            calla_status s = read_option(out, argc, argv, &i, err);
            if (s != CALLA_OK) return s;
        } else if (!c->argument) {
            return error_set(err, CALLA_E_ARGUMENT, "%s takes no argument, only options: \"%s\"", c->name, word);
        } else if (out->argument) {
            return error_set(err, CALLA_E_ARGUMENT, "%s takes one %s, not \"%s\" as well: put text with spaces in quotes", c->name,
                             c->argument, word);
        } else {
            out->argument = word;
        }
    }
    if (out->value[OPTION_HELP].given) return CALLA_OK; /* whoever asks for help gets it, whatever the environment says */
    if (c->takes_model && out->argument) {
        if (out->value[OPTION_MODEL].given)
            return error_set(err, CALLA_E_ARGUMENT, "%s: give the model once, as %s or as --model", c->name, c->argument);
        out->value[OPTION_MODEL].given = true;
        out->value[OPTION_MODEL].text = out->argument;
    }
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!takes(command, (option_id)i)) continue;
        calla_status s = read_environment(out, (option_id)i, err);
        if (s != CALLA_OK) return s;
        option_value *v = &out->value[i];
        if (v->given || !option_table[i].preset) continue;
        v->text = option_table[i].preset;
        s = read_value(&option_table[i], option_table[i].name, v, err);
        if (s != CALLA_OK) return s;
    }
    return CALLA_OK;
}

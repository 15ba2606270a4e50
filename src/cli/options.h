/* options.h: the one table of commands and options.  The command line, the environment, --help and docs/options.md are all read from
 * or printed from it; nothing else in calla calls getenv for a setting of a command.
 *
 * Owns parsing and validation of values.  Does not know what the commands do with them. */
#ifndef CALLA_CLI_OPTIONS_H
#define CALLA_CLI_OPTIONS_H

#include "base/error.h"

typedef enum command_id {
    COMMAND_RUN,
    COMMAND_SERVE,
    COMMAND_INSPECT,
    COMMAND_TOKENIZE,
    COMMAND_TEMPLATE,
    COMMAND_EVAL,
    COMMAND_SELFTEST,
    COMMAND_BENCH,
    COMMAND_COUNT
} command_id;

typedef struct command_spec {
    const char *name;
    const char *argument; /* what --help calls its one positional argument; NULL: it takes none */
    bool takes_model;     /* the argument is a model folder, another way to say --model */
    const char *summary;  /* one line */
    const char *details;  /* a paragraph for `calla help NAME` */
    const char *example;
} command_spec;

extern const command_spec command_table[COMMAND_COUNT];

typedef enum option_id {
    OPTION_MODEL,
    OPTION_DEVICE,
    OPTION_CONTEXT,
    OPTION_BATCH_ROWS,
    OPTION_KV,
    OPTION_PRECISION,
    OPTION_DETERMINISTIC,
    OPTION_POLITE,
    OPTION_THREADS,
    OPTION_WITHOUT,
    OPTION_SEQUENCES,
    OPTION_HOST,
    OPTION_PORT,
    OPTION_REQUESTS,
    OPTION_DRAIN,
    OPTION_KEY_FILE,
    OPTION_ALLOW_HOST,
    OPTION_CORS,
    OPTION_INSECURE,
    OPTION_LOG_PROMPTS,
    OPTION_RAW,
    OPTION_NO_THINK,
    OPTION_SCHEMA,
    OPTION_MAX_TOKENS,
    OPTION_TEMPERATURE,
    OPTION_TOP_K,
    OPTION_TOP_P,
    OPTION_MIN_P,
    OPTION_PRESENCE_PENALTY,
    OPTION_FREQUENCY_PENALTY,
    OPTION_REPETITION_PENALTY,
    OPTION_SEED,
    OPTION_DECODE,
    OPTION_JSON,
    OPTION_IDS,
    OPTION_OUT,
    OPTION_TEXT_FILE,
    OPTION_WINDOW,
    OPTION_STRIDE,
    OPTION_POSITIONS,
    OPTION_RECORD,
    OPTION_AGAINST,
    OPTION_RUNS,
    OPTION_PROMPT,
    OPTION_DEPTH,
    OPTION_DECODE_STEPS,
    OPTION_ABLATE,
    OPTION_JSON_FILE,
    OPTION_LOG,
    OPTION_HELP,
    OPTION_COUNT
} option_id;

/* Of OPTION_LIST, whole numbers separated by commas: most that there may be. */
enum { OPTION_LIST_MAX = 16 };

typedef enum option_type { OPTION_FLAG, OPTION_TEXT, OPTION_INTEGER, OPTION_NUMBER, OPTION_CHOICE, OPTION_LIST } option_type;

typedef struct option_spec {
    const char *name;  /* without the dashes; two options may share one if no command takes both */
    const char *value; /* what --help calls its value; of a choice: the choices, separated by '|'; NULL for a flag */
    option_type type;
    double min, max;       /* of numbers and the members of lists, both allowed */
    bool above_min;        /* min itself is not allowed */
    const char *preset;    /* the default, in the form a user would type; NULL: none */
    const char *otherwise; /* in words, what holds without it, where there is no preset */
    const char *env;       /* environment variable; NULL: none */
    unsigned commands;     /* bit c: command c takes it */
    const char *help;
} option_spec;

extern const option_spec option_table[OPTION_COUNT];

typedef struct option_value {
    bool given;                             /* on the command line or in the environment, not by default */
    const char *text;                       /* as given, or the preset; NULL if neither */
    uint64_t integer;                       /* of OPTION_INTEGER; of OPTION_CHOICE: the index among the choices */
    double number;                          /* of OPTION_NUMBER */
    uint32_t list[OPTION_LIST_MAX], n_list; /* of OPTION_LIST */
} option_value;

typedef struct options {
    command_id command;
    const char *argument; /* the positional one, or NULL */
    option_value value[OPTION_COUNT];
} options;

/* Reads argv [argc], what follows the command's name, then the environment for what was not given.  Errors are CALLA_E_ARGUMENT and
 * name the option or variable, its range, or the nearest option that exists.  Strings in *out point into argv and the environment. */
calla_status options_parse(command_id command, int argc, char *const *argv, options *out, calla_error *err);

/* The command of this name, or -1. */
int command_find(const char *name);
/* The command whose name is nearest to what was typed, or NULL if none is near. */
const char *command_nearest(const char *typed);

/* --option=value words for messages: the range of a value, such as "a whole number from 1 to 65535", into out [n]. */
void option_describe_range(const option_spec *spec, char *out, size_t n);

#endif

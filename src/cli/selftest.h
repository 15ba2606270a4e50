/* selftest.h: what the files of calla selftest share: the list of checks and their results. */
#ifndef CALLA_CLI_SELFTEST_H
#define CALLA_CLI_SELFTEST_H

#include "cli/cli.h"

enum {
    SELFTEST_MAX_CHECKS = 32,
    SELFTEST_TOKENS = 512, /* context that the checks need, without recorded runs */
    SELFTEST_SEQUENCES = 4,
    SELFTEST_BATCH_ROWS = 256
};

typedef enum check_result { CHECK_OK, CHECK_FAILED, CHECK_NOT_FOR_THIS_MODEL } check_result;

typedef struct check {
    char name[64], detail[512];
    check_result result;
    buffer members; /* more of it as members of a JSON object, each with a comma before it */
} check;

typedef struct selftest {
    const options *o;
    const char *model_dir;
    calla_engine *engine; /* of SELFTEST_SEQUENCES and SELFTEST_BATCH_ROWS */
    calla_engine_info info;
    check checks[SELFTEST_MAX_CHECKS];
    uint32_t n;
} selftest;

/* Opens an engine for token ids, with the device, precision, cache and threads of the options. */
calla_status selftest_open_engine(const selftest *s, uint32_t context_tokens, uint32_t sequences, uint32_t batch_rows, calla_engine **out,
                                  calla_error *err);

/* Adds a check.  `what` may be a file's name; what comes after is printed as it is.  Never NULL: the last place is used again. */
__attribute__((format(printf, 4, 5))) check *selftest_add(selftest *s, const char *what, check_result result, const char *detail, ...);
/* The same for something that could not be done. */
void selftest_add_error(selftest *s, const char *what, const calla_error *err);

/* The checks.  Each adds one or more. */
void selftest_pieces(selftest *s);       /* selftest_pieces.c */
void selftest_side_by_side(selftest *s); /* selftest_side_by_side.c */

/* Recorded runs that fit the model, to be opened before the engine, whose context they need. */
typedef struct selftest_runs {
    struct recorded_run *runs; /* [n], in parallel with names */
    char (*names)[64];
    uint32_t n, longest; /* tokens */
} selftest_runs;

void selftest_runs_open(selftest *s, selftest_runs *out); /* selftest_runs.c */
void selftest_runs_check(selftest *s, const selftest_runs *runs);
void selftest_runs_close(selftest_runs *runs);

#endif

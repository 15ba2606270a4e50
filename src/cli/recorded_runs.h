/* recorded_runs.h: greedy runs of another engine, for calla selftest: a folder with runs.json
 *
 *   {"model": "its name", "shape": {"hidden": 2048, …}, "bits": 4, "runs": ["file.json", …]}
 *
 * (shape: names and numbers as calla inspect --json gives them; bits: of most of the weights) and the runs that it names:
 *
 *   {"prompt_token_ids": [ids], "steps": [{"chosen": id, "topk": [[id, log-probability], …]}, …]}
 *
 * topk is sorted, most likely first; other members are ignored.  What was read is checked: ids from 0, log-probabilities that are
 * finite and fall.  Knows nothing of engines. */
#ifndef CALLA_CLI_RECORDED_RUNS_H
#define CALLA_CLI_RECORDED_RUNS_H

#include "base/error.h"
#include "base/json.h"

enum { RECORDED_TOP_MAX = 64 };

typedef struct recorded_step {
    int32_t chosen;
    uint32_t n;
    int32_t ids[RECORDED_TOP_MAX];    /* [n] */
    float logprobs[RECORDED_TOP_MAX]; /* [n] */
} recorded_step;

typedef struct recorded_run {
    int32_t *ids; /* [n_prompt + n_steps]: the prompt, and what was chosen after it */
    size_t n_prompt, n_steps;
    recorded_step *steps; /* [n_steps] */
} recorded_run;

typedef struct recorded_index {
    json_object *root, *shape, *files;
    const char *model;
    uint32_t bits;
    size_t n;
} recorded_index;

calla_status recorded_index_open(const char *dir, recorded_index *out, calla_error *err);
void recorded_index_close(recorded_index *index);
const char *recorded_index_file(const recorded_index *index, size_t i); /* a plain file name */

calla_status recorded_run_open(const char *dir, const char *file, recorded_run *out, calla_error *err);
void recorded_run_close(recorded_run *run);

/* How far `token` lies below the best one of a step, in nats; -1 if it is not among the recorded ones. */
float recorded_step_gap(const recorded_step *step, int32_t token);

#endif

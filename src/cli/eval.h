/* eval.h: what the files of calla eval share. */
#ifndef CALLA_CLI_EVAL_H
#define CALLA_CLI_EVAL_H

#include "cli/cli.h"

/* Scores ids and writes {"token_logprobs", "top1", "logits_last"} to a file ("-": standard output). */
calla_status eval_write_scores(const options *o, const calla_ids *ids, const char *to, calla_error *err);

#endif

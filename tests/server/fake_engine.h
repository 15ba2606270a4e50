/* fake_engine.h: a scripted engine behind the calla_engine_ and calla_session_ functions of calla.h, for tests of the server.
 *
 * The script of an answer is the last user message of its prompt: what the user says, the model answers, so that every request carries its
 * own expectation.  Added tokens are matched in it (`…</think>`, `<tool_call>`).  It may begin with directives, each followed by a space:
 *
 *   @prompt=STEPSxMS  the prompt takes so many steps of so many milliseconds
 *   @token=MS         each token takes so long
 *   @endless          the answer begins again at its end, until max_tokens or a cancel
 *   @fail=N           the device fails after N tokens
 *   @refuse           calla_session_generate fails with CALLA_E_LIMIT
 *   @options          the answer is the list of generate options received
 *   @choice           the answer is preceded by the number of the choice
 *
 * Where the job has a guide, the script is what the model would like to write: of its tokens those that the mask forbids are skipped, and where
 * none of the rest is allowed it writes what brings it to an end.
 *
 * Or the answers come from a file (fake_options.script), one JSON object a line, in the order in which jobs are started; when it is used up, the
 * user says the answers again.  Its members, all optional:
 *
 *   "text", or "ids": [id, …]   the answer
 *   "prompt": [STEPS, MS], "token_ms": MS, "fail": N, "refuse": true, "endless": true    as the directives
 *   "logprobs": [x, …]          of each token
 *   "top": [[[id, x], …], …]    alternatives of each token
 *
 * Log-probabilities that no file gives are made up: -0.25 for the token, -0.25-k for alternative k, whose id is k above. */
#ifndef CALLA_TESTS_SERVER_FAKE_ENGINE_H
#define CALLA_TESTS_SERVER_FAKE_ENGINE_H

#include "calla.h"

typedef struct fake_options {
    const calla_text *text;
    uint32_t context_tokens; /* default 4096 */
    uint32_t max_sequences;  /* default 4 */
    const char *script;      /* a file of answers, or NULL */
} fake_options;

calla_engine *fake_engine_open(const fake_options *options);

typedef struct fake_stats {
    uint32_t opened, closed;       /* sessions */
    uint32_t generated, cancelled; /* jobs: begun; ended by a cancel */
    uint32_t running, queued;
    uint64_t tokens;
} fake_stats;
fake_stats fake_engine_stats(calla_engine *engine);
/* From now on calla_engine_get_status says that the device failed, and jobs are refused. */
void fake_engine_break(calla_engine *engine);

#endif

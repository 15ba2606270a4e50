/* bench.h: what the files of calla bench share.
 *
 * The contract: token ids that spread over the whole vocabulary, and with it over the experts; a warm-up of exactly the measured shape;
 * prefill ends when the first token is delivered; a fixed number of decode steps, stop ids or not; rounds in alternating order; the
 * same tokens each time, or no result. */
#ifndef CALLA_CLI_BENCH_H
#define CALLA_CLI_BENCH_H

#include "base/buffer.h"
#include "calla.h"
#include "cli/options.h"
#include "cli/progress.h"

enum { BENCH_ROUNDS = 2, BENCH_MAX_ENTRIES = OPTION_LIST_MAX * OPTION_LIST_MAX };

/* Rounds that differ by this share or more are called unsteady. */
#define BENCH_DRIFT 0.03

/* One run of one entry. */
typedef struct bench_run {
    uint64_t prompt_ns, decode_ns; /* until the first token; from there to the last */
    uint64_t first_token_ns;       /* from the request to the first token, as the caller sees it */
    uint64_t digest;               /* of all generated tokens */
    uint64_t peak_bytes;           /* most memory resident during the run; 0: unknown */
    uint64_t private_bytes;        /* of that, what is not a mapped file, at the end of the run; 0: unknown */
} bench_run;

/* A prompt of `prompt` tokens after `depth` tokens of context, then `decode` steps. */
typedef struct bench_entry {
    uint32_t prompt, depth, decode;
    bench_run warm_up, round[BENCH_ROUNDS];
} bench_entry;

typedef struct bench {
    calla_engine_info info;
    bench_entry entries[BENCH_MAX_ENTRIES];
    uint32_t n_entries;
    double read_rate; /* bytes a second, the best that was seen; 0: unknown */
    char date[32];    /* when it began, UTC */
    char cpu[128];
    uint32_t cores;
} bench;

/* What the two rounds of an entry come to. */
typedef struct bench_figures {
    double prefill_tok_s, decode_tok_s, ttft_ms;
    double drift;             /* the larger of prefill's and decode's */
    uint32_t decode_context;  /* tokens that a decode step looks back at, on average */
    uint64_t bytes_per_token; /* weights, state and cache that a decode step moves at that context */
    double achieved_gb_s;
    double read_rate_gb_s, share_of_read_rate; /* 0: unknown */
    uint64_t peak_bytes, private_bytes;        /* 0: unknown */
} bench_figures;

/* ---- bench_run.c ---- */

/* All entries, one after the other on this engine; fills info, the runs and the read rate. */
calla_status bench_measure(bench *b, calla_engine *engine, progress *bar, calla_error *err);

/* ---- bench_report.c ---- */

bench_figures bench_figures_of(const bench *b, const bench_entry *e);
void bench_print(const bench *b, FILE *out);
/* The whole result as one JSON object; o: the options that it was made with. */
void bench_append_json(const bench *b, const options *o, buffer *out);

/* ---- bench_machine.c ---- */

void bench_describe_machine(char *cpu, size_t n, uint32_t *cores);
/* Forgets the process's peak of resident memory; false where the system cannot. */
bool bench_reset_peak(void);
/* The peak since then (or since the start); private_bytes: resident now and not backed by a file.  0: unknown. */
void bench_read_peak(uint64_t *peak_bytes, uint64_t *private_bytes);

#endif

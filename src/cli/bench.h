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

/* A bar over all runs of a command. */
typedef struct bench_progress {
    progress bar;
    uint32_t done, total;
} bench_progress;

/* A prompt of `prompt` tokens after `depth` tokens of context, then `decode` steps. */
typedef struct bench_entry {
    uint32_t prompt, depth, decode;
    bench_run warm_up, round[BENCH_ROUNDS];
} bench_entry;

typedef struct bench {
    calla_engine_info info;
    bench_entry entries[BENCH_MAX_ENTRIES];
    uint32_t n_entries;
    double read_rate;     /* bytes a second, the best that was seen; 0: unknown */
    calla_dot_rates dots; /* operations a second, likewise */
    char date[32];        /* when it began, UTC */
    char cpu[128];
    uint32_t cores;
} bench;

/* What the two rounds of an entry come to. */
typedef struct bench_figures {
    double prefill_tok_s, decode_tok_s, ttft_ms;
    double drift;                                                /* the larger of prefill's and decode's */
    uint32_t decode_context;                                     /* tokens that a decode step looks back at, on average */
    double prefill_tflop_s, dot_peak_tflop_s, share_of_dot_peak; /* arithmetic of the prompt, and its ceiling; 0: unknown */
    uint64_t bytes_per_token;                                    /* weights, state and cache that a decode step moves at that context */
    double achieved_gb_s;
    double read_rate_gb_s, share_of_read_rate; /* 0: unknown */
    uint64_t peak_bytes, private_bytes;        /* 0: unknown */
} bench_figures;

/* ---- bench_run.c ---- */

/* Notes the machine and the time. */
void bench_begin(bench *b);
/* All entries, one after the other on this engine; fills info, the runs and the rates. */
calla_status bench_measure(bench *b, calla_engine *engine, bench_progress *bar, calla_error *err);

/* Part of that: a warm-up of all entries, whose digests the others must repeat, and rounds first … last; bar->done counts the runs.  Depth
 * by depth, in the order of the entries: a context is processed once, and the runs go on from forks of it, for which the engine needs a
 * second sequence. */
calla_status bench_run_rounds(bench *b, calla_engine *engine, uint32_t first, uint32_t last, bench_progress *bar, calla_error *err);
/* Measures what the machine reaches now; of this and what was measured before, the better counts. */
void bench_measure_rates(bench *b, calla_engine *engine);
void bench_better_rates(bench *b, double read_rate, const calla_dot_rates *dots); /* the same with rates of elsewhere */

/* ---- bench_ablate.c ---- */

/* The same entries with all optimizations on (but those that the caller turned off), and with each off. */
typedef struct bench_ablation {
    bench *arms;                    /* [n_arms]; the first has all on */
    const calla_optimization **off; /* [n_arms]; the first is NULL */
    uint32_t n_arms;
} bench_ablation;

/* Entries are those of *plan.  Each arm of each round gets an engine of its own, opened by `engine`, and a warm-up on it; the order of the
 * arms changes from round to round. */
calla_status bench_ablate(const bench *plan, const calla_engine_options *engine, bench_ablation *out, calla_error *err);
void bench_ablation_free(bench_ablation *a);

/* ---- bench_report.c ---- */

bench_figures bench_figures_of(const bench *b, const bench_entry *e);
void bench_print(const bench *b, FILE *out);
/* How much faster a is than b: 0.5 for half as fast again.  0 where one is unknown. */
double bench_worth(double with_tok_s, double without_tok_s);
void bench_print_ablation(const bench_ablation *a, FILE *out);
/* The whole result as one JSON object; o: the options that it was made with; ablation: NULL, or what b is the first arm of. */
void bench_append_json(const bench *b, const options *o, const bench_ablation *ablation, buffer *out);

/* ---- bench_machine.c ---- */

void bench_describe_machine(char *cpu, size_t n, uint32_t *cores);
/* Forgets the process's peak of resident memory; false where the system cannot. */
bool bench_reset_peak(void);
/* The peak since then (or since the start); private_bytes: resident now and not backed by a file.  0: unknown. */
void bench_read_peak(uint64_t *peak_bytes, uint64_t *private_bytes);

#endif

/* bench.c: calla bench: how fast this machine runs a model, by the contract in bench.h. */
#include <string.h>

#include "base/memory.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/loading.h"

/* One entry per prompt length and depth; returns the tokens of context that the longest takes. */
static uint32_t plan_entries(bench *b, const options *o) {
    const option_value *prompt = &o->value[OPTION_PROMPT], *depth = &o->value[OPTION_DEPTH];
    const uint32_t decode = (uint32_t)o->value[OPTION_DECODE_STEPS].integer;
    uint32_t longest = 0;
    for (uint32_t d = 0; d < depth->n_list; d++)
        for (uint32_t p = 0; p < prompt->n_list; p++) {
            const bench_entry e = {.prompt = prompt->list[p], .depth = depth->list[d], .decode = decode};
            const uint32_t tokens = e.depth + e.prompt + decode + 1; /* the first token belongs to prefill */
            if (tokens > longest) longest = tokens;
            b->entries[b->n_entries++] = e;
        }
    return longest;
}

static calla_status measure(bench *b, const calla_engine_options *eo, calla_error *err) {
    calla_engine *engine = NULL;
    bench_progress bar = {0};
    progress_init(&bar.bar);
    calla_status status = loading_open_engine(eo, &engine, err);
    if (status == CALLA_OK) status = bench_measure(b, engine, &bar, err);
    calla_engine_close(engine);
    return status;
}

/* b: the planned entries, and then what was measured; a: its arms with --ablate. */
static calla_status run(bench *b, const options *o, bench_ablation *a, calla_error *err) {
    const char *to = o->value[OPTION_JSON_FILE].text;
    calla_engine_options eo;
    calla_status status = cli_engine_options(o, &eo, err);
    if (status != CALLA_OK) return status;
    eo.context_tokens = plan_entries(b, o);
    eo.max_sequences = 1;
    for (uint32_t i = 0; i < b->n_entries; i++)
        if (b->entries[i].depth) eo.max_sequences = 2; /* the context, and a fork of it */
    eo.ids_only = true;
    const bench *result = b;
    if (o->value[OPTION_ABLATE].given) {
        status = bench_ablate(b, &eo, a, err);
        result = a->arms;
    } else {
        status = measure(b, &eo, err);
    }
    if (status != CALLA_OK) return status;
    if (!to || strcmp(to, "-") != 0) {
        bench_print(result, stdout);
        if (a->n_arms) bench_print_ablation(a, stdout);
    }
    if (!to) return CALLA_OK;
    buffer json = {0};
    bench_append_json(result, o, a->n_arms ? a : NULL, &json);
    return cli_write_output(to, &json, err);
}

int command_bench(const options *o) {
    calla_error err = {0};
    bench_ablation a = {0};
    bench *b = mem_calloc(1, sizeof *b);
    calla_status status = b ? run(b, o, &a, &err) : error_nomem(&err, "the results");
    bench_ablation_free(&a);
    mem_free(b);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

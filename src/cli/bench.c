/* bench.c: calla bench: how fast this machine runs a model, by the contract in bench.h. */
#include <string.h>

#include "base/memory.h"
#include "cli/bench.h"
#include "cli/cli.h"

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

static calla_status measure(bench *b, const options *o, calla_error *err) {
    calla_engine_options eo;
    calla_engine *engine = NULL;
    progress bar;
    calla_status status = cli_engine_options(o, &eo, err);
    if (status != CALLA_OK) return status;
    eo.context_tokens = plan_entries(b, o);
    eo.max_sequences = 1;
    eo.ids_only = true;
    progress_init(&bar);
    status = calla_engine_open(&eo, &engine, err);
    if (status != CALLA_OK) return status;
    status = bench_measure(b, engine, &bar, err);
    calla_engine_close(engine);
    return status;
}

int command_bench(const options *o) {
    calla_error err = {0};
    const char *to = o->value[OPTION_JSON_FILE].text;
    bench *b = mem_calloc(1, sizeof *b);
    calla_status status = b ? measure(b, o, &err) : error_nomem(&err, "the results");
    if (status == CALLA_OK && !(to && strcmp(to, "-") == 0)) bench_print(b, stdout);
    if (status == CALLA_OK && to) {
        buffer json = {0};
        bench_append_json(b, o, &json);
        status = cli_write_output(to, &json, &err);
    }
    mem_free(b);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

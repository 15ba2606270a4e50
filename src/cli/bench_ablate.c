/* bench_ablate.c: what each optimization of a device is worth: the same entries with all on and with each off. */
#include <string.h>

#include "base/memory.h"
#include "cli/bench.h"
#include "cli/loading.h"

/* Whether name is one of names, "a,b". */
static bool is_listed(const char *names, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strcspn(at, ",") == n && memcmp(at, name, n) == 0) return true;
    return false;
}

static calla_status plan_arms(const bench *plan, const calla_engine_options *engine, bench_ablation *out, calla_error *err) {
    const calla_optimization *all = calla_device_optimizations(engine->device);
    uint32_t n = 0;
    while (all && all[n].name) n++; /* an unknown device is for calla_engine_open to name */
    if (all && !n)
        return error_set(err, CALLA_E_ARGUMENT, "--ablate: device %s has nothing that can be turned off; use another --device",
                         engine->device ? engine->device : "");
    out->arms = mem_calloc(n + 1, sizeof *out->arms);
    out->off = mem_calloc(n + 1, sizeof *out->off);
    if (!out->arms || !out->off) return error_nomem(err, "the results");
    out->n_arms = 1;
    for (uint32_t i = 0; i < n; i++)
        if (!is_listed(engine->without, all[i].name)) out->off[out->n_arms++] = &all[i];
    for (uint32_t i = 0; i < out->n_arms; i++) {
        out->arms[i].n_entries = plan->n_entries;
        memcpy(out->arms[i].entries, plan->entries, plan->n_entries * sizeof *plan->entries);
    }
    return CALLA_OK;
}

/* One arm's part of a round.  Its optimization is off beside those that the caller turned off. */
static calla_status run_arm(bench_ablation *a, uint32_t arm, uint32_t round, const calla_engine_options *base, bench_progress *bar,
                            calla_error *err) {
    buffer without = {0};
    calla_engine_options o = *base;
    calla_engine *engine = NULL;
    bench *b = &a->arms[arm];
    if (a->off[arm]) {
        buffer_printf(&without, "%s%s%s", o.without ? o.without : "", o.without ? "," : "", a->off[arm]->name);
        o.without = without.data;
    }
    calla_status status = without.failed ? error_nomem(err, "a list of names") : loading_open_engine(&o, &engine, err);
    buffer_free(&without);
    if (status != CALLA_OK) return status;
    calla_engine_get_info(engine, &b->info);
    if (arm == 0) bench_measure_rates(b, engine);
    status = bench_run_rounds(b, engine, round, round, bar, err);
    calla_engine_close(engine);
    return status;
}

/* All arms get the best that any of them saw: it is one machine. */
static void share_rates(bench_ablation *a) {
    bench *all = a->arms;
    for (uint32_t i = 1; i < a->n_arms; i++) bench_better_rates(all, a->arms[i].read_rate, &a->arms[i].dots);
    for (uint32_t i = 1; i < a->n_arms; i++) a->arms[i].read_rate = all->read_rate, a->arms[i].dots = all->dots;
}

calla_status bench_ablate(const bench *plan, const calla_engine_options *engine, bench_ablation *out, calla_error *err) {
    bench_progress bar = {0};
    *out = (bench_ablation){0};
    calla_status status = plan_arms(plan, engine, out, err);
    if (status == CALLA_OK) bench_begin(&out->arms[0]);
    progress_init(&bar.bar);
    bar.total = 2 * BENCH_ROUNDS * out->n_arms * plan->n_entries;
    for (uint32_t i = 0; i < BENCH_ROUNDS * out->n_arms && status == CALLA_OK; i++) {
        const uint32_t round = i / out->n_arms, at = i % out->n_arms;
        status = run_arm(out, round % 2 ? out->n_arms - 1 - at : at, round, engine, &bar, err);
    }
    if (status == CALLA_OK) share_rates(out);
    if (status != CALLA_OK) bench_ablation_free(out);
    return status;
}

void bench_ablation_free(bench_ablation *a) {
    mem_free(a->arms);
    mem_free(a->off);
    *a = (bench_ablation){0};
}

/* evaluate.c: see evaluate.h. */
#include "cli/evaluate.h"

#include <math.h>

#include "base/memory.h"

uint32_t evaluation_positions(size_t n_ids, uint32_t window, uint32_t stride, uint32_t limit) {
    const size_t context = window - stride;
    if (n_ids < context + 2) return 0;
    const size_t positions = n_ids - 1 - context;
    if (!limit) limit = UINT32_MAX;
    return positions < limit ? (uint32_t)positions : limit;
}

size_t evaluation_target(uint32_t window, uint32_t stride, uint32_t i) { return (size_t)(window - stride) + i + 1; }

typedef struct pass {
    const evaluation_task *task;
    evaluation *sum;
    uint32_t vocabulary_rows;
    uint32_t done;      /* positions scored so far */
    float *scratch;     /* [vocabulary_rows], with against */
    float *kl;          /* [positions], with against */
    int64_t not_finite; /* the first position whose logits are not finite, or -1 */
} pass;

/* On the engine's thread, which has nothing else to do: one window at a time is scored. */
static void take_row(void *user, size_t at, const float *logits) {
    (void)at; /* positions come in order */
    pass *p = user;
    const evaluation_task *task = p->task;
    row_top row;
    const int32_t target = task->ids[evaluation_target(task->window, task->stride, p->done)];
    if (p->not_finite >= 0) return;
    if (!distribution_top(logits, p->vocabulary_rows, target, task->recording ? TOP_MAX : 1, &row)) {
        p->not_finite = p->done;
        return;
    }
    p->sum->nats -= (double)row.target_logprob;
    if (task->recording) record_append_row(task->recording, &row);
    if (task->against) {
        row_top reference;
        record_row(task->against, p->done, &reference);
        p->sum->reference_nats -= (double)reference.target_logprob;
        p->sum->same_top1 += row.ids[0] == reference.ids[0];
        const double kl = distribution_divergence(&reference, logits, p->vocabulary_rows, p->scratch);
        p->sum->kl_mean += kl / task->positions;
        p->sum->kl_largest = fmax(p->sum->kl_largest, (double)(float)kl);
        p->kl[p->done] = (float)kl;
    }
    p->done++;
}

static calla_status run_windows(calla_engine *engine, pass *p, calla_error *err) {
    const evaluation_task *task = p->task;
    const size_t context = task->window - task->stride, end = context + task->positions;
    calla_status status = CALLA_OK;
    for (size_t begin = 0; begin + context < end && !status && p->not_finite < 0; begin += task->stride) {
        const size_t n = end - begin < task->window ? end - begin : task->window;
        status = calla_engine_score_rows(engine, task->ids + begin, n, context, take_row, p, err);
    }
    if (status || p->not_finite < 0) return status;
    return error_set(err, CALLA_E_INTERNAL, "position %lld: a logit is not a finite number: broken weights, or a bug in calla",
                     (long long)p->not_finite);
}

/* The engine checks what it is given, but the last token is only predicted. */
static calla_status check_ids(const evaluation_task *task, uint32_t rows, calla_error *err) {
    for (size_t i = 0; i < task->n_ids; i++)
        if (task->ids[i] < 0 || (uint32_t)task->ids[i] >= rows)
            return error_set(err, CALLA_E_ARGUMENT, "there is no token %d (number %zu); ids are 0 to %u", task->ids[i], i, rows - 1);
    return CALLA_OK;
}

calla_status evaluate(calla_engine *engine, const evaluation_task *task, evaluation *out, calla_error *err) {
    *out = (evaluation){0};
    calla_engine_info info;
    calla_engine_get_info(engine, &info);
    pass p = {.task = task, .sum = out, .vocabulary_rows = info.vocabulary_rows, .not_finite = -1};
    calla_status status = check_ids(task, info.vocabulary_rows, err);
    if (status) return status;
    if (task->against) {
        p.scratch = mem_array(info.vocabulary_rows, sizeof *p.scratch);
        p.kl = mem_array(task->positions, sizeof *p.kl);
        if (!p.scratch || !p.kl) status = error_nomem(err, "the comparison");
    }
    if (!status) status = run_windows(engine, &p, err);
    if (!status && p.kl) out->kl_p99 = distribution_percentile(p.kl, task->positions, 0.99);
    mem_free(p.scratch);
    mem_free(p.kl);
    return status;
}

/* eval_scores.c: calla eval --ids FILE --out FILE: the tokens as one window, and what the model finds of each. */
#include <math.h>

#include "base/memory.h"
#include "cli/eval.h"

typedef struct scores {
    float *logprobs; /* [n-1] of token t+1 after t */
    int32_t *top1;   /* [n] */
    float *logits;   /* [vocabulary_rows] after the last */
    size_t n, vocabulary_rows;
} scores;

static calla_status score(const options *o, const calla_ids *ids, scores *s, calla_error *err) {
    calla_engine_options eo;
    calla_status status = cli_engine_options(o, &eo, err);
    if (status != CALLA_OK) return status;
    eo.max_sequences = 1;
    eo.ids_only = true;
    if (!eo.context_tokens) eo.context_tokens = (uint32_t)ids->n;
    calla_engine *engine = NULL;
    status = calla_engine_open(&eo, &engine, err);
    if (status != CALLA_OK) return status;
    calla_engine_info info;
    calla_engine_get_info(engine, &info);
    s->n = ids->n;
    s->vocabulary_rows = info.vocabulary_rows;
    s->logprobs = mem_array(s->n, sizeof(float));
    s->top1 = mem_array(s->n, sizeof(int32_t));
    s->logits = mem_array(s->vocabulary_rows, sizeof(float));
    if (!s->logprobs || !s->top1 || !s->logits)
        status = error_nomem(err, "scores");
    else
        status = calla_engine_score(engine, ids->ids, ids->n, s->logprobs, s->top1, s->logits, err);
    calla_engine_close(engine);
    return status;
}

/* JSON has no infinities and no NaN, and a score that is not a number says that something is broken. */
static calla_status append_floats(buffer *b, const char *name, const float *x, size_t n, calla_error *err) {
    buffer_printf(b, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return error_set(err, CALLA_E_INTERNAL, "%s[%zu] is not a finite number: broken weights, or a bug in calla", name, i);
        buffer_printf(b, "%s%.9g", i ? "," : "", (double)x[i]);
    }
    buffer_append_char(b, ']');
    return CALLA_OK;
}

static calla_status write_scores(const scores *s, const char *path, calla_error *err) {
    buffer b = {0};
    buffer_append_char(&b, '{');
    calla_status status = append_floats(&b, "token_logprobs", s->logprobs, s->n - 1, err);
    buffer_append_str(&b, ",\"top1\":");
    cli_append_ids(&b, s->top1, s->n);
    buffer_append_char(&b, ',');
    if (status == CALLA_OK) status = append_floats(&b, "logits_last", s->logits, s->vocabulary_rows, err);
    buffer_append_str(&b, "}\n");
    if (status == CALLA_OK) return cli_write_output(path, &b, err);
    buffer_free(&b);
    return status;
}

calla_status eval_write_scores(const options *o, const calla_ids *ids, const char *to, calla_error *err) {
    scores s = {0};
    calla_status status = score(o, ids, &s, err);
    if (status == CALLA_OK) status = write_scores(&s, to, err);
    mem_free(s.logprobs);
    mem_free(s.top1);
    mem_free(s.logits);
    return status;
}

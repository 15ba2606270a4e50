/* selftest_runs.c: greedy runs recorded with another engine, whose tokens the model is given one after the other.
 *
 * The recorded log-probabilities come from bf16 logits on a coarse grid (1/8 where they are large), so that two tokens that are recorded
 * as equally likely, or nearly, may come out in another order: a step fails only if the most likely token here lies more than GAP_MAX
 * below the best one there, or is not among those recorded. */
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "cli/recorded_runs.h"
#include "cli/report.h"
#include "cli/selftest.h"

#define GAP_MAX 0.25f

/* ---- which runs, and whether they are of this model ---- */

/* Beside pocket, wherever that is: share/calla/models/selftest or models/selftest. */
static char *runs_dir(const selftest *s, calla_error *err) {
    const char *told = s->o->value[OPTION_RUNS].text;
    if (told) return mem_strdup(told);
    const char *pocket = calla_pocket_dir(err);
    return pocket ? path_join(pocket, "../selftest") : NULL;
}

/* The number of bits that most bytes of the weights are in. */
static int64_t main_bits(json_object *inspected) {
    json_object *forms = NULL;
    int64_t bits = 0, most = 0;
    json_object_object_get_ex(inspected, "quantization", &forms);
    for (size_t i = 0; i < (forms ? json_object_array_length(forms) : 0); i++) {
        json_object *form = json_object_array_get_idx(forms, i), *bytes = NULL, *form_bits = NULL;
        if (!json_object_object_get_ex(form, "bytes", &bytes) || !json_object_object_get_ex(form, "bits", &form_bits)) continue;
        if (json_object_get_int64(bytes) <= most) continue;
        most = json_object_get_int64(bytes);
        bits = json_object_get_int64(form_bits);
    }
    return bits;
}

static bool same_shape(json_object *wanted, json_object *inspected) {
    json_object *shape = NULL, *own = NULL;
    if (!json_object_object_get_ex(inspected, "shape", &shape)) return false;
    json_object_object_foreach(wanted, key, value) {
        if (!json_object_object_get_ex(shape, key, &own) || !json_object_equal(value, own)) return false;
    }
    return true;
}

static calla_status fits_model(const selftest *s, const recorded_index *index, bool *fits, calla_error *err) {
    char *text = NULL;
    json_object *inspected = NULL;
    calla_status status = calla_inspect(s->model_dir, 0, &text, err);
    if (!status) status = json_parse(text, strlen(text), "calla_inspect", &inspected, err);
    if (!status) *fits = same_shape(index->shape, inspected) && main_bits(inspected) == index->bits;
    json_object_put(inspected);
    calla_free(text);
    return status;
}

static calla_status open_runs(const char *dir, const recorded_index *index, selftest_runs *out, calla_error *err) {
    if (index->n > SELFTEST_MAX_CHECKS / 2)
        return error_set(err, CALLA_E_LIMIT, "%s/runs.json: more than %d runs", dir, SELFTEST_MAX_CHECKS / 2);
    out->runs = mem_calloc(index->n, sizeof *out->runs);
    out->names = mem_calloc(index->n, sizeof *out->names);
    if (!out->runs || !out->names) return error_nomem(err, "recorded runs");
    for (size_t i = 0; i < index->n; i++) {
        recorded_run *run = &out->runs[i];
        const char *file = recorded_index_file(index, i);
        calla_status status = recorded_run_open(dir, file, run, err);
        if (status) return status;
        snprintf(out->names[i], sizeof out->names[i], "%.*s", (int)strcspn(file, "."), file);
        out->n++;
        const uint32_t tokens = (uint32_t)(run->n_prompt + run->n_steps);
        if (tokens > out->longest) out->longest = tokens;
    }
    return CALLA_OK;
}

void selftest_runs_open(selftest *s, selftest_runs *out) {
    calla_error err = {0};
    recorded_index index = {0};
    bool fits = false;
    char *dir = runs_dir(s, &err);
    calla_status status = dir ? recorded_index_open(dir, &index, &err) : err.status ? err.status : error_nomem(&err, "a path");
    if (!status) status = fits_model(s, &index, &fits, &err);
    if (!status && fits) status = open_runs(dir, &index, out, &err);
    if (status) {
        selftest_runs_close(out);
        selftest_add_error(s, "recorded runs", &err);
    } else if (!fits) {
        selftest_add(s, "recorded runs", CHECK_NOT_FOR_THIS_MODEL, "they are of %s in %u bits, and say nothing of this model", index.model,
                     index.bits);
    }
    recorded_index_close(&index);
    mem_free(dir);
}

void selftest_runs_close(selftest_runs *runs) {
    for (uint32_t i = 0; i < runs->n; i++) recorded_run_close(&runs->runs[i]);
    mem_free(runs->runs);
    mem_free(runs->names);
    *runs = (selftest_runs){0};
}

/* ---- giving one to the model ---- */

typedef struct replay {
    const recorded_run *run;
    uint32_t vocabulary_rows;
    uint32_t same, failed, steps; /* steps whose most likely token is the recorded one; that fail; that came */
    uint32_t first_failed;
    int32_t first_failed_token;
    float first_failed_gap, largest_gap; /* of the recorded tokens */
    bool finite;
} replay;

static void take_step(void *user, size_t at, const float *logits) {
    replay *r = user;
    const recorded_step *step = &r->run->steps[at + 1 - r->run->n_prompt];
    int32_t best = 0;
    for (uint32_t i = 0; i < r->vocabulary_rows; i++) {
        if (!(logits[i] - logits[i] == 0)) r->finite = false;
        if (logits[i] > logits[best]) best = (int32_t)i;
    }
    const float gap = recorded_step_gap(step, best);
    r->same += best == step->ids[0];
    if (gap > r->largest_gap) r->largest_gap = gap;
    if (gap < 0 || gap > GAP_MAX) {
        if (!r->failed++) {
            r->first_failed = r->steps;
            r->first_failed_token = best;
            r->first_failed_gap = gap;
        }
    }
    r->steps++;
}

static void add_failure(selftest *s, const char *name, const replay *r, check **out) {
    const recorded_step *step = &r->run->steps[r->first_failed];
    char where[64] = "not among the recorded ones";
    if (r->first_failed_gap >= 0) snprintf(where, sizeof where, "recorded %.3f below it", (double)r->first_failed_gap);
    *out = selftest_add(s, name, CHECK_FAILED, "%u of %u steps, the first is step %u: the most likely token is %d, %s (%d)%s", r->failed,
                        r->steps, r->first_failed, r->first_failed_token, where, step->ids[0],
                        r->finite ? "" : "; there are logits that are not finite");
}

static void check_run(selftest *s, const char *name, const recorded_run *run) {
    calla_error err = {0};
    replay r = {.run = run, .vocabulary_rows = s->info.vocabulary_rows, .finite = true};
    const size_t n = run->n_prompt + run->n_steps - 1; /* what was chosen last is only predicted */
    if (calla_engine_score_rows(s->engine, run->ids, n, run->n_prompt - 1, take_step, &r, &err)) {
        selftest_add_error(s, name, &err);
        return;
    }
    check *c;
    if (r.failed || !r.finite)
        add_failure(s, name, &r, &c);
    else
        c = selftest_add(s, name, CHECK_OK, "%u steps, %u with the same most likely token; the others at most %.3f below it", r.steps,
                         r.same, (double)r.largest_gap);
    report_append_count(&c->members, "steps", r.steps);
    report_append_count(&c->members, "same_top1", r.same);
    report_append_count(&c->members, "failed_steps", r.failed);
    report_append_number(&c->members, "largest_gap", (double)r.largest_gap);
}

void selftest_runs_check(selftest *s, const selftest_runs *runs) {
    for (uint32_t i = 0; i < runs->n; i++) check_run(s, runs->names[i], &runs->runs[i]);
}

/* recorded_runs.c: see recorded_runs.h. */
#include "cli/recorded_runs.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"

enum { FILE_MAX = 64 << 20, TOKENS_MAX = 1 << 20 };

static calla_status open_json(const char *dir, const char *file, json_object **out, char **path, calla_error *err) {
    char *data = NULL;
    size_t n = 0;
    *out = NULL;
    *path = path_join(dir, file);
    if (!*path) return error_nomem(err, "the path of a recorded run");
    calla_status status = file_read(*path, FILE_MAX, &data, &n, err);
    if (!status) status = json_parse(data, n, *path, out, err);
    mem_free(data);
    return status;
}

static json_object *member(json_object *object, const char *name, json_type type) {
    json_object *value = NULL;
    if (!json_object_is_type(object, json_type_object) || !json_object_object_get_ex(object, name, &value)) return NULL;
    return json_object_is_type(value, type) ? value : NULL;
}

/* ---- runs.json ---- */

/* A name that stays in its folder. */
static bool is_plain_name(json_object *name) {
    if (!json_object_is_type(name, json_type_string)) return false;
    const char *s = json_object_get_string(name);
    return *s && *s != '.' && !strchr(s, '/') && strlen(s) == (size_t)json_object_get_string_len(name);
}

static bool fill_index(recorded_index *x) {
    json_object *model = member(x->root, "model", json_type_string), *bits = member(x->root, "bits", json_type_int);
    x->shape = member(x->root, "shape", json_type_object);
    x->files = member(x->root, "runs", json_type_array);
    if (!model || !bits || !x->shape || !x->files) return false;
    x->model = json_object_get_string(model);
    x->bits = (uint32_t)json_object_get_int(bits);
    x->n = json_object_array_length(x->files);
    for (size_t i = 0; i < x->n; i++)
        if (!is_plain_name(json_object_array_get_idx(x->files, i))) return false;
    return x->n > 0 && json_object_object_length(x->shape) > 0;
}

calla_status recorded_index_open(const char *dir, recorded_index *out, calla_error *err) {
    *out = (recorded_index){0};
    char *path = NULL;
    calla_status status = open_json(dir, "runs.json", &out->root, &path, err);
    if (!status && !fill_index(out))
        status =
            error_set(err, CALLA_E_FORMAT, "%s: expected \"model\", \"shape\", \"bits\" and the \"runs\", names of files beside it", path);
    if (status) recorded_index_close(out);
    mem_free(path);
    return status;
}

void recorded_index_close(recorded_index *index) {
    json_object_put(index->root);
    *index = (recorded_index){0};
}

const char *recorded_index_file(const recorded_index *index, size_t i) {
    return json_object_get_string(json_object_array_get_idx(index->files, i));
}

/* ---- a run ---- */

static bool read_id(json_object *value, int32_t *out) {
    if (!json_object_is_type(value, json_type_int)) return false;
    const int64_t id = json_object_get_int64(value);
    *out = (int32_t)id;
    return id >= 0 && id <= INT32_MAX;
}

static bool read_step(json_object *value, recorded_step *step) {
    json_object *top = member(value, "topk", json_type_array);
    const size_t n = top ? json_object_array_length(top) : 0;
    if (n < 1 || n > RECORDED_TOP_MAX || !read_id(member(value, "chosen", json_type_int), &step->chosen)) return false;
    for (size_t i = 0; i < n; i++) {
        json_object *pair = json_object_array_get_idx(top, i);
        if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2) return false;
        json_object *logprob = json_object_array_get_idx(pair, 1);
        if (!json_object_is_type(logprob, json_type_double) && !json_object_is_type(logprob, json_type_int)) return false;
        step->logprobs[i] = (float)json_object_get_double(logprob);
        if (!read_id(json_object_array_get_idx(pair, 0), &step->ids[i]) || !isfinite(step->logprobs[i])) return false;
        if (i && step->logprobs[i] > step->logprobs[i - 1]) return false;
    }
    step->n = (uint32_t)n;
    return true;
}

static calla_status read_run(json_object *root, const char *path, recorded_run *run, calla_error *err) {
    json_object *prompt = member(root, "prompt_token_ids", json_type_array), *steps = member(root, "steps", json_type_array);
    const size_t n_prompt = prompt ? json_object_array_length(prompt) : 0, n_steps = steps ? json_object_array_length(steps) : 0;
    if (!n_prompt || !n_steps || n_prompt > TOKENS_MAX || n_steps > TOKENS_MAX)
        return error_set(err, CALLA_E_FORMAT, "%s: expected arrays \"prompt_token_ids\" and \"steps\", neither empty", path);
    run->ids = mem_array(n_prompt + n_steps, sizeof *run->ids);
    run->steps = mem_calloc(n_steps, sizeof *run->steps);
    if (!run->ids || !run->steps) return error_nomem(err, path);
    run->n_prompt = n_prompt;
    run->n_steps = n_steps;
    for (size_t i = 0; i < n_prompt; i++)
        if (!read_id(json_object_array_get_idx(prompt, i), &run->ids[i]))
            return error_set(err, CALLA_E_FORMAT, "%s: prompt_token_ids[%zu] is not a token id", path, i);
    for (size_t i = 0; i < n_steps; i++) {
        if (!read_step(json_object_array_get_idx(steps, i), &run->steps[i]))
            return error_set(err, CALLA_E_FORMAT,
                             "%s: steps[%zu]: expected \"chosen\" and in \"topk\" 1 to %d pairs [id, log-probability], most likely first",
                             path, i, RECORDED_TOP_MAX);
        run->ids[n_prompt + i] = run->steps[i].chosen;
    }
    return CALLA_OK;
}

calla_status recorded_run_open(const char *dir, const char *file, recorded_run *out, calla_error *err) {
    *out = (recorded_run){0};
    json_object *root = NULL;
    char *path = NULL;
    calla_status status = open_json(dir, file, &root, &path, err);
    if (!status) status = read_run(root, path, out, err);
    if (status) recorded_run_close(out);
    json_object_put(root);
    mem_free(path);
    return status;
}

void recorded_run_close(recorded_run *run) {
    mem_free(run->ids);
    mem_free(run->steps);
    *run = (recorded_run){0};
}

float recorded_step_gap(const recorded_step *step, int32_t token) {
    for (uint32_t i = 0; i < step->n; i++)
        if (step->ids[i] == token) return step->logprobs[0] - step->logprobs[i];
    return -1;
}

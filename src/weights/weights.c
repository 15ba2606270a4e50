/* weights.c: opening and closing a model folder.  See weights.h. */
#include "weights/weights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "weights/bind.h"
#include "weights/check.h"
#include "weights/checkpoint.h"
#include "weights/config.h"

enum { MAX_CONFIG_BYTES = 16 << 20 }; /* the real one has 24 KB */

static calla_status read_generation(weights *w, stop_list *stop, calla_error *err) {
    generation_defaults(&w->sampling);
    char *path = path_join(w->dir, "generation_config.json"), *text = NULL;
    size_t n = 0;
    if (!path) return error_nomem(err, "a path");
    calla_status status = CALLA_OK;
    if (access(path, F_OK) == 0 || errno != ENOENT) status = file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (!status && text) status = generation_parse(text, n, path, w->shape.vocabulary, &w->sampling, stop, err);
    mem_free(text);
    mem_free(path);
    return status;
}

static uint64_t vec_bytes(const weight_vec *v) { return (uint64_t)v->n * (v->type == WEIGHT_F32 ? 4 : 2); }

uint64_t weight_mat_bytes(const weight_mat *m) { return (uint64_t)m->count * m->rows * (weight_row_bytes(m) + 4 * weight_row_groups(m)); }

/* What one token reads of layer i: all but the experts that were not chosen. */
static uint64_t layer_token_bytes(const weights *w, uint32_t i) {
    const layer_weights *l = &w->layer[i];
    const weight_mat *mats[] = {&l->in_qkv, &l->in_z,     &l->in_a,   &l->in_b,          &l->gdn_out,     &l->q,         &l->k,
                                &l->v,      &l->attn_out, &l->router, &l->shared_router, &l->shared_gate, &l->shared_up, &l->shared_down};
    const weight_vec *vecs[] = {&l->norm_mixer, &l->norm_moe, &l->conv, &l->a_log, &l->dt_bias, &l->gdn_norm, &l->q_norm, &l->k_norm};
    const uint64_t experts = weight_mat_bytes(&l->expert_gate) + weight_mat_bytes(&l->expert_up) + weight_mat_bytes(&l->expert_down);
    uint64_t bytes = experts / w->shape.experts * w->shape.top_k;
    for (size_t j = 0; j < sizeof mats / sizeof *mats; j++) bytes += weight_mat_bytes(mats[j]); /* 0 for the other kind of layer */
    for (size_t j = 0; j < sizeof vecs / sizeof *vecs; j++) bytes += vec_bytes(vecs[j]);
    return bytes;
}

static uint64_t token_bytes(const weights *w) {
    uint64_t bytes =
        weight_row_bytes(&w->embed) + 4 * weight_row_groups(&w->embed) + weight_mat_bytes(&w->lm_head) + vec_bytes(&w->final_norm);
    for (uint32_t i = 0; i < w->shape.layers; i++) bytes += layer_token_bytes(w, i);
    return bytes;
}

static calla_status open_tensors(weights *w, model_config *config, bool whole, const char *config_path, calla_error *err) {
    w->shape = config->shape;
    w->layer = mem_calloc(w->shape.layers, sizeof *w->layer);
    if (!w->layer) return error_nomem(err, "the layers' weights");
    calla_status status = read_generation(w, &config->stop, err);
    if (!status) status = checkpoint_open(w->dir, whole, &w->files, err);
    if (!status) status = bind_tensors(w, &config->quant, config_path, err);
    if (status) return status;
    memcpy(w->stop_ids, config->stop.ids, sizeof w->stop_ids);
    w->n_stop_ids = config->stop.n;
    w->token_bytes = token_bytes(w);
    w->scale_bytes = check_bytes(w);
    if (w->scale_bytes <= WEIGHTS_CHECK_BYTES) return check_numbers(w, true, err);
    checkpoint_begin_samples(w->files);
    status = check_numbers(w, false, err);
    checkpoint_end_samples(w->files);
    return status;
}

static calla_status open_folder(weights *w, bool whole, calla_error *err) {
    struct stat st;
    if (stat(w->dir, &st) < 0) return error_set(err, CALLA_E_IO, "%s: cannot open this model folder: %s", w->dir, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return error_set(err, CALLA_E_IO, "%s: not a folder: name the folder that holds config.json", w->dir);
    char *path = path_join(w->dir, "config.json"), *text = NULL;
    size_t n;
    if (!path) return error_nomem(err, "a path");
    model_config config;
    calla_status status = file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (!status) status = config_parse(text, n, path, &config, err);
    mem_free(text);
    if (!status) {
        status = open_tensors(w, &config, whole, path, err);
        config_free(&config);
    }
    mem_free(path);
    return status;
}

static calla_status open_weights(const char *dir, bool whole, weights **out, calla_error *err) {
    *out = NULL;
    weights *w = mem_calloc(1, sizeof *w);
    if (!w || !(w->dir = mem_strdup(dir))) {
        mem_free(w);
        return error_nomem(err, "the weights of a model");
    }
    calla_status status = open_folder(w, whole, err);
    if (status)
        weights_close(w);
    else
        *out = w;
    return status;
}

calla_status weights_open(const char *dir, weights **out, calla_error *err) { return open_weights(dir, true, out, err); }
calla_status weights_look(const char *dir, weights **out, calla_error *err) { return open_weights(dir, false, out, err); }

void weights_close(weights *w) {
    if (!w) return;
    checkpoint_close(w->files);
    mem_free(w->layer);
    mem_free(w->dir);
    mem_free(w);
}

calla_status weights_check(const weights *w, calla_error *err) { return check_numbers(w, true, err); }

void weights_each_tensor(const weights *w, tensor_fn fn, void *user) {
    for (size_t i = 0; i < w->files->n; i++) {
        const tensor *t = &w->files->tensors[i];
        tensor_info info = {.name = t->info->name,
                            .file = t->file->name,
                            .dtype = t->info->dtype,
                            .dims = t->info->dims,
                            .data = tensor_data(t),
                            .bytes = t->info->bytes};
        memcpy(info.shape, t->info->shape, sizeof info.shape);
        if (!fn(user, &info)) return;
    }
}

bool weights_locate(const weights *w, const uint8_t *data, weights_place *out) {
    for (size_t i = 0; i < w->files->n_shards; i++) {
        const shard *f = &w->files->shards[i];
        if ((uintptr_t)data < (uintptr_t)f->map.data || (uintptr_t)data - (uintptr_t)f->map.data >= f->map.n) continue;
        *out = (weights_place){f->path, (uintptr_t)data - (uintptr_t)f->map.data, f->map.data, f->map.n};
        return true;
    }
    return false;
}

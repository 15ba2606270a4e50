/* engine.c: opening and closing an engine, and what it says of itself. */
#include "engine/engine.h"

#include <signal.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/plan.h"

static bool open_step(engine_step *step, uint32_t n) {
    step->planned = mem_calloc(n, sizeof(calla_session *));
    step->items = mem_calloc(n, sizeof *step->items);
    step->segments = mem_calloc(n, sizeof *step->segments);
    step->requests = mem_calloc(n, sizeof *step->requests);
    step->chained = mem_calloc(n, sizeof *step->chained);
    return step->planned && step->items && step->segments && step->requests && step->chained;
}

static void close_step(engine_step *step) {
    mem_free(step->planned);
    mem_free(step->items);
    mem_free(step->segments);
    mem_free(step->requests);
    mem_free(step->chained);
}

static calla_status open_slots(calla_engine *e, calla_error *err) {
    uint32_t n = e->info.max_sequences;
    e->slots = mem_calloc(n, sizeof *e->slots);
    e->running = mem_calloc(n, sizeof(calla_session *));
    if (!e->slots || !e->running || !open_step(&e->steps[0], n) || !open_step(&e->steps[1], n))
        return error_nomem(err, "the engine's lists");
    calla_status status = CALLA_OK;
    for (uint32_t i = 0; i < n && !status; i++) status = sequence_open(e->m, &e->slots[i].sequence, err);
    return status;
}

/* Signals are for the threads that wait for them. */
static calla_status start_thread(calla_engine *e, calla_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->thread_started = pthread_create(&e->thread, NULL, engine_thread, e) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (e->thread_started) return CALLA_OK;
    return error_set(err, CALLA_E_NOMEM, "the engine's thread cannot be started: the system's limit of threads or memory is reached");
}

static void fill_info(calla_engine *e, const model_options *mo, uint32_t context_tokens) {
    e->info = (calla_engine_info){
        .device = mo->backend->name,
        .context_tokens = context_tokens,
        .model_context = e->w->shape.max_context,
        .max_sequences = mo->sequences,
        .batch_rows = mo->batch_rows,
        .vocabulary = e->text ? calla_text_vocabulary(e->text) : e->w->shape.vocabulary,
        .vocabulary_rows = e->w->shape.vocabulary,
        .weights_bytes = e->w->text_bytes,
        .plan_bytes = model_get_plan(e->m)->total_bytes,
        .stages = model_get_plan(e->m)->stages,
        .token_bytes = e->w->token_bytes,
        .state_bytes = model_state_bytes(e->m),
        .kv_token_bytes = model_kv_token_bytes(e->m),
        .token_flop = plan_token_flop(&e->w->shape),
        .context_flop = plan_context_flop(&e->w->shape),
        .defaults = sampling_from_defaults(&e->w->sampling),
    };
    folder_name(e->w->dir, e->info.model_name, sizeof e->info.model_name);
    model_describe_device(e->m, e->info.device_detail, sizeof e->info.device_detail);
    e->score_rows = mo->max_wanted - mo->max_segments;
    e->n_stop_ids = folder_stop_ids(e->w, e->text, e->stop_ids);
}

static calla_status open_parts(calla_engine *e, const calla_engine_options *o, const backend_vtable *vt, uint32_t kv_tokens,
                               calla_error *err) {
    const char *dir = o->model_dir ? o->model_dir : calla_pocket_dir(err);
    if (!dir) return CALLA_E_IO;
    model_options mo;
    uint32_t context_tokens;
    calla_status status = weights_open(dir, &e->w, err);
    if (!status && !o->ids_only) status = folder_open_text(e->w, &e->text, err);
    if (!status) status = folder_model_options(o, vt, &e->w->shape, &mo, &context_tokens, err);
    if (status) return status;
    if (kv_tokens) mo.kv_tokens = kv_tokens;
    if (mo.kv_tokens < context_tokens)
        return error_set(err, CALLA_E_ARGUMENT, "%u tokens of KV cache for a window of %u", mo.kv_tokens, context_tokens);
    status = model_open(e->w, &mo, &e->m, err);
    if (status) return status;
    fill_info(e, &mo, context_tokens);
    status = open_slots(e, err);
    return status ? status : start_thread(e, err);
}

calla_status engine_open_on(const calla_engine_options *options, const backend_vtable *vt, uint32_t kv_tokens, calla_engine **out,
                            calla_error *err) {
    calla_engine *e = *out = mem_calloc(1, sizeof *e);
    if (!e) return error_nomem(err, "the engine");
    if (pthread_mutex_init(&e->lock, NULL) || pthread_cond_init(&e->wake, NULL) || pthread_cond_init(&e->idle, NULL)) {
        mem_free(e);
        *out = NULL;
        return error_set(err, CALLA_E_NOMEM, "the system has no mutex or condition variable left");
    }
    e->inbox_end = &e->inbox;
    atomic_init(&e->closing, false);
    calla_status status = open_parts(e, options, vt, kv_tokens, err);
    if (status) {
        calla_engine_close(e);
        *out = NULL;
    }
    return status;
}

calla_status calla_engine_open(const calla_engine_options *options, calla_engine **out, calla_error *err) {
    const calla_engine_options defaults = {0};
    return engine_open_on(options ? options : &defaults, NULL, 0, out, err);
}

void calla_engine_close(calla_engine *e) {
    if (!e) return;
    if (e->thread_started) {
        pthread_mutex_lock(&e->lock);
        atomic_store(&e->closing, true);
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    for (uint32_t i = 0; e->slots && i < e->info.max_sequences; i++) sequence_close(e->slots[i].sequence);
    mem_free(e->slots);
    mem_free(e->running);
    for (int i = 0; i < 2; i++) close_step(&e->steps[i]);
    model_close(e->m);
    calla_text_close(e->text);
    weights_close(e->w);
    pthread_cond_destroy(&e->idle);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

void calla_engine_get_info(const calla_engine *engine, calla_engine_info *out) { *out = engine->info; }

calla_status calla_engine_check_weights(calla_engine *engine, uint64_t *bytes, calla_error *err) {
    if (bytes) *bytes = engine->w->scale_bytes;
    return weights_check(engine->w, err);
}

double calla_engine_read_rate(calla_engine *engine) { return model_read_rate(engine->m); }

void calla_engine_dot_rates(calla_engine *engine, calla_dot_rates *out) { model_dot_rates(engine->m, out); }

const calla_text *calla_engine_text(const calla_engine *engine) { return engine->text; }

void calla_engine_get_status(const calla_engine *engine, calla_engine_status *out) {
    calla_engine *e = (calla_engine *)(uintptr_t)engine; /* the lock is not part of what const promises */
    *out = (calla_engine_status){0};
    pthread_mutex_lock(&e->lock);
    out->running = e->n_running;
    out->queued = e->n_active - e->n_running;
    out->failed = e->failed;
    if (e->failed) snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1, e->failure.message);
    pthread_mutex_unlock(&e->lock);
}

/* forward.c: see forward.h.  docs/model.md says what each op computes. */
#include "model/forward.h"

static void probe(const backend_vtable *vt, backend *device, const model_shape *s, const row_batch *batch, const forward_hooks *hooks,
                  uint32_t layer) {
    if (!hooks->probe) return;
    vt->peek(device, BUF_RESIDUAL, 0, (uint64_t)batch->rows * s->hidden, hooks->probe_rows);
    hooks->probe(hooks->probe_user, layer, hooks->probe_rows, batch->rows);
}

calla_status forward_run(const backend_vtable *vt, backend *device, const model_shape *s, const row_batch *batch,
                         const forward_hooks *hooks, uint32_t *stages, calla_error *err) {
    void (*const layer_ops[])(backend *, uint32_t) = {vt->mixer_in, vt->mixer, vt->mixer_out, vt->route, vt->expert_in, vt->expert_out};
    bool stopped = false;
    *stages = 0;
    calla_status status = vt->begin(device, batch, err);
    if (status) return status;
    vt->embed(device);
    vt->stage_end(device), ++*stages;
    probe(vt, device, s, batch, hooks, 0);
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        if (hooks->stop && (stopped = hooks->stop(hooks->stop_user))) break;
        for (size_t op = 0; op < sizeof layer_ops / sizeof *layer_ops; op++) {
            layer_ops[op](device, layer);
            vt->stage_end(device), ++*stages;
        }
        probe(vt, device, s, batch, hooks, layer + 1);
    }
    if (!stopped) {
        vt->head(device);
        vt->stage_end(device), ++*stages;
    }
    status = vt->submit && !stopped ? vt->submit(device, err) : vt->finish(device, err);
    if (!status && stopped) status = error_set(err, CALLA_E_CANCELLED, "the step was abandoned");
    return status;
}

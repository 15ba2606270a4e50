/* forward.h: the order of work, written once: which op follows which, for every backend and every batch. */
#ifndef CALLA_MODEL_FORWARD_H
#define CALLA_MODEL_FORWARD_H

#include "model/model.h"

typedef struct forward_hooks {
    model_stop_fn stop; /* asked before each layer; NULL: never stops */
    void *stop_user;
    model_probe_fn probe; /* NULL: none */
    void *probe_user;
    float *probe_rows; /* [rows][H] */
} forward_hooks;

/* Runs one batch through the device, and waits for it where the device has no `submit`; else it is submitted.  *stages counts the stage
 * boundaries issued. */
calla_status forward_run(const backend_vtable *vt, backend *device, const model_shape *s, const row_batch *batch,
                         const forward_hooks *hooks, uint32_t *stages, calla_error *err);

#endif

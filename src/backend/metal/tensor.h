/* tensor.h: what the two checks of tensor.metal's kernels share, those of products (tensor.c) and of attention (tensor_attention.c): memory of
 * the device that they fill, and a kernel run on it. */
#ifndef CALLA_BACKEND_METAL_TENSOR_H
#define CALLA_BACKEND_METAL_TENSOR_H

#include "backend/metal/metal.h"
#include "base/random.h"

typedef struct metal_trial {
    metal_memory memory;
    uint64_t used;
    uint8_t *arguments, *step;
} metal_trial;

calla_status metal_trial_open(metal_trial *t, backend *b, uint64_t bytes, calla_error *err);
/* Room in it, at a multiple of 256. */
void *metal_trial_take(metal_trial *t, uint64_t bytes);
static inline uint64_t metal_trial_device(const metal_trial *t, const void *p) {
    return t->memory.address + (uint64_t)((const uint8_t *)p - t->memory.host);
}
/* False: it did not run; unless the device has failed, the log says why. */
bool metal_trial_run(backend *b, const metal_trial *t, const char *kernel, const metal_dispatch *d, const void *arguments, size_t bytes,
                     const metal_step *step);
/* `agrees`; where it does not, the log says which kernel. */
bool metal_trial_agrees(bool agrees, const char *kernel);

static inline float metal_trial_number(uint32_t key, uint32_t i, float range) { return (random_uniform(key, 0, i) * 2 - 1) * range; }

/* ---- tensor_attention.c ---- */
bool metal_check_tensor_attention(backend *b, calla_error *err);

#endif

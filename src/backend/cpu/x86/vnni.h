/* vnni.h: what the VNNI files share. */
#ifndef CALLA_BACKEND_CPU_VNNI_H
#define CALLA_BACKEND_CPU_VNNI_H

#include "backend/cpu/kernels.h"

/* Where consecutive outputs of a matrix stand. */
typedef struct vnni_outputs {
    const uint8_t *codes, *scales, *biases;
    size_t row_bytes, scale_bytes; /* from one output to the next */
    uint32_t groups, count;
    const cpu_ahead *ahead; /* or NULL */
} vnni_outputs;

/* gemm_vnni.c: acc[i][j] = output j times row i (list as in cpu_kernels) of n, for up to 64 outputs.
 * q24: x->q8 is of prepare_q24. */
void vnni_gemm(const vnni_outputs *o, const cpu_x *x, const uint32_t *list, uint32_t n, bool q24, float *acc);

#endif

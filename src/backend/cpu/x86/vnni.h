/* vnni.h: what the VNNI files share, and entries that the table with bf16 takes over. */
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

void vnni_linear(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                 bool q8, const cpu_ahead *ahead, float *acc);
void vnni_prepare_q8(const float *x, uint32_t cols, int8_t *q8, float *scale, float *sum);
void vnni_prepare_q24(const float *x, uint32_t cols, size_t plane, size_t groups, int8_t *q, float *scale, float *sum, int32_t *start);

#define VNNI_COMMON .has_q8 = true, .linear = vnni_linear, .prepare_q8 = vnni_prepare_q8, .prepare_q24 = vnni_prepare_q24, AVX512_COMMON

#endif

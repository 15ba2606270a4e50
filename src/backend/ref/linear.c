/* linear.c: matrices in MLX's affine form, read from the file at any alignment.
 *
 * w = scale · code + bias, one bf16 scale and bias for `group` consecutive inputs (mlx: quantized affine mode).  A row of weights is
 * widened once and used for all rows of the batch. */
#include <string.h>

#include "backend/ref/ref.h"
#include "base/float.h"

void ref_weight_row(const weight_mat *m, uint32_t which, uint32_t row, float *out) {
    const uint64_t index = (uint64_t)which * m->rows + row;
    const uint8_t *codes = m->codes + index * weight_row_bytes(m);
    if (m->bits == 16) {
        for (uint32_t k = 0; k < m->cols; k++) out[k] = load_bf16(codes + 2 * (size_t)k);
        return;
    }
    const uint64_t groups = weight_row_groups(m);
    const uint8_t *scales = m->scales + index * groups * 2, *biases = m->biases + index * groups * 2;
    for (uint32_t g = 0; g < groups; g++, out += m->group) {
        const float scale = load_bf16(scales + 2 * (size_t)g), bias = load_bf16(biases + 2 * (size_t)g);
        if (m->bits == 4) {
            for (uint32_t i = 0; i < m->group / 2; i++) {
                out[2 * i] = scale * (float)(codes[i] & 15) + bias;
                out[2 * i + 1] = scale * (float)(codes[i] >> 4) + bias;
            }
            codes += m->group / 2;
        } else {
            for (uint32_t i = 0; i < m->group; i++) out[i] = scale * (float)codes[i] + bias;
            codes += m->group;
        }
    }
}

/* Four floats at a time, spelled out: left to itself gcc 12 transposes the 16 sums and takes eight times as long. */
typedef float float4 __attribute__((vector_size(16)));

static inline float4 load4(const float *p) {
    float4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

float ref_dot(const float *a, const float *b, uint32_t n) {
    float4 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16) {
        s0 += load4(a + k) * load4(b + k);
        s1 += load4(a + k + 4) * load4(b + k + 4);
        s2 += load4(a + k + 8) * load4(b + k + 8);
        s3 += load4(a + k + 12) * load4(b + k + 12);
    }
    s0 = (s0 + s2) + (s1 + s3);
    float sum = (s0[0] + s0[2]) + (s0[1] + s0[3]);
    for (; k < n; k++) sum += a[k] * b[k];
    return sum;
}

void ref_linear(const weight_mat *m, uint32_t which, const float *x, uint32_t x_stride, float *out, uint32_t out_stride, uint32_t rows,
                float *weight) {
    for (uint32_t o = 0; o < m->rows; o++) {
        ref_weight_row(m, which, o, weight);
        for (uint32_t r = 0; r < rows; r++) out[(size_t)r * out_stride + o] = ref_dot(weight, x + (size_t)r * x_stride, m->cols);
    }
}

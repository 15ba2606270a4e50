/* linear.c: matrices in MLX's affine form, read from the file at any alignment.
 *
 * w = scale · code + bias, one bf16 scale and bias for `group` consecutive inputs (mlx: quantized affine mode).  A row of weights is
 * widened once and used for all rows of the batch. */
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

float ref_dot(const float *a, const float *b, uint32_t n) {
    float sum[16] = {0};
    uint32_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (uint32_t j = 0; j < 16; j++) sum[j] += a[k + j] * b[k + j];
    for (uint32_t j = 0; k < n; k++, j++) sum[j] += a[k] * b[k];
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    return sum[0];
}

void ref_linear(const weight_mat *m, uint32_t which, const float *x, uint32_t x_stride, float *out, uint32_t out_stride, uint32_t rows,
                float *weight) {
    for (uint32_t o = 0; o < m->rows; o++) {
        ref_weight_row(m, which, o, weight);
        for (uint32_t r = 0; r < rows; r++) out[(size_t)r * out_stride + o] = ref_dot(weight, x + (size_t)r * x_stride, m->cols);
    }
}

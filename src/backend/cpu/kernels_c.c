/* kernels_c.c: the table in plain C, for machines without a faster one and as the first rung that the others are compared with. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "backend/ref/plain.h"
#include "base/float.h"

enum { D = GDN_HEAD_DIM, V = HEAD_DIM };

static void linear_c(const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list, uint32_t n,
                     bool q8, const cpu_ahead *ahead, float *acc) {
    (void)q8, (void)ahead;
    const uint64_t groups = weight_row_groups(m);
    for (uint32_t j = 0; j < count; j++) {
        const uint64_t row = (uint64_t)which * m->rows + first + j;
        const uint8_t *codes = m->codes + row * weight_row_bytes(m), *scales = m->scales + row * groups * 2,
                      *biases = m->biases + row * groups * 2;
        for (uint32_t i = 0; i < n; i++) acc[(size_t)i * CPU_WIDE + j] = 0;
        for (uint32_t g = 0; g < groups; g++, codes += CPU_GROUP / 2) {
            float w[CPU_GROUP];
            const float scale = load_bf16(scales + 2 * (size_t)g), bias = load_bf16(biases + 2 * (size_t)g);
            for (uint32_t k = 0; k < CPU_GROUP / 2; k++) {
                w[k] = scale * (float)(codes[k] & 15) + bias;
                w[k + CPU_GROUP / 2] = scale * (float)(codes[k] >> 4) + bias;
            }
            for (uint32_t i = 0; i < n; i++)
                acc[(size_t)i * CPU_WIDE + j] += ref_dot(w, x->f32 + (size_t)(list ? list[i] : i) * x->cols + g * CPU_GROUP, CPU_GROUP);
        }
    }
}

static void prepare_f32_c(const float *x, uint32_t cols, float *f32, float *sum) {
    for (uint32_t g = 0; g < cols / CPU_GROUP; g++, x += CPU_GROUP, f32 += CPU_GROUP) {
        float s = 0;
        for (uint32_t k = 0; k < CPU_GROUP / 2; k++) {
            f32[k] = x[2 * k];
            f32[k + CPU_GROUP / 2] = x[2 * k + 1];
            s += x[2 * k] + x[2 * k + 1];
        }
        sum[g] = s;
    }
}

static void silu_mul_c(float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) a[i] = ref_silu(a[i]) * (b ? b[i] : 1);
}

static void sigmoid_mul_c(float *a, const float *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) a[i] *= ref_sigmoid(b[i]);
}

static void delta_c(const float *src, float *dst, const float *q, const float *k, const float *v, size_t v_stride, const float *alpha,
                    const float *beta, float *out, size_t out_stride, uint32_t rows, bool recurrent) {
    (void)recurrent; /* it always is */
    for (uint32_t t = 0; t < rows; t++, q += D, k += D, v += v_stride, out += out_stride, src = dst) {
        float u[D] = {0}, o[D] = {0};
        for (uint32_t i = 0; i < D; i++)
            for (uint32_t j = 0; j < D; j++) u[j] += k[i] * src[i * D + j];
        for (uint32_t j = 0; j < D; j++) u[j] = beta[t] * (v[j] - alpha[t] * u[j]);
        for (uint32_t i = 0; i < D; i++)
            for (uint32_t j = 0; j < D; j++) {
                const float s = alpha[t] * src[i * D + j] + k[i] * u[j];
                dst[i * D + j] = s;
                o[j] += q[i] * s;
            }
        memcpy(out, o, sizeof o);
    }
}

static void attend_scores_c(const float *q, size_t q_stride, uint32_t heads, const uint8_t *k, calla_kv kv, uint32_t n, float *scores,
                            size_t scores_stride, const uint8_t *ahead) {
    float row[V];
    (void)ahead;
    for (uint32_t t = 0; t < n; t++) {
        ref_kv_load(k, kv, t, row);
        for (uint32_t h = 0; h < heads; h++) scores[h * scores_stride + t] = ref_dot(q + h * q_stride, row, V);
    }
}

static void attend_values_c(const float *p, size_t p_stride, uint32_t heads, const uint8_t *v, calla_kv kv, uint32_t n, float *out,
                            const uint8_t *ahead) {
    float row[V];
    (void)ahead;
    for (uint32_t t = 0; t < n; t++) {
        ref_kv_load(v, kv, t, row);
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < V; i++) out[h * V + i] += p[h * p_stride + t] * row[i];
    }
}

static float largest_c(const float *p, uint32_t n) {
    float max = p[0];
    for (uint32_t i = 1; i < n; i++) max = p[i] > max ? p[i] : max;
    return max;
}

static float exp_sum_c(float *p, uint32_t n, float max) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += p[i] = expf(p[i] - max);
    return sum;
}

static const cpu_mixers mixer_c = {delta_c, attend_scores_c, attend_values_c, largest_c, exp_sum_c};

static const cpu_peak peak = {.f32 = &c_peak_f32};

const cpu_kernels cpu_kernels_c = {
    .name = "c",
    .peak = &peak,
    .has_q8 = false,
    .linear = linear_c,
    .weight_row = ref_weight_row,
    .dot = ref_dot,
    .prepare_f32 = prepare_f32_c,
    .silu_mul = silu_mul_c,
    .sigmoid_mul = sigmoid_mul_c,
    .mixer = &mixer_c,
};

/* plain.c: see plain.h. */
#include "backend/ref/plain.h"

#include <math.h>

#include "base/float.h"

void ref_load_vec(const weight_vec *v, float *out) {
    for (uint32_t i = 0; i < v->n; i++)
        out[i] = v->add + (v->type == WEIGHT_BF16 ? load_bf16(v->data + 2 * (size_t)i) : load_f32(v->data + 4 * (size_t)i));
}

float ref_sigmoid(float x) { return 1 / (1 + expf(-x)); }

float ref_silu(float x) { return x / (1 + expf(-x)); }

float ref_softplus(float x) { return x > 20 ? x : log1pf(expf(x)); /* above 20 the difference is below float32's resolution */ }

void ref_rope_angles(uint32_t position, double theta, float *cosine, float *sine) {
    for (uint32_t j = 0; j < ROTARY_DIM / 2; j++) {
        double angle = position * pow(theta, -2.0 * j / ROTARY_DIM);
        cosine[j] = (float)cos(angle);
        sine[j] = (float)sin(angle);
    }
}

void ref_rope(float *x, const float *cosine, const float *sine) {
    for (uint32_t j = 0; j < ROTARY_DIM / 2; j++) {
        float a = x[j], c = x[j + ROTARY_DIM / 2];
        x[j] = a * cosine[j] - c * sine[j];
        x[j + ROTARY_DIM / 2] = c * cosine[j] + a * sine[j];
    }
}

void ref_top_k(float *logits, uint32_t n, uint32_t k, uint32_t *expert, float *weight) {
    for (uint32_t i = 0; i < k; i++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < n; e++)
            if (logits[e] > logits[best]) best = e;
        expert[i] = best;
        weight[i] = logits[best];
        logits[best] = -INFINITY;
    }
    float sum = 0;
    const float max = weight[0];
    for (uint32_t i = 0; i < k; i++) sum += weight[i] = expf(weight[i] - max);
    for (uint32_t i = 0; i < k; i++) weight[i] /= sum;
}

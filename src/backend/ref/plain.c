/* plain.c: see plain.h. */
#include "backend/ref/plain.h"

#include <math.h>
#include <string.h>

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

/* Bytes of the scales of a row. */
static const size_t scales_bytes = HEAD_DIM / KV_GROUP * sizeof(float);

static uint8_t *row_scales(const uint8_t *block, uint32_t t) {
    return (uint8_t *)(uintptr_t)block + KV_PAGE_TOKENS * HEAD_DIM + t * scales_bytes;
}

void ref_kv_load(const uint8_t *block, calla_kv kv, uint32_t t, float out[HEAD_DIM]) {
    float scale[HEAD_DIM / KV_GROUP];
    if (kv == CALLA_KV_F32) {
        memcpy(out, block + (size_t)t * HEAD_DIM * 4, HEAD_DIM * 4);
    } else if (kv == CALLA_KV_BF16) {
        for (uint32_t i = 0; i < HEAD_DIM; i++) out[i] = load_bf16(block + ((size_t)t * HEAD_DIM + i) * 2);
    } else {
        memcpy(scale, row_scales(block, t), sizeof scale);
        for (uint32_t i = 0; i < HEAD_DIM; i++) out[i] = (float)(int8_t)block[(size_t)t * HEAD_DIM + i] * scale[i / KV_GROUP];
    }
}

/* code = x / scale, scale = largest |x| of the group / 127 */
static void store_q8(uint8_t *block, uint32_t t, const float *x) {
    float scale[HEAD_DIM / KV_GROUP];
    uint8_t *codes = block + (size_t)t * HEAD_DIM;
    for (uint32_t g = 0; g < HEAD_DIM / KV_GROUP; g++) {
        float most = 0;
        for (uint32_t i = g * KV_GROUP; i < (g + 1) * KV_GROUP; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        const float inverse = most > 0x1p-100f ? 127 / most : 0, magic = 0x1.8p23f; /* adding it rounds to a whole number, ties to even */
        for (uint32_t i = g * KV_GROUP; i < (g + 1) * KV_GROUP; i++) codes[i] = (uint8_t)(int8_t)((x[i] * inverse + magic) - magic);
        scale[g] = most / 127;
    }
    memcpy(row_scales(block, t), scale, sizeof scale);
}

void ref_kv_store(uint8_t *block, calla_kv kv, uint32_t t, const float x[HEAD_DIM]) {
    if (kv == CALLA_KV_F32) {
        memcpy(block + (size_t)t * HEAD_DIM * 4, x, HEAD_DIM * 4);
    } else if (kv == CALLA_KV_BF16) {
        for (uint32_t i = 0; i < HEAD_DIM; i++) {
            const uint16_t h = float_to_bf16(x[i]);
            memcpy(block + ((size_t)t * HEAD_DIM + i) * 2, &h, 2);
        }
    } else {
        store_q8(block, t, x);
    }
}

void ref_kv_copy(uint8_t *dst, const uint8_t *src, calla_kv kv, uint32_t n) {
    memcpy(dst, src, (size_t)n * HEAD_DIM * (kv == CALLA_KV_F32 ? 4 : kv == CALLA_KV_BF16 ? 2 : 1));
    if (kv == CALLA_KV_Q8) memcpy(row_scales(dst, 0), row_scales(src, 0), n * scales_bytes);
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

/* common.h: what all kernels share: the macros of the dialect, bf16, the functions of the model's formulas.  Metal's language only.
 *
 * The dialect is what both Metal's compiler and the C++ compiler of the tests take: no [[threadgroup(n)]] but TG_ARG(n), no [[host_name]]
 * but KERNEL_INSTANCE, no C casts of vectors, no pointers to pointers. */
#ifndef CALLA_BACKEND_METAL_COMMON_H
#define CALLA_BACKEND_METAL_COMMON_H

#ifdef __METAL_VERSION__
#define TG_ARG(n) [[threadgroup(n)]]
/* A kernel under the name by which the host asks for it: a function, or an instance of a template (whose commas end up in the rest). */
#define KERNEL_INSTANCE(name, ...) template [[host_name(name)]] kernel decltype(__VA_ARGS__) __VA_ARGS__;
#endif

/* ---- bf16 as 16-bit numbers: the bits are the same everywhere, and no arithmetic is done in it ---- */

static inline float bf16_to_float(uint16_t h) { return as_type<float>((uint)h << 16); }
/* The lower and the upper one of a word. */
static inline float bf16_low(uint w) { return as_type<float>(w << 16); }
static inline float bf16_high(uint w) { return as_type<float>(w & 0xFFFF0000u); }
/* Rounds to nearest, ties to even, as base/float.h does; NaN stays NaN. */
static inline uint16_t float_to_bf16(float f) {
    const uint u = as_type<uint>(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* ---- K and V in device memory: blocks of a page and head, kv_block_bytes each (backend.h) ---- */

enum { KV_VALUES = 256, KV_SCALED = 64 /* values that share a scale */, KV_ROW_SCALES = KV_VALUES / KV_SCALED };

/* A position's row of K or V in f32 or bf16 (T: float, uint16_t). */
template <typename T> struct kv_row {
    device T *values;

    kv_row(device uint8_t *kv, ulong block, uint position) { values = (device T *)kv + (block * METAL_PAGE_TOKENS + position) * KV_VALUES; }
    /* Values v … v + 7 and v … v + 3. */
    void load(uint v, thread float4 &a, thread float4 &b) const { load8(values + v, a, b); }
    float4 load(uint v) const { return load4(values + v); }

    static void load8(device const float *p, thread float4 &a, thread float4 &b) {
        a = ((device const float4 *)p)[0];
        b = ((device const float4 *)p)[1];
    }
    static void load8(device const uint16_t *p, thread float4 &a, thread float4 &b) {
        const uint4 v = *(device const uint4 *)p;
        a = float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
        b = float4(bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w));
    }
    static float4 load4(device const float *p) { return *(device const float4 *)p; }
    static float4 load4(device const uint16_t *p) {
        const uint2 v = *(device const uint2 *)p;
        return float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
    }
};

/* The lowest byte first. */
static inline float4 signed_bytes(uint w) {
    return float4(float(int(w << 24) >> 24), float(int(w << 16) >> 24), float(int(w << 8) >> 24), float(int(w) >> 24));
}

/* The same in 8 bits: value = code · scale.  The scales stand behind all codes of the block. */
template <> struct kv_row<int8_t> {
    device int8_t *codes;
    device float *scales;

    kv_row(device uint8_t *kv, ulong block, uint position) {
        device uint8_t *start = kv + block * (METAL_PAGE_TOKENS * (KV_VALUES + 4 * KV_ROW_SCALES));
        codes = (device int8_t *)start + position * KV_VALUES;
        scales = (device float *)(start + METAL_PAGE_TOKENS * KV_VALUES) + position * KV_ROW_SCALES;
    }
    void load(uint v, thread float4 &a, thread float4 &b) const {
        const uint2 w = *(device const uint2 *)(codes + v);
        const float scale = scales[v / KV_SCALED];
        a = signed_bytes(w.x) * scale;
        b = signed_bytes(w.y) * scale;
    }
    float4 load(uint v) const { return signed_bytes(*(device const uint *)(codes + v)) * scales[v / KV_SCALED]; }
};

/* What a group's values are multiplied with to become codes, of its largest magnitude: as ref does. */
static inline float kv_inverse(float most) { return most > 7.888609e-31f /* 2⁻¹⁰⁰ */ ? 127.0f / most : 0.0f; }

/* ---- formulas (docs/model.md) ---- */

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static inline float silu(float x) { return x / (1.0f + exp(-x)); }
static inline float4 sigmoid(float4 x) { return 1.0f / (1.0f + exp(-x)); }
static inline float4 silu(float4 x) { return x / (1.0f + exp(-x)); }

/* log(1 + e) for 0 <= e <= 1 by 2·artanh(e / (2 + e)).  Metal has no log1p, and log(1 + e) loses a small e, on which a head's memory of
 * thousands of tokens rests. */
static inline float log_1_plus(float e) {
    const float z = e / (2.0f + e), s = z * z;
    float p = 1.0f / 15.0f;
    p = p * s + 1.0f / 13.0f;
    p = p * s + 1.0f / 11.0f;
    p = p * s + 1.0f / 9.0f;
    p = p * s + 1.0f / 7.0f;
    p = p * s + 1.0f / 5.0f;
    p = p * s + 1.0f / 3.0f;
    return 2.0f * z + 2.0f * z * s * p;
}
static inline float softplus(float x) { return max(x, 0.0f) + log_1_plus(exp(-fabs(x))); }

#endif

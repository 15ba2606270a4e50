/* kernels_bf16.c: the table of processors that have AVX512_BF16 beside VNNI. */
#include "backend/cpu/x86/attention.h"
#include "backend/cpu/x86/avx512.h"
#include "backend/cpu/x86/vnni.h"

static const cpu_peak peak = {.f32 = &avx512_peak_f32, .bf16 = &avx512_peak_bf16, .i8 = &vnni_peak_i8};

const cpu_kernels cpu_kernels_bf16 = {
    .name = "bf16", .peak = &peak, .attention = {[CALLA_KV_BF16] = &bf16_attention_bf16, [CALLA_KV_Q8] = &vnni_attention_q8}, VNNI_COMMON};

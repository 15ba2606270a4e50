/* isa.c: which kernel table this machine runs. */
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows the name. */
static bool has_avxvnni(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#endif

#if defined(__aarch64__)
typedef struct arm_features {
    bool dotprod, i8mm;
} arm_features;

#if defined(__APPLE__)
static bool sysctl_says(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

static arm_features arm_detect(void) {
    return (arm_features){sysctl_says("hw.optional.arm.FEAT_DotProd"), sysctl_says("hw.optional.arm.FEAT_I8MM")};
}
#elif defined(__linux__)
static arm_features arm_detect(void) {
    return (arm_features){(getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0};
}
#else
static arm_features arm_detect(void) { return (arm_features){0}; } /* another system: what every 64-bit Arm has */
#endif
#endif

size_t cpu_kernels_available(const cpu_kernels *found[CPU_MAX_TABLES]) {
    size_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    if (vnni && __builtin_cpu_supports("avx512bf16")) found[n++] = &cpu_kernels_bf16;
    if (vnni) found[n++] = &cpu_kernels_vnni;
    if (avx512) found[n++] = &cpu_kernels_avx512;
    if (avx2 && has_avxvnni()) found[n++] = &cpu_kernels_avxvnni;
    if (avx2) found[n++] = &cpu_kernels_avx2;
#elif defined(__aarch64__)
    const arm_features has = arm_detect();
    if (has.dotprod && has.i8mm) found[n++] = &cpu_kernels_i8mm;
    if (has.dotprod) found[n++] = &cpu_kernels_dotprod;
    found[n++] = &cpu_kernels_neon;
#endif
    found[n++] = &cpu_kernels_c;
    return n;
}

const cpu_kernels *cpu_kernels_pick(calla_error *err) {
    const cpu_kernels *found[CPU_MAX_TABLES];
    const size_t n = cpu_kernels_available(found);
    const char *name = getenv("CALLA_CPU");
    if (!name || !*name) return found[0];
    char names[128] = "";
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(found[i]->name, name)) return found[i];
        strcat(strcat(names, i ? ", " : ""), found[i]->name);
    }
    error_set(err, CALLA_E_ARGUMENT, "CALLA_CPU=%s: this machine runs %s", name, names);
    return NULL;
}

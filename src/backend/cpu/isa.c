/* isa.c: which kernel table this machine runs. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"

size_t cpu_kernels_available(const cpu_kernels *found[CPU_MAX_TABLES]) {
    size_t n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512vnni")) found[n++] = &cpu_kernels_vnni;
    if (avx512) found[n++] = &cpu_kernels_avx512;
    if (avx2) found[n++] = &cpu_kernels_avx2;
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

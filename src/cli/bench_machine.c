/* bench_machine.c: what the system says of the machine and of this process's memory. */
#include <ctype.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/process.h"
#include "cli/bench.h"

#ifdef __linux__
/* The value of the first line "name : value" of a file of /proc, without blanks around it; false if there is none. */
static bool read_proc(const char *path, const char *name, char *out, size_t n) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    char line[512];
    size_t length = strlen(name);
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) != 0) continue;
        char *value = strchr(line, ':');
        if (!value) continue;
        for (value++; isspace((unsigned char)*value); value++) {
        }
        value[strcspn(value, "\n")] = 0;
        snprintf(out, n, "%s", value);
        found = true;
    }
    fclose(file);
    return found;
}
#endif

/* Virtual machines hide models behind one name, of which some have half the vector units of others: so with family and model where cpuinfo
 * has them. */
static bool read_cpu_name(char *out, size_t n) {
#if defined(__APPLE__)
    return sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0) == 0;
#elif defined(__linux__)
    char family[16], model[16];
    if (!read_proc("/proc/cpuinfo", "model name", out, n)) return false;
    const size_t length = strlen(out);
    if (read_proc("/proc/cpuinfo", "cpu family", family, sizeof family) && read_proc("/proc/cpuinfo", "model\t", model, sizeof model))
        snprintf(out + length, n - length, " (family %s, model %s)", family, model);
    return true;
#else
    (void)out, (void)n;
    return false;
#endif
}

void bench_describe_machine(char *cpu, size_t n, uint32_t *cores) {
    struct utsname u;
    if (!read_cpu_name(cpu, n)) snprintf(cpu, n, "%s", uname(&u) == 0 ? u.machine : "unknown"); /* Arm's cpuinfo has no names */
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    *cores = count > 0 ? (uint32_t)count : 0;
}

bool bench_reset_peak(void) {
#ifdef __linux__
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return false;
    bool ok = fputs("5", file) >= 0; /* 5: the peak only, proc(5) */
    return fclose(file) == 0 && ok;
#else
    return false;
#endif
}

void bench_read_peak(uint64_t *peak_bytes, uint64_t *private_bytes) {
    process_usage usage;
    process_get_usage(&usage);
    *peak_bytes = usage.peak_bytes;
#ifdef __linux__
    *private_bytes = usage.private_bytes;
#else
    *private_bytes = 0; /* a Mac's footprint is another measure */
#endif
}

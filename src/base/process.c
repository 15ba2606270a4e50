/* process.c: see process.h.  Linux tells in /proc, macOS in a call of the kernel. */
#include "base/process.h"

#include <stdio.h>
#include <sys/resource.h>
#ifdef __APPLE__
#include <mach/mach.h>
#endif

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

#ifdef __APPLE__
static void read_memory(process_usage *out) {
    task_vm_info_data_t info;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &n) != KERN_SUCCESS) return;
    out->resident_bytes = info.resident_size;
    out->private_bytes = info.phys_footprint;
}
#else
static void read_memory(process_usage *out) {
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) return;
    char line[256];
    unsigned long long kb;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmRSS: %llu kB", &kb) == 1) out->resident_bytes = kb * 1024;
        if (sscanf(line, "RssAnon: %llu kB", &kb) == 1) out->private_bytes = kb * 1024;
        if (sscanf(line, "VmHWM: %llu kB", &kb) == 1) out->peak_bytes = kb * 1024;
    }
    fclose(file);
}
#endif

void process_get_usage(process_usage *out) {
    *out = (process_usage){0};
    struct rusage usage;
    if (!getrusage(RUSAGE_SELF, &usage)) {
        out->cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        out->peak_bytes = (uint64_t)usage.ru_maxrss;
#ifndef __APPLE__
        out->peak_bytes *= 1024; /* everywhere but on a Mac it counts kilobytes */
#endif
    }
    read_memory(out);
}

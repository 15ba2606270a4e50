/* process.h: what the system says of this process. */
#ifndef CALLA_BASE_PROCESS_H
#define CALLA_BASE_PROCESS_H

#include <stdint.h>

typedef struct process_usage {
    uint64_t resident_bytes; /* 0: unknown */
    uint64_t private_bytes;  /* without mapped files; 0: unknown */
    uint64_t peak_bytes;     /* the most that was resident since the start, or since a reset (proc(5), clear_refs) */
    double cpu_seconds;
} process_usage;

void process_get_usage(process_usage *out);

#endif

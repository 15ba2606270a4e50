/* watch.h: what kernels that were compiled with `metalc.py watched` did: bytes moved, and rules broken.
 *
 * Every load, store and atomic operation is seen.  An access outside the memory that the dispatch knows of, undefined behaviour, and data
 * races end the dispatch with a message (simt_error): races between lanes without a barrier of the right scope, in threadgroup and in device
 * memory; between threadgroups; between dispatches of one stage (simt_end_stage).  Atomic operations do not race with each other.  Not seen:
 * races of stores of single bytes to device memory; copies of structures of 32 bytes and more that the compiler makes of its own accord.
 *
 * Of a sampled grid (simt_sample) the second block stands for all between the first and the last: counts are exact where blocks read and
 * write as much of their own as the second one, and share the rest. */
#ifndef CALLA_METAL_SHIM_WATCH_H
#define CALLA_METAL_SHIM_WATCH_H

#include "simt.h"

/* Traffic of one buffer in bytes.  `loads`: of every access.  `group_reads`: each byte once per threadgroup that reads it, what the memory
 * gives if each threadgroup keeps what it has read.  `reads`: each byte once per dispatch, the least possible. */
typedef struct simt_traffic {
    const char *label;
    uint64_t loads, group_reads, reads;
    uint64_t stores, writes;
} simt_traffic;

typedef struct simt_kernel_traffic { /* of all dispatches of a kernel since simt_watch_reset */
    const char *kernel;
    uint64_t dispatches, threadgroups, fewest_threadgroups, matrix_products; /* fewest of a dispatch that moved over 1 MB; 0: none did */
    simt_traffic all;
} simt_kernel_traffic;

typedef struct simt_dispatch_traffic { /* of a dispatch; of one that was sampled, what its whole grid would have moved */
    const char *kernel;
    uint64_t threadgroups, matrix_products; /* 8 × 8 × 8 */
    const simt_traffic *buffer;             /* [buffers], those that were touched */
    uint32_t buffers;
} simt_dispatch_traffic;
extern void (*simt_watch_each)(const simt_dispatch_traffic *t); /* told of every dispatch at its end, unless NULL */

void simt_watch_reset(void);
const simt_traffic *simt_watch_buffers(uint32_t *n); /* of the last dispatch, by buffer */
const simt_kernel_traffic *simt_watch_kernels(uint32_t *n);

#endif

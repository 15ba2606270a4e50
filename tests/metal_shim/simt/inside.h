/* inside.h: what simt.c shows trace.c of the dispatch that runs. */
#ifndef CALLA_METAL_SHIM_INSIDE_H
#define CALLA_METAL_SHIM_INSIDE_H

#include "simt.h"

typedef struct simt_part {
    char *start, *end;
} simt_part;

/* Moments of a run that whoever watches is told of. */
typedef struct simt_observer {
    void (*begin)(const simt_dispatch *d, const simt_kernel *k);
    void (*threadgroup)(void);        /* before each threadgroup */
    void (*part)(const simt_part *p); /* of threadgroup memory, new */
    void (*block)(uint32_t blocks); /* after the first, the second and the last block of a grid of which no others are run (simt_sample) */
    void (*stage)(void);
    void (*end)(bool ok); /* may call simt_fault: the dispatch has failed then */
} simt_observer;
extern const simt_observer *simt_watching; /* NULL: nobody */

bool simt_is_own(const void *address);    /* what lanes and simt.c tell each other: no memory of the device */
extern const simt_dispatch *simt_running; /* NULL between dispatches */

/* Where the fibers' stacks and threadgroup memory are, and what of the latter the threadgroup that runs has. */
extern char *simt_stacks, *simt_stacks_end;
#define SIMT_ARENA_BYTES (2 * SIMT_MAX_THREADGROUP_BYTES) /* threadgroup memory with gaps between its parts */
extern char simt_arena[SIMT_ARENA_BYTES];
extern simt_part simt_parts[64];
extern uint32_t simt_n_parts;

/* Counts of fences so far: accesses of different simdgroups to threadgroup memory are ordered only if simt_fences[…] changed between
 * them, those of lanes of one simdgroup also if the simdgroup's own count did. */
extern uint32_t simt_threadgroup_fences;                              /* of threadgroup memory, by threadgroup_barrier */
extern uint32_t simt_device_fences;                                   /* of device memory, by threadgroup_barrier */
extern uint32_t simt_simdgroup_fences[SIMT_MAX_THREADS / SIMT_WIDTH]; /* of any memory, by simdgroup_barrier */

#endif

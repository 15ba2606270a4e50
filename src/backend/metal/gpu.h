/* gpu.h: the Metal backend's only way to the device: memory, kernels by name, recorded commands.  A C interface; gpu.m behind it is all
 * the Objective-C there is, and knows nothing of models.
 *
 * Errors while commands are recorded or run are sticky: gpu_failure tells the first one, and everything after it is void.  One thread. */
#ifndef CALLA_BACKEND_METAL_GPU_H
#define CALLA_BACKEND_METAL_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct metal_gpu metal_gpu;

typedef struct metal_facts {
    char name[64];
    uint64_t working_set_bytes;    /* that the device recommends to stay below in all */
    uint64_t largest_buffer_bytes; /* of one allocation */
} metal_facts;

typedef struct metal_memory { /* shared by host and device, page-aligned, zero at first */
    void *object;
    uint8_t *host;
    uint64_t address; /* on the device */
    uint64_t bytes;
} metal_memory;

/* The system's first device.  CALLA_E_UNSUPPORTED with the reason where there is none that will do. */
calla_status gpu_open(metal_gpu **out, metal_facts *facts, calla_error *err);
void gpu_close(metal_gpu *g); /* waits; memory must have been released */

/* At most GPU_MAX_MEMORIES live at a time; all of them are at hand for every command.  Zero bytes are taken for one page. */
enum { GPU_MAX_MEMORIES = 1024 };
calla_status gpu_allocate(metal_gpu *g, uint64_t bytes, const char *what, metal_memory *out, calla_error *err);
/* Memory that is there already, from a page's start on, and outlives it: a mapped file, which the device may read. */
calla_status gpu_adopt(metal_gpu *g, const uint8_t *host, uint64_t bytes, const char *what, metal_memory *out, calla_error *err);
void gpu_release(metal_gpu *g, metal_memory *m);

/* Takes the library that is embedded, or compiles the embedded source; compiled pipelines that an earlier run has left in the user's cache
 * folder serve either. */
calla_status gpu_compile(metal_gpu *g, calla_error *err);
/* Beside them the kernels of Metal 4's tensor operations, where the device has units for these and the system compiles them; false, with a
 * line in the log unless the device has none: there are none. */
bool gpu_compile_tensor(metal_gpu *g);
/* Index of the kernel of that name for gpu_dispatch; asked for before the first step, never within one.  The same name gives the same.
 * threads: of a threadgroup, always so many; the compiler is told, so that it leaves registers for all of them. */
enum { GPU_MAX_KERNELS = 128 };
calla_status gpu_kernel(metal_gpu *g, const char *name, uint32_t threads, uint32_t *index, calla_error *err);
/* Leaves compiled kernels for the next run.  That this fails is logged, and no error. */
void gpu_keep_kernels(metal_gpu *g);

/* ---- commands ---- */

typedef struct metal_commands { /* recorded, not yet handed to the device */
    void *buffer, *encoder;     /* NULL: none */
} metal_commands;

/* False after a failure. */
bool gpu_begin(metal_gpu *g, metal_commands *c);
/* What buffer(0), with an offset that each dispatch sets, and buffer(1) are for the dispatches that follow. */
void gpu_bind_arguments(metal_commands *c, const metal_memory *m);
void gpu_bind_step(metal_commands *c, const metal_memory *m, uint64_t offset);
typedef struct metal_dispatch {
    uint32_t kernel, threads, threadgroup_bytes;
    uint32_t grid[3];   /* threadgroups */
    uint64_t arguments; /* offset */
} metal_dispatch;
/* No dimension of the grid may be 0. */
void gpu_dispatch(metal_gpu *g, metal_commands *c, const metal_dispatch *d);
/* All that was dispatched before ends before anything after it begins. */
void gpu_barrier(metal_commands *c);
/* Hands the commands to the device, behind all earlier ones; waits first where GPU_MOST_IN_FLIGHT are under way. */
enum { GPU_MOST_IN_FLIGHT = 4 };
void gpu_commit(metal_gpu *g, metal_commands *c);
void gpu_discard(metal_commands *c);
/* Until at most `leave` are under way. */
void gpu_wait(metal_gpu *g, uint32_t leave);
/* How many were handed over, ever; and until the first n of them are done. */
uint64_t gpu_committed(const metal_gpu *g);
void gpu_wait_for(metal_gpu *g, uint64_t n);

const char *gpu_failure(const metal_gpu *g); /* NULL: none */

#endif

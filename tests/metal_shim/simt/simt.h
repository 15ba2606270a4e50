/* simt.h: runs kernels that were written for an Apple GPU on this machine's processor.
 *
 * The tests' own side is simt_run: one dispatch on host arrays.  The other half is what compiled kernels call (metal_stdlib.h and the
 * thunks that generate.py writes); tests do not touch it.
 *
 * Each thread of a threadgroup is a fiber; 32 of them make a simdgroup.  A simdgroup is driven as far as it can go before the next one
 * starts, forward or in reverse, and threadgroups run one after the other in the same direction, so that an order the kernel relies on
 * without a barrier shows in its results.  Threadgroup memory is filled with 0xff (NaN) before each threadgroup.  One dispatch runs at
 * a time, on any thread. */
#ifndef CALLA_METAL_SHIM_SIMT_H
#define CALLA_METAL_SHIM_SIMT_H

#ifndef __cplusplus
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#else
extern "C" {
#endif

#define SIMT_BUFFERS 31u     /* [[buffer(0)]] … [[buffer(30)]] */
#define SIMT_THREADGROUPS 8u /* [[threadgroup(0)]] … */
#define SIMT_CONSTANTS 64u   /* [[function_constant(0)]] … */
#define SIMT_WIDTH 32u       /* lanes of a simdgroup */
#define SIMT_MAX_THREADS 1024u
#define SIMT_MAX_THREADGROUP_BYTES 32768u

/* ---- kernels ---- */

typedef enum simt_param_kind { SIMT_DEVICE, SIMT_CONSTANT, SIMT_THREADGROUP } simt_param_kind;
typedef struct simt_param {
    simt_param_kind kind;
    uint32_t index; /* n of [[buffer(n)]] or [[threadgroup(n)]] */
    uint32_t bytes; /* size of what the pointer or reference points to */
    uint32_t align; /* its alignment */
    bool whole;     /* a reference: `bytes` are there at least */
    const char *name;
} simt_param;

typedef void (*simt_entry)(void *const *buffer, void *const *threadgroup);
typedef struct simt_kernel {
    const char *name; /* as the host asks for it */
    simt_entry entry;
    const simt_param *params;
    uint32_t n_params;
    uint32_t max_threads; /* [[max_total_threads_per_threadgroup]]; 0: none */
    const char *file;
    struct simt_kernel *next;
} simt_kernel;

void simt_register(simt_kernel *k);
const simt_kernel *simt_find(const char *name); /* NULL: no such kernel is linked in */

/* ---- dispatches ---- */

typedef union simt_constant_value {
    uint64_t bits;
    bool b;
    int32_t i;
    uint32_t u;
    float f;
    uint16_t h;
} simt_constant_value;

typedef struct simt_binding {
    void *data;   /* NULL: nothing is bound */
    size_t bytes; /* from `data` to the end of the buffer; what lies beyond is out of bounds */
    const char *label;
} simt_binding;

typedef struct simt_dispatch {
    const char *kernel;
    simt_binding buffer[SIMT_BUFFERS];
    size_t threadgroup_bytes[SIMT_THREADGROUPS];
    simt_constant_value constant[SIMT_CONSTANTS];
    bool constant_set[SIMT_CONSTANTS];
    uint32_t threads[3];      /* of a threadgroup */
    uint32_t threadgroups[3]; /* of the grid */
    const simt_binding
        *reachable; /* [n_reachable] more memory that is reached through pointers in the buffers (watched kernels are told) */
    size_t n_reachable;
    uint32_t grid_threads[3]; /* of the grid, where the last threadgroups are cut; 0: threads · threadgroups */
} simt_dispatch;

typedef enum simt_order { SIMT_FORWARD, SIMT_REVERSE } simt_order;
extern simt_order simt_run_order; /* at first forward, or what SIMT_ORDER=reverse in the environment says */

/* Runs a dispatch.  False: it broke a rule, and simt_error() says which; results are then incomplete. */
bool simt_run(const simt_dispatch *d);
const char *simt_error(void);

/* The same beside others: dispatches between two calls of simt_end_stage run at the same time on a device, and none may touch what another
 * writes (watched kernels are told). */
bool simt_run_in_stage(const simt_dispatch *d);
void simt_end_stage(void);

/* Grids too large to be run whole, of which only the traffic is asked for (watch.h): a sampler says along which axis the threadgroups do
 * alike and how many neighbours, `block`, belong together.  Of the blocks the first, the second and the last are run; of what the others
 * would have computed nothing is there.  Block 0: all are run; SIMT_NONE: none at all, where only the grids are asked for. */
#define SIMT_NONE UINT32_MAX
typedef struct simt_sample {
    uint32_t axis, block;
} simt_sample;
extern simt_sample (*simt_sampler)(const simt_dispatch *d); /* NULL: every grid is run whole */

/* For tests of single kernels: runs forward, puts the contents of all bound buffers back, runs in reverse, and compares every byte.
 * False also when the two differ. */
bool simt_run_both(const simt_dispatch *d);

/* ---- what compiled kernels call ---- */

typedef struct simt_lane {
    void *stack; /* saved stack pointer */
    uint32_t position[3], index, lane, simdgroup;
} simt_lane;

typedef struct simt_group {
    uint32_t position[3], threads[3], threadgroups[3], grid_threads[3], full_threads[3];
    uint32_t n_threads, simdgroups;
} simt_group;

extern simt_lane *simt_self;
extern simt_group simt_now;
extern simt_constant_value simt_constants[SIMT_CONSTANTS];
extern bool simt_constants_set[SIMT_CONSTANTS];

enum { SIMT_FENCE_DEVICE = 1, SIMT_FENCE_THREADGROUP = 2 };
void simt_threadgroup_barrier(uint32_t fences);
void simt_simdgroup_barrier(uint32_t fences);

/* One simd operation: every running lane of the simdgroup puts its value into simt_slots[simdgroup][lane] and calls simt_exchange; when all
 * have, `reduce` (may be NULL) runs once over the 32 slots with the mask of lanes that took part.  Returns the slots, valid until the lane's
 * next but one operation.  `what` names the operation: all lanes have to be at the same. */
#define SIMT_SLOT_BYTES 32u
typedef struct simt_slot {
    unsigned char bytes[SIMT_SLOT_BYTES];
} __attribute__((aligned(SIMT_SLOT_BYTES))) simt_slot;
typedef void (*simt_reduce)(simt_slot *slots, uint32_t mask);
extern simt_slot *simt_slots[SIMT_MAX_THREADS / SIMT_WIDTH];
simt_slot *simt_exchange(const char *what, simt_reduce reduce, uint32_t *mask);

extern uint64_t simt_matrix_products;                          /* 8 × 8 × 8, ever */
extern void (*simt_atomic)(const void *address, size_t bytes); /* told of each atomic operation, unless NULL */

/* Memory of a threadgroup variable declared in a kernel's body: the same for all threads of a threadgroup. */
typedef struct simt_site {
    uint64_t group;
    void *memory;
} simt_site;
void *simt_threadgroup_variable(simt_site *site, size_t bytes, size_t align);

/* Ends the dispatch that runs, with a message; called from a lane it does not return (not marked so: AddressSanitizer would look at the wrong stack). */
void simt_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif

#endif

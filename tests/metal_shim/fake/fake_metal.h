/* fake_metal.h: the tests' side of the fake Metal: when commands run, what fails, what was counted, which rules the host broke. */
#ifndef CALLA_FAKE_METAL_H
#define CALLA_FAKE_METAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_METAL_INTERACTIVITY = 14 }; /* of a command that held up the desktop: no MTLCommandBufferError has that number */

/* The device that MTLCreateSystemDefaultDevice finds. */
typedef struct fake_metal_device {
    bool absent, other_family;
    bool no_residency_sets;                           /* as on macOS 14 */
    bool tensor_units;                                /* as the M5 */
    bool refuses_language_4;                          /* the compiler does */
    const char *wrong_kernel;                         /* does nothing; NULL: none */
    bool refuses_libraries;                           /* that were compiled elsewhere */
    uint64_t working_set_bytes, largest_buffer_bytes; /* 0: 96 GB, 64 GB */
    uint32_t most_threads;                            /* of a pipeline, for want of registers; 0: as many as Metal has at most */
    /* Commands run when somebody waits for them, not when they are committed: what the host overwrites too early then shows.  At first: whether
     * FAKE_METAL_LATE is in the environment. */
    bool runs_late;
    int next_buffer_error; /* the next command buffer fails with this MTLCommandBufferError; 0: it runs */
    uint32_t lost_barrier; /* the n-th barrier from here on is as if the host had not asked for it; 0: none */
} fake_metal_device;
extern fake_metal_device fake_metal_is;

/* Failures: every call that can fail on a real device counts; the call number `at` (from 1, counted from here on) fails once, 0: none.  A
 * command buffer fails as out of memory.  Returns how many such calls there were since the last time. */
uint64_t fake_metal_fail(uint64_t at);
const char *fake_metal_failed(void); /* the call that failed, or NULL */

typedef struct fake_metal_counts { /* of commands that have run, and of libraries */
    uint64_t command_buffers, encoders, dispatches, barriers, fences;
    uint64_t libraries_taken, libraries_compiled;
    uint64_t declared; /* resources that encoders declared, where no residency set has them */
} fake_metal_counts;
extern fake_metal_counts fake_metal_count;

/* The first rule that host or kernels broke, or NULL; forgotten then.  Each is also printed. */
const char *fake_metal_broken(void);

/* Objective-C objects that are alive, with their classes in `names`. */
long fake_metal_living(char *names, size_t bytes);

#endif

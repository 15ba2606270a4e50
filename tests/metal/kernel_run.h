/* kernel_run.h: for tests of single Metal kernels: numbers to compute with, and dispatches in both orders of the runner. */
#ifndef CALLA_TESTS_METAL_KERNEL_RUN_H
#define CALLA_TESTS_METAL_KERNEL_RUN_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/args.h"
#include "base/float.h"
#include "base/random.h"
#include "simt.h"
#include "weights/weights.h"

#define DEVICE(p) ((uint64_t)(uintptr_t)(p))

typedef struct kernel_out { /* what a dispatch writes: compared between the orders */
    void *data;
    size_t bytes;
} kernel_out;

/* One dispatch with args in buffer(0) and the step in buffer(1), threads in x, in both orders; anything but agreement ends the test. */
void kernel_run(const char *name, const void *args, size_t args_bytes, const metal_step *step, const uint32_t grid[3], uint32_t threads,
                size_t threadgroup_bytes, const kernel_out *out, size_t n_out);

/* Its grid and its outputs, written in place. */
#define KERNEL_GRID(x, y, z) ((const uint32_t[3]){x, y, z})
#define KERNEL_OUT(...) ((const kernel_out[]){__VA_ARGS__}), sizeof((const kernel_out[]){__VA_ARGS__}) / sizeof(kernel_out)

/* Memory that kernels may reach, and nothing beyond its end.  Freed by kernel_free_all. */
void *kernel_alloc(size_t bytes);
void *kernel_copy(const void *data, size_t bytes);
float *kernel_floats(size_t n, float range); /* random, uniform in ±range */
float *kernel_nans(size_t n);
float *kernel_filled(size_t n, float value);
void kernel_free_all(void);
float kernel_uniform(float range);
uint32_t kernel_number(uint32_t below);

/* `count` random matrices.  As weights for the reference, and as the kernels see them. */
weight_mat kernel_matrix(uint32_t count, uint32_t rows, uint32_t cols, uint32_t bits, uint32_t group);
metal_mat kernel_metal_matrix(const weight_mat *m);

/* Bytes that the loads of the last dispatch took of an array, again and again; only where kernels are watched. */
uint64_t kernel_loads(const void *data);
#ifdef WATCHED
enum { kernels_watched = 1 };
#else
enum { kernels_watched = 0 };
#endif

/* |got − want| ≤ tolerance, and neither is NaN. */
void kernel_close(const char *what, double got, double want, double tolerance);

#endif

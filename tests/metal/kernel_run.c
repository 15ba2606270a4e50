/* kernel_run.c: see kernel_run.h. */
#include "metal/kernel_run.h"

#include <math.h>
#include <stdio.h>

#include "unit.h"
#ifdef WATCHED
#include "watch.h"
#endif

enum { MOST_BLOCKS = 256 };
static simt_binding blocks[MOST_BLOCKS]; /* all memory that kernels may reach */
static char labels[MOST_BLOCKS][16];
static size_t n_blocks;
static uint64_t random_state;

static uint64_t next(void) { return random_mix(random_state += 0x9E3779B97F4A7C15u); }
float kernel_uniform(float range) { return ((float)(next() >> 40) * 0x1p-23f - 1) * range; }
uint32_t kernel_number(uint32_t below) { return (uint32_t)((next() >> 32) * below >> 32); }

void *kernel_alloc(size_t bytes) {
    assert_true(n_blocks < MOST_BLOCKS);
    const size_t whole = (bytes + 255) / 256 * 256; /* the sanitizer's red zone begins at the next multiple of 256 */
    void *p = aligned_alloc(256, whole);
    assert_non_null(p);
    memset(p, 0xFF, whole);
    snprintf(labels[n_blocks], sizeof labels[n_blocks], "array %zu", n_blocks);
    blocks[n_blocks] = (simt_binding){p, bytes, labels[n_blocks]};
    n_blocks++;
    return p;
}

void *kernel_copy(const void *data, size_t bytes) { return memcpy(kernel_alloc(bytes), data, bytes); }

float *kernel_floats(size_t n, float range) {
    float *p = kernel_alloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = kernel_uniform(range);
    return p;
}

float *kernel_nans(size_t n) { return kernel_alloc(n * sizeof(float)); }

float *kernel_filled(size_t n, float value) {
    float *p = kernel_alloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = value;
    return p;
}

void kernel_free_all(void) {
    while (n_blocks) free(blocks[--n_blocks].data);
}

weight_mat kernel_matrix(uint32_t count, uint32_t rows, uint32_t cols, uint32_t bits, uint32_t group) {
    const size_t all = (size_t)count * rows, code_bytes = all * cols * bits / 8, scales = group ? all * (cols / group) : 0;
    uint8_t *codes = kernel_alloc(code_bytes);
    uint16_t *scale = kernel_alloc(scales * 2), *bias = kernel_alloc(scales * 2);
    for (size_t i = 0; i < code_bytes; i++) codes[i] = (uint8_t)next();
    for (size_t i = 0; i < scales; i++) {
        scale[i] = float_to_bf16(kernel_uniform(bits == 4 ? 0.02f : 0.001f));
        bias[i] = float_to_bf16(kernel_uniform(0.1f));
    }
    if (bits == 16)
        for (size_t i = 0; i < all * cols; i++) {
            const uint16_t v = float_to_bf16(kernel_uniform(0.2f));
            memcpy(codes + 2 * i, &v, 2);
        }
    return (weight_mat){codes, (const uint8_t *)scale, (const uint8_t *)bias, count, rows, cols, bits, group};
}

metal_mat kernel_metal_matrix(const weight_mat *m) {
    return (metal_mat){.codes = DEVICE(m->codes),
                       .scales = DEVICE(m->scales),
                       .biases = DEVICE(m->biases),
                       .count = m->count,
                       .rows = m->rows,
                       .cols = m->cols,
                       .bits = m->bits,
                       .group = m->group,
                       .groups = (uint32_t)weight_row_groups(m)};
}

/* Under the label of its array, where it is one. */
static simt_binding bound(const kernel_out *out) {
    for (size_t i = 0; i < n_blocks; i++)
        if (blocks[i].data == out->data) return blocks[i];
    return (simt_binding){out->data, out->bytes, "out"};
}

void kernel_run(const char *name, const void *args, size_t args_bytes, const metal_step *step, const uint32_t grid[3], uint32_t threads,
                size_t threadgroup_bytes, const kernel_out *out, size_t n_out) {
    metal_step t = *step;
    simt_dispatch d = {.kernel = name,
                       .threads = {threads, 1, 1},
                       .threadgroups = {grid[0], grid[1], grid[2]},
                       .reachable = blocks,
                       .n_reachable = n_blocks};
    d.buffer[0] = (simt_binding){.data = (void *)(uintptr_t)args, .bytes = args_bytes, .label = "args"};
    d.buffer[1] = (simt_binding){.data = &t, .bytes = sizeof t, .label = "step"};
    for (size_t i = 0; i < n_out; i++) d.buffer[2 + i] = bound(&out[i]);
    d.threadgroup_bytes[0] = threadgroup_bytes;
    if (!simt_run_both(&d)) {
        print_error("%s\n", simt_error());
        fail();
    }
}

void kernel_close(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        print_error("%s: %.9g, expected %.9g within %.3g\n", what, got, want, tolerance);
        fail();
    }
}

uint64_t kernel_loads(const void *data) {
    uint64_t bytes = 0;
#ifdef WATCHED
    uint32_t n;
    const simt_traffic *t = simt_watch_buffers(&n);
    for (size_t b = 0; b < n_blocks; b++)
        for (uint32_t i = 0; i < n && blocks[b].data == data; i++)
            if (!strcmp(t[i].label, blocks[b].label)) bytes += t[i].loads;
#else
    (void)data;
#endif
    return bytes;
}

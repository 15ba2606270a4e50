/* measure_open.c: time and memory of opening model folders, printed, and held against the promise: with a warm page cache less than
 * 2 seconds and less than 200 MB of private memory, since nothing is copied.
 *
 * usage: measure_open DIR…     (tools/make_checkpoint.py makes one of the real model's size)
 * Memory is not measured where the system has no /proc/self/smaps_rollup. */
#include <stdio.h>

#include "base/clock.h"
#include "support/private_memory.h"
#include "weights/weights.h"

static const double max_ms = 2000;
enum { MAX_PRIVATE_KB = 200000 };

int main(int argc, char **argv) {
    int failures = 0;
    if (argc < 2) return fprintf(stderr, "usage: %s DIR…\n", argv[0]), 2;
    for (int i = 1; i < argc; i++) {
        calla_error err;
        weights *w;
        const long before_kb = private_memory_kb();
        const uint64_t start = clock_now_ns();
        if (weights_open(argv[i], &w, &err)) return fprintf(stderr, "%s\n", err.message), 1;
        const double ms = (double)(clock_now_ns() - start) / 1e6;
        const long kb = private_memory_kb() - before_kb;
        printf("%s: %.2f GB opened in %.1f ms, private memory grew by %ld KB\n", argv[i], (double)w->text_bytes / 1e9, ms, kb);
        if (ms > max_ms || kb > MAX_PRIVATE_KB) failures++;
        weights_close(w);
    }
    return failures ? 1 : 0;
}

/* measure_open.c: time and memory of opening model folders, printed, and held against the promise: with a warm page cache less than
 * 2 seconds and less than 200 MB of private memory, since nothing is copied.
 *
 * usage: measure_open DIR…     (tools/make_checkpoint.py makes one of the real model's size)
 * Memory comes from /proc/self/smaps_rollup and is not measured where that does not exist. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "weights/weights.h"

enum { MAX_MS = 2000, MAX_PRIVATE_KB = 200000 };

/* KB of this process in memory that no other shares, or -1. */
static long private_kb(void) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long sum = 0, kb;
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) {
        /* Pages of a mapped file that no other process has mapped count as Private_Clean, although they are the page cache's. */
        if (sscanf(line, "Private_Dirty: %ld", &kb) == 1 || sscanf(line, "Private_Clean: %ld", &kb) == 1) sum += kb;
    }
    fclose(f);
    return sum;
}

int main(int argc, char **argv) {
    int failures = 0;
    if (argc < 2) return fprintf(stderr, "usage: %s DIR…\n", argv[0]), 2;
    for (int i = 1; i < argc; i++) {
        calla_error err;
        weights *w;
        const long before_kb = private_kb();
        const uint64_t start = clock_now_ns();
        if (weights_open(argv[i], &w, &err)) return fprintf(stderr, "%s\n", err.message), 1;
        const double ms = (double)(clock_now_ns() - start) / 1e6;
        const long kb = private_kb() - before_kb;
        printf("%s: %.2f GB opened in %.1f ms, private memory grew by %ld KB\n", argv[i], (double)w->text_bytes / 1e9, ms, kb);
        if (ms > MAX_MS || kb > MAX_PRIVATE_KB) failures++;
        weights_close(w);
    }
    return failures ? 1 : 0;
}

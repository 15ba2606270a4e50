/* driver.c: runs a fuzz target as a regression test: every file of a corpus folder, then seeded random mutations of them for a bounded
 * number of runs.  A crash, a sanitizer report or a hang (the test's time limit) is the failure.
 *
 * usage: regress_NAME CORPUS_DIR [RUNS [SEED]] */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_SEEDS = 1024, MAX_SEED_BYTES = 1 << 20 };

static struct {
    char *data;
    size_t n;
} seed[MAX_SEEDS];
static size_t seeds;
static uint64_t state;

static uint64_t next(void) { return random_mix(state += 0x9E3779B97F4A7C15u); }

static void run(const uint8_t *data, size_t n) {
    uint8_t *exact = malloc(n ? n : 1); /* an allocation of exactly n bytes, so that reading past the end is seen */
    if (!exact) abort();
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static size_t mutate(const char *from, size_t n, uint8_t *out, size_t cap) {
    if (n > cap) n = cap;
    memcpy(out, from, n);
    for (uint64_t edits = 1 + next() % 4; edits--;) {
        size_t at = n ? next() % n : 0;
        switch (next() % 6) {
        case 0:
            if (n) out[at] = (uint8_t)next();
            break;
        case 1:
            if (n) out[at] ^= (uint8_t)(1u << next() % 8);
            break;
        case 2:
            if (n) n = at;
            break;
        case 3:
            if (n && n < cap) {
                memmove(out + at + 1, out + at, n - at);
                out[at] = (uint8_t)next();
                n++;
            }
            break;
        case 4:
            if (n) {
                memmove(out + at, out + at + 1, n - at - 1);
                n--;
            }
            break;
        default: { /* a piece of another seed */
            size_t other = next() % seeds, len = seed[other].n ? 1 + next() % (seed[other].n < 32 ? seed[other].n : 32) : 0;
            size_t src = len ? next() % (seed[other].n - len + 1) : 0;
            if (len > n - at) len = n - at;
            memcpy(out + at, seed[other].data + src, len);
        }
        }
    }
    return n;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s CORPUS_DIR [RUNS [SEED]]\n", argv[0]), 2;
    unsigned long runs = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    unsigned long long first_seed = state;
    DIR *dir = opendir(argv[1]);
    if (!dir) return fprintf(stderr, "%s: cannot open the corpus\n", argv[1]), 1;
    for (struct dirent *e; (e = readdir(dir)) && seeds < MAX_SEEDS;) {
        if (e->d_name[0] == '.') continue;
        calla_error err;
        char *path = path_join(argv[1], e->d_name);
        if (!path || file_read(path, MAX_SEED_BYTES, &seed[seeds].data, &seed[seeds].n, &err))
            return fprintf(stderr, "%s\n", err.message), 1;
        mem_free(path);
        seeds++;
    }
    closedir(dir);
    if (!seeds) return fprintf(stderr, "%s: an empty corpus tests nothing\n", argv[1]), 1;
    for (size_t i = 0; i < seeds; i++) run((const uint8_t *)seed[i].data, seed[i].n);
    static uint8_t out[MAX_SEED_BYTES];
    for (unsigned long i = 0; i < runs; i++) {
        const size_t pick = next() % seeds;
        run(out, mutate(seed[pick].data, seed[pick].n, out, sizeof out));
    }
    printf("%zu seeds and %lu mutations, random seed %llu\n", seeds, runs, first_seed);
    for (size_t i = 0; i < seeds; i++) mem_free(seed[i].data);
    return 0;
}

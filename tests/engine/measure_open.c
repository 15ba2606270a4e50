/* measure_open.c: time and memory of opening whole engines (weights, tokenizer, plan), printed, and held against the promise: with a warm
 * page cache less than 2 seconds and less than 200 MB of private memory, since no weight is copied.
 *
 * usage: measure_open DIR…     (tools/make_checkpoint.py makes one of the real model's size; tests/text/tokenizer.json and
 *                               tokenizer.pairs.json of the build folder are the real tokenizer's two forms) */
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/memory.h"
#include "support/private_memory.h"

static const double max_ms = 2000;
enum { MAX_PRIVATE_KB = 200000 };

int main(int argc, char **argv) {
    int failures = 0;
    if (argc < 2) return fprintf(stderr, "usage: %s DIR…\n", argv[0]), 2;
    for (int i = 1; i < argc; i++) {
        calla_error err;
        calla_engine *e;
        calla_engine_info info;
        char *tokenizer = path_join(argv[i], "tokenizer.json");
        const calla_engine_options options = {.model_dir = argv[i], .ids_only = !tokenizer || access(tokenizer, R_OK)};
        mem_free(tokenizer);
        const long before_kb = private_memory_kb();
        const uint64_t start = clock_now_ns();
        if (calla_engine_open(&options, &e, &err)) return fprintf(stderr, "%s\n", err.message), 1;
        const double ms = (double)(clock_now_ns() - start) / 1e6;
        const long kb = private_memory_kb() - before_kb;
        calla_engine_get_info(e, &info);
        printf("%s: %.2f GB%s opened in %.1f ms, private memory grew by %ld KB\n", argv[i], (double)info.weights_bytes / 1e9,
               options.ids_only ? "" : " and the tokenizer", ms, kb);
        if (ms > max_ms || kb > MAX_PRIVATE_KB) failures++;
        calla_engine_close(e);
    }
    return failures ? 1 : 0;
}

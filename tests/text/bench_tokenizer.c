/* bench_tokenizer.c: how long a tokenizer takes to open, what memory it keeps, and how fast it encodes.
 *
 * usage: bench_tokenizer MODEL_DIR TEXT…
 * Each text is repeated to about 4 MB.  Figures are the best of several runs, in time of this process (docs/speed.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/memory.h"
#include "text/tokenizer.h"

enum { RUNS = 5, TEXT_BYTES = 4 << 20 };

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Private pages of this process, in MB; 0 where /proc has none. */
static double private_mb(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    double kb = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "RssAnon:", 8) == 0) kb = strtod(line + 8, NULL);
    }
    if (f) fclose(f);
    return kb / 1024;
}

static void fail(const calla_error *err) {
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void encode(const tokenizer *t, const char *name, const char *text, size_t n) {
    double best = 1e9;
    size_t n_ids = 0;
    for (int i = 0; i < RUNS; i++) {
        calla_ids ids;
        calla_error err;
        const double start = cpu_seconds();
        if (tokenizer_encode(t, text, n, (text_origin){0}, &ids, &err)) fail(&err);
        const double seconds = cpu_seconds() - start;
        if (seconds < best) best = seconds;
        n_ids = ids.n;
        mem_free(ids.ids);
    }
    printf("%-32s %8.3f s  %7.1f MB/s  %5.2f bytes a token\n", name, best, 1e-6 * (double)n / best, (double)n / (double)n_ids);
}

static void encode_repeated(const tokenizer *t, const char *name, const char *piece, size_t n_piece) {
    char *text = mem_alloc(TEXT_BYTES);
    if (!text) exit(1);
    size_t n = 0;
    for (; n + n_piece <= TEXT_BYTES; n += n_piece) memcpy(text + n, piece, n_piece);
    encode(t, name, text, n);
    mem_free(text);
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s MODEL_DIR TEXT…\n", argv[0]), 2;
    calla_error err;
    tokenizer *t = NULL;
    double best = 1e9;
    const double before = private_mb();
    for (int i = 0; i < RUNS; i++) {
        tokenizer_close(t);
        const double start = cpu_seconds();
        if (tokenizer_open(argv[1], &t, &err)) fail(&err);
        const double seconds = cpu_seconds() - start;
        if (seconds < best) best = seconds;
    }
    printf("%-32s %8.3f s  %7.1f MB kept\n", "open", best, private_mb() - before);
    for (int i = 2; i < argc; i++) {
        char *text;
        size_t n;
        if (file_read(argv[i], TEXT_BYTES, &text, &n, &err)) fail(&err);
        if (n) encode_repeated(t, argv[i], text, n);
        mem_free(text);
    }
    encode_repeated(t, "one letter", "a", 1);
    encode_repeated(t, "one space", " ", 1);
    encode_repeated(t, "random-like letters", "qxzjvkwpyfbghmcdlunrsioaet", 26);
    tokenizer_close(t);
    return 0;
}

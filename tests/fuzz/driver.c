/* driver.c: runs a fuzz target as a regression test: every file of a corpus folder, then seeded random mutations of them for a bounded
 * number of runs.  A crash, a sanitizer report or a hang (the test's time limit) is the failure.
 *
 * Mutations put in the words of DICTIONARY, a file in libFuzzer's form ("text" with \xNN, a line each).
 *
 * usage: regress_NAME CORPUS_DIR DICTIONARY [RUNS [SEED]] */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_SEEDS = 1024, MAX_SEED_BYTES = 1 << 20, MAX_WORDS = 256, MAX_WORD_BYTES = 64 };

static struct {
    char *data;
    size_t n;
} seed[MAX_SEEDS];
static size_t seeds;
static struct {
    uint8_t data[MAX_WORD_BYTES];
    size_t n;
} word[MAX_WORDS];
static size_t words;
static uint64_t state;

static uint64_t next(void) { return random_mix(state += 0x9E3779B97F4A7C15u); }

static void run(const uint8_t *data, size_t n) {
    uint8_t *exact = malloc(n ? n : 1); /* an allocation of exactly n bytes, so that reading past the end is seen */
    if (!exact) abort();
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

/* One line: "text" with \\, \" and \xNN. */
static bool read_word(const char *at, const char *end) {
    uint8_t *out = word[words].data;
    size_t n = 0;
    for (at++; at < end && *at != '"' && n < MAX_WORD_BYTES; n++) {
        unsigned byte = (uint8_t)*at++;
        if (byte == '\\') {
            if (end - at >= 3 && *at == 'x' && sscanf(at, "x%2x", &byte) == 1)
                at += 3;
            else
                byte = (uint8_t)*at++;
        }
        out[n] = (uint8_t)byte;
    }
    if (at >= end || *at != '"' || !n) return false;
    word[words++].n = n;
    return true;
}

static bool read_dictionary(const char *path) {
    char *text;
    size_t n;
    calla_error err;
    if (file_read(path, MAX_SEED_BYTES, &text, &n, &err)) return fprintf(stderr, "%s\n", err.message), false;
    bool good = true;
    size_t line = 1;
    for (const char *at = text, *end; at < text + n && good; at = end + 1, line++) {
        end = memchr(at, '\n', (size_t)(text + n - at));
        if (!end) end = text + n;
        if (*at == '#' || at == end) continue;
        good = words < MAX_WORDS && *at == '"' && read_word(at, end);
        if (!good) fprintf(stderr, "%s, line %zu: not a word of a dictionary\n", path, line);
    }
    mem_free(text);
    return good;
}

static size_t mutate(const char *from, size_t n, uint8_t *out, size_t cap) {
    if (n > cap) n = cap;
    memcpy(out, from, n);
    for (uint64_t edits = 1 + next() % 4; edits--;) {
        size_t at = n ? next() % n : 0;
        switch (next() % 8) {
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
        case 6:
        case 7: { /* a word, put in or over what is there */
            const size_t pick = next() % words, len = word[pick].n, over = next() % 2 && n - at >= len ? len : 0;
            if (n - over + len > cap) break;
            memmove(out + at + len, out + at + over, n - at - over);
            memcpy(out + at, word[pick].data, len);
            n += len - over;
            break;
        }
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
    if (argc < 3) return fprintf(stderr, "usage: %s CORPUS_DIR DICTIONARY [RUNS [SEED]]\n", argv[0]), 2;
    if (!read_dictionary(argv[2])) return 1;
    unsigned long runs = argc > 3 ? strtoul(argv[3], NULL, 10) : 2000;
    state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
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
    if (!seeds || !words) return fprintf(stderr, "%s: an empty corpus or dictionary tests nothing\n", argv[1]), 1;
    for (size_t i = 0; i < seeds; i++) run((const uint8_t *)seed[i].data, seed[i].n);
    static uint8_t out[MAX_SEED_BYTES];
    for (unsigned long i = 0; i < runs; i++) {
        const size_t pick = next() % seeds;
        run(out, mutate(seed[pick].data, seed[pick].n, out, sizeof out));
    }
    printf("%zu seeds, %zu words and %lu mutations, random seed %llu\n", seeds, words, runs, first_seed);
    for (size_t i = 0; i < seeds; i++) mem_free(seed[i].data);
    return 0;
}

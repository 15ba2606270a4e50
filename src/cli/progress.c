/* progress.c: see progress.h. */
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERASE_TO_END "\033[K"

enum { BAR = 30 };

void progress_init(progress *p) {
    const char *term = getenv("TERM");
    bool can_erase = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    *p = (progress){.out = can_erase ? stderr : NULL};
}

/* counts: "1024 of 3000" */
static void show(progress *p, const char *what, uint64_t done, uint64_t total, const char *counts) {
    char bar[BAR + 1];
    size_t full = (size_t)(done * BAR / total);
    if (full > BAR) full = BAR;
    memset(bar, '#', full);
    memset(bar + full, '.', BAR - full);
    bar[BAR] = 0;
    fprintf(p->out, "\r%s [%s] %s" ERASE_TO_END, what, bar, counts);
    fflush(p->out);
    p->shown = true;
}

void progress_show(progress *p, const char *what, uint64_t done, uint64_t total) {
    if (!p->out || !total) return;
    char counts[64];
    snprintf(counts, sizeof counts, "%llu of %llu", (unsigned long long)done, (unsigned long long)total);
    show(p, what, done, total, counts);
}

void progress_show_bytes(progress *p, const char *what, uint64_t done, uint64_t total) {
    if (!p->out || !total) return;
    char counts[64];
    snprintf(counts, sizeof counts, "%.1f of %.1f GB", (double)done / 1e9, (double)total / 1e9);
    show(p, what, done, total, counts);
}

void progress_clear(progress *p) {
    if (!p->shown) return;
    fputs("\r" ERASE_TO_END, p->out);
    fflush(p->out);
    p->shown = false;
}

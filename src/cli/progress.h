/* progress.h: a bar on the terminal while something long is under way.  It lives on standard error, only where that is a terminal, and
 * leaves nothing behind. */
#ifndef CALLA_CLI_PROGRESS_H
#define CALLA_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress {
    FILE *out; /* NULL: not on a terminal, nothing is shown */
    bool shown;
} progress;

void progress_init(progress *p);
/* "what [####....] 1024 of 3000", over what was shown before. */
void progress_show(progress *p, const char *what, uint64_t done, uint64_t total);
/* The same of bytes: "what [####....] 1.2 of 19.5 GB". */
void progress_show_bytes(progress *p, const char *what, uint64_t done, uint64_t total);
/* Takes it away: what is printed next begins at the start of the line. */
void progress_clear(progress *p);

#endif

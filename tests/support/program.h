/* program.h: what programs that measure, outside cmocka, do about failures: they say what it was and end with status 2. */
#ifndef CALLA_TESTS_PROGRAM_H
#define CALLA_TESTS_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include "calla.h"

/* n zeroed elements of `size` bytes, the caller's to free. */
static inline void *take(size_t n, size_t size) {
    void *p = calloc(n, size);
    if (!p) fprintf(stderr, "out of memory\n"), exit(2);
    return p;
}

static inline void must(calla_status status, const calla_error *err) {
    if (status) fprintf(stderr, "%s: %s\n", calla_status_name(status), err->message), exit(2);
}

#endif

/* private_memory.c: see private_memory.h. */
#include "support/private_memory.h"

#include <stdio.h>

long private_memory_kb(void) {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long sum = 0, kb;
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "Private_Clean: %ld", &kb) == 1 || sscanf(line, "Private_Dirty: %ld", &kb) == 1) sum += kb;
    }
    fclose(f);
    return sum;
}

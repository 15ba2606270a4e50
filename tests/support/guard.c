/* guard.c: see guard.h. */
#include "support/guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BLOCKS = 256 };

static struct block {
    void *start;
    size_t bytes;
} blocks[MAX_BLOCKS];
static size_t n_blocks;

void *guard_alloc(size_t bytes, guard_side side) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page, all = inner + 2 * page;
    uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || n_blocks == MAX_BLOCKS) abort();
    if (mprotect(p, page, PROT_NONE) || mprotect(p + page + inner, page, PROT_NONE)) abort();
    blocks[n_blocks++] = (struct block){p, all};
    return side == GUARD_AFTER ? p + page + inner - bytes : p + page;
}

void guard_free_all(void) {
    while (n_blocks) {
        n_blocks--;
        munmap(blocks[n_blocks].start, blocks[n_blocks].bytes);
    }
}

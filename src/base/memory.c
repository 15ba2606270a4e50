/* memory.c: see memory.h. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static mem_fail_fn fail_fn;
static void *fail_user;
static atomic_uint_least64_t allocation_count;

void mem_set_failure(mem_fail_fn fail, void *user) {
    fail_user = user;
    fail_fn = fail;
}

uint64_t mem_allocations(void) { return atomic_load(&allocation_count); }

static int fails(void) {
    uint64_t n = atomic_fetch_add_explicit(&allocation_count, 1, memory_order_relaxed);
    return fail_fn && fail_fn(fail_user, n);
}

void *mem_alloc(size_t bytes) { return fails() ? NULL : malloc(bytes ? bytes : 1); }

void *mem_calloc(size_t count, size_t bytes) {
    if (fails()) return NULL;
    return count && bytes ? calloc(count, bytes) : calloc(1, 1);
}

void *mem_array(size_t count, size_t bytes) {
    size_t n;
    return __builtin_mul_overflow(count, bytes, &n) ? NULL : mem_alloc(n);
}

void *mem_realloc(void *p, size_t bytes) { return fails() ? NULL : realloc(p, bytes ? bytes : 1); }

void mem_free(void *p) { free(p); }

char *mem_strndup(const char *s, size_t n) {
    char *p = n == SIZE_MAX ? NULL : mem_alloc(n + 1);
    if (!p) return NULL;
    if (n) memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *mem_strdup(const char *s) { return mem_strndup(s, strlen(s)); }

enum { LARGE = 4 << 20 };

void *mem_map(size_t bytes) {
    if (fails()) return NULL;
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    /* a hint: where processors translate addresses in two steps, each small page that is met costs a walk through both tables */
    if (bytes >= LARGE) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

void mem_unmap(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

int mem_grow(void *items, size_t *cap, size_t need, size_t size, size_t max) {
    if (need <= *cap) return 0;
    if (need > max) return -1;
    size_t n = *cap < 8 ? 8 : *cap;
    while (n < need) n = n > max / 2 ? max : n * 2;
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return -1;
    void *old, *p;
    memcpy(&old, items, sizeof old);
    p = mem_realloc(old, bytes);
    if (!p) return -1;
    memcpy(items, &p, sizeof p);
    *cap = n;
    return 0;
}

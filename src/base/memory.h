/* memory.h: every allocation of calla's own code goes through here, so that tests can make any of them fail.
 * Sizes are checked for overflow.  All functions may be called from any thread. */
#ifndef CALLA_BASE_MEMORY_H
#define CALLA_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);                /* not zeroed; NULL when out of memory; 0 bytes is a valid request */
void *mem_calloc(size_t count, size_t bytes); /* zeroed; NULL when count·bytes overflows */
void *mem_array(size_t count, size_t bytes);  /* not zeroed; NULL when count·bytes overflows */
void *mem_realloc(void *p, size_t bytes);     /* as realloc; on failure p stays valid */
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n); /* copies n bytes and adds a NUL */

/* Large zero-filled memory straight from the system, page-aligned; untouched pages cost nothing. */
void *mem_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

/* Grows *items (count elements of `size` bytes, capacity *cap) so that `need` fit, doubling, to at most max elements.
 * 0 on success, -1 out of memory or past max; *items stays valid. */
int mem_grow(void *items, size_t *cap, size_t need, size_t size, size_t max);

/* Test hook: asked before each allocation with its number (from 0); true makes it fail.  NULL removes it. */
typedef int (*mem_fail_fn)(void *user, uint64_t number);
void mem_set_failure(mem_fail_fn fail, void *user);
uint64_t mem_allocations(void); /* how many were asked for since the start */

#endif

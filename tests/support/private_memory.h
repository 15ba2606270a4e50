/* private_memory.h: what this process holds in memory that no other process shares. */
#ifndef CALLA_TESTS_PRIVATE_MEMORY_H
#define CALLA_TESTS_PRIVATE_MEMORY_H

/* KB, from /proc/self/smaps_rollup; -1 where that does not exist.  Pages of a mapped file that no other process has mapped count,
 * although they are the page cache's. */
long private_memory_kb(void);

#endif

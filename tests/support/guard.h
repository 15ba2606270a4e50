/* guard.h: memory that ends (or begins) at a page that may not be touched, so that reading or writing one byte too far is seen. */
#ifndef CALLA_TESTS_GUARD_H
#define CALLA_TESTS_GUARD_H

#include <stddef.h>

typedef enum guard_side { GUARD_AFTER, GUARD_BEFORE } guard_side;

/* `bytes` of memory with the guard directly on one side; freed by guard_free_all. */
void *guard_alloc(size_t bytes, guard_side side);
void guard_free_all(void);

#endif

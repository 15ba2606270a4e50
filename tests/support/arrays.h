/* arrays.h: recorded reference arrays (safetensors files, in which arrays may be empty).  A broken file ends the test. */
#ifndef CALLA_TESTS_ARRAYS_H
#define CALLA_TESTS_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct arrays arrays;

arrays *arrays_open(const char *path);
void arrays_close(arrays *a);

bool arrays_has(const arrays *a, const char *name);
/* The array's elements as a copy (free), converted to float or int32; *n elements in all. */
float *arrays_f32(const arrays *a, const char *name, size_t *n);
int32_t *arrays_i32(const arrays *a, const char *name, size_t *n);

/* Path of a file below tests/data or models (environment CALLA_TEST_DATA, CALLA_MODELS); a static buffer per call, 8 in turn. */
const char *test_data(const char *relative);
const char *test_models(const char *relative);

/* Whether tests should take fewer and shorter prompts (CALLA_TEST_SHORT, set in sanitizer builds). */
bool test_short(void);

#endif

/* unit.h: what every unit test includes: cmocka with the headers that it wants before it. */
#ifndef CALLA_TESTS_UNIT_H
#define CALLA_TESTS_UNIT_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif

/* form_walk.h: random ways through a form, for tests and measurements. */
#ifndef CALLA_TESTS_FORM_WALK_H
#define CALLA_TESTS_FORM_WALK_H

#include "text/text.h"

/* 0 … n-1. */
uint64_t walk_roll(uint64_t *dice, uint64_t n);
/* A token of the mask.  hurry: one that may bring the end nearer.  -1: the mask allows nothing. */
int32_t walk_choose(const calla_text *text, const uint32_t *mask, uint64_t *dice, bool hurry);

#endif

/* stripes.c: see stripes.h. */
#include "stripes.h"

#include <string.h>

#include "unit.h"

uint32_t stripes_rest_at(const stripes *s, uint32_t i) { return (s->rest + i % 2) % s->modulus; }

static const uint32_t *stripes_mask(void *user) {
    stripes *s = user;
    s->asked++;
    if (s->took >= s->free_after) return NULL;
    memset(s->mask, 0, sizeof s->mask);
    for (uint32_t id = stripes_rest_at(s, s->took); id < s->vocabulary; id += s->modulus) s->mask[id / 32] |= 1u << id % 32;
    return s->mask;
}

static void stripes_took(void *user, int32_t id) {
    stripes *s = user;
    s->ids[s->took++] = id;
}

calla_guide stripes_guide(stripes *s, uint32_t vocabulary, uint32_t modulus, uint32_t rest) {
    assert_true(vocabulary <= STRIPES_VOCABULARY);
    *s = (stripes){.vocabulary = vocabulary, .modulus = modulus, .rest = rest, .free_after = UINT32_MAX};
    return (calla_guide){.mask = stripes_mask, .took = stripes_took, .user = s};
}

void assert_guided(const stripes *s, const transcript *t) {
    assert_int_equal(s->took, t->n);
    assert_memory_equal(s->ids, t->ids, t->n * sizeof *t->ids);
    for (uint32_t i = 0; i < t->n; i++)
        if (i < s->free_after) assert_int_equal((uint32_t)t->ids[i] % s->modulus, stripes_rest_at(s, i));
}

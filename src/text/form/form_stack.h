/* form_stack.h: configurations of a program: where it stands, with stacks that share what they have in common.
 *
 * A stack is the number of its topmost frame.  Frames are made once for each content (equal stacks have equal numbers) and live in an
 * arena, which its owner thins out now and then to what is still needed.  One thread at a time.  Knows nothing of tokens. */
#ifndef CALLA_TEXT_FORM_STACK_H
#define CALLA_TEXT_FORM_STACK_H

#include "text/form/form_cache.h"
#include "text/form/form_program.h"

typedef struct form_frame {
    uint64_t count; /* of the machine that is returned to */
    form_hash hash; /* of this frame and all below, see form_arena.reach */
    uint32_t state; /* to return to */
    uint32_t below; /* 0: nothing, this is the lowest */
    uint32_t depth; /* frames up to and with this one */
    uint32_t moved; /* scratch of form_arena_thin */
} form_frame;

/* The bounds that a machine's INC and MIN guards compare its count with. */
typedef struct form_bound {
    bool counts;        /* it has such guards, and no more than two bounds; else its count is a set of bits, or must be taken as it is */
    uint64_t low, high; /* the lesser and the larger bound */
} form_bound;

/* Frame 0 is no frame: the empty stack. */
typedef struct form_arena {
    const form_program *program;
    const form_bound *bounds; /* [n_machines], for hashes */
    uint32_t reach;           /* in hashes, counts further than this from a guard's bound are taken as equal */
    form_frame *frames;       /* [n] */
    uint32_t *slots;          /* [1 << bits] frames by content, 0: free */
    size_t n, cap;
    unsigned bits;
} form_arena;

typedef struct form_config {
    uint64_t count;
    uint32_t state;
    uint32_t stack;
} form_config;

/* What is certain of the machines, for form_arena.bounds.  Owned by the caller; NULL: out of memory. */
form_bound *form_bounds_make(const form_program *p);

/* false: out of memory. */
bool form_arena_open(form_arena *a, const form_program *p, const form_bound *bounds, uint32_t reach);
void form_arena_close(form_arena *a);
/* The stack with one more frame, or 0: out of memory, or more than FORM_MAX_ARENA. */
uint32_t form_arena_push(form_arena *a, uint32_t state, uint64_t count, uint32_t below);
/* Forgets all frames but those of configs [n], whose stacks get new numbers.  Allocates nothing. */
void form_arena_thin(form_arena *a, form_config *configs, size_t n);
/* The same in any arena. */
form_hash form_config_hash(const form_arena *a, const form_config *c);

enum {
    FORM_MAX_ARENA = 1 << 18, /* frames */
    FORM_MAX_READ = 256,      /* configurations that a byte leads to: more are left out, which is sound */
    FORM_MAX_CONFIGS = 1024   /* with what those reach without reading */
};

/* Sets of configurations, one above the other, as the bytes of a token lead from one to the next.  A set begins with those that the last
 * byte led to; form_sets_close adds all that they reach without reading. */
typedef struct form_level {
    size_t begin, end;
    size_t read_end; /* [begin, read_end) are those that the last byte led to, once it is closed */
    bool closed;
} form_level;

typedef struct form_sets {
    form_arena *arena;
    form_config *configs; /* [levels[top].end] */
    form_level *levels;   /* [max_levels] */
    size_t cap, max_levels, top;
    bool dropped; /* some configuration was left out; sticks until the caller clears it */
    bool failed;  /* and for want of memory */
} form_sets;

/* Room for sets of n_levels levels; the lowest two need no further memory.  false: out of memory. */
bool form_sets_open(form_sets *s, form_arena *a, size_t n_levels);
void form_sets_free(form_sets *s);
/* The lowest set becomes configs [n], n <= FORM_MAX_CONFIGS. */
void form_sets_begin(form_sets *s, const form_config *configs, size_t n);
/* Adds what the topmost set reaches without reading. */
void form_sets_close(form_sets *s);
/* From the set of `level` (those above it are forgotten), on a symbol, to level + 1.  false: nothing is there. */
bool form_sets_step(form_sets *s, size_t level, uint32_t symbol);

#endif

/* form_local.h: what is known of a token from one state of a wide machine alone, whatever the stack is: nearly all tokens stay within a
 * string or leave it, and masks of all strings in all places share that.
 *
 * Immutable once made; a store keeps those of a program's own machines, and one for all programs those of the common machines. */
#ifndef CALLA_TEXT_FORM_LOCAL_H
#define CALLA_TEXT_FORM_LOCAL_H

#include <pthread.h>

#include "text/form/form_program.h"
#include "text/form/form_trie.h"

/* What is left of tokens behind the byte that leaves the machine, as a trie in preorder like form_trie's: each rest is tried once. */
typedef struct form_rest {
    uint32_t skip;
    uint32_t first, n; /* leaving[first .. first + n): tokens whose rest ends here */
    uint16_t depth;
    uint8_t byte;
} form_rest;

typedef struct form_leaving {
    int32_t token;
    uint32_t chars; /* characters before it leaves, in a counted machine (INC guards) or a text */
} form_leaving;

/* The same as it was found: token leaves behind the trie's node. */
typedef struct form_left_at {
    uint32_t node;
    int32_t token;
    uint32_t chars;
} form_left_at;

/* Tokens by how many characters they have: those with c characters are tokens[at[c] .. at[c + 1]). */
typedef struct form_by_chars {
    int32_t *tokens;
    uint32_t *at; /* [n_at] */
    uint32_t n_at;
} form_by_chars;

typedef struct form_local {
    /* Tokens behind which the machine is still the same: as bits, or where they are few, as a list. */
    uint32_t *stay; /* [n_words], or NULL */
    int32_t *few;   /* [n_few] */
    uint32_t n_few;
    form_by_chars open, ended; /* of a counted machine: those of them that passed no MIN guard, and those that did */
    form_rest *rests;          /* [n_rests] */
    form_leaving *leaving;
    form_left_at *left; /* [n_left] in the order of nodes; the same tokens as leaving */
    uint32_t n_rests, n_leaving;
    size_t n_left, cap_left;
    size_t bytes;
    size_t n_visited; /* nodes of the trie that it took */
} form_local;

typedef struct form_locals {
    pthread_mutex_t mutex;
    form_local **of; /* [n] */
    size_t n;
    size_t bytes, max_bytes; /* past it nothing more is kept */
} form_locals;

bool form_locals_open(form_locals *store, size_t n, size_t max_bytes);
void form_locals_close(form_locals *store);

enum { FORM_COMMON_STATES = 256 }; /* of a common machine, as far as they are shared */

/* What locals are made of.  All of it outlives the locals. */
typedef struct form_local_maker {
    const form_program *program;
    const form_trie *trie;
    const tokenizer *tokenizer;
    const uint32_t *hubs;      /* [n_machines] see form_hubs_make */
    form_locals *own, *common; /* own: n = 4 · n_states; common: n = 4 · FORM_COMMONS · FORM_COMMON_STATES */
} form_local_maker;

/* Of each wide machine the state that most bytes do not leave (the inside of a string), or FORM_NONE.  The locals of its other states are
 * made of what differs from that one's.  Owned by the caller; NULL: out of memory. */
uint32_t *form_hubs_make(const form_program *p);

/* The local of a state of a wide or counted machine.  rests: what leaves is wanted as well, since there is something to return to.  NULL:
 * out of memory, or the machine is no case for this.  *owned: it is the caller's, to be freed. */
const form_local *form_local_get(const form_local_maker *m, uint32_t state, bool rests, form_local **owned);
void form_local_free(form_local *local); /* NULL is allowed */

#endif

/* form_nfa.h: automata as they are put together: nodes with edges on ranges of symbols and edges that read nothing.
 *
 * A part is a piece with one entry and one exit, Thompson's construction: nothing enters `from` and nothing leaves `to` until the part is
 * joined with another, so parts may be joined in any way, but each only once.  After a failure (form_work) parts are {0, 0}. */
#ifndef CALLA_TEXT_FORM_FORM_NFA_H
#define CALLA_TEXT_FORM_FORM_NFA_H

#include "text/form/form_program.h"
#include "text/form/form_work.h"

/* Symbols above FORM_SYMBOLS: to the automata, guards and calls are letters like any other. */
enum { FORM_SYMBOL_GUARD = 1 << 16, FORM_SYMBOL_CALL = 1 << 20 };

/* Edges that read nothing have these in place of a first symbol. */
#define NFA_EMPTY UINT32_MAX           /* always */
#define NFA_AT_BEGIN (UINT32_MAX - 1u) /* only where nothing was read yet: ^ */
#define NFA_AT_END (UINT32_MAX - 2u)   /* only where nothing will be read any more: $ */

typedef struct nfa_edge {
    uint32_t lo, hi; /* symbols, or lo is one of the above */
    uint32_t to;
    uint32_t next; /* edge of the same node + 1, or 0 */
} nfa_edge;

typedef struct form_nfa {
    form_work *work;
    uint32_t *nodes; /* [n_nodes] first edge + 1, or 0 */
    nfa_edge *edges; /* [n_edges] */
    size_t n_nodes, n_edges, cap_nodes, cap_edges;
    bool at_end; /* there is an NFA_AT_END edge */
} form_nfa;

typedef struct nfa_part {
    uint32_t from, to;
} nfa_part;

void form_nfa_free(form_nfa *n);

uint32_t nfa_node(form_nfa *n);
void nfa_join(form_nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
void nfa_skip(form_nfa *n, uint32_t from, uint32_t to); /* an edge that reads nothing */

nfa_part nfa_empty(form_nfa *n);
nfa_part nfa_nothing(form_nfa *n); /* accepts no text at all */
nfa_part nfa_range(form_nfa *n, uint32_t lo, uint32_t hi);
nfa_part nfa_symbol(form_nfa *n, uint32_t symbol);
nfa_part nfa_at(form_nfa *n, uint32_t anchor); /* NFA_AT_BEGIN or NFA_AT_END */
nfa_part nfa_bytes(form_nfa *n, const char *s, size_t length);
nfa_part nfa_text(form_nfa *n, const char *s);
nfa_part nfa_call(form_nfa *n, uint32_t machine);
nfa_part nfa_seq(form_nfa *n, nfa_part a, nfa_part b);
nfa_part nfa_alt(form_nfa *n, nfa_part a, nfa_part b);
nfa_part nfa_star(form_nfa *n, nfa_part a);     /* any number of times */
nfa_part nfa_plus(form_nfa *n, nfa_part a);     /* once or more */
nfa_part nfa_optional(form_nfa *n, nfa_part a); /* once or not */

#endif

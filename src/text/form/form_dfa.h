/* form_dfa.h: deterministic automata over the same symbols as form_nfa.h, and what is computed with them. */
#ifndef CALLA_TEXT_FORM_FORM_DFA_H
#define CALLA_TEXT_FORM_FORM_DFA_H

#include "text/form/form_nfa.h"

typedef struct dfa_edge {
    uint32_t lo, hi, to;
} dfa_edge;

typedef struct dfa_state {
    uint32_t edge, n_edges; /* edges[edge .. edge + n_edges), ascending, not overlapping */
    bool accepts;
} dfa_state;

typedef struct form_dfa {
    dfa_state *states; /* [n_states]; state 0 is the start */
    dfa_edge *edges;
    size_t n_states, n_edges, cap_states, cap_edges;
} form_dfa;

void form_dfa_free(form_dfa *d);
/* The subset construction.  out: empty.  Not all states need lead to acceptance. */
void dfa_from_nfa(const form_nfa *n, nfa_part part, form_dfa *out);

/* What both accept; what a accepts and b does not.  b knows of bytes only: guards, calls and control tokens of a leave it as it is. */
typedef enum dfa_product { DFA_BOTH, DFA_WITHOUT } dfa_product;
void dfa_combine(form_work *w, const form_dfa *a, const form_dfa *b, dfa_product how, form_dfa *out);
/* The same language without states that lead nowhere; a start state remains. */
void dfa_trim(form_work *w, form_dfa *d);
bool dfa_is_empty(const form_dfa *d); /* trimmed: accepts nothing */

/* d as a part of an automaton that is being put together. */
nfa_part nfa_dfa(form_nfa *n, const form_dfa *d);

uint32_t dfa_step(const form_dfa *d, uint32_t state, uint32_t symbol); /* the next state or FORM_NONE */
bool dfa_accepts(const form_dfa *d, const char *s, size_t n);

#endif

/* form_nfa.c: see form_nfa.h. */
#include "text/form/form_nfa.h"

#include <string.h>

#include "base/memory.h"

void form_nfa_free(form_nfa *n) {
    mem_free(n->nodes);
    mem_free(n->edges);
    *n = (form_nfa){0};
}

uint32_t nfa_node(form_nfa *n) {
    if (!form_spend(n->work, 1)) return 0;
    if (n->n_nodes == FORM_WORK_NODES) {
        form_fail_limit(n->work, "states");
        return 0;
    }
    if (!form_grow(n->work, &n->nodes, &n->cap_nodes, n->n_nodes + 1, sizeof *n->nodes)) return 0;
    n->nodes[n->n_nodes] = 0;
    return (uint32_t)n->n_nodes++;
}

void nfa_join(form_nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to) {
    if (!form_spend(n->work, 1)) return;
    if (n->n_edges >= 8 * (size_t)FORM_WORK_NODES) {
        form_fail_limit(n->work, "states");
        return;
    }
    if (!form_grow(n->work, &n->edges, &n->cap_edges, n->n_edges + 1, sizeof *n->edges)) return;
    n->edges[n->n_edges++] = (nfa_edge){.lo = lo, .hi = hi, .to = to, .next = n->nodes[from]};
    n->nodes[from] = (uint32_t)n->n_edges;
    if (lo == NFA_AT_END) n->at_end = true;
}

void nfa_skip(form_nfa *n, uint32_t from, uint32_t to) { nfa_join(n, from, NFA_EMPTY, NFA_EMPTY, to); }

static nfa_part new_part(form_nfa *n) {
    const uint32_t from = nfa_node(n);
    return (nfa_part){from, nfa_node(n)};
}

nfa_part nfa_nothing(form_nfa *n) { return new_part(n); }

nfa_part nfa_range(form_nfa *n, uint32_t lo, uint32_t hi) {
    const nfa_part p = new_part(n);
    nfa_join(n, p.from, lo, hi, p.to);
    return p;
}

nfa_part nfa_empty(form_nfa *n) { return nfa_range(n, NFA_EMPTY, NFA_EMPTY); }
nfa_part nfa_symbol(form_nfa *n, uint32_t symbol) { return nfa_range(n, symbol, symbol); }
nfa_part nfa_at(form_nfa *n, uint32_t anchor) { return nfa_range(n, anchor, anchor); }
nfa_part nfa_call(form_nfa *n, uint32_t machine) { return nfa_symbol(n, FORM_SYMBOL_CALL + machine); }

nfa_part nfa_bytes(form_nfa *n, const char *s, size_t length) {
    nfa_part p;
    p.from = p.to = nfa_node(n);
    for (size_t i = 0; i < length && !form_failed(n->work); i++) {
        const uint32_t next = nfa_node(n);
        nfa_join(n, p.to, (unsigned char)s[i], (unsigned char)s[i], next);
        p.to = next;
    }
    if (p.from != p.to || form_failed(n->work)) return p;
    return nfa_empty(n); /* the entry and the exit of a part are two nodes */
}

nfa_part nfa_text(form_nfa *n, const char *s) { return nfa_bytes(n, s, strlen(s)); }

nfa_part nfa_seq(form_nfa *n, nfa_part a, nfa_part b) {
    nfa_skip(n, a.to, b.from);
    return (nfa_part){a.from, b.to};
}

nfa_part nfa_alt(form_nfa *n, nfa_part a, nfa_part b) {
    const nfa_part p = new_part(n);
    nfa_skip(n, p.from, a.from);
    nfa_skip(n, p.from, b.from);
    nfa_skip(n, a.to, p.to);
    nfa_skip(n, b.to, p.to);
    return p;
}

nfa_part nfa_plus(form_nfa *n, nfa_part a) {
    const nfa_part p = new_part(n);
    nfa_skip(n, p.from, a.from);
    nfa_skip(n, a.to, a.from);
    nfa_skip(n, a.to, p.to);
    return p;
}

nfa_part nfa_optional(form_nfa *n, nfa_part a) {
    const nfa_part p = new_part(n);
    nfa_skip(n, p.from, a.from);
    nfa_skip(n, a.to, p.to);
    nfa_skip(n, p.from, p.to);
    return p;
}

nfa_part nfa_star(form_nfa *n, nfa_part a) { return nfa_optional(n, nfa_plus(n, a)); }

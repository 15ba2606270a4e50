/* form_subsets.c: the subset construction: each state of the deterministic automaton is a set of nodes.
 *
 * A set is kept as the sorted list of those of its nodes that matter: which have an edge that reads something, or accept.  Anchors are
 * edges that read nothing under a condition: ^ is followed only from the start's own set, $ only when it is asked whether a set accepts. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/form/form_dfa.h"
#include "text/form/form_table.h"

typedef struct subsets {
    form_work *work;
    const form_nfa *nfa;
    uint32_t accept;
    form_dfa *out;

    uint32_t *pool; /* all sets, one behind another */
    size_t n_pool, cap_pool;
    struct subset {
        size_t at, n; /* in pool */
    } *sets;          /* [out->n_states] */
    size_t cap_sets;
    form_table table;

    uint32_t *seen; /* [nodes] number of the closure that last met a node */
    uint32_t closure;
    uint32_t *stack, *set; /* [nodes] */
    nfa_edge *edges;       /* scratch: those of a set that read something */
    uint32_t *bounds;      /* scratch: where one of them begins, or one has ended */
    size_t cap_edges, cap_bounds;
} subsets;

static bool same_set(const void *user, uint32_t item, const void *key) {
    const subsets *s = user;
    const struct subset *a = &s->sets[item], *b = key;
    return a->n == b->n && (a->n == 0 || memcmp(s->pool + a->at, s->pool + b->at, a->n * sizeof *s->pool) == 0);
}

static int ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int by_begin(const void *a, const void *b) {
    const nfa_edge *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void visit(subsets *s, uint32_t node, size_t *n_stack) {
    if (s->seen[node] == s->closure) return;
    s->seen[node] = s->closure;
    s->stack[(*n_stack)++] = node;
}

/* Follows what reads nothing from the n_stack nodes on the stack.  s->set: what matters.  true: the accepting node was met. */
static bool close_set(subsets *s, size_t n_stack, bool begin, bool end, size_t *n_set) {
    bool accepts = false;
    *n_set = 0;
    while (n_stack) {
        const uint32_t node = s->stack[--n_stack];
        bool matters = node == s->accept;
        accepts |= matters;
        uint32_t steps = 1;
        for (uint32_t e = s->nfa->nodes[node]; e; e = s->nfa->edges[e - 1].next, steps++) {
            const nfa_edge *edge = &s->nfa->edges[e - 1];
            if (edge->lo == NFA_EMPTY || (edge->lo == NFA_AT_BEGIN && begin) || (edge->lo == NFA_AT_END && end))
                visit(s, edge->to, &n_stack);
            else if (edge->lo != NFA_AT_BEGIN)
                matters = true;
        }
        if (matters) s->set[(*n_set)++] = node;
        if (!form_spend(s->work, steps)) return false;
    }
    return accepts;
}

static void next_closure(subsets *s) { s->closure++; }

/* The state of the nodes on the stack, new if need be. */
static uint32_t set_state(subsets *s, size_t n_stack, bool begin) {
    size_t n;
    bool accepts = close_set(s, n_stack, begin, false, &n);
    if (form_failed(s->work)) return 0;
    qsort(s->set, n, sizeof *s->set, ascending);
    if (!form_grow(s->work, &s->pool, &s->cap_pool, s->n_pool + n + 1, sizeof *s->pool)) return 0;
    if (n) memcpy(s->pool + s->n_pool, s->set, n * sizeof *s->pool);
    const struct subset key = {.at = s->n_pool, .n = n};
    /* the start's own set accepts by other rules than an equal one later, if there are anchors: it is never shared */
    const uint64_t hash = form_hash(s->pool + key.at, n * sizeof *s->pool);
    const uint32_t found = begin ? FORM_NONE : form_table_find(&s->table, hash, same_set, s, &key);
    if (found != FORM_NONE) return found;
    form_dfa *out = s->out;
    if (out->n_states >= FORM_MAX_STATES) {
        form_fail_limit(s->work, "states");
        return 0;
    }
    if (!form_grow(s->work, &out->states, &out->cap_states, out->n_states + 1, sizeof *out->states) ||
        !form_grow(s->work, &s->sets, &s->cap_sets, out->n_states + 1, sizeof *s->sets))
        return 0;
    if (s->nfa->at_end && !accepts) { /* once more, as if nothing followed */
        next_closure(s);
        size_t n_end = 0, ignored;
        for (size_t i = 0; i < n; i++) visit(s, s->pool[key.at + i], &n_end);
        accepts = close_set(s, n_end, begin, true, &ignored);
    }
    const uint32_t state = (uint32_t)out->n_states++;
    out->states[state] = (dfa_state){.accepts = accepts};
    s->sets[state] = key;
    s->n_pool += n;
    if (!begin) form_table_add(s->work, &s->table, hash, state);
    return state;
}

/* The edges of a set that read something, by their beginnings, and the sorted places where what they lead to may change. */
static void collect(subsets *s, const struct subset *set, size_t *n_edges, size_t *n_bounds) {
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++) {
        for (uint32_t e = s->nfa->nodes[s->pool[set->at + i]]; e; e = s->nfa->edges[e - 1].next) {
            const nfa_edge *edge = &s->nfa->edges[e - 1];
            if (edge->lo >= NFA_AT_END) continue;
            if (!form_grow(s->work, &s->edges, &s->cap_edges, n + 1, sizeof *s->edges)) return;
            s->edges[n++] = *edge;
        }
    }
    if (!form_grow(s->work, &s->bounds, &s->cap_bounds, 2 * n + 1, sizeof *s->bounds)) return;
    if (n) qsort(s->edges, n, sizeof *s->edges, by_begin);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        s->bounds[m++] = s->edges[i].lo;
        s->bounds[m++] = s->edges[i].hi + 1;
    }
    if (m) qsort(s->bounds, m, sizeof *s->bounds, ascending);
    size_t kept = 0;
    for (size_t i = 0; i < m; i++)
        if (kept == 0 || s->bounds[kept - 1] != s->bounds[i]) s->bounds[kept++] = s->bounds[i];
    form_spend(s->work, 4 * n);
    *n_edges = n;
    *n_bounds = kept;
}

static void expand_set(subsets *s, uint32_t state) {
    const struct subset set = s->sets[state];
    form_dfa *out = s->out;
    const uint32_t first = (uint32_t)out->n_edges;
    size_t n_edges = 0, n_bounds = 0, done = 0; /* the first `done` edges end before the bound */
    collect(s, &set, &n_edges, &n_bounds);
    for (size_t b = 0; b + 1 < n_bounds && !form_failed(s->work); b++) {
        const uint32_t lo = s->bounds[b], hi = s->bounds[b + 1] - 1;
        next_closure(s);
        size_t n_stack = 0, e = done;
        for (; e < n_edges && s->edges[e].lo <= lo; e++) {
            if (s->edges[e].hi >= lo)
                visit(s, s->edges[e].to, &n_stack);
            else if (e == done)
                done++;
        }
        if (!form_spend(s->work, e - done + 1) || !n_stack) continue;
        const uint32_t to = set_state(s, n_stack, false);
        dfa_edge *last = out->n_edges > first ? &out->edges[out->n_edges - 1] : NULL;
        if (last && last->to == to && last->hi + 1 == lo && lo != FORM_TOOL_BEGIN && lo < FORM_SYMBOLS) {
            last->hi = hi;
            continue;
        }
        if (!form_grow(s->work, &out->edges, &out->cap_edges, out->n_edges + 1, sizeof *out->edges)) return;
        out->edges[out->n_edges++] = (dfa_edge){lo, hi, to};
    }
    out->states[state].edge = first;
    out->states[state].n_edges = (uint32_t)out->n_edges - first;
}

void dfa_from_nfa(const form_nfa *n, nfa_part part, form_dfa *out) {
    form_work *w = n->work;
    if (form_failed(w)) return;
    subsets s = {.work = w, .nfa = n, .accept = part.to, .out = out};
    s.seen = mem_calloc(n->n_nodes, sizeof *s.seen);
    s.stack = mem_array(n->n_nodes, sizeof *s.stack);
    s.set = mem_array(n->n_nodes, sizeof *s.set);
    if (!s.seen || !s.stack || !s.set) {
        form_fail_nomem(w);
    } else {
        size_t n_stack = 0;
        next_closure(&s);
        visit(&s, part.from, &n_stack);
        set_state(&s, n_stack, true);
        for (uint32_t i = 0; i < out->n_states && !form_failed(w); i++) expand_set(&s, i);
    }
    mem_free(s.seen);
    mem_free(s.stack);
    mem_free(s.set);
    mem_free(s.pool);
    mem_free(s.sets);
    mem_free(s.edges);
    mem_free(s.bounds);
    form_table_free(&s.table);
    dfa_trim(w, out);
}

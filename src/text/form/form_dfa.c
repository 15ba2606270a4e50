/* form_dfa.c: see form_dfa.h; the subset construction is in form_subsets.c. */
#include "text/form/form_dfa.h"

#include <string.h>

#include "base/memory.h"
#include "text/form/form_table.h"

void form_dfa_free(form_dfa *d) {
    mem_free(d->states);
    mem_free(d->edges);
    *d = (form_dfa){0};
}

uint32_t dfa_step(const form_dfa *d, uint32_t state, uint32_t symbol) {
    const dfa_state *s = &d->states[state];
    uint32_t lo = 0, hi = s->n_edges;
    while (lo < hi) {
        const uint32_t middle = (lo + hi) / 2;
        const dfa_edge *e = &d->edges[s->edge + middle];
        if (symbol > e->hi)
            lo = middle + 1;
        else if (symbol < e->lo)
            hi = middle;
        else
            return e->to;
    }
    return FORM_NONE;
}

bool dfa_accepts(const form_dfa *d, const char *s, size_t n) {
    uint32_t state = 0;
    for (size_t i = 0; i < n; i++) {
        state = dfa_step(d, state, (unsigned char)s[i]);
        if (state == FORM_NONE) return false;
    }
    return d->states[state].accepts;
}

nfa_part nfa_dfa(form_nfa *n, const form_dfa *d) {
    const nfa_part p = nfa_nothing(n);
    const uint32_t first = (uint32_t)n->n_nodes;
    for (size_t i = 0; i < d->n_states && !form_failed(n->work); i++) nfa_node(n);
    for (size_t i = 0; i < d->n_states && !form_failed(n->work); i++) {
        const dfa_state *s = &d->states[i];
        for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++)
            nfa_join(n, first + (uint32_t)i, d->edges[e].lo, d->edges[e].hi, first + d->edges[e].to);
        if (s->accepts) nfa_skip(n, first + (uint32_t)i, p.to);
    }
    nfa_skip(n, p.from, first);
    return p;
}

/* ------------------------------------------------------------- products -------------------------------------------------- */

typedef struct product {
    form_work *work;
    const form_dfa *a, *b;
    dfa_product how;
    form_dfa *out;
    form_table table; /* of pairs: (state of a, state of b or FORM_NONE) */
    uint32_t (*pairs)[2];
    size_t cap_pairs;
} product;

static bool same_pair(const void *user, uint32_t item, const void *key) {
    const product *p = user;
    return memcmp(p->pairs[item], key, sizeof p->pairs[item]) == 0;
}

/* The state of a pair, new if need be. */
static uint32_t pair_state(product *p, uint32_t a, uint32_t b) {
    const uint32_t key[2] = {a, b};
    const uint64_t hash = form_hash(key, sizeof key);
    const uint32_t found = form_table_find(&p->table, hash, same_pair, p, key);
    if (found != FORM_NONE) return found;
    form_dfa *out = p->out;
    if (out->n_states >= FORM_MAX_STATES) {
        form_fail_limit(p->work, "states");
        return 0;
    }
    if (!form_grow(p->work, &out->states, &out->cap_states, out->n_states + 1, sizeof *out->states) ||
        !form_grow(p->work, &p->pairs, &p->cap_pairs, out->n_states + 1, sizeof *p->pairs))
        return 0;
    const uint32_t state = (uint32_t)out->n_states++;
    const bool in_b = b != FORM_NONE && p->b->states[b].accepts;
    out->states[state] = (dfa_state){.accepts = p->a->states[a].accepts && (p->how == DFA_BOTH ? in_b : !in_b)};
    memcpy(p->pairs[state], key, sizeof key);
    form_table_add(p->work, &p->table, hash, state);
    return state;
}

static void add_edge(product *p, uint32_t lo, uint32_t hi, uint32_t a, uint32_t b) {
    if (b == FORM_NONE && p->how == DFA_BOTH) return;
    const uint32_t to = pair_state(p, a, b);
    form_dfa *out = p->out;
    if (!form_spend(p->work, 1) || !form_grow(p->work, &out->edges, &out->cap_edges, out->n_edges + 1, sizeof *out->edges)) return;
    out->edges[out->n_edges++] = (dfa_edge){lo, hi, to};
}

/* The edges of a pair: each edge of a, cut where b's begin and end. */
static void expand_pair(product *p, uint32_t state) {
    const uint32_t a = p->pairs[state][0], b = p->pairs[state][1];
    const uint32_t first = (uint32_t)p->out->n_edges;
    const dfa_state *sa = &p->a->states[a];
    for (uint32_t e = sa->edge; e < sa->edge + sa->n_edges && !form_failed(p->work); e++) {
        const dfa_edge edge = p->a->edges[e];
        if (edge.lo >= FORM_TOOL_BEGIN || b == FORM_NONE) {
            add_edge(p, edge.lo, edge.hi, edge.to, b);
            continue;
        }
        uint32_t at = edge.lo;
        const dfa_state *sb = &p->b->states[b];
        for (uint32_t f = sb->edge; f < sb->edge + sb->n_edges && at <= edge.hi; f++) {
            const dfa_edge other = p->b->edges[f];
            if (other.hi < at) continue;
            if (other.lo > edge.hi) break;
            if (other.lo > at) add_edge(p, at, other.lo - 1, edge.to, FORM_NONE);
            const uint32_t lo = other.lo > at ? other.lo : at, hi = other.hi < edge.hi ? other.hi : edge.hi;
            add_edge(p, lo, hi, edge.to, other.to);
            at = hi + 1;
        }
        if (at <= edge.hi) add_edge(p, at, edge.hi, edge.to, FORM_NONE);
    }
    p->out->states[state].edge = first;
    p->out->states[state].n_edges = (uint32_t)p->out->n_edges - first;
}

void dfa_combine(form_work *w, const form_dfa *a, const form_dfa *b, dfa_product how, form_dfa *out) {
    if (form_failed(w)) return;
    product p = {.work = w, .a = a, .b = b, .how = how, .out = out};
    pair_state(&p, 0, 0);
    for (uint32_t i = 0; i < out->n_states && !form_failed(w); i++) expand_pair(&p, i);
    form_table_free(&p.table);
    mem_free(p.pairs);
    dfa_trim(w, out);
}

/* ------------------------------------------------------------- trimming -------------------------------------------------- */

/* live[i]: state i leads to acceptance.  Backwards over the edges, which a list of predecessors turns around. */
static void find_live(form_work *w, const form_dfa *d, bool *live, uint32_t *stack, uint32_t *head, uint32_t *chain, uint32_t *source) {
    size_t n = 0;
    for (size_t i = 0; i < d->n_states; i++) {
        head[i] = 0;
        live[i] = d->states[i].accepts;
        if (live[i]) stack[n++] = (uint32_t)i;
    }
    for (size_t i = 0; i < d->n_states; i++) {
        for (uint32_t e = d->states[i].edge; e < d->states[i].edge + d->states[i].n_edges; e++) {
            source[e] = (uint32_t)i;
            chain[e] = head[d->edges[e].to];
            head[d->edges[e].to] = e + 1;
        }
    }
    form_spend(w, d->n_edges);
    while (n) {
        const uint32_t state = stack[--n];
        for (uint32_t e = head[state]; e; e = chain[e - 1]) {
            if (live[source[e - 1]]) continue;
            live[source[e - 1]] = true;
            stack[n++] = source[e - 1];
        }
    }
}

void dfa_trim(form_work *w, form_dfa *d) {
    if (form_failed(w) || !d->n_states) return;
    bool *live = mem_array(d->n_states, sizeof *live);
    uint32_t *number = mem_array(d->n_states, sizeof *number), *head = mem_array(d->n_states, sizeof *head);
    uint32_t *chain = mem_array(d->n_edges, sizeof *chain), *source = mem_array(d->n_edges, sizeof *source);
    if (!live || !number || !head || !chain || !source) {
        form_fail_nomem(w);
    } else {
        find_live(w, d, live, number, head, chain, source);
        live[0] = true; /* an automaton has a start */
        size_t n_states = 0, n_edges = 0;
        for (size_t i = 0; i < d->n_states; i++) number[i] = live[i] ? (uint32_t)n_states++ : FORM_NONE;
        for (size_t i = 0; i < d->n_states; i++) {
            const dfa_state s = d->states[i];
            if (!live[i]) continue;
            const uint32_t first = (uint32_t)n_edges;
            for (uint32_t e = s.edge; e < s.edge + s.n_edges; e++) {
                const dfa_edge edge = d->edges[e];
                if (live[edge.to]) d->edges[n_edges++] = (dfa_edge){edge.lo, edge.hi, number[edge.to]};
            }
            d->states[number[i]] = (dfa_state){.edge = first, .n_edges = (uint32_t)n_edges - first, .accepts = s.accepts};
        }
        d->n_states = n_states;
        d->n_edges = n_edges;
    }
    mem_free(live);
    mem_free(number);
    mem_free(head);
    mem_free(chain);
    mem_free(source);
}

bool dfa_is_empty(const form_dfa *d) { return d->n_states == 0 || (d->n_states == 1 && !d->states[0].accepts); }

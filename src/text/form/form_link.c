/* form_link.c: the machines of a compilation → a program.
 *
 * First the need of each state, a fixpoint over all machines at once; edges to states that can never be finished are left out, then
 * states and machines that nothing reaches.  What remains is numbered anew: a machine's states in the order in which its automaton has
 * them, the start first. */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_build.h"

enum {
    NEVER = 1000,      /* a need at or above it: cannot be finished */
    FUNCTION_DEPTH = 8 /* more than the frames below that of a tool's parameters */
};

typedef struct linker {
    form_build *b;
    form_work *work;
    form_program *p;
    uint32_t *offset;          /* [n_machines] of a machine's first state in the arrays below */
    uint16_t *need;            /* [all states] */
    uint16_t *needs_first;     /* [all states] as if all parameters were optional, NULL while these are sought */
    uint32_t *number;          /* [all states] in the program, or FORM_NONE */
    uint32_t *queue;           /* [all states] scratch */
    uint32_t *renamed, *order; /* [n_machines]: number in the program or FORM_NONE; the machine of a number */
    size_t cap_edges, cap_rows, cap_guards;
    uint32_t n_order;
} linker;

static bool is_guard(uint32_t symbol) { return symbol >= FORM_SYMBOL_GUARD && symbol < FORM_SYMBOL_CALL; }
static bool is_call(uint32_t symbol) { return symbol >= FORM_SYMBOL_CALL; }

/* ------------------------------------------------------------- need ------------------------------------------------------ */

static unsigned at_least(unsigned a, unsigned b) { return a > b ? a : b; }

/* The need behind the guard UNUSED of one bit, as it was found first. */
static unsigned need_of_bit(const linker *l, const form_dfa *d, size_t first, const dfa_state *s, uint64_t bit) {
    for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++) {
        if (!is_guard(d->edges[e].lo)) continue;
        const form_guard g = l->b->guards[d->edges[e].lo - FORM_SYMBOL_GUARD];
        if (g.kind == FORM_UNUSED && g.value == bit) return l->needs_first[first + d->edges[e].to];
    }
    return NEVER;
}

/* What a guard that may not hold yet asks for: that what makes it hold can be done.  MIN asks for nothing: its count is of items, one of
 * which stands before it, so that another can follow; or of characters.  ALL asks for the required parameters; how deep the frame lies
 * above the root is a few levels. */
static unsigned need_before_guard(const linker *l, const form_dfa *d, size_t first, const dfa_state *s, form_guard g) {
    if (g.kind != FORM_ALL || !l->needs_first) return 0;
    unsigned most = 0;
    for (uint64_t bits = g.value; bits; bits &= bits - 1) most = at_least(most, need_of_bit(l, d, first, s, bits & -bits));
    return most < FORM_MAX_FRAMES - FUNCTION_DEPTH ? most : NEVER;
}

/* first: the number of the machine's first state */
static unsigned need_over_edge(const linker *l, const form_dfa *d, size_t first, const dfa_state *s, dfa_edge e) {
    const unsigned behind = l->need[first + e.to];
    if (is_guard(e.lo)) return at_least(behind, need_before_guard(l, d, first, s, l->b->guards[e.lo - FORM_SYMBOL_GUARD]));
    if (!is_call(e.lo)) return behind;
    const unsigned called = l->need[l->offset[e.lo - FORM_SYMBOL_CALL]];
    const bool tail = d->states[e.to].accepts && d->states[e.to].n_edges == 0;
    return at_least(behind, tail ? called : called + 1);
}

/* Lowers the needs of a machine's states.  true: its start's need changed. */
static bool relax_machine(linker *l, size_t machine) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    uint16_t *need = l->need + l->offset[machine];
    const uint16_t before = need[0];
    bool changed = true;
    while (changed && form_spend(l->work, d->n_edges + 1)) {
        changed = false;
        for (size_t i = d->n_states; i-- > 0;) {
            const dfa_state *s = &d->states[i];
            unsigned least = need[i];
            for (uint32_t e = s->edge; e < s->edge + s->n_edges && least; e++) {
                const unsigned here = need_over_edge(l, d, l->offset[machine], s, d->edges[e]);
                if (here < least) least = here;
            }
            changed |= least < need[i];
            need[i] = (uint16_t)least;
        }
    }
    return need[0] < before;
}

static void relax_all(linker *l) {
    for (size_t m = 0; m < l->b->n_machines; m++)
        for (size_t i = 0; i < l->b->machines[m].dfa.n_states; i++)
            l->need[l->offset[m] + i] = l->b->machines[m].dfa.states[i].accepts ? 0 : NEVER;
    bool changed = true;
    while (changed && !form_failed(l->work)) {
        changed = false;
        for (size_t m = l->b->n_machines; m-- > 0;) changed |= relax_machine(l, m);
    }
}

/* Twice: what a required parameter needs must be known before what its function needs. */
static void find_needs(linker *l) {
    relax_all(l);
    l->needs_first = mem_array(l->b->n_states, sizeof *l->needs_first);
    if (!l->needs_first) form_fail_nomem(l->work);
    if (form_failed(l->work)) return;
    memcpy(l->needs_first, l->need, l->b->n_states * sizeof *l->needs_first);
    relax_all(l);
}

/* The edge can be taken by something that will be finished. */
static bool edge_lives(const linker *l, uint32_t machine, const dfa_state *s, dfa_edge e) {
    return need_over_edge(l, &l->b->machines[machine].dfa, l->offset[machine], s, e) < NEVER;
}

/* ------------------------------------------------------------- what is reached ------------------------------------------- */

static void reach_machine(linker *l, uint32_t machine) {
    if (l->renamed[machine] != FORM_NONE) return;
    l->renamed[machine] = l->n_order;
    l->order[l->n_order++] = machine;
}

/* Numbers what machine reaches of its own states; the machines that it calls are reached. */
static void reach_states(linker *l, uint32_t machine) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    uint32_t *number = l->number + l->offset[machine], *queue = l->queue;
    uint32_t n_queue = 0;
    for (size_t i = 0; i < d->n_states; i++) number[i] = FORM_NONE;
    number[0] = 0;
    queue[n_queue++] = 0;
    for (uint32_t q = 0; q < n_queue; q++) {
        const dfa_state *s = &d->states[queue[q]];
        for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++) {
            const dfa_edge edge = d->edges[e];
            if (!edge_lives(l, machine, s, edge)) continue;
            if (is_call(edge.lo)) reach_machine(l, edge.lo - FORM_SYMBOL_CALL);
            if (number[edge.to] != FORM_NONE) continue;
            number[edge.to] = 0;
            queue[n_queue++] = edge.to;
        }
    }
    for (size_t i = 0; i < d->n_states; i++)
        if (number[i] != FORM_NONE) number[i] = l->p->n_states++;
    form_spend(l->work, d->n_edges + d->n_states);
}

/* ------------------------------------------------------------- rows ------------------------------------------------------ */

/* The states behind each symbol. */
static void spread(const linker *l, uint32_t machine, const dfa_state *s, uint32_t *next) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    for (uint32_t i = 0; i < FORM_SYMBOLS; i++) next[i] = FORM_NONE;
    for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++) {
        const dfa_edge edge = d->edges[e];
        if (edge.lo >= FORM_SYMBOLS || !edge_lives(l, machine, s, edge)) continue;
        for (uint32_t i = edge.lo; i <= edge.hi; i++) next[i] = l->number[l->offset[machine] + edge.to];
    }
}

/* Splits the classes so that symbols of one class lead to one state. */
static void refine(form_class_map *map, const uint32_t *next) {
    struct {
        uint32_t next;
        uint16_t class_before, class_now;
    } pairs[FORM_SYMBOLS];
    uint32_t n = 0;
    uint32_t first_of[FORM_SYMBOLS]; /* class before → a pair + 1, which most symbols of the class share */
    memset(first_of, 0, map->n_classes * sizeof *first_of);
    for (uint32_t i = 0; i < FORM_SYMBOLS; i++) {
        const uint16_t before = map->of[i];
        uint32_t k = first_of[before] ? first_of[before] - 1 : n;
        if (k < n && pairs[k].next != next[i])
            for (k = 0; k < n && (pairs[k].class_before != before || pairs[k].next != next[i]); k++) {
            }
        if (k == n) {
            pairs[n].next = next[i];
            pairs[n].class_before = before;
            pairs[n].class_now = (uint16_t)n;
            if (!first_of[before]) first_of[before] = n + 1;
            n++;
        }
        map->of[i] = pairs[k].class_now;
    }
    map->n_classes = n;
}

typedef struct row_key {
    const form_program *p;
    uint32_t n; /* classes */
} row_key;

static bool same_row(const void *user, uint32_t item, const void *key) {
    const row_key *k = user;
    return memcmp(k->p->rows + item, key, k->n * sizeof *k->p->rows) == 0;
}

static uint32_t add_row(linker *l, form_table *rows, const form_class_map *map, const uint32_t *next) {
    uint32_t row[FORM_SYMBOLS];
    for (uint32_t i = 0; i < FORM_SYMBOLS; i++) row[map->of[i]] = next[i];
    const row_key user = {l->p, map->n_classes};
    const size_t bytes = map->n_classes * sizeof *row;
    const uint64_t hash = form_hash(row, bytes);
    const uint32_t found = form_table_find(rows, hash, same_row, &user, row);
    if (found != FORM_NONE) return found;
    form_program *p = l->p;
    if (!form_grow(l->work, &p->rows, &l->cap_rows, p->n_rows + map->n_classes, sizeof *p->rows)) return 0;
    const uint32_t at = p->n_rows;
    memcpy(p->rows + at, row, bytes);
    p->n_rows += map->n_classes;
    form_table_add(l->work, rows, hash, at);
    return at;
}

/* ------------------------------------------------------------- states ---------------------------------------------------- */

static uint32_t add_guard(linker *l, form_guard g) {
    form_program *p = l->p;
    for (uint32_t i = p->n_guards > 128 ? p->n_guards - 128 : 0; i < p->n_guards; i++)
        if (p->guards[i].kind == g.kind && p->guards[i].value == g.value) return i;
    if (!form_grow(l->work, &p->guards, &l->cap_guards, p->n_guards + 1, sizeof *p->guards)) return 0;
    p->guards[p->n_guards] = g;
    return p->n_guards++;
}

static bool has_living_edges(const linker *l, uint32_t machine, uint32_t state) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    const dfa_state *s = &d->states[state];
    for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++)
        if (edge_lives(l, machine, s, d->edges[e])) return true;
    return false;
}

/* The calls (true) or guards of a state. */
static uint32_t add_edges(linker *l, uint32_t machine, const dfa_state *s, bool calls) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    form_program *p = l->p;
    uint32_t n = 0;
    for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++) {
        const dfa_edge edge = d->edges[e];
        if ((calls ? !is_call(edge.lo) : !is_guard(edge.lo)) || !edge_lives(l, machine, s, edge)) continue;
        if (!form_grow(l->work, &p->edges, &l->cap_edges, p->n_edges + 1, sizeof *p->edges)) return 0;
        form_edge out = {.next = l->number[l->offset[machine] + edge.to]};
        if (calls) {
            out.what = l->renamed[edge.lo - FORM_SYMBOL_CALL];
            if (d->states[edge.to].accepts && !has_living_edges(l, machine, edge.to)) out.next = FORM_NONE;
        } else {
            out.what = add_guard(l, l->b->guards[edge.lo - FORM_SYMBOL_GUARD]);
        }
        p->edges[p->n_edges++] = out;
        n++;
    }
    return n;
}

static void add_machine(linker *l, uint32_t machine) {
    const build_machine *from = &l->b->machines[machine];
    form_program *p = l->p;
    form_machine *m = &p->machines[l->renamed[machine]];
    form_class_map *map = &p->class_maps[p->n_class_maps];
    *m = (form_machine){.common = from->common, .classes = p->n_class_maps++, .twin = FORM_NONE};
    m->start = m->first_state = l->number[l->offset[machine]];
    memset(map, 0, sizeof *map);
    map->n_classes = 1;
    uint32_t next[FORM_SYMBOLS];
    const uint32_t *number = l->number + l->offset[machine];
    for (size_t i = 0; i < from->dfa.n_states; i++) {
        if (number[i] == FORM_NONE) continue;
        spread(l, machine, &from->dfa.states[i], next);
        refine(map, next);
        m->n_states++;
    }
    form_table rows = {0};
    bool plain = true;
    for (size_t i = 0; i < from->dfa.n_states && form_spend(l->work, 1); i++) {
        if (number[i] == FORM_NONE) continue;
        const dfa_state *s = &from->dfa.states[i];
        spread(l, machine, s, next);
        form_state *state = &p->states[number[i]];
        *state = (form_state){.machine = l->renamed[machine], .accepts = s->accepts, .free = from->free && i == 0, .twin = FORM_NONE};
        state->need = l->need[l->offset[machine] + i];
        state->row = add_row(l, &rows, map, next);
        state->calls = p->n_edges;
        const uint32_t n_calls = add_edges(l, machine, s, true);
        state->guards = p->n_edges;
        const uint32_t n_guards = add_edges(l, machine, s, false);
        if (n_calls + n_guards > FORM_MAX_CHOICES) {
            l->work->where = from->where;
            l->work->path = from->path;
            l->work->keyword = from->keyword;
            form_fail_limit(l->work, "alternatives at one place");
        }
        state->n_calls = (uint8_t)n_calls;
        state->n_guards = (uint8_t)n_guards;
        plain &= n_calls + n_guards == 0 && next[FORM_TOOL_BEGIN] == FORM_NONE && next[FORM_TOOL_END] == FORM_NONE && !state->free;
    }
    form_table_free(&rows);
    m->text = from->text;
    m->kind = from->twin != FORM_NONE ? FORM_COUNTED : !plain ? FORM_GENERAL : from->wide ? FORM_WIDE : FORM_BYTES;
}

/* ------------------------------------------------------------- twins ----------------------------------------------------- */

/* Walks a counted machine and its twin together, and marks each state with its counterpart; but those behind guards, since they stand for
 * less than it. */
static void pair_twin(linker *l, uint32_t machine) {
    form_program *p = l->p;
    form_machine *m = &p->machines[l->renamed[machine]];
    m->twin = l->renamed[l->b->machines[machine].twin];
    uint32_t *queue = l->queue, n_queue = 0;
    p->states[m->start].twin = p->machines[m->twin].start;
    queue[n_queue++] = m->start;
    for (uint32_t q = 0; q < n_queue; q++) {
        const form_state *s = &p->states[queue[q]];
        for (uint32_t g = s->guards; g < s->guards + s->n_guards; g++) {
            form_state *t = &p->states[p->edges[g].next];
            if (t->twin == FORM_NONE) queue[n_queue++] = p->edges[g].next;
            t->twin = s->twin;
        }
        for (uint32_t byte = 0; byte < FORM_TOOL_BEGIN; byte++) {
            const uint32_t to = form_next(p, queue[q], byte);
            if (to == FORM_NONE) continue;
            if (p->states[to].twin == FORM_NONE) queue[n_queue++] = to;
            p->states[to].twin = form_next(p, s->twin, byte);
        }
    }
    for (uint32_t i = m->first_state; i < m->first_state + m->n_states; i++)
        for (uint32_t g = 0; g < p->states[i].n_guards; g++) p->states[p->edges[p->states[i].guards + g].next].twin = FORM_NONE;
}

/* ------------------------------------------------------------- FIRST ----------------------------------------------------- */

/* Adds to machine's first symbols what is known by now.  true: something new. */
static bool widen_first(linker *l, uint32_t machine, bool *seen) {
    form_program *p = l->p;
    form_machine *m = &p->machines[machine];
    const form_machine before = *m;
    uint32_t *queue = l->queue, n_queue = 0;
    memset(seen, 0, m->n_states * sizeof *seen);
    queue[n_queue++] = m->start;
    seen[m->start - m->first_state] = true;
    for (uint32_t q = 0; q < n_queue; q++) {
        const form_state *s = &p->states[queue[q]];
        m->nullable |= s->accepts;
        for (uint32_t i = 0; i < FORM_SYMBOLS; i++)
            if (form_next(p, queue[q], i) != FORM_NONE) m->first[i / 64] |= (uint64_t)1 << (i % 64);
        for (uint32_t e = s->calls; e < s->guards + s->n_guards; e++) {
            uint32_t next = p->edges[e].next;
            if (e < s->guards) {
                const form_machine *called = &p->machines[p->edges[e].what];
                for (size_t i = 0; i < sizeof m->first / sizeof *m->first; i++) m->first[i] |= called->first[i];
                if (!called->nullable) continue;
                if (next == FORM_NONE) {
                    m->nullable = true;
                    continue;
                }
            }
            if (seen[next - m->first_state]) continue;
            seen[next - m->first_state] = true;
            queue[n_queue++] = next;
        }
    }
    form_spend(l->work, n_queue);
    return before.nullable != m->nullable || memcmp(before.first, m->first, sizeof m->first) != 0;
}

static void find_first(linker *l) {
    bool *seen = mem_array(l->p->n_states, sizeof *seen);
    if (!seen) form_fail_nomem(l->work);
    bool changed = true;
    while (changed && !form_failed(l->work)) {
        changed = false;
        for (uint32_t m = l->p->n_machines; m-- > 0;) changed |= widen_first(l, m, seen);
    }
    mem_free(seen);
}

/* ------------------------------------------------------------- the whole ------------------------------------------------- */

static bool open_linker(linker *l) {
    const size_t n = l->b->n_machines;
    l->p = mem_calloc(1, sizeof *l->p);
    l->offset = mem_array(n, sizeof *l->offset);
    l->renamed = mem_array(n, sizeof *l->renamed);
    l->order = mem_array(n, sizeof *l->order);
    l->need = mem_array(l->b->n_states, sizeof *l->need);
    l->number = mem_array(l->b->n_states, sizeof *l->number);
    l->queue = mem_array(l->b->n_states, sizeof *l->queue);
    if (!l->p || !l->offset || !l->renamed || !l->order || !l->need || !l->number || !l->queue) {
        form_fail_nomem(l->work);
        return false;
    }
    uint32_t at = 0;
    for (size_t m = 0; m < n; m++) {
        l->renamed[m] = FORM_NONE;
        l->offset[m] = at;
        at += (uint32_t)l->b->machines[m].dfa.n_states;
    }
    return true;
}

static void close_linker(linker *l) {
    mem_free(l->offset);
    mem_free(l->renamed);
    mem_free(l->order);
    mem_free(l->need);
    mem_free(l->needs_first);
    mem_free(l->number);
    mem_free(l->queue);
}

/* A machine that cannot be finished and is called by `machine`, of those not seen; FORM_NONE: there is none. */
static uint32_t hopeless_below(const linker *l, uint32_t machine, const bool *seen) {
    const form_dfa *d = &l->b->machines[machine].dfa;
    for (size_t e = 0; e < d->n_edges; e++) {
        if (!is_call(d->edges[e].lo)) continue;
        const uint32_t called = d->edges[e].lo - FORM_SYMBOL_CALL;
        if (!seen[called] && l->need[l->offset[called]] >= NEVER) return called;
    }
    return FORM_NONE;
}

/* Says where it comes from that the root cannot be finished: the place that none of those is to blame for that stand in it. */
static void fail_hopeless(linker *l, uint32_t root) {
    bool *seen = mem_calloc(l->b->n_machines, sizeof *seen);
    if (!seen) {
        form_fail_nomem(l->work);
        return;
    }
    uint32_t at = root;
    for (uint32_t next = root; next != FORM_NONE; next = hopeless_below(l, at, seen)) {
        at = next;
        seen[at] = true;
    }
    mem_free(seen);
    const build_machine *m = &l->b->machines[at];
    form_fail(l->work, CALLA_E_ARGUMENT, "%s: %s%s%s%sadmits no answer at all: its parts contradict each other, or nest without end",
              m->where, m->path, *m->path ? ": " : "", m->keyword ? m->keyword : "", m->keyword ? ": " : "");
}

static void check_root(linker *l, uint32_t root) {
    const build_machine *m = &l->b->machines[root];
    const unsigned need = l->need[l->offset[root]];
    if (need >= NEVER)
        fail_hopeless(l, root);
    else if (need > FORM_MAX_FRAMES)
        form_fail(l->work, CALLA_E_LIMIT, "%s: the smallest answer nests deeper than %d levels", m->where, FORM_MAX_FRAMES);
}

static void add_machines(linker *l) {
    form_program *p = l->p;
    for (uint32_t i = 0; i < l->n_order && !form_failed(l->work); i++) {
        const uint32_t twin = l->b->machines[l->order[i]].twin;
        if (twin != FORM_NONE) reach_machine(l, twin);
        reach_states(l, l->order[i]);
    }
    p->machines = mem_calloc(l->n_order, sizeof *p->machines);
    p->class_maps = mem_calloc(l->n_order, sizeof *p->class_maps);
    p->states = mem_calloc(p->n_states, sizeof *p->states);
    if (!p->machines || !p->class_maps || !p->states) form_fail_nomem(l->work);
    if (form_failed(l->work)) return;
    p->n_machines = l->n_order;
    for (uint32_t i = 0; i < l->n_order && !form_failed(l->work); i++) add_machine(l, l->order[i]);
    for (uint32_t i = 0; i < l->n_order && !form_failed(l->work); i++)
        if (l->b->machines[l->order[i]].twin != FORM_NONE) pair_twin(l, l->order[i]);
    if (!form_failed(l->work)) find_first(l);
}

calla_status form_link(form_build *b, uint32_t root, uint32_t thought, form_program **out) {
    linker l = {.b = b, .work = &b->work};
    *out = NULL;
    if (form_failed(&b->work)) return b->work.status;
    if (open_linker(&l)) {
        find_needs(&l);
        if (!form_failed(l.work)) check_root(&l, root);
        if (!form_failed(l.work)) {
            reach_machine(&l, root);
            reach_machine(&l, thought);
            add_machines(&l);
            l.p->root = l.renamed[root];
            l.p->thought = l.renamed[thought];
            l.p->owed = !b->machines[root].free;
        }
    }
    close_linker(&l);
    if (form_failed(&b->work)) {
        form_program_free(l.p);
        return b->work.status;
    }
    *out = l.p;
    return CALLA_OK;
}

void form_program_free(form_program *p) {
    if (!p) return;
    mem_free(p->machines);
    mem_free(p->states);
    mem_free(p->rows);
    mem_free(p->edges);
    mem_free(p->guards);
    mem_free(p->class_maps);
    mem_free(p);
}

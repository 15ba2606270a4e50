/* form_hand.c: see form_hand.h. */
#include "form_hand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { NONE = -1, MAX_STATES = 4096, MAX_EDGES = 512, MAX_MACHINES = 256 };

typedef struct hand_edges {
    form_edge *edges; /* [n] */
    uint32_t n;
} hand_edges;

typedef struct hand {
    form_program *p;
    uint32_t (*rows)[FORM_SYMBOLS]; /* [n_states] */
    hand_edges calls[MAX_STATES], guards[MAX_STATES];
} hand;

static void *must(void *p) {
    if (!p) abort();
    return p;
}

static hand *begin(void) {
    hand *h = must(calloc(1, sizeof *h));
    h->p = must(mem_calloc(1, sizeof *h->p));
    h->p->states = must(mem_calloc(MAX_STATES, sizeof *h->p->states));
    h->p->machines = must(mem_calloc(MAX_MACHINES, sizeof *h->p->machines));
    h->p->guards = must(mem_calloc(MAX_EDGES, sizeof *h->p->guards));
    h->p->class_maps = must(mem_calloc(1, sizeof *h->p->class_maps));
    h->rows = must(malloc(MAX_STATES * sizeof *h->rows));
    for (uint16_t i = 0; i < FORM_SYMBOLS; i++) h->p->class_maps->of[i] = i;
    h->p->class_maps->n_classes = FORM_SYMBOLS;
    h->p->n_class_maps = 1;
    return h;
}

static uint32_t state(hand *h, bool accepts) {
    const uint32_t s = h->p->n_states++;
    if (s >= MAX_STATES) abort();
    h->p->states[s] = (form_state){.machine = h->p->n_machines - 1, .accepts = accepts, .twin = FORM_NONE};
    for (int i = 0; i < FORM_SYMBOLS; i++) h->rows[s][i] = FORM_NONE;
    h->p->machines[h->p->n_machines - 1].n_states++;
    return s;
}

/* Its first state is its start. */
static uint32_t machine(hand *h, form_machine_kind kind) {
    const uint32_t m = h->p->n_machines++;
    if (m >= MAX_MACHINES) abort();
    h->p->machines[m] = (form_machine){.kind = kind, .first_state = h->p->n_states, .start = h->p->n_states, .twin = FORM_NONE};
    return m;
}

static void on(hand *h, uint32_t from, int first, int last, uint32_t to) {
    for (int i = first; i <= last; i++) h->rows[from][i] = to;
}

/* Over the letters of a word. */
static uint32_t word(hand *h, uint32_t from, const char *letters, bool accepts) {
    for (; *letters; letters++) {
        const uint32_t to = state(h, accepts && !letters[1]);
        on(h, from, (unsigned char)*letters, (unsigned char)*letters, to);
        from = to;
    }
    return from;
}

static void add_edge(hand_edges *e, uint32_t what, uint32_t next) {
    e->edges = must(realloc(e->edges, (e->n + 1) * sizeof *e->edges));
    e->edges[e->n++] = (form_edge){what, next};
}

static void call(hand *h, uint32_t from, uint32_t what, uint32_t next) { add_edge(&h->calls[from], what, next); }

static void guard(hand *h, uint32_t from, form_guard_kind kind, uint64_t value, uint32_t next) {
    h->p->guards[h->p->n_guards] = (form_guard){kind, value};
    add_edge(&h->guards[from], h->p->n_guards++, next);
}

static uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t need_of(const hand *h, uint32_t s) {
    const form_program *p = h->p;
    uint32_t need = p->states[s].accepts ? 0 : FORM_MAX_FRAMES + 1;
    for (int i = 0; i < FORM_SYMBOLS; i++)
        if (h->rows[s][i] != FORM_NONE) need = min(need, p->states[h->rows[s][i]].need);
    for (uint32_t i = 0; i < h->guards[s].n; i++) need = min(need, p->states[h->guards[s].edges[i].next].need);
    for (uint32_t i = 0; i < h->calls[s].n; i++) {
        const form_edge *e = &h->calls[s].edges[i];
        const uint32_t inside = p->states[p->machines[e->what].start].need;
        need = min(need, e->next == FORM_NONE ? inside : max(inside + 1, p->states[e->next].need));
    }
    return need;
}

static form_program *end(hand *h, uint32_t root) {
    form_program *p = h->p;
    for (uint32_t s = 0; s < p->n_states; s++) {
        form_state *at = &p->states[s];
        at->need = FORM_MAX_FRAMES + 1;
        at->row = s * FORM_SYMBOLS;
        p->n_edges += h->calls[s].n + h->guards[s].n;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = 0; s < p->n_states; s++) {
            const uint32_t need = need_of(h, s);
            changed |= need != p->states[s].need;
            p->states[s].need = (uint16_t)need;
        }
    }
    p->rows = must(mem_array(p->n_states, sizeof *h->rows));
    memcpy(p->rows, h->rows, p->n_states * sizeof *h->rows);
    p->n_rows = p->n_states * FORM_SYMBOLS;
    p->edges = must(mem_array(p->n_edges, sizeof *p->edges));
    uint32_t n = 0;
    for (uint32_t s = 0; s < p->n_states; s++) {
        form_state *at = &p->states[s];
        const hand_edges *const of[] = {&h->calls[s], &h->guards[s]};
        uint32_t first[2];
        for (size_t k = 0; k < 2; k++) {
            first[k] = n;
            for (uint32_t i = 0; i < of[k]->n; i++) p->edges[n++] = of[k]->edges[i];
            free(of[k]->edges);
        }
        at->calls = first[0];
        at->guards = first[1];
        at->n_calls = (uint8_t)of[0]->n;
        at->n_guards = (uint8_t)of[1]->n;
    }
    free(h->rows);
    free(h);
    p->root = p->thought = root;
    return p;
}

/* What text of UTF-8 may have: from `from`, one character of two bytes or of one that is not `not`, to `to`. */
static void character(hand *h, uint32_t from, int not, uint32_t to) {
    const uint32_t second = state(h, false);
    on(h, from, 0x20, 0x7E, to);
    on(h, from, not, not, FORM_NONE);
    on(h, from, 0xC3, 0xC4, second);
    on(h, second, 0x80, 0xBF, to);
}

/* " CHARACTER* " */
static uint32_t free_string(hand *h, uint32_t *inside) {
    const uint32_t m = machine(h, FORM_WIDE);
    *inside = word(h, state(h, false), "\"", false);
    character(h, *inside, '"', *inside);
    on(h, *inside, '"', '"', state(h, true));
    return m;
}

static uint32_t counted_string(hand *h, uint32_t least, uint32_t most, uint32_t twin) {
    const uint32_t of_twin = h->p->machines[twin].start, m = machine(h, FORM_COUNTED);
    const uint32_t start = state(h, false), inside = word(h, start, "\"", false), any = state(h, false), close = state(h, false);
    character(h, any, '"', inside);
    guard(h, inside, FORM_INC, most, any);
    guard(h, inside, FORM_MIN, least, close);
    on(h, close, '"', '"', state(h, true));
    h->p->machines[m].twin = twin;
    /* start, inside, the second byte of a character, and the end: as free_string makes them */
    h->p->states[start].twin = of_twin;
    h->p->states[inside].twin = of_twin + 1;
    h->p->states[close + 1].twin = of_twin + 2;
    h->p->states[close + 2].twin = of_twin + 3;
    return m;
}

form_program *hand_arrays(void) {
    hand *h = begin();
    uint32_t inside;
    const uint32_t string = free_string(h, &inside), bounded = counted_string(h, 3, 7, string);
    /* value: array, bounded or free string: two of them begin alike */
    const uint32_t value = machine(h, FORM_GENERAL), at_value = state(h, false), array = value + 1;
    call(h, at_value, array, FORM_NONE);
    call(h, at_value, bounded, FORM_NONE);
    call(h, at_value, string, FORM_NONE);
    machine(h, FORM_GENERAL);
    const uint32_t first = word(h, state(h, false), "[", false), behind = state(h, false), first_item = state(h, false),
                   next = state(h, false), close = state(h, false);
    guard(h, first, FORM_INC, 4, first_item);
    call(h, first_item, value, behind);
    guard(h, behind, FORM_INC, 4, next);
    guard(h, behind, FORM_MIN, 2, close);
    call(h, word(h, next, ",", false), value, behind);
    on(h, close, ']', ']', state(h, true));
    form_program *p = end(h, array);
    p->owed = true;
    return p;
}

form_program *hand_calls(void) {
    hand *h = begin();
    uint32_t inside;
    const uint32_t string = free_string(h, &inside), root = machine(h, FORM_GENERAL), text = state(h, true);
    h->p->states[text].free = true;
    const uint32_t begun = state(h, false), between = word(h, begun, "\n<f>\n", false), all = state(h, false), behind = state(h, true);
    on(h, text, FORM_TOOL_BEGIN, FORM_TOOL_BEGIN, begun);
    static const char *const names[] = {"a=", "ab=", "abc=", "b="};
    for (size_t i = 0; i < 4; i++) {
        const uint32_t unused = state(h, false);
        guard(h, between, FORM_UNUSED, UINT64_C(1) << i, unused);
        const uint32_t closed = state(h, false);
        call(h, word(h, unused, names[i], false), string, closed);
        on(h, closed, '\n', '\n', between);
    }
    guard(h, between, FORM_ALL, 1, all);
    const uint32_t last = word(h, all, "</f>\n", false);
    on(h, last, FORM_TOOL_END, FORM_TOOL_END, behind);
    const uint32_t again = word(h, behind, "\n", false);
    on(h, again, FORM_TOOL_BEGIN, FORM_TOOL_BEGIN, begun);
    return end(h, root);
}

form_program *hand_choices(void) {
    enum { N = 64 };
    hand *h = begin();
    char letters[32];
    const uint32_t root = machine(h, FORM_GENERAL), start = state(h, false);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t behind = state(h, false);
        snprintf(letters, sizeof letters, ", %u", (unsigned)i % 37);
        call(h, start, root + 1 + i, behind);
        word(h, behind, letters, true);
    }
    for (uint32_t i = 0; i < N; i++) {
        machine(h, FORM_GENERAL);
        const uint32_t s = state(h, false);
        for (uint32_t k = 0; k < N; k++) call(h, s, root + 1 + N + (i + k) % (N / 2), FORM_NONE);
    }
    for (uint32_t k = 0; k < N / 2; k++) {
        machine(h, FORM_BYTES);
        const uint32_t s = state(h, false);
        snprintf(letters, sizeof letters, "the %u words", (unsigned)k * 7);
        word(h, s, letters, true);
    }
    form_program *p = end(h, root);
    p->owed = true;
    return p;
}

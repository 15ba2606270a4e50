/* form_local.c: see form_local.h.  A counted machine's guards are all taken as open here, and what they would have counted is written
 * down for each token: whoever makes a mask compares it with the bounds. */
#include "text/form/form_local.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_LEAVING = 1 << 20 }; /* more, and a machine is walked as others are */

/* ------------------------------------------------------------- store ----------------------------------------------------- */

bool form_locals_open(form_locals *store, size_t n, size_t max_bytes) {
    *store = (form_locals){.n = n, .max_bytes = max_bytes};
    store->of = mem_calloc(n, sizeof(form_local *));
    if (!store->of) return false;
    pthread_mutex_init(&store->mutex, NULL);
    return true;
}

void form_locals_close(form_locals *store) {
    if (!store->of) return;
    for (size_t i = 0; i < store->n; i++) form_local_free(store->of[i]);
    mem_free(store->of);
    pthread_mutex_destroy(&store->mutex);
    *store = (form_locals){0};
}

void form_local_free(form_local *l) {
    if (!l) return;
    mem_free(l->stay);
    mem_free(l->few);
    mem_free(l->open.tokens);
    mem_free(l->open.at);
    mem_free(l->ended.tokens);
    mem_free(l->ended.at);
    mem_free(l->rests);
    mem_free(l->leaving);
    mem_free(l);
}

/* ------------------------------------------------------------ making ----------------------------------------------------- */

/* Where a walk of the trie stands. */
typedef struct place {
    uint32_t state, chars;
    bool ended; /* a MIN guard was passed */
} place;

/* One token that leaves, or stays. */
typedef struct found {
    const unsigned char *rest;
    uint32_t n;
    int32_t token;
    uint32_t chars;
} found;

typedef struct walk {
    const form_local_maker *m;
    bool counted;
    place *places; /* [longest + 1] by depth */
    form_local *local;
    found *leaving; /* [n_leaving] */
    size_t n_leaving, cap_leaving;
    found *stays; /* [n_stays] in a counted machine: n is whether it ended */
    size_t n_stays, cap_stays;
    bool failed;
} walk;

/* Over a byte, and the guards before it. */
static bool next_place(const form_program *p, place from, unsigned char byte, place *to) {
    const uint32_t next = form_next(p, from.state, byte);
    if (next != FORM_NONE) {
        *to = (place){next, from.chars, from.ended};
        return true;
    }
    const form_state *state = &p->states[from.state];
    for (uint32_t i = 0; i < state->n_guards; i++) {
        const form_edge *e = &p->edges[state->guards + i];
        const bool inc = p->guards[e->what].kind == FORM_INC;
        if (next_place(p, (place){e->next, from.chars + inc, from.ended || !inc}, byte, to)) return true;
    }
    return false;
}

static void add_found(found **items, size_t *n, size_t *cap, found f, size_t max, bool *failed) {
    if (*failed || mem_grow(items, cap, *n + 1, sizeof **items, max)) {
        *failed = true;
        return;
    }
    (*items)[(*n)++] = f;
}

/* The machine accepts at node i: all below it may leave here. */
static void add_leaving(walk *w, uint32_t i, uint32_t chars) {
    const form_trie *t = w->m->trie;
    const uint16_t depth = t->nodes[i].depth;
    for (uint32_t k = i + 1; k < t->nodes[i].skip && !w->failed; k++) {
        if (t->nodes[k].token < 0) continue;
        size_t n;
        const unsigned char *bytes = (const unsigned char *)tokenizer_bytes(w->m->tokenizer, t->nodes[k].token, &n);
        const found f = {.rest = bytes + depth, .n = (uint32_t)n - depth, .token = t->nodes[k].token, .chars = chars};
        add_found(&w->leaving, &w->n_leaving, &w->cap_leaving, f, MAX_LEAVING, &w->failed);
    }
}

static void walk_trie(walk *w, uint32_t state, bool rests) {
    const form_trie *t = w->m->trie;
    const form_program *p = w->m->program;
    w->places[0] = (place){.state = state};
    for (uint32_t i = 0; i < t->n_nodes && !w->failed;) {
        const form_trie_node *node = &t->nodes[i];
        place *at = &w->places[node->depth];
        w->local->n_visited++;
        if (!next_place(p, at[-1], node->byte, at)) {
            i = node->skip;
            continue;
        }
        if (node->token >= 0) {
            w->local->stay[node->token / 32] |= UINT32_C(1) << node->token % 32;
            const found f = {.n = at->ended, .token = node->token, .chars = at->chars};
            if (w->counted) add_found(&w->stays, &w->n_stays, &w->cap_stays, f, SIZE_MAX / sizeof f, &w->failed);
        }
        if (rests && p->states[at->state].accepts) add_leaving(w, i, at->chars);
        i++;
    }
}

static bool sort_by_chars(const walk *w, bool ended, form_by_chars *out) {
    uint32_t most = 0, n = 0;
    for (size_t i = 0; i < w->n_stays; i++) {
        if (w->stays[i].n != ended) continue;
        n++;
        if (w->stays[i].chars > most) most = w->stays[i].chars;
    }
    out->n_at = most + 2;
    out->at = mem_calloc(out->n_at + 1, sizeof *out->at);
    out->tokens = mem_array(n, sizeof *out->tokens);
    if (!out->at || !out->tokens) return false;
    uint32_t *at = out->at + 1; /* while filling, at[c] is where the next one with c characters goes */
    for (size_t i = 0; i < w->n_stays; i++)
        if (w->stays[i].n == ended) at[w->stays[i].chars + 1]++;
    for (uint32_t c = 1; c < out->n_at; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < w->n_stays; i++)
        if (w->stays[i].n == ended) out->tokens[at[w->stays[i].chars]++] = w->stays[i].token;
    w->local->bytes += n * sizeof *out->tokens + (out->n_at + 1) * sizeof *out->at;
    return true;
}

static int compare_rests(const void *a, const void *b) {
    const found *x = a, *y = b;
    const int order = memcmp(x->rest, y->rest, x->n < y->n ? x->n : y->n);
    if (order) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->token != y->token ? (x->token < y->token ? -1 : 1) : (x->chars > y->chars) - (x->chars < y->chars);
}

static size_t common_bytes(const found *a, const found *b) {
    const size_t most = a->n < b->n ? a->n : b->n;
    size_t n = 0;
    while (n < most && a->rest[n] == b->rest[n]) n++;
    return n;
}

static bool make_rests(walk *w) {
    form_local *l = w->local;
    found *f = w->leaving;
    if (w->n_leaving) qsort(f, w->n_leaving, sizeof *f, compare_rests);
    size_t n_nodes = 0, depth = 0;
    for (size_t i = 0; i < w->n_leaving; i++) n_nodes += f[i].n - (i ? common_bytes(&f[i - 1], &f[i]) : 0);
    l->rests = mem_array(n_nodes, sizeof *l->rests);
    l->leaving = mem_array(w->n_leaving, sizeof *l->leaving);
    uint32_t *path = mem_array(w->m->trie->longest + 1, sizeof *path);
    const bool ok = l->rests && l->leaving && path;
    for (size_t i = 0; ok && i < w->n_leaving; i++) {
        for (const size_t shared = i ? common_bytes(&f[i - 1], &f[i]) : 0; depth > shared; depth--) l->rests[path[depth]].skip = l->n_rests;
        while (depth < f[i].n) {
            path[++depth] = l->n_rests;
            l->rests[l->n_rests++] = (form_rest){.first = (uint32_t)i, .depth = (uint16_t)depth, .byte = f[i].rest[depth - 1]};
        }
        l->rests[path[depth]].n++;
        l->leaving[l->n_leaving++] = (form_leaving){.token = f[i].token, .chars = f[i].chars};
    }
    for (; ok && depth; depth--) l->rests[path[depth]].skip = l->n_rests;
    mem_free(path);
    l->bytes += n_nodes * sizeof *l->rests + w->n_leaving * sizeof *l->leaving;
    return ok;
}

/* Bits become a list where that is shorter. */
static void pack_stay(form_local *l, uint32_t n_words) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_words; i++) n += (uint32_t)__builtin_popcount(l->stay[i]);
    if (n < n_words) l->few = mem_array(n, sizeof *l->few);
    l->bytes += (l->few ? n : n_words) * sizeof *l->stay;
    if (!l->few) return;
    for (uint32_t i = 0; i < n_words; i++)
        for (uint32_t bits = l->stay[i]; bits; bits &= bits - 1) l->few[l->n_few++] = (int32_t)(i * 32 + (uint32_t)__builtin_ctz(bits));
    mem_free(l->stay);
    l->stay = NULL;
}

static form_local *make(const form_local_maker *m, uint32_t state, bool counted, bool rests) {
    form_local *l = mem_calloc(1, sizeof *l);
    walk w = {.m = m, .counted = counted, .local = l};
    if (l) l->stay = mem_calloc(m->trie->n_words, sizeof *l->stay);
    w.places = mem_array(m->trie->longest + 1, sizeof *w.places);
    bool ok = l && l->stay && w.places;
    if (ok) {
        l->bytes = sizeof *l;
        walk_trie(&w, state, rests);
        ok = !w.failed;
    }
    if (ok && rests) ok = make_rests(&w);
    if (ok && counted) ok = sort_by_chars(&w, false, &l->open) && sort_by_chars(&w, true, &l->ended);
    mem_free(w.places);
    mem_free(w.leaving);
    mem_free(w.stays);
    if (ok) {
        pack_stay(l, m->trie->n_words);
        return l;
    }
    form_local_free(l);
    return NULL;
}

/* ------------------------------------------------------------ asking ----------------------------------------------------- */

/* Where a state's local is kept. */
static form_local **find_slot(const form_local_maker *m, uint32_t state, bool counted, bool rests, form_locals **store) {
    const form_program *p = m->program;
    const uint32_t of = counted ? p->states[state].twin : state; /* all bounds of the same string share one */
    const form_machine *machine = &p->machines[p->states[of].machine];
    const uint32_t offset = of - machine->first_state;
    const bool common = machine->common != FORM_OWN && offset < FORM_COMMON_STATES;
    const size_t number = common ? (size_t)machine->common * FORM_COMMON_STATES + offset : of;
    *store = common ? m->common : m->own;
    return &(*store)->of[number * 4 + (counted ? 2 : 0) + rests];
}

const form_local *form_local_get(const form_local_maker *m, uint32_t state, bool rests, form_local **owned) {
    const form_machine *machine = &m->program->machines[m->program->states[state].machine];
    const bool counted = machine->kind == FORM_COUNTED;
    *owned = NULL;
    if (counted && m->program->states[state].twin == FORM_NONE) return NULL;
    form_locals *store;
    form_local **slot = find_slot(m, state, counted, rests, &store);
    pthread_mutex_lock(&store->mutex);
    form_local *there = *slot;
    pthread_mutex_unlock(&store->mutex);
    if (there) return there;
    form_local *made = make(m, state, counted, rests);
    if (!made) return NULL;
    pthread_mutex_lock(&store->mutex);
    there = *slot; /* another thread may have been faster */
    const bool keep = !there && made->bytes <= store->max_bytes - store->bytes;
    if (keep) {
        there = *slot = made;
        store->bytes += made->bytes;
    }
    pthread_mutex_unlock(&store->mutex);
    if (keep) return made;
    if (!there) return *owned = made;
    form_local_free(made);
    return there;
}

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
    mem_free(l->left);
    mem_free(l);
}

/* ------------------------------------------------------------ making ----------------------------------------------------- */

/* Where a walk of the trie stands. */
typedef struct place {
    uint32_t state, chars;
    bool ended; /* a MIN guard was passed */
} place;

/* What is left of a token that leaves. */
typedef struct left_rest {
    const unsigned char *bytes; /* [n] */
    uint32_t n;
    int32_t token;
    uint32_t chars;
} left_rest;

/* A token that stays in a counted machine. */
typedef struct stayed {
    int32_t token;
    uint32_t chars;
    bool ended;
} stayed;

typedef struct walk {
    const form_local_maker *m;
    bool counted;
    place *places; /* [longest + 1] by depth */
    form_local *local;
    stayed *stays; /* [n_stays] */
    size_t n_stays, cap_stays;
    bool rests, failed;
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

static void add_left(walk *w, uint32_t node, int32_t token, uint32_t chars) {
    form_local *l = w->local;
    w->failed |= mem_grow(&l->left, &l->cap_left, l->n_left + 1, sizeof *l->left, MAX_LEAVING) != 0;
    if (!w->failed) l->left[l->n_left++] = (form_left_at){node, token, chars};
}

/* The machine may be left at a state, for a counted one if its bounds allow it. */
static bool accepts(const form_program *p, uint32_t state) {
    const form_state *s = &p->states[state];
    for (uint32_t i = 0; i < s->n_guards; i++)
        if (p->states[p->edges[s->guards + i].next].accepts) return true;
    return s->accepts;
}

/* Tokens below node i leave there. */
static void add_below(walk *w, uint32_t i, const place *at) {
    const form_trie *t = w->m->trie;
    const bool text = w->m->program->machines[w->m->program->states[at->state].machine].text;
    for (uint32_t k = i + 1; k < t->nodes[i].skip && !w->failed;) {
        const form_trie_node *node = &t->nodes[k];
        if (text && node->depth == t->nodes[i].depth + 1 && node->byte != '\n' && node->byte != '<') {
            k = node->skip;
            continue;
        }
        if (node->token >= 0) add_left(w, i, node->token, at->chars);
        k++;
    }
}

/* What is found at node i, where the walk stands at `at`. */
static void find_at(walk *w, uint32_t i, const place *at) {
    const form_trie *t = w->m->trie;
    const int32_t token = t->nodes[i].token;
    if (token >= 0) w->local->stay[token / 32] |= UINT32_C(1) << token % 32;
    if (token >= 0 && w->counted) {
        w->failed |= mem_grow(&w->stays, &w->cap_stays, w->n_stays + 1, sizeof *w->stays, SIZE_MAX / sizeof *w->stays) != 0;
        if (!w->failed) w->stays[w->n_stays++] = (stayed){token, at->chars, at->ended};
    }
    if (w->rests && accepts(w->m->program, at->state)) add_below(w, i, at);
}

static void walk_trie(walk *w, uint32_t state) {
    const form_trie *t = w->m->trie;
    w->places[0] = (place){.state = state};
    for (uint32_t i = 0; i < t->n_nodes && !w->failed;) {
        const form_trie_node *node = &t->nodes[i];
        place *at = &w->places[node->depth];
        w->local->n_visited++;
        if (next_place(w->m->program, at[-1], node->byte, at)) {
            find_at(w, i, at);
            i++;
        } else {
            i = node->skip;
        }
    }
}

static uint32_t next_or_none(const form_program *p, uint32_t state, unsigned char byte) {
    return state == FORM_NONE ? FORM_NONE : form_next(p, state, byte);
}

/* The same by what is known of another state of the machine: where both have come to one state, all below is the same.  From the inside
 * of what may become a closing tag, that is nearly everywhere. */
static void walk_beside(walk *w, uint32_t state, uint32_t hub, const form_local *of_hub) {
    const form_trie *t = w->m->trie;
    const form_program *p = w->m->program;
    size_t k = 0;
    memcpy(w->local->stay, of_hub->stay, t->n_words * sizeof *of_hub->stay);
    w->places[0].state = state;
    w->places[0].chars = hub; /* the other's state: wide machines have no characters to count */
    for (uint32_t i = 0; i < t->n_nodes && !w->failed;) {
        const form_trie_node *node = &t->nodes[i];
        place *at = &w->places[node->depth];
        *at = (place){.state = next_or_none(p, at[-1].state, node->byte), .chars = next_or_none(p, at[-1].chars, node->byte)};
        w->local->n_visited++;
        if (at->state == at->chars) {
            for (; k < of_hub->n_left && of_hub->left[k].node < node->skip; k++)
                if (of_hub->left[k].node >= i) add_left(w, of_hub->left[k].node, of_hub->left[k].token, 0);
            i = node->skip;
            continue;
        }
        if (node->token >= 0) w->local->stay[node->token / 32] &= ~(UINT32_C(1) << node->token % 32);
        const place here = {.state = at->state};
        if (here.state != FORM_NONE) find_at(w, i, &here);
        i++;
    }
}

static bool sort_by_chars(const walk *w, bool ended, form_by_chars *out) {
    uint32_t most = 0, n = 0;
    for (size_t i = 0; i < w->n_stays; i++) {
        if (w->stays[i].ended != ended) continue;
        n++;
        if (w->stays[i].chars > most) most = w->stays[i].chars;
    }
    out->n_at = most + 2;
    out->at = mem_calloc(out->n_at + 1, sizeof *out->at);
    out->tokens = mem_array(n, sizeof *out->tokens);
    if (!out->at || !out->tokens) return false;
    uint32_t *at = out->at + 1; /* while filling, at[c] is where the next one with c characters goes */
    for (size_t i = 0; i < w->n_stays; i++)
        if (w->stays[i].ended == ended) at[w->stays[i].chars + 1]++;
    for (uint32_t c = 1; c < out->n_at; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < w->n_stays; i++)
        if (w->stays[i].ended == ended) out->tokens[at[w->stays[i].chars]++] = w->stays[i].token;
    w->local->bytes += n * sizeof *out->tokens + (out->n_at + 1) * sizeof *out->at;
    return true;
}

static int compare_rests(const void *a, const void *b) {
    const left_rest *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->token != y->token ? (x->token < y->token ? -1 : 1) : (x->chars > y->chars) - (x->chars < y->chars);
}

static size_t common_bytes(const left_rest *a, const left_rest *b) {
    const size_t most = a->n < b->n ? a->n : b->n;
    size_t n = 0;
    while (n < most && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static left_rest *sorted_rests(const walk *w, bool text) {
    const form_local *l = w->local;
    left_rest *f = mem_array(l->n_left, sizeof *f);
    for (size_t i = 0; f && i < l->n_left; i++) {
        size_t n;
        const form_left_at *left = &l->left[i];
        const unsigned char *bytes = (const unsigned char *)tokenizer_bytes(w->m->tokenizer, left->token, &n);
        const uint32_t depth = w->m->trie->nodes[left->node].depth;
        const uint32_t chars = text ? form_count_characters(bytes, depth) : left->chars;
        f[i] = (left_rest){.bytes = bytes + depth, .n = (uint32_t)n - depth, .token = left->token, .chars = chars};
    }
    if (f && l->n_left) qsort(f, l->n_left, sizeof *f, compare_rests);
    return f;
}

static bool make_rests(walk *w, bool text) {
    form_local *l = w->local;
    left_rest *f = sorted_rests(w, text);
    if (!f) return false;
    size_t n_nodes = 0, depth = 0;
    for (size_t i = 0; i < l->n_left; i++) n_nodes += f[i].n - (i ? common_bytes(&f[i - 1], &f[i]) : 0);
    l->rests = mem_array(n_nodes, sizeof *l->rests);
    l->leaving = mem_array(l->n_left, sizeof *l->leaving);
    uint32_t *path = mem_array(w->m->trie->longest + 1, sizeof *path);
    const bool ok = l->rests && l->leaving && path;
    for (size_t i = 0; ok && i < l->n_left; i++) {
        for (const size_t shared = i ? common_bytes(&f[i - 1], &f[i]) : 0; depth > shared; depth--) l->rests[path[depth]].skip = l->n_rests;
        while (depth < f[i].n) {
            path[++depth] = l->n_rests;
            l->rests[l->n_rests++] = (form_rest){.first = (uint32_t)i, .depth = (uint16_t)depth, .byte = f[i].bytes[depth - 1]};
        }
        l->rests[path[depth]].n++;
        l->leaving[l->n_leaving++] = (form_leaving){.token = f[i].token, .chars = f[i].chars};
    }
    for (; ok && depth; depth--) l->rests[path[depth]].skip = l->n_rests;
    mem_free(path);
    mem_free(f);
    l->bytes += n_nodes * sizeof *l->rests + l->n_left * (sizeof *l->leaving + sizeof *l->left);
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

/* hub: a state whose local, of_hub, is known; of_hub may be NULL. */
static form_local *make(const form_local_maker *m, uint32_t state, bool counted, bool rests, uint32_t hub, const form_local *of_hub) {
    form_local *l = mem_calloc(1, sizeof *l);
    walk w = {.m = m, .counted = counted, .rests = rests, .local = l};
    if (l) l->stay = mem_calloc(m->trie->n_words, sizeof *l->stay);
    w.places = mem_array(m->trie->longest + 1, sizeof *w.places);
    bool ok = l && l->stay && w.places;
    if (ok) {
        l->bytes = sizeof *l;
        if (of_hub && of_hub->stay)
            walk_beside(&w, state, hub, of_hub);
        else
            walk_trie(&w, state);
        ok = !w.failed;
    }
    if (ok && rests) ok = make_rests(&w, m->program->machines[m->program->states[state].machine].text);
    if (ok && counted) ok = sort_by_chars(&w, false, &l->open) && sort_by_chars(&w, true, &l->ended);
    mem_free(w.places);
    mem_free(w.stays);
    if (ok) {
        pack_stay(l, m->trie->n_words);
        return l;
    }
    form_local_free(l);
    return NULL;
}

/* How many bytes lead both states to the same one.  Of ASCII: those above are parts of characters. */
static uint32_t count_alike(const form_program *p, uint32_t a, uint32_t b) {
    uint32_t n = 0;
    for (uint32_t byte = 0; byte < 128; byte++) {
        const uint32_t next = form_next(p, a, byte);
        n += next != FORM_NONE && next == form_next(p, b, byte);
    }
    return n;
}

enum { LEAST_ALIKE = 64 };

uint32_t *form_hubs_make(const form_program *p) {
    uint32_t *hubs = mem_array(p->n_machines, sizeof *hubs);
    for (uint32_t i = 0; hubs && i < p->n_machines; i++) {
        const form_machine *m = &p->machines[i];
        uint32_t most = LEAST_ALIKE;
        hubs[i] = FORM_NONE;
        for (uint32_t s = m->first_state; m->kind == FORM_WIDE && s < m->first_state + m->n_states; s++) {
            uint32_t n = 0;
            for (uint32_t byte = 0; byte < 128; byte++) n += form_next(p, s, byte) == s;
            if (n <= most) continue;
            most = n;
            hubs[i] = s;
        }
    }
    return hubs;
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
    const uint32_t hub = m->hubs[m->program->states[state].machine];
    form_local *hub_owned = NULL;
    const bool beside = hub != FORM_NONE && hub != state && count_alike(m->program, state, hub) >= LEAST_ALIKE;
    const form_local *of_hub = beside ? form_local_get(m, hub, rests, &hub_owned) : NULL;
    form_local *made = make(m, state, counted, rests, hub, of_hub);
    form_local_free(hub_owned);
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

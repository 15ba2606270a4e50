/* form_brute.c: see form_brute.h.  Written from form_program.h's rules alone. */
#include "form_brute.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Frames above the depth are of no meaning. */
static void copy(brute_config *to, const brute_config *from) {
    memcpy(to, from, offsetof(brute_config, frames) + from->depth * sizeof from->frames[0]);
}

static bool equal(const brute_config *a, const brute_config *b) {
    return a->state == b->state && a->depth == b->depth && a->count == b->count &&
           memcmp(a->frames, b->frames, a->depth * sizeof a->frames[0]) == 0;
}

static void add(brute *r, const brute_config *c) {
    for (size_t i = 0; i < r->n; i++)
        if (equal(&r->configs[i], c)) return;
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->configs = realloc(r->configs, r->cap * sizeof *r->configs);
        if (!r->configs) abort();
    }
    copy(&r->configs[r->n++], c);
}

static bool deep_enough(const brute *r, uint32_t state, size_t depth) { return depth + r->program->states[state].need <= FORM_MAX_FRAMES; }

static bool guard(const form_guard *g, uint64_t *count) {
    const uint64_t before = *count;
    if (g->kind == FORM_INC) return *count = before + 1, before < g->value;
    if (g->kind == FORM_UNUSED) return *count = before | g->value, !(before & g->value);
    return g->kind == FORM_MIN ? before >= g->value : (before & g->value) == g->value;
}

static void close_set(brute *r) {
    const form_program *p = r->program;
    for (size_t i = 0; i < r->n; i++) {
        brute_config from, c;
        copy(&from, &r->configs[i]);
        const form_state *s = &p->states[from.state];
        for (uint32_t k = 0; k < s->n_guards; k++) {
            const form_edge *e = &p->edges[s->guards + k];
            copy(&c, &from);
            c.state = e->next;
            if (guard(&p->guards[e->what], &c.count) && deep_enough(r, c.state, c.depth)) add(r, &c);
        }
        for (uint32_t k = 0; k < s->n_calls; k++) {
            const form_edge *e = &p->edges[s->calls + k];
            copy(&c, &from);
            if (e->next != FORM_NONE) {
                if (!deep_enough(r, e->next, c.depth) || c.depth == FORM_MAX_FRAMES) continue;
                c.frames[c.depth].state = e->next;
                c.frames[c.depth++].count = c.count;
            }
            c.state = p->machines[e->what].start;
            c.count = 0;
            if (deep_enough(r, c.state, c.depth)) add(r, &c);
        }
        if (s->accepts && from.depth) {
            copy(&c, &from);
            c.depth--;
            c.state = (uint32_t)c.frames[c.depth].state;
            c.count = c.frames[c.depth].count;
            add(r, &c);
        }
    }
}

void brute_begin(brute *r, const form_program *p, uint32_t machine) {
    brute_config c;
    c.depth = 0;
    c.count = 0;
    c.state = p->machines[machine].start;
    r->program = p;
    r->n = 0;
    add(r, &c);
    close_set(r);
}

void brute_free(brute *r) {
    free(r->configs);
    memset(r, 0, sizeof *r);
}

bool brute_step(const brute *from, uint32_t symbol, brute *to) {
    to->program = from->program;
    to->n = 0;
    for (size_t i = 0; i < from->n; i++) {
        const brute_config *c = &from->configs[i];
        const uint32_t next = form_next(from->program, c->state, symbol);
        if (next == FORM_NONE || !deep_enough(from, next, c->depth)) continue;
        brute_config moved;
        copy(&moved, c);
        moved.state = next;
        add(to, &moved);
    }
    close_set(to);
    return to->n > 0;
}

bool brute_accepts(const brute *r) {
    for (size_t i = 0; i < r->n; i++)
        if (!r->configs[i].depth && r->program->states[r->configs[i].state].accepts) return true;
    return false;
}

bool brute_is_free(const brute *r) {
    for (size_t i = 0; i < r->n; i++)
        if (r->program->states[r->configs[i].state].free) return true;
    return false;
}

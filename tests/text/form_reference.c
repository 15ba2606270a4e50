/* form_reference.c: see form_reference.h. */
#include "form_reference.h"

#include <stdlib.h>
#include <string.h>

typedef struct frame {
    uint32_t state;
    uint64_t count;
} frame;

typedef struct config {
    uint32_t n; /* frames; the last is the one under way */
    frame frames[FORM_MAX_FRAMES + 1];
} config;

typedef struct configs {
    config *items;
    size_t n, cap;
} configs;

struct form_reference {
    const form_program *p;
    configs now;
};

static void *checked(void *p) {
    if (!p) abort();
    return p;
}

static bool same(const config *a, const config *b) {
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->frames[i].state != b->frames[i].state || a->frames[i].count != b->frames[i].count) return false;
    return true;
}

static void add(const form_program *p, configs *set, const config *c) {
    if (c->n - 1 + p->states[c->frames[c->n - 1].state].need > FORM_MAX_FRAMES) return;
    for (size_t i = 0; i < set->n; i++)
        if (same(&set->items[i], c)) return;
    if (set->n == set->cap) {
        set->cap = set->cap ? 2 * set->cap : 16;
        set->items = checked(realloc(set->items, set->cap * sizeof *set->items));
    }
    set->items[set->n++] = *c;
}

static bool guard_holds(form_guard g, uint64_t *count) {
    switch (g.kind) {
    case FORM_INC:
        if (*count >= g.value) return false;
        ++*count;
        return true;
    case FORM_MIN: return *count >= g.value;
    case FORM_UNUSED:
        if (*count & g.value) return false;
        *count |= g.value;
        return true;
    case FORM_ALL: return (*count & g.value) == g.value;
    }
    return false;
}

/* All that is reached from the set without reading. */
static void spread(const form_program *p, configs *set) {
    for (size_t i = 0; i < set->n; i++) {
        const config c = set->items[i];
        const uint32_t top = c.n - 1;
        const form_state *s = &p->states[c.frames[top].state];
        if (s->accepts && top > 0) {
            config popped = c;
            popped.n--;
            add(p, set, &popped);
        }
        for (uint32_t e = s->guards; e < s->guards + s->n_guards; e++) {
            config moved = c;
            if (!guard_holds(p->guards[p->edges[e].what], &moved.frames[top].count)) continue;
            moved.frames[top].state = p->edges[e].next;
            add(p, set, &moved);
        }
        for (uint32_t e = s->calls; e < s->calls + s->n_calls; e++) {
            config called = c;
            if (p->edges[e].next != FORM_NONE) {
                if (top + p->states[p->edges[e].next].need > FORM_MAX_FRAMES || called.n > FORM_MAX_FRAMES) continue;
                called.frames[top].state = p->edges[e].next;
                called.n++;
            }
            called.frames[called.n - 1] = (frame){.state = p->machines[p->edges[e].what].start};
            add(p, set, &called);
        }
    }
}

form_reference *reference_open(const form_program *p, uint32_t machine) {
    form_reference *r = checked(calloc(1, sizeof *r));
    r->p = p;
    config *first = checked(calloc(1, sizeof *first));
    first->n = 1;
    first->frames[0].state = p->machines[machine].start;
    add(p, &r->now, first);
    free(first);
    spread(p, &r->now);
    return r;
}

void reference_close(form_reference *r) {
    free(r->now.items);
    free(r);
}

bool reference_read(form_reference *r, uint32_t symbol) {
    const form_program *p = r->p;
    configs next = {0};
    for (size_t i = 0; i < r->now.n; i++) {
        config c = r->now.items[i];
        frame *top = &c.frames[c.n - 1];
        const uint32_t to = form_next(p, top->state, symbol);
        if (to != FORM_NONE) top->state = to;
        if (to != FORM_NONE || (p->states[top->state].free && symbol != FORM_TOOL_BEGIN)) add(p, &next, &c);
    }
    if (next.n == 0) {
        free(next.items);
        return false;
    }
    spread(p, &next);
    free(r->now.items);
    r->now = next;
    return true;
}

bool reference_may_end(const form_reference *r) {
    for (size_t i = 0; i < r->now.n; i++)
        if (r->now.items[i].n == 1 && r->p->states[r->now.items[i].frames[0].state].accepts) return true;
    return false;
}

int reference_try(const form_program *p, const char *text, size_t n) {
    form_reference *r = reference_open(p, p->root);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        const unsigned char c = (unsigned char)text[i];
        ok = reference_read(r, c == *CALL_BEGIN ? FORM_TOOL_BEGIN : c == *CALL_END ? FORM_TOOL_END : c);
    }
    const int result = !ok ? -1 : reference_may_end(r);
    reference_close(r);
    return result;
}

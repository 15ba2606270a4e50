/* form_reference.c: see form_reference.h.  Written from form_program.h's rules alone. */
#include "form_reference.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Frames above the depth are of no meaning. */
static void copy(reference_config *to, const reference_config *from) {
    memcpy(to, from, offsetof(reference_config, frames) + from->depth * sizeof from->frames[0]);
}

static bool equal(const reference_config *a, const reference_config *b) {
    return a->state == b->state && a->depth == b->depth && a->count == b->count &&
           memcmp(a->frames, b->frames, a->depth * sizeof a->frames[0]) == 0;
}

static void add(form_reference *r, const reference_config *c) {
    for (size_t i = 0; i < r->n; i++)
        if (equal(&r->configs[i], c)) return;
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->configs = realloc(r->configs, r->cap * sizeof *r->configs);
        if (!r->configs) abort();
    }
    copy(&r->configs[r->n++], c);
}

static bool deep_enough(const form_reference *r, uint32_t state, size_t depth) {
    return depth + r->program->states[state].need <= FORM_MAX_FRAMES;
}

static bool guard(const form_guard *g, uint64_t *count) {
    const uint64_t before = *count;
    if (g->kind == FORM_INC) return *count = before + 1, before < g->value;
    if (g->kind == FORM_UNUSED) return *count = before | g->value, !(before & g->value);
    return g->kind == FORM_MIN ? before >= g->value : (before & g->value) == g->value;
}

static void close_set(form_reference *r) {
    const form_program *p = r->program;
    for (size_t i = 0; i < r->n; i++) {
        reference_config from, c;
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

void reference_begin(form_reference *r, const form_program *p, uint32_t machine) {
    reference_config c;
    c.depth = 0;
    c.count = 0;
    c.state = p->machines[machine].start;
    r->program = p;
    r->n = 0;
    add(r, &c);
    close_set(r);
}

void reference_free(form_reference *r) {
    free(r->configs);
    memset(r, 0, sizeof *r);
}

bool reference_step(const form_reference *from, uint32_t symbol, form_reference *to) {
    to->program = from->program;
    to->n = 0;
    for (size_t i = 0; i < from->n; i++) {
        const reference_config *c = &from->configs[i];
        const form_state *state = &from->program->states[c->state];
        uint32_t next = form_next(from->program, c->state, symbol);
        if (next == FORM_NONE && state->free && symbol != FORM_TOOL_BEGIN) next = c->state;
        if (next == FORM_NONE || !deep_enough(from, next, c->depth)) continue;
        reference_config moved;
        copy(&moved, c);
        moved.state = next;
        add(to, &moved);
    }
    close_set(to);
    return to->n > 0;
}

bool reference_accepts(const form_reference *r) {
    for (size_t i = 0; i < r->n; i++)
        if (!r->configs[i].depth && r->program->states[r->configs[i].state].accepts) return true;
    return false;
}

bool reference_is_free(const form_reference *r) {
    for (size_t i = 0; i < r->n; i++)
        if (r->program->states[r->configs[i].state].free) return true;
    return false;
}

static int try_symbols(const form_program *p, const char *text, size_t n, form_reference *at, form_reference *next) {
    reference_begin(at, p, p->root);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (!reference_step(at, c == *CALL_BEGIN ? FORM_TOOL_BEGIN : c == *CALL_END ? FORM_TOOL_END : c, next)) return -1;
        const form_reference swap = *at;
        *at = *next;
        *next = swap;
    }
    return reference_accepts(at);
}

int reference_try(const form_program *p, const char *text, size_t n) {
    form_reference at = {0}, next = {0};
    const int result = try_symbols(p, text, n, &at, &next);
    reference_free(&at);
    reference_free(&next);
    return result;
}

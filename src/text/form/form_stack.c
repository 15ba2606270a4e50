/* form_stack.c: see form_stack.h. */
#include "text/form/form_stack.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

/* ------------------------------------------------------------- hashes ---------------------------------------------------- */

form_bound *form_bounds_make(const form_program *p) {
    form_bound *bounds = mem_calloc(p->n_machines, sizeof *bounds);
    unsigned *n_values = mem_calloc(p->n_machines, sizeof *n_values);
    for (uint32_t s = 0; bounds && n_values && s < p->n_states; s++) {
        const form_state *state = &p->states[s];
        form_bound *bound = &bounds[state->machine];
        unsigned *n = &n_values[state->machine];
        for (uint32_t i = 0; i < state->n_guards; i++) {
            const form_guard *g = &p->guards[p->edges[state->guards + i].what];
            if (g->kind != FORM_INC && g->kind != FORM_MIN) continue;
            if (*n == 0) bound->low = bound->high = g->value;
            if (*n == 0 || (g->value != bound->low && g->value != bound->high)) ++*n;
            if (g->value < bound->low) bound->low = g->value;
            if (g->value > bound->high) bound->high = g->value;
            bound->counts = *n <= 2;
        }
    }
    if (!n_values) {
        mem_free(bounds);
        bounds = NULL;
    }
    mem_free(n_values);
    return bounds;
}

/* One count of all that no token can tell from this one: each byte comes with one INC at most. */
static uint64_t clamp_count(const form_arena *a, uint32_t machine, uint64_t count) {
    const form_bound *bound = &a->bounds[machine];
    if (!bound->counts) return count;
    const uint64_t next = count < bound->low ? bound->low : bound->high;
    if (count >= next) return next;
    return next - count > a->reach ? next - a->reach - 1 : count;
}

static form_hash mix(form_hash h, uint64_t x) {
    return (form_hash){random_mix(h.a + x + 0x9E3779B97F4A7C15u), random_mix((h.b ^ x) + 0xD1B54A32D192ED03u)};
}

static form_hash hash_place(const form_arena *a, uint32_t stack, uint32_t state, uint64_t count) {
    return mix(mix(a->frames[stack].hash, state), clamp_count(a, a->program->states[state].machine, count));
}

form_hash form_config_hash(const form_arena *a, const form_config *c) { return hash_place(a, c->stack, c->state, c->count); }

/* ------------------------------------------------------------- frames ---------------------------------------------------- */

enum { FIRST_BITS = 6 };

bool form_arena_open(form_arena *a, const form_program *p, const form_bound *bounds, uint32_t reach) {
    *a = (form_arena){.program = p, .bounds = bounds, .reach = reach, .bits = FIRST_BITS};
    a->slots = mem_calloc((size_t)1 << a->bits, sizeof *a->slots);
    if (!a->slots || mem_grow(&a->frames, &a->cap, 1, sizeof *a->frames, FORM_MAX_ARENA)) {
        form_arena_close(a);
        return false;
    }
    a->frames[0] = (form_frame){.state = FORM_NONE};
    a->n = 1;
    return true;
}

void form_arena_close(form_arena *a) {
    mem_free(a->frames);
    mem_free(a->slots);
    *a = (form_arena){0};
}

/* The slot where such a frame is, or belongs. */
static uint32_t *find_slot(const form_arena *a, uint32_t state, uint64_t count, uint32_t below) {
    const size_t mask = ((size_t)1 << a->bits) - 1;
    for (size_t i = random_mix(random_mix(count + below) ^ state) & mask;; i = (i + 1) & mask) {
        const form_frame *f = &a->frames[a->slots[i]];
        if (!a->slots[i] || (f->state == state && f->count == count && f->below == below)) return &a->slots[i];
    }
}

static bool grow_slots(form_arena *a) {
    const unsigned bits = a->bits + 1;
    uint32_t *slots = mem_calloc((size_t)1 << bits, sizeof *slots);
    if (!slots) return false;
    mem_free(a->slots);
    a->slots = slots;
    a->bits = bits;
    for (size_t i = 1; i < a->n; i++) *find_slot(a, a->frames[i].state, a->frames[i].count, a->frames[i].below) = (uint32_t)i;
    return true;
}

uint32_t form_arena_push(form_arena *a, uint32_t state, uint64_t count, uint32_t below) {
    uint32_t *slot = find_slot(a, state, count, below);
    if (*slot) return *slot;
    if (mem_grow(&a->frames, &a->cap, a->n + 1, sizeof *a->frames, FORM_MAX_ARENA)) return 0;
    if (a->n * 2 >= (size_t)1 << a->bits) {
        if (!grow_slots(a)) return 0;
        slot = find_slot(a, state, count, below);
    }
    a->frames[a->n] = (form_frame){
        .count = count, .hash = hash_place(a, below, state, count), .state = state, .below = below, .depth = a->frames[below].depth + 1};
    return *slot = (uint32_t)a->n++;
}

void form_arena_thin(form_arena *a, form_config *configs, size_t n) {
    for (size_t i = 0; i < a->n; i++) a->frames[i].moved = 0;
    for (size_t i = 0; i < n; i++) a->frames[configs[i].stack].moved = 1; /* needed; so are those below, which are older */
    for (size_t i = a->n; i-- > 1;)
        if (a->frames[i].moved) a->frames[a->frames[i].below].moved = 1;
    a->frames[0].moved = 0;
    memset(a->slots, 0, sizeof *a->slots << a->bits);
    const size_t before = a->n;
    a->n = 1;
    for (size_t i = 1; i < before; i++) {
        if (!a->frames[i].moved) continue;
        form_frame frame = a->frames[i];
        a->frames[i].moved = (uint32_t)a->n;
        frame.below = a->frames[frame.below].moved;
        frame.moved = a->frames[a->n].moved; /* the new number of the frame that stood there */
        a->frames[a->n] = frame;
        *find_slot(a, frame.state, frame.count, frame.below) = (uint32_t)a->n++;
    }
    for (size_t i = 0; i < n; i++) configs[i].stack = a->frames[configs[i].stack].moved;
}

/* --------------------------------------------------------- configurations ------------------------------------------------ */

bool form_sets_open(form_sets *s, form_arena *a, size_t n_levels) {
    *s = (form_sets){.arena = a, .max_levels = n_levels};
    s->levels = mem_calloc(n_levels, sizeof *s->levels);
    if (s->levels && !mem_grow(&s->configs, &s->cap, 2 * FORM_MAX_CONFIGS, sizeof *s->configs, SIZE_MAX / sizeof *s->configs)) return true;
    form_sets_free(s);
    return false;
}

void form_sets_free(form_sets *s) {
    mem_free(s->configs);
    mem_free(s->levels);
    *s = (form_sets){0};
}

/* true: it is there now, and was not before. */
static bool add(form_sets *s, form_config c, size_t most) {
    form_level *level = &s->levels[s->top];
    for (size_t i = level->begin; i < level->end; i++)
        if (s->configs[i].state == c.state && s->configs[i].stack == c.stack && s->configs[i].count == c.count) return false;
    if (level->end - level->begin >= most) {
        s->dropped = true;
        return false;
    }
    if (mem_grow(&s->configs, &s->cap, level->end + 1, sizeof *s->configs, SIZE_MAX / sizeof *s->configs)) {
        s->dropped = s->failed = true;
        return false;
    }
    s->configs[level->end++] = c;
    return true;
}

void form_sets_begin(form_sets *s, const form_config *configs, size_t n) {
    s->top = 0;
    s->levels[0] = (form_level){0};
    for (size_t i = 0; i < n; i++) add(s, configs[i], FORM_MAX_CONFIGS);
}

static uint32_t depth_of(const form_sets *s, uint32_t stack) { return s->arena->frames[stack].depth; }

static bool fits(const form_sets *s, uint32_t state, uint32_t depth) {
    return depth + s->arena->program->states[state].need <= FORM_MAX_FRAMES;
}

static void reach(form_sets *s, form_config c);

static void add_reached(form_sets *s, form_config c) {
    if (add(s, c, FORM_MAX_CONFIGS)) reach(s, c);
}

static void follow_guard(form_sets *s, form_config c, const form_edge *e) {
    const form_guard *g = &s->arena->program->guards[e->what];
    switch (g->kind) {
    case FORM_INC:
        if (c.count++ >= g->value) return;
        break;
    case FORM_MIN:
        if (c.count < g->value) return;
        break;
    case FORM_UNUSED:
        if (c.count & g->value) return;
        c.count |= g->value;
        break;
    case FORM_ALL:
        if ((c.count & g->value) != g->value) return;
        break;
    }
    c.state = e->next;
    if (fits(s, c.state, depth_of(s, c.stack))) add_reached(s, c);
}

static void follow_call(form_sets *s, form_config c, const form_edge *e) {
    const uint32_t depth = depth_of(s, c.stack), start = s->arena->program->machines[e->what].start;
    const bool tail = e->next == FORM_NONE;
    if (!fits(s, start, tail ? depth : depth + 1) || (!tail && !fits(s, e->next, depth))) return;
    const uint32_t stack = tail ? c.stack : form_arena_push(s->arena, e->next, c.count, c.stack);
    if (!tail && !stack)
        s->dropped = s->failed = true;
    else
        add_reached(s, (form_config){.state = start, .stack = stack});
}

/* Adds what c, which is there, reaches without reading: at once as far as it goes, so that where the room ends, those that are there
 * lead somewhere.  The depth of this is bounded, since no moves that read nothing go in a circle. */
static void reach(form_sets *s, form_config c) {
    const form_program *p = s->arena->program;
    const form_state *state = &p->states[c.state];
    for (uint32_t k = 0; k < state->n_guards; k++) follow_guard(s, c, &p->edges[state->guards + k]);
    for (uint32_t k = 0; k < state->n_calls; k++) follow_call(s, c, &p->edges[state->calls + k]);
    if (!state->accepts || !c.stack) return;
    const form_frame *frame = &s->arena->frames[c.stack];
    add_reached(s, (form_config){.state = frame->state, .count = frame->count, .stack = frame->below});
}

void form_sets_close(form_sets *s) {
    form_level *level = &s->levels[s->top];
    level->read_end = level->end;
    for (size_t i = level->begin; i < level->read_end; i++) reach(s, s->configs[i]);
    level->closed = true;
}

bool form_sets_step(form_sets *s, size_t l, uint32_t symbol) {
    s->top = l;
    if (!s->levels[l].closed) form_sets_close(s);
    const form_level from = s->levels[l];
    s->levels[++s->top] = (form_level){.begin = from.end, .end = from.end};
    for (size_t i = from.begin; i < from.end; i++) {
        form_config c = s->configs[i];
        c.state = form_next(s->arena->program, c.state, symbol);
        if (c.state != FORM_NONE && fits(s, c.state, depth_of(s, c.stack))) add(s, c, FORM_MAX_READ);
    }
    return s->levels[s->top].end > s->levels[s->top].begin;
}

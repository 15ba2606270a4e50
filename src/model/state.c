/* state.c: see state.h. */
#include "model/state.h"

#include <string.h>

#include "base/memory.h"

/* ---- pools ---- */

static bool pool_open(pool *p, uint32_t n) {
    *p = (pool){.free = mem_array(n, sizeof(uint32_t)), .refs = mem_calloc(n, sizeof(uint32_t)), .n = n, .n_free = n};
    if (!p->free || !p->refs) return false;
    for (uint32_t i = 0; i < n; i++) p->free[i] = n - 1 - i; /* low numbers first: untouched memory stays untouched */
    return true;
}

static void pool_close(pool *p) {
    mem_free(p->free);
    mem_free(p->refs);
    *p = (pool){0};
}

static uint32_t pool_take(pool *p) {
    if (!p->n_free) return NO_SLOT;
    uint32_t i = p->free[--p->n_free];
    p->refs[i] = 1;
    return i;
}

static void pool_release(pool *p, uint32_t i) {
    if (i != NO_SLOT && --p->refs[i] == 0) p->free[p->n_free++] = i;
}

static void pool_retain(pool *p, uint32_t i) {
    if (i != NO_SLOT) p->refs[i]++;
}

calla_status state_open(state *st, const backend_vtable *vt, backend *device, const backend_limits *limits, calla_error *err) {
    *st = (state){.vt = vt, .device = device};
    if (!pool_open(&st->pages, limits->pages) || !pool_open(&st->slots, limits->slots)) {
        state_close(st);
        return error_nomem(err, "the pools of pages and slots");
    }
    return CALLA_OK;
}

void state_close(state *st) {
    pool_close(&st->pages);
    pool_close(&st->slots);
}

/* ---- sequences ---- */

static uint32_t pages_for(uint32_t tokens) { return tokens / KV_PAGE_TOKENS + (tokens % KV_PAGE_TOKENS != 0); }

static void drop_pages(sequence *s, uint32_t keep) {
    while (s->pages > keep) pool_release(&s->st->pages, s->page[--s->pages]);
}

static void forget_before(sequence *s) {
    if (s->can_roll_back) pool_release(&s->st->slots, s->before_slot);
    s->can_roll_back = false;
}

sequence *sequence_create(state *st) {
    sequence *s = mem_calloc(1, sizeof *s);
    if (!s || !(s->page = mem_array(st->pages.n, sizeof *s->page))) {
        mem_free(s);
        return NULL;
    }
    s->st = st;
    s->slot = NO_SLOT;
    return s;
}

void sequence_reset(sequence *s) {
    forget_before(s);
    drop_pages(s, 0);
    pool_release(&s->st->slots, s->slot);
    s->slot = NO_SLOT;
    s->tokens = 0;
}

void sequence_close(sequence *s) {
    if (!s) return;
    sequence_reset(s);
    mem_free(s->page);
    mem_free(s);
}

uint32_t sequence_tokens(const sequence *s) { return s->tokens; }

uint32_t sequence_room(const sequence *s) {
    uint32_t in_page = s->pages * KV_PAGE_TOKENS - s->tokens, free_pages = s->st->pages.n_free;
    if (in_page && s->st->pages.refs[s->page[s->pages - 1]] > 1) { /* would have to be copied first */
        if (!free_pages) return 0;
        free_pages--;
    }
    return in_page + free_pages * KV_PAGE_TOKENS;
}

calla_status sequence_fork(sequence *s, sequence **out, calla_error *err) {
    *out = sequence_create(s->st);
    if (!*out) return error_nomem(err, "a sequence");
    sequence_fork_into(s, *out);
    return CALLA_OK;
}

void sequence_fork_into(const sequence *s, sequence *to) {
    sequence_reset(to);
    to->tokens = s->tokens;
    to->slot = s->slot;
    to->pages = s->pages;
    memcpy(to->page, s->page, s->pages * sizeof *s->page);
    for (uint32_t i = 0; i < s->pages; i++) pool_retain(&s->st->pages, s->page[i]);
    pool_retain(&s->st->slots, s->slot);
}

calla_status sequence_rollback(sequence *s, calla_error *err) {
    if (!s->can_roll_back) return error_set(err, CALLA_E_ARGUMENT, "rollback: no step to undo; only the last step of a sequence can be");
    pool_release(&s->st->slots, s->slot);
    s->slot = s->before_slot;
    s->tokens = s->before_tokens;
    s->can_roll_back = false;
    drop_pages(s, pages_for(s->tokens));
    return CALLA_OK;
}

/* Makes the last, partly filled page this sequence's own. */
static calla_status own_last_page(sequence *s, calla_error *err) {
    if (s->tokens % KV_PAGE_TOKENS == 0 || s->st->pages.refs[s->page[s->pages - 1]] == 1) return CALLA_OK;
    uint32_t copy = pool_take(&s->st->pages);
    if (copy == NO_SLOT) return error_set(err, CALLA_E_LIMIT, "no KV page is left; use a larger --context or fewer sequences");
    s->st->vt->copy_page(s->st->device, s->page[s->pages - 1], copy, s->tokens % KV_PAGE_TOKENS);
    pool_release(&s->st->pages, s->page[s->pages - 1]);
    s->page[s->pages - 1] = copy;
    return CALLA_OK;
}

calla_status sequence_begin(sequence *s, uint32_t rows, calla_error *err) {
    if (rows > UINT32_MAX - KV_PAGE_TOKENS - s->tokens || pages_for(s->tokens + rows) > s->st->pages.n)
        return error_set(err, CALLA_E_LIMIT, "a sequence of %llu tokens does not fit the %llu of the KV cache",
                         (unsigned long long)s->tokens + rows, (unsigned long long)s->st->pages.n * KV_PAGE_TOKENS);
    calla_status status = own_last_page(s, err);
    if (status) return status;
    forget_before(s);
    s->step_pages = s->pages;
    while (s->pages < pages_for(s->tokens + rows)) {
        uint32_t page = pool_take(&s->st->pages);
        if (page == NO_SLOT) {
            drop_pages(s, s->step_pages);
            return error_set(err, CALLA_E_LIMIT, "no KV page is left; use a larger --context or fewer sequences");
        }
        s->page[s->pages++] = page;
    }
    s->step_slot = pool_take(&s->st->slots);
    if (s->step_slot == NO_SLOT) {
        drop_pages(s, s->step_pages);
        return error_set(err, CALLA_E_LIMIT, "no state slot is left: more than %u sequences hold tokens", s->st->slots.n / 2);
    }
    s->step_rows = rows;
    return CALLA_OK;
}

void sequence_commit(sequence *s) {
    s->before_slot = s->slot;
    s->before_tokens = s->tokens;
    s->can_roll_back = true;
    s->slot = s->step_slot;
    s->tokens += s->step_rows;
    s->step_rows = 0;
}

void sequence_abandon(sequence *s) {
    drop_pages(s, s->step_pages);
    pool_release(&s->st->slots, s->step_slot);
    s->step_rows = 0;
}

void sequence_lose_state(sequence *s) {
    pool_release(&s->st->slots, s->slot);
    s->slot = NO_SLOT;
}

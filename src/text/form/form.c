/* form.c: calla_form_*: a compiled program with what matchers share: masks, and what is known of wide machines. */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_impl.h"
#include "text/text.h"

enum {
    CACHE_BYTES = 4 << 20, /* of each of the two generations: some 250 wide masks of the real vocabulary, or thousands of narrow ones */
    LOCAL_BYTES = 16 << 20,
    WARM_NODES = 5 << 20 /* of the trie: some 50 ms */
};

static void set_bit(uint32_t *mask, int32_t id) { mask[id / 32] |= UINT32_C(1) << id % 32; }

static bool make_masks(calla_form *f) {
    f->thought = mem_calloc(f->trie->n_words, sizeof *f->thought);
    f->no_call = mem_calloc(f->trie->n_words, sizeof *f->no_call);
    if (!f->thought || !f->no_call) return false;
    const int32_t n_ids = (int32_t)tokenizer_vocabulary(f->tokenizer);
    for (int32_t id = 0; id < n_ids; id++) {
        size_t n;
        if (id == f->trie->call_id || !tokenizer_bytes(f->tokenizer, id, &n)) continue;
        set_bit(f->no_call, id);
        /* engines stop at more tokens than the tokenizer's own: all of them are special */
        if (id != f->trie->stop_id && !tokenizer_is_special(f->tokenizer, id)) set_bit(f->thought, id);
    }
    return true;
}

/* Machines that may run with nothing to return to: the root's, and those that it leaves the rest to. */
static void mark_last(const form_program *p, uint32_t machine, bool *last) {
    if (last[machine]) return;
    last[machine] = true;
    const form_machine *m = &p->machines[machine];
    for (uint32_t s = m->first_state; s < m->first_state + m->n_states; s++)
        for (uint32_t i = 0; i < p->states[s].n_calls; i++) {
            const form_edge *e = &p->edges[p->states[s].calls + i];
            if (e->next == FORM_NONE) mark_last(p, e->what, last);
        }
}

/* Makes what is known of a state of a wide or counted machine; of a program's own, while something is left to spend. */
static void warm_state(const calla_form *f, uint32_t state, bool rests, size_t *left) {
    const form_program *p = f->program;
    const form_state *s = &p->states[state];
    const uint32_t of = p->machines[s->machine].kind == FORM_COUNTED ? p->states[s->twin].machine : s->machine;
    const bool own = p->machines[of].common == FORM_OWN;
    if (own && !*left) return;
    form_local *owned;
    const form_local *l = form_local_get(&f->maker, state, rests, &owned);
    if (l && own) *left -= l->n_visited < *left ? l->n_visited : *left;
    form_local_free(owned);
}

/* What the first masks in strings and free text would wait for, some milliseconds each: here it is not the engine's thread that waits.
 * Of machines that all forms have in common only the first form makes it; of its own, as much as WARM_NODES allow.  What is not there,
 * for this or for want of memory, is made when it is needed. */
static void warm(const calla_form *f) {
    const form_program *p = f->program;
    bool *last = mem_calloc(p->n_machines, sizeof *last);
    if (!last) return;
    mark_last(p, p->root, last);
    mark_last(p, p->thought, last);
    size_t left = WARM_NODES;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const form_machine *m = &p->machines[p->states[s].machine];
        const bool rests = !last[p->states[s].machine];
        if (m->kind == FORM_WIDE) warm_state(f, s, rests, &left);
        const uint32_t twin = p->states[s].twin;
        if (m->kind != FORM_COUNTED || twin == FORM_NONE || twin != f->hubs[p->states[twin].machine]) continue; /* elsewhere it is rare */
        if (!m->text) warm_state(f, s, rests, &left);
        warm_state(f, twin, rests, &left); /* far from its bounds */
    }
    mem_free(last);
}

calla_status form_open(const calla_text *text, form_program *program, calla_form **out, calla_error *err) {
    *out = NULL;
    const form_trie *trie;
    form_locals *common;
    calla_status status = text_forms(text, &trie, &common, err);
    calla_form *f = status ? NULL : mem_calloc(1, sizeof *f);
    if (!f) {
        form_program_free(program);
        return status ? status : error_nomem(err, "an answer's form");
    }
    atomic_init(&f->owners, 1);
    f->tokenizer = text->tokenizer;
    f->trie = trie;
    f->program = program;
    f->bounds = form_bounds_make(program);
    f->hubs = form_hubs_make(program);
    f->maker = (form_local_maker){
        .program = program, .trie = trie, .tokenizer = text->tokenizer, .hubs = f->hubs, .own = &f->locals, .common = common};
    if (!f->bounds || !f->hubs || !make_masks(f) || !form_locals_open(&f->locals, (size_t)program->n_states * 4, LOCAL_BYTES) ||
        !form_cache_open(&f->cache, trie->n_words, CACHE_BYTES)) {
        calla_form_release(f);
        return error_nomem(err, "an answer's form");
    }
    warm(f);
    *out = f;
    return CALLA_OK;
}

calla_status calla_form_compile(const calla_text *text, const calla_form_options *options, calla_form **out, calla_error *err) {
    *out = NULL;
    if (err) *err = (calla_error){0};
    form_program *program;
    calla_status status = form_program_compile(options, &program, err);
    return status ? status : form_open(text, program, out, err);
}

calla_form *calla_form_share(calla_form *form) {
    atomic_fetch_add_explicit(&form->owners, 1, memory_order_relaxed);
    return form;
}

static size_t program_bytes(const form_program *p) {
    return sizeof *p + p->n_machines * sizeof *p->machines + p->n_states * sizeof *p->states + p->n_rows * sizeof *p->rows +
           p->n_edges * sizeof *p->edges + p->n_guards * sizeof *p->guards + p->n_class_maps * sizeof *p->class_maps;
}

size_t calla_form_bytes(calla_form *f) {
    size_t bytes = sizeof *f + program_bytes(f->program) + f->program->n_machines * (sizeof *f->bounds + sizeof *f->hubs) +
                   f->trie->n_words * (sizeof *f->thought + sizeof *f->no_call) + f->locals.n * sizeof *f->locals.of;
    pthread_mutex_lock(&f->locals.mutex);
    bytes += f->locals.bytes;
    pthread_mutex_unlock(&f->locals.mutex);
    return bytes + form_cache_bytes(&f->cache);
}

void calla_form_release(calla_form *form) {
    if (!form || atomic_fetch_sub_explicit(&form->owners, 1, memory_order_acq_rel) > 1) return;
    form_cache_close(&form->cache);
    form_locals_close(&form->locals);
    form_program_free(form->program);
    mem_free(form->bounds);
    mem_free(form->hubs);
    mem_free(form->thought);
    mem_free(form->no_call);
    mem_free(form);
}

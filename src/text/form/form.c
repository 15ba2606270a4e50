/* form.c: calla_form_*: a compiled program with what matchers share: masks, and what is known of wide machines. */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_impl.h"
#include "text/text.h"

enum {
    CACHE_BYTES = 4 << 20, /* of each of the two generations: some 250 wide masks of the real vocabulary, or thousands of narrow ones */
    LOCAL_BYTES = 32 << 20
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

/* What the first masks in strings and free text would wait for: it is the same for all forms, so only the first one pays, and here it is
 * not the engine's thread that waits.  Where there is no memory, it is made when it is needed. */
static void warm(const calla_form *f) {
    const form_program *p = f->program;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const form_machine *m = &p->machines[p->states[s].machine];
        const uint32_t twin = p->states[s].twin;
        const bool wide = m->kind == FORM_WIDE && m->common != FORM_OWN;
        const bool counted = m->kind == FORM_COUNTED && twin != FORM_NONE && p->machines[p->states[twin].machine].common != FORM_OWN;
        form_local *owned = NULL;
        if (wide || counted) form_local_get(&f->maker, s, true, &owned);
        form_local_free(owned);
    }
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
    f->maker = (form_local_maker){.program = program, .trie = trie, .tokenizer = text->tokenizer, .own = &f->locals, .common = common};
    if (!f->bounds || !make_masks(f) || !form_locals_open(&f->locals, (size_t)program->n_states * 4, LOCAL_BYTES) ||
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

void calla_form_release(calla_form *form) {
    if (!form || atomic_fetch_sub_explicit(&form->owners, 1, memory_order_acq_rel) > 1) return;
    form_cache_close(&form->cache);
    form_locals_close(&form->locals);
    form_program_free(form->program);
    mem_free(form->bounds);
    mem_free(form->thought);
    mem_free(form->no_call);
    mem_free(form);
}

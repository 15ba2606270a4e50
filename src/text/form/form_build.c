/* form_build.c: see form_build.h. */
#include "text/form/form_build.h"

#include <string.h>

#include "base/memory.h"

void form_build_open(form_build *b, calla_error *err) {
    *b = (form_build){0};
    form_work_open(&b->work, err);
}

void form_build_close(form_build *b) {
    for (size_t i = 0; i < b->n_machines; i++) form_dfa_free(&b->machines[i].dfa);
    mem_free(b->machines);
    mem_free(b->guards);
    form_table_free(&b->keys);
    form_work_close(&b->work);
}

typedef struct machine_key {
    const void *bytes;
    size_t n;
} machine_key;

static bool same_key(const void *user, uint32_t item, const void *key) {
    const build_machine *m = &((const form_build *)user)->machines[item];
    const machine_key *k = key;
    return m->n_key == k->n && memcmp(m->key, k->bytes, k->n) == 0;
}

uint32_t form_machine_of(form_build *b, const void *key, size_t n_key, form_build_fn fn, const void *user, bool *fresh) {
    *fresh = false;
    if (form_failed(&b->work)) return 0;
    const machine_key k = {key, n_key};
    const uint64_t hash = form_hash(key, n_key);
    const uint32_t found = form_table_find(&b->keys, hash, same_key, b, &k);
    if (found != FORM_NONE) return found;
    if (b->n_machines >= FORM_MAX_STATES) {
        form_fail_limit(&b->work, "states");
        return 0;
    }
    if (!form_grow(&b->work, &b->machines, &b->cap_machines, b->n_machines + 1, sizeof *b->machines)) return 0;
    const uint32_t machine = (uint32_t)b->n_machines++;
    b->machines[machine] = (build_machine){.twin = FORM_NONE,
                                           .fn = fn,
                                           .user = user,
                                           .key = key,
                                           .n_key = n_key,
                                           .where = b->work.where,
                                           .path = b->work.path,
                                           .keyword = b->work.keyword};
    form_table_add(&b->work, &b->keys, hash, machine);
    *fresh = true;
    return machine;
}

uint32_t form_guard_of(form_build *b, form_guard_kind kind, uint64_t value) {
    for (size_t i = b->n_guards > 256 ? b->n_guards - 256 : 0; i < b->n_guards; i++) /* one twice does no harm */
        if (b->guards[i].kind == kind && b->guards[i].value == value) return FORM_SYMBOL_GUARD + (uint32_t)i;
    if (!form_grow(&b->work, &b->guards, &b->cap_guards, b->n_guards + 1, sizeof *b->guards)) return FORM_SYMBOL_GUARD;
    if (b->n_guards >= FORM_SYMBOL_CALL - FORM_SYMBOL_GUARD) {
        form_fail_limit(&b->work, "states");
        return FORM_SYMBOL_GUARD;
    }
    b->guards[b->n_guards] = (form_guard){kind, value};
    return FORM_SYMBOL_GUARD + (uint32_t)b->n_guards++;
}

void form_build_run(form_build *b) {
    for (; b->n_built < b->n_machines && !form_failed(&b->work); b->n_built++) {
        const build_machine m = b->machines[b->n_built]; /* a copy: the array grows */
        b->work.where = m.where;
        b->work.path = m.path;
        b->work.keyword = m.keyword;
        form_nfa n = {.work = &b->work};
        form_dfa dfa = {0};
        m.fn(b, m.user, &n, &dfa);
        form_nfa_free(&n);
        b->machines[b->n_built].dfa = dfa;
        b->n_states += dfa.n_states;
        if (b->n_states > FORM_MAX_STATES) form_fail_limit(&b->work, "states");
    }
}

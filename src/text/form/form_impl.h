/* form_impl.h: inside of a calla_form, for form.c, which makes it, and the matcher. */
#ifndef CALLA_TEXT_FORM_IMPL_H
#define CALLA_TEXT_FORM_IMPL_H

#include <stdatomic.h>

#include "text/form/form_cache.h"
#include "text/form/form_local.h"
#include "text/form/form_stack.h"

struct calla_form {
    atomic_uint owners;
    const tokenizer *tokenizer;
    const form_trie *trie;
    form_program *program;
    form_bound *bounds; /* [n_machines] */
    uint32_t *hubs;     /* [n_machines] */
    uint32_t *thought;  /* [n_words] what may follow in a thought while something is owed: neither stop nor <tool_call> */
    uint32_t *no_call;  /* [n_words] what may follow in free text without calls: all but <tool_call> */
    form_locals locals; /* of the program's own machines */
    form_local_maker maker;
    form_cache cache;
};

/* A form of a program, which it owns then, also when this fails. */
calla_status form_open(const calla_text *text, form_program *program, calla_form **out, calla_error *err);

#endif

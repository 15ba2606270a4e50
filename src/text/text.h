/* text.h: a model folder's text side as the other folders see it; the public calla_text_* functions of calla.h are its thin shell. */
#ifndef CALLA_TEXT_TEXT_H
#define CALLA_TEXT_TEXT_H

#include <pthread.h>

#include "base/json.h"
#include "text/form/form_local.h"
#include "text/form/form_trie.h"
#include "text/template.h"
#include "text/tokenizer.h"

/* What is made when it is first asked for: most answers need none of it. */
typedef struct text_lazy {
    pthread_mutex_t mutex;
    form_trie *trie;     /* NULL: not yet */
    form_locals commons; /* of the machines that all forms have in common */
} text_lazy;

struct calla_text {
    tokenizer *tokenizer;
    template_kind template_kind;
    text_lazy *lazy;
};

/* What all forms need: the vocabulary as a trie, and what is known of the machines that they have in common.  Made by the first caller;
 * others wait for it.  Any thread.  Both live as long as text. */
calla_status text_forms(const calla_text *text, const form_trie **trie, form_locals **commons, calla_error *err);

/* The same as calla_text_render for a parsed request and options. */
calla_status text_render(const calla_text *text, const template_request *request, calla_prompt *out, calla_error *err);

#endif

/* text.h: a model folder's text side as the other folders see it; the public calla_text_* functions of calla.h are its thin shell. */
#ifndef CALLA_TEXT_TEXT_H
#define CALLA_TEXT_TEXT_H

#include "base/json.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct calla_text {
    tokenizer *tokenizer;
    template_kind template_kind;
};

/* The same as calla_text_render for a parsed request and options. */
calla_status text_render(const calla_text *text, const template_request *request, calla_prompt *out, calla_error *err);

#endif

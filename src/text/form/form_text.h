/* form_text.h: bare text as the value of a parameter in a tool call. */
#ifndef CALLA_TEXT_FORM_FORM_TEXT_H
#define CALLA_TEXT_FORM_FORM_TEXT_H

#include "text/form/form_build.h"

/* UTF-8 in which tool_call.c finds no end of the value before the one that is meant. */
void text_content_dfa(form_build *b, form_dfa *out);
/* Such text and SCHEMA_CLOSING: FORM_TEXT. */
uint32_t text_machine(form_build *b);

#endif

/* form_text.h: bare text as the value of a parameter in a tool call, and what closes a value. */
#ifndef CALLA_TEXT_FORM_FORM_TEXT_H
#define CALLA_TEXT_FORM_FORM_TEXT_H

#include "text/form/form_build.h"

/* UTF-8 in which tool_call.c finds no end of the value before the one that is meant.  is_short: it may end behind any of its characters,
 * as a bound of length asks; so it has no "</parameter>" at all. */
void text_content_dfa(form_build *b, bool is_short, form_dfa *out);
uint32_t text_machine(form_build *b, bool is_short); /* of such texts: FORM_TEXT or FORM_SHORT_TEXT */
/* Texts in which a "</parameter>" stands that tool_call.c would take for the end: what strings of JSON must not have. */
void text_closing_dfa(form_nfa *n, form_dfa *out);

/* "\n</parameter>\n" as the template has it, and as models slip, which tool_call.c mends: twice, with more or fewer line ends.  exact: the
 * first line end is there, so that one at the end of the value cannot be taken for it. */
nfa_part text_closing(form_nfa *n, bool exact);
nfa_part text_gap(form_nfa *n); /* the line end between two tags; two or none do as well */

#endif

/* form_regex.h: regular expressions, the part of ECMAScript's (with its u flag) that an automaton can hold: docs/structured.md lists it. */
#ifndef CALLA_TEXT_FORM_FORM_REGEX_H
#define CALLA_TEXT_FORM_FORM_REGEX_H

#include "text/form/form_json.h"

typedef enum regex_spelling {
    REGEX_UTF8, /* the text itself */
    REGEX_JSON  /* the text as the inside of a JSON string, in its one spelling (json_code_points) */
} regex_spelling;

typedef struct regex_node regex_node;

/* text [n].  NULL: why is CALLA_E_ARGUMENT where it is malformed, CALLA_E_UNSUPPORTED where it is not one of those that are understood,
 * unless the work itself failed.  Lives as long as the work. */
const regex_node *regex_parse(form_work *w, const char *text, size_t n, calla_error *why);
/* whole: the text as a whole must match; else some part of it, as JSON schemas have it.  n: empty. */
void regex_to_dfa(const regex_node *r, regex_spelling spelling, bool whole, form_nfa *n, form_dfa *out);

#endif

/* form_any.h: JSON values of which nothing is asked. */
#ifndef CALLA_TEXT_FORM_FORM_ANY_H
#define CALLA_TEXT_FORM_FORM_ANY_H

#include "text/form/form_json.h"

typedef enum json_any { JSON_ANY_STRING, JSON_ANY_OBJECT, JSON_ANY_ARRAY, JSON_ANY_VALUE } json_any;

/* in_call: the value stands in a tool call, where no string may hold what would end the parameter. */
uint32_t json_any_machine(form_build *b, json_any which, bool in_call);

/* A list "[a, b]" or "{…}" of elements: open, white space, elements with commas and white space between them, white space, close. */
nfa_part json_list(form_build *b, form_nfa *n, const char *open, nfa_part first, nfa_part again, const char *close);

#endif

/* form_json.h: the pieces of JSON text that know of no schema: white space, strings, numbers, literal values. */
#ifndef CALLA_TEXT_FORM_FORM_JSON_H
#define CALLA_TEXT_FORM_FORM_JSON_H

#include "base/json.h"
#include "text/form/form_build.h"

enum { JSON_SPACE_INDENT = 64 /* blanks and tabs behind a line end */ };

/* One of FORM_STRING, FORM_WHITE_SPACE, FORM_NUMBER, FORM_INTEGER. */
uint32_t json_machine(form_build *b, form_common which);
nfa_part json_space(form_build *b, form_nfa *n); /* a call of FORM_WHITE_SPACE */

/* One character of a JSON string, in all its spellings; U+0000 and lone surrogates are none. */
nfa_part json_any_char(form_nfa *n);

/* Ranges of code points as their only spelling: in UTF-8; and as JSON.stringify writes them within a string (quoted), so that each text
 * has one spelling.  What is no character (surrogates; U+0000 when quoted) is left out. */
nfa_part nfa_code_points(form_nfa *n, uint32_t lo, uint32_t hi);
nfa_part json_code_points(form_nfa *n, uint32_t lo, uint32_t hi);

/* A string [length] of UTF-8 with its quotes, in that spelling.  closing: "</" is written as "<\/". */
nfa_part json_string_literal(form_nfa *n, const char *s, size_t length, bool closing);
/* Exactly this value, with white space where it may stand. */
nfa_part json_literal(form_build *b, form_nfa *n, json_object *value, bool closing);

#endif

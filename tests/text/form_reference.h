/* form_reference.h: a program read as form_program.h says, byte by byte, with no cleverness: what tests compare with. */
#ifndef CALLA_TESTS_FORM_REFERENCE_H
#define CALLA_TESTS_FORM_REFERENCE_H

#include "text/form/form_program.h"

/* <tool_call> and </tool_call> in the texts of tests. */
#define CALL_BEGIN "\x01"
#define CALL_END "\x02"

typedef struct form_reference form_reference;

form_reference *reference_open(const form_program *p, uint32_t machine); /* aborts when out of memory, as do all of these */
void reference_close(form_reference *r);
/* A byte, FORM_TOOL_BEGIN or FORM_TOOL_END.  false: forbidden, and nothing has changed. */
bool reference_read(form_reference *r, uint32_t symbol);
bool reference_may_end(const form_reference *r);
/* From the root: 1: accepted; 0: a valid beginning; -1: refused. */
int reference_try(const form_program *p, const char *text, size_t n);

#endif

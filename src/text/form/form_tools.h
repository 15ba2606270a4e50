/* form_tools.h: tool calls in the model's own form, held to the tools of the request. */
#ifndef CALLA_TEXT_FORM_FORM_TOOLS_H
#define CALLA_TEXT_FORM_FORM_TOOLS_H

#include "text/form/form_schema.h"
#include "text/tool_set.h"

/* Live as long as the compilation. */
typedef struct form_tools {
    const tool_set *set;
    const char *only; /* the one function that may be called, or NULL */
    bool one_call;
} form_tools;

/* <tool_call> … </tool_call>, and unless it is the only one, more behind it. */
nfa_part form_tool_calls(form_build *b, const form_tools *tools, form_nfa *n);

#endif

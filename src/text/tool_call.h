/* tool_call.h: one call as the model writes it.
 *
 *     <function=NAME>
 *     <parameter=P>
 *     VALUE
 *     </parameter>
 *     …
 *     </function>
 *
 * A value is bare text and may hold any of these tags itself, so tags end it only where something that may follow them follows.  A
 * closing </parameter> may be missing or come twice: models do both. */
#ifndef CALLA_TEXT_TOOL_CALL_H
#define CALLA_TEXT_TOOL_CALL_H

#include "text/tool_set.h"

typedef enum tool_call_state {
    TOOL_CALL_COMPLETE,
    TOOL_CALL_INCOMPLETE, /* may become a call with more text */
    TOOL_CALL_MALFORMED,  /* no text makes it a call */
    TOOL_CALL_NOMEM
} tool_call_state;

typedef struct tool_call {
    buffer name;
    buffer arguments; /* a JSON object */
    size_t n_text;    /* how much of the text the call took */
} tool_call;

/* Whether text [n] begins, after white space, with a call: <function=NAME> and then a parameter or the function's end.  NAME must be one
 * of the tools if `known_only`. */
tool_call_state tool_call_head(const tool_set *set, const char *text, size_t n, bool known_only);

/* Reads one call from the beginning of text [n].  `ended`: the model closed what surrounds the call after this text, so that a missing
 * </function> is forgiven.  call's buffers are cleared and written. */
tool_call_state tool_call_parse(const tool_set *set, const char *text, size_t n, bool ended, tool_call *call);
void tool_call_free(tool_call *call);

#endif

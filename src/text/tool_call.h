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
 * closing </parameter> may be missing or come twice: models do both.  A parameter that comes a second time is dropped. */
#ifndef CALLA_TEXT_TOOL_CALL_H
#define CALLA_TEXT_TOOL_CALL_H

#include "text/tool_set.h"

typedef enum tool_call_state {
    TOOL_CALL_COMPLETE,
    TOOL_CALL_INCOMPLETE, /* may become a call with more text */
    TOOL_CALL_MALFORMED,  /* no text makes it a call */
    TOOL_CALL_NOMEM
} tool_call_state;

/* Whether text [n] begins, after white space, with a call: <function=NAME> and then a parameter or the function's end.  NAME must be one
 * of the tools if `known_only`. */
tool_call_state tool_call_head(const tool_set *set, const char *text, size_t n, bool known_only);

/* One call, read as its text comes: however the text is cut, the same JSON comes out.  Starts as {0}. */
typedef struct tool_stream {
    const tool_set *set;
    json_object *parameters; /* the schema of the tool's parameters, borrowed; NULL: nothing is known */
    json_object *seen;       /* names of parameters so far, owned; NULL until there is one */
    buffer name;             /* of the function; empty until it was read */
    buffer parameter;        /* the name of the parameter under way */
    buffer value;            /* its value, if that is printed only as a whole */
    enum { STREAM_HEAD, STREAM_BETWEEN, STREAM_VALUE } state;
    bool printing;   /* the value is printed as a string while it comes */
    bool repeated;   /* the parameter was there before: its value is dropped */
    bool closes;     /* a closing tag was part of the value: the last one will be there, too */
    size_t value_at; /* bytes of the value that were read */
    char last;       /* the last of them */
} tool_stream;

void tool_stream_begin(tool_stream *t, const tool_set *set);
/* Reads text [n], which is what was not read before and what came since; *used bytes of it need not come again.  `ended`: what surrounds
 * the call was closed behind this text, so that closing tags may be missing.  The arguments' JSON that is certain is appended to json.
 * Once MALFORMED nothing more is to be read. */
tool_call_state tool_stream_read(tool_stream *t, const char *text, size_t n, bool ended, size_t *used, buffer *json);
/* The call ends here, whole or not: closes what is open.  rest [n]: what had not been used. */
void tool_stream_close(tool_stream *t, const char *rest, size_t n, buffer *json);
void tool_stream_free(tool_stream *t);

typedef struct tool_call {
    tool_stream stream;
    buffer arguments; /* a JSON object */
    size_t n_text;    /* how much of the text the call took */
} tool_call;

/* Reads one whole call from the beginning of text [n].  call->stream.name is the function's name. */
tool_call_state tool_call_parse(const tool_set *set, const char *text, size_t n, bool ended, tool_call *call);
void tool_call_free(tool_call *call);

#endif

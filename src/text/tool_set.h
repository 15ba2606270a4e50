/* tool_set.h: the tools of a request: which names there are, and which JSON types an argument may have. */
#ifndef CALLA_TEXT_TOOL_SET_H
#define CALLA_TEXT_TOOL_SET_H

#include "base/json.h"

typedef struct tool_set {
    json_object *tools; /* array, owned; NULL: no tools */
    bool held;          /* calls are held to these tools by a form (text/form/form_text.c): what looks like the end of a value is one */
} tool_set;

/* tools_json: the request's array of tools, OpenAI's {"type":"function","function":{…}} or the inner object alone; NULL, null or an
 * empty array: no tools. */
calla_status tool_set_open(tool_set *set, const char *tools_json, calla_error *err);
void tool_set_close(tool_set *set);

/* The function of tool i, and its name, NULL where it has none. */
json_object *tool_set_function(const tool_set *set, size_t i, const char **name, size_t *n);
/* The JSON schema of a tool's parameters; NULL where there is no such tool or it has none.  *known: there is such a tool. */
json_object *tool_set_find(const tool_set *set, const char *name, size_t n, bool *known);
/* Some tool's name begins with name [n]. */
bool tool_set_has_prefix(const tool_set *set, const char *name, size_t n);

/* The schema declares a parameter of this name. */
bool tool_has_parameter(json_object *parameters, const char *name);

/* Whether text [n], the beginning of a value of parameter `name`, does not tell yet how it will be printed: true of all that admits no
 * string, and of what may become null.  If not, it is a string whatever follows. */
bool tool_value_may_wait(json_object *parameters, const char *name, const char *text, size_t n);

/* tool_value leaves the text of parameter `name` a string, but for null. */
bool tool_value_is_text(json_object *parameters, const char *name);

/* The value of parameter `name` as the model wrote it (text [n]) → a JSON value by the types that its schema admits: a string stays as
 * it is where strings are admitted or nothing is known; else JSON, and what is no JSON is a string after all.  false: out of memory. */
bool tool_value(json_object *parameters, const char *name, const char *text, size_t n, json_object **out);

#endif

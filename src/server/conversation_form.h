/* conversation_form.h: what a request says of the form of its answer: JSON of a schema, a regular expression, a choice, and which tools
 * it must or may call.  Read from the fields of any dialect into one place; compiled by form_cache.h. */
#ifndef CALLA_SERVER_CONVERSATION_FORM_H
#define CALLA_SERVER_CONVERSATION_FORM_H

#include "base/json.h"
#include "server/api_error.h"

typedef struct conversation conversation;

/* Pointers go into the body and the conversation's tools unless they say otherwise. */
typedef struct conversation_form {
    /* of the content */
    calla_form_kind kind;
    json_object *source; /* a schema, or a string that holds one; the string of an expression; the array of a choice */
    bool loose;          /* the client said itself that its schema need not be kept to the letter */
    char field[48];      /* the field that said so, "" if none did */
    /* of calls */
    calla_tool_choice choice;
    const char *tool;     /* of CALLA_TOOLS_NAMED */
    json_object *allowed; /* the tools that may be called, as the client names them; NULL: all */
    json_object *tools;   /* array, owned: the tools as the template has them, without descriptions, with "strict"; NULL: none */
    bool strict_tools;    /* one of them is strict */
} conversation_form;

/* ------------------------------------------------------------ fields ----------------------------------------------------- */

/* Each of them is a param.read.  {"type": "text" | "json_object" | "json_schema", …}, the schema in it or within its json_schema:
 * response_format, text.format, output_config.format and output_format. */
bool conversation_read_format(void *request, const char *name, json_object *value, api_error *e);
bool conversation_read_guided_json(void *request, const char *name, json_object *value, api_error *e);
bool conversation_read_guided_regex(void *request, const char *name, json_object *value, api_error *e);
bool conversation_read_guided_choice(void *request, const char *name, json_object *value, api_error *e);
bool conversation_read_structured_outputs(void *request, const char *name, json_object *value, api_error *e);
/* "auto", "none", "required", "any", or an object with one of these as type; of type tool, function or custom: the one that it names;
 * of type allowed_tools: only those. */
bool conversation_read_tool_choice(void *request, const char *name, json_object *value, api_error *e);

/* The name in {"name"}, {"function":{"name"}} or {"custom":{"name"}}, or NULL. */
const char *conversation_named_tool(json_object *value);

/* ------------------------------------------------------------ closing ---------------------------------------------------- */

/* A tool may be called: notes it for the form.  A reference to parameters (may be NULL) is added, not taken.  False: out of memory. */
bool conversation_form_tool(conversation_form *f, const char *name, json_object *parameters, bool strict);
/* After the last tool: checks that what is chosen is there.  */
bool conversation_form_close(conversation *c, api_error *e);
void conversation_form_free(conversation_form *f);

/* False: the answer is free. */
bool conversation_has_form(const conversation *c);
/* What the form is compiled of.  Strings are valid as long as the conversation, until the next call.  False: out of memory. */
bool conversation_form_options(const conversation *c, calla_form_options *out, api_error *e);
/* The answer must not be given without its form.  Otherwise (tools that may be called and are not strict) a form is only a help. */
bool conversation_form_is_owed(const conversation *c);
/* What the compiler said, as an error that names the field; false. */
bool conversation_form_error(const conversation *c, const calla_error *err, api_error *e);

#endif

/* template.h: the model's chat template, rendered by straight code; byte for byte what jinja2 prints for the official file. */
#ifndef CALLA_TEXT_TEMPLATE_H
#define CALLA_TEXT_TEMPLATE_H

#include "base/json.h"
#include "text/tokenizer.h"

typedef enum template_kind { TEMPLATE_QWEN36, TEMPLATE_QWEN35 } template_kind;

/* Which template a model folder holds, by hash of chat_template.jinja (or tokenizer_config.json's chat_template).  An unknown one is
 * logged as a warning that says what will be used, and gives TEMPLATE_QWEN36. */
calla_status template_detect(const char *dir, template_kind *out, calla_error *err);

typedef struct template_request {
    json_object *messages; /* array */
    json_object *tools;    /* array or NULL */
    bool thinking;         /* enable_thinking, true unless the request says false */
    bool preserve_thinking;
    bool no_generation_prompt; /* add_generation_prompt false */
    bool vision_ids;           /* add_vision_id: pictures and videos are numbered */
    bool any_order;            /* ours: roles in any order; a system message that is not the first becomes a turn where it stands */
    bool continue_last;        /* ours: the answer goes on from the end of the last message, which is the assistant's */
    bool reference;            /* for tests: content may become control tokens, as in the reference (origin says all template) */
} template_request;

typedef struct template_output {
    buffer text;
    size_t *runs; /* origin of each byte, see text_origin; owned */
    size_t n_runs;
    bool thinking; /* the text ends inside <think> */
} template_output;

/* Errors are CALLA_E_ARGUMENT with the template's own wording where it raises. */
calla_status template_render(template_kind kind, const template_request *request, template_output *out, calla_error *err);
void template_output_free(template_output *out);

/* Python's json.dumps(value, ensure_ascii=False): separators ", " and ": ", key order kept, numbers as Python prints them. */
void template_tojson(buffer *out, json_object *value);

#endif

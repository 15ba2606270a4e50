/* render_request.h: a recorded request (messages, tools and the template's variables in one JSON object) → template_request. */
#ifndef CALLA_TESTS_RENDER_REQUEST_H
#define CALLA_TESTS_RENDER_REQUEST_H

#include "text/template.h"

/* Absent variables have the values that the reference used: thinking on, generation prompt on. */
static inline template_request render_request(json_object *messages, json_object *variables) {
    json_object *v;
    template_request request = {.messages = messages, .thinking = true};
    request.tools = json_object_object_get(variables, "tools");
    if (json_object_object_get_ex(variables, "enable_thinking", &v)) request.thinking = json_object_get_boolean(v);
    if (json_object_object_get_ex(variables, "preserve_thinking", &v)) request.preserve_thinking = json_object_get_boolean(v);
    if (json_object_object_get_ex(variables, "add_vision_id", &v)) request.vision_ids = json_object_get_boolean(v);
    if (json_object_object_get_ex(variables, "add_generation_prompt", &v)) request.no_generation_prompt = !json_object_get_boolean(v);
    return request;
}

#endif

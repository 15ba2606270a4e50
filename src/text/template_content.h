/* template_content.h: the template's macro render_content: what the content of one message prints. */
#ifndef CALLA_TEXT_TEMPLATE_CONTENT_H
#define CALLA_TEXT_TEMPLATE_CONTENT_H

#include "text/origin.h"
#include "text/template.h"

typedef struct content_renderer {
    origin_text text; /* what the last content_render printed */
    unsigned images, videos;
    bool vision_ids; /* add_vision_id */
} content_renderer;

/* *out is the content of message `index`, valid until the next call. */
calla_status content_render(content_renderer *c, json_object *content, size_t index, bool do_vision_count, bool is_system, origin_span *out,
                            calla_error *err);

#endif

/* template_content.c: see template_content.h.  Pictures and videos are printed as the template prints them; whether the model can see
 * them is for the caller to decide beforehand. */
#include "text/template_content.h"

#include <stdio.h>
#include <string.h>

#include "text/template_value.h"

/* Python's `word in item`: a key of an object, a part of a string, an element of an array. */
static bool item_has(json_object *item, const char *word) {
    switch (json_object_get_type(item)) {
    case json_type_object: return value_has(item, word);
    case json_type_string:
        return memmem(json_object_get_string(item), (size_t)json_object_get_string_len(item), word, strlen(word)) != NULL;
    case json_type_array:
        for (size_t i = 0; i < json_object_array_length(item); i++)
            if (value_is(json_object_array_get_idx(item, i), word)) return true;
        return false;
    default: return false;
    }
}

static void print_vision(content_renderer *c, const char *label, unsigned number, const char *tokens) {
    if (c->vision_ids) { /* {%- if add_vision_id %} {{- 'Picture ' ~ image_count.value ~ ': ' }} */
        char text[48];
        snprintf(text, sizeof text, "%s %u: ", label, number);
        origin_template(&c->text, text);
    }
    origin_template(&c->text, tokens);
}

/* {%- for item in content %} */
static calla_status print_item(content_renderer *c, json_object *item, size_t index, size_t at, bool do_vision_count, bool is_system,
                               calla_error *err) {
    json_object *type = value_get(item, "type");
    const json_type kind = json_object_get_type(item);
    if (kind != json_type_object && kind != json_type_string && kind != json_type_array)
        return error_set(err, CALLA_E_ARGUMENT, "messages[%zu].content[%zu]: must be an object such as {\"type\": \"text\", \"text\": …}",
                         index, at);
    if (item_has(item, "image") || item_has(item, "image_url") || value_is(type, "image")) {
        if (is_system) return error_set(err, CALLA_E_ARGUMENT, "messages[%zu]: System message cannot contain images.", index);
        c->images += do_vision_count;
        print_vision(c, "Picture", c->images, "<|vision_start|><|image_pad|><|vision_end|>");
    } else if (item_has(item, "video") || value_is(type, "video")) {
        if (is_system) return error_set(err, CALLA_E_ARGUMENT, "messages[%zu]: System message cannot contain videos.", index);
        c->videos += do_vision_count;
        print_vision(c, "Video", c->videos, "<|vision_start|><|video_pad|><|vision_end|>");
    } else if (item_has(item, "text")) { /* {{- item.text }}: nothing where item is no object */
        buffer text = {0};
        if (kind == json_type_object && !value_append_str(&text, value_get(item, "text")))
            return error_set(err, CALLA_E_ARGUMENT, "messages[%zu].content[%zu].text: must be a string", index, at);
        c->text.failed |= text.failed;
        origin_content(&c->text, text.data, text.n);
        buffer_free(&text);
    } else {
        return error_set(err, CALLA_E_ARGUMENT, "messages[%zu].content[%zu]: Unexpected item type in content. (It must be a text part.)",
                         index, at);
    }
    return CALLA_OK;
}

/* {%- macro render_content(content, do_vision_count, is_system_content=false) %} */
calla_status content_render(content_renderer *c, json_object *content, size_t index, bool do_vision_count, bool is_system, origin_span *out,
                            calla_error *err) {
    origin_clear(&c->text);
    switch (json_object_get_type(content)) {
    case json_type_string: origin_content(&c->text, json_object_get_string(content), (size_t)json_object_get_string_len(content)); break;
    case json_type_array: {
        const size_t n = json_object_array_length(content);
        for (size_t i = 0; i < n; i++) {
            calla_status status = print_item(c, json_object_array_get_idx(content, i), index, i, do_vision_count, is_system, err);
            if (status) return status;
        }
        break;
    }
    case json_type_null: break; /* {%- elif content is none or content is undefined %} */
    default: return error_set(err, CALLA_E_ARGUMENT, "messages[%zu]: Unexpected content type. (It must be a string or an array.)", index);
    }
    *out = (origin_span){&c->text, 0, c->text.text.n};
    return c->text.failed ? error_nomem(err, "a message's content") : CALLA_OK;
}

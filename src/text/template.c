/* template.c: the model's chat template (chat_template.jinja), as straight code with the template's lines quoted above it.
 *
 * Owns the order of the template's text and its errors; what a part of a message prints is template_content.c, how values print is
 * template_value.c, where bytes come from is origin.c.  It knows nothing of tokens.  Byte for byte what jinja2 prints, with these
 * deliberate differences: `arguments` of a tool call may be a JSON string, as OpenAI's API has it, where the template itself raises; and
 * what template_request marks as ours, for conversations that the template refuses.
 * Python evaluates in order, so errors are found in the same order here. */
#include "text/template.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/template_content.h"
#include "text/template_value.h"

static const char instructions[] =
    "\n\nIf you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n<function=example_function_name>\n"
    "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about "
    "function calls\n</IMPORTANT>";

typedef struct renderer {
    template_kind kind;
    const template_request *request;
    size_t n_messages;
    size_t last_query; /* ns.last_query_index */
    bool no_query;     /* there is no query: all turns belong to the one under way */
    origin_text out;
    content_renderer content;
    buffer json; /* scratch for tojson */
    calla_error *err;
} renderer;

static json_object *message_at(const renderer *r, size_t i) { return json_object_array_get_idx(r->request->messages, i); }

static json_object *role_at(const renderer *r, size_t i) { return value_get(message_at(r, i), "role"); }

/* render_content(message.content, …)|trim */
static calla_status trimmed_content(renderer *r, size_t i, bool do_vision_count, bool is_system, origin_span *out) {
    calla_status status = content_render(&r->content, value_get(message_at(r, i), "content"), i, do_vision_count, is_system, out, r->err);
    if (!status) *out = span_strip(*out);
    return status;
}

static void print_tojson(renderer *r, json_object *value) {
    buffer_clear(&r->json);
    template_tojson(&r->json, value);
    r->out.failed |= r->json.failed;
    origin_content(&r->out, r->json.data, r->json.n);
}

/* {%- if tools and tools is iterable and tools is not mapping %} … {%- else %} … {%- endif %} */
static calla_status render_head(renderer *r) {
    const bool system = value_is(role_at(r, 0), "system"); /* messages[0].role == 'system' */
    const size_t n_tools = json_object_is_type(r->request->tools, json_type_array) ? json_object_array_length(r->request->tools) : 0;
    origin_span content;
    calla_status status;
    if (n_tools) {
        origin_template(&r->out, "<|im_start|>system\n");
        origin_template(&r->out, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
        for (size_t i = 0; i < n_tools; i++) {
            origin_template(&r->out, "\n");
            print_tojson(r, json_object_array_get_idx(r->request->tools, i)); /* {{- tool | tojson }} */
        }
        origin_template(&r->out, "\n</tools>");
        origin_template(&r->out, instructions);
        if (system) {
            if ((status = trimmed_content(r, 0, false, true, &content))) return status;
            if (span_n(content)) { /* {{- '\n\n' + content }} */
                origin_template(&r->out, "\n\n");
                origin_append_span(&r->out, content);
            }
        }
        origin_template(&r->out, "<|im_end|>\n");
    } else if (system) {
        if ((status = trimmed_content(r, 0, false, true, &content))) return status;
        origin_template(&r->out, "<|im_start|>system\n"); /* {{- '<|im_start|>system\n' + content + '<|im_end|>\n' }} */
        origin_append_span(&r->out, content);
        origin_template(&r->out, "<|im_end|>\n");
    }
    return CALLA_OK;
}

/* {%- for message in messages[::-1] %}: the last user message that is not wholly a wrapped tool result is the query under way; the
 * assistant's turns after it keep their reasoning. */
static calla_status find_last_query(renderer *r) {
    for (size_t i = r->n_messages; i-- > 0;) {
        if (!value_is(role_at(r, i), "user")) continue; /* {%- if ns.multi_step_tool and message.role == "user" %} */
        origin_span content;
        calla_status status = trimmed_content(r, i, false, false, &content);
        if (status) return status;
        if (!(span_starts_with(content, "<tool_response>") && span_ends_with(content, "</tool_response>"))) {
            r->last_query = i;
            return CALLA_OK;
        }
    }
    r->no_query = true;
    return r->request->any_order ? CALLA_OK : error_set(r->err, CALLA_E_ARGUMENT, "messages: No user query found in messages.");
}

/* {%- for args_name, args_value in tool_call.arguments|items %} */
static calla_status render_arguments(renderer *r, json_object *arguments, size_t i, size_t call) {
    json_object *parsed = NULL;
    calla_status status = CALLA_OK;
    if (json_object_is_type(arguments, json_type_string)) { /* ours: the template raises "Can only get item pairs from a mapping." */
        char what[120];
        snprintf(what, sizeof what, "messages[%zu].tool_calls[%zu]: arguments (a JSON string)", i, call);
        calla_error err;
        status = json_parse(json_object_get_string(arguments), (size_t)json_object_get_string_len(arguments), what, &parsed, &err);
        if (status) return error_set(r->err, status == CALLA_E_FORMAT ? CALLA_E_ARGUMENT : status, "%s", err.message);
        arguments = parsed;
    }
    if (!json_object_is_type(arguments, json_type_object)) {
        json_object_put(parsed);
        return error_set(r->err, CALLA_E_ARGUMENT,
                         "messages[%zu].tool_calls[%zu].arguments: Can only get item pairs from a mapping. (Send an object, or one as a "
                         "JSON string.)",
                         i, call);
    }
    json_object_object_foreach(arguments, name, value) {
        origin_template(&r->out, "<parameter="); /* {{- '<parameter=' + args_name + '>\n' }} */
        origin_content(&r->out, name, strlen(name));
        origin_template(&r->out, ">\n");
        /* 3.6: args_value | string if args_value is string else args_value | tojson | safe
         * 3.5: args_value | tojson | safe if args_value is mapping or (… sequence and … not string) else args_value | string */
        buffer_clear(&r->json);
        if (r->kind != TEMPLATE_QWEN35 || !value_append_str(&r->json, value)) {
            if (json_object_is_type(value, json_type_string))
                value_append_str(&r->json, value);
            else
                template_tojson(&r->json, value);
        }
        r->out.failed |= r->json.failed;
        origin_content(&r->out, r->json.data, r->json.n);
        origin_template(&r->out, "\n</parameter>\n");
    }
    json_object_put(parsed);
    return CALLA_OK;
}

/* {%- for tool_call in message.tool_calls %} */
static calla_status render_tool_call(renderer *r, json_object *tool_call, size_t i, size_t call, bool content_before) {
    if (value_has(tool_call, "function")) tool_call = value_get(tool_call, "function");
    json_object *name = value_get(tool_call, "name"), *arguments;
    if (!json_object_is_type(name, json_type_string))
        return error_set(r->err, CALLA_E_ARGUMENT, "messages[%zu].tool_calls[%zu]: the function's name must be a string", i, call);
    /* {%- if loop.first %} {%- if content|trim %} '\n\n<tool_call>… {%- else %} '<tool_call>… {%- else %} '\n<tool_call>… */
    if (call > 0)
        origin_template(&r->out, "\n");
    else if (content_before)
        origin_template(&r->out, "\n\n");
    origin_template(&r->out, "<tool_call>\n<function=");
    origin_content(&r->out, json_object_get_string(name), (size_t)json_object_get_string_len(name));
    origin_template(&r->out, ">\n");
    if (value_has(tool_call, "arguments")) { /* {%- if tool_call.arguments is defined %} */
        arguments = value_get(tool_call, "arguments");
        calla_status status = render_arguments(r, arguments, i, call);
        if (status) return status;
    }
    origin_template(&r->out, "</function>\n</tool_call>");
    return CALLA_OK;
}

/* {%- elif message.role == "assistant" %} */
static calla_status render_assistant(renderer *r, size_t i, origin_span content, bool *thinking) {
    json_object *given = value_get(message_at(r, i), "reasoning_content");
    origin_span reasoning = {.of = content.of};
    origin_text given_text = {.all_template = r->out.all_template};
    if (json_object_is_type(given, json_type_string)) { /* {%- if message.reasoning_content is string %} */
        origin_content(&given_text, json_object_get_string(given), (size_t)json_object_get_string_len(given));
        reasoning = (origin_span){&given_text, 0, given_text.text.n};
    } else if (span_contains(content, "</think>")) { /* {%- if '</think>' in content %} */
        /* content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') */
        reasoning = span_strip_newlines_right(span_split_first(content, "</think>"));
        reasoning = span_strip_newlines_left(span_split_last(reasoning, "<think>"));
        content = span_strip_newlines_left(span_split_last(content, "</think>"));
    }
    reasoning = span_strip(reasoning);
    const bool continued = r->request->continue_last && i + 1 == r->n_messages;
    origin_template(&r->out, "<|im_start|>assistant\n");
    /* {%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}; 3.5 has only the
     * second half */
    if ((r->kind != TEMPLATE_QWEN35 && r->request->preserve_thinking) || i > r->last_query || r->no_query || continued) {
        origin_template(&r->out, "<think>\n");
        origin_append_span(&r->out, reasoning);
        if (continued && r->request->thinking && !span_n(content)) { /* it ended in the middle of a thought */
            *thinking = true;
            origin_free(&given_text);
            return CALLA_OK;
        }
        origin_template(&r->out, "\n</think>\n\n");
    }
    origin_append_span(&r->out, content);
    origin_free(&given_text);

    /* {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %} */
    json_object *calls = value_get(message_at(r, i), "tool_calls");
    if (json_object_is_type(calls, json_type_string) && json_object_get_string_len(calls))
        return error_set(r->err, CALLA_E_ARGUMENT, "messages[%zu].tool_calls: must be an array, not a string", i);
    const size_t n = json_object_is_type(calls, json_type_array) ? json_object_array_length(calls) : 0;
    const bool content_before = span_n(span_strip(content)) > 0;
    for (size_t call = 0; call < n; call++) {
        calla_status status = render_tool_call(r, json_object_array_get_idx(calls, call), i, call, content_before);
        if (status) return status;
    }
    if (!continued) origin_template(&r->out, "<|im_end|>\n");
    return CALLA_OK;
}

/* {%- elif message.role == "tool" %}: neighbouring results share one user turn */
static void render_tool_result(renderer *r, size_t i, origin_span content) {
    /* the template leaves the turn unopened where a result is the first message */
    if (i > 0 ? !value_is(role_at(r, i - 1), "tool") : r->request->any_order) origin_template(&r->out, "<|im_start|>user");
    origin_template(&r->out, "\n<tool_response>\n");
    origin_append_span(&r->out, content);
    origin_template(&r->out, "\n</tool_response>");
    if (i + 1 == r->n_messages || !value_is(role_at(r, i + 1), "tool")) origin_template(&r->out, "<|im_end|>\n");
}

/* {%- for message in messages %} */
static calla_status render_message(renderer *r, size_t i, bool *thinking) {
    json_object *role = role_at(r, i);
    origin_span content;
    calla_status status = trimmed_content(r, i, true, false, &content);
    if (status) return status;
    if (value_is(role, "system")) {
        if (i == 0) return CALLA_OK; /* the head has it */
        if (!r->request->any_order)
            return error_set(r->err, CALLA_E_ARGUMENT, "messages[%zu]: System message must be at the beginning.", i);
        origin_template(&r->out, "<|im_start|>system\n");
        origin_append_span(&r->out, content);
        origin_template(&r->out, "<|im_end|>\n");
    } else if (value_is(role, "user")) { /* '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' */
        origin_template(&r->out, "<|im_start|>user\n");
        origin_append_span(&r->out, content);
        origin_template(&r->out, "<|im_end|>\n");
    } else if (value_is(role, "assistant")) {
        return render_assistant(r, i, content, thinking);
    } else if (value_is(role, "tool")) {
        render_tool_result(r, i, content);
    } else {
        return error_set(r->err, CALLA_E_ARGUMENT, "messages[%zu]: Unexpected message role. (It must be system, user, assistant or tool.)",
                         i);
    }
    return CALLA_OK;
}

static calla_status render(renderer *r, bool *thinking) {
    if (r->n_messages == 0) return error_set(r->err, CALLA_E_ARGUMENT, "messages: No messages provided."); /* {%- if not messages %} */
    calla_status status = render_head(r);
    *thinking = false;
    if (!status) status = find_last_query(r);
    for (size_t i = 0; !status && i < r->n_messages; i++) status = render_message(r, i, thinking);
    if (status) return status;
    if (!r->request->no_generation_prompt && !r->request->continue_last) { /* {%- if add_generation_prompt %} */
        origin_template(&r->out, "<|im_start|>assistant\n");
        *thinking = r->request->thinking; /* {%- if enable_thinking is defined and enable_thinking is false %} */
        origin_template(&r->out, *thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
    }
    return r->out.failed ? error_nomem(r->err, "the rendered prompt") : CALLA_OK;
}

calla_status template_render(template_kind kind, const template_request *request, template_output *out, calla_error *err) {
    *out = (template_output){0};
    if (!json_object_is_type(request->messages, json_type_array)) return error_set(err, CALLA_E_ARGUMENT, "messages: must be an array");
    if (request->tools && !json_object_is_type(request->tools, json_type_array))
        return error_set(err, CALLA_E_ARGUMENT, "tools: must be an array");
    renderer r = {.kind = kind, .request = request, .n_messages = json_object_array_length(request->messages), .err = err};
    r.out.all_template = r.content.text.all_template = request->reference;
    r.content.vision_ids = request->vision_ids;
    calla_status status = render(&r, &out->thinking);
    if (!status) {
        out->text = r.out.text;
        out->runs = r.out.runs;
        out->n_runs = r.out.n_runs;
        r.out = (origin_text){0};
    }
    origin_free(&r.out);
    origin_free(&r.content.text);
    buffer_free(&r.json);
    return status;
}

void template_output_free(template_output *out) {
    buffer_free(&out->text);
    mem_free(out->runs);
    *out = (template_output){0};
}

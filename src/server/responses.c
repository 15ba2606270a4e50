/* responses.c: POST /v1/responses: what of a request is prepared and remembered.  Its JSON is responses_output.c's. */
#include "server/responses.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/responses_store.h"

enum { JSON_FLAGS = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE };

static bool out_of_memory(api_error *e) { return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request"); }

/* The items of the response that the request goes on from, as an array; *out stays NULL if it names none. */
static bool read_previous(completion *c, json_object **out, api_error *e) {
    const char *id = responses_run_of(c)->request.previous;
    if (!id) return true;
    buffer text = {0};
    buffer_append_str(&text, "[");
    buffer items = {0};
    const bool found = responses_store_get(c->server->responses, id, &items);
    if (items.n) buffer_append(&text, items.data, items.n);
    buffer_append_str(&text, "]");
    const bool lost = items.failed || text.failed || (found && json_parse(text.data, text.n, "items", out, NULL));
    buffer_free(&items);
    buffer_free(&text);
    if (lost) return out_of_memory(e);
    if (found) return true;
    return api_error_set(e, 400, "previous_response_not_found", "previous_response_id",
                         "there is no response %s: this server remembers recent ones in memory only; send the whole input", id);
}

static bool is_reference(json_object *item) {
    const char *type = params_string(params_member(item, "type"));
    return type ? !strcmp(type, "item_reference") : params_member(item, "id") && !params_member(item, "role");
}

/* The response whose item this is, as responses_output.c makes the ids of items: "fc_X_2" is of "resp_X". */
static bool response_of(const char *item, char out[RESPONSES_MAX_ID_BYTES]) {
    const char *begin = strchr(item, '_'), *end = strrchr(item, '_');
    if (!begin || begin == end || (size_t)(end - begin) + sizeof "resp" > RESPONSES_MAX_ID_BYTES) return false;
    snprintf(out, RESPONSES_MAX_ID_BYTES, "resp%.*s", (int)(end - begin), begin);
    return true;
}

/* Puts the output items of a response under their ids into known, and under its own that this was done.  False: out of memory. */
static bool learn_items(responses_store *s, const char *response, json_object *known) {
    buffer text = {0}, items = {0};
    json_object *array = NULL;
    const bool found = responses_store_get_output(s, response, &items);
    buffer_append_str(&text, "[");
    if (items.n) buffer_append(&text, items.data, items.n);
    buffer_append_str(&text, "]");
    bool ok = !items.failed && !text.failed && (!found || !json_parse(text.data, text.n, "items", &array, NULL));
    for (size_t i = 0; ok && array && i < json_object_array_length(array); i++) {
        json_object *item = json_object_array_get_idx(array, i);
        const char *id = params_string(params_member(item, "id"));
        if (id && json_object_object_add(known, id, json_object_get(item))) {
            json_object_put(item);
            ok = false;
        }
    }
    ok = ok && !json_object_object_add(known, response, NULL);
    json_object_put(array);
    buffer_free(&text);
    buffer_free(&items);
    return ok;
}

/* Puts the item in the place of its name, and forgets it: a name that comes again would make a small body a large prompt. */
static bool resolve(completion *c, size_t i, json_object *known, api_error *e) {
    json_object *input = responses_run_of(c)->request.input, *found = NULL;
    const char *id = params_string(params_member(json_object_array_get_idx(input, i), "id"));
    char where[32], response[RESPONSES_MAX_ID_BYTES];
    snprintf(where, sizeof where, "input[%zu]", i);
    if (!id) return api_error_set(e, 400, NULL, where, "%s must have the id of an item", where);
    if (response_of(id, response) && !json_object_object_get_ex(known, response, NULL) &&
        !learn_items(c->server->responses, response, known))
        return out_of_memory(e);
    if (!json_object_object_get_ex(known, id, &found) || !found)
        return api_error_set(
            e, 400, "item_not_found", where,
            "%s: there is no item %.80s, or it is named twice: this server remembers recent responses in memory only; send "
            "the item itself",
            where, id);
    json_object_get(found);
    json_object_object_del(known, id); /* id is of the place that is taken now */
    if (!json_object_array_put_idx(input, i, found)) return true;
    json_object_put(found);
    return out_of_memory(e);
}

/* Items that the client only names, being of responses that this server remembers, are put in the places of their names. */
static bool resolve_references(completion *c, api_error *e) {
    json_object *input = responses_run_of(c)->request.input, *known = json_object_new_object();
    bool ok = known || out_of_memory(e);
    for (size_t i = 0; ok && json_object_is_type(input, json_type_array) && i < json_object_array_length(input); i++)
        if (is_reference(json_object_array_get_idx(input, i))) ok = resolve(c, i, known, e);
    json_object_put(known);
    return ok;
}

/* The request's own items, for those that go on from its response. */
static void keep_items(responses_run *run) {
    json_object *input = run->request.input;
    const char *text = json_object_to_json_string_ext(input, JSON_FLAGS);
    if (!text)
        run->items.failed = true;
    else if (json_object_is_type(input, json_type_string)) {
        buffer_append_str(&run->items, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
        buffer_append_str(&run->items, text);
        buffer_append_str(&run->items, "}");
    } else
        buffer_append(&run->items, text + 1, strlen(text) - 2); /* without the brackets */
}

static void echo(responses_run *run, const char *name, const char *otherwise) {
    json_object *value = params_member(run->request.conversation.root, name);
    const char *text = value ? json_object_to_json_string_ext(value, JSON_FLAGS) : otherwise;
    if (!text) run->echo.failed = true;
    if (text) buffer_printf(&run->echo, "\"%s\":", name);
    if (text) buffer_append_str(&run->echo, text);
    buffer_append_str(&run->echo, ",");
}

static void write_echo(responses_run *run) {
    static const char *const names[][2] = {{"instructions", "null"},
                                           {"max_output_tokens", "null"},
                                           {"metadata", "{}"},
                                           {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                           {"previous_response_id", "null"},
                                           {"prompt_cache_key", "null"},
                                           {"safety_identifier", "null"},
                                           {"text", "{\"format\":{\"type\":\"text\"}}"},
                                           {"tool_choice", "\"auto\""},
                                           {"tools", "[]"},
                                           {"top_logprobs", "0"},
                                           {"user", "null"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) echo(run, names[i][0], names[i][1]);
}

static bool prepare(completion *c, api_error *e) {
    responses_run *run = responses_run_of(c);
    responses_request *r = &run->request;
    json_object *earlier = NULL;
    bool ok = responses_request_parse(r, c->body.data ? c->body.data : "", c->body.n, e) && read_previous(c, &earlier, e) &&
              resolve_references(c, e) && responses_request_read_items(r, earlier, e);
    json_object_put(earlier);
    if (!ok) return false;
    if (r->store) keep_items(run);
    write_echo(run);
    if (run->items.failed || run->echo.failed) return out_of_memory(e);
    json_object_object_del(r->conversation.root, "input"); /* the bulk of the body, and read */
    r->input = NULL;
    return completion_render(c, e);
}

static void forget(completion *c) {
    responses_run *run = responses_run_of(c);
    responses_request_free(&run->request);
    buffer_free(&run->items);
    buffer_free(&run->echo);
    buffer_free(&run->logprobs);
    mem_free(run->logprob_ends);
}

static void remember(completion *c) {
    responses_run *run = responses_run_of(c);
    if (!run->request.store) return;
    buffer whole = {0};
    responses_output_whole(c, &whole);
    if (!whole.failed) {
        const stored_response kept = {.input = run->items.data,
                                      .n_input = run->items.n,
                                      .whole = whole.data,
                                      .n_whole = whole.n,
                                      .output_at = run->output_at,
                                      .n_output = run->output_n};
        responses_store_put(c->server->responses, c->id, run->request.previous, &kept);
    }
    buffer_free(&whole);
}

/* Remembered before it is sent: the client may go on from it as soon as it sees it. */
static void end(completion *c) {
    remember(c);
    responses_output_end(c);
}

static void whole(completion *c, buffer *out) {
    remember(c);
    responses_output_whole(c, out);
}

const completion_dialect responses_dialect = {
    .name = "response",
    .id_prefix = "resp_",
    .call_prefix = "call_",
    .own_bytes = sizeof(responses_run),
    .keeps_parts = true,
    .prepare = prepare,
    .free = forget,
    .write_error = api_error_write,
    .whole = whole,
    .begin = responses_output_begin,
    .token = responses_output_token,
    .piece = responses_output_piece,
    .finish = responses_output_finish,
    .end = end,
    .fail = responses_output_fail,
    .keepalive = responses_output_keepalive,
    .progress = responses_output_progress,
};

/* text_routes.c: see text_routes.h.  Requests that end when they are prepared: their reply is written there.  Fields are those of
 * llama.cpp's server, and vLLM's under their own names. */
#include "server/text_routes.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "server/chat.h"
#include "server/text_completion.h"

typedef struct text_route {
    chat_request chat;  /* first; of other routes only its conversation is used */
    json_object *value; /* text or tokens; of the body */
    bool content_only, pieces;
    buffer reply;
} text_route;

static text_route *route_of(const completion *c) { return (text_route *)c->own; }

static void forget(completion *c) { buffer_free(&route_of(c)->reply); }

static void whole(completion *c, buffer *out) {
    *out = route_of(c)->reply;
    route_of(c)->reply = (buffer){0};
}

static bool read_body(completion *c, const param_table *table, api_error *e) {
    conversation *r = c->own;
    return conversation_parse(r, c->body.data ? c->body.data : "", c->body.n, e) && params_read(table, r->root, r, &r->ignored, e);
}

/* Bytes of one token as text, or as an array of numbers where they are not whole characters. */
static void write_piece(const calla_text *text, int32_t id, buffer *out) {
    size_t n = 0;
    const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
    if (utf8_valid(bytes, n) == n) {
        json_append_string(out, bytes, n);
        return;
    }
    for (size_t i = 0; i < n; i++) buffer_printf(out, "%c%u", i ? ',' : '[', (unsigned char)bytes[i]);
    buffer_append_str(out, "]");
}

/* ------------------------------------------------------------ tokenize --------------------------------------------------- */

static bool read_text(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_string)) return api_error_set(e, 400, NULL, name, "%s must be a string", name);
    ((text_route *)request)->value = value;
    return true;
}

static bool read_parse_special(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_boolean)) return api_error_set(e, 400, NULL, name, "%s must be true or false", name);
    ((text_route *)request)->content_only = !json_object_get_boolean(value);
    return true;
}

static const param tokenize_rows[] = {
    {.name = "content", .kind = PARAM_CUSTOM, .read = read_text, .type = "string", .help = "The text."},
    {.name = "prompt", .kind = PARAM_CUSTOM, .read = read_text, .type = "string", .help = "The same."},
    {.name = "text", .kind = PARAM_CUSTOM, .read = read_text, .type = "string", .help = "The same."},
    {.name = "parse_special",
     .kind = PARAM_CUSTOM,
     .read = read_parse_special,
     .type = "boolean",
     .help = "Whether what spells a control token is one. Default true; false: as in the text of a message."},
    {.name = "with_pieces", .kind = PARAM_BOOL, .offset = offsetof(text_route, pieces), .help = "Also the text of each token."},
    {.name = "model", .kind = PARAM_HARMLESS},
    /* This model has no token that begins or ends every text, so that there is none to add. */
    {.name = "add_special", .kind = PARAM_HARMLESS},
    {.name = "add_special_tokens", .kind = PARAM_HARMLESS},
};
const param_table tokenize_params = {.prefix = "", .rows = tokenize_rows, .n = sizeof tokenize_rows / sizeof *tokenize_rows};

static bool tokenize(completion *c, api_error *e) {
    text_route *r = route_of(c);
    buffer *out = &r->reply;
    if (!read_body(c, &tokenize_params, e)) return false;
    if (!r->value) return api_error_set(e, 400, "missing_parameter", "content", "content is missing: the text to be tokenized");
    const size_t n = (size_t)json_object_get_string_len(r->value), content[] = {0, n};
    const text_origin origin = r->content_only ? (text_origin){content, 2} : (text_origin){0};
    calla_ids ids = {0};
    calla_error err;
    const calla_status rc = tokenizer_encode(c->server->text->tokenizer, json_object_get_string(r->value), n, origin, &ids, &err);
    buffer_append_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids.n; i++) {
        if (i) buffer_append_str(out, ",");
        if (r->pieces) {
            buffer_printf(out, "{\"id\":%d,\"piece\":", (int)ids.ids[i]);
            write_piece(c->server->text, ids.ids[i], out);
            buffer_append_str(out, "}");
        } else
            buffer_printf(out, "%d", (int)ids.ids[i]);
    }
    buffer_printf(out, "],\"count\":%zu,\"max_model_len\":%u}", ids.n, c->server->info.context_tokens);
    calla_ids_free(&ids);
    return !rc || api_error_from(e, &err, "content");
}

/* ----------------------------------------------------------- detokenize -------------------------------------------------- */

static bool read_tokens(void *request, const char *name, json_object *value, api_error *e) {
    if (!json_object_is_type(value, json_type_array)) return api_error_set(e, 400, NULL, name, "%s must be an array of token ids", name);
    ((text_route *)request)->value = value;
    return true;
}

static const param detokenize_rows[] = {
    {.name = "tokens", .kind = PARAM_CUSTOM, .read = read_tokens, .type = "array", .help = "Token ids."},
    {.name = "model", .kind = PARAM_HARMLESS},
};
const param_table detokenize_params = {.prefix = "", .rows = detokenize_rows, .n = sizeof detokenize_rows / sizeof *detokenize_rows};

static bool detokenize(completion *c, api_error *e) {
    text_route *r = route_of(c);
    calla_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    calla_error err;
    if (!read_body(c, &detokenize_params, e)) return false;
    if (!r->value) return api_error_set(e, 400, "missing_parameter", "tokens", "tokens is missing: the ids to be turned into text");
    bool ok = text_request_ids(r->value, &c->server->info, "tokens", &ids, e);
    if (ok && calla_text_decode(c->server->text, ids.ids, ids.n, &text, &n, &err)) ok = api_error_from(e, &err, "tokens");
    if (ok) {
        buffer_append_str(&r->reply, "{\"content\":"); /* llama.cpp's name, then vLLM's */
        json_append_string(&r->reply, text, n);
        buffer_append_str(&r->reply, ",\"prompt\":");
        json_append_string(&r->reply, text, n);
        buffer_append_str(&r->reply, "}");
    }
    calla_free(text);
    calla_ids_free(&ids);
    return ok;
}

/* --------------------------------------------------------- apply-template ------------------------------------------------ */

/* The prompt that /v1/chat/completions makes of the same body. */
static bool apply_template(completion *c, api_error *e) {
    text_route *r = route_of(c);
    calla_prompt prompt = {0};
    if (!chat_request_read(&r->chat, c->body.data ? c->body.data : "", c->body.n, e)) return false;
    const bool ok = conversation_render(c->own, c->server->text, &prompt, e);
    if (ok) {
        buffer_append_str(&r->reply, "{\"prompt\":");
        json_append_string(&r->reply, prompt.text, prompt.n_text);
        buffer_printf(&r->reply, ",\"count\":%zu,\"max_model_len\":%u}", prompt.ids.n, c->server->info.context_tokens);
    }
    calla_prompt_free(&prompt);
    return ok;
}

#define TEXT_ROUTE(route_name, function)                                                                                                   \
    {.name = route_name,                                                                                                                   \
     .id_prefix = "",                                                                                                                      \
     .own_bytes = sizeof(text_route),                                                                                                      \
     .prepare = function,                                                                                                                  \
     .free = forget,                                                                                                                       \
     .write_error = api_error_write,                                                                                                       \
     .whole = whole}

const completion_dialect tokenize_dialect = TEXT_ROUTE("tokenize", tokenize);
const completion_dialect detokenize_dialect = TEXT_ROUTE("detokenize", detokenize);
const completion_dialect apply_template_dialect = TEXT_ROUTE("apply-template", apply_template);

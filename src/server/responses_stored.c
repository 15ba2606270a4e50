/* responses_stored.c: GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items: what of a response is remembered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/params.h"
#include "server/reply.h"
#include "server/responses_request.h"
#include "server/responses_store.h"
#include "server/routes.h"

enum {
    MAX_WORD = 96,
    LIMIT = 20,
    MAX_LIMIT = 100,
    LIST_BYTES = 2 << 20 /* of the items that a page is made from: they are parsed on the loop's thread, in some 20 ms */
};

static void refuse(connection *c, int status, const char *code, const char *field, const char *message) {
    api_error e;
    api_error_set(&e, status, code, field, "%s", message);
    reply_error(c, &e);
}

static void refuse_unknown(connection *c, const char *id) {
    api_error e;
    api_error_set(&e, 404, "not_found", "response_id",
                  "there is no response %s: this server remembers recent ones that were to be stored, in memory only", id);
    reply_error(c, &e);
}

/* ----------------------------------------------------------- the request ------------------------------------------------- */

/* The value of a field of the query into out; "" if it is not there or longer than any that is understood. */
static const char *query_word(const http_request *q, const char *name, char out[MAX_WORD]) {
    const char *at = http_request_target(q) + q->path_n;
    const size_t n_name = strlen(name);
    *out = 0;
    while (*at) {
        at++; /* the question mark, or an ampersand */
        const size_t n = strcspn(at, "&");
        if (n > n_name && at[n_name] == '=' && !memcmp(at, name, n_name) && n - n_name - 1 < MAX_WORD)
            snprintf(out, MAX_WORD, "%.*s", (int)(n - n_name - 1), at + n_name + 1);
        at += n;
    }
    return out;
}

/* ---------------------------------------------------------- input items -------------------------------------------------- */

typedef struct page {
    size_t limit;
    bool ascending;
    char after[MAX_WORD];
} page;

static bool read_page(connection *c, page *out) {
    char word[MAX_WORD];
    const http_request *q = &c->reader.request;
    *out = (page){.limit = LIMIT};
    if (*query_word(q, "limit", word)) {
        char *end = NULL;
        const long limit = strtol(word, &end, 10);
        if (*end || limit < 1 || limit > MAX_LIMIT) {
            refuse(c, 400, NULL, "limit", "limit must be an integer from 1 to 100");
            return false;
        }
        out->limit = (size_t)limit;
    }
    query_word(q, "order", word);
    out->ascending = !strcmp(word, "asc");
    if (*word && !out->ascending && strcmp(word, "desc") != 0) {
        refuse(c, 400, NULL, "order", "order must be asc or desc");
        return false;
    }
    query_word(q, "after", out->after);
    return true;
}

/* Most clients send items without ids: such a one is called by its place. */
static void item_id(json_object *item, const char *response, size_t place, char out[MAX_WORD]) {
    const char *own = params_string(params_member(item, "id"));
    if (own && *own && strlen(own) < MAX_WORD)
        snprintf(out, MAX_WORD, "%s", own);
    else
        snprintf(out, MAX_WORD, "in_%s_%zu", response, place);
}

/* The item with a type and an id. */
static void write_item(json_object *item, const char *id, buffer *out) {
    if (!params_member(item, "id")) json_object_object_add(item, "id", json_object_new_string(id));
    if (!params_member(item, "type")) json_object_object_add(item, "type", json_object_new_string("message"));
    const char *text = json_object_to_json_string_ext(item, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text)
        buffer_append_str(out, text);
    else
        out->failed = true;
}

static void write_list(json_object *items, const char *response, const page *p, buffer *out) {
    const size_t n = json_object_array_length(items);
    size_t written = 0;
    bool begun = !*p->after, more = false;
    char first[MAX_WORD] = "", last[MAX_WORD] = "";
    buffer_append_str(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        const size_t place = p->ascending ? i : n - 1 - i;
        json_object *item = json_object_array_get_idx(items, place);
        char id[MAX_WORD];
        item_id(item, response, place, id);
        if (!begun) {
            begun = !strcmp(id, p->after);
            continue;
        }
        more = written == p->limit;
        if (more) break;
        if (written++) buffer_append_str(out, ",");
        write_item(item, id, out);
        if (!*first) memcpy(first, id, sizeof first);
        memcpy(last, id, sizeof last);
    }
    buffer_append_str(out, "],\"first_id\":");
    json_append_str(out, first);
    buffer_append_str(out, ",\"last_id\":");
    json_append_str(out, last);
    buffer_printf(out, ",\"has_more\":%s}", more ? "true" : "false");
}

static void list_input(connection *c, const char *id) {
    page p;
    buffer items = {0}, array = {0}, body = {0};
    json_object *tree = NULL;
    if (!read_page(c, &p)) return;
    if (!responses_store_get_input(c->server->responses, id, &items)) {
        refuse_unknown(c, id);
        return;
    }
    if (items.n > LIST_BYTES) {
        buffer_free(&items);
        refuse(c, 400, "too_large", "response_id", "the response was made from more than 2 MiB of items: that is too much to be listed");
        return;
    }
    buffer_append_str(&array, "[");
    if (items.n) buffer_append(&array, items.data, items.n);
    buffer_append_str(&array, "]");
    if (items.failed || array.failed || json_parse(array.data, array.n, "items", &tree, NULL))
        body.failed = true;
    else
        write_list(tree, id, &p, &body);
    reply_json(c, 200, NULL, &body);
    json_object_put(tree);
    buffer_free(&items);
    buffer_free(&array);
    buffer_free(&body);
}

/* ----------------------------------------------------------- responses --------------------------------------------------- */

static void get_whole(connection *c, const char *id) {
    char word[MAX_WORD];
    if (!strcmp(query_word(&c->reader.request, "stream", word), "true")) {
        refuse(c, 400, "unsupported_parameter", "stream", "stream is not supported: what is remembered is a response that has ended");
        return;
    }
    buffer body = {0};
    if (responses_store_get_whole(c->server->responses, id, &body))
        reply_json(c, 200, NULL, &body);
    else
        refuse_unknown(c, id);
    buffer_free(&body);
}

static void delete_one(connection *c, const char *id) {
    buffer body = {0};
    if (!responses_store_delete(c->server->responses, id)) {
        refuse_unknown(c, id);
        return;
    }
    buffer_printf(&body, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", id);
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

void responses_handle_one(connection *c) {
    static const char prefix[] = "/v1/responses/", list[] = "/input_items";
    const http_request *q = &c->reader.request;
    const char *rest = http_request_target(q) + sizeof prefix - 1;
    size_t n = q->path_n - (sizeof prefix - 1);
    const bool items = n > sizeof list - 1 && !memcmp(rest + n - (sizeof list - 1), list, sizeof list - 1);
    if (items) n -= sizeof list - 1;
    char id[RESPONSES_MAX_ID_BYTES + 1];
    if (n >= sizeof id || memchr(rest, '/', n) || (items && q->verb == VERB_DELETE)) {
        refuse(c, 404, "not_found", NULL, "there is nothing here: paths are /v1/responses/ID and, to GET, /v1/responses/ID/input_items");
        return;
    }
    snprintf(id, sizeof id, "%.*s", (int)n, rest);
    if (q->verb == VERB_DELETE)
        delete_one(c, id);
    else if (items)
        list_input(c, id);
    else
        get_whole(c, id);
}

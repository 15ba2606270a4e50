/* models.c: GET /v1/models and /v1/models/{id}.  One model is served; its id is its folder's name. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "server/reply.h"
#include "server/routes.h"

static void write_model(const server *s, buffer *out) {
    buffer_append_str(out, "{\"id\":");
    json_append_string(out, s->info.model_name, strlen(s->info.model_name));
    /* Clients look for the window under either name. */
    buffer_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"calla\",\"context_window\":%u,\"max_model_len\":%u}",
                  (long long)s->started, s->info.context_tokens, s->info.context_tokens);
}

void models_handle_list(connection *c) {
    buffer body = {0};
    buffer_append_str(&body, "{\"object\":\"list\",\"data\":[");
    write_model(c->server, &body);
    buffer_append_str(&body, "]}");
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

void models_handle_one(connection *c) {
    const http_request *q = &c->reader.request;
    const size_t skip = strlen("/v1/models/");
    const char *id = http_request_target(q) + skip;
    if (q->path_n - skip != strlen(c->server->info.model_name) || memcmp(id, c->server->info.model_name, q->path_n - skip) != 0) {
        api_error e;
        api_error_set(&e, 404, "model_not_found", "model", "the model %.*s does not exist; this server has %s", (int)(q->path_n - skip), id,
                      c->server->info.model_name);
        reply_error(c, &e);
        return;
    }
    buffer body = {0};
    write_model(c->server, &body);
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

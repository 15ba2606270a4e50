/* health.c: GET /health.  Answered by the loop thread alone, however busy the engine is; 503 when chats would be refused. */
#include <string.h>

#include "base/json.h"
#include "server/reply.h"
#include "server/routes.h"

void health_handle(connection *c) {
    calla_engine_status status = {0};
    const bool ready = atomic_load(&c->server->ready);
    if (ready) calla_engine_get_status(c->server->engine, &status);
    const char *word = status.failed ? "failed" : c->server->draining ? "draining" : ready ? "ok" : "loading";
    buffer body = {0};
    buffer_printf(&body, "{\"status\":\"%s\"", word);
    if (!ready) buffer_printf(&body, ",\"progress\":%.3f", atomic_load(&c->server->loaded_permille) / 1000.0);
    /* Whoever has no key learns whether the server works, and not how much. */
    if (c->knows_key) buffer_printf(&body, ",\"running\":%u,\"queued\":%u", status.running, status.queued);
    if (status.failed && c->knows_key) {
        buffer_append_str(&body, ",\"message\":");
        json_append_str(&body, status.message);
    }
    buffer_append_str(&body, "}");
    reply_json(c, strcmp(word, "ok") ? 503 : 200, NULL, &body);
    buffer_free(&body);
}

/* models.c: GET /v1/models and /v1/models/{id}.  One model is served; its id is its folder's name, and with a suffix that chooses the mode
 * two more. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "server/reply.h"
#include "server/routes.h"

static const char *const suffixes[] = {"", "-thinking", "-instruct"};

static void write_model(const server *s, const char *suffix, buffer *out) {
    char id[sizeof s->info.model_name + 16];
    snprintf(id, sizeof id, "%s%s", s->info.model_name, suffix);
    char date[32] = "";
    const time_t started = (time_t)s->started;
    struct tm tm;
    if (gmtime_r(&started, &tm)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    buffer_append_str(out, "{\"id\":");
    json_append_str(out, id);
    /* OpenAI's names of things, then Anthropic's.  Clients look for the window under any of three names. */
    buffer_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"calla\",\"context_window\":%u,\"max_model_len\":%u,",
                  (long long)s->started, s->info.context_tokens, s->info.context_tokens);
    buffer_append_str(out, "\"type\":\"model\",\"display_name\":");
    json_append_str(out, id);
    buffer_printf(out, ",\"created_at\":\"%s\",\"max_input_tokens\":%u}", date, s->info.context_tokens);
}

void models_handle_list(connection *c) {
    buffer body = {0};
    buffer_append_str(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (i) buffer_append_str(&body, ",");
        write_model(c->server, suffixes[i], &body);
    }
    buffer_append_str(&body, "],\"has_more\":false}");
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

void models_handle_one(connection *c) {
    const http_request *q = &c->reader.request;
    const size_t skip = strlen("/v1/models/");
    const char *id = http_request_target(q) + skip;
    const char *name = c->server->info.model_name, *suffix = NULL;
    const size_t n = q->path_n - skip, n_name = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && n >= n_name && !memcmp(id, name, n_name); i++)
        if (n - n_name == strlen(suffixes[i]) && !memcmp(id + n_name, suffixes[i], n - n_name)) suffix = suffixes[i];
    if (!suffix) {
        api_error e;
        api_error_set(&e, 404, "model_not_found", "model", "the model %.*s does not exist; this server has %s", (int)n, id, name);
        reply_error(c, &e);
        return;
    }
    buffer body = {0};
    write_model(c->server, suffix, &body);
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

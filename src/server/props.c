/* props.c: GET /props, in the form of llama.cpp's server: what this server computes with when a request does not say otherwise. */

#include "base/json.h"
#include "server/reply.h"
#include "server/routes.h"

void props_handle(connection *c) {
    const calla_engine_info *i = &c->server->info;
    const calla_sampling *d = &i->defaults;
    buffer body = {0};
    buffer_printf(
        &body,
        "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":{\"temperature\":%.7g,\"top_k\":%u,\"top_p\":%.7g,\"min_p\":%.7g,"
        "\"presence_penalty\":%.7g,\"frequency_penalty\":%.7g,\"repeat_penalty\":%.7g}},\"total_slots\":%u,\"model_alias\":",
        i->context_tokens, (double)d->temperature, d->top_k, (double)d->top_p, (double)d->min_p, (double)d->presence_penalty,
        (double)d->frequency_penalty, (double)d->repetition_penalty, i->max_sequences);
    json_append_str(&body, i->model_name);
    buffer_printf(&body, ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"calla %s\"}", calla_version());
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

/* root.c: GET /.  Some clients ask for it, with HEAD, to see whether the server is there at all. */
#include "server/reply.h"
#include "server/routes.h"

void root_handle(connection *c) {
    buffer body = {0};
    buffer_printf(&body, "{\"service\":\"calla\",\"version\":\"%s\"}", calla_version());
    reply_json(c, 200, NULL, &body);
    buffer_free(&body);
}

/* guard.h: which requests may reach the routes at all.  On a loopback address only programs of this machine can connect, and the one that
 * must be kept out is the browser: a page of any site can send requests to 127.0.0.1, or let its own name resolve to it. */
#ifndef CALLA_SERVER_GUARD_H
#define CALLA_SERVER_GUARD_H

#include "server/server_impl.h"

/* False with e filled in if the request is refused. */
bool guard_check(const server *s, const http_request *request, api_error *e);
/* True for a name or address of this machine, with or without port: localhost, *.localhost, 127.0.0.0/8, [::1]. */
bool guard_is_loopback_name(const char *host);

#endif

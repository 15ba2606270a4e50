/* guard.h: which requests may reach the routes at all.
 *
 * Browsers must be kept out: a page of any site can send requests to 127.0.0.1 or to a machine of the same network, or let its own name
 * resolve to one.  Hence the Host header must be a name of this server (or an address, where it listens on more than this machine: no page
 * can be made to send another one than its own), and Origin must be its own or one that was allowed by option.  People are kept out by
 * keys. */
#ifndef CALLA_SERVER_GUARD_H
#define CALLA_SERVER_GUARD_H

#include "server/server_impl.h"

/* Reads options->key_file, allow_hosts and cors; host is what the server listens on. */
calla_status guard_open(const server_options *options, const char *host, guard **out, calla_error *err);
void guard_close(guard *g); /* may be NULL */
/* Told once it is known what the host's name comes to: an error if nothing would protect the server. */
calla_status guard_check_listening(guard *g, bool loopback, const char *url, calla_error *err);

/* By Host and Origin: false with e filled in if the request is refused. */
bool guard_check(const guard *g, const http_request *request, api_error *e);
bool guard_wants_key(const guard *g);
/* By key: true also where there are no keys. */
bool guard_has_key(const guard *g, const http_request *request);
/* What Access-Control-Allow-Origin should say, or NULL where the request comes from no page that may read the reply.  Valid as long as
 * the request. */
const char *guard_cors_origin(const guard *g, const http_request *request);

/* True for a name or address of this machine, with or without port: localhost, *.localhost, 127.0.0.0/8, [::1]. */
bool guard_is_loopback_name(const char *host);

#endif

/* reply.h: writing the reply to the request that a connection is at.  Either one whole reply, or a stream of server-sent events.
 * If memory runs out half-way, the connection is killed (which calls `gone`): half a reply is worse than none.  Loop thread only. */
#ifndef CALLA_SERVER_REPLY_H
#define CALLA_SERVER_REPLY_H

#include "server/connection.h"

/* headers: further header lines, each ending in CRLF, or NULL.  body [n] is copied.  Ends the reply. */
void reply_send(connection *c, int status, const char *type, const char *headers, const char *body, size_t n);
/* The same from a buffer; a failed one becomes a 503. */
void reply_buffer(connection *c, int status, const char *type, const char *headers, const buffer *body);
void reply_json(connection *c, int status, const char *headers, const buffer *body);
void reply_error(connection *c, const api_error *e);
/* To a browser that asks whether a page of c->origin may send a request: yes. */
void reply_preflight(connection *c);

/* text/event-stream; the headers go out at once. */
void reply_stream_begin(connection *c, const char *headers);
/* "event: " name (NULL: no such line), "data: " json [n] and an empty line.  json must hold no line feed. */
void reply_stream_event(connection *c, const char *name, const char *json, size_t n);
/* ": text" and an empty line: clients skip it, but see a byte. */
void reply_stream_comment(connection *c, const char *text);
/* keep_alive false: closes the connection behind it. */
void reply_stream_end(connection *c, bool keep_alive);

/* More than server_limits.output_bytes are unsent: wait for `proceed` before writing more. */
bool reply_is_backed_up(connection *c);
/* Bytes that the client has not taken yet. */
size_t reply_unsent(connection *c);

#endif

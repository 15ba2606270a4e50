/* routes.h: the table of paths. */
#ifndef CALLA_SERVER_ROUTES_H
#define CALLA_SERVER_ROUTES_H

#include <stdio.h>

#include "server/connection.h"

/* Headers are in: false with e filled in for an unknown path (404), another method (405, *allow says which), a body that is not JSON
 * (415). */
bool routes_check(const http_request *request, api_error *e, const char **allow);
/* The request is complete and routes_check passed. */
void routes_dispatch(connection *c);

/* The body of an error reply, in the dialect of the request's path. */
void routes_write_error(const http_request *request, const api_error *e, buffer *out);

/* The number of the request's route, and the path of a number as the table has it: "other" of all that are beyond it. */
size_t routes_index(const http_request *request);
const char *routes_path(size_t index);
/* The table in Markdown, for docs/api.md. */
void routes_print(FILE *out);

/* The handlers that are no completions, one file each. */
void models_handle_list(connection *c);   /* GET /v1/models */
void models_handle_one(connection *c);    /* GET /v1/models/{id} */
void responses_handle_one(connection *c); /* GET, DELETE /v1/responses/{id}; GET …/input_items */
void root_handle(connection *c);          /* GET / */
void health_handle(connection *c);        /* GET /health */
void props_handle(connection *c);         /* GET /props */
void metrics_handle(connection *c);       /* GET /metrics */

#endif

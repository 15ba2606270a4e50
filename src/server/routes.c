/* routes.c: see routes.h. */
#include "server/routes.h"

#include <string.h>
#include <strings.h>

#include "server/chat.h"
#include "server/messages.h"
#include "server/responses.h"
#include "server/text_completion.h"
#include "server/text_routes.h"

typedef struct route {
    const char *path;
    bool prefix; /* what follows the path is the handler's */
    http_verb verb;
    const char *allow;
    const completion_dialect *dialect; /* or handle */
    void (*handle)(connection *c);
} route;

static const route routes[] = {
    {"/v1/chat/completions", false, VERB_POST, "POST", &chat_dialect, NULL},
    {"/v1/messages", false, VERB_POST, "POST", &messages_dialect, NULL},
    {"/v1/messages/count_tokens", false, VERB_POST, "POST", &messages_count_dialect, NULL},
    {"/v1/responses", false, VERB_POST, "POST", &responses_dialect, NULL},
    {"/v1/completions", false, VERB_POST, "POST", &text_completion_dialect, NULL},
    {"/tokenize", false, VERB_POST, "POST", &tokenize_dialect, NULL},
    {"/detokenize", false, VERB_POST, "POST", &detokenize_dialect, NULL},
    {"/apply-template", false, VERB_POST, "POST", &apply_template_dialect, NULL},
    {"/v1/models", false, VERB_GET, "GET, HEAD", NULL, models_handle_list},
    {"/v1/models/", true, VERB_GET, "GET, HEAD", NULL, models_handle_one},
    {"/", false, VERB_GET, "GET, HEAD", NULL, root_handle},
    {"/health", false, VERB_GET, "GET, HEAD", NULL, health_handle},
    {"/props", false, VERB_GET, "GET, HEAD", NULL, props_handle},
    {"/metrics", false, VERB_GET, "GET, HEAD", NULL, metrics_handle},
};

static const route *find(const http_request *request) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const route *r = &routes[i];
        const size_t n = strlen(r->path);
        if (r->prefix ? request->path_n > n && !memcmp(http_request_target(request), r->path, n) : http_request_path_is(request, r->path))
            return r;
    }
    return NULL;
}

/* application/json and application/anything+json, with or without parameters. */
static bool is_json_type(const char *type) {
    const size_t n = strcspn(type, "; \t");
    return (n == 16 && !strncasecmp(type, "application/json", n)) ||
           (n > 17 && !strncasecmp(type, "application/", 12) && !strncasecmp(type + n - 5, "+json", 5));
}

bool routes_check(const http_request *request, api_error *e, const char **allow) {
    const route *r = find(request);
    if (!r) return api_error_set(e, 404, "not_found", NULL, "there is nothing at %s %.200s", request->method, http_request_target(request));
    const http_verb verb = request->verb == VERB_HEAD ? VERB_GET : request->verb;
    if (verb != r->verb) {
        *allow = r->allow;
        return api_error_set(e, 405, "method_not_allowed", NULL, "%s %.200s is not possible: use %s", request->method,
                             http_request_target(request), r->allow);
    }
    if (verb != VERB_POST) return true;
    const char *encoding = http_request_header(request, "content-encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return api_error_set(e, 415, NULL, NULL, "bodies with Content-Encoding %.64s are not understood: send it plain", encoding);
    /* A page of another site may send text/plain without asking first, but not application/json. */
    const char *type = http_request_header(request, "content-type");
    if (!type || !is_json_type(type))
        return api_error_set(e, 415, "not_json", NULL, "the body must be JSON: send the header Content-Type: application/json");
    return true;
}

void routes_dispatch(connection *c) {
    const route *r = find(&c->reader.request);
    if (r->dialect)
        completion_begin(c, r->dialect);
    else
        r->handle(c);
}

size_t routes_index(const http_request *request) {
    const route *r = find(request);
    return r ? (size_t)(r - routes) : sizeof routes / sizeof *routes;
}

const char *routes_path(size_t index) { return index < sizeof routes / sizeof *routes ? routes[index].path : "other"; }

void routes_write_error(const http_request *request, const api_error *e, buffer *out) {
    const route *r = request->method ? find(request) : NULL; /* no method: the request line was not even read */
    if (r && r->dialect)
        r->dialect->write_error(e, out);
    else
        api_error_write(e, out);
}

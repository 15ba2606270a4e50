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
    bool prefix;                       /* what follows the path is the handler's */
    const char *allow;                 /* its verbs; HEAD goes with GET */
    const completion_dialect *dialect; /* or handle */
    void (*handle)(connection *c);
    const char *help; /* one line for the documentation */
} route;

static const route routes[] = {
    {"/v1/chat/completions", false, "POST", &chat_dialect, NULL, "OpenAI's chat."},
    {"/v1/messages", false, "POST", &messages_dialect, NULL, "Anthropic's messages."},
    {"/v1/messages/count_tokens", false, "POST", &messages_count_dialect, NULL, "How many tokens the prompt of such a request has."},
    {"/v1/responses", false, "POST", &responses_dialect, NULL, "OpenAI's responses."},
    {"/v1/responses/", true, "GET, HEAD, DELETE", NULL, responses_handle_one,
     "A response that was to be stored, as long as it is remembered; `/input_items` behind it: what it answers."},
    {"/v1/completions", false, "POST", &text_completion_dialect, NULL, "Text goes on, without a chat template."},
    {"/tokenize", false, "POST", &tokenize_dialect, NULL, "Text as token ids."},
    {"/detokenize", false, "POST", &detokenize_dialect, NULL, "Token ids as text."},
    {"/apply-template", false, "POST", &apply_template_dialect, NULL, "The prompt that a request of the chat dialect makes."},
    {"/v1/models", false, "GET, HEAD", NULL, models_handle_list, "What is served, with its context window."},
    {"/v1/models/", true, "GET, HEAD", NULL, models_handle_one, "One of them."},
    {"/", false, "GET, HEAD", NULL, root_handle, "The server's name and version."},
    {"/health", false, "GET, HEAD", NULL, health_handle, "Whether requests are taken."},
    {"/props", false, "GET, HEAD", NULL, props_handle, "What answers are computed with."},
    {"/metrics", false, "GET, HEAD", NULL, metrics_handle, "What was counted, for Prometheus: see [operations.md](operations.md)."},
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

/* The path that a client meant whose base URL lacks /v1, has it twice or ends with a slash too many; or NULL. */
static const char *meant(const http_request *request) {
    const char *target = http_request_target(request);
    size_t n = request->path_n;
    while (n > 1 && target[n - 1] == '/') n--;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const char *path = routes[i].path, *tail = strncmp(path, "/v1/", 4) != 0 ? path : path + 3;
        const size_t n_tail = strlen(tail);
        if (!routes[i].prefix && n_tail > 1 && n >= n_tail && !memcmp(target + n - n_tail, tail, n_tail)) return path;
    }
    return NULL;
}

/* What is at a path that other servers have, or that is no request's; or NULL. */
static const char *advice(const http_request *request) {
    static const struct {
        const char *begin, *words;
    } others[] = {
        {"/api/", "Ollama's API is not spoken here; as an OpenAI server it is used with the base URL /v1"},
        {"/completion", "llama.cpp's own API is not spoken here; POST /v1/completions has the same prompts"},
        {"/infill", "write the model's fill-in-the-middle tokens into a prompt for POST /v1/completions"},
        {"/v1/embeddings", "this server makes no embeddings"},
        {"/v1/audio", "this server takes and gives text only"},
        {"/v1/images", "this server takes and gives text only"},
    };
    const char *target = http_request_target(request);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (request->path_n >= strlen(others[i].begin) && !memcmp(target, others[i].begin, strlen(others[i].begin))) return others[i].words;
    const bool base =
        request->path_n >= 3 && !memcmp(target, "/v1", 3) && (request->path_n == 3 || (request->path_n == 4 && target[3] == '/'));
    return base ? "this is the base URL for clients, which ask for /v1/models, /v1/chat/completions and the like" : NULL;
}

/* Whether the method is one of the list "GET, HEAD". */
static bool allows(const char *list, const char *method) {
    const size_t n = strlen(method);
    for (const char *at = list; *at; at += strspn(at, ", ")) {
        const size_t word = strcspn(at, ",");
        if (word == n && !memcmp(at, method, n)) return true;
        at += word;
    }
    return false;
}

bool routes_check(const http_request *request, api_error *e, const char **allow) {
    const route *r = find(request);
    if (!r) {
        const char *path = meant(request), *words = path ? path : advice(request);
        return api_error_set(e, 404, "not_found", NULL, "there is nothing at %s %.200s%s%s%s", request->method,
                             http_request_target(request),
                             path    ? "; did you mean "
                             : words ? ": "
                                     : "",
                             words ? words : "", path ? "?" : "");
    }
    if (!allows(r->allow, request->method)) {
        *allow = r->allow;
        return api_error_set(e, 405, "method_not_allowed", NULL, "%s %.200s is not possible: use %s", request->method,
                             http_request_target(request), r->allow);
    }
    if (request->verb != VERB_POST) return true;
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

void routes_print(FILE *out) {
    fprintf(out, "| path | methods | what |\n| --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        fprintf(out, "| `%s%s` | %s | %s |\n", routes[i].path, routes[i].prefix ? "{id}" : "", routes[i].allow, routes[i].help);
}

void routes_write_error(const http_request *request, const api_error *e, buffer *out) {
    const route *r = request->method ? find(request) : NULL; /* no method: the request line was not even read */
    if (r && r->dialect)
        r->dialect->write_error(e, out);
    else
        api_error_write(e, out);
}

/* guard.c: see guard.h. */
#include "server/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/keys.h"

struct guard {
    keys *keys;         /* NULL: none are asked for */
    char *hosts, *cors; /* lists as given, owned; NULL: empty */
    const char *host;   /* the server's */
    const char *url;
    bool loopback, insecure;
};

/* ------------------------------------------------------------- names ----------------------------------------------------- */

/* host without its port and brackets into out; false if it is not of that form. */
static bool strip_port(const char *host, char *out, size_t cap) {
    const char *begin = host, *end;
    if (*host == '[') {
        begin++;
        end = strchr(begin, ']');
        if (!end || (end[1] && end[1] != ':')) return false;
    } else
        end = host + strcspn(host, ":");
    const char *port = *end == ']' ? end + 1 : end;
    if (*port == ':' && port[1 + strspn(port + 1, "0123456789")]) return false;
    const size_t n = (size_t)(end - begin);
    if (!n || n >= cap) return false;
    memcpy(out, begin, n);
    out[n] = 0;
    if (out[n - 1] == '.') out[n - 1] = 0;
    return true;
}

bool guard_is_loopback_name(const char *host) {
    char name[256];
    if (!strip_port(host, name, sizeof name)) return false;
    const size_t n = strlen(name);
    if (!strcasecmp(name, "localhost") || (n > 10 && !strcasecmp(name + n - 10, ".localhost"))) return true;
    struct in_addr v4;
    struct in6_addr v6;
    if (*host != '[' && inet_pton(AF_INET, name, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return *host == '[' && inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static bool is_address(const char *host) {
    char name[256];
    struct in6_addr any;
    return strip_port(host, name, sizeof name) && inet_pton(*host == '[' ? AF_INET6 : AF_INET, name, &any) == 1;
}

/* Whether `what` is a member of the list "a,b,c", in whatever case. */
static bool is_listed(const char *list, const char *what) {
    const size_t n = strlen(what);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strcspn(at, ",") == n && !strncasecmp(at, what, n)) return true;
    }
    return false;
}

static bool is_own_name(const guard *g, const char *host) {
    char name[256];
    if (guard_is_loopback_name(host)) return true;
    return strip_port(host, name, sizeof name) && (!strcasecmp(name, g->host) || is_listed(g->hosts, name));
}

/* ------------------------------------------------------------ options ---------------------------------------------------- */

/* Each member of a list must pass; the copy is the guard's. */
static calla_status take_list(const char *list, const char *option, bool (*good)(const char *member), const char *form, char **out,
                              calla_error *err) {
    if (!list) return CALLA_OK;
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        char member[256];
        end = at + strcspn(at, ",");
        snprintf(member, sizeof member, "%.*s", (int)(end - at), at);
        if ((size_t)(end - at) >= sizeof member || (strcmp(member, "*") != 0 && !good(member)))
            return error_set(err, CALLA_E_ARGUMENT, "%s takes %s, separated by commas, not \"%s\"", option, form, member);
    }
    *out = mem_strdup(list);
    return *out ? CALLA_OK : error_nomem(err, "the server's lists of names");
}

static bool is_name(const char *s) { return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")]; }

/* scheme://name or scheme://name:port, as browsers write it: no path, not even a slash. */
static bool is_origin(const char *s) {
    const char *colon = strstr(s, "://");
    return colon && colon != s && *s != ' ' && colon[3] && !colon[3 + strcspn(colon + 3, "/ ?#")];
}

calla_status guard_open(const server_options *options, const char *host, guard **out, calla_error *err) {
    guard *g = mem_calloc(1, sizeof *g);
    if (!g) return error_nomem(err, "the server's guard");
    *out = g; /* closed with the server, also when this fails */
    g->host = host;
    g->insecure = options->insecure;
    calla_status rc = options->key_file ? keys_open(options->key_file, &g->keys, err) : CALLA_OK;
    if (!rc) rc = take_list(options->allow_hosts, "--allow-host", is_name, "names without scheme and port, or *", &g->hosts, err);
    if (!rc)
        rc = take_list(options->cors, "--cors", is_origin, "origins such as https://app.example or http://localhost:3000, or *", &g->cors,
                       err);
    return rc;
}

void guard_close(guard *g) {
    if (!g) return;
    keys_close(g->keys);
    mem_free(g->hosts);
    mem_free(g->cors);
    mem_free(g);
}

calla_status guard_check_listening(guard *g, bool loopback, const char *url, calla_error *err) {
    g->loopback = loopback;
    g->url = url;
    if (!g->keys && is_listed(g->cors, "*")) log_warn("--cors '*' without --key-file: every page that a browser here opens can use calla");
    if (loopback || g->keys) return CALLA_OK;
    if (!g->insecure)
        return error_set(err, CALLA_E_ARGUMENT,
                         "%s is open to the network: give keys with --key-file FILE, or --insecure if whoever can reach it may use it",
                         url);
    log_warn("%s is open to the network: whoever can reach it can use it", url);
    return CALLA_OK;
}

/* ------------------------------------------------------------ requests --------------------------------------------------- */

const char *guard_cors_origin(const guard *g, const http_request *request) {
    const char *origin = http_request_header(request, "origin");
    if (!origin) return NULL;
    if (is_listed(g->cors, "*")) return "*";
    return is_listed(g->cors, origin) ? origin : NULL;
}

bool guard_check(const guard *g, const http_request *request, api_error *e) {
    const char *host = http_request_header(request, "host"), *origin = http_request_header(request, "origin");
    const bool any_host = is_listed(g->hosts, "*"); /* says nothing of pages */
    if (host && !any_host && !is_own_name(g, host) && (g->loopback || !is_address(host)))
        return api_error_set(e, 403, "host_not_allowed", NULL,
                             "the Host header names %.128s, but this server answers as %s only: if the name is right, start it with "
                             "--allow-host NAME",
                             host, g->url);
    if (!origin || guard_cors_origin(g, request)) return true;
    /* Its own pages send the name that they were asked for by; behind a proxy with TLS that is still the Host. */
    const char *name = !strncmp(origin, "http://", 7) ? origin + 7 : !strncmp(origin, "https://", 8) ? origin + 8 : "";
    if (*name && ((host && !strcasecmp(name, host)) || is_own_name(g, name))) return true;
    return api_error_set(e, 403, "origin_not_allowed", NULL,
                         "pages of %.128s may not use this server: if they should, start it with --cors %.128s", origin, origin);
}

bool guard_wants_key(const guard *g) { return g->keys != NULL; }

bool guard_has_key(const guard *g, const http_request *request) {
    if (!g->keys) return true;
    const char *bearer = http_request_header(request, "authorization"), *key = http_request_header(request, "x-api-key");
    bool good = key && keys_match(g->keys, key);
    if (bearer && !strncasecmp(bearer, "bearer ", 7)) good |= keys_match(g->keys, bearer + 7 + strspn(bearer + 7, " "));
    return good;
}

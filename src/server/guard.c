/* guard.c: see guard.h. */
#include "server/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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

static bool is_own_name(const server *s, const char *host) {
    char name[256];
    return guard_is_loopback_name(host) || (strip_port(host, name, sizeof name) && !strcasecmp(name, s->host));
}

bool guard_check(const server *s, const http_request *request, api_error *e) {
    if (!s->loopback) return true;
    const char *host = http_request_header(request, "host"), *origin = http_request_header(request, "origin");
    if (host && !is_own_name(s, host))
        return api_error_set(e, 403, "host_not_allowed", NULL, "the Host header names %.128s, but this server answers as %s only", host,
                             s->url);
    if (origin) {
        const char *name = !strncmp(origin, "http://", 7) ? origin + 7 : !strncmp(origin, "https://", 8) ? origin + 8 : "";
        if (!is_own_name(s, name))
            return api_error_set(e, 403, "origin_not_allowed", NULL, "pages of %.128s may not use this server", origin);
    }
    return true;
}

/* listen.c: from "host, port" to a listening socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/server_impl.h"

static bool is_loopback_address(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int try_listen(const struct addrinfo *a) {
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) return -1;
    const int on = 1;
    /* Without it a restart would have to wait for connections of the last run to time out. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (evutil_make_socket_nonblocking(fd) || evutil_make_socket_closeonexec(fd) || bind(fd, a->ai_addr, a->ai_addrlen) ||
        listen(fd, 511)) {
        const int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static calla_status listen_error(const char *host, uint16_t port, int error, calla_error *err) {
    switch (error) {
    case EADDRINUSE:
        return error_set(
            err, CALLA_E_IO,
            "port %u of %s is in use: perhaps another calla runs; stop it, or choose another port with --port N (0: any free one)", port,
            host);
    case EACCES:
        return error_set(err, CALLA_E_IO, "port %u of %s may not be used without special rights: choose one above 1023 with --port N", port,
                         host);
    case EADDRNOTAVAIL:
        return error_set(err, CALLA_E_IO, "%s is not an address of this machine: use --host 127.0.0.1, or 0.0.0.0 for all of them", host);
    default: return error_set(err, CALLA_E_IO, "cannot listen on port %u of %s: %s", port, host, strerror(error));
    }
}

calla_status server_listen(server *s, const char *host, uint16_t port, evutil_socket_t *out, bool *loopback, calla_error *err) {
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) return error_set(err, CALLA_E_IO, "cannot find the address of %s: %s; use --host 127.0.0.1", host, gai_strerror(rc));
    int fd = -1, error = 0;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = try_listen(a);
        if (fd < 0 && !error) error = errno;
        if (fd >= 0) *loopback = is_loopback_address(a->ai_addr);
    }
    freeaddrinfo(list);
    if (fd < 0) return listen_error(host, port, error, err);
    struct sockaddr_storage bound = {0};
    socklen_t n = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)&bound, &n)) {
        error = errno;
        close(fd);
        return listen_error(host, port, error, err);
    }
    s->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
    const char *open = strchr(host, ':') ? "[" : "", *close_bracket = *open ? "]" : "";
    snprintf(s->url, sizeof s->url, "http://%s%s%s:%u", open, host, close_bracket, s->port);
    *out = fd;
    return CALLA_OK;
}

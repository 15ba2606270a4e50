/* metrics.h: what the server counts, and GET /metrics, which prints it in the text form of Prometheus.  Loop thread only.
 *
 * Names, units and meanings are in docs/operations.md.  Labels have few values, all known beforehand: nothing that a client sends becomes
 * one. */
#ifndef CALLA_SERVER_METRICS_H
#define CALLA_SERVER_METRICS_H

#include <stdint.h>

#include "server/http.h"

enum { METRICS_ROUTES = 24, METRICS_CODES = 20, METRICS_CAUSES = 4, METRICS_FINISHES = 6, METRICS_BUCKETS = 16 };

typedef struct histogram {
    uint64_t counts[METRICS_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} histogram;

typedef struct metrics {
    uint64_t replies[METRICS_ROUTES][METRICS_CODES];
    uint64_t aborted[METRICS_CAUSES];
    uint64_t finished[METRICS_FINISHES];
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    histogram queue, first_token, between_tokens, generation;
} metrics;

typedef enum abort_cause { ABORT_CLIENT_LEFT, ABORT_CLIENT_STUCK, ABORT_NO_MEMORY, ABORT_STOPPING } abort_cause;
/* "client_left" … */
const char *abort_cause_name(abort_cause cause);

/* How a generation ended, as a label and in the log: the finishes of completion.h, then these two. */
enum { FINISH_ERROR = 4, FINISH_ABORTED };
const char *finish_name(unsigned finish);

void metrics_queue(metrics *m, double seconds);
void metrics_first_token(metrics *m, double seconds);
void metrics_between_tokens(metrics *m, double seconds);
void metrics_generation(metrics *m, double seconds);

void metrics_reply(metrics *m, const http_request *request, int status);

#endif

/* metrics.c: see metrics.h. */
#include "server/metrics.h"

#include <stdio.h>

#include "base/process.h"
#include "server/reply.h"
#include "server/routes.h"

/* Of replies; 0 stands for all others. */
static const int codes[METRICS_CODES] = {200, 400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 501, 503, 505, 0};

/* Seconds.  A token takes a millisecond on a large card and a second on a small machine; prompts take up to an hour. */
static const double fine[METRICS_BUCKETS] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10};
static const double coarse[METRICS_BUCKETS] = {0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600};

const char *abort_cause_name(abort_cause cause) {
    static const char *const names[METRICS_CAUSES] = {"client_left", "client_stuck", "out_of_memory", "server_stopping"};
    return names[cause];
}

const char *finish_name(unsigned finish) {
    static const char *const names[METRICS_FINISHES] = {"stop", "length", "tool_calls", "stop_string", "error", "aborted"};
    return names[finish];
}

static void add(histogram *h, const double *bounds, double seconds) {
    size_t i = 0;
    while (i < METRICS_BUCKETS && seconds > bounds[i]) i++;
    h->counts[i]++;
    h->sum += seconds;
}

void metrics_between_tokens(metrics *m, double seconds) { add(&m->between_tokens, fine, seconds); }
void metrics_queue(metrics *m, double seconds) { add(&m->queue, coarse, seconds); }
void metrics_first_token(metrics *m, double seconds) { add(&m->first_token, coarse, seconds); }
void metrics_generation(metrics *m, double seconds) { add(&m->generation, coarse, seconds); }

void metrics_reply(metrics *m, const http_request *request, int status) {
    const size_t route = request->method ? routes_index(request) : METRICS_ROUTES - 1;
    size_t code = 0;
    while (codes[code] && codes[code] != status) code++;
    m->replies[route < METRICS_ROUTES ? route : METRICS_ROUTES - 1][code]++;
}

/* ------------------------------------------------------------ printing --------------------------------------------------- */

static void describe(buffer *out, const char *name, const char *type, const char *help) {
    buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_number(buffer *out, const char *name, const char *type, const char *help, double value) {
    describe(out, name, type, help);
    buffer_printf(out, "%s %.17g\n", name, value);
}

static void print_histogram(buffer *out, const char *name, const char *help, const histogram *h, const double *bounds) {
    describe(out, name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < METRICS_BUCKETS; i++) {
        below += h->counts[i];
        buffer_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)below);
    }
    below += h->counts[METRICS_BUCKETS];
    buffer_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.17g\n%s_count %llu\n", name, (unsigned long long)below, name, h->sum, name,
                  (unsigned long long)below);
}

static void print_replies(buffer *out, const metrics *m) {
    describe(out, "calla_http_replies_total", "counter", "Replies by route and status code.");
    for (size_t r = 0; r < METRICS_ROUTES; r++)
        for (size_t c = 0; c < METRICS_CODES; c++) {
            if (!m->replies[r][c]) continue;
            char code[8] = "other";
            if (codes[c]) snprintf(code, sizeof code, "%d", codes[c]);
            buffer_printf(out, "calla_http_replies_total{route=\"%s\",code=\"%s\"} %llu\n", routes_path(r), code,
                          (unsigned long long)m->replies[r][c]);
        }
    describe(out, "calla_http_aborted_total", "counter", "Requests that got no reply, or not all of it, by cause.");
    for (unsigned i = 0; i < METRICS_CAUSES; i++)
        buffer_printf(out, "calla_http_aborted_total{cause=\"%s\"} %llu\n", abort_cause_name((abort_cause)i),
                      (unsigned long long)m->aborted[i]);
}

static void print_generations(buffer *out, const metrics *m) {
    describe(out, "calla_generations_total", "counter", "Answers by how they ended.");
    for (unsigned i = 0; i < METRICS_FINISHES; i++)
        buffer_printf(out, "calla_generations_total{finish=\"%s\"} %llu\n", finish_name(i), (unsigned long long)m->finished[i]);
    print_number(out, "calla_prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.", (double)m->prompt_tokens);
    print_number(out, "calla_prompt_cached_tokens_total", "counter", "Tokens of prompts that were not computed again.",
                 (double)m->cached_tokens);
    print_number(out, "calla_completion_tokens_total", "counter", "Tokens generated.", (double)m->completion_tokens);
    print_histogram(out, "calla_queue_seconds", "From a request's acceptance to its first work.", &m->queue, coarse);
    print_histogram(out, "calla_time_to_first_token_seconds", "From a request's last byte to the first token of its answer.",
                    &m->first_token, coarse);
    print_histogram(out, "calla_time_between_tokens_seconds", "Between two tokens of an answer, as the engine makes them.",
                    &m->between_tokens, fine);
    print_histogram(out, "calla_generation_seconds", "From a request's last byte to the end of its answers.", &m->generation, coarse);
}

static void print_state(buffer *out, const server *s) {
    calla_engine_status status;
    calla_engine_get_status(s->engine, &status);
    print_number(out, "calla_engine_up", "gauge", "1 while the device works, 0 once it has failed.", !status.failed);
    print_number(out, "calla_draining", "gauge", "1 once the server was told to stop.", s->draining);
    print_number(out, "calla_jobs_running", "gauge", "Answers that the engine is at work on.", status.running);
    print_number(out, "calla_jobs_queued", "gauge", "Answers that wait for their turn.", status.queued);
    print_number(out, "calla_jobs_running_max", "gauge", "Answers that can be worked on at the same time.", s->info.max_sequences);
    print_number(out, "calla_requests", "gauge", "Requests for answers at work or waiting.", s->n_completions);
    print_number(out, "calla_requests_max", "gauge", "More than so many are refused with 429.", s->limits.requests);
    print_number(out, "calla_connections", "gauge", "Open connections.", s->n_connections);
    print_number(out, "calla_upload_bytes", "gauge", "Bytes of request bodies that are held.", (double)s->upload_used);
}

static void print_process(buffer *out, const server *s) {
    process_usage usage;
    process_get_usage(&usage);
    print_number(out, "calla_weights_bytes", "gauge", "Of the model's files, mapped or copied to the device.",
                 (double)s->info.weights_bytes);
    print_number(out, "calla_plan_bytes", "gauge", "Allocated once for activations, KV cache and states.", (double)s->info.plan_bytes);
    if (usage.resident_bytes)
        print_number(out, "process_resident_memory_bytes", "gauge", "Memory in use, mapped files included.", (double)usage.resident_bytes);
    if (usage.private_bytes)
        print_number(out, "calla_private_memory_bytes", "gauge", "Memory in use, mapped files not included.", (double)usage.private_bytes);
    print_number(out, "process_cpu_seconds_total", "counter", "Time of all processors, user and system.", usage.cpu_seconds);
    print_number(out, "process_start_time_seconds", "gauge", "When the server was started, since 1970.", (double)s->started);
    describe(out, "calla_build_info", "gauge", "The version that runs.");
    buffer_printf(out, "calla_build_info{version=\"%s\",commit=\"%s\",device=\"%s\"} 1\n", calla_version(), calla_commit(),
                  s->info.device ? s->info.device : "");
}

void metrics_handle(connection *c) {
    buffer out = {0};
    print_replies(&out, &c->server->metrics);
    print_generations(&out, &c->server->metrics);
    print_state(&out, c->server);
    print_process(&out, c->server);
    reply_buffer(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, &out);
    buffer_free(&out);
}

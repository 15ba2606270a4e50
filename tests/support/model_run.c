/* model_run.c: see model_run.h. */
#include "support/model_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(calla_status status, const calla_error *err) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", calla_status_name(status), err->message);
    abort();
}

static const char *device(void) {
    const char *name = getenv("CALLA_TEST_DEVICE");
    return name ? name : "ref";
}

static calla_status try_rig(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv, bool fast, bool deterministic,
                            bool all_rows, rig *r, calla_error *err) {
    *r = (rig){.kv = kv};
    must(weights_open(dir, &r->w, err), err);
    model_options o = {.backend = backend_find(device()),
                       .batch_rows = rows,
                       .max_segments = sequences,
                       .max_wanted = rows,
                       .fast = fast,
                       .deterministic = deterministic,
                       .all_rows = all_rows,
                       .sequences = sequences,
                       .kv_tokens = sequences * (tokens + KV_PAGE_TOKENS),
                       .kv = kv};
    return model_open(r->w, &o, &r->m, err);
}

static rig open_rig(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv, bool fast, bool deterministic,
                    bool all_rows) {
    calla_error err;
    rig r;
    must(try_rig(dir, tokens, rows, sequences, kv, fast, deterministic, all_rows, &r, &err), &err);
    return r;
}

bool rig_is_taken(const char *dir, calla_kv kv, bool deterministic) {
    calla_error err;
    rig r;
    const calla_status status = try_rig(dir, KV_PAGE_TOKENS, 1, 1, kv, false, deterministic, false, &r, &err);
    if (status == CALLA_E_UNSUPPORTED)
        printf("left out: %s\n", err.message);
    else
        must(status, &err);
    rig_close(&r);
    return !status;
}

rig rig_open(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv) {
    return open_rig(dir, tokens, rows, sequences, kv, getenv("CALLA_TEST_FAST") != NULL, false, false);
}

rig rig_open_deterministic(const char *dir, uint32_t tokens, uint32_t rows, uint32_t sequences, calla_kv kv, bool fast, bool all_rows) {
    return open_rig(dir, tokens, rows, sequences, kv, fast, true, all_rows);
}

void rig_close(rig *r) {
    model_close(r->m);
    weights_close(r->w);
}

sequence *rig_sequence(rig *r) {
    calla_error err;
    sequence *s;
    must(sequence_open(r->m, &s, &err), &err);
    return s;
}

void rig_append(rig *r, sequence *s, const int32_t *ids, uint32_t n, float *logits, float *last) {
    calla_error err;
    const uint32_t V = r->w->shape.vocabulary;
    model_segment g = {.sequence = s, .ids = ids, .rows = n, .want = logits ? WANT_ALL : last ? WANT_LAST : WANT_NONE};
    must(model_step(r->m, &g, 1, NULL, NULL, &err), &err);
    for (uint32_t i = 0; logits && i < n; i++) memcpy(logits + (size_t)i * V, model_logits(r->m, 0, i), V * sizeof *logits);
    if (last) memcpy(last, model_logits(r->m, 0, logits ? n - 1 : 0), V * sizeof *last);
}

float *rig_run(rig *r, const int32_t *ids, uint32_t n, uint32_t chunk) {
    const uint32_t V = r->w->shape.vocabulary;
    float *logits = malloc((size_t)n * V * sizeof *logits);
    if (!logits) abort();
    sequence *s = rig_sequence(r);
    for (uint32_t i = 0; i < n; i += chunk) rig_append(r, s, ids + i, chunk < n - i ? chunk : n - i, logits + (size_t)i * V, NULL);
    sequence_close(s);
    return logits;
}

uint32_t row_argmax(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

double row_logprob(const float *logits, uint32_t n, int32_t id) {
    double max = logits[row_argmax(logits, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

void assert_same_logits(const rig *r, const float *got, const float *want, size_t n) {
    if (!memcmp(got, want, n * sizeof *got)) return;
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    const double difference = largest_difference(got, want, n);
    if (strcmp(device(), "ref") && difference <= (r->kv == CALLA_KV_F32 ? 1e-4 : 1e-3) * largest) return;
    fprintf(stderr, "%s: logits differ by %g, the largest is %g\n", device(), difference, largest);
    abort();
}

double largest_difference(const float *a, const float *b, size_t n) {
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= largest)) largest = isnan(d) ? INFINITY : d;
    }
    return largest;
}

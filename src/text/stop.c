/* stop.c: see stop.h. */
#include "text/stop.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

static calla_status stop_string_open(stop_string *stop, const char *s, size_t index, calla_error *err) {
    stop->n = s ? strlen(s) : 0;
    if (!stop->n) return error_set(err, CALLA_E_ARGUMENT, "stop[%zu]: a stop string must not be empty", index);
    if (utf8_valid(s, stop->n) != stop->n) return error_set(err, CALLA_E_ARGUMENT, "stop[%zu]: a stop string must be valid UTF-8", index);
    stop->s = mem_strndup(s, stop->n);
    stop->back = mem_array(stop->n, sizeof *stop->back);
    if (!stop->s || !stop->back) return error_nomem(err, "a stop string");
    stop->back[0] = 0;
    for (size_t i = 1, k = 0; i < stop->n; i++) {
        while (k > 0 && s[i] != s[k]) k = stop->back[k - 1];
        if (s[i] == s[k]) k++;
        stop->back[i] = k;
    }
    return CALLA_OK;
}

calla_status stop_open(stop_matcher *m, const char *const *strings, size_t n, calla_error *err) {
    *m = (stop_matcher){0};
    if (n == 0) return CALLA_OK;
    m->strings = mem_calloc(n, sizeof *m->strings);
    if (!m->strings) return error_nomem(err, "stop strings");
    m->n = n;
    calla_status status = CALLA_OK;
    for (size_t i = 0; !status && i < n; i++) status = stop_string_open(&m->strings[i], strings[i], i, err);
    if (status) stop_close(m);
    return status;
}

void stop_close(stop_matcher *m) {
    for (size_t i = 0; i < m->n; i++) {
        mem_free(m->strings[i].s);
        mem_free(m->strings[i].back);
    }
    mem_free(m->strings);
    buffer_free(&m->held);
    *m = (stop_matcher){0};
}

/* One byte more; whether it completes this stop string. */
static bool advance(stop_string *stop, char c) {
    if (stop->matched == stop->n) stop->matched = stop->back[stop->n - 1];
    while (stop->matched > 0 && stop->s[stop->matched] != c) stop->matched = stop->back[stop->matched - 1];
    if (stop->s[stop->matched] == c) stop->matched++;
    return stop->matched == stop->n;
}

void stop_push(stop_matcher *m, const char *text, size_t n, buffer *out) {
    if (m->stopped || n == 0) return;
    if (m->n == 0) {
        buffer_append(out, text, n);
        return;
    }
    const size_t old = m->held.n;
    buffer_append(&m->held, text, n);
    if (m->held.failed) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t longest = 0;
        for (size_t k = 0; k < m->n; k++)
            if (advance(&m->strings[k], text[i]) && m->strings[k].n > longest) longest = m->strings[m->which = k].n;
        if (longest) {
            buffer_append(out, m->held.data, old + i + 1 - longest);
            m->stopped = true;
            return;
        }
    }
    size_t hold = 0;
    for (size_t k = 0; k < m->n; k++)
        if (m->strings[k].matched > hold) hold = m->strings[k].matched;
    const size_t ready = m->held.n - hold;
    buffer_append(out, m->held.data, ready);
    memmove(m->held.data, m->held.data + ready, hold);
    m->held.n = hold;
}

void stop_flush(stop_matcher *m, buffer *out) {
    if (!m->stopped && m->held.n) buffer_append(out, m->held.data, m->held.n);
    buffer_clear(&m->held);
    for (size_t k = 0; k < m->n; k++) m->strings[k].matched = 0;
}

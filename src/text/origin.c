/* origin.c: see origin.h. */
#include "text/origin.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

static void append(origin_text *o, const char *s, size_t n, bool content) {
    if (n == 0) return;
    if (o->all_template) content = false;
    /* run i is content if i is odd: at most two runs are added before the one that grows */
    if (mem_grow(&o->runs, &o->cap_runs, o->n_runs + 2, sizeof *o->runs, SIZE_MAX / sizeof *o->runs) < 0) {
        o->failed = true;
        return;
    }
    while (o->n_runs == 0 || ((o->n_runs - 1) % 2 == 1) != content) o->runs[o->n_runs++] = 0;
    o->runs[o->n_runs - 1] += n;
    buffer_append(&o->text, s, n);
    o->failed |= o->text.failed;
}

void origin_template(origin_text *o, const char *s) { append(o, s, strlen(s), false); }

void origin_content(origin_text *o, const char *s, size_t n) { append(o, s, n, true); }

void origin_append_span(origin_text *o, origin_span span) {
    o->failed |= span.of->failed;
    if (o->failed) return;
    size_t start = 0;
    for (size_t i = 0; i < span.of->n_runs && start < span.to; i++) {
        const size_t end = start + span.of->runs[i];
        const size_t from = start > span.from ? start : span.from, to = end < span.to ? end : span.to;
        if (from < to) append(o, span.of->text.data + from, to - from, i % 2 == 1);
        start = end;
    }
}

void origin_clear(origin_text *o) {
    buffer_clear(&o->text);
    o->n_runs = 0;
}

void origin_free(origin_text *o) {
    buffer_free(&o->text);
    mem_free(o->runs);
    *o = (origin_text){0};
}

/* str.isspace(): bidirectional type WS, B or S, or category Zs. */
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

origin_span span_strip(origin_span s) {
    while (s.from < s.to) {
        uint32_t cp;
        const int n = utf8_decode(s.of->text.data + s.from, s.to - s.from, &cp);
        if (n <= 0 || !is_space(cp)) break;
        s.from += (size_t)n;
    }
    while (s.from < s.to) {
        size_t start = s.to - 1;
        while (start > s.from && ((unsigned char)s.of->text.data[start] & 0xC0) == 0x80) start--;
        uint32_t cp;
        if (utf8_decode(s.of->text.data + start, s.to - start, &cp) <= 0 || !is_space(cp)) break;
        s.to = start;
    }
    return s;
}

origin_span span_strip_newlines_left(origin_span s) {
    while (s.from < s.to && s.of->text.data[s.from] == '\n') s.from++;
    return s;
}

origin_span span_strip_newlines_right(origin_span s) {
    while (s.from < s.to && s.of->text.data[s.to - 1] == '\n') s.to--;
    return s;
}

bool span_starts_with(origin_span s, const char *prefix) {
    const size_t n = strlen(prefix);
    return span_n(s) >= n && memcmp(span_data(s), prefix, n) == 0;
}

bool span_ends_with(origin_span s, const char *suffix) {
    const size_t n = strlen(suffix);
    return span_n(s) >= n && memcmp(span_data(s) + span_n(s) - n, suffix, n) == 0;
}

static const char *find(origin_span s, const char *word) { return memmem(span_data(s), span_n(s), word, strlen(word)); }

bool span_contains(origin_span s, const char *word) { return find(s, word) != NULL; }

origin_span span_split_first(origin_span s, const char *separator) {
    const char *at = find(s, separator);
    if (at) s.to = s.from + (size_t)(at - span_data(s));
    return s;
}

origin_span span_split_last(origin_span s, const char *separator) {
    for (const char *at; (at = find(s, separator));) s.from += (size_t)(at - span_data(s)) + strlen(separator);
    return s;
}

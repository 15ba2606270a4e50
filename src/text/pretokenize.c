/* pretokenize.c: the regex as straight code.
 *
 * Alternatives are tried in the regex's order, as a backtracking matcher does; comments quote them ([LM] stands for [\p{L}\p{M}], and
 * is \p{L} alone in the older regex, where marks are symbols).  Every character is matched by one of them, so words follow one another
 * without gaps.  A word's end is found by looking at its own characters and one more, but for white space, whose run is looked at
 * at most twice: the whole is linear. */
#include "text/pretokenize.h"

#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

const char *const pretokenize_regex[2] = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

bool pretokenize_find_rule(const char *regex, size_t n, pretokenize_rule *rule) {
    for (unsigned i = 0; i < 2; i++) {
        if (strlen(pretokenize_regex[i]) != n || memcmp(pretokenize_regex[i], regex, n) != 0) continue;
        *rule = (pretokenize_rule)i;
        return true;
    }
    return false;
}

typedef struct text {
    const char *s; /* [n] */
    size_t n;
    pretokenize_rule rule;
} text;

/* Class and length of the character at `at`; length 0 at the end. */
static inline unicode_class class_at(const text *t, size_t at, size_t *len) {
    if (at >= t->n) {
        *len = 0;
        return UNICODE_CLASSES;
    }
    uint32_t cp = (unsigned char)t->s[at];
    if (cp < 0x80) {
        *len = 1;
        return (unicode_class)unicode_class_value[cp];
    }
    *len = (size_t)utf8_decode(t->s + at, t->n - at, &cp);
    const unicode_class class = unicode_class_of(cp);
    if (class == UNICODE_MARK) return t->rule == PRETOKENIZE_MARKS ? UNICODE_LETTER : UNICODE_OTHER;
    return class;
}

/* Where the run of `class` that contains `at` ends. */
static inline size_t run_end(const text *t, size_t at, unicode_class class) {
    size_t len;
    while (class_at(t, at, &len) == class) at += len;
    return at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d): 0 or its length.  U+017F, the long s, is an s when case is ignored. */
static size_t contraction(const text *t) {
    if (t->n < 2) return 0;
    const unsigned char *s = (const unsigned char *)t->s;
    const unsigned a = s[1] | 0x20u, b = t->n > 2 ? s[2] | 0x20u : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    if (s[1] == 0xC5 && t->n > 2 && s[2] == 0xBF) return 3;
    return 0;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ where a white-space character stands at 0. */
static size_t space_word(const text *t) {
    size_t end = 0, last = 0, len, newline_end = 0;
    for (;;) {
        const unicode_class class = class_at(t, end, &len);
        if (class != UNICODE_SPACE && class != UNICODE_NEWLINE) break;
        last = end;
        end += len;
        if (class == UNICODE_NEWLINE) newline_end = end;
    }
    if (newline_end) return newline_end;
    if (end == t->n || last == 0) return end;
    return last; /* the last white space goes to what follows */
}

size_t pretokenize_next(pretokenize_rule rule, const char *s, size_t n) {
    const text t = {s, n, rule};
    size_t len, next_len;
    const unicode_class class = class_at(&t, 0, &len);
    if (class == UNICODE_LETTER) return run_end(&t, len, UNICODE_LETTER);
    if (class == UNICODE_NUMBER) return len;
    if (s[0] == '\'') {
        const size_t n_contraction = contraction(&t);
        if (n_contraction) return n_contraction;
    }
    if (class == UNICODE_NEWLINE) return space_word(&t);
    /* [^\r\n\p{L}\p{N}]?[LM]+ */
    const unicode_class next = class_at(&t, len, &next_len);
    if (next == UNICODE_LETTER) return run_end(&t, len + next_len, UNICODE_LETTER);
    /*  ?[^\s[LM]\p{N}]+[\r\n]* */
    if (class == UNICODE_OTHER || (s[0] == ' ' && next == UNICODE_OTHER))
        return run_end(&t, run_end(&t, len, UNICODE_OTHER), UNICODE_NEWLINE);
    return space_word(&t);
}

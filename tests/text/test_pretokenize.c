/* test_pretokenize.c: the scanner against the regexes themselves, run by a small backtracking matcher on random and chosen texts.
 *
 * The matcher below knows what the two regexes use: alternatives, groups (?i:…) and (?!…), classes with \p{L} \p{M} \p{N} \s \S \r \n,
 * and greedy ? * +.  It reads the regex as text, so scanner and matcher share the class tables only. */
#include "../unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/pretokenize.h"
#include "text/unicode.h"
#include "vectors.h"

typedef struct subject {
    uint32_t cp[64];
    size_t n;
} subject;

/* ------------------------------------------------------------- the matcher ----------------------------------------------- */

static bool is_space(uint32_t c) { return unicode_class_of(c) == UNICODE_SPACE || unicode_class_of(c) == UNICODE_NEWLINE; }

/* Whether c fits the atom's member at *p, which is moved behind it. */
static bool fits_member(const char **p, uint32_t c) {
    const char *r = *p;
    if (*r != '\\') {
        *p = r + 1;
        return c == (unsigned char)*r;
    }
    *p = r + 2;
    switch (r[1]) {
    case 'r': return c == '\r';
    case 'n': return c == '\n';
    case 's': return is_space(c);
    case 'S': return !is_space(c);
    default: break;
    }
    assert_int_equal(r[1], 'p');
    *p = r + 5;
    const unicode_class wanted = r[3] == 'L' ? UNICODE_LETTER : r[3] == 'M' ? UNICODE_MARK : UNICODE_NUMBER;
    return unicode_class_of(c) == wanted;
}

/* The same for a whole atom: [..], [^..] or one member. */
static bool fits_atom(const char **p, uint32_t c, bool fold) {
    if (**p != '[') {
        const char *same = *p;
        if (fits_member(p, c)) return true;
        if (!fold) return false;
        if (c == 0x17F) return fits_member(&same, 's');
        return c >= 'A' && c <= 'Z' && fits_member(&same, c | 0x20);
    }
    (*p)++;
    const bool negated = **p == '^';
    *p += negated;
    bool fits = false;
    while (**p != ']') fits |= fits_member(p, c);
    (*p)++;
    return fits != negated;
}

static bool match_here(const char *r, const char *end, const subject *s, size_t at, bool fold, size_t *stop);

/* The end of the alternative at r: a '|' outside groups and classes, or end. */
static const char *alternative_end(const char *r, const char *end) {
    int depth = 0;
    for (; r < end; r++) {
        if (*r == '\\') {
            r++;
        } else if (*r == '[' || *r == '(') {
            depth++;
        } else if (*r == ']' || *r == ')') {
            depth--;
        } else if (*r == '|' && !depth) {
            break;
        }
    }
    return r;
}

/* The first alternative of r … end that matches at `at`. */
static bool match_any(const char *r, const char *end, const subject *s, size_t at, bool fold, size_t *stop) {
    for (;;) {
        const char *bar = alternative_end(r, end);
        if (match_here(r, bar, s, at, fold, stop)) return true;
        if (bar == end) return false;
        r = bar + 1;
    }
}

static const char *group_end(const char *r) {
    while (*r != ')') r += 1 + (*r == '\\');
    return r;
}

static bool match_here(const char *r, const char *end, const subject *s, size_t at, bool fold, size_t *stop) {
    if (r == end) {
        *stop = at;
        return true;
    }
    if (strncmp(r, "(?i:", 4) == 0) { /* ends its alternative in both regexes */
        const char *close = group_end(r);
        assert_ptr_equal(close + 1, end);
        return match_any(r + 4, close, s, at, true, stop);
    }
    if (strncmp(r, "(?!", 3) == 0) {
        const char *close = group_end(r);
        size_t ignored;
        return !match_any(r + 3, close, s, at, fold, &ignored) && match_here(close + 1, end, s, at, fold, stop);
    }
    const char *after = r;
    fits_atom(&after, 'x', false);
    const char quantifier = after < end && strchr("?*+", *after) ? *after : 0;
    const char *rest = after + (quantifier != 0);
    const size_t least = quantifier == '?' || quantifier == '*' ? 0 : 1, most = quantifier == '*' || quantifier == '+' ? s->n : 1;
    size_t count = 0;
    while (count < most && at + count < s->n) {
        const char *p = r;
        if (!fits_atom(&p, s->cp[at + count], fold)) break;
        count++;
    }
    for (;; count--) {
        if (count < least) return false;
        if (match_here(rest, end, s, at + count, fold, stop)) return true;
        if (!count) return false;
    }
}

/* ------------------------------------------------------------- comparison ------------------------------------------------ */

static void compare(const subject *s) {
    char text[256];
    size_t n = 0, offset[65];
    for (size_t i = 0; i < s->n; i++) {
        offset[i] = n;
        n += (size_t)utf8_encode(s->cp[i], text + n);
    }
    offset[s->n] = n;
    for (int rule = 0; rule < 2; rule++) {
        const char *regex = pretokenize_regex[rule];
        for (size_t at = 0; at < s->n;) {
            size_t stop = 0;
            assert_true(match_any(regex, regex + strlen(regex), s, at, false, &stop));
            assert_true(stop > at); /* no empty match, and no character that nothing matches */
            const size_t got = pretokenize_next((pretokenize_rule)rule, text + offset[at], n - offset[at]);
            if (got != offset[stop] - offset[at])
                fail_msg("rule %d: \"%.*s\" at byte %zu: a word of %zu bytes, not %zu", rule, (int)n, text, offset[at], got,
                         offset[stop] - offset[at]);
            at = stop;
        }
    }
}

static void compare_text(const char *text) {
    subject s = {.n = 0};
    for (size_t i = 0, n = strlen(text); i < n;) i += (size_t)utf8_decode(text + i, n - i, &s.cp[s.n++]);
    compare(&s);
}

/* A24 (runs of signs, digits, spaces, contractions) and A23 (marks) among them. */
static void test_chosen(void **state) {
    (void)state;
    static const char *const texts[] = {
        "Hello, world!",
        "I'm WE'LL 'S 'x' can't",
        "'\xC5\xBF"
        "ame",
        "'R 're 'v 'l'l'll",
        "'",
        "''s",
        "a'b",
        "  'd",
        "\r\n\r\n  x",
        "  \n \t x",
        "a  b   c    ",
        "a\xC2\xA0"
        "b",
        "\xC2\x85\xC2\x85x",
        "\xE2\x80\xA8\n",
        " \xCC\x81",
        "\xCC\x81!I",
        "!\xCC\x81x",
        "1\xCC\x81",
        "1234 56",
        " 1",
        "x1y2",
        "->(x):\n\n  y",
        "!!!\r\n\r\n!",
        " !a",
        " !!a",
        "\t!a",
        "\n!a",
        "\na",
        "\xE2\x85\xA0\xC2\xB2",
        "...\xE2\x80\x8D\xF0\x9F\x98\x80",
        "\xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x9A",
        "",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) compare_text(texts[i]);
}

static void test_random(void **state) {
    (void)state;
    /* Few characters, many of each class and all of the contractions, so that short texts meet every rule. */
    static const uint32_t pool[] = {' ',  ' ',    '\n',   '\r',  '\t',  0x0B,   0xA0,   0x85, 0x2028, '\'',   's',     'T',    'r',     'e',
                                    'V',  'E',    'm',    'l',   'L',   'd',    'D',    'S',  0x17F,  'x',    0xE9,    0x4E2D, 0x10400, '1',
                                    0xB2, 0x2160, 0x0663, 0x301, 0x903, 0xFE0F, 0x20E3, '!',  '_',    0x3002, 0x1F600, 0x200D, 0xE000,  0};
    uint64_t seed = 7;
    for (int i = 0; i < 60000; i++) {
        subject s = {.n = 1 + random_mix(++seed) % 16};
        /* Half of the texts keep to six characters, for longer runs. */
        const uint64_t from = random_mix(++seed) % (sizeof pool / sizeof *pool), some = i % 2 ? sizeof pool / sizeof *pool : 6;
        for (size_t k = 0; k < s.n; k++) s.cp[k] = pool[(from + random_mix(++seed) % some) % (sizeof pool / sizeof *pool)];
        compare(&s);
    }
}

static void test_rules(void **state) {
    (void)state;
    pretokenize_rule rule = PRETOKENIZE_NO_MARKS;
    assert_true(pretokenize_find_rule(pretokenize_regex[0], strlen(pretokenize_regex[0]), &rule));
    assert_int_equal(rule, PRETOKENIZE_MARKS);
    assert_true(pretokenize_find_rule(pretokenize_regex[1], strlen(pretokenize_regex[1]), &rule));
    assert_int_equal(rule, PRETOKENIZE_NO_MARKS);
    assert_false(pretokenize_find_rule(pretokenize_regex[0], strlen(pretokenize_regex[0]) - 1, &rule));
    assert_false(pretokenize_find_rule("\\s+", 3, &rule));
}

static double seconds_of(const char *text, size_t n) {
    double best = 1e9;
    for (int run = 0; run < 3; run++) {
        const double start = cpu_seconds();
        for (size_t at = 0; at < n;) at += pretokenize_next(PRETOKENIZE_MARKS, text + at, n - at);
        const double seconds = cpu_seconds() - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void test_linear(void **state) {
    (void)state;
    enum { MB = 1 << 20 };
    static const char *const pieces[] = {" ", "\t1", " \n", "\n ", "!", "!\n", "a", " a", "'", "\xCC\x81"};
    char *text = mem_alloc(4 * MB);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const size_t n_piece = strlen(pieces[i]), n = 4 * MB / n_piece * n_piece;
        for (size_t k = 0; k < n; k++) text[k] = pieces[i][k % n_piece];
        const double half = seconds_of(text, n / n_piece / 2 * n_piece), whole = seconds_of(text, n);
        assert_true(whole <= 3 * half + 0.1); /* quadratic would be many seconds; the machine may be busy */
    }
    mem_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

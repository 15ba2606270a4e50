/* form_regex_parse.c: the text of a regular expression → its nodes. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/form/form_regex_node.h"

enum { MAX_GROUPS = 100 /* within each other */, END_OF_TEXT = UINT32_MAX };

typedef struct parser {
    form_work *work;
    calla_error *why; /* why->status: failed */
    const char *text; /* [n] */
    size_t n, at;
    unsigned depth;
} parser;

/* The characters of a set while it is read. */
typedef struct charset {
    regex_range *ranges;
    size_t n, cap;
} charset;

static bool stopped(const parser *p) { return p->why->status || form_failed(p->work); }

static void malformed(parser *p, const char *what) {
    if (!stopped(p)) error_set(p->why, CALLA_E_ARGUMENT, "malformed regular expression at byte %zu: %s", p->at, what);
}

static void unsupported(parser *p, const char *what) {
    if (!stopped(p)) error_set(p->why, CALLA_E_UNSUPPORTED, "%s at byte %zu is not supported in a regular expression", what, p->at);
}

/* The next character, or END_OF_TEXT. */
static uint32_t peek(const parser *p, int *length) {
    uint32_t c;
    *length = p->at < p->n ? utf8_decode(p->text + p->at, p->n - p->at, &c) : 0;
    return *length > 0 ? c : END_OF_TEXT;
}

static uint32_t take(parser *p) {
    int length;
    const uint32_t c = peek(p, &length);
    if (c == END_OF_TEXT) {
        malformed(p, p->at < p->n ? "no UTF-8" : "it ends too early");
        return 0;
    }
    p->at += (size_t)length;
    return c;
}

static bool next_is(const parser *p, char c) { return p->at < p->n && p->text[p->at] == c; }

static bool take_if(parser *p, const char *s) {
    const size_t n = strlen(s);
    if (p->n - p->at < n || memcmp(p->text + p->at, s, n) != 0) return false;
    p->at += n;
    return true;
}

/* ------------------------------------------------------------- sets ------------------------------------------------------ */

static void add_range(parser *p, charset *s, uint32_t lo, uint32_t hi) {
    if (stopped(p)) return;
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 16;
        regex_range *ranges = form_alloc(p->work, cap * sizeof *ranges);
        if (!ranges) return;
        if (s->n) memcpy(ranges, s->ranges, s->n * sizeof *ranges);
        s->ranges = ranges;
        s->cap = cap;
    }
    s->ranges[s->n++] = (regex_range){lo, hi};
}

static int by_lo(const void *a, const void *b) {
    const regex_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void sort_set(charset *s) {
    if (s->n) qsort(s->ranges, s->n, sizeof *s->ranges, by_lo);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        regex_range *last = kept ? &s->ranges[kept - 1] : NULL;
        if (!last || s->ranges[i].lo > last->hi + 1)
            s->ranges[kept++] = s->ranges[i];
        else if (s->ranges[i].hi > last->hi)
            last->hi = s->ranges[i].hi;
    }
    s->n = kept;
}

static charset complement(parser *p, charset *s) {
    charset out = {0};
    sort_set(s);
    uint32_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > from) add_range(p, &out, from, s->ranges[i].lo - 1);
        from = s->ranges[i].hi + 1;
    }
    if (from <= 0x10FFFF) add_range(p, &out, from, 0x10FFFF);
    return out;
}

/* \d \w \s and their opposites.  false: c is none of them. */
static bool add_class(parser *p, charset *s, uint32_t c) {
    static const regex_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const regex_range spaces[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                         {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const regex_range *ranges;
    size_t n;
    switch (c | 0x20) {
    case 'd': ranges = digits, n = 1; break;
    case 'w': ranges = words, n = 4; break;
    case 's': ranges = spaces, n = 10; break;
    default: return false;
    }
    charset found = {0};
    for (size_t i = 0; i < n; i++) add_range(p, &found, ranges[i].lo, ranges[i].hi);
    if (c < 'a') found = complement(p, &found);
    for (size_t i = 0; i < found.n; i++) add_range(p, s, found.ranges[i].lo, found.ranges[i].hi);
    return true;
}

/* ------------------------------------------------------------- characters ------------------------------------------------ */

static uint32_t take_hex(parser *p, int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        const uint32_t c = take(p);
        const uint32_t low = c | 0x20;
        if (c >= '0' && c <= '9')
            value = 16 * value + (c - '0');
        else if (low >= 'a' && low <= 'f')
            value = 16 * value + (low - 'a' + 10);
        else
            malformed(p, "not a hexadecimal digit");
    }
    return value;
}

/* Behind \u: four digits, two times four of a pair of surrogates, or {…}. */
static uint32_t take_unicode(parser *p) {
    uint32_t c = 0;
    if (take_if(p, "{")) {
        int digits = 0;
        while (!stopped(p) && !next_is(p, '}') && digits++ < 8) c = 16 * c + take_hex(p, 1);
        if (!take_if(p, "}") || c > 0x10FFFF) malformed(p, "not a code point");
        return c;
    }
    c = take_hex(p, 4);
    if (c >= 0xD800 && c < 0xDC00 && take_if(p, "\\u")) {
        const uint32_t low = take_hex(p, 4);
        if (low < 0xDC00 || low > 0xDFFF) malformed(p, "half a pair of surrogates");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return c;
}

/* Behind a backslash, what is no class. */
static uint32_t take_escape(parser *p, bool in_set) {
    const uint32_t c = take(p);
    switch (c) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'v': return '\v';
    case 'f': return '\f';
    case 'r': return '\r';
    case '0': return 0;
    case 'x': return take_hex(p, 2);
    case 'u': return take_unicode(p);
    case 'c': return take(p) & 31;
    case 'b':
        if (in_set) return '\b';
        unsupported(p, "\\b");
        return 0;
    case 'B': unsupported(p, "\\B"); return 0;
    case 'p':
    case 'P': unsupported(p, "a Unicode property (\\p)"); return 0;
    case 'k': unsupported(p, "a reference to a group (\\k)"); return 0;
    default: break;
    }
    if (c >= '1' && c <= '9') unsupported(p, "a reference to a group");
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') unsupported(p, "an unknown escape");
    return c;
}

static regex_node *new_node(parser *p, regex_kind kind) {
    regex_node *r = stopped(p) ? NULL : form_alloc(p->work, sizeof *r);
    if (r) *r = (regex_node){.kind = kind};
    return r;
}

static regex_node *set_node(parser *p, charset *s) {
    regex_node *r = new_node(p, REGEX_SET);
    if (!r) return NULL;
    sort_set(s);
    r->ranges = s->ranges;
    r->n_ranges = s->n;
    return r;
}

static regex_node *char_node(parser *p, uint32_t c) {
    charset s = {0};
    add_range(p, &s, c, c);
    return set_node(p, &s);
}

/* One character of a [set], or a class, which is added.  false: it was a class. */
static bool take_member(parser *p, charset *s, uint32_t *c) {
    *c = take(p);
    if (*c != '\\') return true;
    int length;
    if (add_class(p, s, peek(p, &length))) {
        p->at++;
        return false;
    }
    *c = take_escape(p, true);
    return true;
}

/* Behind '['. */
static regex_node *parse_set(parser *p) {
    charset s = {0};
    const bool negated = take_if(p, "^");
    while (!stopped(p) && !next_is(p, ']')) {
        uint32_t lo, hi;
        if (!take_member(p, &s, &lo)) continue;
        hi = lo;
        if (next_is(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            if (!take_member(p, &s, &hi)) malformed(p, "a range that ends in a class");
            if (hi < lo) malformed(p, "a range that is out of order");
        }
        add_range(p, &s, lo, hi);
    }
    if (!take_if(p, "]")) malformed(p, "[ without ]");
    if (negated) s = complement(p, &s);
    return set_node(p, &s);
}

/* ------------------------------------------------------------- structure ------------------------------------------------- */

static regex_node *parse_alternatives(parser *p);

static void append(regex_node *r, regex_node *child) {
    if (!r || !child) return;
    if (r->last)
        r->last->next = child;
    else
        r->first = child;
    r->last = child;
}

/* Behind '('. */
static regex_node *parse_group(parser *p) {
    if (take_if(p, "?")) {
        if (take_if(p, "=") || take_if(p, "!") || take_if(p, "<=") || take_if(p, "<!"))
            unsupported(p, "looking ahead or behind");
        else if (take_if(p, "<") || take_if(p, "P<"))
            while (!stopped(p) && !take_if(p, ">")) take(p);
        else if (!take_if(p, ":"))
            unsupported(p, "this kind of group");
    }
    if (++p->depth > MAX_GROUPS) malformed(p, "too many groups within each other");
    regex_node *r = stopped(p) ? NULL : parse_alternatives(p);
    p->depth--;
    if (!take_if(p, ")")) malformed(p, "( without )");
    return r;
}

static regex_node *parse_atom(parser *p) {
    charset s = {0};
    const uint32_t c = take(p);
    switch (c) {
    case '^': return new_node(p, REGEX_BEGIN);
    case '$': return new_node(p, REGEX_END);
    case '(': return parse_group(p);
    case '[': return parse_set(p);
    case '*':
    case '+':
    case '?': malformed(p, "nothing to repeat"); return NULL;
    case '.':
        add_range(p, &s, '\n', '\n');
        add_range(p, &s, '\r', '\r');
        add_range(p, &s, 0x2028, 0x2029);
        s = complement(p, &s);
        return set_node(p, &s);
    case '\\': {
        int length;
        if (add_class(p, &s, peek(p, &length))) {
            p->at++;
            return set_node(p, &s);
        }
        return char_node(p, take_escape(p, false));
    }
    default: return char_node(p, c);
    }
}

static bool take_number(parser *p, uint32_t *out) {
    const size_t from = p->at;
    *out = 0;
    for (; p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        if (*out < REGEX_MOST) *out = 10 * *out + (uint32_t)(p->text[p->at] - '0');
    return p->at > from;
}

/* A quantifier, if one stands here.  A lazy one matches the same texts. */
static bool take_quantifier(parser *p, uint32_t *least, uint32_t *most) {
    *least = 0;
    *most = REGEX_UNBOUNDED;
    const size_t from = p->at;
    if (take_if(p, "+")) {
        *least = 1;
    } else if (take_if(p, "?")) {
        *most = 1;
    } else if (take_if(p, "{")) {
        bool good = take_number(p, least);
        *most = *least;
        if (good && take_if(p, ",") && !take_number(p, most)) *most = REGEX_UNBOUNDED;
        if (!good || !take_if(p, "}")) { /* a brace like any other character */
            p->at = from;
            return false;
        }
        if (*most < *least) malformed(p, "a quantifier that is out of order");
    } else if (!take_if(p, "*")) {
        return false;
    }
    take_if(p, "?");
    return true;
}

static regex_node *parse_sequence(parser *p) {
    regex_node *seq = new_node(p, REGEX_SEQ);
    while (!stopped(p) && p->at < p->n && !next_is(p, '|') && !next_is(p, ')')) {
        regex_node *atom = parse_atom(p);
        uint32_t least, most;
        if (take_quantifier(p, &least, &most)) {
            regex_node *repeat = new_node(p, REGEX_REPEAT);
            if (repeat) {
                repeat->least = least;
                repeat->most = most;
                append(repeat, atom);
            }
            atom = repeat;
        }
        append(seq, atom);
    }
    return seq;
}

static regex_node *parse_alternatives(parser *p) {
    regex_node *first = parse_sequence(p);
    if (!next_is(p, '|')) return first;
    regex_node *alt = new_node(p, REGEX_ALT);
    append(alt, first);
    while (!stopped(p) && take_if(p, "|")) append(alt, parse_sequence(p));
    return alt;
}

const regex_node *regex_parse(form_work *w, const char *text, size_t n, calla_error *why) {
    *why = (calla_error){0};
    parser p = {.work = w, .why = why, .text = text, .n = n};
    const regex_node *r = parse_alternatives(&p);
    if (!stopped(&p) && p.at < p.n) malformed(&p, ") without (");
    return stopped(&p) ? NULL : r;
}

/* form_number.c: numbers within bounds (form_schema.h).
 *
 * Bounds are decimal texts and are compared as such, digit by digit; the automaton does the same with what is read: a state knows how
 * many digits of the whole part are still to come, and whether what was read is so far equal to the lower bound, and to the upper.
 * Numbers within bounds have no exponent, at most 18 digits before the point and 24 behind it. */
#include <string.h>

#include "text/form/form_schema.h"

enum { MAX_WHOLE = 18, MAX_FRACTION = 24 };

typedef struct decimal {
    bool negative, huge;     /* huge: more digits before the point than are ever written */
    bool cut;                /* digits behind the last were left out, and not all were 0 */
    int n_whole, n_fraction; /* n_whole >= 1 */
    char whole[MAX_WHOLE], fraction[MAX_FRACTION];
} decimal;

typedef struct bounds {
    bool has_lo, has_hi, lo_open, hi_open;
    decimal lo, hi;
} bounds;

/* ------------------------------------------------------------- decimals -------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* A number's digits, which a point may interrupt, from the first that is not 0. */
typedef struct mantissa {
    const char *text; /* at the first digit that is not 0 */
    int n;            /* digits from there on */
    long point;       /* of these stand before the point; may be negative */
} mantissa;

static char next_digit(const char **p) {
    while (**p == '.') (*p)++;
    return *(*p)++;
}

/* A JSON number's text. */
static decimal read_decimal(const char *text) {
    decimal d = {.negative = *text == '-', .n_whole = 1, .whole = "0"};
    if (d.negative) text++;
    mantissa m = {0};
    bool behind_point = false, seen = false;
    for (; is_digit(*text) || *text == '.'; text++) {
        if (*text == '.') {
            behind_point = true;
            continue;
        }
        if (!seen && *text != '0') {
            seen = true;
            m.text = text;
        }
        if (seen) m.n++;
        if (seen && !behind_point) m.point++;
        if (!seen && behind_point) m.point--;
    }
    if (!seen) {
        d.negative = false;
        return d;
    }
    if (*text == 'e' || *text == 'E') {
        const bool minus = *++text == '-';
        long exponent = 0;
        if (*text == '-' || *text == '+') text++;
        for (; is_digit(*text) && exponent < 100000; text++) exponent = 10 * exponent + (*text - '0');
        m.point += minus ? -exponent : exponent;
    }
    if (m.point > MAX_WHOLE) {
        d.huge = true;
        return d;
    }
    const char *p = m.text;
    int left = m.n;
    if (m.point > 0) {
        d.n_whole = (int)m.point;
        for (int i = 0; i < d.n_whole; i++) d.whole[i] = left > 0 ? next_digit(&p) : '0', left--;
    }
    for (long zeros = m.point; zeros < 0 && d.n_fraction < MAX_FRACTION; zeros++) d.fraction[d.n_fraction++] = '0';
    for (; left > 0 && d.n_fraction < MAX_FRACTION; left--) d.fraction[d.n_fraction++] = next_digit(&p);
    for (; left > 0; left--) d.cut |= next_digit(&p) != '0';
    while (d.n_fraction && d.fraction[d.n_fraction - 1] == '0') d.n_fraction--;
    return d;
}

static char fraction_digit(const decimal *d, int i) { return i < d->n_fraction ? d->fraction[i] : '0'; }

static int compare_sizes(const decimal *a, const decimal *b) {
    if (a->huge || b->huge) return a->huge - b->huge;
    if (a->n_whole != b->n_whole) return a->n_whole < b->n_whole ? -1 : 1;
    const int whole = memcmp(a->whole, b->whole, (size_t)a->n_whole);
    if (whole) return whole < 0 ? -1 : 1;
    for (int i = 0; i < MAX_FRACTION; i++)
        if (fraction_digit(a, i) != fraction_digit(b, i)) return fraction_digit(a, i) < fraction_digit(b, i) ? -1 : 1;
    return a->cut - b->cut;
}

static int compare(const decimal *a, const decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

static bool decimal_of(json_object *value, decimal *out) {
    if (!json_object_is_type(value, json_type_int) && !json_object_is_type(value, json_type_double)) return false;
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN); /* as it was written */
    if (!text) return false;
    *out = read_decimal(text);
    return true;
}

bool schema_numbers_equal(json_object *a, json_object *b) {
    decimal x, y;
    return decimal_of(a, &x) && decimal_of(b, &y) && compare(&x, &y) == 0;
}

/* ------------------------------------------------------------- bounds ---------------------------------------------------- */

static void raise_lo(bounds *r, const decimal *d, bool open) {
    const int order = r->has_lo ? compare(d, &r->lo) : 1;
    if (order < 0) return;
    r->lo_open = open || (order == 0 && r->lo_open);
    r->lo = *d;
    r->has_lo = true;
}

static void lower_hi(bounds *r, const decimal *d, bool open) {
    const int order = r->has_hi ? compare(d, &r->hi) : -1;
    if (order > 0) return;
    r->hi_open = open || (order == 0 && r->hi_open);
    r->hi = *d;
    r->has_hi = true;
}

static bounds bounds_of(const schema_set *leaf) {
    bounds r = {0};
    for (uint32_t i = 0; i < leaf->n; i++) {
        decimal d;
        if (decimal_of(schema_get(&leaf->members[i], "minimum"), &d)) raise_lo(&r, &d, false);
        if (decimal_of(schema_get(&leaf->members[i], "exclusiveMinimum"), &d)) raise_lo(&r, &d, true);
        if (decimal_of(schema_get(&leaf->members[i], "maximum"), &d)) lower_hi(&r, &d, false);
        if (decimal_of(schema_get(&leaf->members[i], "exclusiveMaximum"), &d)) lower_hi(&r, &d, true);
    }
    return r;
}

bool schema_number_fits(form_build *b, const schema_set *leaf, json_object *value) {
    (void)b;
    const bounds r = bounds_of(leaf);
    decimal d;
    if (!decimal_of(value, &d)) return false;
    const int lo = r.has_lo ? compare(&d, &r.lo) : 1, hi = r.has_hi ? compare(&d, &r.hi) : -1;
    return (lo > 0 || (lo == 0 && !r.lo_open)) && (hi < 0 || (hi == 0 && !r.hi_open));
}

/* All of x is below all of y. */
static bool below(const bounds *x, const bounds *y) {
    if (!x->has_hi || !y->has_lo) return false;
    const int order = compare(&x->hi, &y->lo);
    return order < 0 || (order == 0 && (x->hi_open || y->lo_open));
}

bool schema_numbers_apart(form_build *b, const schema_set *x, const schema_set *y) {
    (void)b;
    const bounds rx = bounds_of(x), ry = bounds_of(y);
    return below(&rx, &ry) || below(&ry, &rx);
}

/* ------------------------------------------------------------- the automaton --------------------------------------------- */

/* Sizes, that is numbers without their sign, from lo to hi. */
typedef struct sizes {
    form_nfa *n;
    decimal lo, hi;
    bool lo_open, hi_open, has_hi, integer;
    uint32_t end;
    uint32_t whole[MAX_WHOLE + 1][2][2];       /* [digits read][equals lo][equals hi], of one length; 0: not yet */
    uint32_t fraction[MAX_FRACTION + 1][2][2]; /* [digits read]… */
} sizes;

/* What was read may end behind `read` digits of the fraction. */
static bool may_end(const sizes *s, int read, bool lo, bool hi) {
    bool lo_rest = false, hi_rest = false;
    for (int i = read; i < MAX_FRACTION; i++) {
        lo_rest |= fraction_digit(&s->lo, i) != '0';
        hi_rest |= fraction_digit(&s->hi, i) != '0';
    }
    if (lo && (lo_rest || s->lo_open)) return false;
    return !hi || hi_rest || !s->hi_open;
}

/* The edge on one digit, which lies at l of the lower and at h of the upper bound.  false: it would leave them. */
static bool step(char digit, char l, char h, bool *lo, bool *hi) {
    if ((*lo && digit < l) || (*hi && digit > h)) return false;
    *lo = *lo && digit == l;
    *hi = *hi && digit == h;
    return true;
}

static uint32_t fraction_node(sizes *s, int read, bool lo, bool hi) {
    uint32_t *node = &s->fraction[read][lo][hi];
    if (*node || form_failed(s->n->work)) return *node;
    *node = nfa_node(s->n);
    if (read && may_end(s, read, lo, hi)) nfa_skip(s->n, *node, s->end);
    for (char d = '0'; d <= '9' && read < MAX_FRACTION; d++) {
        bool next_lo = lo, next_hi = hi;
        if (step(d, fraction_digit(&s->lo, read), fraction_digit(&s->hi, read), &next_lo, &next_hi))
            nfa_join(s->n, *node, (unsigned char)d, (unsigned char)d, fraction_node(s, read + 1, next_lo, next_hi));
    }
    return *node;
}

static uint32_t whole_node(sizes *s, int length, int read, bool lo, bool hi) {
    uint32_t *node = &s->whole[read][lo][hi];
    if (*node || form_failed(s->n->work)) return *node;
    *node = nfa_node(s->n);
    if (read == length) {
        if (may_end(s, 0, lo, hi)) nfa_skip(s->n, *node, s->end);
        if (!s->integer) nfa_join(s->n, *node, '.', '.', fraction_node(s, 0, lo, hi));
        return *node;
    }
    for (char d = read == 0 && length > 1 ? '1' : '0'; d <= '9'; d++) {
        bool next_lo = lo, next_hi = hi;
        if (step(d, s->lo.whole[read], s->hi.whole[read], &next_lo, &next_hi))
            nfa_join(s->n, *node, (unsigned char)d, (unsigned char)d, whole_node(s, length, read + 1, next_lo, next_hi));
    }
    return *node;
}

/* hi NULL: no upper bound. */
static nfa_part between(form_nfa *n, const decimal *lo, bool lo_open, const decimal *hi, bool hi_open, bool integer) {
    const nfa_part p = nfa_nothing(n);
    nfa_node(n); /* so that no node below has number 0 */
    sizes s = {.n = n, .lo = *lo, .lo_open = lo_open || lo->cut, .has_hi = hi && !hi->huge, .integer = integer, .end = p.to};
    if (s.has_hi) {
        s.hi = *hi;
        s.hi_open = hi_open && !hi->cut; /* what is left of a bound that was cut lies below it */
    }
    if (lo->huge) return p;
    for (int length = s.lo.n_whole; length <= (s.has_hi ? s.hi.n_whole : MAX_WHOLE) && !form_failed(n->work); length++) {
        memset(s.whole, 0, sizeof s.whole);
        nfa_skip(n, p.from, whole_node(&s, length, 0, length == s.lo.n_whole, s.has_hi && length == s.hi.n_whole));
    }
    return p;
}

static nfa_part number_between(form_nfa *n, const bounds *r, bool integer) {
    const decimal zero = read_decimal("0");
    nfa_part p = nfa_nothing(n);
    if (!r->has_hi || !r->hi.negative) { /* 0 and above */
        const bool from_lo = r->has_lo && !r->lo.negative;
        p = nfa_alt(n, p, between(n, from_lo ? &r->lo : &zero, from_lo && r->lo_open, r->has_hi ? &r->hi : NULL, r->hi_open, integer));
    }
    if (!r->has_lo || r->lo.negative) {
        const bool from_hi = r->has_hi && r->hi.negative;
        const nfa_part size =
            between(n, from_hi ? &r->hi : &zero, from_hi ? r->hi_open : true, r->has_lo ? &r->lo : NULL, r->lo_open, integer);
        p = nfa_alt(n, p, nfa_seq(n, nfa_text(n, "-"), size));
    }
    return p;
}

typedef struct number_user {
    const schema_set *leaf;
    bool integer;
} number_user;

static void build_number(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    (void)b;
    const number_user *u = user;
    const bounds r = bounds_of(u->leaf);
    dfa_from_nfa(n, number_between(n, &r, u->integer), out);
}

uint32_t schema_number(form_build *b, const schema_set *leaf, bool integer) {
    const bounds r = bounds_of(leaf);
    if (!r.has_lo && !r.has_hi) return json_machine(b, integer ? FORM_INTEGER : FORM_NUMBER);
    number_user *user = form_alloc(&b->work, sizeof *user);
    size_t n;
    const void *key = schema_key(b, leaf, integer ? 'I' : 'N', &n);
    if (!user || !key) return 0;
    *user = (number_user){leaf, integer};
    bool fresh;
    schema_at(b, leaf, "minimum");
    return form_machine_of(b, key, n, build_number, user, &fresh);
}

/* form_json.c: see form_json.h.
 *
 * The model may write more spellings than are easy to read, but none that json.h refuses, and none that another reader reads as
 * another value: so no \u0000 (a key cannot hold it), no lone surrogates, and numbers stay within what a double or 64 bits hold. */
#include "text/form/form_json.h"

#include <string.h>

#include "base/utf8.h"

static nfa_part seq3(form_nfa *n, nfa_part a, nfa_part b, nfa_part c) { return nfa_seq(n, nfa_seq(n, a, b), c); }

/* ------------------------------------------------------------- strings --------------------------------------------------- */

/* Adds a chain from one node to another, each step one of the characters listed ("0-9a-f": ranges). */
static void join_classes(form_nfa *n, uint32_t from, const char *const *classes, size_t count, uint32_t to) {
    for (size_t i = 0; i < count && !form_failed(n->work); i++) {
        const uint32_t next = i + 1 < count ? nfa_node(n) : to;
        for (const char *c = classes[i]; *c;) {
            const bool range = c[1] == '-';
            nfa_join(n, from, (unsigned char)c[0], (unsigned char)c[range ? 2 : 0], next);
            c += range ? 3 : 1;
        }
        from = next;
    }
}

#define HEX "0-9a-fA-F"
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The four digits behind \u: no surrogate, not 0000; or a pair of surrogates. */
static void join_hex(form_nfa *n, uint32_t from, uint32_t to) {
    static const char *const high[] = {"1-9a-cA-CeEfF", HEX, HEX, HEX}, *const below[] = {"dD", "0-7", HEX, HEX};
    static const char *const zero[] = {"0", "1-9a-fA-F", HEX, HEX}, *const zero2[] = {"0", "0", "1-9a-fA-F", HEX};
    static const char *const zero3[] = {"0", "0", "0", "1-9a-fA-F"};
    static const char *const pair[] = {"dD", "89abAB", HEX, HEX, "\\", "u", "dD", "c-fC-F", HEX, HEX};
    join_classes(n, from, high, COUNT(high), to);
    join_classes(n, from, below, COUNT(below), to);
    join_classes(n, from, zero, COUNT(zero), to);
    join_classes(n, from, zero2, COUNT(zero2), to);
    join_classes(n, from, zero3, COUNT(zero3), to);
    join_classes(n, from, pair, COUNT(pair), to);
}

nfa_part json_any_char(form_nfa *n) {
    nfa_part p = nfa_alt(n, nfa_code_points(n, 0x20, 0x21), nfa_code_points(n, 0x23, 0x5B));
    p = nfa_alt(n, p, nfa_code_points(n, 0x5D, 0x10FFFF));
    const uint32_t escape = nfa_node(n), hex = nfa_node(n);
    static const char *const shorts[] = {"\"\\/bfnrt"};
    nfa_join(n, p.from, '\\', '\\', escape);
    join_classes(n, escape, shorts, 1, p.to);
    nfa_join(n, escape, 'u', 'u', hex);
    join_hex(n, hex, p.to);
    return p;
}

/* The only spelling of one of the characters that are escaped; its length. */
static size_t spell_escape(uint32_t c, char out[8]) {
    static const char shorts[][2] = {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
    out[0] = '\\';
    for (size_t i = 0; i < COUNT(shorts); i++) {
        if (c != (unsigned char)shorts[i][0]) continue;
        out[1] = shorts[i][1];
        return 2;
    }
    memcpy(out + 1, "u00", 3);
    out[4] = c < 16 ? '0' : '1';
    out[5] = "0123456789abcdef"[c % 16];
    return 6;
}

nfa_part json_code_points(form_nfa *n, uint32_t lo, uint32_t hi) {
    const nfa_part p = nfa_nothing(n);
    static const uint32_t plain[][2] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    for (size_t i = 0; i < COUNT(plain); i++) {
        const uint32_t from = lo > plain[i][0] ? lo : plain[i][0], to = hi < plain[i][1] ? hi : plain[i][1];
        if (from > to) continue;
        const nfa_part range = nfa_code_points(n, from, to);
        nfa_skip(n, p.from, range.from);
        nfa_skip(n, range.to, p.to);
    }
    for (uint32_t c = lo ? lo : 1; c <= hi && c <= '\\'; c++) {
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char spelled[8];
        const nfa_part escape = nfa_bytes(n, spelled, spell_escape(c, spelled));
        nfa_skip(n, p.from, escape.from);
        nfa_skip(n, escape.to, p.to);
    }
    return p;
}

nfa_part json_string_literal(form_nfa *n, const char *s, size_t length, bool closing) {
    nfa_part p = nfa_text(n, "\"");
    for (size_t i = 0; i < length && !form_failed(n->work); i++) {
        const unsigned char c = (unsigned char)s[i];
        char spelled[8] = {(char)c};
        size_t used = 1;
        if (c < 0x20 || c == '"' || c == '\\') used = spell_escape(c, spelled);
        if (closing && c == '/' && i && s[i - 1] == '<') {
            memcpy(spelled, "\\/", 2);
            used = 2;
        }
        p = nfa_seq(n, p, nfa_bytes(n, spelled, used));
    }
    return nfa_seq(n, p, nfa_text(n, "\""));
}

/* ------------------------------------------------------------- values ---------------------------------------------------- */

nfa_part json_space(form_build *b, form_nfa *n) { return nfa_call(n, json_machine(b, FORM_WHITE_SPACE)); }

static nfa_part literal_object(form_build *b, form_nfa *n, json_object *value, bool closing) {
    nfa_part p = nfa_seq(n, nfa_text(n, "{"), json_space(b, n));
    bool first = true;
    json_object_object_foreach(value, key, member) {
        if (form_failed(n->work)) break;
        if (!first) p = seq3(n, p, nfa_text(n, ","), json_space(b, n));
        first = false;
        p = seq3(n, p, json_string_literal(n, key, strlen(key), closing), nfa_text(n, ":"));
        p = seq3(n, p, json_space(b, n), json_literal(b, n, member, closing));
    }
    if (!first) p = nfa_seq(n, p, json_space(b, n));
    return nfa_seq(n, p, nfa_text(n, "}"));
}

static nfa_part literal_array(form_build *b, form_nfa *n, json_object *value, bool closing) {
    nfa_part p = nfa_seq(n, nfa_text(n, "["), json_space(b, n));
    const size_t count = json_object_array_length(value);
    for (size_t i = 0; i < count && !form_failed(n->work); i++) {
        if (i) p = seq3(n, p, nfa_text(n, ","), json_space(b, n));
        p = nfa_seq(n, p, json_literal(b, n, json_object_array_get_idx(value, i), closing));
    }
    if (count) p = nfa_seq(n, p, json_space(b, n));
    return nfa_seq(n, p, nfa_text(n, "]"));
}

nfa_part json_literal(form_build *b, form_nfa *n, json_object *value, bool closing) {
    switch (json_object_get_type(value)) {
    case json_type_object: return literal_object(b, n, value, closing);
    case json_type_array: return literal_array(b, n, value, closing);
    case json_type_string: return json_string_literal(n, json_object_get_string(value), (size_t)json_object_get_string_len(value), closing);
    default: break;
    }
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN); /* null, booleans; numbers as they were written */
    if (text) return nfa_text(n, text);
    form_fail_nomem(n->work);
    return nfa_nothing(n);
}

/* ------------------------------------------------------------- machines -------------------------------------------------- */

static nfa_part space_text(form_nfa *n) {
    nfa_part blanks = nfa_empty(n);
    for (int i = 0; i < JSON_SPACE_INDENT; i++)
        blanks = nfa_optional(n, nfa_seq(n, nfa_alt(n, nfa_text(n, " "), nfa_text(n, "\t")), blanks));
    return nfa_optional(n, nfa_alt(n, nfa_text(n, " "), nfa_seq(n, nfa_text(n, "\n"), blanks)));
}

static nfa_part digits(form_nfa *n, int least, int most) {
    nfa_part p = nfa_empty(n);
    for (int i = most; i > 0; i--) {
        p = nfa_seq(n, nfa_range(n, '0', '9'), p);
        if (i > least) p = nfa_optional(n, p);
    }
    return p;
}

/* 0, or at most 18 digits: within 64 bits. */
static nfa_part whole_part(form_nfa *n) { return nfa_alt(n, nfa_text(n, "0"), nfa_seq(n, nfa_range(n, '1', '9'), digits(n, 0, 17))); }
static nfa_part fraction(form_nfa *n) { return nfa_seq(n, nfa_text(n, "."), digits(n, 1, 24)); }

/* An exponent stands behind one digit only, and is at most 307: so every number is finite. */
static nfa_part exponent(form_nfa *n) {
    const nfa_part sign = nfa_optional(n, nfa_alt(n, nfa_text(n, "+"), nfa_text(n, "-")));
    nfa_part size = nfa_alt(n, digits(n, 1, 2), nfa_seq(n, nfa_range(n, '1', '2'), digits(n, 2, 2)));
    size = nfa_alt(n, size, seq3(n, nfa_text(n, "30"), nfa_range(n, '0', '7'), nfa_empty(n)));
    return seq3(n, nfa_alt(n, nfa_text(n, "e"), nfa_text(n, "E")), sign, size);
}

static nfa_part number_text(form_nfa *n) {
    const nfa_part plain = nfa_seq(n, whole_part(n), nfa_optional(n, fraction(n)));
    const nfa_part scientific = seq3(n, nfa_range(n, '0', '9'), nfa_optional(n, fraction(n)), exponent(n));
    return nfa_seq(n, nfa_optional(n, nfa_text(n, "-")), nfa_alt(n, plain, scientific));
}

static nfa_part integer_text(form_nfa *n) {
    const nfa_part negative = seq3(n, nfa_text(n, "-"), nfa_range(n, '1', '9'), digits(n, 0, 17));
    return nfa_alt(n, whole_part(n), negative);
}

static nfa_part string_text(form_nfa *n) { return seq3(n, nfa_text(n, "\""), nfa_star(n, json_any_char(n)), nfa_text(n, "\"")); }

static void build_common(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    (void)b;
    switch (*(const form_common *)user) {
    case FORM_WHITE_SPACE: dfa_from_nfa(n, space_text(n), out); break;
    case FORM_NUMBER: dfa_from_nfa(n, number_text(n), out); break;
    case FORM_INTEGER: dfa_from_nfa(n, integer_text(n), out); break;
    default: dfa_from_nfa(n, string_text(n), out); break;
    }
}

uint32_t json_machine(form_build *b, form_common which) {
    static const form_common names[FORM_COMMONS] = {FORM_OWN,    FORM_STRING,  FORM_CALL_STRING, FORM_WHITE_SPACE,
                                                    FORM_NUMBER, FORM_INTEGER, FORM_TEXT,        FORM_SHORT_TEXT};
    bool fresh;
    const uint32_t machine = form_machine_of(b, &names[which], sizeof names[which], build_common, &names[which], &fresh);
    if (fresh) {
        b->machines[machine].common = which;
        b->machines[machine].wide = which == FORM_STRING;
    }
    return machine;
}

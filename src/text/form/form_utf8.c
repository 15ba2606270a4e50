/* form_utf8.c: ranges of code points as automata over bytes (form_json.h). */
#include "base/utf8.h"
#include "text/form/form_json.h"

/* Strings of equal length whose bytes differ from first to last only as a range of code points does: cut so that each piece is a product of
 * ranges of bytes. */
static void join_range(form_nfa *n, uint32_t from, const unsigned char *lo, const unsigned char *hi, int length, uint32_t to) {
    if (length == 1) {
        nfa_join(n, from, lo[0], hi[0], to);
        return;
    }
    static const unsigned char least[4] = {0x80, 0x80, 0x80, 0x80}, most[4] = {0xBF, 0xBF, 0xBF, 0xBF};
    if (lo[0] == hi[0]) {
        const uint32_t next = nfa_node(n);
        nfa_join(n, from, lo[0], lo[0], next);
        join_range(n, next, lo + 1, hi + 1, length - 1, to);
        return;
    }
    unsigned first = lo[0], last = hi[0];
    bool lo_whole = true, hi_whole = true;
    for (int i = 1; i < length; i++) {
        lo_whole &= lo[i] == 0x80;
        hi_whole &= hi[i] == 0xBF;
    }
    if (!lo_whole) {
        const uint32_t next = nfa_node(n);
        nfa_join(n, from, first, first, next);
        join_range(n, next, lo + 1, most, length - 1, to);
        first++;
    }
    if (!hi_whole) {
        const uint32_t next = nfa_node(n);
        nfa_join(n, from, last, last, next);
        join_range(n, next, least, hi + 1, length - 1, to);
        last--;
    }
    if (first > last) return;
    uint32_t next = nfa_node(n);
    nfa_join(n, from, first, last, next);
    for (int i = 1; i < length; i++) {
        const uint32_t behind = i + 1 < length ? nfa_node(n) : to;
        nfa_join(n, next, 0x80, 0xBF, behind);
        next = behind;
    }
}

nfa_part nfa_code_points(form_nfa *n, uint32_t lo, uint32_t hi) {
    /* where the length of the encoding changes, and around the surrogates */
    static const uint32_t pieces[][2] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    const nfa_part p = nfa_nothing(n);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces && !form_failed(n->work); i++) {
        const uint32_t from = lo > pieces[i][0] ? lo : pieces[i][0], to = hi < pieces[i][1] ? hi : pieces[i][1];
        if (from > to) continue;
        char a[4], z[4];
        const int length = utf8_encode(from, a);
        utf8_encode(to, z);
        join_range(n, p.from, (const unsigned char *)a, (const unsigned char *)z, length, p.to);
    }
    return p;
}

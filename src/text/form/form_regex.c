/* form_regex.c: a parsed regular expression → an automaton. */
#include "text/form/form_regex_node.h"

static nfa_part set_part(const regex_node *r, regex_spelling spelling, form_nfa *n) {
    const nfa_part p = nfa_nothing(n);
    for (size_t i = 0; i < r->n_ranges && !form_failed(n->work); i++) {
        const regex_range range = r->ranges[i];
        const nfa_part one = spelling == REGEX_JSON ? json_code_points(n, range.lo, range.hi) : nfa_code_points(n, range.lo, range.hi);
        nfa_skip(n, p.from, one.from);
        nfa_skip(n, one.to, p.to);
    }
    return p;
}

static nfa_part part_of(const regex_node *r, regex_spelling spelling, form_nfa *n);

/* As many copies as are due, then a circle or as many as may be left out. */
static nfa_part repeated(const regex_node *r, regex_spelling spelling, form_nfa *n) {
    const nfa_part whole = nfa_nothing(n);
    uint32_t at = whole.from;
    const uint32_t copies = r->most == REGEX_UNBOUNDED ? r->least : r->most;
    for (uint32_t i = 0; i < copies && !form_failed(n->work); i++) {
        if (i >= r->least) nfa_skip(n, at, whole.to);
        const nfa_part copy = part_of(r->first, spelling, n);
        nfa_skip(n, at, copy.from);
        at = copy.to;
    }
    if (r->most == REGEX_UNBOUNDED) {
        const nfa_part rest = nfa_star(n, part_of(r->first, spelling, n));
        nfa_skip(n, at, rest.from);
        at = rest.to;
    }
    nfa_skip(n, at, whole.to);
    return whole;
}

static nfa_part part_of(const regex_node *r, regex_spelling spelling, form_nfa *n) {
    switch (r->kind) {
    case REGEX_SET: return set_part(r, spelling, n);
    case REGEX_BEGIN: return nfa_at(n, NFA_AT_BEGIN);
    case REGEX_END: return nfa_at(n, NFA_AT_END);
    case REGEX_REPEAT: return repeated(r, spelling, n);
    case REGEX_SEQ: {
        nfa_part p = nfa_empty(n);
        for (const regex_node *c = r->first; c && !form_failed(n->work); c = c->next) p = nfa_seq(n, p, part_of(c, spelling, n));
        return p;
    }
    case REGEX_ALT: break;
    }
    const nfa_part p = nfa_nothing(n);
    for (const regex_node *c = r->first; c && !form_failed(n->work); c = c->next) {
        const nfa_part one = part_of(c, spelling, n);
        nfa_skip(n, p.from, one.from);
        nfa_skip(n, one.to, p.to);
    }
    return p;
}

static nfa_part any_text(regex_spelling spelling, form_nfa *n) {
    return nfa_star(n, spelling == REGEX_JSON ? json_code_points(n, 0, 0x10FFFF) : nfa_code_points(n, 0, 0x10FFFF));
}

void regex_to_dfa(const regex_node *r, regex_spelling spelling, bool whole, form_nfa *n, form_dfa *out) {
    nfa_part p = part_of(r, spelling, n);
    if (!whole) p = nfa_seq(n, nfa_seq(n, any_text(spelling, n), p), any_text(spelling, n));
    dfa_from_nfa(n, p, out);
}

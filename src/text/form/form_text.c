/* form_text.c: see form_text.h.
 *
 * tool_call.c reads a value up to a "</parameter>" that another tag follows, or, where it looks as if that was forgotten, up to a line
 * that begins another parameter, or that ends the function and has another function or the end of the call behind it.  The value's
 * first character stands at the start of a line. */
#include "text/form/form_text.h"

#include "text/form/form_json.h"

static nfa_part anything(form_nfa *n) { return nfa_star(n, nfa_range(n, 0, 255)); }

static nfa_part blanks(form_nfa *n) {
    return nfa_star(n, nfa_alt(n, nfa_range(n, '\t', '\n'), nfa_alt(n, nfa_text(n, "\r"), nfa_text(n, " "))));
}

/* "</parameter>", and then, perhaps behind blanks, `next`. */
static nfa_part closed(form_nfa *n, nfa_part next) { return nfa_seq(n, nfa_text(n, "</parameter>"), nfa_seq(n, blanks(n), next)); }

/* A tag that may stand behind a value. */
static nfa_part tag_behind(form_nfa *n) {
    return nfa_alt(n, nfa_text(n, "<parameter="), nfa_alt(n, nfa_text(n, "</parameter>"), nfa_text(n, "</function>")));
}

void text_closing_dfa(form_nfa *n, form_dfa *out) {
    dfa_from_nfa(n, nfa_seq(n, anything(n), nfa_seq(n, closed(n, tag_behind(n)), anything(n))), out);
}

/* Texts in which an end would be found, behind a line end that is put in front; or behind which it would be found too early, since they
 * end as if they were closed.  And more than these: what stands behind a line that closes a value does not begin with "<", so that a
 * model that may not write the tag it wants there (a parameter is missing) is not led astray with its first letters.  is_short: all
 * with a "</parameter>". */
static void ends_dfa(form_build *b, bool is_short, form_dfa *out) {
    form_nfa n = {.work = &b->work};
    const nfa_part again = nfa_seq(&n, nfa_text(&n, "</function>"), nfa_seq(&n, blanks(&n), nfa_text(&n, "<function=")));
    nfa_part line = nfa_alt(&n, nfa_alt(&n, nfa_text(&n, "<parameter="), closed(&n, nfa_text(&n, "<"))), again);
    line = nfa_seq(&n, nfa_optional(&n, nfa_seq(&n, anything(&n), nfa_text(&n, "\n"))), line);
    const nfa_part tag = is_short ? nfa_text(&n, "</parameter>") : closed(&n, tag_behind(&n));
    const nfa_part within = nfa_seq(&n, nfa_alt(&n, line, nfa_seq(&n, anything(&n), tag)), anything(&n));
    const nfa_part behind = nfa_seq(&n, anything(&n), closed(&n, nfa_empty(&n)));
    dfa_from_nfa(&n, nfa_alt(&n, within, behind), out);
    form_nfa_free(&n);
}

void text_content_dfa(form_build *b, bool is_short, form_dfa *out) {
    form_nfa n = {.work = &b->work};
    form_dfa all = {0}, ends = {0};
    dfa_from_nfa(&n, nfa_star(&n, nfa_code_points(&n, 1, 0x10FFFF)), &all);
    form_nfa_free(&n);
    ends_dfa(b, is_short, &ends);
    dfa_combine(&b->work, &all, &ends, DFA_WITHOUT, out);
    form_dfa_free(&all);
    form_dfa_free(&ends);
}

static void build_text(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    (void)n;
    text_content_dfa(b, *(const form_common *)user == FORM_SHORT_TEXT, out);
}

uint32_t text_machine(form_build *b, bool is_short) {
    static const form_common kinds[] = {FORM_TEXT, FORM_SHORT_TEXT};
    const form_common *kind = &kinds[is_short];
    bool fresh;
    const uint32_t machine = form_machine_of(b, kind, sizeof *kind, build_text, kind, &fresh);
    if (fresh) {
        b->machines[machine].common = *kind;
        b->machines[machine].wide = b->machines[machine].text = true;
    }
    return machine;
}

/* ------------------------------------------------------------- what closes ----------------------------------------------- */

nfa_part text_gap(form_nfa *n) {
    const nfa_part second = nfa_optional(n, nfa_text(n, "\n"));
    return nfa_optional(n, nfa_seq(n, nfa_text(n, "\n"), second));
}

nfa_part text_closing(form_nfa *n, bool exact) {
    nfa_part p = nfa_text(n, "\n");
    if (!exact) p = nfa_optional(n, p);
    p = nfa_seq(n, p, nfa_seq(n, nfa_text(n, "</parameter>"), text_gap(n)));
    return nfa_seq(n, p, nfa_optional(n, nfa_seq(n, nfa_text(n, "</parameter>"), text_gap(n))));
}

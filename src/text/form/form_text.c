/* form_text.c: see form_text.h.
 *
 * tool_call.c reads a value up to "</parameter>", or, where it looks as if that was forgotten, up to a line that begins another
 * parameter, or that ends the function and begins another.  The value's first character stands at the start of a line. */
#include "text/form/form_text.h"

#include "text/form/form_schema.h"

static nfa_part anything(form_nfa *n) { return nfa_star(n, nfa_range(n, 0, 255)); }

/* Texts in which an end would be found; behind a line end that is put in front. */
static void ends_dfa(form_build *b, form_dfa *out) {
    form_nfa n = {.work = &b->work};
    nfa_part blank = nfa_alt(&n, nfa_range(&n, '\t', '\n'), nfa_alt(&n, nfa_text(&n, "\r"), nfa_text(&n, " ")));
    nfa_part close = nfa_seq(&n, nfa_text(&n, "</function>"), nfa_seq(&n, nfa_star(&n, blank), nfa_text(&n, "<function=")));
    nfa_part line = nfa_alt(&n, nfa_text(&n, "<parameter="), close);
    line = nfa_seq(&n, nfa_optional(&n, nfa_seq(&n, anything(&n), nfa_text(&n, "\n"))), line);
    const nfa_part tag = nfa_seq(&n, anything(&n), nfa_text(&n, "</parameter>"));
    dfa_from_nfa(&n, nfa_seq(&n, nfa_alt(&n, line, tag), anything(&n)), out);
    form_nfa_free(&n);
}

void text_content_dfa(form_build *b, form_dfa *out) {
    form_nfa n = {.work = &b->work};
    form_dfa all = {0}, ends = {0};
    dfa_from_nfa(&n, nfa_star(&n, nfa_code_points(&n, 1, 0x10FFFF)), &all);
    form_nfa_free(&n);
    ends_dfa(b, &ends);
    dfa_combine(&b->work, &all, &ends, DFA_WITHOUT, out);
    form_dfa_free(&all);
    form_dfa_free(&ends);
}

static void build_text(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    (void)user;
    form_dfa content = {0};
    text_content_dfa(b, &content);
    dfa_from_nfa(n, nfa_seq(n, nfa_dfa(n, &content), nfa_text(n, SCHEMA_CLOSING)), out);
    form_dfa_free(&content);
}

uint32_t text_machine(form_build *b) {
    static const char key[] = "text";
    bool fresh;
    const uint32_t machine = form_machine_of(b, key, sizeof key, build_text, NULL, &fresh);
    if (fresh) {
        b->machines[machine].common = FORM_TEXT;
        b->machines[machine].wide = true;
    }
    return machine;
}

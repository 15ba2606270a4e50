/* form_any.c: see form_any.h. */
#include "text/form/form_any.h"

#include <string.h>

#include "text/form/form_text.h"

typedef struct any_key {
    json_any which;
    bool in_call;
} any_key;

nfa_part json_list(form_build *b, form_nfa *n, const char *open, nfa_part first, nfa_part again, const char *close) {
    again = nfa_seq(n, nfa_text(n, ","), nfa_seq(n, json_space(b, n), again));
    nfa_part p = nfa_seq(n, first, nfa_star(n, again));
    p = nfa_optional(n, nfa_seq(n, p, json_space(b, n)));
    p = nfa_seq(n, nfa_seq(n, nfa_text(n, open), json_space(b, n)), p);
    return nfa_seq(n, p, nfa_text(n, close));
}

static nfa_part any_member(form_build *b, form_nfa *n, bool in_call) {
    const nfa_part key = nfa_seq(n, nfa_call(n, json_any_machine(b, JSON_ANY_STRING, in_call)), nfa_text(n, ":"));
    return nfa_seq(n, nfa_seq(n, key, json_space(b, n)), nfa_call(n, json_any_machine(b, JSON_ANY_VALUE, in_call)));
}

static nfa_part any_value(form_build *b, form_nfa *n, bool in_call) {
    nfa_part p = nfa_alt(n, nfa_text(n, "null"), nfa_alt(n, nfa_text(n, "true"), nfa_text(n, "false")));
    p = nfa_alt(n, p, nfa_call(n, json_machine(b, FORM_NUMBER)));
    for (json_any which = JSON_ANY_STRING; which <= JSON_ANY_ARRAY; which++)
        p = nfa_alt(n, p, nfa_call(n, json_any_machine(b, which, in_call)));
    return p;
}

/* A string that does not end the parameter. */
static void build_call_string(form_nfa *n, form_dfa *out) {
    form_dfa all = {0}, closing = {0};
    const nfa_part p = nfa_seq(n, nfa_text(n, "\""), nfa_star(n, json_any_char(n)));
    dfa_from_nfa(n, nfa_seq(n, p, nfa_text(n, "\"")), &all);
    text_closing_dfa(n, &closing);
    dfa_combine(n->work, &all, &closing, DFA_WITHOUT, out);
    form_dfa_free(&all);
    form_dfa_free(&closing);
}

static void build_any(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const any_key *k = user;
    const uint32_t value = json_any_machine(b, JSON_ANY_VALUE, k->in_call);
    switch (k->which) {
    case JSON_ANY_STRING: build_call_string(n, out); break;
    case JSON_ANY_VALUE: dfa_from_nfa(n, any_value(b, n, k->in_call), out); break;
    case JSON_ANY_ARRAY: dfa_from_nfa(n, json_list(b, n, "[", nfa_call(n, value), nfa_call(n, value), "]"), out); break;
    case JSON_ANY_OBJECT:
        dfa_from_nfa(n, json_list(b, n, "{", any_member(b, n, k->in_call), any_member(b, n, k->in_call), "}"), out);
        break;
    }
}

uint32_t json_any_machine(form_build *b, json_any which, bool in_call) {
    if (which == JSON_ANY_STRING && !in_call) return json_machine(b, FORM_STRING);
    any_key *key = form_alloc(&b->work, sizeof *key);
    if (!key) return 0;
    memset(key, 0, sizeof *key); /* the key is compared with its padding */
    key->which = which;
    key->in_call = in_call;
    bool fresh;
    const uint32_t machine = form_machine_of(b, key, sizeof *key, build_any, key, &fresh);
    if (fresh && which == JSON_ANY_STRING) {
        b->machines[machine].wide = true;
        b->machines[machine].common = FORM_CALL_STRING;
    }
    return machine;
}

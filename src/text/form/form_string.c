/* form_string.c: strings within bounds of length, of patterns and formats (form_schema.h). */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_regex.h"
#include "text/form/form_schema.h"
#include "text/form/form_text.h"
#include "text/template_value.h"

/* ------------------------------------------------------------- formats --------------------------------------------------- */

/* Days that the calendar has, as ajv-formats checks them: February 29 only in leap years. */
#define DATE                                                                                                                               \
    "(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29|"                                               \
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"

static const struct {
    const char *name, *expression;
} formats[] = {
    {"date", "^" DATE "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
    {"email", "^" ATOM "(?:\\." ATOM ")*@(?:" LABEL "\\.)+" LABEL "$"},
};

const char *schema_format(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].expression;
    return NULL;
}

/* ------------------------------------------------------------- what is said ---------------------------------------------- */

/* The expression that a member's pattern (0) or format (1) is; NULL: it has none that is understood. */
static const regex_node *expression_of(form_build *b, const schema_set *leaf, uint32_t member, int which) {
    static const char *const keywords[] = {"pattern", "format"};
    json_object *value = schema_get(&leaf->members[member], keywords[which]);
    if (!json_object_is_type(value, json_type_string)) return NULL;
    const char *text = json_object_get_string(value);
    size_t n = (size_t)json_object_get_string_len(value);
    if (which == 1) {
        text = schema_format(text);
        if (!text) return NULL; /* form_schema_set.c has refused it */
        n = strlen(text);
    }
    b->work.where = leaf->doc->where;
    b->work.path = leaf->members[member].path;
    b->work.keyword = keywords[which];
    calla_error why;
    const regex_node *r = regex_parse(&b->work, text, n, &why);
    if (!r) schema_refuse(b, leaf->doc, leaf->members[member].path, keywords[which], "%s", why.message);
    return r;
}

/* The texts that all expressions of the leaf match.  false: there are none. */
static bool expressions_dfa(form_build *b, const schema_set *leaf, regex_spelling spelling, form_dfa *out) {
    bool any = false;
    for (uint32_t i = 0; i < 2 * leaf->n && !form_failed(&b->work); i++) {
        const regex_node *r = expression_of(b, leaf, i / 2, i % 2);
        if (!r) continue;
        form_nfa n = {.work = &b->work};
        form_dfa one = {0}, both = {0};
        regex_to_dfa(r, spelling, false, &n, &one);
        form_nfa_free(&n);
        if (any) {
            dfa_combine(&b->work, out, &one, DFA_BOTH, &both);
            form_dfa_free(out);
            form_dfa_free(&one);
            *out = both;
        } else {
            *out = one;
        }
        any = true;
    }
    return any;
}

static bool has_expressions(form_build *b, const schema_set *leaf) {
    for (uint32_t i = 0; i < 2 * leaf->n; i++)
        if (expression_of(b, leaf, i / 2, i % 2)) return true;
    return false;
}

typedef struct lengths {
    uint64_t least, most; /* FORM_MAX_COUNT: no bound */
} lengths;

static lengths lengths_of(const schema_set *leaf) {
    lengths l = {schema_most(leaf, "minLength", 0), schema_least(leaf, "maxLength", FORM_MAX_COUNT)};
    if (l.most > SCHEMA_MAX_LENGTH) l.most = FORM_MAX_COUNT; /* no answer is that long */
    return l;
}

bool schema_string_fits(form_build *b, const schema_set *leaf, const char *s, size_t n) {
    const lengths l = lengths_of(leaf);
    uint64_t characters = 0;
    for (size_t i = 0; i < n; i++) characters += ((unsigned char)s[i] & 0xC0) != 0x80;
    if (characters < l.least || characters > l.most) return false;
    form_dfa d = {0};
    const bool fits = !expressions_dfa(b, leaf, REGEX_UTF8, &d) || (d.n_states && dfa_accepts(&d, s, n));
    form_dfa_free(&d);
    return fits;
}

/* ------------------------------------------------------------- machines -------------------------------------------------- */

typedef struct string_user {
    const schema_set *leaf;
    bool bare;
} string_user;

static nfa_part one_char(form_nfa *n, regex_spelling spelling) {
    return spelling == REGEX_JSON ? json_code_points(n, 0, 0x10FFFF) : nfa_code_points(n, 0, 0x10FFFF);
}

/* Texts of so many characters. */
static void length_dfa(form_build *b, lengths l, regex_spelling spelling, form_dfa *out) {
    form_nfa n = {.work = &b->work};
    nfa_part p = nfa_empty(&n);
    const uint64_t chain = l.most < FORM_MAX_COUNT ? l.most : l.least;
    const nfa_part whole = nfa_nothing(&n);
    nfa_skip(&n, whole.from, p.from);
    for (uint64_t i = 0; i < chain && !form_failed(&b->work); i++) {
        if (i >= l.least) nfa_skip(&n, p.to, whole.to);
        p = nfa_seq(&n, p, one_char(&n, spelling));
    }
    if (l.most == FORM_MAX_COUNT) p = nfa_seq(&n, p, nfa_star(&n, one_char(&n, spelling)));
    if (l.least <= l.most) nfa_skip(&n, p.to, whole.to);
    dfa_from_nfa(&n, whole, out);
    form_nfa_free(&n);
}

/* Keeps of d what `other` accepts (or does not), and frees other. */
static void restrict_dfa(form_build *b, form_dfa *d, form_dfa *other, dfa_product how) {
    form_dfa both = {0};
    dfa_combine(&b->work, d, other, how, &both);
    form_dfa_free(d);
    form_dfa_free(other);
    *d = both;
}

/* The shortest and longest text of a trimmed automaton in characters; most FORM_MAX_COUNT: any length. */
static lengths lengths_of_dfa(form_build *b, const form_dfa *d) {
    /* by layers: a layer is the states that some text of so many characters leads to; a byte that continues a character adds none */
    const size_t n = d->n_states;
    lengths l = {FORM_MAX_COUNT, 0};
    bool *now = mem_calloc(n, 1), *next = mem_calloc(n, 1);
    uint32_t *stack = mem_array(n, sizeof *stack);
    if (!now || !next || !stack) {
        form_fail_nomem(&b->work);
    } else {
        bool some = n > 0;
        now[0] = some;
        for (uint64_t length = 0; some; length++) {
            if (length > n || !form_spend(&b->work, d->n_edges + n)) {
                l.most = FORM_MAX_COUNT; /* a circle */
                break;
            }
            some = false;
            size_t n_stack = 0;
            for (size_t i = 0; i < n; i++)
                if (now[i]) stack[n_stack++] = (uint32_t)i;
            for (size_t k = 0; k < n_stack; k++) {
                const dfa_state *s = &d->states[stack[k]];
                if (s->accepts) {
                    if (l.least == FORM_MAX_COUNT) l.least = length;
                    l.most = length;
                }
                for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++) {
                    const dfa_edge edge = d->edges[e];
                    if (edge.hi >= 0x80 && edge.lo < 0xC0 && !now[edge.to]) { /* continues the character */
                        now[edge.to] = true;
                        stack[n_stack++] = edge.to;
                    }
                    if ((edge.lo < 0x80 || edge.hi >= 0xC0) && !next[edge.to]) next[edge.to] = some = true;
                }
            }
            bool *swap = now;
            now = next;
            next = swap;
            memset(next, 0, n);
        }
    }
    mem_free(now);
    mem_free(next);
    mem_free(stack);
    return l;
}

/* Whether the lengths still ask for something of texts that match the expressions. */
static bool lengths_matter(form_build *b, const schema_set *leaf, lengths l) {
    if (l.least == 0 && l.most == FORM_MAX_COUNT) return false;
    form_dfa d = {0};
    bool matter = true;
    if (expressions_dfa(b, leaf, REGEX_UTF8, &d) && d.n_states) {
        const lengths has = lengths_of_dfa(b, &d);
        matter = has.least < l.least || has.most > l.most;
    }
    form_dfa_free(&d);
    return matter;
}

/* Without what tool_call.c would take for the end of the value: of bare text, and of a JSON string in a call. */
static void keep_from_closing(form_build *b, const schema_set *leaf, bool bare, bool is_short, form_dfa *d) {
    form_dfa other = {0};
    if (bare) {
        text_content_dfa(b, is_short, &other);
        restrict_dfa(b, d, &other, DFA_BOTH);
    } else if (leaf->doc->in_call) {
        form_nfa forbidden = {.work = &b->work};
        text_closing_dfa(&forbidden, &other);
        form_nfa_free(&forbidden);
        restrict_dfa(b, d, &other, DFA_WITHOUT);
    }
}

/* A string with expressions: their product, and with the lengths. */
static void build_expressions(form_build *b, const schema_set *leaf, bool bare, form_nfa *n, form_dfa *out) {
    const regex_spelling spelling = bare ? REGEX_UTF8 : REGEX_JSON;
    const lengths l = lengths_of(leaf);
    form_dfa d = {0}, other = {0};
    expressions_dfa(b, leaf, spelling, &d);
    if (lengths_matter(b, leaf, l)) {
        schema_at(b, leaf, l.most < FORM_MAX_COUNT ? "maxLength" : "minLength");
        length_dfa(b, l, spelling, &other);
        restrict_dfa(b, &d, &other, DFA_BOTH);
    }
    keep_from_closing(b, leaf, bare, false, &d);
    const char *quote = bare ? "" : "\"";
    dfa_from_nfa(n, nfa_seq(n, nfa_seq(n, nfa_text(n, quote), nfa_dfa(n, &d)), nfa_text(n, quote)), out);
    form_dfa_free(&d);
}

/* A string with bounds of length alone: a guard before each character and one before the end. */
static void build_counted(form_build *b, const schema_set *leaf, bool bare, form_nfa *n, form_dfa *out) {
    const lengths l = lengths_of(leaf);
    const uint32_t inc = form_guard_of(b, FORM_INC, l.most < FORM_MAX_COUNT ? l.most : FORM_MAX_COUNT - 1);
    const uint32_t min = form_guard_of(b, FORM_MIN, l.least);
    const char *quote = bare ? "" : "\"";
    const nfa_part open = nfa_text(n, quote), content = nfa_nothing(n);
    const nfa_part more = nfa_symbol(n, inc), one = bare ? nfa_code_points(n, 0, 0x10FFFF) : json_any_char(n);
    nfa_skip(n, content.from, more.from);
    nfa_skip(n, more.to, one.from);
    nfa_skip(n, one.to, content.from);
    nfa_skip(n, content.from, content.to);
    form_dfa d = {0};
    dfa_from_nfa(n, nfa_seq(n, open, content), &d);
    keep_from_closing(b, leaf, bare, l.most < FORM_MAX_COUNT, &d);
    const nfa_part end = nfa_seq(n, nfa_symbol(n, min), nfa_text(n, quote));
    if (l.least <= l.most)
        dfa_from_nfa(n, nfa_seq(n, nfa_dfa(n, &d), end), out);
    else
        dfa_from_nfa(n, nfa_nothing(n), out);
    form_dfa_free(&d);
}

static void build_string(form_build *b, const void *user, form_nfa *n, form_dfa *out) {
    const string_user *u = user;
    if (has_expressions(b, u->leaf))
        build_expressions(b, u->leaf, u->bare, n, out);
    else
        build_counted(b, u->leaf, u->bare, n, out);
}

uint32_t schema_string(form_build *b, const schema_set *leaf, bool bare) {
    const lengths l = lengths_of(leaf);
    const bool counted = l.least || l.most < FORM_MAX_COUNT, expressions = has_expressions(b, leaf);
    if (!counted && !expressions) return bare ? text_machine(b, false) : json_any_machine(b, JSON_ANY_STRING, leaf->doc->in_call);
    string_user *user = form_alloc(&b->work, sizeof *user);
    size_t n;
    const void *key = schema_key(b, leaf, bare ? 'T' : 'S', &n);
    if (!user || !key) return 0;
    *user = (string_user){leaf, bare};
    bool fresh;
    schema_at(b, leaf, expressions ? "pattern" : "maxLength");
    const uint32_t machine = form_machine_of(b, key, n, build_string, user, &fresh);
    if (!fresh) return machine;
    b->machines[machine].wide = expressions;
    b->machines[machine].text = bare;
    if (!expressions) {
        const uint32_t twin = bare ? text_machine(b, l.most < FORM_MAX_COUNT) : json_any_machine(b, JSON_ANY_STRING, leaf->doc->in_call);
        if (!form_failed(&b->work)) b->machines[machine].twin = twin;
    }
    return machine;
}

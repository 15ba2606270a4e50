/* form_matcher.c: calla_matcher_*: where one answer stands, and what its next token may be.
 *
 * A mask is the union of what each configuration allows.  Configurations in wide machines (strings, free text, patterns) are asked
 * through form_local.h, one by one; for all others together the trie is walked once.  What is taken is stepped byte by byte.
 *
 * Both must agree on every token, and a mask is never all zero: a configuration can always be finished, each byte is a token of its own
 * (form_trie_build), and a step over one byte needs no memory (form_sets_open), so that those tokens are there whatever fails. */
#include <string.h>

#include "base/memory.h"
#include "text/form/form_impl.h"

typedef enum matcher_state { IN_THOUGHT, IN_ANSWER, STOPPED } matcher_state;

struct calla_matcher {
    calla_form *form;
    matcher_state state;
    form_arena arena;
    form_config *now; /* [n_now], room for FORM_MAX_CONFIGS: the answer's configurations, closed */
    size_t n_now, n_read;
    form_sets sets;     /* scratch */
    form_config *group; /* scratch, room for FORM_MAX_CONFIGS: some of now */
    uint32_t *mask;     /* [n_words] */
    bool made;          /* mask is the one of now */
    bool begun;         /* the answer has more than line ends */
    bool from_thought;  /* a thought has begun the call, without </think> */
};

enum { THIN_ABOVE = 4096 }; /* frames */

static void set_bit(uint32_t *mask, int32_t id) {
    if (id >= 0) mask[id / 32] |= UINT32_C(1) << id % 32;
}

/* ------------------------------------------------------------- steps ----------------------------------------------------- */

static bool is_free(const calla_matcher *m, const form_config *c) { return m->form->program->states[c->state].free; }

static const form_config *free_config(const calla_matcher *m) {
    for (size_t i = 0; i < m->n_now; i++)
        if (is_free(m, &m->now[i])) return &m->now[i];
    return NULL;
}

/* The topmost set of the scratch sets becomes now. */
static void commit(calla_matcher *m) {
    form_sets *s = &m->sets;
    const form_level *level = &s->levels[s->top];
    m->n_now = level->end - level->begin;
    m->n_read = level->read_end - level->begin;
    memcpy(m->now, s->configs + level->begin, m->n_now * sizeof *m->now);
    const form_config *in_text = free_config(m);
    if (in_text) { /* allows all that others do */
        m->now[0] = *in_text;
        m->n_now = m->n_read = 1;
    }
    if (m->arena.n > THIN_ABOVE) form_arena_thin(&m->arena, m->now, m->n_now);
    m->made = false;
}

/* The state of a token that was taken, or not. */
static calla_status settle(calla_matcher *m, bool alive) {
    if (m->sets.failed) return CALLA_E_NOMEM;
    if (!alive) return CALLA_E_ARGUMENT;
    commit(m);
    return CALLA_OK;
}

static void begin_sets(form_sets *s) { s->dropped = s->failed = false; }

static calla_status begin(calla_matcher *m, uint32_t machine) {
    const form_config start = {.state = m->form->program->machines[machine].start};
    begin_sets(&m->sets);
    form_sets_begin(&m->sets, &start, 1);
    form_sets_close(&m->sets);
    const calla_status status = settle(m, true);
    if (!status) m->state = IN_ANSWER;
    return status;
}

static void begin_with_closed(form_sets *s, const form_config *configs, size_t n) {
    form_sets_begin(s, configs, n);
    s->levels[0].closed = true;
}

/* From the lowest set over bytes [n], n > 0.  true: the topmost set is not empty, and closed. */
static bool advance(form_sets *s, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!form_sets_step(s, i, bytes[i])) return false;
    form_sets_close(s);
    return true;
}

static const form_machine *machine_of(const calla_matcher *m, const form_config *c) {
    return &m->form->program->machines[m->form->program->states[c->state].machine];
}

typedef enum config_kind {
    NARROW, /* walked together with others */
    WIDE,
    COVERED /* reached over guards from a counted machine's state, and covered by that */
} config_kind;

static config_kind kind_of(const calla_matcher *m, size_t i) {
    const form_machine *machine = machine_of(m, &m->now[i]);
    if (machine->kind == FORM_WIDE) return WIDE;
    if (machine->kind != FORM_COUNTED) return NARROW;
    return i >= m->n_read && m->now[i].state != machine->start ? COVERED : WIDE;
}

static size_t narrow_group(calla_matcher *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->n_now; i++)
        if (kind_of(m, i) == NARROW) m->group[n++] = m->now[i];
    return n;
}

/* Over one token's bytes.  Where configurations had to be left out and none of the others took the token, the groups that masks are made
 * of are tried one by one: what a mask allows is taken. */
static bool advance_bytes(calla_matcher *m, const unsigned char *bytes, size_t n) {
    form_sets *s = &m->sets;
    begin_with_closed(s, m->now, m->n_now);
    if (advance(s, bytes, n)) return true;
    if (!s->dropped) return false;
    begin_with_closed(s, m->group, narrow_group(m));
    if (advance(s, bytes, n)) return true;
    for (size_t i = 0; i < m->n_now; i++) {
        if (kind_of(m, i) != WIDE) continue;
        form_sets_begin(s, &m->now[i], 1);
        if (advance(s, bytes, n)) return true;
    }
    return false;
}

static bool advance_symbol(calla_matcher *m, uint32_t symbol) {
    begin_with_closed(&m->sets, m->now, m->n_now);
    if (!form_sets_step(&m->sets, 0, symbol)) return false;
    form_sets_close(&m->sets);
    return true;
}

/* ------------------------------------------------------------- masks ----------------------------------------------------- */

/* What configs [n] allow, which are closed: the general case. */
static void add_walked(calla_matcher *m, const form_config *configs, size_t n) {
    const form_trie *t = m->form->trie;
    form_sets *s = &m->sets;
    begin_with_closed(s, configs, n);
    for (uint32_t i = 0; i < t->n_nodes;) {
        const form_trie_node *node = &t->nodes[i];
        if (form_sets_step(s, node->depth - 1u, node->byte)) {
            set_bit(m->mask, node->token);
            i++;
        } else {
            i = node->skip;
        }
    }
}

/* What leaves the machine of c and fits what is below it.  least, most: characters of it. */
static void add_leaving(calla_matcher *m, const form_local *l, const form_config *c, uint64_t least, uint64_t most) {
    form_sets *s = &m->sets;
    const form_frame *frame = &m->arena.frames[c->stack];
    form_sets_begin(s, &(form_config){.state = frame->state, .count = frame->count, .stack = frame->below}, 1);
    for (uint32_t i = 0; i < l->n_rests;) {
        const form_rest *rest = &l->rests[i];
        if (!form_sets_step(s, rest->depth - 1u, rest->byte)) {
            i = rest->skip;
            continue;
        }
        for (uint32_t k = rest->first; k < rest->first + rest->n; k++)
            if (l->leaving[k].chars >= least && l->leaving[k].chars <= most) set_bit(m->mask, l->leaving[k].token);
        i++;
    }
}

static void add_by_chars(uint32_t *mask, const form_by_chars *by, uint64_t least, uint64_t most) {
    const uint32_t last = by->n_at - 1;
    const uint32_t from = by->at[least < last ? least : last], to = by->at[most < last ? most + 1 : last];
    for (uint32_t i = from; i < to; i++) set_bit(mask, by->tokens[i]);
}

/* The bounds of a counted machine, seen from a count: how many characters may still come, and must. */
static void count_left(const calla_matcher *m, const form_config *c, uint64_t *least, uint64_t *most) {
    const form_bound *bound = &m->form->bounds[m->form->program->states[c->state].machine];
    *least = bound->low > c->count ? bound->low - c->count : 0;
    *most = bound->high > c->count ? bound->high - c->count : 0;
}

/* Of what stays in a text, tokens of so many characters. */
static void add_shorter(calla_matcher *m, const form_local *l, uint32_t most) {
    const form_trie *t = m->form->trie;
    if (l->stay) form_trie_add_short(t, l->stay, most, m->mask);
    for (uint32_t i = 0; i < l->n_few; i++)
        if (form_trie_characters(t, l->few[i]) <= most) set_bit(m->mask, l->few[i]);
}

static void add_all(calla_matcher *m, const form_local *l) {
    for (uint32_t i = 0; l->stay && i < m->form->trie->n_words; i++) m->mask[i] |= l->stay[i];
    for (uint32_t i = 0; i < l->n_few; i++) set_bit(m->mask, l->few[i]);
}

/* A counted machine's state is as its twin's where no bound is within reach; in a text, which has a character for each character, always
 * but for the bounds. */
static void add_wide(calla_matcher *m, const form_config *c) {
    const form_machine *machine = machine_of(m, c);
    const uint32_t twin = m->form->program->states[c->state].twin;
    uint64_t least = 0, most = UINT64_MAX;
    if (machine->kind == FORM_COUNTED) count_left(m, c, &least, &most);
    const bool ends = most < m->form->trie->longest, as_twin = twin != FORM_NONE && (machine->text || (!least && !ends));
    form_local *owned;
    const form_local *l = form_local_get(&m->form->maker, as_twin ? twin : c->state, c->stack != 0, &owned);
    if (!l) {
        form_sets_begin(&m->sets, c, 1);
        form_sets_close(&m->sets);
        const size_t n = m->sets.levels[0].end;
        memcpy(m->group, m->sets.configs, n * sizeof *m->group);
        add_walked(m, m->group, n);
        return;
    }
    if (machine->kind == FORM_COUNTED && !as_twin) {
        add_by_chars(m->mask, &l->open, 0, most);
        add_by_chars(m->mask, &l->ended, least, most);
    } else if (ends) {
        add_shorter(m, l, (uint32_t)most);
    } else {
        add_all(m, l);
    }
    if (c->stack) add_leaving(m, l, c, least, most);
    form_local_free(owned);
}

static bool may_stop(const calla_matcher *m) {
    for (size_t i = 0; i < m->n_now; i++)
        if (!m->now[i].stack && m->form->program->states[m->now[i].state].accepts) return true;
    return false;
}

static void make_mask(calla_matcher *m) {
    form_sets *s = &m->sets;
    form_hash key = {0};
    for (size_t i = 0; i < m->n_read; i++) {
        const form_hash h = form_config_hash(&m->arena, &m->now[i]);
        key.a += h.a;
        key.b += h.b;
    }
    if (form_cache_get(&m->form->cache, key, m->mask)) return;
    memset(m->mask, 0, m->form->trie->n_words * sizeof *m->mask);
    begin_sets(s);
    const size_t n_narrow = narrow_group(m);
    if (n_narrow) add_walked(m, m->group, n_narrow);
    for (size_t i = 0; i < m->n_now; i++)
        if (kind_of(m, i) == WIDE) add_wide(m, &m->now[i]);
    if (may_stop(m)) set_bit(m->mask, m->form->trie->stop_id);
    if (m->form->trie->call_id >= 0 && advance_symbol(m, FORM_TOOL_BEGIN)) set_bit(m->mask, m->form->trie->call_id);
    if (m->form->trie->call_end_id >= 0 && advance_symbol(m, FORM_TOOL_END)) set_bit(m->mask, m->form->trie->call_end_id);
    if (!s->dropped) form_cache_put(&m->form->cache, key, m->mask);
}

/* answer.c takes <think> and </think> for tags where an answer has not begun, and </think> for the end of a thought about a call. */
static bool is_think_tag(const calla_matcher *m, int32_t id) {
    const form_trie *t = m->form->trie;
    return (id == t->think_id || id == t->think_end_id) && (!m->begun || m->from_thought);
}

static void clear_think_tags(calla_matcher *m) {
    const int32_t ids[] = {m->form->trie->think_id, m->form->trie->think_end_id};
    for (size_t i = 0; i < 2; i++)
        if (ids[i] >= 0 && is_think_tag(m, ids[i])) m->mask[ids[i] / 32] &= ~(UINT32_C(1) << ids[i] % 32);
}

static bool may_call(const calla_matcher *m, const form_config *c) {
    return form_next(m->form->program, c->state, FORM_TOOL_BEGIN) != FORM_NONE;
}

const uint32_t *calla_matcher_mask(calla_matcher *m) {
    if (m->state == IN_THOUGHT) return m->form->program->owed ? m->form->thought : NULL;
    const form_config *in_text = m->state == IN_ANSWER ? free_config(m) : NULL;
    if (in_text) return may_call(m, in_text) ? NULL : m->form->no_call;
    if (m->made) return m->mask;
    if (m->state == STOPPED) {
        memset(m->mask, 0, m->form->trie->n_words * sizeof *m->mask);
        set_bit(m->mask, m->form->trie->stop_id);
    } else {
        make_mask(m);
        clear_think_tags(m);
    }
    m->made = true;
    return m->mask;
}

/* ------------------------------------------------------------- tokens ---------------------------------------------------- */

static bool has_bit(const uint32_t *mask, int32_t id) { return mask[id / 32] >> id % 32 & 1; }

static calla_status take_symbol(calla_matcher *m, uint32_t symbol) {
    begin_sets(&m->sets);
    return settle(m, advance_symbol(m, symbol));
}

static calla_status stop(calla_matcher *m) {
    m->state = STOPPED;
    m->made = false;
    return CALLA_OK;
}

static calla_status take_in_thought(calla_matcher *m, int32_t id) {
    const form_program *p = m->form->program;
    const form_trie *t = m->form->trie;
    if (p->owed && !has_bit(m->form->thought, id)) return CALLA_E_ARGUMENT;
    if (id == t->think_end_id) return begin(m, p->thought);
    if (id == t->stop_id) return stop(m);
    if (id != t->call_id) return CALLA_OK;
    /* answer.c lets a call end the thought */
    calla_status status = begin(m, p->root);
    if (!status) status = take_symbol(m, FORM_TOOL_BEGIN);
    if (status) m->state = IN_THOUGHT;
    m->from_thought = !status;
    return status == CALLA_E_ARGUMENT ? CALLA_OK : status; /* there are no tools: nothing but text */
}

static calla_status take_in_answer(calla_matcher *m, int32_t id) {
    const form_trie *t = m->form->trie;
    const bool in_text = free_config(m) != NULL;
    calla_status status;
    if (id == t->stop_id && (in_text || may_stop(m))) return stop(m);
    if (id == t->call_id) {
        status = take_symbol(m, FORM_TOOL_BEGIN);
        m->begun |= !status;
        return status;
    }
    if (in_text) return CALLA_OK;
    if (id == t->call_end_id) return take_symbol(m, FORM_TOOL_END);
    if (!form_trie_has(t, m->form->tokenizer, id) || is_think_tag(m, id)) return CALLA_E_ARGUMENT;
    size_t n;
    const char *bytes = tokenizer_bytes(m->form->tokenizer, id, &n);
    begin_sets(&m->sets);
    status = settle(m, advance_bytes(m, (const unsigned char *)bytes, n));
    for (size_t i = 0; i < n && !status; i++) m->begun |= bytes[i] != '\n';
    return status;
}

calla_status calla_matcher_took(calla_matcher *m, int32_t id) {
    size_t n;
    if (!tokenizer_bytes(m->form->tokenizer, id, &n)) return CALLA_E_ARGUMENT;
    switch (m->state) {
    case IN_THOUGHT: return take_in_thought(m, id);
    case IN_ANSWER: return take_in_answer(m, id);
    default: return id == m->form->trie->stop_id ? CALLA_OK : CALLA_E_ARGUMENT;
    }
}

calla_status calla_matcher_open(calla_form *form, bool thinking, calla_matcher **out, calla_error *err) {
    *out = NULL;
    if (err) *err = (calla_error){0};
    calla_matcher *m = mem_calloc(1, sizeof *m);
    if (m) {
        m->form = calla_form_share(form);
        m->now = mem_array(FORM_MAX_CONFIGS, sizeof *m->now);
        m->group = mem_array(FORM_MAX_CONFIGS, sizeof *m->group);
        m->mask = mem_array(form->trie->n_words, sizeof *m->mask);
    }
    if (!m || !m->now || !m->group || !m->mask || !form_arena_open(&m->arena, form->program, form->bounds, form->trie->longest) ||
        !form_sets_open(&m->sets, &m->arena, form->trie->longest + 2u)) {
        calla_matcher_close(m);
        return error_nomem(err, "the matcher of an answer's form");
    }
    const calla_status status = thinking ? CALLA_OK : begin(m, form->program->root);
    if (status) {
        calla_matcher_close(m);
        return error_nomem(err, "the matcher of an answer's form");
    }
    if (!thinking) m->state = IN_ANSWER;
    *out = m;
    return CALLA_OK;
}

void calla_matcher_close(calla_matcher *m) {
    if (!m) return;
    form_sets_free(&m->sets);
    form_arena_close(&m->arena);
    mem_free(m->now);
    mem_free(m->group);
    mem_free(m->mask);
    calla_form_release(m->form);
    mem_free(m);
}

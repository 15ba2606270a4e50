/* answer.c: calla_answer_*: token ids → reasoning, content and tool calls.
 *
 * Stages, each with its own file: bytes of tokens → whole characters (utf8_stream.c) → this file tells reasoning, content and calls
 * apart → stop strings, in content only (stop.c) → pieces (answer_output.c).
 *
 * What the model writes (the template's own form, chat_template.jinja):
 *     [<think>\n] REASONING \n</think>\n\n CONTENT [\n\n<tool_call>\n<function=…>…</function>\n</tool_call>[\n<tool_call>…]]
 * Tags are single tokens, and as tokens they count anywhere.  A tag spelled in letters counts only at the start of a line, and there
 * only </think> followed by a line end, or a call of a tool that the request has: a model that talks about tags is not cut short, and a
 * model that drifts is understood.  An answer that is held to a form does not drift, and may have such letters in a string: there only
 * tokens are tags.  The same text gives the same pieces however it is cut into tokens.
 *
 * Invariants: nothing the model wrote is lost except white space around tags and the control tokens themselves: what turns out to be
 * no call is content.  Every piece is valid UTF-8. */
#include <string.h>

#include "base/memory.h"
#include "text/answer_output.h"
#include "text/stop.h"
#include "text/text.h"
#include "text/tool_call.h"
#include "text/utf8_stream.h"

typedef enum answer_state { IN_REASONING, IN_CONTENT, IN_CALL } answer_state;
typedef enum tag { TAG_NONE, TAG_THINK, TAG_THINK_END, TAG_CALL, TAG_CALL_END, TAGS } tag;
/* How a call was opened: by the token, by letters, or by its <function=…> alone. */
typedef enum call_form { FORM_TOKEN, FORM_LETTERS, FORM_BARE } call_form;

static const char *const tag_text[TAGS] = {"", "<think>", "</think>", "<tool_call>", "</tool_call>"};

struct calla_answer {
    const tokenizer *tokenizer;
    int32_t tag_id[TAGS]; /* -1 where the tokenizer has none */
    bool raw, only_tokens, finished, failed;
    bool tool_calls; /* tools were given: calls are looked for */
    tool_set tools;
    utf8_stream utf8;
    stop_matcher stop;
    const char *const *stop_strings; /* the caller's */
    answer_output out;
    buffer text, passed; /* scratch: characters of one token; content that passed the stop strings */

    answer_state state;
    buffer held;        /* reasoning or content not yet told apart: at the start of a line, it may become a tag */
    bool line_start;    /* held begins at the start of a line */
    bool skip_newlines; /* directly behind a tag: line ends are not part of the text */
    bool content_begun; /* content other than skipped line ends was seen since the answer, </think> or a call began it */
    bool think_may_end; /* a call ended the reasoning: a </think> that comes late means nothing */
    bool call_may_end;  /* a bare call was read: a </tool_call> behind it means nothing */

    buffer call; /* a call under way, without its opening tag */
    call_form call_form;
    answer_state call_from;
    bool call_has_head;   /* it has begun as a call does: this ends the reasoning */
    size_t call_searched; /* no end of a spelled call before here */
    tool_call parsed;     /* scratch */
    bool live;            /* the call is told as it comes: `call` holds only what of it was not read yet */
    bool live_between;    /* and its function has ended: another may follow */
    tool_stream stream;   /* of a live call */
    buffer json;          /* scratch */
};

static void hold(calla_answer *a, buffer *b, const char *s, size_t n) {
    buffer_append(b, s, n);
    a->failed |= b->failed;
}

static void drop_front(buffer *b, size_t n) {
    if (n == 0) return;
    memmove(b->data, b->data + n, b->n - n);
    b->n -= n;
}

static bool is_blank(const char *s, size_t n) {
    while (n && (*s == ' ' || *s == '\n' || *s == '\t' || *s == '\r')) s++, n--;
    return n == 0;
}

/* 1: s [n] begins with word; -1: it may, with more text; 0: it does not. */
static int begins(const char *s, size_t n, const char *word) {
    const size_t length = strlen(word);
    if (memcmp(s, word, n < length ? n : length) != 0) return 0;
    return n < length ? -1 : 1;
}

/* ------------------------------------------------------------- text ------------------------------------------------------ */

static void put_content(calla_answer *a, const char *s, size_t n) {
    a->content_begun = true;
    a->call_may_end = false;
    buffer_clear(&a->passed);
    stop_push(&a->stop, s, n, &a->passed);
    a->failed |= a->passed.failed;
    output_text(&a->out, CALLA_PIECE_CONTENT, a->passed.data, a->passed.n);
}

/* Text of the state under way that is certainly no tag. */
static void put_text(calla_answer *a, const char *s, size_t n) {
    while (a->skip_newlines && n && *s == '\n') s++, n--;
    if (n == 0) return;
    a->skip_newlines = false;
    a->line_start = s[n - 1] == '\n';
    if (a->state == IN_REASONING)
        output_text(&a->out, CALLA_PIECE_REASONING, s, n);
    else
        put_content(a, s, n);
}

/* The content ends here: what may have been the beginning of a stop string is none. */
static void flush_content(calla_answer *a) {
    buffer_clear(&a->passed);
    stop_flush(&a->stop, &a->passed);
    a->failed |= a->passed.failed;
    output_text(&a->out, CALLA_PIECE_CONTENT, a->passed.data, a->passed.n);
}

static void enter(calla_answer *a, answer_state state) {
    a->state = state;
    a->line_start = a->skip_newlines = true;
    a->content_begun = a->call_may_end = false;
}

/* Behind </think> or a call. */
static void begin_content(calla_answer *a) {
    output_drop_space(&a->out);
    enter(a, IN_CONTENT);
}

/* ------------------------------------------------------------- calls ----------------------------------------------------- */

static void open_call(calla_answer *a, call_form form) {
    a->call_form = form;
    a->call_from = a->state;
    a->call_has_head = form != FORM_TOKEN;
    a->call_searched = 0;
    a->live = false;
    buffer_clear(&a->call);
    a->state = IN_CALL;
}

/* Delivers the calls at the beginning of the call's text [n].  The state of the first that is none, COMPLETE if nothing but white space
 * is left; *at: the text that is left begins here, 0 if there was no call. */
static tool_call_state deliver_calls(calla_answer *a, size_t n, bool ended, size_t *at) {
    *at = 0;
    while (!is_blank(a->call.data + *at, n - *at)) {
        const tool_call_state state = tool_call_parse(&a->tools, a->call.data + *at, n - *at, ended, &a->parsed);
        a->failed |= state == TOOL_CALL_NOMEM;
        if (state != TOOL_CALL_COMPLETE) return state;
        if (*at == 0) {
            if (a->call_from == IN_CONTENT) flush_content(a);
            output_drop_space(&a->out);
        }
        *at += a->parsed.n_text;
        output_call(&a->out, a->parsed.stream.name.data);
        output_arguments(&a->out, a->parsed.arguments.data, a->parsed.arguments.n);
        output_call_end(&a->out);
    }
    return TOOL_CALL_COMPLETE;
}

/* The call's text from `from` to `to` is text after all, with the opening and closing tags that stood around it. */
static void put_call_text(calla_answer *a, bool opening, size_t from, size_t to, const char *closing) {
    if (opening && a->call_form != FORM_BARE) put_text(a, tag_text[TAG_CALL], strlen(tag_text[TAG_CALL]));
    put_text(a, a->call.data + from, to - from);
    put_text(a, closing, strlen(closing));
}

/* The call's text [n] is over, and `skip` bytes behind it are its closing tag in letters.  What follows them goes to held.  false: the
 * call is not over, the closing tag is part of a value.  closing: the closing token, for the case that all this is text. */
static bool end_call(calla_answer *a, size_t n, size_t skip, const char *closing) {
    size_t at;
    const tool_call_state state = deliver_calls(a, n, true, &at);
    const bool any = at > 0;
    if (!any && state == TOOL_CALL_INCOMPLETE) return false;
    a->state = a->call_from;
    if (any || (a->call_has_head && a->state == IN_REASONING)) {
        a->think_may_end |= a->state == IN_REASONING;
        begin_content(a);
        a->call_may_end = any && a->call_form == FORM_BARE;
    }
    if (state != TOOL_CALL_COMPLETE || !any) put_call_text(a, !any, at, n + skip, closing);
    hold(a, &a->held, a->call.data + n + skip, a->call.n - n - skip);
    buffer_clear(&a->call);
    return true;
}

/* ---- live calls: opened by the token, within content.  Others are told when they are whole, since they may still turn out to be a
 * thought about a call, or an example. */

static void go_live(calla_answer *a) {
    if (a->call_from == IN_CONTENT) flush_content(a);
    output_drop_space(&a->out);
    a->live = true;
    a->live_between = false;
    tool_stream_begin(&a->stream, &a->tools);
}

static void tell_arguments(calla_answer *a) {
    a->failed |= a->json.failed;
    output_arguments(&a->out, a->json.data, a->json.n);
    buffer_clear(&a->json);
}

static void end_live_function(calla_answer *a) {
    tell_arguments(a);
    output_call_end(&a->out);
    a->live_between = true;
}

/* Behind a function's end.  true: another one begins. */
static bool begin_live_function(calla_answer *a, bool ended) {
    size_t space = 0;
    while (space < a->call.n && is_blank(a->call.data + space, 1)) space++;
    drop_front(&a->call, space);
    const char *s = a->call.data;
    const size_t n = a->call.n;
    const int closing = !n ? -1 : a->only_tokens ? 0 : begins(s, n, tag_text[TAG_CALL_END]); /* in letters */
    const tool_call_state head = n ? tool_call_head(&a->tools, s, n, false) : TOOL_CALL_INCOMPLETE;
    if (head == TOOL_CALL_COMPLETE) {
        a->live_between = false;
        tool_stream_begin(&a->stream, &a->tools);
        return true;
    }
    if (!ended && (closing < 0 || head == TOOL_CALL_INCOMPLETE)) return false;
    if (closing > 0) drop_front(&a->call, strlen(tag_text[TAG_CALL_END]));
    begin_content(a);
    a->call_may_end = closing > 0;
    hold(a, &a->held, a->call.data, a->call.n);
    buffer_clear(&a->call);
    return false;
}

/* Tells what is certain of a live call.  ended: what surrounds it was closed behind this text. */
static void advance_live(calla_answer *a, bool ended) {
    while (!a->failed && (!a->live_between || begin_live_function(a, ended))) {
        size_t used;
        const bool named = a->stream.name.n > 0;
        const tool_call_state state = tool_stream_read(&a->stream, a->call.data, a->call.n, ended, &used, &a->json);
        a->failed |= state == TOOL_CALL_NOMEM;
        if (a->failed) return;
        if (!named) output_call(&a->out, a->stream.name.data);
        drop_front(&a->call, used);
        if (state == TOOL_CALL_INCOMPLETE) {
            tell_arguments(a);
            return;
        }
        if (state == TOOL_CALL_MALFORMED) tool_stream_close(&a->stream, "", 0, &a->json);
        end_live_function(a);
    }
}

/* The answer ends within a live call.  Where it was cut, the call stays without its end. */
static void finish_live(calla_answer *a, bool cut) {
    advance_live(a, !cut);
    if (a->failed || cut || a->live_between || a->state != IN_CALL) return;
    tool_stream_close(&a->stream, a->call.data, a->call.n, &a->json);
    end_live_function(a);
}

/* Looks whether the call under way is over, or none.  true: it is, and held is what follows. */
static bool call_ends(calla_answer *a) {
    if (a->live) {
        advance_live(a, false);
        return a->state != IN_CALL;
    }
    if (a->call_form == FORM_TOKEN) {
        if (a->call_has_head) return false;
        const tool_call_state head = tool_call_head(&a->tools, a->call.data, a->call.n, false);
        a->call_has_head = head == TOOL_CALL_COMPLETE;
        if (a->call_has_head && a->call_from == IN_CONTENT) {
            go_live(a);
            return call_ends(a);
        }
        if (head != TOOL_CALL_MALFORMED) return false;
        a->state = a->call_from;
        put_text(a, tag_text[TAG_CALL], strlen(tag_text[TAG_CALL]));
        hold(a, &a->held, a->call.data, a->call.n);
        buffer_clear(&a->call);
        return true;
    }
    const char *mark = a->call_form == FORM_LETTERS ? tag_text[TAG_CALL_END] : "</function>";
    const size_t length = strlen(mark);
    for (const char *p; (p = memmem(a->call.data + a->call_searched, a->call.n - a->call_searched, mark, length));) {
        const size_t n = (size_t)(p - a->call.data);
        if (end_call(a, a->call_form == FORM_BARE ? n + length : n, a->call_form == FORM_BARE ? 0 : length, "")) return true;
        a->call_searched = n + 1;
    }
    if (a->call.n >= length && a->call_searched < a->call.n - length + 1) a->call_searched = a->call.n - length + 1;
    return false;
}

/* ------------------------------------------------------------- lines ----------------------------------------------------- */

typedef enum line_kind { LINE_TEXT, LINE_UNKNOWN, LINE_THINK_END, LINE_CALL_LETTERS, LINE_CALL_BARE } line_kind;

/* What the beginning s [n] of a line is. */
static line_kind classify(const calla_answer *a, const char *s, size_t n) {
    line_kind kind = LINE_TEXT;
    if (*s != '<' || a->only_tokens) return kind;
    if (a->state == IN_REASONING) {
        const size_t length = strlen(tag_text[TAG_THINK_END]);
        const int found = begins(s, n, tag_text[TAG_THINK_END]);
        if (found > 0 && n > length) return s[length] == '\n' ? LINE_THINK_END : LINE_TEXT;
        if (found != 0) kind = LINE_UNKNOWN;
    }
    if (!a->tool_calls) return kind;
    const size_t length = strlen(tag_text[TAG_CALL]);
    const int found = begins(s, n, tag_text[TAG_CALL]);
    tool_call_state head = found > 0 ? tool_call_head(&a->tools, s + length, n - length, true) : TOOL_CALL_MALFORMED;
    if (head == TOOL_CALL_COMPLETE) return LINE_CALL_LETTERS;
    if (found < 0 || head == TOOL_CALL_INCOMPLETE) kind = LINE_UNKNOWN;
    head = tool_call_head(&a->tools, s, n, true);
    if (head == TOOL_CALL_COMPLETE) return LINE_CALL_BARE;
    return head == TOOL_CALL_INCOMPLETE ? LINE_UNKNOWN : kind;
}

/* Sends on what is held, up to a call or what may become a tag.  final: nothing more comes before a token that is a tag, or the end. */
static void scan(calla_answer *a, bool final) {
    size_t at = 0;
    while (at < a->held.n && a->state != IN_CALL) {
        const char *s = a->held.data + at;
        const size_t n = a->held.n - at;
        line_kind kind = a->line_start ? classify(a, s, n) : LINE_TEXT;
        if (kind == LINE_UNKNOWN && !final) break;
        if (kind == LINE_UNKNOWN && a->state == IN_REASONING && begins(s, n, tag_text[TAG_THINK_END]) > 0) kind = LINE_THINK_END;
        if (kind == LINE_THINK_END) {
            at += strlen(tag_text[TAG_THINK_END]);
            begin_content(a);
        } else if (kind == LINE_CALL_LETTERS || kind == LINE_CALL_BARE) {
            open_call(a, kind == LINE_CALL_BARE ? FORM_BARE : FORM_LETTERS);
            if (kind == LINE_CALL_LETTERS) at += strlen(tag_text[TAG_CALL]);
            hold(a, &a->call, a->held.data + at, a->held.n - at);
            at = a->held.n;
        } else {
            const char *newline = memchr(s, '\n', n);
            const size_t line = newline ? (size_t)(newline - s) + 1 : n;
            a->line_start = newline != NULL;
            put_text(a, s, line);
            at += line;
        }
    }
    drop_front(&a->held, at);
}

static void feed(calla_answer *a, const char *s, size_t n, bool final) {
    hold(a, a->state == IN_CALL ? &a->call : &a->held, s, n);
    while (!a->failed && !a->stop.stopped) {
        if (a->state == IN_CALL) {
            if (!call_ends(a)) break;
        } else {
            scan(a, final);
            if (a->state != IN_CALL) break;
        }
    }
}

static void feed_str(calla_answer *a, const char *s) { feed(a, s, strlen(s), false); }

/* ------------------------------------------------------------- tokens ---------------------------------------------------- */

/* What surrounds the call ends here, by the token `closing` or before another one.  false: the token is part of a value. */
static bool close_call(calla_answer *a, const char *closing) {
    if (!a->live) return end_call(a, a->call.n, 0, closing);
    advance_live(a, true);
    if (a->state == IN_CALL) return false;
    if (a->held.n) hold(a, &a->held, closing, strlen(closing)); /* text stood between */
    return true;
}

/* A tag as a token. */
static void feed_tag(calla_answer *a, tag t) {
    if (a->state != IN_CALL) feed(a, "", 0, true);
    if (a->stop.stopped) return;
    switch (t) {
    case TAG_THINK:
        if (a->state == IN_REASONING && a->skip_newlines) return; /* the model repeats what the prompt ends with */
        if (a->state != IN_CONTENT || a->content_begun) break;
        enter(a, IN_REASONING);
        return;
    case TAG_THINK_END:
        if (a->state == IN_CALL && a->call_from == IN_REASONING) { /* it was a thought about a call */
            a->state = IN_REASONING;
            put_call_text(a, true, 0, a->call.n, "");
        }
        if (a->state == IN_REASONING) return begin_content(a);
        if (a->state != IN_CONTENT || (a->content_begun && !a->think_may_end)) break;
        a->think_may_end = false;
        enter(a, IN_CONTENT);
        return;
    case TAG_CALL:
        if (!a->tool_calls) break;
        if (a->state == IN_CALL) { /* the last one was not closed */
            if (!close_call(a, "")) break;
            feed(a, "", 0, true);
        }
        return open_call(a, FORM_TOKEN);
    case TAG_CALL_END:
        if (a->state == IN_CALL && close_call(a, tag_text[t])) return feed(a, "", 0, false);
        if (a->state != IN_CONTENT || !a->call_may_end) break;
        enter(a, IN_CONTENT);
        return;
    default: break;
    }
    feed_str(a, tag_text[t]);
}

const char *calla_answer_stopped_by(const calla_answer *a) { return a->stop.stopped ? a->stop_strings[a->stop.which] : NULL; }

static calla_status check(const calla_answer *a, calla_error *err) {
    return a->failed || a->out.failed ? error_nomem(err, "an answer's text") : CALLA_OK;
}

calla_status calla_answer_push(calla_answer *a, int32_t id, bool *stopped, calla_error *err) {
    if (err) *err = (calla_error){0};
    size_t n;
    const char *bytes = tokenizer_bytes(a->tokenizer, id, &n);
    if (!bytes)
        return error_set(err, CALLA_E_ARGUMENT, "token %d: the tokenizer has none; its ids are 0 … %u", (int)id,
                         tokenizer_vocabulary(a->tokenizer) - 1);
    if (!a->finished && !a->stop.stopped) {
        tag t = TAG_NONE;
        for (int i = TAG_THINK; !a->raw && i < TAGS; i++)
            if (a->tag_id[i] == id) t = (tag)i;
        buffer_clear(&a->text);
        if (t)
            utf8_stream_finish(&a->utf8, &a->text);
        else if (a->raw || !tokenizer_is_special(a->tokenizer, id))
            utf8_stream_push(&a->utf8, bytes, n, &a->text);
        a->failed |= a->text.failed;
        feed(a, a->text.data, a->text.n, false);
        if (t && !a->stop.stopped) feed_tag(a, t);
        if (a->stop.stopped)
            output_flush(&a->out);
        else
            output_deliver(&a->out);
    }
    if (stopped) *stopped = a->stop.stopped;
    return check(a, err);
}

/* The answer ends within a call: whole calls are delivered, the rest is text. */
static void finish_call(calla_answer *a, bool cut) {
    if (!a->live && a->call_form == FORM_TOKEN && a->call_has_head) go_live(a);
    if (a->live) {
        finish_live(a, cut);
        return;
    }
    size_t at;
    const tool_call_state state = deliver_calls(a, a->call.n, !cut, &at);
    a->state = a->call_from;
    if (at > 0 || (a->call_has_head && a->state == IN_REASONING)) begin_content(a);
    if (at > 0 && state == TOOL_CALL_COMPLETE) return;
    put_call_text(a, at == 0, at, a->call.n, "");
}

calla_status calla_answer_finish(calla_answer *a, bool cut, calla_error *err) {
    if (err) *err = (calla_error){0};
    if (a->finished) return check(a, err);
    a->finished = true;
    if (a->stop.stopped) return check(a, err);
    buffer_clear(&a->text);
    utf8_stream_finish(&a->utf8, &a->text);
    a->failed |= a->text.failed;
    feed(a, a->text.data, a->text.n, true);
    if (a->state == IN_CALL && !a->stop.stopped) {
        finish_call(a, cut);
        if (a->state != IN_CALL) feed(a, "", 0, true);
    }
    if (!a->stop.stopped) flush_content(a);
    output_flush(&a->out);
    return check(a, err);
}

calla_status calla_answer_open(const calla_text *text, const calla_answer_options *options, calla_answer **out, calla_error *err) {
    *out = NULL;
    if (err) *err = (calla_error){0};
    if (!options->piece) return error_set(err, CALLA_E_ARGUMENT, "calla_answer_options.piece: must be a function");
    calla_answer *a = mem_calloc(1, sizeof *a);
    if (!a) return error_nomem(err, "an answer");
    a->tokenizer = text->tokenizer;
    for (int i = TAG_THINK; i < TAGS; i++) a->tag_id[i] = tokenizer_find_added(text->tokenizer, tag_text[i]);
    a->raw = options->raw;
    a->only_tokens = options->only_tokens;
    a->out.fn = options->piece;
    a->out.user = options->user;
    a->stop_strings = options->stop;
    calla_status status = stop_open(&a->stop, options->stop, options->n_stop, err);
    if (!status && !a->raw) status = tool_set_open(&a->tools, options->tools_json, err);
    a->tools.held = options->held;
    if (status) {
        calla_answer_close(a);
        return status;
    }
    a->tool_calls = a->out.hold_content_space = a->tools.tools != NULL;
    enter(a, options->thinking && !a->raw ? IN_REASONING : IN_CONTENT);
    a->skip_newlines = a->state == IN_REASONING;
    *out = a;
    return CALLA_OK;
}

void calla_answer_close(calla_answer *a) {
    if (!a) return;
    tool_set_close(&a->tools);
    stop_close(&a->stop);
    output_free(&a->out);
    buffer_free(&a->text);
    buffer_free(&a->passed);
    buffer_free(&a->held);
    buffer_free(&a->call);
    tool_call_free(&a->parsed);
    tool_stream_free(&a->stream);
    buffer_free(&a->json);
    mem_free(a);
}

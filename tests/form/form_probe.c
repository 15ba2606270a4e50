/* form_probe.c: forms and matchers of one tokenizer, driven by the scripts of this folder: one JSON command a line → one JSON line.
 *
 * usage: form_probe MODEL_DIR
 *   {"op":"open","kind":K,"source":S,"strict":B,"tools":[…],"choice":C,"tool":NAME,"one_call":B}
 *       compiles the form that the commands below use → {"ms":…} or {"status":…,"message":…,"ms":…}
 *   {"op":"encode","text":T}                  → {"ids":[…]}
 *   {"op":"try","ids":[…]}                    → {"taken":N,"stop":B,"must_stop":B}: how many ids were taken; what holds behind them
 *   {"op":"mask","ids":[…]}                   → {"mask":"hexadecimal digits of the words"} or {"mask":null}: anything
 *   {"op":"bytes","ids":[…],"n":N,"seed":S}   → {"checked":N,"wrong":[…]}: N tokens whose bit differs from what their bytes are told
 *   {"op":"walk","seed":S,"hurry":N,"most":N} → {"ids":[…],"ended":B,"ms":…,"text":…,"reasoning":…,"calls":[…]}: a random way through the masks
 *   {"op":"answer","ids":[…]}                 → {"text":…,"reasoning":…,"calls":[[name, arguments],…]}
 * All but open and encode take "thinking".  Invariants of masks are checked on the way, and broken ones end the program: a mask is
 * never empty, and took() agrees with it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "text/text.h"

enum { ONE_BYTE_TOKENS = 256 };

static calla_text *text;
static uint32_t n_vocabulary;
static int32_t stop_id, byte_id[ONE_BYTE_TOKENS];

static calla_form *form;
static json_object *form_command; /* the open command of form */

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* ------------------------------------------------------------- JSON ------------------------------------------------------ */

static json_object *get(json_object *command, const char *key) { return json_object_object_get(command, key); }
static bool get_bool(json_object *command, const char *key) { return json_object_get_boolean(get(command, key)); }
static size_t get_size(json_object *command, const char *key) { return (size_t)json_object_get_int64(get(command, key)); }
static const char *get_string(json_object *command, const char *key) { return json_object_get_string(get(command, key)); }

typedef struct id_list {
    int32_t *ids; /* [n] */
    size_t n, cap;
} id_list;

static void id_add(id_list *list, int32_t id) {
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->ids = realloc(list->ids, list->cap * sizeof *list->ids);
        if (!list->ids) fail("out of memory");
    }
    list->ids[list->n++] = id;
}

static id_list get_ids(json_object *command) {
    json_object *ids = get(command, "ids");
    id_list list = {0};
    for (size_t i = 0; ids && i < json_object_array_length(ids); i++) id_add(&list, json_object_get_int(json_object_array_get_idx(ids, i)));
    return list;
}

static void print_ids(buffer *b, const char *key, const int32_t *ids, size_t n) {
    buffer_printf(b, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) buffer_printf(b, i ? ",%d" : "%d", (int)ids[i]);
    buffer_append_str(b, "]");
}

/* -------------------------------------------------------- pseudo-random --------------------------------------------------- */

static uint64_t random_state;

static uint32_t random_below(uint32_t n) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(((z ^ (z >> 31)) >> 32) * n >> 32);
}

/* ------------------------------------------------------------- masks ----------------------------------------------------- */

static size_t mask_words(void) { return (n_vocabulary + 31) / 32; }
static bool allows(const uint32_t *mask, int32_t id) { return !mask || (mask[id / 32] >> (id % 32) & 1); }

static size_t count_allowed(const uint32_t *mask) {
    if (!mask) return n_vocabulary;
    size_t n = 0;
    for (size_t i = 0; i < mask_words(); i++) n += (size_t)__builtin_popcount(mask[i]);
    return n;
}

static int32_t nth_allowed(const uint32_t *mask, size_t nth) {
    for (size_t i = 0; i < mask_words(); i++) {
        const size_t here = (size_t)__builtin_popcount(mask[i]);
        if (nth >= here) {
            nth -= here;
            continue;
        }
        uint32_t word = mask[i];
        while (nth--) word &= word - 1;
        return (int32_t)(32 * i) + __builtin_ctz(word);
    }
    fail("a mask has fewer bits than were counted");
}

static calla_matcher *open_matcher(json_object *command) {
    calla_matcher *m;
    calla_error err;
    if (!form) fail("no form is open");
    if (calla_matcher_open(form, get_bool(command, "thinking"), &m, &err)) fail("calla_matcher_open: %s", err.message);
    return m;
}

static const uint32_t *next_mask(calla_matcher *m) {
    const uint32_t *mask = calla_matcher_mask(m);
    if (!count_allowed(mask)) fail("a mask is empty");
    if (mask && n_vocabulary % 32 && mask[mask_words() - 1] >> n_vocabulary % 32) fail("a mask has bits behind the vocabulary");
    return mask;
}

/* false: the mask forbids it. */
static bool take(calla_matcher *m, int32_t id) {
    const bool allowed = allows(next_mask(m), id);
    const calla_status status = calla_matcher_took(m, id);
    if (status != (allowed ? CALLA_OK : CALLA_E_ARGUMENT))
        fail("token %d: the mask %s it, and took() says \"%s\"", (int)id, allowed ? "allows" : "forbids", calla_status_name(status));
    return allowed;
}

static size_t take_all(calla_matcher *m, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!take(m, ids[i])) return i;
    }
    return n;
}

/* ------------------------------------------------------------ commands ---------------------------------------------------- */

/* Of the processor: a machine that is busy otherwise does not count. */
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* Where word stands in words; 0 if it is NULL. */
static int word_index(const char *word, const char *const *words) {
    for (int i = 0; word && words[i]; i++) {
        if (!strcmp(word, words[i])) return i;
    }
    if (word) fail("open: no such word: %s", word);
    return 0;
}

static calla_status compile(json_object *command, calla_form **out, calla_error *err) {
    static const char *const kinds[] = {"none", "json_object", "json_schema", "regex", "choice", NULL};
    static const char *const choices[] = {"auto", "required", "named", "none", NULL};
    const char *source = get_string(command, "source"), *tool = get_string(command, "tool");
    json_object *tools = get(command, "tools");
    const calla_form_options options = {
        .kind = (calla_form_kind)word_index(get_string(command, "kind"), kinds),
        .source = source,
        .n_source = source ? (size_t)json_object_get_string_len(get(command, "source")) : 0,
        .strict_schema = get_bool(command, "strict"),
        .tools_json = tools ? json_object_to_json_string_ext(tools, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE) : NULL,
        .tool_choice = (calla_tool_choice)word_index(get_string(command, "choice"), choices),
        .tool_name = tool,
        .one_call = get_bool(command, "one_call"),
    };
    return calla_form_compile(text, &options, out, err);
}

static void run_open(json_object *command, buffer *out) {
    calla_error err;
    calla_form_release(form);
    json_object_put(form_command);
    form = NULL;
    form_command = json_object_get(command);
    const double start = milliseconds();
    const calla_status status = compile(command, &form, &err);
    const double ms = milliseconds() - start;
    if (status) {
        form = NULL;
        buffer_printf(out, "{\"status\":\"%s\",\"message\":", calla_status_name(status));
        json_append_string(out, err.message, strlen(err.message));
        buffer_printf(out, ",\"ms\":%.3f}", ms);
    } else {
        buffer_printf(out, "{\"ms\":%.3f}", ms);
    }
}

static void run_encode(json_object *command, buffer *out) {
    calla_ids ids;
    calla_error err;
    json_object *s = get(command, "text");
    if (calla_text_encode(text, json_object_get_string(s), (size_t)json_object_get_string_len(s), &ids, &err)) fail("%s", err.message);
    buffer_append_str(out, "{");
    print_ids(out, "ids", ids.ids, ids.n);
    buffer_append_str(out, "}");
    calla_ids_free(&ids);
}

static void run_try(json_object *command, buffer *out) {
    id_list list = get_ids(command);
    calla_matcher *m = open_matcher(command);
    const size_t taken = take_all(m, list.ids, list.n);
    const uint32_t *mask = next_mask(m);
    const bool stop = allows(mask, stop_id);
    buffer_printf(out, "{\"taken\":%zu,\"stop\":%s,\"must_stop\":%s}", taken, stop ? "true" : "false",
                  stop && count_allowed(mask) == 1 ? "true" : "false");
    calla_matcher_close(m);
    free(list.ids);
}

static void run_mask(json_object *command, buffer *out) {
    id_list list = get_ids(command);
    calla_matcher *m = open_matcher(command);
    if (take_all(m, list.ids, list.n) != list.n) fail("mask: the ids are refused");
    const uint32_t *mask = next_mask(m);
    buffer_append_str(out, "{\"mask\":");
    if (mask) {
        buffer_append_char(out, '"');
        for (size_t i = 0; i < mask_words(); i++) buffer_printf(out, "%08x", mask[i]);
        buffer_append_char(out, '"');
    } else {
        buffer_append_str(out, "null");
    }
    buffer_append_str(out, "}");
    calla_matcher_close(m);
    free(list.ids);
}

/* A token is as good as its bytes one by one: each of them is a token. */
static bool bytes_are_taken(json_object *command, const id_list *before, int32_t id) {
    size_t n;
    const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
    calla_matcher *m = open_matcher(command);
    if (take_all(m, before->ids, before->n) != before->n) fail("bytes: the ids are refused");
    bool taken = true;
    for (size_t i = 0; taken && i < n; i++) taken = take(m, byte_id[(unsigned char)bytes[i]]);
    calla_matcher_close(m);
    return taken;
}

static void run_bytes(json_object *command, buffer *out) {
    id_list list = get_ids(command), wrong = {0};
    calla_matcher *m = open_matcher(command);
    if (take_all(m, list.ids, list.n) != list.n) fail("bytes: the ids are refused");
    const uint32_t *mask = next_mask(m);
    const size_t n = get_size(command, "n"), allowed = count_allowed(mask);
    random_state = get_size(command, "seed");
    for (size_t i = 0; mask && i < n; i++) {
        /* one half of those that are allowed, the other of all whose first byte is */
        int32_t id = i % 2 ? nth_allowed(mask, random_below((uint32_t)allowed)) : (int32_t)random_below(n_vocabulary);
        size_t n_bytes;
        const char *bytes = tokenizer_bytes(text->tokenizer, id, &n_bytes);
        for (int again = 0; again < 1000 && i % 2 == 0 && !(bytes && allows(mask, byte_id[(unsigned char)*bytes])); again++) {
            id = (int32_t)random_below(n_vocabulary);
            bytes = tokenizer_bytes(text->tokenizer, id, &n_bytes);
        }
        if (bytes && !tokenizer_is_added(text->tokenizer, id) && allows(mask, id) != bytes_are_taken(command, &list, id))
            id_add(&wrong, id);
    }
    buffer_printf(out, "{\"checked\":%zu,", mask ? n : 0);
    print_ids(out, "wrong", wrong.ids, wrong.n);
    buffer_append_str(out, "}");
    calla_matcher_close(m);
    free(wrong.ids);
    free(list.ids);
}

/* ------------------------------------------------------------ answers ----------------------------------------------------- */

typedef struct pieces {
    buffer text, reasoning, calls, arguments;
} pieces;

static void on_piece(void *user, const calla_piece *piece) {
    pieces *p = user;
    switch (piece->kind) {
    case CALLA_PIECE_REASONING: buffer_append(&p->reasoning, piece->text, piece->n); break;
    case CALLA_PIECE_CONTENT: buffer_append(&p->text, piece->text, piece->n); break;
    case CALLA_PIECE_CALL:
        buffer_append_str(&p->calls, p->calls.n ? ",[" : "[");
        json_append_string(&p->calls, piece->name, strlen(piece->name));
        break;
    case CALLA_PIECE_ARGUMENTS: buffer_append(&p->arguments, piece->text, piece->n); break;
    case CALLA_PIECE_CALL_END:
        buffer_append_str(&p->calls, ",");
        json_append_string(&p->calls, p->arguments.n ? p->arguments.data : "", p->arguments.n);
        buffer_append_str(&p->calls, "]");
        buffer_clear(&p->arguments);
        break;
    }
}

/* Appends "text", "reasoning" and "calls" of an answer; ended: it ends itself. */
static void print_answer(json_object *command, const int32_t *ids, size_t n, bool ended, buffer *out) {
    pieces p = {0};
    calla_error err;
    calla_answer *a;
    json_object *tools = get(form_command, "tools");
    const calla_answer_options options = {
        .thinking = get_bool(command, "thinking"),
        .only_tokens = get(form_command, "kind") || get(form_command, "choice"), /* as the server has it */
        .held = true,
        .tools_json = tools ? json_object_to_json_string_ext(tools, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE) : NULL,
        .piece = on_piece,
        .user = &p,
    };
    if (calla_answer_open(text, &options, &a, &err)) fail("%s", err.message);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] != stop_id && calla_answer_push(a, ids[i], NULL, &err)) fail("%s", err.message);
    }
    if (calla_answer_finish(a, !ended, &err)) fail("%s", err.message);
    calla_answer_close(a);
    if (p.arguments.n) { /* a call that was cut */
        buffer_append_str(&p.calls, ",");
        json_append_string(&p.calls, p.arguments.data, p.arguments.n);
        buffer_append_str(&p.calls, "]");
    }
    buffer_append_str(out, "\"text\":");
    json_append_string(out, p.text.n ? p.text.data : "", p.text.n);
    buffer_append_str(out, ",\"reasoning\":");
    json_append_string(out, p.reasoning.n ? p.reasoning.data : "", p.reasoning.n);
    buffer_append_str(out, ",\"calls\":[");
    buffer_append(out, p.calls.n ? p.calls.data : "", p.calls.n);
    buffer_append_str(out, "]");
    buffer_free(&p.text);
    buffer_free(&p.reasoning);
    buffer_free(&p.calls);
    buffer_free(&p.arguments);
}

static void run_answer(json_object *command, buffer *out) {
    id_list list = get_ids(command);
    buffer_append_str(out, "{");
    print_answer(command, list.ids, list.n, true, out);
    buffer_append_str(out, "}");
    free(list.ids);
}

/* What leads to an end, by the byte; the longest first. */
static const char *const closers[] = {
    "\n</parameter>\n", "\n</parameter>", "\n</function>\n", "</function>\n", "</function>", "\"", "}", "]", "\n"};
enum { CLOSERS = sizeof closers / sizeof *closers };

/* A way out: the stop if it is allowed, else the beginning of a closer; NULL: none is allowed. */
static const char *find_closer(const uint32_t *mask) {
    const char *found[CLOSERS];
    uint32_t n = 0;
    for (size_t i = 0; i < CLOSERS; i++) {
        if (allows(mask, byte_id[(unsigned char)*closers[i]])) found[n++] = closers[i];
    }
    return n ? found[random_below(n)] : NULL;
}

/* What a random answer does next.  *closer: what is left of a way out that it has begun. */
static int32_t choose(const uint32_t *mask, bool hurry, const char **closer) {
    if (!*closer || !**closer) {
        const bool close = random_below(100) < (hurry ? 90 : 12);
        if (close && allows(mask, stop_id)) return stop_id;
        *closer = close ? find_closer(mask) : NULL;
    }
    if (*closer && **closer && allows(mask, byte_id[(unsigned char)**closer])) return byte_id[(unsigned char)*(*closer)++];
    *closer = NULL;
    if (random_below(2)) { /* single bytes, so that rare ways are taken as well */
        int32_t single[ONE_BYTE_TOKENS];
        uint32_t n = 0;
        for (int i = 0; i < ONE_BYTE_TOKENS; i++) {
            if (allows(mask, byte_id[i])) single[n++] = byte_id[i];
        }
        if (n) return single[random_below(n)];
    }
    return mask ? nth_allowed(mask, random_below((uint32_t)count_allowed(mask))) : (int32_t)random_below(n_vocabulary);
}

/* Where anything may come, that is in a thought and in text before a call, a few letters and then the end of that. */
static int32_t choose_free(bool thought) {
    const uint32_t what = random_below(8);
    if (what == 0) return tokenizer_find_added(text->tokenizer, thought ? "</think>" : "<tool_call>");
    if (what == 1 && !thought) return stop_id;
    return byte_id[what == 2 ? '\n' : what == 3 ? '<' : 'a' + (int)what];
}

static void run_walk(json_object *command, buffer *out) {
    id_list list = {0};
    calla_matcher *m = open_matcher(command);
    const size_t hurry = get_size(command, "hurry"), most = get_size(command, "most");
    const char *closer = NULL;
    bool ended = false, thought = get_bool(command, "thinking");
    random_state = get_size(command, "seed");
    const double start = milliseconds();
    while (list.n < most && !ended) {
        const uint32_t *mask = next_mask(m);
        const int32_t id = mask ? choose(mask, list.n >= hurry, &closer) : choose_free(thought);
        if (!take(m, id)) fail("walk: a token that the mask allows is refused");
        id_add(&list, id);
        ended = id == stop_id;
        thought = thought && id != tokenizer_find_added(text->tokenizer, "</think>");
    }
    buffer_append_str(out, "{");
    print_ids(out, "ids", list.ids, list.n);
    buffer_printf(out, ",\"ended\":%s,\"ms\":%.3f,", ended ? "true" : "false", milliseconds() - start);
    print_answer(command, list.ids, list.n, ended, out);
    buffer_append_str(out, "}");
    calla_matcher_close(m);
    free(list.ids);
}

/* ------------------------------------------------------------- main ------------------------------------------------------ */

static void run(json_object *command, buffer *out) {
    static const struct {
        const char *name;
        void (*run)(json_object *command, buffer *out);
    } commands[] = {
        {"open", run_open},   {"encode", run_encode}, {"try", run_try},       {"mask", run_mask},
        {"bytes", run_bytes}, {"walk", run_walk},     {"answer", run_answer},
    };
    const char *op = get_string(command, "op");
    for (size_t i = 0; op && i < sizeof commands / sizeof *commands; i++) {
        if (!strcmp(op, commands[i].name)) {
            commands[i].run(command, out);
            return;
        }
    }
    fail("no such command: %s", op ? op : "(none)");
}

static void open_text(const char *dir) {
    calla_error err;
    if (calla_text_open(dir, &text, &err)) fail("%s", err.message);
    n_vocabulary = calla_text_vocabulary(text);
    stop_id = tokenizer_stop_id(text->tokenizer);
    for (int32_t id = 0; id < (int32_t)n_vocabulary; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
        if (bytes && n == 1 && !tokenizer_is_added(text->tokenizer, id)) byte_id[(unsigned char)*bytes] = id;
    }
}

int main(int argc, char **argv) {
    if (argc != 2) fail("usage: %s MODEL_DIR", argv[0]);
    open_text(argv[1]);
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        json_object *command;
        calla_error err;
        buffer out = {0};
        if (json_parse(line, (size_t)n, "command", &command, &err)) fail("%s", err.message);
        run(command, &out);
        if (out.failed) fail("out of memory");
        puts(out.data);
        fflush(stdout);
        buffer_free(&out);
        json_object_put(command);
    }
    free(line);
    calla_form_release(form);
    json_object_put(form_command);
    calla_text_close(text);
    return 0;
}

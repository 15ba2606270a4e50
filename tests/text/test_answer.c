/* test_answer.c: from token ids to reasoning, content and tool calls.  Every case is fed in many cuttings of the same text into tokens
 * (as the tokenizer cuts it, byte by byte, and at random) and must give the same pieces. */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/text.h"

static calla_text *text;
static int32_t byte_id[256]; /* the token of each single byte */
static uint64_t random_state = 1;

#define TS "{\"$ref\":\"#/$defs/T\"}" /* a schema that refers to itself eight times says nothing, and must say so at once */
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"scale\":{\"type\":\"number\"},\"on\":{\"type\":\"boolean\"},"
    "\"limit\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},\"names\":{\"type\":[\"array\",\"null\"]},"
    "\"where\":{\"$ref\":\"#/$defs/Place\"},\"unit\":{\"enum\":[\"C\",\"F\"]},\"either\":{\"type\":[\"integer\",\"string\"]},"
    "\"note\":{\"type\":[\"string\",\"null\"]},\"hint\":{\"type\":\"string\",\"nullable\":true},\"tree\":{\"$ref\":\"#/$defs/T\"}},"
    "\"$defs\":{\"Place\":{\"type\":\"object\"},\"T\":{\"anyOf\":[" TS "," TS "," TS "," TS "," TS "," TS "," TS "," TS "]}}}}},"
    "{\"name\":\"write_file\",\"input_schema\":{\"properties\":{\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"}}}}]";

static uint64_t next(void) { return random_mix(random_state += 0x9E3779B97F4A7C15u); }

/* ------------------------------------------------------------- feeding --------------------------------------------------- */

/* "R:…", "C:…" and "T:name arguments", each ended by a bar; pieces of the same kind that follow each other are joined. */
typedef struct transcript {
    buffer b;
    int last;
} transcript;

static void record(void *user, const calla_piece *piece) {
    transcript *t = user;
    const bool in_call = t->last == CALLA_PIECE_CALL || t->last == CALLA_PIECE_ARGUMENTS;
    assert_int_equal(piece->n > 0, piece->kind != CALLA_PIECE_CALL && piece->kind != CALLA_PIECE_CALL_END);
    assert_int_equal(utf8_valid(piece->text, piece->n), piece->n);
    assert_int_equal(in_call, piece->kind == CALLA_PIECE_ARGUMENTS || piece->kind == CALLA_PIECE_CALL_END);
    if (!in_call && t->last != (int)piece->kind) {
        if (t->last >= 0) buffer_append_char(&t->b, '|');
        buffer_append_str(&t->b, piece->kind == CALLA_PIECE_REASONING ? "R:" : piece->kind == CALLA_PIECE_CONTENT ? "C:" : "T:");
    }
    if (piece->kind == CALLA_PIECE_CALL) buffer_printf(&t->b, "%s ", piece->name);
    buffer_append(&t->b, piece->text, piece->n);
    t->last = (int)piece->kind;
}

typedef enum cutting { CUT_AS_TOKENIZED, CUT_BYTES, CUT_RANDOM } cutting;

static void add_id(calla_ids *ids, int32_t id) {
    ids->ids = realloc(ids->ids, (ids->n + 1) * sizeof *ids->ids);
    assert_non_null(ids->ids);
    ids->ids[ids->n++] = id;
}

/* Plain text [n] → ids that spell exactly it. */
static void add_text(calla_ids *ids, const char *s, size_t n, cutting cut) {
    while (n) {
        size_t part = cut == CUT_RANDOM ? 1 + next() % 12 : n;
        if (part > n) part = n;
        calla_ids made = {0};
        calla_error err;
        const size_t runs[] = {0, part};
        char *back = NULL;
        size_t n_back = 0;
        bool whole = cut != CUT_BYTES && !tokenizer_encode(text->tokenizer, s, part, (text_origin){runs, 2}, &made, &err) &&
                     !calla_text_decode(text, made.ids, made.n, &back, &n_back, &err) && n_back == part && !memcmp(back, s, part);
        for (size_t i = 0; i < (whole ? made.n : part); i++) add_id(ids, whole ? made.ids[i] : byte_id[(unsigned char)s[i]]);
        calla_free(back);
        calla_ids_free(&made);
        s += part;
        n -= part;
    }
}

/* A script: tags stand for their tokens, unless a \1 before them says that they are spelled in letters. */
static calla_ids cut_script(const char *script, size_t n, cutting cut) {
    static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<tool_response>"};
    calla_ids ids = {0};
    char *plain = malloc(n + 1);
    size_t n_plain = 0;
    assert_non_null(plain);
    for (size_t i = 0; i < n;) {
        const bool spelled = script[i] == 1;
        size_t length = 0;
        i += spelled;
        for (size_t t = 0; !length && t < sizeof tags / sizeof *tags; t++)
            if (n - i >= strlen(tags[t]) && !memcmp(script + i, tags[t], strlen(tags[t]))) {
                length = strlen(tags[t]);
                if (!spelled) {
                    add_text(&ids, plain, n_plain, cut);
                    n_plain = 0;
                    add_id(&ids, tokenizer_find_added(text->tokenizer, tags[t]));
                }
            }
        if (!length)
            length = i < n;
        else if (!spelled) {
            i += length;
            continue;
        }
        memcpy(plain + n_plain, script + i, length);
        n_plain += length;
        i += length;
    }
    add_text(&ids, plain, n_plain, cut);
    free(plain);
    return ids;
}

static char *run(const calla_ids *ids, calla_answer_options options, bool cut, bool *stopped) {
    transcript t = {.last = -1};
    calla_answer *answer;
    calla_error err;
    bool now = false;
    options.piece = record;
    options.user = &t;
    if (calla_answer_open(text, &options, &answer, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < ids->n; i++)
        if (calla_answer_push(answer, ids->ids[i], &now, &err)) fail_msg("%s", err.message);
    assert_int_equal(calla_answer_finish(answer, cut, &err), CALLA_OK);
    calla_answer_close(answer);
    if (cut && (t.last == CALLA_PIECE_CALL || t.last == CALLA_PIECE_ARGUMENTS)) buffer_append_str(&t.b, "...");
    if (stopped) *stopped = now;
    return buffer_take(&t.b);
}

static void expect_end(const char *script, size_t n, calla_answer_options options, bool ends_cut, const char *expected, bool stops) {
    for (int i = 0; i < 24; i++) {
        const cutting cut = i == 0 ? CUT_AS_TOKENIZED : i == 1 ? CUT_BYTES : CUT_RANDOM;
        calla_ids ids = cut_script(script, n, cut);
        bool stopped;
        char *got = run(&ids, options, ends_cut, &stopped);
        if (strcmp(got, expected) != 0) fail_msg("cutting %d of\n%s\nexpected\n%s\ngot\n%s", i, script, expected, got);
        assert_int_equal(stopped, stops);
        mem_free(got);
        free(ids.ids);
    }
}

static void expect_n(const char *script, size_t n, calla_answer_options options, const char *expected, bool stops) {
    expect_end(script, n, options, false, expected, stops);
}

/* The answer is not ended by the model.  "..." stands for a call without its end. */
static void expect_cut(const char *script, bool thinking, const char *expected) {
    const calla_answer_options options = {.thinking = thinking, .tools_json = tools};
    expect_end(script, strlen(script), options, true, expected, false);
}

static void expect(const char *script, bool thinking, bool with_tools, const char *expected) {
    const calla_answer_options options = {.thinking = thinking, .tools_json = with_tools ? tools : NULL};
    expect_n(script, strlen(script), options, expected, false);
}

/* ------------------------------------------------------------- reasoning ------------------------------------------------- */

static void reasoning_and_content_are_told_apart(void **state) {
    (void)state;
    expect("I think.\n</think>\n\nHello.<|im_end|>", true, false, "R:I think.|C:Hello.");
    expect("\n\nI think.\n\nMore.\n\n</think>\n\n\nHello.\n", true, false, "R:I think.\n\nMore.|C:Hello.\n");
    expect("</think>\n\nHello.", true, false, "C:Hello.");
    expect("\n</think>\n\n", true, false, "");
    expect("<think>\nI think.\n</think>\n\nHello.", true, false, "R:I think.|C:Hello.");
    expect("Never ends.\n", true, false, "R:Never ends.\n");
    expect("Hello.\n\nThere.", false, false, "C:Hello.\n\nThere.");
    expect("\n  Hello", false, false, "C:\n  Hello");
    expect("<think>\n\n</think>\n\nHello.", false, false, "C:Hello.");
    expect("<think>\nhm\n</think>\n\nHello.", false, false, "R:hm|C:Hello.");
    expect("</think>\n\nHello.", false, false, "C:Hello.");
    expect("a\n</think>\n\nb</think>c<think>d", true, false, "R:a|C:b</think>c<think>d");
    expect("    code\n  \n</think>\n\n    code  \n", true, false, "R:    code|C:    code  \n");
    expect("a\n</think>\n\n\xF0\x9F\x98\x80 \xE4\xB8\xAD\xE6\x96\x87 \xC3\xA9", true, false,
           "R:a|C:\xF0\x9F\x98\x80 \xE4\xB8\xAD\xE6\x96\x87 \xC3\xA9");
}

/* Letters are a tag only where the template puts it: a model that talks about tags goes on. */
static void spelled_tags_count_only_in_their_place(void **state) {
    (void)state;
    expect("hm\n\1</think>\n\nHello.", true, false, "R:hm|C:Hello.");
    expect("The tag \1</think> ends it.\n</think>\n\nYes: \1</think>.", true, false, "R:The tag </think> ends it.|C:Yes: </think>.");
    expect("\1</think> x\n\1</thin\n</think>\n\nHello.", true, false, "R:</think> x\n</thin|C:Hello.");
    expect("hm\n\1</think>", true, false, "R:hm");
    expect("hm\n\1</think></think>\n\nHello.", true, false, "R:hm|C:Hello.");
    expect("hm\n\1</think", true, false, "R:hm\n</think");
    expect("Write\n\1<tool_call>\nand\n<function=unknown>\n</function>\n", false, true,
           "C:Write\n<tool_call>\nand\n<function=unknown>\n</function>\n");
}

#define PARIS "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
#define PARIS_CALL "<tool_call>\n" PARIS "</tool_call>"
#define PARIS_OUT "T:get_weather {\"city\":\"Paris\"}"

/* Where only tokens are tags, letters of any tag in any place are text: a document of a form may hold them. */
static void letters_are_no_tags_when_only_tokens_are(void **state) {
    (void)state;
    static const struct {
        const char *script, *expected;
    } cases[] = {
        {"hm\n\1</think>\n\n\1<tool_call>\n</think>\n\n{}", "R:hm\n</think>\n\n<tool_call>|C:{}"},
        {"</think>\n\n{\"a\":\n\1<tool_call>\n" PARIS "\1</tool_call>}\n" PARIS, "C:{\"a\":\n<tool_call>\n" PARIS "</tool_call>}\n" PARIS},
        {"</think>\n\na\n\1</think>\n", "C:a\n</think>\n"},
        {"</think>\n\n" PARIS_CALL "\n" PARIS_CALL, PARIS_OUT "|" PARIS_OUT},
        {"</think>\n\n<tool_call>\n" PARIS "\1</tool_call></tool_call>", PARIS_OUT "|C:</tool_call></tool_call>"},
    };
    const calla_answer_options options = {.thinking = true, .only_tokens = true, .tools_json = tools};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_n(cases[i].script, strlen(cases[i].script), options, cases[i].expected, false);
}

/* ------------------------------------------------------------- calls ----------------------------------------------------- */

static void tool_calls_are_delivered_whole(void **state) {
    (void)state;
    expect("hm\n</think>\n\n" PARIS_CALL "<|im_end|>", true, true, "R:hm|" PARIS_OUT);
    expect("hm\n</think>\n\nLet me see.\n\n" PARIS_CALL, true, true, "R:hm|C:Let me see.|" PARIS_OUT);
    expect(PARIS_CALL "\n" PARIS_CALL "\n", false, true, PARIS_OUT "|" PARIS_OUT);
    expect(PARIS_CALL "\nDone.", false, true, PARIS_OUT "|C:Done.");
    expect("<tool_call>\n<function=unknown_tool>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", false, true,
           "T:unknown_tool {\"a\":\"1\"}");
    expect("<tool_call>\n<function=get_weather>\n</function>\n</tool_call>", false, true, "T:get_weather {}");
    expect("<tool_call>\n" PARIS PARIS "</tool_call>", false, true, PARIS_OUT "|" PARIS_OUT);
    expect("<tool_call>\n<function=write_file>\n<parameter=path>\na.c\n</parameter>\n<parameter=content>\n\nint main(void) {\n    return "
           "\"\\\\\";\n}\n\n"
           "</parameter>\n</function>\n</tool_call>",
           false, true, "T:write_file {\"path\":\"a.c\",\"content\":\"\\nint main(void) {\\n    return \\\"\\\\\\\\\\\";\\n}\\n\"}");
    expect("ok " PARIS_CALL, false, false, "C:ok " PARIS_CALL); /* no tools: text */
}

/* A03: a call ends a thought that was never closed. */
static void a_call_may_open_within_reasoning(void **state) {
    (void)state;
    expect("I must look.\n" PARIS_CALL "<|im_end|>", true, true, "R:I must look.|" PARIS_OUT);
    expect("I must look." PARIS_CALL "\n</think>\n\nHello.", true, true, "R:I must look.|" PARIS_OUT "|C:Hello.");
    expect("Look.\n" PARIS_CALL "\nand\n</think>\n\nHello.", true, true, "R:Look.|" PARIS_OUT "|C:and\nHello.");
    expect("I could write <tool_call> here.\n</think>\n\nHello.", true, true, "R:I could write <tool_call> here.|C:Hello.");
    expect("So: <tool_call>\n<function=get_weather>\n<parameter=city>\n</think>\n\nHello.", true, true,
           "R:So: <tool_call>\n<function=get_weather>\n<parameter=city>|C:Hello.");
    expect("hm\n" PARIS "and so on\n</think>\n\nHello.", true, true, "R:hm|" PARIS_OUT "|C:and so on\nHello.");
    expect("The tool\n<function=get_weather> is good.\n</think>\n\nHello.", true, true,
           "R:The tool\n<function=get_weather> is good.|C:Hello.");
}

/* A05, A06: closers too many or too few, wrappers of another name or none; a parameter that is missing is the caller's to ask for. */
static void slightly_wrong_calls_are_understood(void **state) {
    (void)state;
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</parameter>\n</function>\n</tool_call>", false,
           true, PARIS_OUT);
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>", false, true, PARIS_OUT);
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>", false, true, PARIS_OUT);
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
           false, true, "T:get_weather {\"city\":\"Paris\",\"days\":3}");
    expect("<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>", false, true, PARIS_OUT);
    expect("<tool_call>\n" PARIS, false, true, PARIS_OUT); /* never closed */
    expect("<tool_call>\n" PARIS "<tool_call>\n" PARIS, false, true, PARIS_OUT "|" PARIS_OUT);
    expect(PARIS "</tool_call>", false, true, PARIS_OUT); /* never opened */
    expect("Sure.\n\n" PARIS "\nBye.", false, true, "C:Sure.|" PARIS_OUT "|C:Bye.");
    expect("\1<tool_call>\n" PARIS "\1</tool_call>\nBye.", false, true, PARIS_OUT "|C:Bye.");
    expect("<tools>\n" PARIS "</tools>", false, true, "C:<tools>|" PARIS_OUT "|C:</tools>");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n</parameter>\n<parameter=city>\nB\n</parameter>\n</function>\n</"
           "tool_call>",
           false, true, "T:get_weather {\"city\":\"A\"}");
}

/* What has been told cannot be taken back: what does not fit closes the call and is text. */
static void begun_calls_are_repaired(void **state) {
    (void)state;
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", false, true, "T:get_weather {\"city\":\"Par\"}");
    expect("hm\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", true, true, "R:hm|T:get_weather {\"city\":\"Par\"}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n", false, true, "T:get_weather {\"days\":3}");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n", false, true, PARIS_OUT);
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<param", false, true, PARIS_OUT);
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\nwhat\n</function>\n</tool_call>.", false, true,
           "T:get_weather {\"city\":\"Paris\\n</parameter>\\nwhat\"}|C:.");
    expect("<tool_call>\n<function=get_weather>\n<parameter=ci\nty>\nParis\n</parameter>\n</function>\n</tool_call>", false, true,
           "T:get_weather {}|C:<parameter=ci\nty>\nParis\n</parameter>\n</function>\n</tool_call>");
    expect("<tool_call>\n" PARIS "\1</tool_call>\nBye.", false, true, PARIS_OUT "|C:Bye.");
    expect("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n\1</tool_call>", false, true,
           "T:get_weather {\"city\":\"Paris\\n</parameter>\\n</tool_call>\"}");
}

/* A call that a limit cut short must not look whole: half a file is not what the model meant to write. */
static void a_cut_call_stays_open(void **state) {
    (void)state;
    expect_cut("<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", false, "T:get_weather {\"city\":\"Par...");
    expect_cut("<tool_call>\n<function=get_weather>\n<parameter=city>\nPar\n", false, "T:get_weather {\"city\":\"Par...");
    expect_cut("<tool_call>\n<function=get_weather>\n<parameter=days>\n3", false, "T:get_weather {\"days\":...");
    expect_cut("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n", false, "T:get_weather {\"city\":\"Paris...");
    expect_cut("hm\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", true, "R:hm|T:get_weather {\"city\":\"Par...");
    expect_cut("<tool_call>\n" PARIS, false, PARIS_OUT);
    expect_cut("<tool_call>\n" PARIS "<func", false, PARIS_OUT);
    expect_cut("<tool_call>\n<func", false, "C:<tool_call>\n<func");
}

/* A call's name and the letters of its strings are told as soon as they are certain. */
static void arguments_come_as_they_are_made(void **state) {
    (void)state;
    static const struct {
        const char *text, *out;
    } steps[] = {{"\n<function=write_file>\n", ""},
                 {"<parameter=path>", "T:write_file {\"path\":\""},
                 {"\na.c", "T:write_file {\"path\":\"a.c"},
                 {"\n</parameter>\n", "T:write_file {\"path\":\"a.c"}, /* it may be part of the path */
                 {"<parameter=content>\n", "T:write_file {\"path\":\"a.c\",\"content\":\""},
                 {"int\n", "T:write_file {\"path\":\"a.c\",\"content\":\"int"},
                 {"x", "T:write_file {\"path\":\"a.c\",\"content\":\"int\\nx"},
                 {"\n", "T:write_file {\"path\":\"a.c\",\"content\":\"int\\nx"},
                 {"</par", "T:write_file {\"path\":\"a.c\",\"content\":\"int\\nx"},
                 {"t>\"", "T:write_file {\"path\":\"a.c\",\"content\":\"int\\nx\\n</part>\\\""},
                 {"\n</parameter>\n</function>", "T:write_file {\"path\":\"a.c\",\"content\":\"int\\nx\\n</part>\\\"\"}"}};
    transcript t = {.last = -1};
    calla_answer *answer;
    calla_error err;
    const calla_answer_options options = {.piece = record, .user = &t, .tools_json = tools};
    buffer_append_str(&t.b, "");
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_OK);
    assert_int_equal(calla_answer_push(answer, tokenizer_find_added(text->tokenizer, "<tool_call>"), NULL, &err), CALLA_OK);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (const char *p = steps[i].text; *p; p++)
            assert_int_equal(calla_answer_push(answer, byte_id[(unsigned char)*p], NULL, &err), CALLA_OK);
        assert_string_equal(t.b.data, steps[i].out);
    }
    assert_int_equal(t.last, CALLA_PIECE_CALL_END);
    calla_answer_close(answer);
    buffer_free(&t.b);
}

/* A04: two calls cut in two at each byte give the same as whole: no letter of a tag becomes content. */
static void calls_cut_anywhere_are_the_same(void **state) {
    (void)state;
    static const char script[] =
        "Now:\n<tool_call>\n<function=write_file>\n<parameter=path>\na.c\n</parameter>\n<parameter=content>\nint x;\n\n"
        "/* \xC3\xA9 */\n</parameter>\n</function>\n</tool_call>\n" PARIS_CALL;
    for (int spelled = 0; spelled < 2; spelled++) /* the tags as tokens, and in letters */
        for (size_t at = 0; at <= sizeof script - 1; at++) {
            calla_ids ids = {0};
            const char *parts[] = {script, script + at};
            const size_t sizes[] = {at, sizeof script - 1 - at};
            for (int i = 0; i < 2; i++) {
                calla_ids part = {0};
                if (spelled)
                    add_text(&part, parts[i], sizes[i], CUT_RANDOM);
                else
                    part = cut_script(parts[i], sizes[i], CUT_AS_TOKENIZED);
                for (size_t k = 0; k < part.n; k++) add_id(&ids, part.ids[k]);
                free(part.ids);
            }
            const calla_answer_options options = {.tools_json = tools};
            char *got = run(&ids, options, false, NULL);
            assert_string_equal(got, "C:Now:|T:write_file {\"path\":\"a.c\",\"content\":\"int x;\\n\\n/* \xC3\xA9 */\"}|" PARIS_OUT);
            mem_free(got);
            free(ids.ids);
        }
}

/* Tags within a value are part of it unless what follows fits. */
static void values_may_hold_tags(void **state) {
    (void)state;
    expect("<tool_call>\n<function=write_file>\n<parameter=content>\nuse </parameter> and <function=x> and </function> and <tool_call>, "
           "</tool_call> here\n"
           "</parameter>\n</function>\n</tool_call>",
           false, true,
           "T:write_file {\"content\":\"use </parameter> and <function=x> and </function> and <tool_call>, </tool_call> here\"}");
    expect("<tool_call>\n<function=write_file>\n<parameter=content>\n<think>\n</think>\n</parameter>\n</function>\n</tool_call>", false,
           true, "T:write_file {\"content\":\"<think>\\n</think>\"}");
}

/* A06: what the model wrote is an answer, whatever it looks like. */
static void what_is_no_call_is_content(void **state) {
    (void)state;
    expect("<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call>\nBye.", false, true,
           "C:<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call>\nBye.");
    expect("<tool_call>\n</tool_call>", false, true, "C:<tool_call>\n</tool_call>");
    expect("<tool_call>\n<function=>\n</function>\n</tool_call>", false, true, "C:<tool_call>\n<function=>\n</function>\n</tool_call>");
    expect("<tool_call>\n<function=get_weather>\nwhat\n</function>\n</tool_call>.", false, true,
           "C:<tool_call>\n<function=get_weather>\nwhat\n</function>\n</tool_call>.");
    expect("<tool_call>\n" PARIS "what\n</tool_call>\nBye.", false, true, PARIS_OUT "|C:what\n</tool_call>\nBye.");
    expect("<tool_call>", false, true, "C:<tool_call>");
    expect("a <tool_call", false, true, "C:a <tool_call");
}

/* A07. */
static void arguments_have_the_types_of_the_schema(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *json;
    } values[] = {
        {"city", "42", "\"42\""},
        {"city", "null", "null"},
        {"days", "42", "42"},
        {"days", " 42 ", "42"},
        {"days", "4.5", "4.5"},
        {"days", "many", "\"many\""},
        {"days", "99999999999999999999", "\"99999999999999999999\""},
        {"days", "null", "null"},
        {"scale", "1.0", "1.0"},
        {"scale", "1e400", "1e400"},
        {"scale", "NaN", "\"NaN\""},
        {"on", "true", "true"},
        {"on", "False", "false"},
        {"on", "yes", "\"yes\""},
        {"limit", "42", "42"},
        {"limit", "null", "null"},
        {"limit", "None", "null"},
        {"names", "[\"a\", \"b\"]", "[\"a\",\"b\"]"},
        {"names", "null", "null"},
        {"names", "a, b", "\"a, b\""},
        {"where", "{\"x\": {\"y\": [1.50]}}", "{\"x\":{\"y\":[1.50]}}"},
        {"unit", "C", "\"C\""},
        {"either", "42", "\"42\""},
        {"note", "null", "null"},
        {"hint", "null", "null"},
        {"hint", "nul", "\"nul\""},
        {"tree", "7", "\"7\""},
        {"note", "text", "\"text\""},
        {"other", "42", "\"42\""},
        {"city", "\xC3\xA9\"\\\t", "\"\xC3\xA9\\\"\\\\\\t\""},
        {"city", "", "\"\""},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char script[512], expected[512];
        snprintf(script, sizeof script, "<tool_call>\n<function=get_weather>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>",
                 values[i].name, values[i].value);
        /* a string stays as it is where strings are admitted, even "null" unless null is admitted as well */
        const bool plain_null = !strcmp(values[i].name, "city") && !strcmp(values[i].value, "null");
        snprintf(expected, sizeof expected, "T:get_weather {\"%s\":%s}", values[i].name, plain_null ? "\"null\"" : values[i].json);
        expect(script, false, true, expected);
    }
}

/* ------------------------------------------------------------- stop strings ---------------------------------------------- */

static void expect_stop(const char *script, bool thinking, const char *stop, const char *other, const char *expected, bool stops) {
    const char *const strings[] = {stop, other};
    const calla_answer_options options = {.thinking = thinking, .stop = strings, .n_stop = other ? 2 : 1, .tools_json = tools};
    expect_n(script, strlen(script), options, expected, stops);
}

/* A10. */
static void stop_strings_cut_exactly(void **state) {
    (void)state;
    expect_stop("The quick brown fox", false, "ick bro", NULL, "C:The qu", true);
    expect_stop("Answer.\nUser: x", false, "\nUser:", NULL, "C:Answer.", true);
    expect_stop("a\nUse b\nUser", false, "\nUser:", NULL, "C:a\nUse b\nUser", false);
    expect_stop("ababac", false, "abac", NULL, "C:ab", true);
    expect_stop("aaaab", false, "aab", NULL, "C:aa", true);
    expect_stop("abcd", false, "bcd", "c", "C:ab", true); /* the first to be complete */
    expect_stop("xabc", false, "bc", "abc", "C:x", true); /* of two at the same byte the longer */
    expect_stop("stop", false, "stop", NULL, "", true);
    expect_stop("hm stop hm\n</think>\n\ngo stop on", true, "stop", NULL, "R:hm stop hm|C:go ", true);
    expect_stop("sto\n</think>\n\np", true, "stop", NULL, "R:sto|C:p", false);
    expect_stop("ok\n\n" PARIS_CALL, false, "Paris", NULL, "C:ok|" PARIS_OUT, false);
    expect_stop("ok PA" PARIS_CALL "RIS", false, "PARIS", NULL, "C:ok PA|" PARIS_OUT "|C:RIS", false);
    expect_stop("\xE4\xB8\xAD\xE6\x96\x87!", false, "\xE6\x96\x87", NULL, "C:\xE4\xB8\xAD", true);
    expect_stop("a\n\nb", false, "\n\n", NULL, "C:a", true);
}

static void text_is_held_no_longer_than_needed(void **state) {
    (void)state;
    const char *const stop[] = {"END!"};
    transcript t = {.last = -1};
    calla_answer *answer;
    calla_error err;
    bool stopped;
    const calla_answer_options options = {.stop = stop, .n_stop = 1, .piece = record, .user = &t, .tools_json = tools};
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_OK);
    static const char *const steps[][2] = {{"a", "C:a"},
                                           {"E", "C:a"},
                                           {"N", "C:a"},
                                           {"x", "C:aENx"},
                                           {" ", "C:aENx"},
                                           {"y", "C:aENx y"},
                                           {"\xC3", "C:aENx y"},
                                           {"\xA9", "C:aENx y\xC3\xA9"},
                                           {"<", "C:aENx y\xC3\xA9<"},
                                           {"E", "C:aENx y\xC3\xA9<"},
                                           {"E", "C:aENx y\xC3\xA9<E"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(calla_answer_push(answer, byte_id[(unsigned char)*steps[i][0]], &stopped, &err), CALLA_OK);
        assert_string_equal(t.b.data, steps[i][1]);
    }
    assert_int_equal(calla_answer_push(answer, 1 << 30, &stopped, &err), CALLA_E_ARGUMENT);
    assert_int_equal(calla_answer_finish(answer, false, &err), CALLA_OK);
    assert_string_equal(t.b.data, "C:aENx y\xC3\xA9<EE");
    assert_int_equal(calla_answer_push(answer, byte_id['z'], &stopped, &err), CALLA_OK); /* after the end: nothing */
    assert_string_equal(t.b.data, "C:aENx y\xC3\xA9<EE");
    calla_answer_close(answer);
    buffer_free(&t.b);
}

/* ------------------------------------------------------------- the rest -------------------------------------------------- */

static void invalid_bytes_become_replacement_characters(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    expect("a\x80z", false, false, "C:a" R "z");
    expect("a\xE4\xB8", false, false, "C:a" R);
    expect("a\xE4\xB8z", false, false, "C:a" R "z");
    expect("\xE4\xB8\xE4\xB8\xAD", false, false, "C:" R "\xE4\xB8\xAD");
    expect("\xF0\x9F\x98", false, false, "C:" R);
    expect("\xED\xA0\x80", false, false, "C:" R R R);
    expect("\xC0\xAF\xFF", false, false, "C:" R R R);
    expect("hm\xE4\n\xE4</think>\n\nx", true, false, "R:hm" R "\n" R "|C:x");
}

static void raw_prints_everything(void **state) {
    (void)state;
    const char *const stop[] = {"STOP"};
    const calla_answer_options options = {.thinking = true, .raw = true, .tools_json = tools, .stop = stop, .n_stop = 1};
    const char script[] = "\n\nhm\n</think>\n\nok" PARIS_CALL "<|im_end|>\n";
    const char expected[] = "C:\n\nhm\n</think>\n\nok" PARIS_CALL "<|im_end|>\n";
    expect_n(script, sizeof script - 1, options, expected, false);
    expect_n("</think>aSTOPb", 14, options, "C:</think>a", true);
    expect("a<|im_end|>b<tool_response>", false, false, "C:ab<tool_response>"); /* not raw: control tokens print nothing */
}

/* Wherever the answer ends, the same comes out in every cutting, and nothing but tags and white space is lost. */
static void any_end_is_a_good_end(void **state) {
    (void)state;
    const char *const stop[] = {"Bye"};
    const char script[] =
        "hm <tool_call> x\n</think>\n\nok\n\n" PARIS_CALL "\n<tool_call>\n<function=x>\n<parameter=\xC3\xA9>\n\xE4\xB8\xAD</parameter>"
        "\n</function>\n</tool_call>\n\1<tool_call>\n" PARIS "\1</tool_call>\nBy Bye";
    for (size_t n = 0; n < sizeof script; n++) {
        const calla_answer_options options = {.thinking = true, .tools_json = tools, .stop = stop, .n_stop = 1};
        char *first = NULL;
        for (int i = 0; i < 4; i++) {
            calla_ids ids = cut_script(script, n, i ? CUT_RANDOM : CUT_BYTES);
            char *got = run(&ids, options, n % 2, NULL);
            if (!first)
                first = got;
            else {
                if (strcmp(first, got) != 0) fail_msg("%zu bytes:\n%s\n%s", n, first, got);
                mem_free(got);
            }
            free(ids.ids);
        }
        mem_free(first);
    }
}

static void wrong_options_are_named(void **state) {
    (void)state;
    calla_answer *answer;
    calla_error err;
    const char *const empty[] = {"ok", ""}, *const invalid[] = {"\xFF"};
    assert_int_equal(calla_answer_open(text, &(calla_answer_options){0}, &answer, &err), CALLA_E_ARGUMENT);
    calla_answer_options options = {.piece = record, .stop = empty, .n_stop = 2};
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "stop[1]"));
    options.stop = invalid;
    options.n_stop = 1;
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_E_ARGUMENT);
    options.n_stop = 0;
    options.tools_json = "{}";
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_E_ARGUMENT);
    options.tools_json = "[";
    assert_int_equal(calla_answer_open(text, &options, &answer, &err), CALLA_E_FORMAT);
    assert_null(answer);
    calla_answer_close(NULL);
}

static int fail_at(void *user, uint64_t number) {
    const uint64_t *bad = user;
    return number == *bad;
}

static void survives_failing_allocations(void **state) {
    (void)state;
    const char script[] = "hm\n</think>\n\nok \xE4\xB8\xAD\n\n" PARIS_CALL "\nBy Bye";
    const char *const stop[] = {"Bye", "x"};
    calla_ids ids = cut_script(script, sizeof script - 1, CUT_AS_TOKENIZED);
    uint64_t failures = 0;
    for (uint64_t i = 0;; i++) {
        transcript t = {.last = -1};
        calla_answer *answer = NULL;
        calla_error err = {0};
        const calla_answer_options options = {
            .thinking = true, .tools_json = tools, .stop = stop, .n_stop = 2, .piece = record, .user = &t};
        buffer_append(&t.b, "", 0);
        uint64_t bad = mem_allocations() + i;
        mem_set_failure(fail_at, &bad);
        calla_status status = calla_answer_open(text, &options, &answer, &err);
        for (size_t k = 0; !status && k < ids.n; k++) status = calla_answer_push(answer, ids.ids[k], NULL, &err);
        if (!status) status = calla_answer_finish(answer, false, &err);
        calla_answer_close(answer);
        const bool failed = mem_allocations() > bad;
        mem_set_failure(NULL, NULL);
        buffer_free(&t.b);
        if (!failed) break;
        failures += status == CALLA_E_NOMEM;
    }
    assert_true(failures > 10);
    free(ids.ids);
}

static int open_text(void **state) {
    (void)state;
    calla_error err;
    char *dir = path_join(getenv("CALLA_MODELS"), "pocket");
    if (!dir || calla_text_open(dir, &text, &err)) return fprintf(stderr, "%s\n", err.message), -1;
    mem_free(dir);
    for (int i = 0; i < 256; i++) byte_id[i] = -1;
    for (int32_t id = 0; id < (int32_t)calla_text_vocabulary(text); id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
        if (bytes && n == 1) byte_id[(unsigned char)*bytes] = id;
    }
    for (int i = 0; i < 256; i++)
        if (byte_id[i] < 0) return fprintf(stderr, "no token for byte %d\n", i), -1;
    return 0;
}

static int close_text(void **state) {
    (void)state;
    calla_text_close(text);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_and_content_are_told_apart),
        cmocka_unit_test(spelled_tags_count_only_in_their_place),
        cmocka_unit_test(letters_are_no_tags_when_only_tokens_are),
        cmocka_unit_test(tool_calls_are_delivered_whole),
        cmocka_unit_test(a_call_may_open_within_reasoning),
        cmocka_unit_test(slightly_wrong_calls_are_understood),
        cmocka_unit_test(begun_calls_are_repaired),
        cmocka_unit_test(a_cut_call_stays_open),
        cmocka_unit_test(arguments_come_as_they_are_made),
        cmocka_unit_test(calls_cut_anywhere_are_the_same),
        cmocka_unit_test(values_may_hold_tags),
        cmocka_unit_test(what_is_no_call_is_content),
        cmocka_unit_test(arguments_have_the_types_of_the_schema),
        cmocka_unit_test(stop_strings_cut_exactly),
        cmocka_unit_test(text_is_held_no_longer_than_needed),
        cmocka_unit_test(invalid_bytes_become_replacement_characters),
        cmocka_unit_test(raw_prints_everything),
        cmocka_unit_test(any_end_is_a_good_end),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, open_text, close_text);
}

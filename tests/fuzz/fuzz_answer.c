/* fuzz_answer.c: any text as a model's answer.  The first byte chooses thinking, raw, tools and stop strings; the rest is text in which
 * tags are their tokens (a tag behind a byte 1 is letters).  Fed in two cuttings, byte by byte and as tokenized, it gives the same
 * pieces; pieces are valid UTF-8, arguments of calls are JSON objects, and without calls nothing but tags and white space is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"};
static const char tools[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},"
    "\"c\":{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"null\"}]}}}}},{\"name\":\"get\"}]";
static calla_text *text;
static int32_t byte_id[256], tag_id[5];

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_answer: %s\n", what);
    abort();
}

static void open_text(void) {
    calla_error err;
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    if (!dir || calla_text_open(dir, &text, &err)) {
        fprintf(stderr, "%s (set CALLA_MODELS)\n", err.message);
        exit(1);
    }
    mem_free(dir);
    for (int32_t id = 0; id < (int32_t)calla_text_vocabulary(text); id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(text->tokenizer, id, &n);
        if (bytes && n == 1) byte_id[(unsigned char)*bytes] = id;
    }
    for (int i = 0; i < 5; i++) tag_id[i] = tokenizer_find_added(text->tokenizer, tags[i]);
}

typedef struct transcript {
    buffer all;       /* kinds and texts */
    buffer arguments; /* of the call under way */
    size_t calls, letters;
    int last;
} transcript;

static size_t count_letters(const char *s, size_t n) {
    size_t letters = 0;
    for (size_t i = 0; i < n; i++) letters += (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z');
    return letters;
}

static void record(void *user, const calla_piece *piece) {
    transcript *t = user;
    const bool mark = piece->kind == CALLA_PIECE_CALL || piece->kind == CALLA_PIECE_CALL_END;
    const bool in_call = t->last == CALLA_PIECE_CALL || t->last == CALLA_PIECE_ARGUMENTS;
    require(mark || (piece->n > 0 && utf8_valid(piece->text, piece->n) == piece->n), "a piece is empty or not UTF-8");
    require(in_call == (piece->kind == CALLA_PIECE_ARGUMENTS || piece->kind == CALLA_PIECE_CALL_END), "a piece at a wrong place");
    switch (piece->kind) {
    case CALLA_PIECE_CALL:
        require(piece->name && *piece->name, "a call without a name");
        buffer_clear(&t->arguments);
        t->calls++;
        break;
    case CALLA_PIECE_ARGUMENTS: buffer_append(&t->arguments, piece->text, piece->n); break;
    case CALLA_PIECE_CALL_END: {
        json_object *arguments;
        calla_error err;
        require(json_parse(t->arguments.data, t->arguments.n, "arguments", &arguments, &err) == CALLA_OK, "arguments are not JSON");
        require(json_object_is_type(arguments, json_type_object), "arguments are no object");
        json_object_put(arguments);
        break;
    }
    default: t->letters += count_letters(piece->text, piece->n);
    }
    if (t->last != (int)piece->kind || piece->name) buffer_printf(&t->all, "\n%d %s:", (int)piece->kind, piece->name ? piece->name : "");
    buffer_append(&t->all, piece->text, piece->n);
    t->last = (int)piece->kind;
}

static void push(calla_answer *answer, int32_t id) {
    calla_error err;
    require(calla_answer_push(answer, id, NULL, &err) == CALLA_OK, "push failed");
}

/* Text that holds no tags: as tokens if the tokenizer spells exactly it, else as bytes. */
static void push_text(calla_answer *answer, const char *s, size_t n, bool bytes) {
    const size_t runs[] = {0, n};
    calla_ids ids = {0};
    calla_error err;
    char *back = NULL;
    size_t n_back = 0;
    const bool whole = !bytes && n && !tokenizer_encode(text->tokenizer, s, n, (text_origin){runs, 2}, &ids, &err) &&
                       !calla_text_decode(text, ids.ids, ids.n, &back, &n_back, &err) && n_back == n && !memcmp(back, s, n);
    if (whole)
        for (size_t i = 0; i < ids.n; i++) push(answer, ids.ids[i]);
    else
        for (size_t i = 0; i < n; i++) push(answer, byte_id[(unsigned char)s[i]]);
    calla_free(back);
    calla_ids_free(&ids);
}

/* Returns how many letters of plain text were fed. */
static size_t run(const calla_answer_options *options, const char *s, size_t n, bool bytes, bool cut) {
    calla_answer *answer;
    calla_error err;
    size_t letters = 0, start = 0, i = 0;
    require(calla_answer_open(text, options, &answer, &err) == CALLA_OK, "open failed");
    while (i < n) {
        int tag = -1;
        for (int t = 0; t < 5; t++)
            if (n - i >= strlen(tags[t]) && !memcmp(s + i, tags[t], strlen(tags[t]))) tag = t;
        if (tag < 0 || (i > 0 && s[i - 1] == 1)) {
            i++;
            continue;
        }
        push_text(answer, s + start, i - start, bytes);
        letters += count_letters(s + start, i - start);
        push(answer, tag_id[tag]);
        start = i += strlen(tags[tag]);
    }
    push_text(answer, s + start, n - start, bytes);
    letters += count_letters(s + start, n - start);
    require(calla_answer_finish(answer, cut, &err) == CALLA_OK, "finish failed");
    calla_answer_close(answer);
    return letters;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const stop[] = {"STOP", "a\n\n", "OPEN"};
    if (!text) open_text();
    if (n == 0) return 0;
    const unsigned flags = data[0];
    transcript first = {.last = -1}, second = {.last = -1};
    calla_answer_options options = {
        .thinking = flags & 1, .raw = (flags & 14) == 14, .tools_json = flags & 2 ? tools : NULL, .piece = record};
    options.stop = stop;
    options.n_stop = flags & 4 ? 3 : 0;
    options.user = &first;
    const size_t letters = run(&options, (const char *)data + 1, n - 1, true, flags & 16);
    options.user = &second;
    run(&options, (const char *)data + 1, n - 1, false, flags & 16);
    require(first.all.n == second.all.n && (!first.all.n || !memcmp(first.all.data, second.all.data, first.all.n)),
            "two cuttings, two outcomes");
    if (first.calls == 0 && options.n_stop == 0) /* a </think> in letters may be taken */
        require(first.letters + 5 * (n / 8) >= letters, "text was lost");
    buffer_free(&first.all);
    buffer_free(&first.arguments);
    buffer_free(&second.all);
    buffer_free(&second.arguments);
    return 0;
}

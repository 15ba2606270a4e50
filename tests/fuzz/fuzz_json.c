/* fuzz_json.c: the pull reader and the trees accept the same texts; what is accepted survives being written and read again; tokens
 * nest; json_skip ends where reading does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_json: %s\n", what);
    abort();
}

/* Reads to the end; whether it was accepted. */
static bool read_all(const char *text, size_t n) {
    json_reader r;
    json_reader_init(&r, text, n);
    int depth = 0;
    json_token token;
    while ((token = json_next(&r)) != JSON_END && token != JSON_ERROR) {
        if (token == JSON_OBJECT_BEGIN || token == JSON_ARRAY_BEGIN) depth++;
        if (token == JSON_OBJECT_END || token == JSON_ARRAY_END) depth--;
        require(depth >= 0 && depth <= JSON_MAX_DEPTH, "tokens do not nest");
        if (token == JSON_STRING || token == JSON_KEY || token == JSON_NUMBER)
            for (size_t i = 0; i < r.n_text; i++) (void)*(volatile const char *)&r.text[i];
    }
    require(json_next(&r) == token, "the end does not last");
    require((token == JSON_ERROR) == (r.error[0] != 0), "an error without a message, or the other way");
    require(token == JSON_ERROR || depth == 0, "the end came inside a value");
    json_reader_free(&r);
    return token == JSON_END;
}

static bool skip_all(const char *text, size_t n) {
    json_reader r;
    json_reader_init(&r, text, n);
    const bool ok = json_skip(&r, json_next(&r)) && json_next(&r) == JSON_END;
    json_reader_free(&r);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    calla_error err = {0};
    json_object *tree, *again;
    const bool accepted = read_all(text, n);
    require(skip_all(text, n) == accepted, "json_skip and json_next disagree");
    require((json_parse(text, n, "input", &tree, &err) == CALLA_OK) == accepted, "the reader and json_parse disagree");
    if (!accepted) return 0;
    size_t n_written;
    const char *written = json_object_to_json_string_length(tree, JSON_C_TO_STRING_NOSLASHESCAPE, &n_written);
    require(json_parse(written, n_written, "written", &again, &err) == CALLA_OK, "what was written cannot be read");
    require(json_object_equal(tree, again), "what was written reads differently");
    json_object_put(again);
    json_object_put(tree);
    return 0;
}

/* body.c: see body.h. */
#include "body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"

static calla_engine_info info = {.context_tokens = 2000,
                                 .defaults = {.temperature = 1, .top_p = 0.95f, .top_k = 20, .repetition_penalty = 1}};

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzzed body: %s\n", what);
    abort();
}

static const calla_text *open_text(void) {
    static calla_text *text;
    if (text) return text;
    calla_error err;
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    if (!dir || calla_text_open(dir, &text, &err)) {
        fprintf(stderr, "fuzzed body: cannot open the pocket model's text: %s\n", err.message);
        abort();
    }
    mem_free(dir);
    return text;
}

void body_init(conversation *c) {
    info.vocabulary = calla_text_vocabulary(open_text());
    conversation_init(c, &info);
}

static void check_error(const api_error *e, void (*write_error)(const api_error *e, buffer *out)) {
    require(e->status >= 400 && e->status < 600 && e->message[0], "an error without status or message");
    require(utf8_valid(e->message, strlen(e->message)) == strlen(e->message), "an error that is not UTF-8");
    buffer out = {0};
    write_error(e, &out);
    json_object *tree = NULL;
    require(!json_parse(out.data, out.n, "error", &tree, NULL), "an error that is not JSON");
    json_object_put(tree);
    buffer_free(&out);
}

void body_check(conversation *c, bool good, api_error *e, void (*write_error)(const api_error *e, buffer *out)) {
    calla_prompt prompt = {0};
    if (good) {
        require(c->n >= 1 && c->n_stop <= CONVERSATION_MAX_STOP, "a count out of range");
        require(c->sampling.temperature >= 0 && c->sampling.temperature <= 2 && c->sampling.top_p > 0 && c->sampling.top_p <= 1,
                "a parameter out of range");
        require(c->ignored.n < 600 && (!c->ignored.n || !strpbrk(c->ignored.data, "\r\n")), "a header that is none");
        require(c->warnings.n < 800 && (!c->warnings.n || !strpbrk(c->warnings.data, "\r\n")), "a header that is none");
        good = conversation_render(c, open_text(), &prompt, e) && conversation_fit(c, prompt.ids.n, e);
        require(!good || (prompt.ids.n && prompt.ids.n + c->max_tokens <= info.context_tokens), "a prompt out of the window");
    }
    if (!good) check_error(e, write_error);
    calla_prompt_free(&prompt);
    conversation_free(c);
}

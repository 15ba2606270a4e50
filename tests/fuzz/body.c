/* body.c: see body.h. */
#include "body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "server/responses_store.h"
#include "server/server_impl.h"

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

static void check_json(const buffer *out, const char *what) {
    json_object *tree = NULL;
    require(out->n && !json_parse(out->data, out->n, "output", &tree, NULL), what);
    json_object_put(tree);
}

static void check_error(const api_error *e, void (*write_error)(const api_error *e, buffer *out)) {
    require(e->status >= 400 && e->status < 600 && e->message[0], "an error without status or message");
    require(utf8_valid(e->message, strlen(e->message)) == strlen(e->message), "an error that is not UTF-8");
    buffer out = {0};
    write_error(e, &out);
    check_json(&out, "an error that is not JSON");
    buffer_free(&out);
}

static void check_conversation(const conversation *c) {
    require(c->n >= 1 && c->n_stop <= CONVERSATION_MAX_STOP, "a count out of range");
    require(c->sampling.temperature >= 0 && c->sampling.temperature <= 2 && c->sampling.top_p > 0 && c->sampling.top_p <= 1,
            "a parameter out of range");
    require(c->ignored.n < 600 && (!c->ignored.n || !strpbrk(c->ignored.data, "\r\n")), "a header that is none");
    require(c->warnings.n < 800 && (!c->warnings.n || !strpbrk(c->warnings.data, "\r\n")), "a header that is none");
}

void body_check(conversation *c, bool good, api_error *e, void (*write_error)(const api_error *e, buffer *out)) {
    calla_prompt prompt = {0};
    if (good) {
        check_conversation(c);
        good = conversation_render(c, open_text(), &prompt, e) && conversation_fit(c, prompt.ids.n, e);
        require(!good || (prompt.ids.n && prompt.ids.n + c->max_tokens <= info.context_tokens), "a prompt out of the window");
    }
    if (!good) check_error(e, write_error);
    calla_prompt_free(&prompt);
    conversation_free(c);
}

static server *open_server(void) {
    static server s;
    static const char input[] = "{\"role\":\"user\",\"content\":\"Hi\"}";
    static const char whole[] = "[{\"id\":\"msg_1_0\",\"role\":\"assistant\",\"content\":\"Hi!\"}]";
    const stored_response stored = {input, sizeof input - 1, whole, sizeof whole - 1, 1, sizeof whole - 3};
    if (s.text) return &s;
    info.vocabulary = calla_text_vocabulary(open_text());
    s.info = info;
    require(!responses_store_open(1 << 20, &s.responses, NULL), "no memory for the store");
    responses_store_put(s.responses, "resp_1", NULL, &stored);
    s.text = open_text();
    return &s;
}

void body_prepare(const completion_dialect *dialect, const uint8_t *data, size_t n) {
    completion c = {.dialect = dialect, .server = open_server(), .own = mem_calloc(1, dialect->own_bytes)};
    api_error e;
    buffer out = {0};
    require(c.own != NULL, "no memory for a request");
    conversation_init(c.own, &c.server->info);
    buffer_append(&c.body, data, n);
    if (dialect->prepare(&c, &e)) {
        check_conversation(c.own);
        require(c.n_choices <= COMPLETION_MAX_CHOICES, "too many answers");
        for (size_t i = 0; c.n_choices && i < c.n_prompts; i++)
            require(c.prompts[i].ids.n && c.prompts[i].ids.n < info.context_tokens, "a prompt out of the window");
        if (!c.n_choices) {
            dialect->whole(&c, &out);
            check_json(&out, "a reply that is not JSON");
        }
    } else
        check_error(&e, dialect->write_error);
    for (size_t i = 0; i < c.n_prompts; i++) calla_prompt_free(&c.prompts[i]);
    mem_free(c.prompts);
    if (dialect->free) dialect->free(&c);
    conversation_free(c.own);
    mem_free(c.own);
    buffer_free(&c.body);
    buffer_free(&out);
}

/* fuzz_chat_body.c: bytes → the parser of chat requests and, where it accepts them, the chat template of the pocket model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "server/chat_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_chat_body: %s\n", what);
    abort();
}

static const calla_text *open_text(void) {
    static calla_text *text;
    if (text) return text;
    calla_error err;
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    if (!dir || calla_text_open(dir, &text, &err)) {
        fprintf(stderr, "fuzz_chat_body: cannot open the pocket model's text: %s\n", err.message);
        abort();
    }
    mem_free(dir);
    return text;
}

static void check_error(const api_error *e) {
    require(e->status >= 400 && e->status < 600 && e->message[0], "an error without status or message");
    require(utf8_valid(e->message, strlen(e->message)) == strlen(e->message), "an error that is not UTF-8");
    buffer out = {0};
    api_error_write(e, &out);
    json_object *tree = NULL;
    require(!json_parse(out.data, out.n, "error", &tree, NULL), "an error that is not JSON");
    json_object_put(tree);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const calla_text *text = open_text();
    const calla_engine_info info = {.context_tokens = 2000,
                                    .vocabulary = calla_text_vocabulary(text),
                                    .defaults = {.temperature = 1, .top_p = 0.95f, .top_k = 20, .repetition_penalty = 1}};
    chat_request r;
    api_error e;
    calla_prompt prompt = {0};
    if (!chat_request_parse((const char *)data, n, &info, &r, &e))
        check_error(&e);
    else {
        require(r.n >= 1 && r.n <= CHAT_MAX_CHOICES && r.n_stop <= CHAT_MAX_STOP, "a count out of range");
        require(r.sampling.temperature >= 0 && r.sampling.temperature <= 2 && r.sampling.top_p > 0 && r.sampling.top_p <= 1,
                "a parameter out of range");
        require(r.ignored.n < 600 && (!r.ignored.n || !strpbrk(r.ignored.data, "\r\n")), "a header that is none");
        if (!chat_request_render(&r, text, info.context_tokens, &prompt, &e))
            check_error(&e);
        else
            require(prompt.ids.n && prompt.ids.n + r.max_tokens <= info.context_tokens, "a prompt out of the window");
    }
    calla_prompt_free(&prompt);
    chat_request_free(&r);
    return 0;
}

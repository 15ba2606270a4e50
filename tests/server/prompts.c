/* prompts.c: see prompts.h. */
#include "prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "server/chat.h"
#include "unit.h"

static calla_text *text;
static calla_engine_info info = {.context_tokens = 4096, .defaults = {.temperature = 1, .top_p = 0.95f, .top_k = 20}};

int prompts_open(void **state) {
    (void)state;
    calla_error err;
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    assert_non_null(dir);
    if (calla_text_open(dir, &text, &err)) fail_msg("%s", err.message);
    info.vocabulary = calla_text_vocabulary(text);
    mem_free(dir);
    return 0;
}

int prompts_close(void **state) {
    (void)state;
    calla_text_close(text);
    return 0;
}

const calla_engine_info *prompts_info(void) { return &info; }

char *prompts_render(conversation *c) {
    calla_prompt prompt = {0};
    api_error e = {0};
    if (!conversation_render(c, text, &prompt, &e)) fail_msg("%s", e.message);
    char *out = mem_strndup(prompt.text, prompt.n_text);
    calla_prompt_free(&prompt);
    return out;
}

char *prompts_from_chat(const char *body) {
    chat_request r = {0};
    api_error e = {0};
    conversation_init(&r.conversation, &info);
    if (!chat_request_read(&r, body, strlen(body), &e)) fail_msg("%s", e.message);
    char *out = prompts_render(&r.conversation);
    conversation_free(&r.conversation);
    return out;
}

char *prompts_recorded(const char *agent, size_t *n) {
    char place[64], *body = NULL;
    calla_error err;
    snprintf(place, sizeof place, "server/requests/%s.json", agent);
    char *path = path_join(getenv("CALLA_TEST_DATA"), place);
    if (file_read(path, 1 << 20, &body, n, &err)) fail_msg("%s", err.message);
    mem_free(path);
    return body;
}

size_t prompts_count_turns(conversation *c) {
    calla_prompt prompt = {0};
    api_error e = {0};
    calla_ids begin = {0};
    if (!conversation_render(c, text, &prompt, &e)) fail_msg("%s", e.message);
    assert_int_equal(calla_text_encode(text, "<|im_start|>", 12, &begin, NULL), CALLA_OK);
    size_t turns = 0;
    for (size_t i = 0; i < prompt.ids.n; i++) turns += prompt.ids.ids[i] == begin.ids[0];
    calla_ids_free(&begin);
    calla_prompt_free(&prompt);
    return turns;
}

/* text.c: the public calla_text_* functions: opening a folder's text side, and plain conversions between text, JSON and ids.
 *
 * Owns nothing but the shell: ids come from tokenizer.c, prompts from template.c.  A calla_text is immutable
 * once open, but for what is made when it is first asked for. */
#include "text/text.h"

#include <string.h>

#include "base/memory.h"
#include "text/utf8_stream.h"

calla_status calla_text_open(const char *model_dir, calla_text **out, calla_error *err) {
    *out = NULL;
    if (err) *err = (calla_error){0};
    calla_text *text = mem_calloc(1, sizeof *text);
    if (!text) return error_nomem(err, "the text side of a model");
    text->lazy = mem_calloc(1, sizeof *text->lazy);
    calla_status status = text->lazy ? CALLA_OK : error_nomem(err, "the text side of a model");
    if (text->lazy) pthread_mutex_init(&text->lazy->mutex, NULL);
    if (!status) status = tokenizer_open(model_dir, &text->tokenizer, err);
    if (!status) status = template_detect(model_dir, &text->template_kind, err);
    if (status) {
        calla_text_close(text);
        return status;
    }
    *out = text;
    return CALLA_OK;
}

void calla_text_close(calla_text *text) {
    if (!text) return;
    if (text->lazy) {
        form_locals_close(&text->lazy->commons);
        form_trie_free(text->lazy->trie);
        pthread_mutex_destroy(&text->lazy->mutex);
        mem_free(text->lazy);
    }
    tokenizer_close(text->tokenizer);
    mem_free(text);
}

calla_status text_forms(const calla_text *text, const form_trie **trie, form_locals **commons, calla_error *err) {
    enum { MAX_BYTES = 64 << 20 };
    text_lazy *lazy = text->lazy;
    calla_status status = CALLA_OK;
    pthread_mutex_lock(&lazy->mutex);
    if (!lazy->commons.of && !form_locals_open(&lazy->commons, (size_t)4 * FORM_COMMONS * FORM_COMMON_STATES, MAX_BYTES))
        status = error_nomem(err, "what forms have in common");
    if (!status && !lazy->trie) status = form_trie_build(text->tokenizer, &lazy->trie, err);
    *trie = lazy->trie;
    *commons = &lazy->commons;
    pthread_mutex_unlock(&lazy->mutex);
    return status;
}

uint32_t calla_text_vocabulary(const calla_text *text) { return tokenizer_vocabulary(text->tokenizer); }

calla_status calla_text_encode(const calla_text *text, const char *utf8, size_t n, calla_ids *out, calla_error *err) {
    if (err) *err = (calla_error){0};
    *out = (calla_ids){0};
    calla_status status = tokenizer_encode(text->tokenizer, utf8, n, (text_origin){0}, out, err);
    if (status) calla_ids_free(out);
    return status;
}

calla_status calla_text_decode(const calla_text *text, const int32_t *ids, size_t n, char **out, size_t *n_out, calla_error *err) {
    if (err) *err = (calla_error){0};
    *out = NULL;
    buffer bytes = {0};
    utf8_stream stream = {0};
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *p = tokenizer_bytes(text->tokenizer, ids[i], &n_bytes);
        if (!p) {
            buffer_free(&bytes);
            return error_set(err, CALLA_E_ARGUMENT, "ids[%zu]: the tokenizer has no token %d; its ids are 0 … %u", i, (int)ids[i],
                             tokenizer_vocabulary(text->tokenizer) - 1);
        }
        utf8_stream_push(&stream, p, n_bytes, &bytes);
    }
    utf8_stream_finish(&stream, &bytes);
    *n_out = bytes.n;
    *out = buffer_take(&bytes);
    return *out ? CALLA_OK : error_nomem(err, "decoded text");
}

/* A flag of the request: true or false; null and absent leave *out as it is. */
static calla_status read_flag(json_object *request, const char *key, bool *out, calla_error *err) {
    json_object *value;
    if (!json_object_object_get_ex(request, key, &value) || !value) return CALLA_OK;
    if (!json_object_is_type(value, json_type_boolean)) return error_set(err, CALLA_E_ARGUMENT, "%s: must be true or false", key);
    *out = json_object_get_boolean(value);
    return CALLA_OK;
}

calla_status calla_text_render(const calla_text *text, const char *json, size_t n, calla_prompt *out, calla_error *err) {
    if (err) *err = (calla_error){0};
    *out = (calla_prompt){0};
    json_object *root;
    calla_status status = json_parse(json, n, "request", &root, err);
    if (status) return status;
    if (!json_object_is_type(root, json_type_object)) {
        json_object_put(root);
        return error_set(err, CALLA_E_ARGUMENT, "request: must be a JSON object with messages");
    }
    template_request request = {.thinking = true};
    bool generation_prompt = true;
    request.messages = json_object_object_get(root, "messages");
    request.tools = json_object_object_get(root, "tools");
    status = read_flag(root, "enable_thinking", &request.thinking, err);
    if (!status) status = read_flag(root, "preserve_thinking", &request.preserve_thinking, err);
    if (!status) status = read_flag(root, "add_vision_id", &request.vision_ids, err);
    if (!status) status = read_flag(root, "add_generation_prompt", &generation_prompt, err);
    request.no_generation_prompt = !generation_prompt;
    if (!status) status = text_render(text, &request, out, err);
    json_object_put(root);
    return status;
}

calla_status text_render(const calla_text *text, const template_request *request, calla_prompt *out, calla_error *err) {
    template_output printed;
    *out = (calla_prompt){0};
    calla_status status = template_render(text->template_kind, request, &printed, err);
    if (status) return status;
    const text_origin origin = {printed.runs, printed.n_runs};
    status = tokenizer_encode(text->tokenizer, printed.text.data, printed.text.n, origin, &out->ids, err);
    if (!status) {
        out->thinking = printed.thinking;
        out->n_text = printed.text.n;
        out->text = buffer_take(&printed.text);
        if (!out->text) status = error_nomem(err, "the rendered prompt");
    }
    template_output_free(&printed);
    if (status) calla_prompt_free(out);
    return status;
}

void calla_ids_free(calla_ids *ids) {
    if (!ids) return;
    mem_free(ids->ids);
    *ids = (calla_ids){0};
}

void calla_prompt_free(calla_prompt *prompt) {
    if (!prompt) return;
    mem_free(prompt->text);
    calla_ids_free(&prompt->ids);
    *prompt = (calla_prompt){0};
}

void calla_free(void *p) { mem_free(p); }

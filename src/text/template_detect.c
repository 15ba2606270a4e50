/* template_detect.c: which chat template a model folder holds, by hash.
 *
 * The renderer is code, so another template cannot be used: it is named in a warning and the newest known one takes its place.  The
 * hash (FNV-1a with the length) tells versions apart; it is no defence, since whoever can change the file can change the weights. */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "text/template.h"

static const struct {
    const char *name;
    template_kind kind;
    size_t n;
    uint64_t hash;
} known[] = {
    {"Qwen3.6", TEMPLATE_QWEN36, 7764, 0x8AE3A8BC6E68F114u},
    {"Qwen3.5", TEMPLATE_QWEN35, 7756, 0xF07C510F47FBACA0u},
};

static uint64_t hash_fnv1a(const char *s, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return h;
}

static template_kind identify(const char *path, const char *text, size_t n) {
    if (n && text[n - 1] == '\n') n--; /* jinja drops one newline at the end */
    const uint64_t hash = hash_fnv1a(text, n);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].n == n && known[i].hash == hash) return known[i].kind;
    log_warn("%s: an unknown chat template (%zu bytes, hash %016llx); the template of Qwen3.6 is used instead", path, n,
             (unsigned long long)hash);
    return TEMPLATE_QWEN36;
}

/* chat_template of a tokenizer_config.json; *found says whether there is one. */
static calla_status detect_in_config(const char *path, const char *data, size_t n, template_kind *out, bool *found, calla_error *err) {
    json_reader r;
    calla_status status = CALLA_OK;
    json_reader_init(&r, data, n);
    json_token token = json_next(&r);
    if (token != JSON_OBJECT_BEGIN && token != JSON_ERROR) status = error_set(err, CALLA_E_FORMAT, "%s: must hold a JSON object", path);
    while (!status && token != JSON_END) {
        token = json_next(&r);
        const bool here = token == JSON_KEY && r.n_text == strlen("chat_template") && !memcmp(r.text, "chat_template", r.n_text);
        if (token == JSON_KEY) {
            token = json_next(&r);
            if (here && token == JSON_STRING) {
                *out = identify(path, r.text, r.n_text);
                *found = true;
            }
            if (!json_skip(&r, token)) token = JSON_ERROR;
        }
        if (token == JSON_ERROR)
            status = r.scratch.failed ? error_nomem(err, path) : error_set(err, CALLA_E_FORMAT, "%s: %s", path, r.error);
    }
    json_reader_free(&r);
    return status;
}

static calla_status detect_in_files(const char *dir, const char *jinja, const char *config, template_kind *out, calla_error *err) {
    char *text = NULL;
    size_t n = 0;
    bool found = false;
    calla_status status = CALLA_OK;
    if (access(jinja, F_OK) == 0) {
        status = file_read(jinja, 1 << 20, &text, &n, err);
        if (!status) {
            *out = identify(jinja, text, n);
            found = true;
        }
    } else if (access(config, F_OK) == 0) {
        status = file_read(config, 16 << 20, &text, &n, err);
        if (!status) status = detect_in_config(config, text, n, out, &found, err);
    }
    if (!status && !found) log_warn("%s: holds no chat template; the template of Qwen3.6 is used", dir);
    mem_free(text);
    return status;
}

calla_status template_detect(const char *dir, template_kind *out, calla_error *err) {
    *out = TEMPLATE_QWEN36;
    char *jinja = path_join(dir, "chat_template.jinja"), *config = path_join(dir, "tokenizer_config.json");
    calla_status status;
    if (jinja && config)
        status = detect_in_files(dir, jinja, config, out, err);
    else
        status = error_nomem(err, "a path");
    mem_free(jinja);
    mem_free(config);
    return status;
}

/* tokenizer.c: text to ids and back, on what tokenizer_json.c read.  Order of work: added tokens on the raw text; NFC on each piece
 * between them; the pre-tokenizer's words; BPE on each word.  Nothing here keeps state between calls. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/buffer.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/tokenizer_impl.h"

calla_status tokenizer_open(const char *dir, tokenizer **out, calla_error *err) {
    *out = NULL;
    char *json_path = path_join(dir, "tokenizer.json"), *config_path = path_join(dir, "tokenizer_config.json");
    file_map json = {0}, config = {0};
    calla_status status = CALLA_OK;
    if (!json_path || !config_path) status = error_nomem(err, "a path");
    if (!status) status = file_map_open(json_path, &json, err);
    if (!status) status = file_map_open(config_path, &config, err);
    if (!status) {
        const tokenizer_file json_file = {(const char *)json.data, json.n, json_path};
        const tokenizer_file config_file = {(const char *)config.data, config.n, config_path};
        status = tokenizer_parse(&json_file, &config_file, out, err);
    }
    file_map_close(&json);
    file_map_close(&config);
    mem_free(json_path);
    mem_free(config_path);
    return status;
}

void tokenizer_close(tokenizer *t) {
    if (!t) return;
    vocabulary_free(&t->vocabulary);
    bpe_free(&t->bpe);
    added_free(&t->added);
    mem_free(t);
}

uint32_t tokenizer_vocabulary(const tokenizer *t) { return (uint32_t)t->vocabulary.n_ids; }

const char *tokenizer_bytes(const tokenizer *t, int32_t id, size_t *n) { return vocabulary_get(&t->vocabulary, id, n); }

static bool has_id(const tokenizer *t, int32_t id) { return id >= 0 && (size_t)id < t->vocabulary.n_ids; }

bool tokenizer_is_added(const tokenizer *t, int32_t id) { return has_id(t, id) && t->vocabulary.entries[id].added; }

bool tokenizer_is_special(const tokenizer *t, int32_t id) { return has_id(t, id) && t->vocabulary.entries[id].special; }

int32_t tokenizer_find_added(const tokenizer *t, const char *text) { return added_exact(&t->added, &t->vocabulary, text, strlen(text)); }

int32_t tokenizer_stop_id(const tokenizer *t) { return t->stop_id; }

/* ------------------------------------------------------------ encoding --------------------------------------------------- */

typedef struct encoder {
    const tokenizer *t;
    bpe_work work;
    buffer normalized;
    int32_t *ids; /* [n] */
    size_t n, cap;
} encoder;

static bool reserve_ids(encoder *e, size_t more) {
    return !mem_grow(&e->ids, &e->cap, e->n + more, sizeof *e->ids, SIZE_MAX / sizeof *e->ids);
}

/* Text between added tokens. */
static bool encode_piece(encoder *e, const char *s, size_t n) {
    if (!n) return true;
    const char *text;
    size_t n_text;
    if (!nfc_normalize(s, n, &e->normalized, &text, &n_text)) return false;
    for (size_t at = 0; at < n_text;) {
        const size_t length = pretokenize_next(e->t->rule, text + at, n_text - at);
        if (!reserve_ids(e, length)) return false;
        const size_t n_ids = bpe_encode(&e->t->bpe, &e->work, (const unsigned char *)text + at, length, e->ids + e->n);
        if (!n_ids) return false;
        e->n += n_ids;
        at += length;
    }
    return true;
}

/* Stretches of a text that come from the template. */
typedef struct stretches {
    const text_origin *origin;
    size_t n;     /* bytes of the text */
    size_t i, at; /* next run, and where it begins */
} stretches;

/* The next one, as long as possible: runs of no bytes do not cut it. */
static bool next_stretch(stretches *s, size_t *begin, size_t *end) {
    if (!s->origin->runs) {
        *begin = s->at;
        *end = s->at = s->n;
        return *begin < *end;
    }
    const size_t *runs = s->origin->runs, n_runs = s->origin->n_runs;
    while (s->i < n_runs && (s->i % 2 || !runs[s->i])) s->at += runs[s->i++];
    *begin = s->at;
    while (s->i < n_runs && (s->i % 2 == 0 || !runs[s->i])) s->at += runs[s->i++];
    *end = s->at;
    return *begin < *end;
}

static bool encode_text(encoder *e, const char *s, size_t n, const text_origin *origin) {
    stretches template_text = {.origin = origin, .n = n};
    size_t done = 0, begin, end, at = 0, length = 0;
    while (next_stretch(&template_text, &begin, &end)) {
        for (int32_t id; (id = added_find(&e->t->added, &e->t->vocabulary, s, end, begin, &at, &length)) >= 0; begin = done) {
            if (!encode_piece(e, s + done, at - done) || !reserve_ids(e, 1)) return false;
            e->ids[e->n++] = id;
            done = at + length;
        }
    }
    return encode_piece(e, s + done, n - done);
}

static bool origin_fits(const text_origin *origin, size_t n) {
    if (!origin->runs) return true;
    size_t sum = 0;
    for (size_t i = 0; i < origin->n_runs; i++) {
        if (__builtin_add_overflow(sum, origin->runs[i], &sum)) return false;
    }
    return sum == n;
}

calla_status tokenizer_encode(const tokenizer *t, const char *utf8, size_t n, text_origin origin, calla_ids *out, calla_error *err) {
    *out = (calla_ids){0};
    const size_t valid = utf8_valid(utf8, n);
    if (valid < n) return error_set(err, CALLA_E_FORMAT, "the text is not UTF-8 at byte %zu: send valid UTF-8", valid);
    if (!origin_fits(&origin, n)) return error_set(err, CALLA_E_ARGUMENT, "the origin runs do not add up to the text's %zu bytes", n);
    encoder e = {.t = t};
    const bool ok = encode_text(&e, utf8, n, &origin);
    bpe_work_free(&e.work);
    buffer_free(&e.normalized);
    if (!ok) {
        mem_free(e.ids);
        return error_nomem(err, "token ids");
    }
    int32_t *fitted = e.n ? mem_realloc(e.ids, e.n * sizeof *e.ids) : NULL; /* there was one id's room for each byte */
    if (!e.n) mem_free(e.ids);
    *out = (calla_ids){.ids = fitted || !e.n ? fitted : e.ids, .n = e.n};
    return CALLA_OK;
}

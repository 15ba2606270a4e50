/* tokenizer_json.c: reads tokenizer.json and tokenizer_config.json.
 *
 * One kind of tokenizer is implemented: NFC, one of two split regexes, byte-level BPE.  The tables below say what each field of the
 * files must be for that; everything else is refused by name, since it would change ids without a sign.  (tokenizer_config.json is full
 * of other things, so there only what is named must fit.) */
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "text/tokenizer_load.h"

#define FIELDS(where, fields) {where, fields, COUNT(fields), false}

/* ---------------------------------------------------- small parts of tokenizer.json -------------------------------------- */

static calla_status load_regex(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_STRING) return json_unexpected(s, token, "the pre-tokenizer's Regex", "a string");
    if (!pretokenize_find_rule(s->reader.text, s->reader.n_text, &l->t->rule))
        return error_set(s->err, CALLA_E_UNSUPPORTED,
                         "%s: the pre-tokenizer's regex is not one that calla knows: %.*s … : use the model's own file", s->file,
                         (int)json_cut(s->reader.text, s->reader.n_text, 300), s->reader.text);
    if (l->t->rule == PRETOKENIZE_NO_MARKS)
        log_warn(
            "%s: this is the older split pattern, without \\p{M}: text with combining marks gets other tokens than from the official file",
            s->file);
    return CALLA_OK;
}

static calla_status load_pattern(void *user, json_source *s, json_token token) {
    static const json_field fields[] = {{"Regex", true, NULL, load_regex}};
    static const json_fields object = FIELDS("pre_tokenizer.pretokenizers[0].pattern", fields);
    return json_read_fields(&object, user, s, token);
}

static calla_status load_pretokenizers(void *user, json_source *s, json_token token) {
    static const json_field split_fields[] = {
        {"type", true, "\"Split\"", NULL},
        {"pattern", true, NULL, load_pattern},
        {"behavior", true, "\"Isolated\"", NULL},
        {"invert", false, "false", NULL},
    };
    static const json_field byte_level_fields[] = {
        {"type", true, "\"ByteLevel\"", NULL},
        {"add_prefix_space", true, "false", NULL},
        {"use_regex", true, "false", NULL},
        {"trim_offsets", false, NULL, NULL}, /* concerns offsets, which calla does not give */
    };
    static const json_fields objects[] = {
        FIELDS("pre_tokenizer.pretokenizers[0]", split_fields),
        FIELDS("pre_tokenizer.pretokenizers[1]", byte_level_fields),
    };
    if (token != JSON_ARRAY_BEGIN) return json_unexpected(s, token, "pre_tokenizer.pretokenizers", "an array");
    for (int i = 0; i < 2; i++) {
        const calla_status status = json_read_fields(&objects[i], user, s, json_next(&s->reader));
        if (status) return status;
    }
    token = json_next(&s->reader);
    return token == JSON_ARRAY_END ? CALLA_OK : json_unexpected(s, token, "pre_tokenizer.pretokenizers", "a Split and a ByteLevel");
}

static calla_status load_pretokenizer(void *user, json_source *s, json_token token) {
    static const json_field fields[] = {{"type", true, "\"Sequence\"", NULL}, {"pretokenizers", true, NULL, load_pretokenizers}};
    static const json_fields object = FIELDS("pre_tokenizer", fields);
    return json_read_fields(&object, user, s, token);
}

static calla_status load_normalizer(void *user, json_source *s, json_token token) {
    static const json_field fields[] = {{"type", true, "\"NFC\"", NULL}};
    static const json_fields object = FIELDS("normalizer", fields);
    return json_read_fields(&object, user, s, token);
}

/* Decoder and post-processor: ByteLevel, whose options neither change bytes nor ids there. */
static const json_field byte_level_fields[] = {
    {"type", true, "\"ByteLevel\"", NULL},
    {"add_prefix_space", false, NULL, NULL},
    {"trim_offsets", false, NULL, NULL},
    {"use_regex", false, NULL, NULL},
};

static calla_status load_post_processor(void *user, json_source *s, json_token token) {
    static const json_fields object = FIELDS("post_processor", byte_level_fields);
    return token == JSON_NULL ? CALLA_OK : json_read_fields(&object, user, s, token);
}

static calla_status load_decoder(void *user, json_source *s, json_token token) {
    static const json_fields object = FIELDS("decoder", byte_level_fields);
    return json_read_fields(&object, user, s, token);
}

static calla_status load_model(void *user, json_source *s, json_token token) {
    static const json_field fields[] = {
        {"type", true, "\"BPE\"", NULL},
        {"dropout", false, "null", NULL},
        {"unk_token", false, "null", NULL},
        {"continuing_subword_prefix", false, "null|\"\"", NULL},
        {"end_of_word_suffix", false, "null|\"\"", NULL},
        {"fuse_unk", false, NULL, NULL}, /* every byte has a token: nothing is unknown */
        {"byte_fallback", false, "false", NULL},
        {"ignore_merges", false, "false", NULL},
        {"vocab", true, NULL, load_vocabulary},
        {"merges", true, NULL, load_merges},
    };
    static const json_fields object = FIELDS("model", fields);
    return json_read_fields(&object, user, s, token);
}

/* ------------------------------------------------------------ the files -------------------------------------------------- */

static const json_field json_file_fields[] = {
    {"version", false, NULL, NULL},
    {"truncation", false, "null", NULL},
    {"padding", false, "null", NULL},
    {"added_tokens", false, NULL, load_added_array},
    {"normalizer", true, NULL, load_normalizer},
    {"pre_tokenizer", true, NULL, load_pretokenizer},
    {"post_processor", false, NULL, load_post_processor},
    {"decoder", true, NULL, load_decoder},
    {"model", true, NULL, load_model},
};
static const json_fields json_file = FIELDS("", json_file_fields);

static calla_status load_stop_content(void *user, json_source *s, json_token token) {
    loader *l = user;
    if (token != JSON_STRING || !s->reader.n_text) return json_unexpected(s, token, "eos_token", "a token's text");
    buffer_append(&l->stop, s->reader.text, s->reader.n_text);
    return l->stop.failed ? error_nomem(s->err, "eos_token") : CALLA_OK;
}

/* "<|im_end|>", or the same as an added token's object. */
static calla_status load_stop(void *user, json_source *s, json_token token) {
    static const json_field fields[] = {{"content", true, NULL, load_stop_content}};
    static const json_fields object = {"eos_token", fields, COUNT(fields), true};
    if (token == JSON_NULL) return CALLA_OK;
    return token == JSON_STRING ? load_stop_content(user, s, token) : json_read_fields(&object, user, s, token);
}

static const json_field config_file_fields[] = {
    {"added_tokens_decoder", false, NULL, load_added_decoder},
    {"eos_token", false, NULL, load_stop},
    {"add_prefix_space", false, "false|null", NULL},
    {"add_bos_token", false, "false|null", NULL},
    {"add_eos_token", false, "false|null", NULL},
    {"split_special_tokens", false, "false|null", NULL},
    {"clean_up_tokenization_spaces", false, "false|null", NULL},
};
static const json_fields config_file = {"", config_file_fields, COUNT(config_file_fields), true};

static calla_status read_file(loader *l, const json_fields *fields, json_source *s) {
    calla_status status = json_read_fields(fields, l, s, json_next(&s->reader));
    if (status) return status;
    const json_token token = json_next(&s->reader);
    return token == JSON_END ? CALLA_OK : json_unexpected(s, token, "the file", "a single object");
}

static calla_status load_json(loader *l, json_source *s) {
    calla_status status = read_file(l, &json_file, s);
    if (!status) status = load_finish_model(l, s);
    return status ? status : load_finish_added(l, s);
}

static calla_status load_config(loader *l, json_source *s) {
    calla_status status = read_file(l, &config_file, s);
    if (!status) status = load_finish_added(l, s);
    if (status || !l->stop.n) return status;
    l->t->stop_id = vocabulary_index_find(&l->added, l->stop.data, l->stop.n);
    if (l->t->stop_id >= 0) return CALLA_OK;
    return error_set(s->err, CALLA_E_FORMAT, "%s: eos_token \"%.*s\" is not among the added tokens", s->file,
                     QUOTE(l->stop.data, l->stop.n));
}

static calla_status load_file(loader *l, const tokenizer_file *file, calla_status (*load)(loader *, json_source *), calla_error *err) {
    json_source s = {.file = file->name, .err = err};
    json_reader_init(&s.reader, file->data, file->n);
    const calla_status status = load(l, &s);
    json_reader_free(&s.reader);
    return status;
}

static void free_loader(loader *l) {
    vocabulary_index_free(&l->base);
    vocabulary_index_free(&l->added);
    buffer_free(&l->word);
    buffer_free(&l->contents);
    buffer_free(&l->stop);
    mem_free(l->merges);
    mem_free(l->entries);
}

calla_status tokenizer_parse(const tokenizer_file *json, const tokenizer_file *config, tokenizer **out, calla_error *err) {
    *out = NULL;
    tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t) return error_nomem(err, "the tokenizer");
    t->stop_id = -1;
    loader l = {.t = t, .base = {.vocabulary = &t->vocabulary}, .added = {.vocabulary = &t->vocabulary}};
    byte_level_init(&l.alphabet);
    calla_status status = load_file(&l, json, load_json, err);
    if (!status && config) status = load_file(&l, config, load_config, err);
    free_loader(&l);
    if (status) {
        tokenizer_close(t);
        return status;
    }
    added_seal(&t->added, &t->vocabulary);
    *out = t;
    return CALLA_OK;
}

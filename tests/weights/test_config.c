/* test_config.c: config.json and generation_config.json: what is read from the real ones, and every rule broken once. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/arrays.h"
#include "support/temp_dir.h"
#include "weights/config.h"

static json_object *base; /* tiny-a's config.json, which is changed one field at a time */

/* Sets the field at a dotted path below the top level or text_config; json NULL removes it. */
static void set(json_object *root, const char *path, const char *json) {
    char part[128];
    for (const char *dot; (dot = strchr(path, '.')) && strncmp(path, "language_model", 14) != 0; path = dot + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        root = json_object_object_get(root, part);
        assert_non_null(root);
    }
    if (!json) {
        json_object_object_del(root, path);
        return;
    }
    json_object *value = json_tokener_parse(json);
    assert_true(value || !strcmp(json, "null"));
    json_object_object_add(root, path, value);
}

typedef struct change {
    const char *path, *json;
} change;

static calla_status parse_changed(const change *changes, size_t n, model_config *out, calla_error *err) {
    json_object *copy = NULL;
    assert_int_equal(json_object_deep_copy(base, &copy, NULL), 0);
    for (size_t i = 0; i < n; i++) set(copy, changes[i].path, changes[i].json);
    const char *text = json_object_to_json_string(copy);
    *err = (calla_error){0};
    const calla_status status = config_parse(text, strlen(text), "config.json", out, err);
    json_object_put(copy);
    return status;
}

static void refused(calla_status status, const char *path, const char *json, const char *field, const char *rule) {
    model_config c;
    calla_error err;
    const change one = {path, json};
    const calla_status got = parse_changed(&one, 1, &c, &err);
    if (got != status)
        fail_msg("%s = %s: expected %s, got %s: %s", path, json, calla_status_name(status), calla_status_name(got), err.message);
    if (!strstr(err.message, "config.json") || !strstr(err.message, field) || !strstr(err.message, rule))
        fail_msg("expected '%s' and '%s' in: %s", field, rule, err.message);
    assert_null(c.quant.overrides);
}

static void accepted(const change *changes, size_t n, model_config *c) {
    calla_error err;
    if (parse_changed(changes, n, c, &err)) fail_msg("%s: %s", changes->path, err.message);
}

static void accepted_one(const char *path, const char *json) {
    model_config c;
    const change one = {path, json};
    accepted(&one, 1, &c);
    config_free(&c);
}

static void test_real(void **state) {
    (void)state;
    model_config c;
    calla_error err;
    size_t n;
    char *text = slurp_file(test_data("weights"), "real-config.json", &n);
    if (config_parse(text, n, "config.json", &c, &err)) fail_msg("%s", err.message);
    free(text);
    const model_shape *s = &c.shape;
    const uint32_t got[] = {s->hidden,        s->layers,          s->vocabulary,       s->attention_heads, s->kv_heads,
                            s->gdn_key_heads, s->gdn_value_heads, s->experts,          s->top_k,           s->expert_width,
                            s->shared_width,  s->max_context,     s->attention_layers, s->gdn_layers};
    const uint32_t want[] = {2048, 40, 248320, 16, 2, 16, 32, 256, 8, 512, 512, 262144, 10, 30};
    assert_memory_equal(got, want, sizeof want);
    assert_true(s->norm_eps == 1e-6f && s->rope_theta == 1e7);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(s->is_attention[i], i % 4 == 3);
        assert_int_equal(s->kind_index[i], i % 4 == 3 ? i / 4 : i - i / 4);
    }
    assert_int_equal(c.quant.n, 80);
    assert_int_equal(c.quant.rule.bits, 4);
    assert_int_equal(c.quant.rule.group, 64);
    assert_int_equal(quantization_find(&c.quant, "language_model.model.layers.39.mlp.gate")->rule.bits, 8);
    assert_null(quantization_find(&c.quant, "language_model.model.layers.40.mlp.gate"));
    sampling_defaults sampling;
    text = slurp_file(test_data("weights"), "real-generation_config.json", &n);
    if (generation_parse(text, n, "generation_config.json", s->vocabulary, &sampling, &c.stop, &err)) fail_msg("%s", err.message);
    free(text);
    assert_true(sampling.do_sample && sampling.temperature == 1 && sampling.top_k == 20 && sampling.top_p == 0.95f);
    assert_true(sampling.min_p == 0 && sampling.repetition_penalty == 1 && sampling.presence_penalty == 0 &&
                sampling.frequency_penalty == 0);
    assert_int_equal(c.stop.n, 2);
    assert_int_equal(c.stop.ids[0], 248046);
    assert_int_equal(c.stop.ids[1], 248044);
    config_free(&c);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *field;
        const char *bad[6];
    } cases[] = {
        {"hidden_size", {"0", "-1", "65537", "\"128\"", "128.0", NULL}},
        {"num_hidden_layers", {"0", "257", "18446744073709551615", "4.5", "null", NULL}},
        {"vocab_size", {"0", "16777217", "9223372036854775807", "[320]", NULL}},
        {"num_attention_heads", {"0", "1025", "true", NULL}},
        {"num_key_value_heads", {"0", "-9223372036854775808", "1e9", NULL}},
        {"linear_num_key_heads", {"0", "4294967297", NULL}},
        {"linear_num_value_heads", {"0", "2000", NULL}},
        {"num_experts", {"0", "4097", NULL}},
        {"num_experts_per_tok", {"0", "65", NULL}},
        {"moe_intermediate_size", {"0", "65537", NULL}},
        {"shared_expert_intermediate_size", {"0", "65537", NULL}},
        {"max_position_embeddings", {"0", "16777217", NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[96];
        snprintf(path, sizeof path, "text_config.%s", cases[i].field);
        for (size_t k = 0; cases[i].bad[k]; k++) refused(CALLA_E_FORMAT, path, cases[i].bad[k], path, "expected a whole number from");
        refused(CALLA_E_FORMAT, path, NULL, path, "is missing");
    }
    refused(CALLA_E_FORMAT, "text_config.rms_norm_eps", "0", "text_config.rms_norm_eps", "expected a number");
    refused(CALLA_E_FORMAT, "text_config.rms_norm_eps", "1", "text_config.rms_norm_eps", "expected a number");
    refused(CALLA_E_FORMAT, "text_config.rms_norm_eps", "\"x\"", "text_config.rms_norm_eps", "expected a number");
    refused(CALLA_E_FORMAT, "text_config.rms_norm_eps", NULL, "text_config.rms_norm_eps", "is missing");
}

static void test_divisibility(void **state) {
    (void)state;
    model_config c;
    calla_error err;
    const change heads[] = {{"text_config.num_attention_heads", "3"}, {"text_config.num_key_value_heads", "2"}};
    assert_int_equal(parse_changed(heads, 2, &c, &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "num_attention_heads is 3, expected a multiple of num_key_value_heads"));
    const change values[] = {{"text_config.linear_num_value_heads", "3"}, {"text_config.linear_num_key_heads", "2"}};
    assert_int_equal(parse_changed(values, 2, &c, &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "linear_num_value_heads is 3, expected a multiple of linear_num_key_heads"));
    refused(CALLA_E_FORMAT, "text_config.num_experts_per_tok", "9", "num_experts_per_tok is 9", "at most num_experts");
}

static void test_variants(void **state) {
    (void)state;
    static const struct {
        const char *path, *json, *expected;
    } cases[] = {
        {"model_type", "\"llama\"", "\"qwen3_5_moe\""},
        {"tie_word_embeddings", "true", "false"},
        {"text_config.model_type", "\"qwen3_5_text\"", "\"qwen3_5_moe_text\""},
        {"text_config.tie_word_embeddings", "true", "false"},
        {"text_config.head_dim", "128", "256"},
        {"text_config.head_dim", NULL, "256"},
        {"text_config.linear_key_head_dim", "64", "128"},
        {"text_config.linear_value_head_dim", "256", "128"},
        {"text_config.linear_conv_kernel_dim", "3", "4"},
        {"text_config.hidden_act", "\"gelu\"", "\"silu\""},
        {"text_config.attention_bias", "true", "false"},
        {"text_config.attn_output_gate", "false", "true"},
        {"text_config.norm_topk_prob", "false", "true"},
        {"text_config.mlp_only_layers", "[0]", "none"},
        {"text_config.decoder_sparse_step", "2", "1"},
        {"text_config.partial_rotary_factor", "0.5", "0.25"},
        {"text_config.rope_parameters.partial_rotary_factor", "1.0", "0.25"},
        {"text_config.rope_parameters.rope_type", "\"yarn\"", "\"default\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(CALLA_E_UNSUPPORTED, cases[i].path, cases[i].json, cases[i].path, cases[i].expected);
    refused(CALLA_E_FORMAT, "text_config.attention_bias", "0", "attention_bias is 0", "true or false");
    refused(CALLA_E_FORMAT, "text_config.hidden_act", "3", "hidden_act is 3", "silu");
    refused(CALLA_E_FORMAT, "text_config", NULL, "text_config is missing", "object");
    refused(CALLA_E_FORMAT, "text_config", "[]", "text_config is []", "object");
    refused(CALLA_E_FORMAT, "text_config.rope_parameters", "[]", "rope_parameters", "object");
    refused(CALLA_E_FORMAT, "text_config.rope_parameters.rope_theta", "0", "text_config.rope_parameters.rope_theta is 0", "a number");
    refused(CALLA_E_FORMAT, "text_config.rope_parameters.rope_theta", "1e400", "rope_theta", "a number");
    refused(CALLA_E_FORMAT, "text_config.rope_parameters.rope_theta", NULL, "rope_theta is missing", "a number");
    refused(CALLA_E_FORMAT, "text_config.rope_parameters", NULL, "text_config.rope_theta is missing", "a number");
    /* Absent means the architecture's own, and what does not matter is not looked at. */
    accepted_one("text_config.norm_topk_prob", NULL);
    accepted_one("text_config.hidden_act", NULL);
    accepted_one("text_config.attention_bias", "null");
    accepted_one("text_config.rope_parameters.partial_rotary_factor", NULL);
    accepted_one("text_config.rope_parameters.rope_type", NULL);
    accepted_one("text_config.mlp_only_layers", "[]");
    accepted_one("text_config.decoder_sparse_step", "1");
    accepted_one("text_config.attention_dropout", "0.5");
    accepted_one("vision_config", "{\"depth\":27}");
}

/* Older files keep the rotary parameters beside the other fields. */
static void test_flat_rope(void **state) {
    (void)state;
    model_config c;
    calla_error err;
    const change flat[] = {{"text_config.rope_parameters", NULL},
                           {"text_config.rope_theta", "1000000"},
                           {"text_config.partial_rotary_factor", "0.25"},
                           {"text_config.rope_scaling", "{\"type\":\"yarn\",\"factor\":4}"}};
    accepted(flat, 3, &c);
    assert_true(c.shape.rope_theta == 1e6);
    config_free(&c);
    assert_int_equal(parse_changed(flat, 4, &c, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "text_config.rope_scaling"));
}

static void test_layer_kinds(void **state) {
    (void)state;
    model_config c;
    static const char kinds[] = "[\"full_attention\",\"linear_attention\",\"full_attention\",\"linear_attention\"]";
    const change free_order = {"text_config.layer_types", kinds};
    accepted(&free_order, 1, &c);
    assert_true(c.shape.is_attention[0] && !c.shape.is_attention[1] && c.shape.is_attention[2]);
    assert_int_equal(c.shape.kind_index[2], 1);
    assert_int_equal(c.shape.kind_index[3], 1);
    config_free(&c);
    const change interval[] = {{"text_config.layer_types", NULL}, {"text_config.full_attention_interval", "2"}};
    accepted(interval, 2, &c);
    assert_int_equal(c.shape.attention_layers, 2);
    assert_true(!c.shape.is_attention[0] && c.shape.is_attention[1] && c.shape.is_attention[3]);
    config_free(&c);
    accepted_one("text_config.full_attention_interval", "4");
    refused(CALLA_E_FORMAT, "text_config.full_attention_interval", "3", "layer_types[2]", "full_attention_interval 3 says otherwise");
    refused(CALLA_E_FORMAT, "text_config.full_attention_interval", "0", "full_attention_interval is 0", "from 1");
    refused(CALLA_E_FORMAT, "text_config.layer_types", NULL, "layer_types is missing", "list");
    refused(CALLA_E_FORMAT, "text_config.layer_types", "[\"full_attention\"]", "layer_types", "one entry for each");
    refused(CALLA_E_FORMAT, "text_config.layer_types", "{}", "layer_types", "one entry for each");
    refused(CALLA_E_UNSUPPORTED, "text_config.layer_types",
            "[\"linear_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]", "layer_types[1] is \"sliding_attention\"",
            "linear_attention");
    refused(CALLA_E_UNSUPPORTED, "text_config.layer_types", "[1,2,3,4]", "layer_types[0] is 1", "linear_attention");
    refused(CALLA_E_UNSUPPORTED, "text_config.layer_types",
            "[\"linear_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\"]", "layer_types",
            "each of the two kinds");
}

static void test_quantization(void **state) {
    (void)state;
    model_config c;
    calla_error err;
    static const struct {
        calla_status status;
        const char *json, *field, *rule;
    } cases[] = {
        {CALLA_E_UNSUPPORTED, "{\"bits\":3,\"group_size\":64}", "quantization.bits is 3", "4 or 8"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":6,\"group_size\":64}", "quantization.bits is 6", "4 or 8"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":16}", "quantization.group_size is 16", "32, 64 or 128"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}", "quantization.mode is \"mxfp4\"", "affine"},
        {CALLA_E_FORMAT, "{\"group_size\":64}", "quantization.bits is missing", "whole number"},
        {CALLA_E_FORMAT, "{\"bits\":4}", "quantization.group_size is missing", "whole number"},
        {CALLA_E_FORMAT, "{\"bits\":0,\"group_size\":64}", "quantization.bits is 0", "whole number"},
        {CALLA_E_FORMAT, "{\"bits\":\"4\",\"group_size\":64}", "quantization.bits is \"4\"", "whole number"},
        {CALLA_E_FORMAT, "[]", "quantization is []", "object"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"quant_method\":\"fp8\"}", "quantization.quant_method is \"fp8\"", "affine"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"zero_point\":7}", "zero_point", "does not know"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"a.b\":{\"bits\":5,\"group_size\":64}}", "quantization.a.b.bits is 5",
         "4 or 8"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"a.b\":{\"bits\":8,\"group_size\":256}}", "quantization.a.b.group_size",
         "128"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":8,\"group_size\":64,\"mode\":\"nvfp4\"}}",
         "quantization.a.mode", "affine"},
        {CALLA_E_UNSUPPORTED, "{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":8,\"group_size\":64,\"x\":1}}", "\"x\"", "does not know"},
        {CALLA_E_FORMAT, "{\"bits\":4,\"group_size\":64,\"\":false}", "quantization", "name"},
        {CALLA_E_FORMAT, "{\"bits\":4,\"group_size\":64,\"\\u001b[2J\":false}", "quantization", "control character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const change only[] = {{"quantization_config", NULL}, {"quantization", cases[i].json}};
        const calla_status got = parse_changed(only, 2, &c, &err);
        if (got != cases[i].status) fail_msg("%s: %s: %s", cases[i].json, calla_status_name(got), err.message);
        if (!strstr(err.message, cases[i].field) || !strstr(err.message, cases[i].rule))
            fail_msg("expected '%s' and '%s' in: %s", cases[i].field, cases[i].rule, err.message);
    }
    refused(CALLA_E_FORMAT, "quantization_config", "{\"bits\":8,\"group_size\":64}", "quantization and quantization_config differ",
            "remove one");
    /* Either name alone, in any order of keys, or none. */
    accepted_one("quantization", NULL);
    accepted_one("quantization_config", NULL);
    const change none[] = {{"quantization", NULL}, {"quantization_config", NULL}};
    accepted(none, 2, &c);
    assert_false(c.quant.present);
    config_free(&c);
    const change kinds[] = {{"quantization_config", NULL},
                            {"quantization",
                             "{\"m.b\":false,\"m.a\":true,\"m.c\":{\"group_size\":128,\"bits\":8},\"group_size\":32,\"bits\":4,"
                             "\"nothing\":null}"}};
    accepted(kinds, 2, &c);
    assert_int_equal(c.quant.n, 3);
    assert_int_equal(quantization_find(&c.quant, "m.a")->rule.group, 32);
    assert_int_equal(quantization_find(&c.quant, "m.b")->rule.bits, 16);
    assert_int_equal(quantization_find(&c.quant, "m.c")->rule.group, 128);
    config_free(&c);
}

static void test_stop_ids(void **state) {
    (void)state;
    model_config c;
    calla_error err;
    const change both[] = {{"eos_token_id", "[7,2,7]"}, {"text_config.eos_token_id", "9"}};
    accepted(both, 2, &c);
    assert_int_equal(c.stop.n, 3);
    assert_int_equal(c.stop.ids[0], 7);
    assert_int_equal(c.stop.ids[1], 2);
    assert_int_equal(c.stop.ids[2], 9);
    sampling_defaults s;
    static const char generation[] = "{\"eos_token_id\":[9,319]}";
    assert_int_equal(generation_parse(generation, sizeof generation - 1, "g", 320, &s, &c.stop, &err), CALLA_OK);
    assert_int_equal(c.stop.n, 4);
    assert_int_equal(c.stop.ids[3], 319);
    config_free(&c);
    const char *bad[] = {"320", "-1", "[1,320]", "\"2\"", "[null]", "2.0", "{}", "[[2]]", "9223372036854775807"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(CALLA_E_FORMAT, "eos_token_id", bad[i], "eos_token_id", "token ids below vocab_size");
        refused(CALLA_E_FORMAT, "text_config.eos_token_id", bad[i], "text_config.eos_token_id", "token ids below vocab_size");
    }
    refused(CALLA_E_LIMIT, "eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "eos_token_id", "more than 16");
    accepted_one("eos_token_id", "null");
    accepted_one("eos_token_id", "[]");
}

static void test_generation(void **state) {
    (void)state;
    static const char all[] =
        "{\"do_sample\":true,\"temperature\":0.5,\"top_k\":3,\"top_p\":0.75,\"min_p\":0.125,\"repetition_penalty\":1.5,"
        "\"presence_penalty\":-1.5,\"frequency_penalty\":0.25,\"transformers_version\":\"5\",\"eos_token_id\":null}";
    sampling_defaults s;
    stop_list stop = {0};
    calla_error err;
    assert_int_equal(generation_parse(all, sizeof all - 1, "g.json", 320, &s, &stop, &err), CALLA_OK);
    assert_true(s.do_sample && s.temperature == 0.5f && s.top_k == 3 && s.top_p == 0.75f && s.min_p == 0.125f);
    assert_true(s.repetition_penalty == 1.5f && s.presence_penalty == -1.5f && s.frequency_penalty == 0.25f);
    assert_int_equal(generation_parse("{}", 2, "g.json", 320, &s, &stop, &err), CALLA_OK);
    assert_true(!s.do_sample && s.temperature == 1 && s.top_k == 0 && s.top_p == 1 && s.min_p == 0 && s.repetition_penalty == 1);
    assert_int_equal(stop.n, 0);
    const char *bad[] = {"{\"temperature\":-1}",
                         "{\"temperature\":\"1\"}",
                         "{\"top_k\":-1}",
                         "{\"top_k\":1.5}",
                         "{\"top_p\":1.5}",
                         "{\"min_p\":-0.1}",
                         "{\"do_sample\":1}",
                         "{\"repetition_penalty\":0}",
                         "{\"presence_penalty\":1e9}",
                         "{\"eos_token_id\":320}",
                         "{\"temperature\":1e999}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char field[32];
        snprintf(field, sizeof field, "%.*s", (int)strcspn(bad[i] + 2, "\""), bad[i] + 2);
        assert_int_equal(generation_parse(bad[i], strlen(bad[i]), "g.json", 320, &s, &stop, &err), CALLA_E_FORMAT);
        if (!strstr(err.message, "g.json: ") || !strstr(err.message, field)) fail_msg("%s", err.message);
    }
    assert_int_equal(generation_parse("[]", 2, "g.json", 320, &s, &stop, &err), CALLA_E_FORMAT);
    assert_int_equal(generation_parse("", 0, "g.json", 320, &s, &stop, &err), CALLA_E_FORMAT);
}

/* Cut at any byte. */
static void test_cut(void **state) {
    (void)state;
    const char *text = json_object_to_json_string_ext(base, JSON_C_TO_STRING_PLAIN);
    const size_t n = strlen(text);
    for (size_t keep = 0; keep < n; keep++) {
        model_config c;
        calla_error err;
        char *part = malloc(keep ? keep : 1);
        memcpy(part, text, keep);
        assert_int_equal(config_parse(part, keep, "config.json", &c, &err), CALLA_E_FORMAT);
        assert_non_null(strstr(err.message, "config.json"));
        free(part);
    }
}

static int open_base(void **state) {
    (void)state;
    char *text = slurp_file(test_data("checkpoints/tiny-a"), "config.json", NULL);
    base = json_tokener_parse(text);
    free(text);
    return base ? 0 : -1;
}

static int close_base(void **state) {
    (void)state;
    json_object_put(base);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real),         cmocka_unit_test(test_numbers),   cmocka_unit_test(test_divisibility),
        cmocka_unit_test(test_variants),     cmocka_unit_test(test_flat_rope), cmocka_unit_test(test_layer_kinds),
        cmocka_unit_test(test_quantization), cmocka_unit_test(test_stop_ids),  cmocka_unit_test(test_generation),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, open_base, close_base);
}

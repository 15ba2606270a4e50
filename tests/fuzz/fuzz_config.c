/* fuzz_config.c: config.json and generation_config.json on any bytes.  What is accepted must keep the promises that the rest of calla
 * computes with: nothing is 0, nothing past its limit, everything divides. */
#include <stdlib.h>
#include <string.h>

#include "weights/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool holds) {
    if (!holds) abort();
}

static bool is_quant_rule(quant_rule r) {
    return r.bits == 16 ? r.group == 0 : (r.bits == 4 || r.bits == 8) && (r.group == 32 || r.group == 64 || r.group == 128);
}

static void check_config(const model_config *c) {
    const model_shape *s = &c->shape;
    check(s->hidden && s->layers && s->layers <= MAX_LAYERS && s->vocabulary && s->vocabulary <= INT32_MAX);
    check(s->kv_heads && s->attention_heads && s->attention_heads % s->kv_heads == 0);
    check(s->gdn_key_heads && s->gdn_value_heads && s->gdn_value_heads % s->gdn_key_heads == 0);
    check(s->experts && s->top_k && s->top_k <= s->experts && s->top_k <= MAX_TOP_K && s->expert_width && s->shared_width &&
          s->max_context);
    check(s->norm_eps > 0 && s->norm_eps < 1 && s->rope_theta > 1 && s->rope_theta <= 1e12);
    check(s->attention_layers && s->gdn_layers && s->attention_layers + s->gdn_layers == s->layers);
    check(c->stop.n <= MAX_STOP_IDS);
    for (uint32_t i = 0; i < c->stop.n; i++) check(c->stop.ids[i] >= 0 && (uint32_t)c->stop.ids[i] < s->vocabulary);
    if (c->quant.present) check(is_quant_rule(c->quant.rule) && c->quant.rule.bits != 16);
    for (size_t i = 0; i < c->quant.n; i++) {
        check(is_quant_rule(c->quant.overrides[i].rule));
        check(quantization_find(&c->quant, c->quant.overrides[i].name) != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    model_config c;
    sampling_defaults s;
    stop_list stop = {0};
    calla_error err = {0};
    if (config_parse((const char *)data, n, "c", &c, &err))
        check(err.message[0] && !c.quant.overrides);
    else
        check_config(&c);
    config_free(&c);
    if (!generation_parse((const char *)data, n, "g", 1000, &s, &stop, &err))
        check(s.temperature >= 0 && s.top_p >= 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.repetition_penalty > 0 &&
              stop.n <= MAX_STOP_IDS);
    return 0;
}

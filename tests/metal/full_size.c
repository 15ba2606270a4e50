#include "metal/full_size.h"

#include <stdlib.h>

static weight_mat mat(uint32_t count, uint32_t rows, uint32_t cols, uint32_t bits) {
    return (weight_mat){.count = count, .rows = rows, .cols = cols, .bits = bits, .group = 64};
}

weights full_size(uint32_t layers, const bool *is_attention) {
    weights w = {.shape = {.hidden = 2048,
                           .layers = layers,
                           .vocabulary = 248320,
                           .attention_heads = 16,
                           .kv_heads = 2,
                           .gdn_key_heads = 16,
                           .gdn_value_heads = 32,
                           .experts = 256,
                           .top_k = 8,
                           .expert_width = 512,
                           .shared_width = 512,
                           .max_context = 262144,
                           .norm_eps = 1e-6f,
                           .rope_theta = 1e7}};
    model_shape *s = &w.shape;
    w.layer = calloc(s->layers, sizeof *w.layer);
    if (!w.layer) abort();
    w.embed = w.lm_head = mat(1, s->vocabulary, s->hidden, 4);
    for (uint32_t i = 0; i < s->layers; i++) {
        layer_weights *l = &w.layer[i];
        const uint32_t H = s->hidden;
        s->is_attention[i] = is_attention ? is_attention[i] : i % 4 == 3;
        s->kind_index[i] = (uint16_t)(s->is_attention[i] ? s->attention_layers++ : s->gdn_layers++);
        l->in_qkv = mat(1, 8192, H, 4), l->in_z = mat(1, 4096, H, 4), l->in_a = l->in_b = mat(1, 32, H, 4), l->gdn_out = mat(1, H, 4096, 4);
        l->q = mat(1, 8192, H, 4), l->k = l->v = mat(1, 512, H, 4), l->attn_out = mat(1, H, 4096, 4);
        l->router = mat(1, 256, H, 8), l->shared_router = mat(1, 1, H, 8);
        l->expert_gate = l->expert_up = mat(256, 512, H, 4), l->expert_down = mat(256, H, 512, 4);
        l->shared_gate = l->shared_up = mat(1, 512, H, 4), l->shared_down = mat(1, H, 512, 4);
    }
    return w;
}

void full_size_free(weights *w) {
    free(w->layer);
    w->layer = NULL;
}

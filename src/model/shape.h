/* shape.h: the dimensions of the architecture.  A leaf: includes nothing of calla, and any folder may include it.
 *
 * What is the same in every checkpoint of this architecture is a constant here; what differs between the real model and its small
 * relatives (pocket, the test checkpoints) is a field.  A sibling model is a port of this header first. */
#ifndef CALLA_MODEL_SHAPE_H
#define CALLA_MODEL_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#define HEAD_DIM 256u                 /* full attention: values per query, key and value head */
#define ROTARY_DIM 64u                /* of which the first 64 are rotated, in pairs (j, j + 32) */
#define GDN_HEAD_DIM 128u             /* gated delta net: values per key and value head; the state of a head is 128 × 128 */
#define CONV_WIDTH 4u                 /* taps of the causal depthwise convolution */
#define CONV_HISTORY (CONV_WIDTH - 1) /* inputs kept between calls */

#define MAX_LAYERS 256u
#define MAX_EXPERTS 4096u
#define MAX_TOP_K 64u      /* experts per token */
#define MAX_GDN_HEADS 256u /* value heads */

typedef struct model_shape {
    uint32_t hidden; /* H */
    uint32_t layers;
    uint32_t vocabulary;      /* rows of the embedding and of the logits, padding included */
    uint32_t attention_heads; /* query heads */
    uint32_t kv_heads;
    uint32_t gdn_key_heads;
    uint32_t gdn_value_heads;
    uint32_t experts;
    uint32_t top_k;
    uint32_t expert_width;
    uint32_t shared_width;
    uint32_t max_context; /* tokens */
    float norm_eps;       /* inside the square root */
    double rope_theta;
    bool is_attention[MAX_LAYERS];
    uint16_t kind_index[MAX_LAYERS]; /* how many layers of the same kind come before: index into KV pages or state slots */
    uint32_t attention_layers, gdn_layers;
} model_shape;

/* Channels of the convolution: q | k | v of the gated delta net. */
static inline uint32_t shape_conv_channels(const model_shape *s) { return (2 * s->gdn_key_heads + s->gdn_value_heads) * GDN_HEAD_DIM; }
static inline uint32_t shape_gdn_values(const model_shape *s) { return s->gdn_value_heads * GDN_HEAD_DIM; }
static inline uint32_t shape_query_values(const model_shape *s) { return s->attention_heads * HEAD_DIM; }
static inline uint32_t shape_kv_values(const model_shape *s) { return s->kv_heads * HEAD_DIM; }

/* Values per row of the input projections, and of what the mixers give: the larger of the two kinds of layer. */
static inline uint32_t shape_mixer_in_values(const model_shape *s) {
    uint32_t gdn = shape_conv_channels(s) + shape_gdn_values(s) + 2 * s->gdn_value_heads;
    uint32_t attention = 2 * shape_query_values(s) + 2 * shape_kv_values(s);
    return gdn > attention ? gdn : attention;
}
static inline uint32_t shape_mixer_out_values(const model_shape *s) {
    return shape_gdn_values(s) > shape_query_values(s) ? shape_gdn_values(s) : shape_query_values(s);
}

#endif

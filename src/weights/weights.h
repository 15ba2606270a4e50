/* weights.h: a model folder opened for inference: config.json, generation_config.json and the mapped tensors, bound by name and
 * checked.  Owns the file mappings; copies no weight.  Knows nothing of backends. */
#ifndef CALLA_WEIGHTS_WEIGHTS_H
#define CALLA_WEIGHTS_WEIGHTS_H

#include "base/error.h"
#include "model/shape.h"

typedef enum weight_type { WEIGHT_BF16, WEIGHT_F32 } weight_type;

/* A vector in the file.  data may stand at any alignment: read it with base/float.h only. */
typedef struct weight_vec {
    const uint8_t *data; /* [n] of type */
    weight_type type;
    uint32_t n;
    float add; /* 1 for RMSNorm gains of raw Hugging Face layout (gain = 1 + stored), else 0 */
} weight_vec;

/* `count` matrices of [rows][cols] (count > 1: stacked experts), y = W x.  MLX affine: w = scale · code + bias, one scale and bias
 * (bf16) per `group` consecutive inputs of a row, codes packed lowest bits first in little-endian words.  bits 16: plain bf16
 * [count][rows][cols] in `codes`, no scales, group 0.  All three pointers may stand at any alignment. */
typedef struct weight_mat {
    const uint8_t *codes;  /* [count][rows][cols·bits/8 bytes] */
    const uint8_t *scales; /* [count][rows][cols/group] bf16 */
    const uint8_t *biases; /* [count][rows][cols/group] bf16 */
    uint32_t count, rows, cols;
    uint32_t bits;  /* 4, 8 or 16 */
    uint32_t group; /* 32, 64 or 128; 0 with 16 bits */
} weight_mat;

static inline uint64_t weight_row_bytes(const weight_mat *m) { return (uint64_t)m->cols * m->bits / 8; }
static inline uint64_t weight_row_groups(const weight_mat *m) { return m->group ? m->cols / m->group : 0; }
/* Bytes of all that W reads: codes, scales and biases. */
uint64_t weight_mat_bytes(const weight_mat *m);

typedef struct layer_weights {
    weight_vec norm_mixer, norm_moe; /* input_layernorm, post_attention_layernorm [H] */
    /* gated delta net layers */
    weight_mat in_qkv;         /* [conv channels][H]: q | k | v */
    weight_mat in_z;           /* [value heads·128][H] */
    weight_mat in_a, in_b;     /* [value heads][H] */
    weight_vec conv;           /* [channels][4], tap 3 is the newest */
    weight_vec a_log, dt_bias; /* [value heads] */
    weight_vec gdn_norm;       /* [128], a plain gain */
    weight_mat gdn_out;        /* [H][value heads·128] */
    /* full attention layers */
    weight_mat q;              /* [heads·2·256][H]: per head 256 query values, then 256 gate values */
    weight_mat k, v;           /* [kv heads·256][H] */
    weight_vec q_norm, k_norm; /* [256] */
    weight_mat attn_out;       /* [H][heads·256] */
    /* mixture of experts */
    weight_mat router;                 /* mlp.gate [experts][H] */
    weight_mat expert_gate, expert_up; /* [experts] of [width][H] */
    weight_mat expert_down;            /* [experts] of [H][width] */
    weight_mat shared_router;          /* mlp.shared_expert_gate [1][H] */
    weight_mat shared_gate, shared_up; /* [shared width][H] */
    weight_mat shared_down;            /* [H][shared width] */
} layer_weights;

typedef struct sampling_defaults { /* generation_config.json; a field that is absent keeps the neutral value */
    bool do_sample;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k;
} sampling_defaults;

#define MAX_STOP_IDS 16

typedef struct weights {
    char *dir;
    model_shape shape;
    weight_mat embed;   /* [vocabulary][H] */
    weight_mat lm_head; /* [vocabulary][H] */
    weight_vec final_norm;
    layer_weights *layer; /* [layers] */
    sampling_defaults sampling;
    int32_t stop_ids[MAX_STOP_IDS]; /* from config.json (both levels) and generation_config.json, without repeats */
    uint32_t n_stop_ids;
    uint64_t text_bytes;                  /* bytes of all bound tensors */
    uint64_t token_bytes;                 /* bytes of weights read to decode one token (one embedding row, top_k experts) */
    uint64_t scale_bytes;                 /* of text_bytes: scales, biases and all unquantized numbers, which weights_check reads */
    uint32_t skipped_vision, skipped_mtp; /* tensors not used */
    /* private to weights/ */
    struct checkpoint *files;
} weights;

/* Opens dir.  On failure *out is NULL and err names file, tensor or field, and the rule.  Logs at info what is skipped.
 *
 * NaN and infinity among the scales, biases, norms and other plain numbers are an error that names the tensor.  Looking at all of
 * them means reading a ninth of the file (2.2 GB of the real model), so a checkpoint with more than WEIGHTS_CHECK_BYTES of them is
 * checked in part here: every tensor of up to WEIGHTS_CHECK_SMALL bytes in full, of the larger ones both ends.  weights_check
 * reads them all. */
calla_status weights_open(const char *dir, weights **out, calla_error *err);
/* The same for a reader of headers and few numbers: the kernel is not asked for huge pages, which would read megabytes for each. */
calla_status weights_look(const char *dir, weights **out, calla_error *err);
void weights_close(weights *w);

#define WEIGHTS_CHECK_BYTES (64u << 20)
#define WEIGHTS_CHECK_SMALL (64u << 10)
calla_status weights_check(const weights *w, calla_error *err);

/* Any number of tensors by name, for inspect: calls fn for each tensor in the files in file order until fn returns false. */
typedef struct tensor_info {
    const char *name, *file; /* file: its base name */
    const char *dtype;       /* as written: "U32", "BF16", … */
    uint64_t shape[8];
    uint32_t dims;
    const uint8_t *data;
    uint64_t bytes;
} tensor_info;
typedef bool (*tensor_fn)(void *user, const tensor_info *t);
void weights_each_tensor(const weights *w, tensor_fn fn, void *user);

/* Where in which file a byte of a tensor stands, for a backend that reads the file itself; false: in none. */
typedef struct weights_place {
    const char *path;
    uint64_t offset;
    const uint8_t *file_data; /* the whole file, as mapped */
    uint64_t file_bytes;
} weights_place;
bool weights_locate(const weights *w, const uint8_t *data, weights_place *out);

#endif

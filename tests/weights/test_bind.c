/* test_bind.c: the exact list of tensors.  tiny-a is taken apart, given one fault or another lawful form, and opened again. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "draft.h"
#include "support/arrays.h"

#define L0 "language_model.model.layers.0."
#define L3 "language_model.model.layers.3." /* the attention layer */

static draft *d;

static int open_draft(void **state) {
    (void)state;
    d = draft_open(test_data("checkpoints/tiny-a"));
    return 0;
}

static int close_draft(void **state) {
    (void)state;
    draft_close(d);
    return 0;
}

static weights *opened(void) {
    weights *w;
    calla_error err;
    if (draft_try(d, &w, &err)) fail_msg("%s", err.message);
    return w;
}

static void test_unchanged(void **state) {
    (void)state;
    weights *w = opened();
    assert_int_equal(w->layer[0].in_qkv.rows, 4 * 128);
    assert_int_equal(w->layer[0].router.bits, 8);
    assert_int_equal(w->layer[0].expert_down.bits, 4);
    assert_int_equal(w->layer[0].expert_down.count, 8);
    assert_int_equal(w->layer[3].q.rows, 2 * 2 * 256);
    assert_true(w->layer[0].norm_mixer.add == 0 && w->final_norm.add == 0);
    assert_true(w->layer[3].in_qkv.codes == NULL && w->layer[0].q.codes == NULL); /* of the other kind of layer */
    weights_close(w);
}

/* Every single tensor missing, one after the other: each time refused with that tensor's name.  (Layers 1 and 2 are like layer 0.) */
static void test_missing(void **state) {
    (void)state;
    for (size_t i = 0; i < d->n; i++) {
        const draft_tensor gone = d->tensors[i];
        if (strstr(gone.name, ".layers.1.") || strstr(gone.name, ".layers.2.")) continue;
        memmove(&d->tensors[i], &d->tensors[i + 1], (--d->n - i) * sizeof gone);
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors", gone.name, "missing", NULL);
        memmove(&d->tensors[i + 1], &d->tensors[i], (d->n++ - i) * sizeof gone);
        d->tensors[i] = gone;
    }
}

static void test_extra(void **state) {
    (void)state;
    const char *names[] = {"language_model.model.layers.4.input_layernorm.weight",
                           "language_model.model.layers.00.input_layernorm.weight",
                           L0 "self_attn.q_norm.weight",
                           L0 "mlp.gate.bias",
                           "lm_head.weight",
                           "model.norm.weight",
                           "vision.x",
                           "x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        draft_add(d, names[i], "BF16", "128");
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors", names[i], "not part of this model", NULL);
        draft_remove(d, names[i]);
    }
    draft_add(d, "model.language_model.embed_tokens.weight", "BF16", "320,128");
    draft_refused(d, CALLA_E_UNSUPPORTED, "model.language_model.embed_tokens.weight", "convert", NULL);
}

static void test_skipped(void **state) {
    (void)state;
    draft_add(d, "vision_tower.blocks.0.norm1.weight", "F32", "16");
    draft_add(d, "vision_tower.patch_embed.proj.weight", "F16", "2,2,2,2,2");
    draft_add(d, "mtp.norm.weight", "BF16", "128");
    draft_add(d, "language_model.mtp.fc.weight", "U32", "8,8");
    draft_set(d, "quantization.mtp.fc", "false");
    draft_set(d, "quantization_config", NULL);
    weights *w = opened();
    assert_int_equal(w->skipped_vision, 2);
    assert_int_equal(w->skipped_mtp, 2);
    weights_close(w);
}

static void test_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name, *dtype, *shape, *rule;
    } cases[] = {
        {"language_model.model.embed_tokens.weight", "U32", "319,16", "its shape is [319,16], expected [320,16]"},
        {"language_model.model.embed_tokens.weight", "U32", "320,32", "expected [320,16] for 128 inputs of 4 bits in groups of 64"},
        {"language_model.lm_head.scales", "BF16", "320,1", "its shape is [320,1], expected [320,2]"},
        {"language_model.lm_head.biases", "BF16", "640", "its shape is [640], expected [320,2]"},
        {"language_model.model.norm.weight", "BF16", "128,1", "its shape is [128,1], expected [128]"},
        {L0 "input_layernorm.weight", "BF16", "64", "expected [128]"},
        {L0 "linear_attn.conv1d.weight", "BF16", "512,4", "expected [512,4,1]"},
        {L0 "linear_attn.conv1d.weight", "BF16", "512,2,2", "expected [512,4,1]"},
        {L0 "linear_attn.A_log", "F32", "1", "expected [2]"},
        {L0 "linear_attn.norm.weight", "BF16", "64", "expected [128]"},
        {L0 "mlp.gate.weight", "U32", "8,16", "expected [8,32] for 128 inputs of 8 bits"},
        {L0 "mlp.shared_expert_gate.weight", "U32", "32", "its shape is [32], expected [1,32]"},
        {L0 "mlp.switch_mlp.gate_proj.weight", "U32", "512,16", "its shape is [512,16], expected [8,64,16]"},
        {L0 "mlp.switch_mlp.down_proj.scales", "BF16", "8,128,2", "expected [8,128,1]"},
        {L3 "self_attn.q_proj.weight", "U32", "512,16", "expected [1024,16]"},
        {L3 "self_attn.k_norm.weight", "BF16", "128", "expected [256]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_draft(NULL);
        draft_reshape(d, cases[i].name, cases[i].dtype, cases[i].shape);
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors", cases[i].name, cases[i].rule, NULL);
        if (i + 1 < sizeof cases / sizeof *cases) close_draft(NULL);
    }
}

static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *name, *dtype, *rule;
    } cases[] = {
        {"language_model.model.norm.weight", "F16", "its dtype is F16, expected BF16 or F32"},
        {L0 "linear_attn.A_log", "I32", "its dtype is I32, expected BF16 or F32"},
        {L0 "mlp.gate.scales", "F16", "its dtype is F16, expected BF16"},
        {L0 "mlp.gate.biases", "F32", "its dtype is F32, expected BF16"},
        {L0 "mlp.gate.weight", "I32", "its dtype is I32, expected U32"},
        {L3 "self_attn.o_proj.weight", "BF16", "its dtype is BF16, expected U32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_draft(NULL);
        draft_tensor *t = draft_find(d, cases[i].name);
        char shape[64] = "";
        for (uint32_t k = 0; k < t->dims; k++) sprintf(shape + strlen(shape), "%s%llu", k ? "," : "", (unsigned long long)t->shape[k]);
        draft_reshape(d, cases[i].name, cases[i].dtype, shape);
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors", cases[i].name, cases[i].rule, NULL);
        if (i + 1 < sizeof cases / sizeof *cases) close_draft(NULL);
    }
}

/* Norms and the like may be f32 or bf16, each by itself. */
static void test_number_types(void **state) {
    (void)state;
    draft_reshape(d, L0 "linear_attn.A_log", "BF16", "2");
    draft_reshape(d, L0 "linear_attn.dt_bias", "F32", "2");
    draft_reshape(d, L0 "linear_attn.norm.weight", "F32", "128");
    draft_reshape(d, L0 "input_layernorm.weight", "F32", "128");
    draft_reshape(d, L0 "linear_attn.conv1d.weight", "F32", "512,4,1");
    memset(draft_find(d, L0 "linear_attn.conv1d.weight")->data, 0, 512 * 16);
    memset(draft_find(d, L0 "linear_attn.norm.weight")->data, 0, 512);
    memset(draft_find(d, L0 "input_layernorm.weight")->data, 0, 512);
    weights *w = opened();
    assert_int_equal(w->layer[0].a_log.type, WEIGHT_BF16);
    assert_int_equal(w->layer[0].dt_bias.type, WEIGHT_F32);
    assert_int_equal(w->layer[0].gdn_norm.type, WEIGHT_F32);
    assert_int_equal(w->layer[0].conv.type, WEIGHT_F32);
    assert_int_equal(w->layer[0].conv.n, 512 * 4);
    assert_int_equal(w->layer[1].a_log.type, WEIGHT_F32);
    assert_int_equal(w->layer[1].gdn_norm.type, WEIGHT_BF16);
    weights_close(w);
}

static void test_conv_layouts(void **state) {
    (void)state;
    draft_reshape(d, L0 "linear_attn.conv1d.weight", "BF16", "512,1,4");
    draft_refused(d, CALLA_E_FORMAT, "language_model.model.layers.1.linear_attn.conv1d.weight", "expected [512,1,4]", "first layer", NULL);
    draft_reshape(d, "language_model.model.layers.1.linear_attn.conv1d.weight", "BF16", "512,1,4");
    draft_reshape(d, "language_model.model.layers.2.linear_attn.conv1d.weight", "BF16", "512,1,4");
    weights *w = opened();
    const layer_weights *l = w->layer;
    assert_true(l[0].norm_mixer.add == 1 && l[0].norm_moe.add == 1 && l[3].q_norm.add == 1 && l[3].k_norm.add == 1 &&
                w->final_norm.add == 1);
    assert_true(l[3].norm_mixer.add == 1);
    assert_true(l[0].gdn_norm.add == 0 && l[0].conv.add == 0 && l[0].a_log.add == 0 && l[0].dt_bias.add == 0);
    weights_close(w);
}

/* Replaces a quantized matrix by another lawful form of the same dimensions. */
static void requantize(const char *matrix, const char *weight_dtype, const char *weight_shape, const char *group_shape) {
    char name[200];
    snprintf(name, sizeof name, "%s.weight", matrix);
    draft_reshape(d, name, weight_dtype, weight_shape);
    memset(draft_find(d, name)->data, 0, draft_find(d, name)->bytes);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, i ? "%s.scales" : "%s.biases", matrix);
        if (group_shape)
            draft_reshape(d, name, "BF16", group_shape);
        else
            draft_remove(d, name);
    }
}

static void test_mixed_bits(void **state) {
    (void)state;
    draft_set(d, "quantization_config", NULL);
    draft_set(d, "quantization." L0 "linear_attn.in_proj_z", "{\"group_size\":32,\"bits\":8}");
    draft_refused(d, CALLA_E_FORMAT, L0 "linear_attn.in_proj_z.weight", "128 inputs of 8 bits in groups of 32", NULL);
    requantize(L0 "linear_attn.in_proj_z", "U32", "256,32", "256,4");
    draft_set(d, "quantization." L3 "self_attn.o_proj", "{\"group_size\":128,\"bits\":4}");
    requantize(L3 "self_attn.o_proj", "U32", "128,64", "128,4");
    draft_set(d, "quantization." L3 "mlp.switch_mlp.up_proj", "false");
    requantize(L3 "mlp.switch_mlp.up_proj", "BF16", "8,64,128", NULL);
    requantize(L0 "linear_attn.in_proj_a", "BF16", "2,128", NULL); /* as MLX: no scales and no override, so not quantized */
    draft_set(d, "quantization.language_model.lm_head", "true");
    weights *w = opened();
    const weight_mat *z = &w->layer[0].in_z, *o = &w->layer[3].attn_out, *up = &w->layer[3].expert_up, *a = &w->layer[0].in_a;
    assert_true(z->bits == 8 && z->group == 32 && weight_row_bytes(z) == 128 && weight_row_groups(z) == 4);
    assert_int_equal(weight_mat_bytes(z), 256 * (128 + 2 * 2 * 4));
    assert_true(o->bits == 4 && o->group == 128 && o->cols == 512);
    assert_true(up->bits == 16 && up->group == 0 && up->scales == NULL && up->biases == NULL && up->count == 8);
    assert_int_equal(weight_mat_bytes(up), 8 * 64 * 128 * 2);
    assert_true(a->bits == 16 && w->layer[1].in_a.bits == 4 && w->lm_head.bits == 4);
    weights_close(w);
}

static void test_quantization_mismatch(void **state) {
    (void)state;
    draft_set(d, "quantization_config", NULL);
    draft_set(d, "quantization." L0 "mlp.gate", "false");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors", L0 "mlp.gate.weight", "says that it is not quantized", NULL);
    draft_set(d, "quantization." L0 "mlp.gate", "{\"group_size\":64,\"bits\":4}");
    draft_refused(d, CALLA_E_FORMAT, "model.safetensors", L0 "mlp.gate.weight", "its shape is [8,32], expected [8,16]", NULL);
    draft_set(d, "quantization." L0 "mlp.gate", "{\"group_size\":64,\"bits\":8}");
    draft_set(d, "quantization." L0 "mlp.switch_mlp.down_proj", "{\"group_size\":128,\"bits\":4}");
    draft_refused(d, CALLA_E_FORMAT, L0 "mlp.switch_mlp.down_proj.weight", "64 inputs are not a multiple of the group size 128", NULL);
    draft_set(d, "quantization." L0 "mlp.switch_mlp.down_proj", NULL);
    draft_set(d, "quantization.language_model.no.such.matrix", "{\"group_size\":64,\"bits\":8}"); /* only a warning */
    weights_close(opened());
    draft_set(d, "quantization", NULL);
    draft_refused(d, CALLA_E_FORMAT, "language_model.model.embed_tokens.weight", "U32", "not quantized", NULL);
}

static void put_number(const char *name, uint64_t index, uint32_t bits) {
    draft_tensor *t = draft_find(d, name);
    if (!strcmp(t->dtype, "F32"))
        memcpy(t->data + 4 * index, &bits, 4);
    else
        memcpy(t->data + 2 * index, &(uint16_t){(uint16_t)(bits >> 16)}, 2);
}

static void test_not_finite(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t index;
        uint32_t bits;
        const char *what;
    } cases[] = {
        {"language_model.model.embed_tokens.scales", 639, 0x7FC00000, "number 639 is NaN"},
        {"language_model.lm_head.biases", 0, 0xFFFF0000, "number 0 is NaN"},
        {L0 "mlp.switch_mlp.up_proj.scales", 517, 0x7F800000, "number 517 is infinite"},
        {L0 "mlp.switch_mlp.up_proj.biases", 600, 0xFF800000, "number 600 is infinite"},
        {L0 "mlp.gate.scales", 3, 0x7F810000, "number 3 is NaN"},
        {L0 "linear_attn.A_log", 1, 0x7F800001, "number 1 is NaN"},
        {L0 "linear_attn.conv1d.weight", 2047, 0x7FC00000, "number 2047 is NaN"},
        {L3 "self_attn.q_norm.weight", 255, 0xFF800000, "number 255 is infinite"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_number(cases[i].name, cases[i].index, cases[i].bits);
        draft_refused(d, CALLA_E_FORMAT, "model.safetensors", cases[i].name, cases[i].what, NULL);
        put_number(cases[i].name, cases[i].index, 0xFF7F0000); /* the largest finite bf16 is fine */
        weights_close(opened());
    }
    draft_add(d, "vision_tower.x", "F32", "4"); /* not looked at: it is not used */
    put_number("vision_tower.x", 0, 0x7FC00000);
    weights_close(opened());
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_draft, close_draft)
        TEST(test_unchanged),
        TEST(test_missing),
        TEST(test_extra),
        TEST(test_skipped),
        TEST(test_number_types),
        TEST(test_conv_layouts),
        TEST(test_mixed_bits),
        TEST(test_quantization_mismatch),
        TEST(test_not_finite),
#undef TEST
        cmocka_unit_test_teardown(test_shapes, close_draft),
        cmocka_unit_test_teardown(test_dtypes, close_draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_full_size.c: the real model's 2,090 tensors in four shards of 20.4 GB, as sparse files that hold nothing but their headers: the
 * names and shapes are bound, the figures are the published ones, and opening is quick and copies nothing.  (The numbers are all 0.) */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "support/arrays.h"
#include "support/private_memory.h"
#include "support/temp_dir.h"
#include "weights/weights.h"

enum { SHARDS = 4, LAYERS = 40 };

typedef struct files {
    buffer header[SHARDS], map;
    uint64_t bytes[SHARDS];
} files;

/* shape: "248320,256" */
static void add(files *f, unsigned shard, const char *prefix, const char *name, const char *dtype, const char *shape) {
    uint64_t bytes = strcmp(dtype, "U32") ? 2 : 4;
    for (const char *s = shape; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) bytes *= strtoull(s, NULL, 10);
    buffer_printf(&f->header[shard], "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                  f->bytes[shard] ? "," : "", prefix, name, dtype, shape, (unsigned long long)f->bytes[shard],
                  (unsigned long long)(f->bytes[shard] + bytes));
    buffer_printf(&f->map, "%s\"%s%s\":\"model-%05u-of-00004.safetensors\"", f->map.n ? "," : "", prefix, name, shard + 1);
    f->bytes[shard] += bytes;
}

static void add_mat(files *f, unsigned shard, const char *prefix, const char *name, const char *outer, unsigned inputs, unsigned bits) {
    char full[160], shape[64];
    snprintf(full, sizeof full, "%s.weight", name);
    snprintf(shape, sizeof shape, "%s,%u", outer, inputs * bits / 32);
    add(f, shard, prefix, full, "U32", shape);
    snprintf(shape, sizeof shape, "%s,%u", outer, inputs / 64);
    snprintf(full, sizeof full, "%s.scales", name);
    add(f, shard, prefix, full, "BF16", shape);
    snprintf(full, sizeof full, "%s.biases", name);
    add(f, shard, prefix, full, "BF16", shape);
}

static void add_layer(files *f, unsigned layer) {
    const unsigned shard = layer / 10;
    char p[64];
    snprintf(p, sizeof p, "language_model.model.layers.%u.", layer);
    add(f, shard, p, "input_layernorm.weight", "BF16", "2048");
    add(f, shard, p, "post_attention_layernorm.weight", "BF16", "2048");
    if (layer % 4 == 3) {
        add_mat(f, shard, p, "self_attn.q_proj", "8192", 2048, 4);
        add_mat(f, shard, p, "self_attn.k_proj", "512", 2048, 4);
        add_mat(f, shard, p, "self_attn.v_proj", "512", 2048, 4);
        add_mat(f, shard, p, "self_attn.o_proj", "2048", 4096, 4);
        add(f, shard, p, "self_attn.q_norm.weight", "BF16", "256");
        add(f, shard, p, "self_attn.k_norm.weight", "BF16", "256");
    } else {
        add_mat(f, shard, p, "linear_attn.in_proj_qkv", "8192", 2048, 4);
        add_mat(f, shard, p, "linear_attn.in_proj_z", "4096", 2048, 4);
        add_mat(f, shard, p, "linear_attn.in_proj_a", "32", 2048, 4);
        add_mat(f, shard, p, "linear_attn.in_proj_b", "32", 2048, 4);
        add_mat(f, shard, p, "linear_attn.out_proj", "2048", 4096, 4);
        add(f, shard, p, "linear_attn.conv1d.weight", "BF16", "8192,4,1");
        add(f, shard, p, "linear_attn.A_log", "BF16", "32");
        add(f, shard, p, "linear_attn.dt_bias", "BF16", "32");
        add(f, shard, p, "linear_attn.norm.weight", "BF16", "128");
    }
    add_mat(f, shard, p, "mlp.gate", "256", 2048, 8);
    add_mat(f, shard, p, "mlp.shared_expert_gate", "1", 2048, 8);
    add_mat(f, shard, p, "mlp.switch_mlp.gate_proj", "256,512", 2048, 4);
    add_mat(f, shard, p, "mlp.switch_mlp.up_proj", "256,512", 2048, 4);
    add_mat(f, shard, p, "mlp.switch_mlp.down_proj", "256,2048", 512, 4);
    add_mat(f, shard, p, "mlp.shared_expert.gate_proj", "512", 2048, 4);
    add_mat(f, shard, p, "mlp.shared_expert.up_proj", "512", 2048, 4);
    add_mat(f, shard, p, "mlp.shared_expert.down_proj", "2048", 512, 4);
}

/* The vision tower's 333 tensors, by number: their shapes do not matter here. */
static void add_vision(files *f) {
    for (unsigned i = 0; i < 333; i++) {
        char name[32];
        snprintf(name, sizeof name, "%u.weight", i);
        add(f, 0, "vision_tower.blocks.", name, "BF16", "1152,1152");
    }
}

static void write_sparse(const char *dir, unsigned shard, const files *f) {
    char path[512];
    const uint64_t length = f->header[shard].n;
    snprintf(path, sizeof path, "%s/model-%05u-of-00004.safetensors", dir, shard + 1);
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(write(fd, f->header[shard].data, length), length);
    assert_int_equal(ftruncate(fd, (off_t)(8 + length + f->bytes[shard])), 0);
    close(fd);
}

static char *write_model(void) {
    files f = {0};
    char *dir = temp_dir_new();
    for (unsigned s = 0; s < SHARDS; s++) buffer_append_char(&f.header[s], '{');
    add_mat(&f, 0, "language_model.", "model.embed_tokens", "248320", 2048, 4);
    add_mat(&f, 3, "language_model.", "lm_head", "248320", 2048, 4);
    add(&f, 3, "language_model.", "model.norm.weight", "BF16", "2048");
    for (unsigned i = 0; i < LAYERS; i++) add_layer(&f, i);
    add_vision(&f);
    for (unsigned s = 0; s < SHARDS; s++) {
        buffer_append_char(&f.header[s], '}');
        assert_false(f.header[s].failed);
        write_sparse(dir, s, &f);
        buffer_free(&f.header[s]);
    }
    buffer index = {0};
    buffer_printf(&index, "{\"metadata\":{\"total_size\":0},\"weight_map\":{%s}}", f.map.data);
    write_file(dir, "model.safetensors.index.json", index.data, index.n);
    buffer_free(&index);
    buffer_free(&f.map);
    size_t n;
    char *config = slurp_file(test_data("weights"), "real-config.json", &n);
    write_file(dir, "config.json", config, n);
    free(config);
    return dir;
}

static void test_full_size(void **state) {
    (void)state;
    char *dir = write_model();
    weights *w;
    calla_error err;
    const long before_kb = private_memory_kb();
    const uint64_t start = clock_now_ns();
    if (weights_look(dir, &w, &err)) fail_msg("%s", err.message); /* weights_open reads a cold file in 2 MB pages: the same, later */
    const double ms = (double)(clock_now_ns() - start) / 1e6;
    const long kb = private_memory_kb() - before_kb;
    print_message("opened in %.1f ms, private memory grew by %ld KB\n", ms, kb);
    assert_true(ms < 2000 && kb < 200000);
    assert_int_equal(w->text_bytes, 19508787456);
    assert_int_equal(w->token_bytes, 1669561728);
    assert_int_equal(w->scale_bytes, 2168535296);
    assert_int_equal(w->skipped_vision, 333);
    assert_int_equal(w->skipped_mtp, 0);
    assert_int_equal(w->layer[39].q.rows, 8192);
    assert_int_equal(w->layer[38].in_qkv.rows, 8192);
    weights_close(w);
    temp_dir_remove(dir);
}

enum { EMBED_ROWS = 248320 };
static const uint64_t embed_scales = (uint64_t)EMBED_ROWS * 256 * 4, embed_groups = (uint64_t)EMBED_ROWS * 32; /* in the first shard */

/* Writes a bf16 at an offset in the data of the first shard. */
static void put_bf16(const char *dir, uint64_t at, uint16_t value) {
    char path[512];
    uint64_t length;
    snprintf(path, sizeof path, "%s/model-00001-of-00004.safetensors", dir);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &length, 8, 0), 8);
    assert_int_equal(pwrite(fd, &value, 2, (off_t)(8 + length + at)), 2);
    close(fd);
}

static void expect_nan(calla_status status, const calla_error *err, const char *tensor, const char *number) {
    assert_int_equal(status, CALLA_E_FORMAT);
    if (!strstr(err->message, tensor) || !strstr(err->message, number))
        fail_msg("expected '%s' and '%s' in: %s", tensor, number, err->message);
}

/* Opening a checkpoint of this size looks at the ends of large tensors and at all of small ones; weights_check at everything. */
static void test_samples(void **state) {
    (void)state;
    char *dir = write_model();
    weights *w;
    calla_error err;
    const uint16_t nan = 0x7FC0;
    const uint64_t norm = embed_scales + 2 * embed_groups * 2; /* input_layernorm of the first layer */
    put_bf16(dir, embed_scales, nan);
    expect_nan(weights_open(dir, &w, &err), &err, "embed_tokens.scales", "number 0 is NaN");
    put_bf16(dir, embed_scales, 0);
    put_bf16(dir, embed_scales + 2 * (embed_groups - 1), nan);
    expect_nan(weights_open(dir, &w, &err), &err, "embed_tokens.scales", "number 7946239 is NaN");
    put_bf16(dir, embed_scales + 2 * (embed_groups - 1), 0);
    put_bf16(dir, norm + 2 * 1000, nan);
    expect_nan(weights_open(dir, &w, &err), &err, "layers.0.input_layernorm.weight", "number 1000 is NaN");
    put_bf16(dir, norm + 2 * 1000, 0);
    put_bf16(dir, embed_scales + 2 * 1000, nan);
    if (weights_open(dir, &w, &err)) fail_msg("%s", err.message);
    expect_nan(weights_check(w, &err), &err, "embed_tokens.scales", "number 1000 is NaN");
    weights_close(w);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_size), cmocka_unit_test(test_samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

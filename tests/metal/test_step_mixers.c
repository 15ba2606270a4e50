/* test_step_mixers.c: the Metal kernels for few rows that know sequences: the delta net's step, and attention with its cache, against ref's
 * mixers on the same memory: numbers of heads, segments of one and of several rows, first and later steps, splits, pages in any order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "base/float.h"
#include "metal/kernel_run.h"
#include "unit.h"

enum { MAX_ROWS = 12, MAX_SEGMENTS = 4, SLOTS = 7, PAGES = 3 };

/* A model of one layer, ref's backend for it, and a batch. */
typedef struct fixture {
    model_shape s;
    layer_weights layer;
    weights w;
    backend b;
    row_batch batch;
    batch_segment segment[MAX_SEGMENTS];
    uint32_t segment_of[MAX_ROWS], positions[MAX_ROWS], page_table[MAX_SEGMENTS * PAGES];
    metal_step step;
} fixture;

static weight_vec vec(const float *x, uint32_t n) { return (weight_vec){.data = (const uint8_t *)x, .type = WEIGHT_F32, .n = n}; }

static void add_segment(fixture *f, uint32_t first_position, uint32_t rows, uint32_t slot_src, uint32_t slot_dst) {
    const uint32_t g = f->batch.segments++, first_row = f->batch.rows;
    f->segment[g] = (batch_segment){.first_row = first_row,
                                    .rows = rows,
                                    .first_position = first_position,
                                    .slot_src = slot_src,
                                    .slot_dst = slot_dst,
                                    .first_page = g * PAGES,
                                    .pages = PAGES};
    for (uint32_t r = 0; r < rows; r++) {
        f->positions[first_row + r] = first_position + r;
        f->segment_of[first_row + r] = g;
    }
    f->batch.rows += rows;
}

static void use_batch(fixture *f) {
    _Static_assert(sizeof(metal_segment) == sizeof(batch_segment), "copied as it is");
    f->batch.positions = f->positions;
    f->batch.segment_of = f->segment_of;
    f->batch.segment = f->segment;
    f->batch.page_table = f->page_table;
    f->w.shape = f->s;
    f->w.layer = &f->layer;
    f->b.w = &f->w;
    f->b.s = &f->s;
    f->b.batch = f->b.whole = &f->batch;
    f->step = (metal_step){.positions = DEVICE(kernel_copy(f->positions, sizeof f->positions)),
                           .segment_of = DEVICE(kernel_copy(f->segment_of, sizeof f->segment_of)),
                           .segment = DEVICE(kernel_copy(f->segment, sizeof f->segment)),
                           .page_table = DEVICE(kernel_copy(f->page_table, sizeof f->page_table)),
                           .rows = f->batch.rows,
                           .segments = f->batch.segments,
                           .short_rows = f->batch.rows};
}

static void compare(const char *what, const float *got, const float *want, size_t n, double tolerance) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * (1 + fabs((double)want[i]))))
            fail_msg("%s[%zu]: %.9g, expected %.9g", what, i, (double)got[i], (double)want[i]);
}

/* ---- delta net ---- */

static void check_gdn(fixture *f, uint32_t key_heads, uint32_t value_heads, uint32_t first, uint32_t beyond) {
    model_shape *s = &f->s;
    s->gdn_key_heads = key_heads;
    s->gdn_value_heads = value_heads;
    s->attention_heads = s->kv_heads = 0;
    use_batch(f);
    const uint32_t C = shape_conv_channels(s), V = value_heads, in_stride = shape_mixer_in_values(s),
                   out_stride = shape_mixer_out_values(s);
    const size_t state_n = (size_t)SLOTS * shape_gdn_values(s) * GDN_HEAD_DIM, window_n = (size_t)SLOTS * CONV_HISTORY * C,
                 in_n = (size_t)f->batch.rows * in_stride, out_n = (size_t)f->batch.rows * out_stride;
    float *conv = kernel_floats((size_t)C * CONV_WIDTH, 1), *a_log = kernel_filled(V, 0), *decay = kernel_filled(V, 0),
          *dt_bias = kernel_floats(V, 2);
    for (uint32_t h = 0; h < V; h++) { /* memories of 1 to some 10,000 tokens */
        dt_bias[h] -= 2.5f * (float)(h % 4);
        a_log[h] = kernel_uniform(1);
        decay[h] = expf(a_log[h]);
    }
    f->layer.conv = vec(conv, C * CONV_WIDTH);
    f->layer.a_log = vec(a_log, V);
    f->layer.dt_bias = vec(dt_bias, V);
    float *in = kernel_floats(in_n, 1), *out = kernel_filled(out_n, 7), *state = kernel_floats(state_n, 0.3f),
          *window = kernel_floats(window_n, 1);
    float *want_out = kernel_copy(out, out_n * sizeof(float)), *want_state = kernel_copy(state, state_n * sizeof(float)),
          *want_window = kernel_copy(window, window_n * sizeof(float));
    f->b.limits.slots = SLOTS;
    f->b.buf[BUF_MIXER_IN] = in;
    f->b.buf[BUF_MIXER_OUT] = want_out;
    f->b.buf[BUF_STATE] = want_state;
    f->b.buf[BUF_CONV] = want_window;
    f->b.scratch.vec = kernel_filled((size_t)C * CONV_WIDTH, 0);
    f->b.scratch.conv = kernel_filled(C, 0);
    row_batch all = f->batch, some = f->batch; /* ref computes those segments that the kernel is to take */
    batch_segment taken[MAX_SEGMENTS];
    some.segments = 0;
    for (uint32_t g = 0; g < all.segments; g++)
        if (f->segment[g].rows >= first && f->segment[g].rows < beyond) taken[some.segments++] = f->segment[g];
    some.segment = taken;
    f->b.batch = &some;
    ref_gdn_mix(&f->b, 0);

    const metal_gdn_args a = {.conv = DEVICE(conv),
                              .decay = DEVICE(decay),
                              .dt_bias = DEVICE(dt_bias),
                              .in = DEVICE(in),
                              .out = DEVICE(out),
                              .state = DEVICE(state),
                              .window = DEVICE(window),
                              .in_stride = in_stride,
                              .out_stride = out_stride,
                              .key_heads = key_heads,
                              .value_heads = value_heads,
                              .channels = C,
                              .first = first,
                              .beyond = beyond};
    kernel_run("step_gdn", &a, sizeof a, &f->step, KERNEL_GRID(V * GDN_HEAD_DIM / METAL_GDN_COLUMNS, all.segments, 1), METAL_GDN_THREADS,
               METAL_TG_GDN, KERNEL_OUT({out, out_n * 4}, {state, state_n * 4}, {window, window_n * 4}));
    uint32_t read = 0;
    for (uint32_t g = 0; g < some.segments; g++) read += taken[g].slot_src != NO_SLOT;
    if (kernels_watched) assert_int_equal(kernel_loads(state), read * state_n / SLOTS * sizeof *state); /* once */
    compare("out", out, want_out, out_n, 2e-6);
    compare("state", state, want_state, state_n, 2e-6);
    assert_memory_equal(window, want_window, window_n * sizeof *window); /* copies */
    kernel_free_all();
}

static void test_gdn(void **state) {
    (void)state;
    static const uint32_t heads[][2] = {{1, 1}, {1, 2}, {2, 4}, {3, 3}};
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        fixture f = {0};
        add_segment(&f, 0, 1, NO_SLOT, 3);
        check_gdn(&f, heads[h][0], heads[h][1], 1, UINT32_MAX);

        fixture more = {0};
        add_segment(&more, 9, 1, 5, 0);
        add_segment(&more, 0, 4, NO_SLOT, 1);
        add_segment(&more, 300, 5, 6, 2);
        add_segment(&more, 2, 2, 4, 3);
        check_gdn(&more, heads[h][0], heads[h][1], 1, UINT32_MAX);
        more.batch = (row_batch){0};
        add_segment(&more, 9, 3, 5, 0);
        add_segment(&more, 0, 5, NO_SLOT, 1);
        check_gdn(&more, heads[h][0], heads[h][1], 1, 4); /* the second is somebody else's */
    }
}

/* ---- attention ---- */

static void check_attention(fixture *f, uint32_t heads, uint32_t kv_heads, calla_kv kv, uint32_t splits, bool every_row) {
    model_shape *s = &f->s;
    s->attention_heads = heads;
    s->kv_heads = kv_heads;
    s->gdn_key_heads = s->gdn_value_heads = 0;
    s->is_attention[0] = true;
    s->layers = 1;
    s->attention_layers = 1;
    s->rope_theta = 1e7;
    s->norm_eps = 1e-6f;
    for (uint32_t g = 0; g < f->batch.segments; g++) /* pages in no order; the segments have no page in common */
        for (uint32_t i = 0; i < PAGES; i++) f->page_table[g * PAGES + i] = (i * 4 + g) * 7 % (PAGES * MAX_SEGMENTS);
    use_batch(f);
    const uint32_t rows = f->batch.rows, in_stride = shape_mixer_in_values(s), out_stride = shape_mixer_out_values(s);
    const size_t block = kv_block_bytes(kv), cache_n = (size_t)PAGES * MAX_SEGMENTS * 2 * kv_heads * block / 4;
    const size_t in_n = (size_t)rows * in_stride, out_n = (size_t)rows * out_stride;
    float *in = kernel_floats(in_n, 2), *out = kernel_filled(out_n, 7), *want = kernel_copy(out, out_n * sizeof(float)),
          *q_gain = kernel_floats(HEAD_DIM, 2), *k_gain = kernel_floats(HEAD_DIM, 2), *cache = kernel_floats(cache_n, 1),
          *rotary = kernel_filled((size_t)rows * ROTARY_DIM, 0);
    if (kv == CALLA_KV_BF16)
        for (size_t i = 0; i < cache_n * 2; i++) ((uint16_t *)cache)[i] = float_to_bf16(kernel_uniform(1));
    float row[HEAD_DIM];
    for (size_t i = 0; kv == CALLA_KV_Q8 && i < cache_n * 4 / block * KV_PAGE_TOKENS; i++) {
        for (uint32_t j = 0; j < HEAD_DIM; j++) row[j] = kernel_uniform(1);
        ref_kv_store((uint8_t *)cache + i / KV_PAGE_TOKENS * block, kv, i % KV_PAGE_TOKENS, row);
    }
    float *want_cache = kernel_copy(cache, cache_n * sizeof(float)), *want_in = kernel_copy(in, in_n * sizeof(float));
    f->layer.q_norm = vec(q_gain, HEAD_DIM);
    f->layer.k_norm = vec(k_gain, HEAD_DIM);
    f->b.limits.pages = PAGES * MAX_SEGMENTS;
    f->b.limits.kv = kv;
    f->b.buf[BUF_MIXER_IN] = want_in; /* ref norms and rotates in place */
    f->b.buf[BUF_MIXER_OUT] = want;
    f->b.buf[BUF_KV] = want_cache;
    f->b.scratch.scores = kernel_filled((size_t)heads / kv_heads * PAGES * KV_PAGE_TOKENS, 0);
    ref_attention_mix(&f->b, 0);

    uint32_t n = 0, *short_row = kernel_alloc(rows * sizeof *short_row);
    for (uint32_t r = 0; r < rows; r++) {
        ref_rope_angles(f->positions[r], s->rope_theta, rotary + r * ROTARY_DIM, rotary + r * ROTARY_DIM + ROTARY_DIM / 2);
        if (every_row || r % 2) short_row[n++] = r;
    }
    f->step.rotary = DEVICE(rotary);
    f->step.splits = splits;
    f->step.short_row = DEVICE(short_row);
    f->step.short_rows = n;
    const size_t partial_n = (size_t)n * heads * splits * METAL_PARTIAL;
    float *partial = kernel_nans(partial_n);
    metal_attention_args a = {.in = DEVICE(in),
                              .out = DEVICE(out),
                              .q_gain = DEVICE(q_gain),
                              .k_gain = DEVICE(k_gain),
                              .kv = DEVICE(cache),
                              .partial = DEVICE(partial),
                              .in_stride = in_stride,
                              .out_stride = out_stride,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .first = 1,
                              .beyond = UINT32_MAX,
                              .write = rows == f->batch.segments && every_row,
                              .norm_eps = s->norm_eps};
    static const char *const steps[] = {"step_attention_kb16", "step_attention_kf32", "step_attention_kq8"}, *const writes[] = {
                                                                                                                 "attention_write_kb16",
                                                                                                                 "attention_write_kf32",
                                                                                                                 "attention_write_kq8"};
    if (!a.write)
        kernel_run(writes[kv], &a, sizeof a, &f->step, KERNEL_GRID(heads + 2 * kv_heads, rows, 1), 32, 0, KERNEL_OUT({cache, cache_n * 4}));
    kernel_run(steps[kv], &a, sizeof a, &f->step, KERNEL_GRID(splits, kv_heads, n), METAL_ATTENTION_THREADS, METAL_TG_ATTENTION,
               KERNEL_OUT({partial, partial_n * 4}, {cache, cache_n * 4}));
    uint64_t positions = 0;
    for (uint32_t i = 0; i < n; i++) positions += f->positions[short_row[i]] + 1;
    if (kernels_watched && kv == CALLA_KV_Q8) /* the same, and a scale for each 8 values of K and 4 of V */
        assert_int_equal(kernel_loads(cache), positions * kv_heads * (2 * HEAD_DIM + HEAD_DIM / 8 * 4 + HEAD_DIM / 4 * 4));
    else if (kernels_watched) /* a row of K or V once for all heads of its group */
        assert_int_equal(kernel_loads(cache), positions * 2 * kv_heads * block / KV_PAGE_TOKENS);
    kernel_run("step_attention_combine", &a, sizeof a, &f->step, KERNEL_GRID(heads * METAL_COMBINE_PARTS, n, 1), METAL_COMBINE_THREADS,
               METAL_TG_COMBINE, KERNEL_OUT({out, out_n * 4}));
    /* a key may be rounded to the other one of two bf16 numbers */
    if (kv == CALLA_KV_F32) compare("cache", cache, want_cache, cache_n, 2e-6);
    for (size_t i = 0; kv == CALLA_KV_Q8 && i < cache_n * 4 / block * KV_PAGE_TOKENS; i++) { /* a code may be the next one */
        float want_row[HEAD_DIM];
        ref_kv_load((uint8_t *)cache + i / KV_PAGE_TOKENS * block, kv, i % KV_PAGE_TOKENS, row);
        ref_kv_load((uint8_t *)want_cache + i / KV_PAGE_TOKENS * block, kv, i % KV_PAGE_TOKENS, want_row);
        compare("cache", row, want_row, HEAD_DIM, 6.0 / 127);
    }
    if (kv == CALLA_KV_BF16)
        for (size_t i = 0; i < cache_n * 2; i++) {
            const float x = float_from_bf16(((uint16_t *)cache)[i]), y = float_from_bf16(((uint16_t *)want_cache)[i]);
            assert_true(fabsf(x - y) <= 0x1p-7f * fabsf(y) + 1e-7f);
        }
    for (uint32_t i = 0; i < n; i++)
        compare("out", out + (size_t)short_row[i] * out_stride, want + (size_t)short_row[i] * out_stride, (size_t)heads * HEAD_DIM,
                kv == CALLA_KV_F32    ? 5e-6
                : kv == CALLA_KV_BF16 ? 1e-3
                                      : 1e-2);
    for (uint32_t r = 0; !every_row && r < rows; r += 2) /* others are left alone */
        for (uint32_t k = 0; k < out_stride; k++) assert_true(out[(size_t)r * out_stride + k] == 7);
    kernel_free_all();
}

static void test_attention(void **state) {
    (void)state;
    static const uint32_t heads[][2] = {{2, 1}, {8, 1}, {16, 2}, {3, 3}, {10, 2}}, splits[] = {1, 2, 7, METAL_MAX_SPLITS},
                          positions[] = {0, 1, 7, 8, 127, 128, 255, 256, 511, 700};
    uint32_t turn = 0;
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
        for (size_t k = 0; k < 2; k++, turn++) {
            fixture f = {0};
            add_segment(&f, positions[p], 1, 0, 1);
            if (turn % 3 == 0) add_segment(&f, positions[(p + 4) % 10], 1, 0, 1);
            check_attention(&f, heads[turn % 5][0], heads[turn % 5][1], k ? CALLA_KV_BF16 : CALLA_KV_F32, splits[(turn + p) % 4], true);
            check_attention(&f, 8, 2, CALLA_KV_Q8, 3, true);
        }
    for (size_t k = 0; k < 2; k++) /* several rows of a sequence: the cache is written before */
        for (int every = 0; every < 2; every++) {
            fixture f = {0};
            add_segment(&f, 254, 5, 0, 1);
            add_segment(&f, 40, 1, 0, 1);
            add_segment(&f, 0, 3, 0, 1);
            check_attention(&f, heads[2 + k][0], heads[2 + k][1], k ? CALLA_KV_BF16 : every ? CALLA_KV_F32 : CALLA_KV_Q8, 3, every);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gdn), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

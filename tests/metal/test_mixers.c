/* test_mixers.c: the Metal backend's mixers of many rows (gdn.metal, attention.metal) and what prepares rows for products (rows.metal), on
 * this machine, against the reference backend's: odd lengths, several segments, short ones among them that are left alone, both orders. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "backend/ref/ref.h"
#include "metal/kernel_run.h"
#include "unit.h"

enum { MOST_SEGMENTS = 4, MOST_ROWS = 256, SHORT = METAL_SEGMENT_ROWS };

/* A reference backend around buffers of the test's own, with one layer. */
typedef struct fixture {
    backend ref;
    weights w;
    layer_weights layer;
    row_batch batch;
    metal_step step;
    batch_segment segment[MOST_SEGMENTS];
    uint32_t *positions, *segment_of; /* [MOST_ROWS] */
    uint32_t in_stride, out_stride;
    float *in, *out, *want;
} fixture;

static weight_vec vector(float *data, uint32_t n) { return (weight_vec){.data = (const uint8_t *)data, .type = WEIGHT_F32, .n = n}; }

/* Segments of these lengths, one after the other. */
static void set_up(fixture *f, const model_shape *shape, const uint32_t *rows, const uint32_t *first_position, uint32_t segments) {
    memset(f, 0, sizeof *f);
    f->w.shape = *shape;
    f->w.shape.layers = 1;
    f->w.shape.norm_eps = 1e-6f;
    f->w.layer = &f->layer;
    f->ref.w = &f->w;
    f->ref.s = &f->w.shape;
    f->positions = kernel_alloc(MOST_ROWS * sizeof *f->positions), f->segment_of = kernel_alloc(MOST_ROWS * sizeof *f->segment_of);
    uint32_t n = 0;
    for (uint32_t g = 0; g < segments; g++) {
        f->segment[g] = (batch_segment){.first_row = n, .rows = rows[g], .first_position = first_position ? first_position[g] : 0};
        for (uint32_t r = 0; r < rows[g]; r++, n++) {
            assert_true(n < MOST_ROWS);
            f->positions[n] = f->segment[g].first_position + r;
            f->segment_of[n] = g;
        }
    }
    f->batch = (row_batch){.rows = n, .segments = segments, .positions = f->positions, .segment_of = f->segment_of, .segment = f->segment};
    f->ref.batch = f->ref.whole = &f->batch;
    f->in_stride = shape_mixer_in_values(&f->w.shape), f->out_stride = shape_mixer_out_values(&f->w.shape);
    assert_int_equal(f->in_stride % 4, 0);
    f->in = kernel_floats((size_t)n * f->in_stride, 1);
    f->out = kernel_nans((size_t)n * f->out_stride);
    f->want = kernel_nans((size_t)n * f->out_stride);
    float *in = kernel_alloc((size_t)n * f->in_stride * sizeof *in); /* the reference rotates in place */
    memcpy(in, f->in, (size_t)n * f->in_stride * sizeof *in);
    f->ref.buf[BUF_MIXER_IN] = in;
    f->ref.buf[BUF_MIXER_OUT] = f->want;
}

static void set_up_step(fixture *f) {
    metal_segment *segments = kernel_alloc(f->batch.segments * sizeof *segments);
    for (uint32_t g = 0; g < f->batch.segments; g++) {
        const batch_segment *s = &f->segment[g];
        segments[g] = (metal_segment){s->first_row, s->rows, s->first_position, s->slot_src, s->slot_dst, s->first_page, s->pages};
    }
    f->step = (metal_step){.positions = DEVICE(f->positions),
                           .segment_of = DEVICE(f->segment_of),
                           .segment = DEVICE(segments),
                           .page_table = DEVICE(f->batch.page_table),
                           .rows = f->batch.rows,
                           .segments = f->batch.segments};
}

/* Rows of long segments as the reference has them, of short ones not touched. */
static void check_out(const fixture *f, const char *what, uint32_t values, double tolerance) {
    double worst = 0;
    for (uint32_t r = 0; r < f->batch.rows; r++)
        for (uint32_t i = 0; i < values; i++) {
            const float got = f->out[(size_t)r * f->out_stride + i];
            if (f->segment[f->segment_of[r]].rows < SHORT) {
                assert_true(isnan(got));
                continue;
            }
            const double want = (double)f->want[(size_t)r * f->out_stride + i];
            kernel_close(what, (double)got, want, tolerance);
            worst = fmax(worst, fabs((double)got - want));
        }
    print_message("%s: %u rows, off by %.1e at most\n", what, f->batch.rows, worst);
}

/* ---- delta net ---- */

/* equal_keys: all inputs of k the same, β near 1: the solve must not blow up.  memory: log2 of the tokens that a head remembers, about. */
static void check_gdn(uint32_t key_heads, uint32_t value_heads, const uint32_t *rows, uint32_t segments, bool equal_keys) {
    enum { SLOTS = 2 * MOST_SEGMENTS };
    const model_shape shape = {.hidden = 64, .gdn_key_heads = key_heads, .gdn_value_heads = value_heads};
    static fixture f;
    set_up(&f, &shape, rows, NULL, segments);
    const uint32_t C = shape_conv_channels(&f.w.shape), V = value_heads, n = f.batch.rows;
    const size_t state_n = (size_t)V * 128 * 128, window_n = (size_t)3 * C;
    for (uint32_t g = 0; g < segments; g++) {
        f.segment[g].slot_src = g % 2 ? NO_SLOT : 2 * g;
        f.segment[g].slot_dst = 2 * g + 1;
    }
    set_up_step(&f);
    float *conv = kernel_floats((size_t)C * 4, 1), *a_log = kernel_floats(V, 3), *dt_bias = kernel_floats(V, 4),
          *decay = kernel_alloc(V * sizeof *decay);
    for (uint32_t h = 0; h < V; h++) a_log[h] -= 3; /* e^-6 … 1: a memory of one token to thousands */
    for (uint32_t h = 0; h < V; h++) decay[h] = expf(a_log[h]);
    float *ref_in = f.ref.buf[BUF_MIXER_IN];
    if (equal_keys)
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < C + V * 128 + 2 * V; i++) {
                const size_t at = (size_t)r * f.in_stride + i;
                if (i >= 128 * key_heads && i < 256 * key_heads) f.in[at] = 1;
                if (i >= C + V * 128 + V) f.in[at] = 20;
                ref_in[at] = f.in[at];
            }
    f.layer.conv = vector(conv, C * 4), f.layer.a_log = vector(a_log, V), f.layer.dt_bias = vector(dt_bias, V);

    float *state = kernel_floats(SLOTS * state_n, 0.3f), *window = kernel_floats(SLOTS * window_n, 1),
          *ref_state = kernel_alloc(SLOTS * state_n * sizeof *state), *ref_window = kernel_alloc(SLOTS * window_n * sizeof *window);
    memcpy(ref_state, state, SLOTS * state_n * sizeof *state), memcpy(ref_window, window, SLOTS * window_n * sizeof *window);
    f.ref.limits.slots = SLOTS;
    f.ref.buf[BUF_STATE] = ref_state, f.ref.buf[BUF_CONV] = ref_window;
    f.ref.scratch.vec = kernel_nans((size_t)C * 4), f.ref.scratch.conv = kernel_nans(C);
    float *before = kernel_alloc(SLOTS * state_n * sizeof *before);
    memcpy(before, state, SLOTS * state_n * sizeof *state);
    ref_gdn_mix(&f.ref, 0);

    const size_t scratch_bytes = METAL_GDN_SCRATCH(n, segments, key_heads, V);
    void *scratch = kernel_alloc(scratch_bytes);
    const metal_gdn_args a = {.conv = DEVICE(conv),
                              .decay = DEVICE(decay),
                              .dt_bias = DEVICE(dt_bias),
                              .in = DEVICE(f.in),
                              .out = DEVICE(f.out),
                              .state = DEVICE(state),
                              .window = DEVICE(window),
                              .scratch = DEVICE(scratch),
                              .in_stride = f.in_stride,
                              .out_stride = f.out_stride,
                              .key_heads = key_heads,
                              .value_heads = V,
                              .channels = C,
                              .first = SHORT,
                              .beyond = UINT32_MAX};
    const uint32_t chunks = METAL_GDN_CHUNKS(n, segments);
    const kernel_out written[4] = {{scratch, scratch_bytes},
                                   {window, SLOTS * window_n * sizeof *window},
                                   {state, SLOTS * state_n * sizeof *state},
                                   {f.out, (size_t)n * f.out_stride * sizeof *f.out}};
    kernel_run("gdn_conv", &a, sizeof a, &f.step, (uint32_t[]){chunks, C / 128, 1}, 32, 0, written, 4);
    kernel_run("gdn_chunks", &a, sizeof a, &f.step, (uint32_t[]){chunks, key_heads, 1}, 128, METAL_TG_GDN_CHUNKS, written, 4);
    kernel_run("gdn_scan", &a, sizeof a, &f.step, (uint32_t[]){V * 4, segments, 1}, 256, METAL_TG_GDN_SCAN, written, 4);

    check_out(&f, "delta net", shape_gdn_values(&f.w.shape), 1e-6);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const uint32_t g = slot / 2;
        const bool done = slot % 2 && g < segments && rows[g] >= SHORT;
        for (size_t i = 0; i < state_n; i++) {
            const size_t at = slot * state_n + i;
            if (done)
                kernel_close("state", (double)state[at], (double)ref_state[at], 2e-6);
            else
                assert_true(state[at] == before[at]);
        }
        for (size_t i = 0; done && i < window_n; i++) assert_true(window[slot * window_n + i] == ref_window[slot * window_n + i]);
    }
    kernel_free_all();
}

static void test_gdn(void **state) {
    (void)state;
    check_gdn(1, 2, (uint32_t[]){97}, 1, false);
    check_gdn(2, 4, (uint32_t[]){33, 5, 64, 16}, 4, false);
    check_gdn(2, 2, (uint32_t[]){16, 17, 31}, 3, false);
    check_gdn(1, 2, (uint32_t[]){70}, 1, true);
    if (!kernels_watched) check_gdn(1, 6, (uint32_t[]){40}, 1, false);
}

/* ---- attention ---- */

static void check_attention(calla_kv kv, uint32_t heads, uint32_t kv_heads, const uint32_t *rows, const uint32_t *positions,
                            uint32_t segments, uint32_t splits) {
    enum { PAGES = 12 };
    const model_shape shape = {.hidden = 64, .attention_heads = heads, .kv_heads = kv_heads, .is_attention = {true}, .rope_theta = 1e7};
    static fixture f;
    set_up(&f, &shape, rows, positions, segments);
    uint32_t pages = 0, most = 0, *page_table = kernel_alloc(PAGES * sizeof *page_table);
    for (uint32_t g = 0; g < segments; g++) {
        const uint32_t end = positions[g] + rows[g];
        most = end > most ? end : most;
        f.segment[g].first_page = pages;
        f.segment[g].pages = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        for (uint32_t p = 0; p < f.segment[g].pages; p++, pages++) page_table[pages] = (pages * 5 + 3) % PAGES; /* each once */
    }
    assert_true(pages <= PAGES);
    f.batch.page_table = page_table;
    set_up_step(&f);
    const uint32_t n = f.batch.rows;
    const uint64_t block = kv_block_bytes(kv), cache_bytes = (uint64_t)PAGES * 2 * kv_heads * block;
    float *q_gain = kernel_floats(256, 1), *k_gain = kernel_floats(256, 1), *rotary = kernel_nans((size_t)n * 64);
    for (uint32_t i = 0; i < 256; i++) q_gain[i] += 1.5f, k_gain[i] += 1.5f;
    f.layer.q_norm = vector(q_gain, 256), f.layer.k_norm = vector(k_gain, 256);
    for (uint32_t r = 0; r < n; r++) ref_rope_angles(f.positions[r], 1e7, rotary + r * 64, rotary + r * 64 + 32);
    f.step.rotary = DEVICE(rotary);

    /* What earlier batches have left; all else is NaN. */
    uint8_t *cache = kernel_alloc(cache_bytes), *ref_cache = kernel_alloc(cache_bytes);
    for (uint32_t g = 0; g < segments; g++)
        for (uint32_t t = 0; t < positions[g]; t++)
            for (uint32_t h = 0; h < 2 * kv_heads; h++) {
                float x[HEAD_DIM];
                for (uint32_t i = 0; i < HEAD_DIM; i++) x[i] = kernel_uniform(2);
                const uint32_t page = page_table[f.segment[g].first_page + t / KV_PAGE_TOKENS];
                ref_kv_store(cache + (page * 2 * kv_heads + h) * block, kv, t % KV_PAGE_TOKENS, x);
            }
    memcpy(ref_cache, cache, cache_bytes);
    f.ref.limits.pages = PAGES, f.ref.limits.kv = kv;
    f.ref.buf[BUF_KV] = ref_cache;
    f.ref.scratch.scores = kernel_nans((size_t)heads / kv_heads * most);
    ref_attention_mix(&f.ref, 0);

    const size_t query_bytes = METAL_QUERIES(n, heads) * sizeof(float);
    const size_t partial_bytes = (size_t)n * heads * splits * METAL_PARTIAL * sizeof(float);
    float *queries = kernel_alloc(query_bytes), *partial = kernel_alloc(partial_bytes);
    metal_attention_args a = {.in = DEVICE(f.in),
                              .out = DEVICE(f.out),
                              .q_gain = DEVICE(q_gain),
                              .k_gain = DEVICE(k_gain),
                              .kv = DEVICE(cache),
                              .partial = DEVICE(partial),
                              .queries = DEVICE(queries),
                              .in_stride = f.in_stride,
                              .out_stride = f.out_stride,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .first = SHORT,
                              .beyond = UINT32_MAX,
                              .norm_eps = 1e-6f};
    const kernel_out written[4] = {
        {cache, cache_bytes}, {queries, query_bytes}, {partial, partial_bytes}, {f.out, (size_t)n * f.out_stride * sizeof *f.out}};
    char name[64];
    const char *type = kv == CALLA_KV_F32 ? "kf32" : kv == CALLA_KV_BF16 ? "kb16" : "kq8";
    snprintf(name, sizeof name, "attention_write_%s", type);
    kernel_run(name, &a, sizeof a, &f.step, (uint32_t[]){heads + 2 * kv_heads, n, 1}, 32, 0, written, 4);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < 2 * kv_heads; h++) {
            float got[HEAD_DIM], want[HEAD_DIM];
            const uint32_t t = f.positions[r], page = page_table[f.segment[f.segment_of[r]].first_page + t / KV_PAGE_TOKENS];
            ref_kv_load(cache + (page * 2 * kv_heads + h) * block, kv, t % KV_PAGE_TOKENS, got);
            ref_kv_load(ref_cache + (page * 2 * kv_heads + h) * block, kv, t % KV_PAGE_TOKENS, want);
            for (uint32_t i = 0; i < HEAD_DIM; i++)
                kernel_close("cache", (double)got[i], (double)want[i],
                             (kv == CALLA_KV_F32    ? 1e-6
                              : kv == CALLA_KV_BF16 ? 0x1p-8
                                                    : 6.0 / 127) *
                                 (fabs((double)want[i]) + 1)); /* the last bit, or the next code, at most */
        }
    uint64_t seen = 0; /* positions by all tiles, each for up to 64 queries */
    const uint32_t tile_rows = 64 / (heads / kv_heads);
    for (uint32_t g = 0; g < segments; g++)
        for (uint32_t r = 0; rows[g] >= SHORT && r < rows[g]; r += tile_rows)
            seen += positions[g] + (r + tile_rows < rows[g] ? r + tile_rows : rows[g]);
    static const char *const precisions[] = {"exact", "fast", "tensor"};
    for (int fast = 0; fast < 3; fast++) {
        a.half_queries = fast > 0;
        snprintf(name, sizeof name, "attention_write_%s", type);
        kernel_run(name, &a, sizeof a, &f.step, KERNEL_GRID(heads, n, 1), 32, 0, written, 4);
        f.step.long_splits = splits;
        snprintf(name, sizeof name, "attention_%s_%s", type, precisions[fast]);
        kernel_run(name, &a, sizeof a, &f.step, KERNEL_GRID(METAL_TILES(n, segments), kv_heads, splits), METAL_PREFILL_THREADS,
                   METAL_TG_PREFILL, written, 4);
        const uint64_t scales = kv == CALLA_KV_Q8 ? (HEAD_DIM / 8 - HEAD_DIM / KV_GROUP) * 4 : 0; /* read again with each 8 values */
        if (kernels_watched) assert_int_equal(kernel_loads(cache), seen * 2 * kv_heads * (block / KV_PAGE_TOKENS + scales));
        if (splits > 1)
            kernel_run("attention_combine", &a, sizeof a, &f.step, KERNEL_GRID(heads * METAL_COMBINE_PARTS, n, 1), METAL_COMBINE_THREADS,
                       METAL_TG_COMBINE, written, 4);
        check_out(&f, name, heads * HEAD_DIM, fast || kv != CALLA_KV_F32 ? 1e-2 /* where the last bit of a key differs */ : 1e-5);
    }
    kernel_free_all();
}

static void test_attention(void **state) {
    (void)state;
    check_attention(CALLA_KV_BF16, 8, 1, (uint32_t[]){16}, (uint32_t[]){0}, 1, 1);
    check_attention(CALLA_KV_F32, 4, 2, (uint32_t[]){17, 3, 40}, (uint32_t[]){0, 9, 240}, 3, 3); /* over a page's end; an empty split */
    check_attention(CALLA_KV_F32, 6, 1, (uint32_t[]){16, 23}, (uint32_t[]){5, 0}, 2, 1);         /* a group that does not divide 64 */
    if (kernels_watched) return;                                                                 /* a tenth of the speed */
    check_attention(CALLA_KV_F32, 2, 1, (uint32_t[]){35}, (uint32_t[]){31}, 1,
                    2); /* 32 rows of 2 heads; rows that see nothing of a split */
    check_attention(CALLA_KV_F32, 16, 2, (uint32_t[]){33}, (uint32_t[]){256}, 1, 1);
    check_attention(CALLA_KV_BF16, 8, 2, (uint32_t[]){17, 3, 40}, (uint32_t[]){0, 70, 500}, 3, 5);
    check_attention(CALLA_KV_Q8, 8, 2, (uint32_t[]){17, 40}, (uint32_t[]){0, 240}, 2, 2);
}

/* ---- rows ---- */

static void test_rows(void **state) {
    (void)state;
    static const uint32_t cols[] = {128, 256, 384, 2048};
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
        for (uint32_t run = 0; run < 8; run++) {
            const uint32_t source = METAL_PLAIN + run / 2, parts = run % 2 ? 3 : 1, n = cols[c], rows = 3, x_stride = n + 4,
                           gate_stride = 2 * (n + 255) / 256 * 256;
            float *x = kernel_floats((size_t)rows * x_stride, 3), *gain = kernel_floats(n, 2),
                  *gate = kernel_floats((size_t)rows * gate_stride, 8), *out = kernel_nans((size_t)rows * n), want[2048];
            const metal_rows_args a = {.in = {.x = DEVICE(x),
                                              .gain = DEVICE(gain),
                                              .gate = DEVICE(gate),
                                              .source = source,
                                              .x_stride = x_stride,
                                              .gate_stride = gate_stride,
                                              .eps = 1e-6f},
                                       .out = DEVICE(out),
                                       .cols = n};
            const metal_step t = {.rows = rows};
            const kernel_out written = {out, (size_t)rows * n * sizeof *out};
            kernel_run("rows_input", &a, sizeof a, &t, (uint32_t[]){rows, parts, 1}, 256, METAL_TG_ROWS, &written, 1);
            for (uint32_t r = 0; r < rows; r++) {
                const float *from = x + (size_t)r * x_stride, *g = gate + (size_t)r * gate_stride;
                memcpy(want, from, n * sizeof *want);
                if (source == METAL_NORM) ref_rmsnorm(from, gain, 1e-6f, n, want);
                for (uint32_t h = 0; source == METAL_GATED_NORM && h < n; h += 128) ref_rmsnorm(from + h, gain, 1e-6f, 128, want + h);
                for (uint32_t i = 0; i < n; i++) {
                    if (source == METAL_GATED_NORM) want[i] *= ref_silu(g[i]);
                    if (source == METAL_GATED) want[i] *= ref_sigmoid(g[i / 256 * 512 + i % 256]);
                    kernel_close("rows_input", (double)out[(size_t)r * n + i], (double)want[i],
                                 16 * (double)FLT_EPSILON * fabs((double)want[i]));
                }
            }
            kernel_free_all();
        }

    float *x = kernel_floats((size_t)5 * 96, 1), *out = kernel_nans((size_t)3 * 96);
    const uint32_t wanted[] = {1, 2, 4};
    const metal_gather_args a = {.x = DEVICE(x), .out = DEVICE(out), .cols = 96};
    const metal_step t = {.wanted_row = DEVICE(kernel_copy(wanted, sizeof wanted))};
    const kernel_out written = {out, (size_t)3 * 96 * sizeof *out};
    kernel_run("gather_rows", &a, sizeof a, &t, (uint32_t[]){3, 1, 1}, 256, 0, &written, 1);
    for (uint32_t i = 0; i < 3; i++) assert_memory_equal(out + (size_t)i * 96, x + (size_t)wanted[i] * 96, 96 * sizeof *out);
    kernel_free_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_gdn), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

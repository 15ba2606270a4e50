/* test_ops.c: each composite op of a backend that keeps what each op gives (ref, or what CALLA_TEST_DEVICE names: cuda) against float64
 * numpy (tools/reference/record_ops.py), driven through the backend's table exactly as the model drives it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "model/model.h"
#include "support/arrays.h"
#include "support/model_run.h"
#include "unit.h"

enum { ROWS = 7 };
static const double TOLERANCE = 5e-5; /* values are of order 1 to 10; float32 errors of the layers before are in them */

typedef struct fixture {
    arrays *ref;
    weights *w;
    const backend_vtable *vt;
    backend *device;
    row_batch batch;
} fixture;

static void compare(fixture *f, const char *layer, const char *name, buffer_id id, uint64_t first, uint32_t stride, uint32_t values) {
    char key[64];
    size_t n;
    snprintf(key, sizeof key, "%s%s", layer, name);
    float *want = arrays_f32(f->ref, key, &n), *got = malloc(n * sizeof *got + 1);
    assert_non_null(got);
    assert_int_equal(n, (size_t)ROWS * values);
    for (uint32_t r = 0; r < ROWS; r++) f->vt->peek(f->device, id, first + (uint64_t)r * stride, values, got + (size_t)r * values);
    double d = largest_difference(want, got, n);
    print_message("%s%s: %.1e\n", layer, name, d);
    assert_true(d <= TOLERANCE);
    free(want), free(got);
}

/* Experts are recorded as integers. */
static void compare_experts(fixture *f, const char *layer, uint32_t k) {
    char key[64];
    size_t n;
    uint32_t got[ROWS * MAX_TOP_K];
    snprintf(key, sizeof key, "%sexpert", layer);
    int32_t *want = arrays_i32(f->ref, key, &n);
    assert_int_equal(n, (size_t)ROWS * k);
    f->vt->peek(f->device, BUF_ROUTE_EXPERT, 0, n, (float *)got);
    assert_memory_equal(want, got, n * sizeof *got);
    free(want);
}

static void run_layer(fixture *f, uint32_t l, const char *name) {
    const model_shape *s = &f->w->shape;
    const uint32_t mixer_in = s->is_attention[l] ? 2 * shape_query_values(s) + 2 * shape_kv_values(s)
                                                 : shape_conv_channels(s) + shape_gdn_values(s) + 2 * s->gdn_value_heads;
    const uint32_t mixer_out = s->is_attention[l] ? shape_query_values(s) : shape_gdn_values(s);
    compare(f, name, "in", BUF_RESIDUAL, 0, s->hidden, s->hidden);
    f->vt->mixer_in(f->device, l);
    compare(f, name, "mixer_in", BUF_MIXER_IN, 0, shape_mixer_in_values(s), mixer_in);
    f->vt->mixer(f->device, l);
    compare(f, name, "mixer_out", BUF_MIXER_OUT, 0, shape_mixer_out_values(s), mixer_out);
    f->vt->mixer_out(f->device, l);
    compare(f, name, "residual", BUF_RESIDUAL, 0, s->hidden, s->hidden);
    f->vt->route(f->device, l);
    compare(f, name, "moe_in", BUF_MOE_IN, 0, s->hidden, s->hidden);
    compare_experts(f, name, s->top_k);
    compare(f, name, "weight", BUF_ROUTE_WEIGHT, 0, s->top_k, s->top_k);
    compare(f, name, "shared", BUF_SHARED, 0, s->shared_width, s->shared_width);
    compare(f, name, "shared_gate", BUF_SHARED, (uint64_t)ROWS * s->shared_width, 1, 1);
    f->vt->expert_in(f->device, l);
    compare(f, name, "experts", BUF_EXPERT, 0, s->top_k * s->expert_width, s->top_k * s->expert_width);
    f->vt->expert_out(f->device, l);
    compare(f, name, "out", BUF_RESIDUAL, 0, s->hidden, s->hidden);
}

static void test_ops(void **state) {
    fixture *f = *state;
    calla_error err;
    assert_int_equal(f->vt->begin(f->device, &f->batch, &err), CALLA_OK);
    f->vt->embed(f->device);
    compare(f, "", "embed", BUF_RESIDUAL, 0, f->w->shape.hidden, f->w->shape.hidden);
    for (uint32_t l = 0; l < f->w->shape.layers; l++) {
        if (l == 0)
            run_layer(f, l, "l0.");
        else if (f->w->shape.is_attention[l])
            run_layer(f, l, "l3.");
        else {
            f->vt->mixer_in(f->device, l), f->vt->mixer(f->device, l), f->vt->mixer_out(f->device, l);
            f->vt->route(f->device, l), f->vt->expert_in(f->device, l), f->vt->expert_out(f->device, l);
        }
    }
    assert_int_equal(f->vt->finish(f->device, &err), CALLA_OK);
}

static int32_t *ids;
static uint32_t positions[ROWS], segment_of[ROWS], page_table[1], no_rows[1];
static batch_segment segment = {0, ROWS, 0, NO_SLOT, 1, 0, 1};

static int set_up(void **state) {
    static fixture f;
    size_t n;
    calla_error err;
    f.ref = arrays_open(test_data("kernels/ops.safetensors"));
    ids = arrays_i32(f.ref, "ids", &n);
    const char *device = getenv("CALLA_TEST_DEVICE");
    f.vt = backend_find(device ? device : "ref");
    if (!f.vt) return -1;
    model_options o = {
        .backend = f.vt, .batch_rows = ROWS, .max_segments = 1, .max_wanted = 1, .sequences = 1, .kv_tokens = ROWS, .kv = CALLA_KV_F32};
    model_plan plan;
    if (n != ROWS || weights_open(test_data("checkpoints/tiny-a"), &f.w, &err)) return -1;
    model_plan_compute(&f.w->shape, &o, &plan);
    if (f.vt->open(f.w, &plan.limits, &f.device, &err) || f.vt->allocate(f.device, plan.bytes, &err)) return -1;
    if (f.vt->load && f.vt->load(f.device, NULL, NULL, &err)) return -1;
    for (uint32_t i = 0; i < ROWS; i++) positions[i] = i;
    f.batch = (row_batch){.rows = ROWS,
                          .segments = 1,
                          .ids = ids,
                          .positions = positions,
                          .segment_of = segment_of,
                          .segment = &segment,
                          .page_table = page_table,
                          .wanted_row = no_rows};
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    f->vt->close(f->device);
    weights_close(f->w);
    arrays_close(f->ref);
    free(ids);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

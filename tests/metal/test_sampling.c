/* test_sampling.c: tokens that the Metal device picks itself, held to masks, against the reference's sampler over the same logits; in
 * batches of few rows, of many, and of more wanted rows than the device picks for. */
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal.h"
#include "backend/ref/sample.h"
#include "backend/vtables.h"
#include "base/random.h"
#include "fake_metal.h"
#include "metal/small_model.h"
#include "model/plan.h"
#include "support/arrays.h"
#include "unit.h"

enum { ROWS = 20, SAMPLES = 16, VOCABULARY = 320, TOKENS = 301 /* the rest is padding */, WORDS = (TOKENS + 31) / 32 };

static weights *w;
static backend *b;
static uint32_t masks[4][WORDS]; /* half of the ids; a few; one; none */
static uint8_t scratch[VOCABULARY * 32];

static int open_backend(void **state) {
    (void)state;
    calla_error err = {0};
    model_plan plan;
    model_options o = small_model(ROWS);
    o.max_wanted = ROWS;
    if (weights_open(test_data("checkpoints/tiny-a"), &w, &err)) fail_msg("%s", err.message);
    model_plan_compute(&w->shape, &o, &plan);
    plan.limits.samples = SAMPLES;
    if (metal_vtable.open(w, &plan.limits, &b, &err) || metal_vtable.allocate(b, plan.bytes, &err) ||
        metal_vtable.load(b, NULL, NULL, &err))
        fail_msg("%s", err.message);
    for (uint32_t id = 0; id < TOKENS; id++) {
        const float u = random_uniform(3, 1, id);
        masks[0][id / 32] |= (uint32_t)(u < 0.5f) << id % 32;
        masks[1][id / 32] |= (uint32_t)(u < 0.02f) << id % 32;
        masks[2][id / 32] |= (uint32_t)(id == 299) << id % 32;
    }
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    metal_vtable.close(b);
    weights_close(w);
    if (fake_metal_broken()) fail_msg("%s", fake_metal_broken());
    return 0;
}

/* One sequence from its beginning, of whose last `wanted` rows the samples are. */
static void step(const int32_t *ids, uint32_t rows, uint32_t wanted, const uint32_t *sample_of, const sample_request *samples, uint32_t n) {
    const backend_vtable *vt = &metal_vtable;
    uint32_t positions[ROWS], zeros[ROWS] = {0}, wanted_row[ROWS], page = 0;
    calla_error err = {0};
    for (uint32_t i = 0; i < rows; i++) positions[i] = i;
    for (uint32_t i = 0; i < wanted; i++) wanted_row[i] = rows - wanted + i;
    const batch_segment segment = {.rows = rows, .slot_src = NO_SLOT, .pages = 1};
    row_batch t = {.rows = rows,
                   .segments = 1,
                   .wanted = wanted,
                   .samples = n,
                   .ids = ids,
                   .positions = positions,
                   .segment_of = zeros,
                   .segment = &segment,
                   .page_table = &page,
                   .wanted_row = wanted_row,
                   .sample_of = sample_of,
                   .sample = samples};
    batch_segment last_segment = segment; /* as model.c describes it */
    row_batch last = t;
    last_segment.rows = last.rows = wanted;
    last_segment.first_position = rows - wanted;
    last.ids = NULL;
    last.positions = positions + rows - wanted;
    last.wanted_row = positions;
    last.segment = &last_segment;
    t.last = rows > wanted ? &last : NULL;
    if (vt->begin(b, &t, &err)) fail_msg("%s", err.message);
    vt->embed(b);
    for (uint32_t layer = 0; layer < w->shape.layers; layer++) {
        vt->mixer_in(b, layer);
        vt->mixer(b, layer);
        vt->mixer_out(b, layer);
        vt->route(b, layer);
        vt->expert_in(b, layer);
        vt->expert_out(b, layer);
    }
    vt->head(b);
    if (vt->submit(b, &err) || vt->collect(b, &err)) fail_msg("%s", err.message);
}

static sample_request request(const uint32_t *mask) {
    return (sample_request){.tokens = TOKENS, .repetition = 1, .top_p = 1, .mask = mask, .seed = 9};
}

static void assert_as_reference(const uint32_t *sample_of, const sample_request *samples, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        sample_result want;
        ref_sample(metal_vtable.logits(b, sample_of[i]), w->shape.vocabulary, &samples[i], scratch, &want);
        assert_int_equal(metal_vtable.sampled(b, i)->id, want.id);
        if (samples[i].mask == masks[2]) assert_int_equal(want.id, 299);
        if (samples[i].mask == masks[3]) assert_int_equal(want.id, -1);
    }
}

static const int32_t prompt[ROWS] = {1, 17, 200, 45, 45, 3, 119, 8, 250, 33, 9, 77, 140, 2, 6, 91, 300, 12, 18, 4};

/* Each wanted row under its own mask or none; the device answers them all. */
static void check_masks(uint32_t rows) {
    static const uint32_t sample_of[5] = {0, 1, 2, 3, 4};
    const sample_request samples[5] = {request(masks[1]), request(NULL), request(masks[2]), request(masks[0]), request(masks[3])};
    step(prompt, rows, 5, sample_of, samples, 5);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(b->best_of[i], i);
    assert_as_reference(sample_of, samples, 5);
}

static void test_few_rows(void **state) {
    (void)state;
    check_masks(5);
    check_masks(8);
}

static void test_many_rows(void **state) {
    (void)state;
    check_masks(ROWS);
}

/* What the device has no mask for, or more to do than that, is picked by the host. */
static void test_left_to_the_host(void **state) {
    (void)state;
    static const uint32_t sample_of[6] = {1, 1, 1, 0, 2, 2};
    sample_request samples[6] = {request(masks[0]), request(masks[1]), request(NULL), request(masks[2]), request(NULL), request(masks[0])};
    step(prompt, 6, 3, sample_of, samples, 6); /* two masks and none for one row */
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(b->best_of[i], i == 0 || i == 3 || i == 4 ? sample_of[i] : UINT32_MAX);
    assert_as_reference(sample_of, samples, 6);
    for (uint32_t i = 0; i < 6; i++) samples[i].temperature = 0.8f;
    samples[5].tokens = 200; /* of another vocabulary than the first */
    step(prompt, 6, 3, sample_of, samples, 6);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(b->best_of[i], UINT32_MAX);
    assert_as_reference(sample_of, samples, 6);
    uint32_t each[SAMPLES];
    sample_request many[SAMPLES];
    for (uint32_t i = 0; i < SAMPLES; i++) each[i] = i, many[i] = request(i % 5 < 4 ? masks[i % 5] : NULL);
    step(prompt, ROWS, SAMPLES, each, many, SAMPLES);
    for (uint32_t i = 0; i < SAMPLES; i++) assert_int_equal(b->best_of[i], UINT32_MAX);
    assert_as_reference(each, many, SAMPLES);
}

/* The next step can name a token that was picked under a mask: it is embedded as if the host had said its id. */
static void test_next_step(void **state) {
    (void)state;
    static const uint32_t sample_of[3] = {0, 1, 2}, none = 0;
    static float named[VOCABULARY];
    const sample_request samples[3] = {request(masks[2]), request(masks[1]), request(masks[0])}, plain = request(NULL);
    step(prompt, 4, 3, sample_of, samples, 3);
    int32_t picked[3];
    for (uint32_t i = 0; i < 3; i++) picked[i] = metal_vtable.sampled(b, i)->id;
    assert_true(picked[0] != picked[1] && picked[1] != picked[2]);
    step((int32_t[]){-1, -3, -2}, 3, 1, &none, &plain, 1);
    memcpy(named, metal_vtable.logits(b, 0), w->shape.vocabulary * sizeof *named);
    step((int32_t[]){picked[0], picked[2], picked[1]}, 3, 1, &none, &plain, 1);
    assert_memory_equal(named, metal_vtable.logits(b, 0), w->shape.vocabulary * sizeof *named);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_few_rows), cmocka_unit_test(test_many_rows),
                                       cmocka_unit_test(test_left_to_the_host), cmocka_unit_test(test_next_step)};
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}

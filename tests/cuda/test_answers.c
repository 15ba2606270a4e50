/* test_answers.c: answers drawn with the same seeds are the same on cpu and cuda, in exact precision: many texts, eight at once, each with another
 * way to pick, masks and forced tokens among them; and nearly every step is submitted before the one before is seen, unless the host has to
 * pick.  Needs an NVIDIA GPU.
 *
 * A logit differs by some 1e-6 between the two, so that a draw falls to another token once in some 100,000. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/vtables.h"
#include "engine/engine.h"
#include "engine/stripes.h"
#include "support/arrays.h"
#include "unit.h"

enum { TEXTS = 48, AT_ONCE = 8, TOKENS = 120, ON_DEVICE = 40 /* the others want log-probabilities, of the host */ };

static const char *const beginning[] = {
    "Once upon a time", "The capital of France is", "A list of animals:", "def fibonacci(n):", "The sea was calm and", "In the year 1900"};

static uint32_t steps, ahead; /* submitted, and while the one before was under way */

static calla_status counted_submit(backend *b, calla_error *err) {
    steps++;
    ahead += b->under_way > 0;
    return cuda_vtable.submit(b, err);
}

static stripes guides[TEXTS];

static calla_generate_options way_to_pick(uint32_t i) {
    calla_generate_options o = sampling_options(TOKENS, 1000 + i);
    static const int32_t ids[] = {5, 300, 1000};
    static const float bias[] = {-2, 1.5f, 2};
    o.logprobs = i >= ON_DEVICE;
    o.n_top_logprobs = 0;
    switch (i % 8) {
    case 0: o.sampling.temperature = 0; break;
    case 1: o.sampling.top_k = 20, o.sampling.top_p = 0.95f; break;
    case 2: o.sampling.top_k = 256, o.sampling.min_p = 0.02f; break;
    case 3: o.sampling.top_k = 40, o.sampling.repetition_penalty = 1.2f; break;
    case 4: o.sampling.top_k = 64, o.sampling.presence_penalty = 0.5f, o.sampling.frequency_penalty = 0.3f; break;
    case 5: o.guide = stripes_guide(&guides[i], 8192, 3, i % 3); break;
    case 6: o.sampling.temperature = 0, o.force = (calla_force){.after = i, .n = 3, .ids = {300, 1000, 5}}; break;
    default: o.sampling.bias_ids = ids, o.sampling.bias = bias, o.sampling.n_bias = 3; /* and a draw from the whole vocabulary */
    }
    return o;
}

/* The first `n` texts. */
static void answer(const backend_vtable *device, uint32_t n, transcript *t) {
    const calla_engine_options o = {
        .model_dir = test_models("pocket"), .device = device->name, .context_tokens = 512, .max_sequences = AT_ONCE, .kv = CALLA_KV_F32};
    calla_engine *e = NULL;
    calla_error err = {0};
    calla_session *s[TEXTS];
    if (engine_open_on(&o, device, 0, &e, &err)) fail_msg("%s", err.message);
    for (uint32_t i = 0; i < n; i++) {
        calla_ids ids;
        char text[128];
        snprintf(text, sizeof text, "%s %u", beginning[i % 6], i);
        if (calla_text_encode(calla_engine_text(e), text, strlen(text), &ids, &err)) fail_msg("%s", err.message);
        const calla_generate_options how = way_to_pick(i);
        s[i] = open_session(e, ids.ids, ids.n);
        start(s[i], &how, &t[i]);
        calla_ids_free(&ids);
    }
    for (uint32_t i = 0; i < n; i++) {
        calla_session_wait(s[i]);
        calla_session_close(s[i]);
    }
    calla_engine_close(e);
}

static void test_same_answers(void **state) {
    (void)state;
    transcript *cpu = calloc(TEXTS, sizeof *cpu), *cuda = calloc(TEXTS, sizeof *cuda);
    uint32_t wrong = 0, tokens = 0;
    assert_true(cpu && cuda);
    answer(backend_find("cpu"), TEXTS, cpu);
    backend_vtable counted = cuda_vtable;
    counted.submit = counted_submit;
    answer(&counted, ON_DEVICE, cuda);
    print_message("%u of %u steps were submitted ahead\n", ahead, steps);
    assert_true(ahead > steps * 9 / 10);
    answer(&counted, TEXTS, cuda);
    for (uint32_t i = 0; i < TEXTS; i++) {
        uint32_t same = 0;
        while (same < TOKENS && cpu[i].ids[same] == cuda[i].ids[same]) same++;
        tokens += same;
        assert_int_equal(cpu[i].n, TOKENS);
        assert_int_equal(cuda[i].n, TOKENS);
        if (same < TOKENS) print_message("text %u: the same up to token %u\n", i, same), wrong++;
    }
    print_message("%u of %u answers are the same, %u tokens\n", TEXTS - wrong, TEXTS, tokens);
    assert_int_equal(wrong, 0);
    free(cpu), free(cuda);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

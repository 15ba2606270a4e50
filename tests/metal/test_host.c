/* test_host.c: the Metal backend's host on a device that is absent, small, late, or that fails at any call: the answers are the same or the
 * error says why, nothing stays behind, and no rule of Metal is broken.  And how many dispatches and barriers a token takes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal.h"
#include "backend/vtables.h"
#include "base/memory.h"
#include "fake_metal.h"
#include "metal/full_size.h"
#include "metal/small_model.h"
#include "model/model.h"
#include "model/plan.h"
#include "support/arrays.h"
#include "support/shift_checkpoint.h"
#include "support/temp_dir.h"
#include "unit.h"

enum { PROMPT = 20, DECODED = 2, VOCABULARY = 512 };

static const char *checkpoint = "checkpoints/tiny-a";

static float logits[DECODED + 1][VOCABULARY], expected[DECODED + 1][VOCABULARY];

static calla_status step(model *m, sequence *s, const int32_t *ids, uint32_t rows, float *out, calla_error *err) {
    const model_segment g = {.sequence = s, .ids = ids, .rows = rows, .want = WANT_LAST};
    const calla_status status = model_step(m, &g, 1, NULL, NULL, err);
    if (!status) memset(out, 0, VOCABULARY * sizeof *out), memcpy(out, model_logits(m, 0, 0), model_get_shape(m)->vocabulary * sizeof *out);
    return status;
}

/* Opens the checkpoint on metal, processes a prompt and a few tokens more. */
static calla_status run(float (*out)[VOCABULARY], calla_error *err) {
    static const int32_t more[DECODED] = {7, 8};
    int32_t ids[PROMPT];
    weights *w = NULL;
    model *m = NULL;
    sequence *s = NULL;
    memset(out, 0, (DECODED + 1) * sizeof *out);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    calla_status status = weights_open(checkpoint[0] == '/' ? checkpoint : test_data(checkpoint), &w, err);
    model_options o = small_model(PROMPT);
    o.polite = true;
    if (!status) status = model_open(w, &o, &m, err);
    if (!status) status = sequence_open(m, &s, err);
    if (!status) status = step(m, s, ids, PROMPT, out[0], err);
    for (uint32_t i = 0; i < DECODED && !status; i++) status = step(m, s, &more[i], 1, out[1 + i], err);
    if (status == CALLA_E_DEVICE && s) { /* it stays so */
        calla_error again;
        assert_int_equal(step(m, s, more, 1, out[0], &again), CALLA_E_DEVICE);
        assert_string_equal(again.message, err->message);
    }
    if (s) sequence_close(s);
    model_close(m);
    weights_close(w);
    return status;
}

static void assert_clean(void) {
    char names[512];
    const char *broken = fake_metal_broken();
    if (broken) fail_msg("%s", broken);
    if (fake_metal_living(names, sizeof names)) fail_msg("still alive: %s", names);
}

static int back_to_normal(void **state) {
    (void)state;
    checkpoint = "checkpoints/tiny-a";
    fake_metal_is = (fake_metal_device){.absent = false};
    fake_metal_fail(0);
    return 0;
}

static void assert_same_answers(void) {
    calla_error err = {0};
    if (run(logits, &err)) fail_msg("%s", err.message);
    assert_memory_equal(logits, expected, sizeof logits);
    assert_clean();
}

static int first_run(void **state) {
    (void)state;
    calla_error err = {0};
    if (run(expected, &err)) return fprintf(stderr, "%s\n", err.message), -1;
    assert_clean();
    return 0;
}

static void test_absent(void **state) {
    (void)state;
    calla_error err = {0};
    fake_metal_is.absent = true;
    assert_int_equal(run(logits, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no Metal device"));
    fake_metal_is = (fake_metal_device){.other_family = true};
    assert_int_equal(run(logits, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "not an Apple GPU"));
    assert_clean();
}

/* What it cannot do it refuses by its name, before anything is loaded. */
static void test_refused(void **state) {
    (void)state;
    calla_error err = {0};
    weights *w;
    model *m;
    model_options o = small_model(PROMPT);
    o.deterministic = true;
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    assert_int_equal(model_open(w, &o, &m, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "--deterministic"));
    weights_close(w);
    assert_clean();
}

/* A kernel that gets fewer threads than it is written for. */
static void test_few_threads(void **state) {
    (void)state;
    calla_error err = {0};
    fake_metal_is.most_threads = 64;
    assert_int_equal(run(logits, &err), CALLA_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "the device 64 in simdgroups of 32"));
    assert_clean();
}

static void test_small(void **state) {
    (void)state;
    calla_error err = {0};
    fake_metal_is.working_set_bytes = 2 << 20;
    assert_int_equal(run(logits, &err), CALLA_E_NOMEM);
    print_message("%s\n", err.message);
    assert_non_null(strstr(err.message, "iogpu.wired_limit_mb="));
    assert_non_null(strstr(err.message, "--context"));
    fake_metal_is = (fake_metal_device){.largest_buffer_bytes = 64 << 10};
    assert_int_equal(run(logits, &err), CALLA_E_UNSUPPORTED); /* a matrix */
    assert_non_null(strstr(err.message, "in one piece"));
    fake_metal_is = (fake_metal_device){.largest_buffer_bytes = 256 << 10};
    assert_int_equal(run(logits, &err), CALLA_E_NOMEM); /* a buffer */
    assert_non_null(strstr(err.message, "in one piece"));
    assert_clean();
}

/* Weights that do not fit into one memory lie in several. */
static void test_many_memories(void **state) {
    (void)state;
    const model_shape *s;
    weights *w;
    calla_error err = {0};
    assert_int_equal(weights_open(test_data("checkpoints/tiny-a"), &w, &err), CALLA_OK);
    s = &w->shape;
    backend b = {.w = w, .s = s, .facts = {.largest_buffer_bytes = 100 << 10}};
    assert_int_equal(metal_place_weights(&b, &err), CALLA_OK);
    assert_true(b.weights.memories > 5);
    for (uint32_t i = 0; i < b.weights.memories; i++) assert_in_range(b.weights.memory[i].bytes, 1, 100 << 10);
    b.facts.largest_buffer_bytes = 1 << 10; /* no matrix fits */
    assert_int_equal(metal_place_weights(&b, &err), CALLA_E_UNSUPPORTED);
    mem_free(b.weights.layer);
    weights_close(w);
}

/* The same with tiny-b, whose weights of 11 MB are larger than any buffer. */
static void test_split_weights(void **state) {
    (void)state;
    static float whole[DECODED + 1][VOCABULARY];
    calla_error err = {0};
    checkpoint = "checkpoints/tiny-b";
    if (run(whole, &err)) fail_msg("%s", err.message);
    fake_metal_is.largest_buffer_bytes = 10 << 20;
    if (run(logits, &err)) fail_msg("%s", err.message);
    assert_memory_equal(logits, whole, sizeof logits);
    assert_clean();
}

/* A file whose tensors stand at multiples of 256 is used where it is mapped, and only the matrices that are joined are copied; unless it
 * is larger than a buffer may be. */
static void test_files_in_place(void **state) {
    (void)state;
    char *dir = temp_dir_new();
    weights *w;
    backend *b;
    model_plan plan;
    calla_error err = {0};
    const model_options o = small_model(1);
    uint64_t copied[2];
    align_checkpoint(test_data("checkpoints/tiny-a"), dir);
    for (int in_place = 0; in_place < 2; in_place++) {
        if (weights_open(in_place ? dir : test_data("checkpoints/tiny-a"), &w, &err)) fail_msg("%s", err.message);
        model_plan_compute(&w->shape, &o, &plan);
        if (metal_vtable.open(w, &plan.limits, &b, &err)) fail_msg("%s", err.message);
        copied[in_place] = b->weights.bytes - metal_bytes_in_place(&b->weights);
        assert_int_equal(b->weights.files, 1);
        assert_int_equal(b->weights.file[0].in_place, in_place);
        metal_vtable.close(b);
        if (in_place) {
            fake_metal_is.largest_buffer_bytes = 900000;
            if (metal_vtable.open(w, &plan.limits, &b, &err)) fail_msg("%s", err.message);
            assert_false(b->weights.file[0].in_place);
            metal_vtable.close(b);
            fake_metal_is.largest_buffer_bytes = 0;
        }
        weights_close(w);
    }
    print_message("%llu bytes copied, of %llu\n", (unsigned long long)copied[1], (unsigned long long)copied[0]);
    assert_true(copied[1] * 2 < copied[0]);
    checkpoint = dir;
    assert_same_answers();
    temp_dir_remove(dir);
}

/* The library that was compiled with calla is taken; where the system refuses it the source is compiled. */
static void test_library(void **state) {
    (void)state;
    fake_metal_counts before = fake_metal_count;
    assert_same_answers();
    assert_int_equal(fake_metal_count.libraries_taken - before.libraries_taken, 1);
    assert_int_equal(fake_metal_count.libraries_compiled, before.libraries_compiled);
    fake_metal_is.refuses_libraries = true;
    assert_same_answers();
    assert_int_equal(fake_metal_count.libraries_compiled - before.libraries_compiled, 1);
}

/* Where there are no residency sets (before macOS 15) every encoder declares what is used; where there are, none does. */
static void test_residency(void **state) {
    (void)state;
    fake_metal_counts before = fake_metal_count;
    assert_same_answers();
    assert_int_equal(fake_metal_count.declared, before.declared);
    fake_metal_is.no_residency_sets = true;
    before = fake_metal_count;
    assert_same_answers();
    assert_true(fake_metal_count.declared >= 10 * (fake_metal_count.encoders - before.encoders));
}

/* What the host overwrites before the device has read it shows when commands run only once they are waited for. */
static void test_late(void **state) {
    (void)state;
    fake_metal_is.runs_late = true;
    assert_same_answers();
}

/* ---- attention of long contexts ---- */

static calla_status open_cutting(const weights *w, const backend_limits *limits, backend **out, calla_error *err) {
    const calla_status status = metal_vtable.open(w, limits, out, err);
    if (!status) (*out)->command_work = 1; /* METAL_CUT_TILES tiles a command */
    return status;
}

/* The logits of a prompt's last row; returns how many commands it took. */
static uint64_t run_long(const backend_vtable *v, float *out) {
    enum { LONG = 80 };
    int32_t ids[LONG];
    weights *w;
    model *m;
    sequence *s;
    calla_error err = {0};
    model_options o = small_model(LONG);
    o.backend = v;
    for (int32_t i = 0; i < LONG; i++) ids[i] = i * 3;
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    if (model_open(w, &o, &m, &err) || sequence_open(m, &s, &err)) fail_msg("%s", err.message);
    const uint64_t before = fake_metal_count.command_buffers;
    if (step(m, s, ids, LONG, out, &err)) fail_msg("%s", err.message);
    const uint64_t commands = fake_metal_count.command_buffers - before;
    sequence_close(s);
    model_close(m);
    weights_close(w);
    assert_clean();
    return commands;
}

/* Cut into commands it computes the same: of tiny-b's one attention layer that is not the last, 11 tiles, of which it fills five, are three commands. */
static void test_cut_attention(void **state) {
    (void)state;
    backend_vtable cutting = metal_vtable;
    cutting.open = open_cutting;
    checkpoint = "checkpoints/tiny-b";
    const uint64_t whole = run_long(&metal_vtable, logits[0]), cut = run_long(&cutting, logits[1]);
    print_message("a prompt of 80 rows: %llu commands, cut %llu\n", (unsigned long long)whole, (unsigned long long)cut);
    assert_int_equal(cut - whole, 2);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* ---- tensor operations ---- */

/* A prompt in fast precision on the device as it is, on which kernel `late`, where it is not NULL, then does nothing; *says: what the
 * model says of the device. */
static calla_status run_fast(const char *late, float *out, char *says, size_t n, calla_error *err) {
    int32_t ids[PROMPT];
    weights *w;
    model *m;
    sequence *s;
    model_options o = small_model(PROMPT);
    o.fast = true;
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    assert_int_equal(weights_open(test_data(checkpoint), &w, err), CALLA_OK);
    calla_status status = model_open(w, &o, &m, err);
    if (!status) {
        model_describe_device(m, says, n);
        assert_int_equal(sequence_open(m, &s, err), CALLA_OK);
        if (late) fake_metal_is.wrong_kernel = late;
        status = step(m, s, ids, PROMPT, out, err);
        sequence_close(s);
        model_close(m);
    }
    weights_close(w);
    return status;
}

static void assert_tensor(bool used, const float *as) {
    char says[256];
    calla_error err = {0};
    if (run_fast(NULL, logits[1], says, sizeof says, &err)) fail_msg("%s", err.message);
    assert_int_equal(strstr(says, "tensor operations") != NULL, used);
    if (!used) assert_memory_equal(logits[1], as, sizeof logits[1]);
    for (uint32_t i = 0; i < VOCABULARY; i++)
        if (!(fabsf(logits[1][i] - as[i]) <= 1e-3f))
            fail_msg("logit %u: %g, by simdgroup matrices %g", i, (double)logits[1][i], (double)as[i]);
    assert_clean();
}

/* Used only where the device has units for them, the system compiles them, and each kernel computes what the reference does. */
static void test_tensor(void **state) {
    (void)state;
    static const char *const kernels[] = {"gemm_swiglu_q8_tensor", "expert_gemm_out_b16_tensor", "attention_kb16_tensor"};
    static float plain[VOCABULARY];
    char says[256];
    calla_error err = {0};
    if (run_fast(NULL, plain, says, sizeof says, &err)) fail_msg("%s", err.message);
    const uint64_t before = fake_metal_count.libraries_compiled;
    assert_tensor(false, plain);
    assert_int_equal(fake_metal_count.libraries_compiled, before);
    fake_metal_is.tensor_units = true;
    assert_tensor(true, plain);
    if (run_fast("expert_gemm_out_q4_tensor", logits[1], says, sizeof says, &err)) fail_msg("%s", err.message);
    assert_memory_not_equal(logits[1], plain, sizeof plain); /* so it is what computes */
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        fake_metal_is.wrong_kernel = kernels[i];
        assert_tensor(false, plain);
    }
    fake_metal_is.wrong_kernel = NULL;
    fake_metal_is.refuses_language_4 = true;
    assert_tensor(false, plain);
    fake_metal_is.refuses_language_4 = false;
    fake_metal_is.next_buffer_error = 3; /* a page fault */
    assert_int_equal(run_fast(NULL, logits[1], says, sizeof says, &err), CALLA_E_DEVICE);
    assert_non_null(strstr(err.message, "--without tensor-ops"));
    assert_clean();
}

/* ---- two steps under way ---- */

static bool always(void *user) {
    (void)user;
    return true;
}

static void submit(model *m, sequence *s, const int32_t *ids, uint32_t rows) {
    static sample_request greedy = {.top_p = 1, .repetition = 1};
    calla_error err = {0};
    greedy.tokens = model_get_shape(m)->vocabulary;
    const model_segment g = {.sequence = s, .ids = ids, .rows = rows, .sample = &greedy};
    if (model_submit(m, &g, 1, NULL, NULL, &err)) fail_msg("%s", err.message);
    model_pick(m, &g);
}

static int32_t collect(model *m) {
    calla_error err = {0};
    if (model_collect(m, &err)) fail_msg("%s", err.message);
    return model_sampled(m, 0)->id;
}

/* Each step goes on from a token that the host has not seen; the tokens are those of one step after the other.  A step too many is undone,
 * whether it is under way or was given up, and what comes instead finds everything as it was.  At once, and on a device that begins a
 * command only when somebody waits for it. */
static void check_two_steps(void) {
    enum { TOKENS = 6 };
    static const int32_t before = -1, other = 77;
    int32_t ids[PROMPT], want[TOKENS + 1], want_other;
    calla_error err = {0};
    weights *w;
    model *m;
    sequence *s;
    const model_options o = small_model(PROMPT);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    if (model_open(w, &o, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(sequence_open(m, &s, &err), CALLA_OK);
    submit(m, s, ids, PROMPT);
    want[0] = collect(m);
    for (int i = 0; i < TOKENS; i++) {
        submit(m, s, &want[i], 1);
        want[i + 1] = collect(m);
    }
    submit(m, s, &other, 1);
    want_other = collect(m);
    sequence_reset(s);

    submit(m, s, ids, PROMPT);
    for (int i = 0; i < TOKENS; i++) {
        assert_true(model_runs_ahead(m) && model_runs_ahead_of(m, 0));
        submit(m, s, &before, 1);
        assert_false(model_runs_ahead(m));
        assert_int_equal(collect(m), want[i]);
    }
    submit(m, s, &before, 1); /* too many */
    assert_int_equal(sequence_rollback(s, &err), CALLA_OK);
    assert_int_equal(collect(m), want[TOKENS]);
    submit(m, s, &other, 1); /* while it is under way */
    collect(m);
    assert_int_equal(collect(m), want_other);
    assert_int_equal(sequence_rollback(s, &err), CALLA_OK);
    assert_int_equal(sequence_tokens(s), PROMPT + TOKENS);

    sequence_reset(s);
    submit(m, s, ids, PROMPT);
    const model_segment given_up = {.sequence = s, .ids = &before, .rows = 1};
    assert_int_equal(model_submit(m, &given_up, 1, always, NULL, &err), CALLA_E_CANCELLED);
    submit(m, s, &before, 1);
    assert_int_equal(collect(m), want[0]);
    assert_int_equal(collect(m), want[1]);
    assert_int_equal(model_collect(m, &err), CALLA_E_INTERNAL); /* none is under way */
    sequence_close(s);
    model_close(m);
    weights_close(w);
    assert_clean();
}

static void test_two_steps(void **state) {
    (void)state;
    check_two_steps();
    fake_metal_is.runs_late = true;
    check_two_steps();
}

/* A snapshot goes on as if nothing had been: its state and its page are untouched by what the original did since. */
static void test_snapshot(void **state) {
    (void)state;
    static const int32_t wrong[3] = {1, 2, 3}, more[DECODED] = {7, 8};
    int32_t ids[PROMPT];
    calla_error err = {0};
    weights *w;
    model *m;
    sequence *s, *snapshot;
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    model_options o = small_model(PROMPT);
    o.sequences = 2;
    o.kv_tokens = 2 * KV_PAGE_TOKENS;
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    if (model_open(w, &o, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(sequence_open(m, &s, &err), CALLA_OK);
    assert_int_equal(step(m, s, ids, PROMPT, logits[0], &err), CALLA_OK);
    assert_int_equal(sequence_fork(s, &snapshot, &err), CALLA_OK);
    assert_int_equal(step(m, s, wrong, 3, logits[1], &err), CALLA_OK);
    for (uint32_t i = 0; i < DECODED; i++) {
        assert_int_equal(step(m, snapshot, &more[i], 1, logits[1 + i], &err), CALLA_OK);
        assert_memory_equal(logits[1 + i], expected[1 + i], sizeof logits[0]);
    }
    sequence_close(snapshot);
    sequence_close(s);
    model_close(m);
    weights_close(w);
    assert_clean();
}

/* A step undone leaves nothing behind, of the prompt or of a token. */
static void test_rollback(void **state) {
    (void)state;
    static const int32_t wrong[3] = {1, 2, 3}, more[DECODED] = {7, 8};
    int32_t ids[PROMPT];
    calla_error err = {0};
    weights *w;
    model *m;
    sequence *s;
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = i * 5;
    const model_options o = small_model(PROMPT);
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    if (model_open(w, &o, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(sequence_open(m, &s, &err), CALLA_OK);
    assert_int_equal(step(m, s, ids, PROMPT, logits[0], &err), CALLA_OK);
    for (uint32_t i = 0; i < DECODED; i++) {
        assert_int_equal(step(m, s, wrong, i ? 1 : 3, logits[0], &err), CALLA_OK);
        assert_int_equal(sequence_rollback(s, &err), CALLA_OK);
        assert_int_equal(step(m, s, &more[i], 1, logits[1 + i], &err), CALLA_OK);
        assert_memory_equal(logits[1 + i], expected[1 + i], sizeof logits[0]);
    }
    sequence_close(s);
    model_close(m);
    weights_close(w);
    assert_clean();
}

static void test_each_failure(void **state) {
    (void)state;
    calla_error err = {0};
    uint32_t tried = 0, seen = 0, lost = 0;
    fake_metal_is.refuses_libraries = true;
    fake_metal_fail(0);
    assert_int_equal(run(logits, &err), CALLA_OK);
    const uint64_t calls = fake_metal_fail(0);
    assert_true(calls > 60);
    /* all of opening's first and of the last token's; of the many kernels and commands between every fifth */
    for (uint64_t n = 1; n <= calls; n += n < 24 || n + 12 > calls ? 1 : 5, tried++) {
        fake_metal_fail(n);
        err = (calla_error){0};
        const calla_status status = run(logits, &err);
        if (status) {
            assert_true(status == CALLA_E_NOMEM || status == CALLA_E_DEVICE || status == CALLA_E_UNSUPPORTED);
            assert_true(strlen(err.message) > 20);
            seen++;
            lost += status == CALLA_E_DEVICE && strstr(err.message, "ran out of memory") != NULL;
        } else
            assert_memory_equal(logits, expected, sizeof logits);
        assert_clean();
    }
    print_message("of %llu calls %u made to fail, seen by the caller in %u\n", (unsigned long long)calls, tried, seen);
    assert_true(seen * 2 > tried); /* what may fail unseen is the archive of compiled kernels */
    assert_true(lost > 3);         /* command buffers of the prompt and of tokens */
    fake_metal_fail(0);
    assert_same_answers();
}

/* What `calla bench` takes the memory's rate from reads each word of the weights once. */
static void test_read_rate(void **state) {
    (void)state;
    calla_error err = {0};
    weights *w;
    backend *b;
    model_plan plan;
    const model_options o = small_model(1);
    assert_int_equal(weights_open(test_data(checkpoint), &w, &err), CALLA_OK);
    model_plan_compute(&w->shape, &o, &plan);
    if (metal_vtable.open(w, &plan.limits, &b, &err) || metal_vtable.allocate(b, plan.bytes, &err) ||
        metal_vtable.load(b, NULL, NULL, &err))
        fail_msg("%s", err.message);
    assert_in_range(b->read_bytes, b->weights.memory[0].bytes - METAL_READ_BYTES + 1, b->weights.memory[0].bytes);
    assert_true(metal_measure_reads(b) > 0);
    uint32_t want = 0, got = 0;
    const uint32_t *words = (const uint32_t *)(const void *)b->weights.memory[0].host;
    const uint32_t *sums = (const uint32_t *)(const void *)(b->buf[BUF_SCRATCH].host + (b->scratch.partial - b->buf[BUF_SCRATCH].address));
    for (uint64_t i = 0; i < b->read_bytes / sizeof *words; i++) want += words[i];
    for (uint32_t i = 0; i < METAL_READ_GROUPS * METAL_READ_THREADS / 32; i++) got += sums[i];
    assert_int_equal(got, want);
    assert_true(metal_vtable.read_rate(b) == 0); /* too small to say anything of the memory */
    fake_metal_is.next_buffer_error = 8;         /* out of memory */
    assert_true(metal_measure_reads(b) == 0);
    metal_vtable.close(b);
    weights_close(w);
    assert_clean();
}

/* ---- counts ---- */

static void test_counts_of_a_token(void **state) {
    (void)state;
    calla_error err = {0};
    weights w = full_size(40, NULL);
    backend b = {.w = &w,
                 .s = &w.shape,
                 .limits = {.rows = 2048, .segments = 4, .wanted = 4, .samples = 4, .pages = 1024, .slots = 8, .kv = CALLA_KV_BF16}};
    if (gpu_open(&b.gpu, &b.facts, &err) || metal_place_weights(&b, &err) || gpu_compile(b.gpu, &err) || metal_prepare(&b, &err))
        fail_msg("%s", err.message);
    metal_count(&b);
    print_message("a token of the real model: %u stages planned, %u dispatches, %u barriers; weights of %.2f GB in %u memories\n",
                  plan_stages(&w.shape), b.token_dispatches, b.token_barriers, (double)b.weights.bytes / 1e9, b.weights.memories);
    assert_in_range(b.token_dispatches, plan_stages(&w.shape), 330);
    assert_in_range(b.token_barriers, 200, 250);
    metal_prepared_free(&b);
    gpu_close(b.gpu);
    mem_free(b.weights.layer);
    full_size_free(&w);
    assert_clean();
}

/* What is counted beforehand is what the device then gets. */
static void test_counts_are_true(void **state) {
    (void)state;
    static const int32_t id = 5;
    calla_error err = {0};
    char text[256];
    uint32_t dispatches, barriers;
    weights *w;
    model *m;
    sequence *s;
    const model_options o = small_model(1);
    assert_int_equal(weights_open(test_data("checkpoints/tiny-b"), &w, &err), CALLA_OK);
    if (model_open(w, &o, &m, &err)) fail_msg("%s", err.message);
    model_describe_device(m, text, sizeof text);
    print_message("tiny-b: %s\n", text);
    const char *exact = strstr(text, "exact, ");
    assert_non_null(exact);
    assert_int_equal(sscanf(exact, "exact, %u dispatches and %u barriers a token", &dispatches, &barriers), 2);
    assert_int_equal(sequence_open(m, &s, &err), CALLA_OK);
    const model_segment g = {.sequence = s, .ids = &id, .rows = 1, .want = WANT_LAST};
    const fake_metal_counts before = fake_metal_count;
    assert_int_equal(model_step(m, &g, 1, NULL, NULL, &err), CALLA_OK);
    assert_int_equal(fake_metal_count.dispatches - before.dispatches, dispatches);
    assert_int_equal(fake_metal_count.barriers - before.barriers, barriers);
    assert_int_equal(fake_metal_count.command_buffers - before.command_buffers, 1);
    assert_int_equal(fake_metal_count.encoders - before.encoders, 1);
    sequence_close(s);
    model_close(m);
    weights_close(w);
    assert_clean();
}

#define TEST(f) cmocka_unit_test_teardown(f, back_to_normal)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_absent),         TEST(test_refused),       TEST(test_few_threads),
                                       TEST(test_small),          TEST(test_many_memories), TEST(test_split_weights),
                                       TEST(test_files_in_place), TEST(test_library),       TEST(test_residency),
                                       TEST(test_late),           TEST(test_cut_attention), TEST(test_tensor),
                                       TEST(test_two_steps),      TEST(test_snapshot),      TEST(test_rollback),
                                       TEST(test_each_failure),   TEST(test_read_rate),     TEST(test_counts_of_a_token),
                                       TEST(test_counts_are_true)};
    return cmocka_run_group_tests(tests, first_run, NULL);
}

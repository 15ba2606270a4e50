/* test_bench.c: the measurement of calla bench on an engine of its own, which notes what it is asked and answers by script. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit.h"
#include "cli/bench.h"
#include "cli/loading.h"

enum { VOCABULARY = 1000, MAX_JOBS = 32, MAX_IDS = 4096 };

/* ---- the engine ---- */

typedef struct asked {
    int32_t ids[MAX_IDS]; /* all that the session holds when the job begins */
    uint32_t n_ids, new_ids, max_tokens;
    bool ignore_stop;
    float temperature;
} asked;

static struct {
    asked jobs[MAX_JOBS];
    uint32_t n_jobs, open_sessions, rates;
    uint32_t strange_job; /* this job ends with another token; from 1 */
    uint32_t slow_job;    /* this one takes 4 % longer; from 1 */
    uint32_t failing_job; /* from 1 */
    uint32_t short_job;   /* makes one token too few; from 1 */
    double read_rate[8];  /* of the first times that it is measured, then nothing */
    calla_dot_rates dots;
    char without[16][64]; /* of the engines opened */
    uint32_t n_opened, open_engines;
    uint32_t failing_engine; /* from 1 */
    uint32_t opening_ms;     /* how long an engine takes to open */
    uint32_t job_of_engine[MAX_JOBS];
} world;

struct calla_session {
    int32_t ids[MAX_IDS];
    uint32_t n, done;
};

const char *calla_version(void) { return "1.2.3"; }
const char *calla_commit(void) { return "abc"; }

void calla_engine_get_info(const calla_engine *engine, calla_engine_info *out) {
    (void)engine;
    *out = (calla_engine_info){.model_name = "quoted \"model\"",
                               .device = "scripted",
                               .device_detail = "detail",
                               .vocabulary = VOCABULARY,
                               .stages = 7,
                               .token_bytes = 1000000,
                               .state_bytes = 1000,
                               .kv_token_bytes = 10,
                               .token_flop = 1000000,
                               .context_flop = 100};
}

double calla_engine_read_rate(calla_engine *engine) {
    (void)engine;
    return world.rates < 8 ? world.read_rate[world.rates++] : 0;
}

void calla_engine_dot_rates(calla_engine *engine, calla_dot_rates *out) {
    (void)engine;
    *out = world.dots;
}

const calla_optimization *calla_device_optimizations(const char *device) {
    static const calla_optimization of_toy[] = {{"gears", "turns"}, {"springs", "jumps"}, {"oil", "flows"}, {NULL, NULL}},
                                    none[] = {{NULL, NULL}};
    return !device ? of_toy : strcmp(device, "plain") == 0 ? none : NULL;
}

calla_status calla_engine_open(const calla_engine_options *o, calla_engine **out, calla_error *err) {
    *out = NULL;
    assert_true(world.n_opened < 16);
    snprintf(world.without[world.n_opened++], sizeof world.without[0], "%s", o->without ? o->without : "");
    usleep(world.opening_ms * 1000);
    if (o->progress) o->progress(o->progress_user, 5000000000, 10000000000);
    if (o->device || world.n_opened == world.failing_engine) return error_set(err, CALLA_E_IO, "no such toy");
    world.open_engines++;
    *out = (calla_engine *)&world;
    return CALLA_OK;
}

void calla_engine_close(calla_engine *engine) { world.open_engines -= engine != NULL; }

static calla_session sessions[2]; /* one inside the other: a context, and a run on a fork of it */

calla_status calla_session_open(calla_engine *engine, calla_session **out, calla_error *err) {
    (void)engine, (void)err;
    assert_true(world.open_sessions < 2);
    *out = &sessions[world.open_sessions++];
    **out = (calla_session){0};
    return CALLA_OK;
}

calla_status calla_session_fork(const calla_session *session, calla_session **out, calla_error *err) {
    calla_session_open(NULL, out, err);
    **out = *session;
    return CALLA_OK;
}

void calla_session_close(calla_session *session) {
    (void)session;
    world.open_sessions--;
}

calla_status calla_session_append(calla_session *session, const int32_t *ids, size_t n, calla_error *err) {
    (void)err;
    assert_true(session->n + n <= MAX_IDS);
    if (n) memcpy(session->ids + session->n, ids, n * sizeof *ids);
    session->n += (uint32_t)n;
    return CALLA_OK;
}

void calla_session_wait(calla_session *session) { (void)session; }

calla_status calla_session_generate(calla_session *session, const calla_generate_options *o, calla_event_fn fn, void *user,
                                    calla_error *err) {
    (void)err;
    assert_true(world.n_jobs < MAX_JOBS);
    world.job_of_engine[world.n_jobs] = world.n_opened;
    asked *a = &world.jobs[world.n_jobs++];
    *a = (asked){.n_ids = session->n,
                 .new_ids = session->n - session->done,
                 .max_tokens = o->max_tokens,
                 .ignore_stop = o->ignore_stop,
                 .temperature = o->sampling.temperature};
    memcpy(a->ids, session->ids, sizeof a->ids);
    const uint32_t tokens = o->max_tokens - (world.n_jobs == world.short_job);
    for (uint32_t i = 0; i < tokens; i++) {
        const bool strange = world.n_jobs == world.strange_job && i + 1 == tokens;
        const calla_event token = {.kind = CALLA_EVENT_TOKEN, .id = strange ? 5 : 4};
        session->ids[session->n++] = token.id;
        fn(user, &token);
    }
    session->done = session->n - 1;
    calla_error failure = {CALLA_E_DEVICE, "the wire is cut"};
    calla_event done = {.kind = CALLA_EVENT_DONE, .finish = CALLA_FINISH_LENGTH, .prompt_tokens = a->new_ids};
    done.prompt_ns = a->new_ids * 1000000;
    done.decode_ns = (o->max_tokens - 1) * (world.n_jobs == world.slow_job ? 10400000 : 10000000);
    if (world.n_jobs == world.failing_job) done.finish = CALLA_FINISH_ERROR, done.error = &failure;
    fn(user, &done);
    return CALLA_OK;
}

/* ---- the tests ---- */

static int reset(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    return 0;
}

static calla_status measure(bench *b, calla_error *err) {
    bench_progress bar = {0};
    calla_status status = bench_measure(b, NULL, &bar, err);
    if (status == CALLA_OK) assert_int_equal(bar.done, bar.total);
    assert_int_equal(world.open_sessions, 0);
    return status;
}

static void jobs_are_those_of_the_contract(void **state) {
    (void)state;
    static bench b;
    calla_error err = {0};
    b = (bench){
        .entries = {{.prompt = 3, .decode = 2}, {.prompt = 2, .depth = 1500, .decode = 2}, {.prompt = 5, .depth = 1500, .decode = 2}},
        .n_entries = 3};
    assert_int_equal(measure(&b, &err), CALLA_OK);
    /* depth by depth a context, if any, and then: warm-up, forwards, backwards */
    static const uint32_t new_ids[] = {3, 3, 3, 1500, 2, 5, 2, 5, 5, 2};
    static const uint32_t max_tokens[] = {3, 3, 3, 1, 3, 3, 3, 3, 3, 3};
    assert_int_equal(world.n_jobs, 10);
    for (uint32_t j = 0; j < world.n_jobs; j++) {
        const asked *a = &world.jobs[j];
        assert_int_equal(a->new_ids, new_ids[j]);
        assert_int_equal(a->max_tokens, max_tokens[j]);
        assert_true(a->ignore_stop && a->temperature == 0);
        for (uint64_t i = 0; i < a->n_ids; i++) /* id 1500 was made by the context's job */
            assert_int_equal(a->ids[i], i == 1500 ? 4 : (int32_t)(i * 2654435761u % 4294967296u % VOCABULARY));
    }
    assert_int_equal(world.jobs[4].n_ids, 1502);
    assert_true(b.entries[0].warm_up.digest != 0);
}

static void figures_follow_from_the_runs(void **state) {
    (void)state;
    static bench b;
    calla_error err = {0};
    b = (bench){.entries = {{.prompt = 100, .depth = 50, .decode = 10}}, .n_entries = 1};
    world.read_rate[0] = 1e9;
    world.slow_job = 4; /* decoding of the last round */
    world.dots = (calla_dot_rates){.f32 = 1e10, .i8 = 4e10, .used = 1e10};
    assert_int_equal(measure(&b, &err), CALLA_OK);
    const bench_figures f = bench_figures_of(&b, &b.entries[0]);
    assert_true(f.prefill_tok_s > 999.9 && f.prefill_tok_s < 1000.1);
    assert_true(f.decode_tok_s > 98.03 && f.decode_tok_s < 98.04); /* 20 tokens in 204 ms */
    assert_true(f.drift > 0.0399 && f.drift < 0.0401);
    assert_int_equal(f.decode_context, 155);
    assert_int_equal(f.bytes_per_token, 1000000 + 2 * 1000 + 155 * 10);
    assert_true(f.share_of_read_rate > 0.0983 && f.share_of_read_rate < 0.0984);
    assert_true(f.read_rate_gb_s == 1);
    /* 1000 tok/s of 1 MFLOP, and of 100 FLOP for each of the positions 51 … 150 that the rows see, on average 100.5 */
    assert_true(f.prefill_tflop_s > 0.00101004 && f.prefill_tflop_s < 0.00101006);
    assert_true(f.dot_peak_tflop_s == 0.01 && f.share_of_dot_peak > 0.101004 && f.share_of_dot_peak < 0.101006);
    world.n_jobs = world.slow_job = 0;
    assert_int_equal(measure(&b, &err), CALLA_OK);
    assert_true(bench_figures_of(&b, &b.entries[0]).drift == 0);
}

/* Measured at the beginning, before each round, and at the end; where memory's peak cannot be forgotten, at the end alone. */
static void the_best_read_rate_counts(void **state) {
    (void)state;
    static bench b;
    const bool forgets = bench_reset_peak();
    for (uint32_t best = 0; best < (forgets ? 4 : 1); best++) {
        calla_error err = {0};
        reset(NULL);
        b = (bench){.entries = {{.prompt = 1, .decode = 1}, {.prompt = 2, .decode = 1}}, .n_entries = 2};
        for (uint32_t i = 0; i < 8; i++) world.read_rate[i] = i == best ? 2e9 : 1e9;
        assert_int_equal(measure(&b, &err), CALLA_OK);
        assert_int_equal(world.rates, forgets ? 4 : 1);
        assert_true(b.read_rate == 2e9);
    }
}

static void other_tokens_are_refused(void **state) {
    (void)state;
    static bench b;
    for (uint32_t strange = 1; strange <= 3; strange++) {
        calla_error err = {0};
        reset(NULL);
        b = (bench){.entries = {{.prompt = 8, .decode = 4}}, .n_entries = 1};
        world.strange_job = strange;
        assert_int_equal(measure(&b, &err), CALLA_E_INTERNAL);
        assert_non_null(strstr(err.message, "refused: prompt 8 at depth 0"));
        assert_int_equal(world.n_jobs, strange == 1 ? 2 : strange);
    }
}

static void failures_are_passed_on(void **state) {
    (void)state;
    static bench b;
    calla_error err = {0};
    b = (bench){.entries = {{.prompt = 8, .depth = 3, .decode = 4}}, .n_entries = 1};
    for (uint32_t job = 1; job <= 4; job++) {
        reset(NULL);
        world.failing_job = job;
        assert_int_equal(measure(&b, &err), CALLA_E_DEVICE);
        assert_string_equal(err.message, "the wire is cut");
        assert_int_equal(world.n_jobs, job);
    }
    reset(NULL);
    world.short_job = 2;
    assert_int_equal(measure(&b, &err), CALLA_E_INTERNAL);
    assert_non_null(strstr(err.message, "made 4"));
}

static void ablation_turns_each_off(void **state) {
    (void)state;
    static bench plan;
    calla_error err = {0};
    bench_ablation a;
    const calla_engine_options o = {.without = "springs"};
    plan = (bench){.entries = {{.prompt = 10, .decode = 4}, {.prompt = 20, .decode = 4}}, .n_entries = 2};
    world.read_rate[0] = 2e9, world.read_rate[bench_reset_peak() ? 2 : 1] = 3e9; /* the latter in another arm */
    assert_int_equal(bench_ablate(&plan, &o, &a, &err), CALLA_OK);
    assert_int_equal(world.open_engines + world.open_sessions, 0);
    assert_int_equal(a.n_arms, 3); /* springs are off anyway */
    assert_null(a.off[0]);
    assert_string_equal(a.off[1]->name, "gears");
    assert_string_equal(a.off[2]->name, "oil");
    static const char *const opened[] = {"springs", "springs,gears", "springs,oil", "springs,oil", "springs,gears", "springs"};
    assert_int_equal(world.n_opened, 6);
    for (uint32_t i = 0; i < 6; i++) assert_string_equal(world.without[i], opened[i]);
    assert_int_equal(world.n_jobs, 24); /* on each engine both entries as a warm-up, then both */
    for (uint32_t j = 0; j < 24; j++) assert_int_equal(world.job_of_engine[j], 1 + j / 4);
    for (uint32_t i = 0; i < 3; i++) {
        const bench_figures f = bench_figures_of(&a.arms[i], &a.arms[i].entries[1]);
        assert_true(f.prefill_tok_s > 999.9 && f.decode_tok_s > 99.9 && f.read_rate_gb_s == 3);
    }
    buffer json = {0};
    static options none;
    for (int i = 0; i < OPTION_COUNT; i++) none.value[i].text = "";
    bench_append_json(&a.arms[0], &none, &a, &json);
    assert_false(json.failed);
    assert_non_null(strstr(json.data, "\"ablation\":[{\"name\":\"gears\",\"meaning\":\"turns\",\"entries\":[{\"prompt\":10,"));
    assert_non_null(strstr(json.data, ",\"prefill_worth\":0.0000,\"decode_worth\":0.0000}]}]}"));
    buffer_free(&json);
    bench_ablation_free(&a);
}

static void ablation_needs_something_to_turn_off(void **state) {
    (void)state;
    static const bench plan = {.entries = {{.prompt = 10, .decode = 4}}, .n_entries = 1};
    calla_error err = {0};
    bench_ablation a;
    assert_int_equal(bench_ablate(&plan, &(calla_engine_options){.device = "plain"}, &a, &err), CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "device plain has nothing"));
    assert_int_equal(world.n_opened, 0);
    assert_int_equal(bench_ablate(&plan, &(calla_engine_options){.device = "unknown"}, &a, &err), CALLA_E_IO);
    assert_true(!a.arms && !a.off && !a.n_arms);
}

/* A failure anywhere, or another digest in the second round of an arm, ends it and leaves nothing behind. */
static void ablation_passes_failures_on(void **state) {
    (void)state;
    static const bench plan = {.entries = {{.prompt = 10, .decode = 4}}, .n_entries = 1};
    bench_ablation a;
    for (uint32_t i = 1; i <= 8; i++) {
        calla_error err = {0};
        reset(NULL);
        world.failing_engine = i;
        assert_int_equal(bench_ablate(&plan, &(calla_engine_options){0}, &a, &err), CALLA_E_IO);
        assert_int_equal(world.open_engines + world.open_sessions, 0);
        assert_true(!a.arms && world.n_jobs == 2 * (i - 1));
        reset(NULL);
        world.strange_job = 8 + i; /* 16 jobs; those after the first 8 repeat an arm */
        assert_int_equal(bench_ablate(&plan, &(calla_engine_options){0}, &a, &err), CALLA_E_INTERNAL);
        assert_non_null(strstr(err.message, "refused"));
        assert_int_equal(world.open_engines + world.open_sessions, 0);
        assert_true(!a.arms);
    }
}

/* Opens an engine with a terminal as standard error; what that got, into out [n]. */
static void open_on_terminal(uint32_t opening_ms, char *out, size_t n) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY), before = dup(STDERR_FILENO);
    assert_true(terminal >= 0 && before >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0 && dup2(slave, STDERR_FILENO) == STDERR_FILENO);
    calla_engine *e = NULL;
    calla_error err = {0};
    world.opening_ms = opening_ms;
    const calla_status status = loading_open_engine(&(calla_engine_options){0}, &e, &err);
    assert_int_equal(write(slave, "|", 1), 1); /* the end, and so that there is something to read */
    size_t got = 0;
    while (got < n - 1 && (!got || out[got - 1] != '|')) {
        const ssize_t some = read(terminal, out + got, n - 1 - got); /* a terminal passes on what it has so far */
        assert_true(some > 0);
        got += (size_t)some;
    }
    dup2(before, STDERR_FILENO);
    close(before), close(slave), close(terminal);
    assert_int_equal(status, CALLA_OK);
    out[got] = 0;
    calla_engine_close(e);
}

static void loading_shows_a_bar_after_a_second(void **state) {
    (void)state;
    char shown[512];
    setenv("TERM", "xterm", 1);
    open_on_terminal(0, shown, sizeof shown);
    assert_string_equal(shown, "|");
    open_on_terminal(1010, shown, sizeof shown);
    assert_string_equal(shown, "\rloading [###############...............] 5.0 of 10.0 GB\033[K\r\033[K|");
    setenv("TERM", "dumb", 1);
    open_on_terminal(1010, shown, sizeof shown);
    assert_string_equal(shown, "|");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(jobs_are_those_of_the_contract, reset),
        cmocka_unit_test_setup(figures_follow_from_the_runs, reset),
        cmocka_unit_test_setup(the_best_read_rate_counts, reset),
        cmocka_unit_test_setup(other_tokens_are_refused, reset),
        cmocka_unit_test_setup(failures_are_passed_on, reset),
        cmocka_unit_test_setup(ablation_turns_each_off, reset),
        cmocka_unit_test_setup(ablation_needs_something_to_turn_off, reset),
        cmocka_unit_test_setup(ablation_passes_failures_on, reset),
        cmocka_unit_test_setup(loading_shows_a_bar_after_a_second, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

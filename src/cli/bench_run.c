/* bench_run.c: the measurement itself: sessions on an engine, and a clock.  Knows neither options nor how results are printed. */
#include <time.h>

#include "base/clock.h"
#include "cli/bench.h"

/* What the engine's thread writes during a job; read after it. */
typedef struct watch {
    uint64_t first_ns; /* clock at the first token */
    uint64_t digest;
    uint32_t prompt_tokens, tokens;
    calla_finish finish;
    calla_error error;
    uint64_t prompt_ns, decode_ns;
} watch;

/* FNV-1a over the bytes of a token id, http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t digest_add(uint64_t digest, int32_t id) {
    for (int i = 0; i < 4; i++) digest = (digest ^ ((uint32_t)id >> (8 * i) & 0xFF)) * 0x100000001B3u;
    return digest;
}

static void on_event(void *user, const calla_event *event) {
    watch *w = user;
    if (event->kind == CALLA_EVENT_TOKEN) {
        if (!w->tokens++) w->first_ns = clock_now_ns();
        w->digest = digest_add(w->digest, event->id);
    } else if (event->kind == CALLA_EVENT_DONE) {
        w->finish = event->finish;
        if (event->error) w->error = *event->error;
        w->prompt_tokens = event->prompt_tokens;
        w->prompt_ns = event->prompt_ns;
        w->decode_ns = event->decode_ns;
    }
}

/* One job to its end: exactly max_tokens greedy tokens after exactly prompt_tokens new ones. */
static calla_status run_job(calla_session *session, uint32_t prompt_tokens, uint32_t max_tokens, watch *w, calla_error *err) {
    const calla_generate_options go = {.sampling = {.top_p = 1, .repetition_penalty = 1}, .max_tokens = max_tokens, .ignore_stop = true};
    *w = (watch){.digest = 0xCBF29CE484222325u};
    calla_status status = calla_session_generate(session, &go, on_event, w, err);
    if (status != CALLA_OK) return status;
    calla_session_wait(session);
    if (w->finish == CALLA_FINISH_ERROR) {
        *err = w->error;
        return err->status != CALLA_OK ? err->status : CALLA_E_INTERNAL;
    }
    if (w->tokens == max_tokens && w->prompt_tokens == prompt_tokens) return CALLA_OK;
    return error_set(err, CALLA_E_INTERNAL, "the engine took %u tokens and made %u, where %u and %u were asked for: a bug in calla",
                     w->prompt_tokens, w->tokens, prompt_tokens, max_tokens);
}

/* ids [from … to-1] of the one endless prompt that every entry is the beginning of. */
static calla_status append_ids(calla_session *session, uint32_t from, uint32_t to, uint32_t vocabulary, calla_error *err) {
    int32_t ids[1024];
    while (from < to) {
        uint32_t n = 0;
        for (; n < sizeof ids / sizeof *ids && from < to; n++, from++) ids[n] = (int32_t)(from * 2654435761u % vocabulary);
        calla_status status = calla_session_append(session, ids, n, err);
        if (status != CALLA_OK) return status;
    }
    return CALLA_OK;
}

/* A session with `depth` tokens of context, processed by a job of their own, which ends with one token: the first of the prompt's.  So a
 * timed job on a fork of it has exactly `prompt` tokens to process after exactly `depth`. */
static calla_status open_context(calla_engine *engine, uint32_t depth, uint32_t vocabulary, calla_session **out, calla_error *err) {
    watch w;
    calla_status status = calla_session_open(engine, out, err);
    if (status == CALLA_OK) status = append_ids(*out, 0, depth, vocabulary, err);
    if (status == CALLA_OK && depth) status = run_job(*out, depth, 1, &w, err);
    return status;
}

static calla_status run_entry(const calla_session *context, const bench *b, const bench_entry *e, bench_run *out, calla_error *err) {
    calla_session *session = NULL;
    watch w;
    bench_reset_peak();
    calla_status status = calla_session_fork(context, &session, err);
    if (status == CALLA_OK) status = append_ids(session, e->depth + (e->depth > 0), e->depth + e->prompt, b->info.vocabulary, err);
    const uint64_t start = clock_now_ns();
    if (status == CALLA_OK) status = run_job(session, e->prompt, e->decode + 1, &w, err);
    if (status == CALLA_OK) {
        *out = (bench_run){.prompt_ns = w.prompt_ns, .decode_ns = w.decode_ns, .first_token_ns = w.first_ns - start, .digest = w.digest};
        bench_read_peak(&out->peak_bytes, &out->private_bytes);
    }
    if (session) calla_session_close(session);
    return status;
}

static calla_status check_digest(const bench_entry *e, const bench_run *run, calla_error *err) {
    if (run->digest == e->warm_up.digest) return CALLA_OK;
    return error_set(err, CALLA_E_INTERNAL,
                     "the result is refused: prompt %u at depth %u gave other tokens the second time (digest %016llx, then %016llx); "
                     "speed of wrong answers means nothing. If --threads 1 or another --device repeats, report a bug of this one",
                     e->prompt, e->depth, (unsigned long long)e->warm_up.digest, (unsigned long long)run->digest);
}

void bench_better_rates(bench *b, double read_rate, const calla_dot_rates *dots) {
    if (read_rate > b->read_rate) b->read_rate = read_rate;
    if (dots->used > b->dots.used) b->dots = *dots;
}

void bench_measure_rates(bench *b, calla_engine *engine) {
    calla_dot_rates dots;
    calla_engine_dot_rates(engine, &dots);
    bench_better_rates(b, calla_engine_read_rate(engine), &dots);
}

void bench_begin(bench *b) {
    time_t now = time(NULL);
    struct tm utc;
    strftime(b->date, sizeof b->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    bench_describe_machine(b->cpu, sizeof b->cpu, &b->cores);
}

/* Pass 0 is the warm-up, pass 1 + r is round r: forwards, forwards, backwards.  The read rate is measured before each round, and the best
 * counts: on a shared machine it was found at 22 and at 58 GB/s within seconds, and shares of a low one are too good. */
static calla_status run_pass(bench *b, calla_engine *engine, const calla_session *context, bench_entry *entries, uint32_t n, uint32_t pass,
                             bench_progress *bar, calla_error *err) {
    calla_status status = CALLA_OK;
    if (pass && bench_reset_peak()) bench_better_rates(b, calla_engine_read_rate(engine), &b->dots);
    for (uint32_t i = 0; i < n && status == CALLA_OK; i++) {
        bench_entry *e = &entries[pass == 0 || pass % 2 ? i : n - 1 - i];
        bench_run again, *run = pass ? &e->round[pass - 1] : e->warm_up.digest ? &again : &e->warm_up;
        progress_show(&bar->bar, "measuring", bar->done++, bar->total);
        status = run_entry(context, b, e, run, err);
        if (status == CALLA_OK) status = check_digest(e, run, err);
    }
    return status;
}

calla_status bench_run_rounds(bench *b, calla_engine *engine, uint32_t first, uint32_t last, bench_progress *bar, calla_error *err) {
    calla_status status = CALLA_OK;
    for (uint32_t i = 0, n; i < b->n_entries && status == CALLA_OK; i += n) {
        bench_entry *entries = &b->entries[i];
        calla_session *context = NULL;
        for (n = 1; i + n < b->n_entries && entries[n].depth == entries->depth;) n++;
        progress_show(&bar->bar, "measuring", bar->done, bar->total);
        status = open_context(engine, entries->depth, b->info.vocabulary, &context, err);
        if (status == CALLA_OK) status = run_pass(b, engine, context, entries, n, 0, bar, err);
        for (uint32_t r = first; r <= last && status == CALLA_OK; r++) status = run_pass(b, engine, context, entries, n, 1 + r, bar, err);
        if (context) calla_session_close(context);
    }
    progress_clear(&bar->bar);
    return status;
}

calla_status bench_measure(bench *b, calla_engine *engine, bench_progress *bar, calla_error *err) {
    bench_begin(b);
    calla_engine_get_info(engine, &b->info);
    bar->total = b->n_entries * (1 + BENCH_ROUNDS);
    /* The buffer that is read for the rate would count as the process's peak, where that cannot be forgotten: then only afterwards. */
    if (bench_reset_peak()) bench_measure_rates(b, engine);
    calla_status status = bench_run_rounds(b, engine, 0, BENCH_ROUNDS - 1, bar, err);
    if (status == CALLA_OK) bench_measure_rates(b, engine);
    return status;
}

/* run.c: calla run: one prompt, one streamed answer.
 *
 * The engine's thread reports tokens through a list that is as long as the context window, written by it alone and read by this
 * thread alone; a pipe wakes the reader.  Ctrl-C writes to the same pipe, so that there is one place to wait in. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/loading.h"
#include "cli/print.h"
#include "cli/progress.h"

typedef struct generation {
    int32_t *ids; /* [capacity]; entries below n are final */
    size_t capacity;
    atomic_size_t n;
    atomic_uint prompt_total, prompt_done; /* tokens; total is written first */
    calla_form *form;                      /* that the answer is held to, or NULL */
    calla_matcher *matcher;                /* the engine thread's during the job */
    calla_session *session;
    calla_status astray; /* what the matcher had against a token */
    atomic_bool done;
    calla_finish finish; /* valid once done, as all below */
    calla_error error;
    uint32_t prompt_tokens, completion_tokens;
    uint64_t prompt_ns, decode_ns;
} generation;

static int wake_pipe[2] = {-1, -1}; /* both ends never block */
static volatile sig_atomic_t interrupted;

static void wake(void) {
    ssize_t written = write(wake_pipe[1], "", 1); /* a full pipe wakes as well */
    (void)written;
}

/* The first Ctrl-C ends the answer; SA_RESETHAND lets the second one end the process. */
static void on_interrupt(int signal) {
    (void)signal;
    int saved = errno;
    interrupted = 1;
    wake();
    errno = saved;
}

static void on_event(void *user, const calla_event *event) {
    generation *g = user;
    if (event->kind == CALLA_EVENT_PROMPT) {
        atomic_store_explicit(&g->prompt_total, event->prompt_tokens, memory_order_relaxed);
        atomic_store_explicit(&g->prompt_done, event->prompt_done, memory_order_release);
    } else if (event->kind == CALLA_EVENT_TOKEN) {
        size_t n = atomic_load_explicit(&g->n, memory_order_relaxed);
        if (event->is_stop || n == g->capacity) return;
        g->ids[n] = event->id;
        atomic_store_explicit(&g->n, n + 1, memory_order_release);
    } else {
        g->finish = event->finish;
        if (event->error) g->error = *event->error;
        g->prompt_tokens = event->prompt_tokens;
        g->completion_tokens = event->completion_tokens;
        g->prompt_ns = event->prompt_ns;
        g->decode_ns = event->decode_ns;
        atomic_store_explicit(&g->done, true, memory_order_release);
    }
    wake();
}

static const uint32_t *guide_mask(void *user) { return calla_matcher_mask(((generation *)user)->matcher); }

static void guide_took(void *user, int32_t id) {
    generation *g = user;
    if (!g->astray) g->astray = calla_matcher_took(g->matcher, id);
    if (g->astray) calla_session_cancel(g->session);
}

static calla_status read_form(const options *o, const calla_text *text, calla_form **out, calla_error *err) {
    const char *path = o->value[OPTION_SCHEMA].text;
    if (!path) return CALLA_OK;
    char *schema = NULL;
    calla_form_options form = {.kind = CALLA_FORM_JSON_SCHEMA, .strict_schema = true, .tool_choice = CALLA_TOOLS_NONE};
    calla_status status = cli_read_input(path, &schema, &form.n_source, err);
    form.source = schema;
    calla_error why;
    if (status == CALLA_OK && calla_form_compile(text, &form, out, &why) != CALLA_OK)
        status = error_set(err, why.status, "%s: %s", path, why.message);
    mem_free(schema);
    return status;
}

static calla_status open_pipe(calla_error *err) {
    if (pipe(wake_pipe) != 0) return error_set(err, CALLA_E_IO, "cannot open a pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
        fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
    }
    return CALLA_OK;
}

/* Waits until the pipe was written to, and empties it. */
static void wait_for_wake(void) {
    struct pollfd p = {.fd = wake_pipe[0], .events = POLLIN};
    char bytes[256];
    poll(&p, 1, -1);
    while (read(wake_pipe[0], bytes, sizeof bytes) > 0) {
    }
}

/* A bar while a prompt that takes more than one step is processed; it goes before anything else is printed. */
static void show_prompt(generation *g, progress *bar, bool over) {
    uint32_t done = atomic_load_explicit(&g->prompt_done, memory_order_acquire);
    uint32_t total = atomic_load_explicit(&g->prompt_total, memory_order_relaxed);
    if (over || done == total)
        progress_clear(bar);
    else
        progress_show(bar, "prompt", done, total);
}

/* Prints tokens as they come, until the DONE event. */
static calla_status follow(calla_session *session, generation *g, calla_answer *answer, printer *out, calla_error *err) {
    calla_status status = CALLA_OK;
    progress bar;
    progress_init(&bar);
    size_t printed = 0;
    bool cancelled = false;
    for (;;) {
        bool done = atomic_load_explicit(&g->done, memory_order_acquire); /* before n: what came before DONE is printed */
        size_t n = atomic_load_explicit(&g->n, memory_order_acquire);
        show_prompt(g, &bar, done || n > 0);
        for (bool stopped = false; status == CALLA_OK && printed < n; printed++)
            status = calla_answer_push(answer, g->ids[printed], &stopped, err);
        if (status == CALLA_OK) status = printer_flush(out, err);
        if (done) return status;
        if ((interrupted || status != CALLA_OK) && !cancelled) {
            calla_session_cancel(session);
            cancelled = true;
        }
        wait_for_wake();
    }
}

static calla_status make_prompt(const options *o, const calla_text *text, const char *words, size_t n, calla_prompt *out,
                                calla_error *err) {
    size_t valid = utf8_valid(words, n);
    if (valid < n) return error_set(err, CALLA_E_FORMAT, "the prompt is not UTF-8 text: byte %zu is wrong", valid);
    if (o->value[OPTION_RAW].given) return calla_text_encode(text, words, n, &out->ids, err);
    buffer json = {0};
    buffer_append_str(&json, "{\"messages\":[{\"role\":\"user\",\"content\":");
    json_append_string(&json, words, n);
    buffer_printf(&json, "}],\"enable_thinking\":%s}", o->value[OPTION_NO_THINK].given ? "false" : "true");
    calla_status status = json.failed ? error_nomem(err, "the prompt") : calla_text_render(text, json.data, json.n, out, err);
    buffer_free(&json);
    return status;
}

/* The model's own defaults, and what the command line says otherwise. */
static calla_sampling choose_sampling(const options *o, const calla_sampling *defaults) {
    calla_sampling s = *defaults;
    const option_value *v = o->value;
    if (v[OPTION_TEMPERATURE].given) s.temperature = (float)v[OPTION_TEMPERATURE].number;
    if (v[OPTION_TOP_K].given) s.top_k = (uint32_t)v[OPTION_TOP_K].integer;
    if (v[OPTION_TOP_P].given) s.top_p = (float)v[OPTION_TOP_P].number;
    if (v[OPTION_MIN_P].given) s.min_p = (float)v[OPTION_MIN_P].number;
    if (v[OPTION_PRESENCE_PENALTY].given) s.presence_penalty = (float)v[OPTION_PRESENCE_PENALTY].number;
    if (v[OPTION_FREQUENCY_PENALTY].given) s.frequency_penalty = (float)v[OPTION_FREQUENCY_PENALTY].number;
    if (v[OPTION_REPETITION_PENALTY].given) s.repetition_penalty = (float)v[OPTION_REPETITION_PENALTY].number;
    if (v[OPTION_SEED].given)
        s.seed = v[OPTION_SEED].integer;
    else if (getentropy(&s.seed, sizeof s.seed) != 0)
        s.seed = (uint64_t)getpid();
    return s;
}

/* Runs the job to its end.  The thread that signals go to is this one: the engine's was started with them blocked. */
static calla_status generate(const options *o, calla_engine *engine, const calla_prompt *prompt, generation *g, printer *out,
                             calla_error *err) {
    calla_engine_info info;
    calla_engine_get_info(engine, &info);
    calla_session *session = NULL;
    calla_answer *answer = NULL;
    calla_answer_options ao = {.thinking = prompt->thinking,
                               .raw = o->value[OPTION_RAW].given,
                               .only_tokens = g->form != NULL,
                               .held = g->form != NULL,
                               .piece = printer_piece,
                               .user = out};
    calla_generate_options go = {.sampling = choose_sampling(o, &info.defaults),
                                 .max_tokens = (uint32_t)o->value[OPTION_MAX_TOKENS].integer};
    if (g->form) go.guide = (calla_guide){.mask = guide_mask, .took = guide_took, .user = g};
    g->capacity = info.context_tokens;
    g->ids = mem_array(g->capacity, sizeof *g->ids);
    calla_status status = g->ids ? CALLA_OK : error_nomem(err, "the answer");
    if (status == CALLA_OK) status = open_pipe(err);
    if (status == CALLA_OK && g->form) status = calla_matcher_open(g->form, prompt->thinking, &g->matcher, err);
    if (status == CALLA_OK) status = calla_session_open(engine, &session, err);
    g->session = session;
    if (status == CALLA_OK) status = calla_session_append(session, prompt->ids.ids, prompt->ids.n, err);
    if (status == CALLA_OK) status = calla_answer_open(calla_engine_text(engine), &ao, &answer, err);
    if (status == CALLA_OK) {
        struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = calla_session_generate(session, &go, on_event, g, err);
        if (status == CALLA_OK) status = follow(session, g, answer, out, err);
        if (status == CALLA_OK) status = calla_answer_finish(answer, g->finish != CALLA_FINISH_STOP, err);
        if (status == CALLA_OK) status = printer_end(out, err);
    }
    calla_answer_close(answer);
    if (session) calla_session_close(session);
    calla_matcher_close(g->matcher);
    mem_free(g->ids);
    if (status == CALLA_OK && g->astray)
        status = error_set(err, g->astray == CALLA_E_NOMEM ? CALLA_E_NOMEM : CALLA_E_INTERNAL, "the answer's form: %s",
                           calla_status_name(g->astray));
    if (status == CALLA_OK && g->finish == CALLA_FINISH_ERROR) {
        *err = g->error;
        status = err->status != CALLA_OK ? err->status : CALLA_E_INTERNAL;
    }
    return status;
}

static double per_second(uint32_t tokens, uint64_t ns) { return ns ? tokens * 1e9 / (double)ns : 0; }

/* Opens the engine with SIGINT blocked, so that its threads never run the handler. */
static calla_status open_engine(const options *o, calla_engine **engine, calla_error *err) {
    calla_engine_options eo;
    calla_status status = cli_engine_options(o, &eo, err);
    if (status != CALLA_OK) return status;
    eo.max_sequences = 1;
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    status = loading_open_engine(&eo, engine, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

int command_run(const options *o) {
    calla_error err = {0};
    char *input = NULL;
    const char *words = o->argument;
    size_t n = words ? strlen(words) : 0;
    calla_status status = CALLA_OK;
    if (!words || strcmp(words, "-") == 0) {
        if (isatty(STDIN_FILENO)) cli_note("type the prompt, then Ctrl-D at the beginning of a line");
        status = cli_read_input("-", &input, &n, &err);
        if (status != CALLA_OK) return cli_fail_error(&err);
        words = input;
    }
    if (n == 0) {
        mem_free(input);
        return cli_fail_usage("the prompt is empty: calla run \"What is the capital of France?\"");
    }
    calla_engine *engine = NULL;
    calla_prompt prompt = {0};
    generation g = {0};
    printer out;
    printer_init(&out, o->value[OPTION_RAW].given);
    status = open_engine(o, &engine, &err);
    if (status == CALLA_OK) status = read_form(o, calla_engine_text(engine), &g.form, &err);
    if (status == CALLA_OK) status = make_prompt(o, calla_engine_text(engine), words, n, &prompt, &err);
    if (status == CALLA_OK) status = generate(o, engine, &prompt, &g, &out, &err);
    calla_prompt_free(&prompt);
    calla_form_release(g.form);
    if (engine) calla_engine_close(engine);
    mem_free(input);
    if (status != CALLA_OK) return cli_fail_error(&err);
    log_info("prompt: %u tokens, %.1f/s; answer: %u tokens, %.1f/s", g.prompt_tokens, per_second(g.prompt_tokens, g.prompt_ns),
             g.completion_tokens, per_second(g.completion_tokens, g.decode_ns));
    if (interrupted) raise(SIGINT); /* the handler is gone: die as the shell expects, so that loops around calla end too */
    if (g.finish == CALLA_FINISH_LENGTH && !o->value[OPTION_MAX_TOKENS].given)
        cli_note("the context window is full; --context makes it larger");
    return EXIT_OK;
}

/* fake_engine.c: see fake_engine.h.  One thread steps the running sessions, each when its time has come; the callback is called without
 * the lock, as the real engine does. */
#include "fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "text/text.h"

struct calla_engine {
    const calla_text *text;
    calla_engine_info info;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    json_object *script; /* array of answers */
    size_t script_at;
    calla_session *jobs; /* in order of arrival; the first max_sequences run */
    fake_stats stats;
    bool closing, broken;
};

struct calla_session {
    calla_engine *engine;
    int32_t *prompt;
    size_t n_prompt, cap_prompt;
    calla_session *next;
    bool active, cancelled;
    uint64_t due_ns;
    calla_event_fn fn;
    void *user;
    calla_generate_options options;
    calla_ids answer;
    json_object *line; /* of the script, or NULL; borrowed */
    size_t at;
    uint32_t generated, prompt_steps, prompt_step, prompt_ms, token_ms, fail_at;
    uint32_t forced;
    bool endless, fails, refuse, show_options, show_choice, told_prompt;
};

const char *calla_version(void) { return "0.0.0"; }
const char *calla_commit(void) { return "fake"; }
const char *calla_backends(void) { return "fake"; }

/* ------------------------------------------------------------- script ---------------------------------------------------- */

static void read_directives(calla_session *s, const char **at, const char *end) {
    while (*at < end && **at == '@') {
        const char *word = *at, *space = memchr(word, ' ', (size_t)(end - word));
        if (!space) space = end;
        unsigned a = 0, b = 0;
        char copy[64];
        snprintf(copy, sizeof copy, "%.*s", (int)(space - word), word);
        if (sscanf(copy, "@prompt=%ux%u", &a, &b) == 2)
            s->prompt_steps = a, s->prompt_ms = b;
        else if (sscanf(copy, "@token=%u", &a) == 1)
            s->token_ms = a;
        else if (sscanf(copy, "@fail=%u", &a) == 1)
            s->fails = true, s->fail_at = a;
        else if (!strcmp(copy, "@endless"))
            s->endless = true;
        else if (!strcmp(copy, "@refuse"))
            s->refuse = true;
        else if (!strcmp(copy, "@options"))
            s->show_options = true;
        else if (!strcmp(copy, "@choice"))
            s->show_choice = true;
        *at = space < end ? space + 1 : end;
    }
}

static void print_options(const calla_generate_options *o, buffer *out) {
    const calla_sampling *p = &o->sampling;
    buffer_printf(out,
                  "temperature=%g top_p=%g top_k=%u min_p=%g presence=%g frequency=%g repetition=%g seed=%lld choice=%u max_tokens=%u "
                  "logprobs=%d top_logprobs=%u force=%u ignore_stop=%d bias=",
                  (double)p->temperature, (double)p->top_p, p->top_k, (double)p->min_p, (double)p->presence_penalty,
                  (double)p->frequency_penalty, (double)p->repetition_penalty, (long long)p->seed, p->choice, o->max_tokens, o->logprobs,
                  o->n_top_logprobs, o->force.n ? o->force.after : 0, o->ignore_stop);
    for (size_t i = 0; i < p->n_bias; i++) buffer_printf(out, "%d:%g,", p->bias_ids[i], (double)p->bias[i]);
}

static json_object *member(json_object *object, const char *name) {
    json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return value;
}

/* Of an array; NULL where it is none or shorter. */
static json_object *element(json_object *array, size_t i) {
    return json_object_is_type(array, json_type_array) ? json_object_array_get_idx(array, i) : NULL;
}

static uint32_t number(json_object *object, const char *name) { return (uint32_t)json_object_get_int64(member(object, name)); }

/* A line of the script file becomes the answer. */
static calla_status read_line(calla_session *s, json_object *line, calla_error *err) {
    json_object *text = member(line, "text"), *ids = member(line, "ids"), *prompt = member(line, "prompt");
    s->line = line;
    s->prompt_steps = (uint32_t)json_object_get_int64(element(prompt, 0));
    s->prompt_ms = (uint32_t)json_object_get_int64(element(prompt, 1));
    s->token_ms = number(line, "token_ms");
    s->fails = member(line, "fail") != NULL;
    s->fail_at = number(line, "fail");
    s->endless = json_object_get_boolean(member(line, "endless"));
    if (json_object_get_boolean(member(line, "refuse"))) return error_set(err, CALLA_E_LIMIT, "the script refuses");
    if (text)
        return calla_text_encode(s->engine->text, json_object_get_string(text), (size_t)json_object_get_string_len(text), &s->answer, err);
    s->answer.n = ids ? json_object_array_length(ids) : 0;
    s->answer.ids = mem_array(s->answer.n + 1, sizeof *s->answer.ids);
    if (!s->answer.ids) return error_nomem(err, "a script");
    for (size_t i = 0; i < s->answer.n; i++) s->answer.ids[i] = json_object_get_int(element(ids, i));
    return CALLA_OK;
}

static json_object *next_line(calla_engine *e) {
    json_object *line = NULL;
    pthread_mutex_lock(&e->mutex);
    if (e->script && e->script_at < json_object_array_length(e->script)) line = element(e->script, e->script_at++);
    pthread_mutex_unlock(&e->mutex);
    return line;
}

static void load_script(calla_engine *e, const char *path) {
    char *text;
    size_t n;
    calla_error err;
    if (file_read(path, 64 << 20, &text, &n, &err)) fprintf(stderr, "%s\n", err.message), abort();
    e->script = json_object_new_array();
    for (char *p = text, *end; p < text + n; p = end + 1) {
        end = memchr(p, '\n', (size_t)(text + n - p));
        if (!end) end = text + n;
        json_object *line = NULL;
        if (end == p) continue;
        if (json_parse(p, (size_t)(end - p), path, &line, &err)) fprintf(stderr, "%s\n", err.message), abort();
        json_object_array_add(e->script, line);
    }
    mem_free(text);
}

/* The last user message of the prompt becomes the answer, or the next line of the script. */
static calla_status read_script(calla_session *s, const calla_generate_options *options, calla_error *err) {
    json_object *line = next_line(s->engine);
    if (line) return read_line(s, line, err);
    static const char user[] = "<|im_start|>user\n", turn_end[] = "<|im_end|>";
    char *text = NULL;
    size_t n = 0;
    calla_status rc = calla_text_decode(s->engine->text, s->prompt, s->n_prompt, &text, &n, err);
    if (rc) return rc;
    const char *begin = text;
    for (const char *p = text; (p = strstr(p, user)); p++) begin = p + strlen(user);
    const char *end = strstr(begin, turn_end);
    if (!end) end = text + n;
    read_directives(s, &begin, end);
    buffer answer = {0};
    if (s->show_choice) buffer_printf(&answer, "%u:", options->sampling.choice);
    if (s->show_options) print_options(options, &answer);
    buffer_append(&answer, begin, (size_t)(end - begin));
    rc = answer.failed ? error_nomem(err, "a script") : calla_text_encode(s->engine->text, answer.data, answer.n, &s->answer, err);
    buffer_free(&answer);
    calla_free(text);
    if (!rc && s->refuse) rc = error_set(err, CALLA_E_LIMIT, "the script refuses");
    return rc;
}

/* -------------------------------------------------------------- steps ---------------------------------------------------- */

/* The token that the options force now, or -1.  Behind the last of them the script goes on as a model would: behind the first of its
 * tokens that would have made forcing needless. */
static int32_t forced_token(calla_session *s) {
    calla_force *f = &s->options.force;
    if (s->generated < f->after || s->forced >= f->n) return -1;
    if (!s->forced)
        for (size_t i = 0; i < s->at; i++)
            for (uint32_t k = 0; k < f->n_unless; k++)
                if (s->answer.ids[i] == f->unless[k]) f->n = 0;
    if (!f->n) return -1;
    const int32_t id = f->ids[s->forced++];
    for (size_t i = s->at; s->forced == f->n && i < s->answer.n; i++)
        if (s->answer.ids[i] == f->unless[0]) {
            s->at = i + 1;
            break;
        }
    return id;
}

/* ------------------------------------------------------------- guides ---------------------------------------------------- */

static bool allows(const calla_session *s, const uint32_t *mask, int32_t id) {
    return id >= 0 && (uint32_t)id < s->engine->info.vocabulary && mask[id / 32] >> id % 32 & 1;
}

/* What a model in a hurry to end writes where it may not: the first of these that the mask allows, else the token with the lowest id. */
static int32_t filler(const calla_session *s, const uint32_t *mask) {
    static const char *const fillers[] = {"\"", "}", "]", "</tool_call>", "</", "\n", "0", "a"};
    const tokenizer *t = s->engine->text->tokenizer;
    for (size_t i = 0; i < sizeof fillers / sizeof *fillers; i++) {
        calla_ids ids = {0};
        if (calla_text_encode(s->engine->text, fillers[i], strlen(fillers[i]), &ids, NULL)) continue; /* a test made memory fail */
        const int32_t id = ids.n == 1 ? ids.ids[0] : -1;
        calla_ids_free(&ids);
        if (allows(s, mask, id)) return id;
    }
    for (uint32_t id = 0; id < tokenizer_vocabulary(t); id++)
        if (allows(s, mask, (int32_t)id)) return (int32_t)id;
    fprintf(stderr, "fake engine: the guide allows no token\n");
    abort();
}

/* The token that the script wants next (the stop token at its end), as far as a guide lets it: what is not allowed is skipped, and behind
 * the end comes filler until the answer may end. */
static int32_t wanted_token(calla_session *s, bool *stop) {
    const calla_guide *guide = &s->options.guide;
    const uint32_t *mask = guide->mask ? guide->mask(guide->user) : NULL;
    const int32_t stop_id = tokenizer_stop_id(s->engine->text->tokenizer);
    size_t at = s->at;
    while (mask && at < s->answer.n && !allows(s, mask, s->answer.ids[at])) at++;
    *stop = at == s->answer.n && (!mask || allows(s, mask, stop_id));
    if (*stop) return stop_id;
    if (at == s->answer.n) return filler(s, mask); /* the script stays where it is: its rest may fit later */
    s->at = at + 1;
    return s->answer.ids[at];
}

/* Log-probabilities of the step's token. */
static void fill_logprobs(const calla_session *s, calla_event *e, calla_token_logprob *top) {
    json_object *given = element(member(s->line, "logprobs"), s->generated);
    json_object *alternatives = element(member(s->line, "top"), s->generated);
    e->logprob = given ? (float)json_object_get_double(given) : -0.25f;
    e->n_top = s->options.n_top_logprobs;
    if (alternatives && json_object_array_length(alternatives) < e->n_top) e->n_top = (uint32_t)json_object_array_length(alternatives);
    for (uint32_t k = 0; k < e->n_top; k++) {
        json_object *pair = element(alternatives, k);
        top[k] = (calla_token_logprob){.id = e->id + (int32_t)k, .logprob = -0.25f - (float)k};
        if (pair)
            top[k] = (calla_token_logprob){.id = json_object_get_int(element(pair, 0)),
                                           .logprob = (float)json_object_get_double(element(pair, 1))};
    }
    e->top = top;
}

/* The whole prompt in one step: -0.5 for each token behind the first, its alternatives as those of an answer. */
static void tell_prompt(calla_session *s) {
    calla_token_logprob top[CALLA_MAX_TOP_LOGPROBS];
    for (size_t i = 0; i < s->n_prompt; i++) {
        calla_event e = {.kind = CALLA_EVENT_PROMPT_TOKEN, .id = s->prompt[i], .logprob = i ? -0.5f : NAN, .top = top};
        for (e.n_top = 0; i && e.n_top < s->options.n_top_logprobs; e.n_top++)
            top[e.n_top] = (calla_token_logprob){.id = e.id + (int32_t)e.n_top, .logprob = -0.5f - (float)e.n_top};
        s->fn(s->user, &e);
    }
    s->told_prompt = true;
}

/* What the session's next step reports; true if the job ends with it.  Called without the lock. */
static bool step(calla_session *s) {
    calla_event e = {.prompt_tokens = (uint32_t)s->n_prompt};
    calla_error error = {0};
    calla_token_logprob top[CALLA_MAX_TOP_LOGPROBS];
    if (s->prompt_step < s->prompt_steps) {
        e.kind = CALLA_EVENT_PROMPT;
        e.prompt_done = (uint32_t)(s->n_prompt * ++s->prompt_step / s->prompt_steps);
        s->fn(s->user, &e);
        return false;
    }
    if (s->options.prompt_logprobs && !s->told_prompt) tell_prompt(s);
    if (s->options.only_prompt) {
        e = (calla_event){.kind = CALLA_EVENT_DONE, .finish = CALLA_FINISH_LENGTH, .prompt_tokens = (uint32_t)s->n_prompt};
        s->fn(s->user, &e);
        return true;
    }
    if (s->fails && s->generated == s->fail_at) {
        error_set(&error, CALLA_E_DEVICE, "the scripted device failed");
        e = (calla_event){.kind = CALLA_EVENT_DONE, .finish = CALLA_FINISH_ERROR, .error = &error, .completion_tokens = s->generated};
        s->fn(s->user, &e);
        return true;
    }
    if (s->endless && s->at == s->answer.n) s->at = 0;
    const int32_t forced = forced_token(s);
    bool stop = false;
    e.kind = CALLA_EVENT_TOKEN;
    e.id = forced >= 0 ? forced : wanted_token(s, &stop);
    e.is_stop = stop;
    fill_logprobs(s, &e, top);
    if (s->options.guide.mask) s->options.guide.took(s->options.guide.user, e.id);
    s->generated++;
    s->fn(s->user, &e);
    if (stop && s->options.ignore_stop) s->at = 0; /* the script begins again */
    if (!(stop && !s->options.ignore_stop) && s->generated < s->options.max_tokens) return false;
    e = (calla_event){.kind = CALLA_EVENT_DONE,
                      .finish = stop && !s->options.ignore_stop ? CALLA_FINISH_STOP : CALLA_FINISH_LENGTH,
                      .completion_tokens = s->generated,
                      .prompt_tokens = (uint32_t)s->n_prompt};
    s->fn(s->user, &e);
    return true;
}

/* The running session whose step is due first. */
static calla_session *pick(calla_engine *e) {
    calla_session *best = NULL;
    uint32_t n = 0;
    for (calla_session *s = e->jobs; s; s = s->next, n++) {
        if (n >= e->info.max_sequences && !s->cancelled) continue;
        if (!best || s->due_ns < best->due_ns) best = s;
    }
    return best;
}

static void end_job(calla_engine *e, calla_session *s) {
    for (calla_session **p = &e->jobs; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    s->active = false;
    pthread_cond_broadcast(&e->done);
}

static void *work(void *user) {
    calla_engine *e = user;
    pthread_mutex_lock(&e->mutex);
    while (!e->closing) {
        calla_session *s = pick(e);
        if (!s) {
            pthread_cond_wait(&e->wake, &e->mutex);
            continue;
        }
        const uint64_t now = clock_now_ns();
        if (!s->cancelled && s->due_ns > now) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            const uint64_t ns = (uint64_t)until.tv_nsec + (s->due_ns - now);
            until.tv_sec += (time_t)(ns / 1000000000u);
            until.tv_nsec = (long)(ns % 1000000000u);
            pthread_cond_timedwait(&e->wake, &e->mutex, &until);
            continue;
        }
        const bool cancelled = s->cancelled;
        pthread_mutex_unlock(&e->mutex);
        bool over = true;
        const uint32_t before = s->generated;
        if (cancelled) {
            const calla_event done = {.kind = CALLA_EVENT_DONE, .finish = CALLA_FINISH_CANCELLED, .completion_tokens = s->generated};
            s->fn(s->user, &done);
        } else
            over = step(s);
        pthread_mutex_lock(&e->mutex);
        e->stats.cancelled += cancelled;
        e->stats.tokens += s->generated - before;
        s->due_ns = clock_now_ns() + 1000000ull * (s->prompt_step < s->prompt_steps ? s->prompt_ms : s->token_ms);
        if (over) end_job(e, s);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}

/* ------------------------------------------------------------- engine ---------------------------------------------------- */

calla_engine *fake_engine_open(const fake_options *options) {
    calla_engine *e = mem_calloc(1, sizeof *e);
    if (!e) abort();
    e->text = options->text;
    e->info = (calla_engine_info){.model_name = "scripted",
                                  .device = "fake",
                                  .context_tokens = options->context_tokens ? options->context_tokens : 4096,
                                  .model_context = 262144,
                                  .max_sequences = options->max_sequences ? options->max_sequences : 4,
                                  .vocabulary = calla_text_vocabulary(options->text),
                                  .defaults = {.temperature = 1, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1}};
    e->info.vocabulary_rows = e->info.vocabulary;
    if (options->script) load_script(e, options->script);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->wake, NULL);
    pthread_cond_init(&e->done, NULL);
    if (pthread_create(&e->thread, NULL, work, e)) abort();
    return e;
}

void calla_engine_close(calla_engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->mutex);
    e->closing = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
    pthread_join(e->thread, NULL);
    if (e->stats.opened != e->stats.closed) {
        fprintf(stderr, "fake engine: %u sessions opened, %u closed\n", e->stats.opened, e->stats.closed);
        abort();
    }
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->done);
    json_object_put(e->script);
    pthread_mutex_destroy(&e->mutex);
    mem_free(e);
}

void calla_engine_get_info(const calla_engine *e, calla_engine_info *out) { *out = e->info; }
const calla_text *calla_engine_text(const calla_engine *e) { return e->text; }

static fake_stats stats_locked(calla_engine *e) {
    fake_stats stats = e->stats;
    uint32_t n = 0;
    for (const calla_session *s = e->jobs; s; s = s->next) n++;
    stats.running = n < e->info.max_sequences ? n : e->info.max_sequences;
    stats.queued = n - stats.running;
    return stats;
}

fake_stats fake_engine_stats(calla_engine *e) {
    pthread_mutex_lock(&e->mutex);
    const fake_stats stats = stats_locked(e);
    pthread_mutex_unlock(&e->mutex);
    return stats;
}

void calla_engine_get_status(const calla_engine *engine, calla_engine_status *out) {
    calla_engine *e = (calla_engine *)(uintptr_t)engine;
    pthread_mutex_lock(&e->mutex);
    const fake_stats stats = stats_locked(e);
    *out = (calla_engine_status){.running = stats.running, .queued = stats.queued, .failed = e->broken};
    if (e->broken) snprintf(out->message, sizeof out->message, "the scripted device broke");
    pthread_mutex_unlock(&e->mutex);
}

void fake_engine_break(calla_engine *e) {
    pthread_mutex_lock(&e->mutex);
    e->broken = true;
    pthread_mutex_unlock(&e->mutex);
}

/* ------------------------------------------------------------ sessions --------------------------------------------------- */

calla_status calla_session_open(calla_engine *e, calla_session **out, calla_error *err) {
    calla_session *s = mem_calloc(1, sizeof *s);
    if (!s) return error_nomem(err, "a session");
    s->engine = e;
    pthread_mutex_lock(&e->mutex);
    e->stats.opened++;
    pthread_mutex_unlock(&e->mutex);
    *out = s;
    return CALLA_OK;
}

void calla_session_close(calla_session *s) {
    if (!s) return;
    calla_engine *e = s->engine;
    calla_session_cancel(s);
    calla_session_wait(s);
    pthread_mutex_lock(&e->mutex);
    e->stats.closed++;
    pthread_mutex_unlock(&e->mutex);
    calla_ids_free(&s->answer);
    mem_free(s->prompt);
    mem_free(s);
}

calla_status calla_session_append(calla_session *s, const int32_t *ids, size_t n, calla_error *err) {
    if (s->n_prompt + n > s->engine->info.context_tokens) return error_set(err, CALLA_E_LIMIT, "the window is full");
    if (mem_grow(&s->prompt, &s->cap_prompt, s->n_prompt + n, sizeof *s->prompt, SIZE_MAX / 4)) return error_nomem(err, "a prompt");
    memcpy(s->prompt + s->n_prompt, ids, n * sizeof *ids);
    s->n_prompt += n;
    return CALLA_OK;
}

uint32_t calla_session_tokens(const calla_session *s) { return (uint32_t)s->n_prompt + s->generated; }

calla_status calla_session_generate(calla_session *s, const calla_generate_options *options, calla_event_fn fn, void *user,
                                    calla_error *err) {
    calla_engine *e = s->engine;
    calla_status rc = read_script(s, options, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->mutex);
    if (e->broken)
        rc = error_set(err, CALLA_E_DEVICE, "the scripted device broke");
    else {
        s->options = *options;
        s->fn = fn;
        s->user = user;
        s->active = true;
        s->due_ns = clock_now_ns() + 1000000ull * s->prompt_ms;
        calla_session **end = &e->jobs;
        while (*end) end = &(*end)->next;
        *end = s;
        e->stats.generated++;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

void calla_session_cancel(calla_session *s) {
    pthread_mutex_lock(&s->engine->mutex);
    s->cancelled = true;
    pthread_cond_signal(&s->engine->wake);
    pthread_mutex_unlock(&s->engine->mutex);
}

void calla_session_wait(calla_session *s) {
    pthread_mutex_lock(&s->engine->mutex);
    while (s->active) pthread_cond_wait(&s->engine->done, &s->engine->mutex);
    pthread_mutex_unlock(&s->engine->mutex);
}

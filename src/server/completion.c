/* completion.c: see completion.h.
 *
 * Sessions that the engine has not let go of when a completion ends are closed by their jobs.  Any write may find that the client is gone
 * and call on_gone; therefore every callback is bracketed by enter and leave, and the completion is freed only by the outermost leave. */
#include "server/completion.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "server/compiled_forms.h"
#include "server/entropy.h"
#include "server/remarks.h"
#include "server/reply.h"

enum {
    WORKER_BYTES = 8 << 10, /* bodies above this are parsed and tokenized by the worker: below, it takes less than a millisecond.  Forms
                             * that are new are compiled there in any case */
    TICK_MS = 500,          /* how often a stream is looked at … */
    SILENCE_MS = 1000,      /* … and given a sign of life if it was silent for so long: never 2 s without a byte */
    ANSWER_RESERVE = 4096   /* tokens */
};

/* ------------------------------------------------------------- lifetime -------------------------------------------------- */

static void free_choice(completion_choice *choice) {
    if (choice->job) job_release(choice->job);
    calla_answer_close(choice->answer);
    for (size_t i = 0; i < choice->n_parts; i++) {
        mem_free(choice->parts[i].name);
        buffer_free(&choice->parts[i].text);
    }
    mem_free(choice->parts);
    buffer_free(&choice->logprobs);
}

static void release_upload(completion *c) {
    c->server->upload_used -= c->held;
    c->held = 0;
}

static void destroy(completion *c) {
    server *s = c->server;
    release_upload(c);
    for (uint32_t i = 0; c->choices && i < c->n_choices; i++) free_choice(&c->choices[i]);
    mem_free(c->choices);
    if (c->tick) event_free(c->tick);
    if (c->own) {
        if (c->dialect->free) c->dialect->free(c);
        conversation_free(c->own);
    }
    mem_free(c->own);
    for (size_t i = 0; i < c->n_prompts; i++) calla_prompt_free(&c->prompts[i]);
    mem_free(c->prompts);
    calla_form_release(c->form);
    buffer_free(&c->body);
    buffer_free(&c->line);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->completions = c->next;
    if (c->next) c->next->prev = c->prev;
    s->n_completions--;
    mem_free(c);
    server_check_drained(s);
}

static void enter(completion *c) { c->busy++; }

static void leave(completion *c) {
    if (--c->busy == 0 && !c->connection && !c->with_worker) destroy(c);
}

/* What the log says of an answer: times in ms, rate in tokens a second.  Never a word of it. */
static void write_note(const completion *c, char *out, size_t n) {
    uint64_t tokens, reasoning;
    if (!c->choices) return; /* it never came to one; the prompt may still be the worker's */
    completion_usage(c, &tokens, &reasoning);
    const double decode_s = (double)c->decode_ns / 1e9;
    snprintf(out, n, "id=%s queue=%.1f prompt=%u cached=%u prefill=%.1f tokens=%llu decode=%.1f rate=%.1f end=%s", c->id,
             (double)c->queue_ns / 1e6, c->prompt_tokens, c->cached_tokens, (double)c->prompt_ns / 1e6, (unsigned long long)tokens,
             (double)c->decode_ns / 1e6, decode_s > 0 && tokens > 1 ? (double)(tokens - 1) / decode_s : 0.0, finish_name(c->outcome));
}

_Static_assert((int)FINISH_ERROR == (int)COMPLETION_STOP_STRING + 1, "finish_name goes on behind the finishes");

/* Counts an answer that is over.  Requests that start no job are no answers. */
static void count_outcome(completion *c) {
    if (!c->choices) return;
    metrics *m = &c->server->metrics;
    m->finished[c->outcome]++;
    m->prompt_tokens += c->prompt_tokens;
    m->cached_tokens += c->cached_tokens;
    metrics_generation(m, (double)(clock_now_ns() - c->begun_ns) / 1e9);
}

/* The connection, no longer the completion's: what follows on it is the end of the reply. */
static connection *detach(completion *c, unsigned outcome) {
    connection *link = c->connection;
    c->connection = NULL;
    if (!link) return NULL;
    link->reply.gone = link->reply.proceed = NULL;
    c->outcome = outcome;
    count_outcome(c);
    write_note(c, link->reply.note, sizeof link->reply.note);
    return link;
}

/* The engine has not told yet how long what was not finished took. */
static void note_unfinished(completion *c) {
    if (c->decode_ns || !c->choices) return;
    const uint64_t now = clock_now_ns();
    c->prompt_ns = (c->first_token_ns ? c->first_token_ns : now) - c->begun_ns;
    c->decode_ns = c->first_token_ns ? now - c->first_token_ns : 0;
}

static void on_gone(void *user) {
    completion *c = user;
    enter(c);
    note_unfinished(c);
    detach(c, FINISH_ABORTED);
    atomic_store(&c->task.skip, true);
    leave(c);
}

static void fail(completion *c, const api_error *e) {
    if (!c->connection) return;
    const bool begun = c->connection->reply.begun;
    if (begun) c->dialect->fail(c, e);
    connection *link = detach(c, FINISH_ERROR);
    if (!link) return;
    char *note = link->reply.note;
    const size_t n = strlen(note);
    snprintf(note + n, sizeof link->reply.note - n, "%serror=%s", n ? " " : "", e->code ? e->code : "other");
    if (!begun)
        reply_error(link, e);
    else
        reply_stream_end(link, false); /* nobody may take this for an answer that is whole */
}

static void fail_with(completion *c, const calla_error *err) {
    api_error e;
    api_error_from(&e, err, NULL);
    log_warn("%s %s: %s", c->dialect->name, c->id, err->message);
    fail(c, &e);
}

static void fail_nomem(completion *c, const char *what) {
    calla_error err;
    error_nomem(&err, what);
    fail_with(c, &err);
}

static void fail_stopping(completion *c) {
    api_error e;
    api_error_set(&e, 503, "server_stopping", NULL, "the server is stopping");
    fail(c, &e);
}

/* -------------------------------------------------------------- parts ---------------------------------------------------- */

static completion_part *last_part(completion_choice *choice) { return choice->n_parts ? &choice->parts[choice->n_parts - 1] : NULL; }

/* The part that the piece begins or goes on with; NULL: out of memory. */
static completion_part *part_for(completion_choice *choice, const calla_piece *piece) {
    const completion_dialect *d = choice->completion->dialect;
    completion_part *part = last_part(choice);
    if (piece->kind == CALLA_PIECE_ARGUMENTS || piece->kind == CALLA_PIECE_CALL_END) {
        part->ended |= piece->kind == CALLA_PIECE_CALL_END;
        return part;
    }
    if (part && part->kind == piece->kind && !part->ended) return part;
    if (part) part->ended = true;
    if (mem_grow(&choice->parts, &choice->cap_parts, choice->n_parts + 1, sizeof *choice->parts, SIZE_MAX / sizeof *choice->parts))
        return NULL;
    part = &choice->parts[choice->n_parts];
    *part = (completion_part){.kind = piece->kind};
    if (piece->kind == CALLA_PIECE_CALL) {
        part->name = mem_strndup(piece->name, strlen(piece->name));
        if (!part->name) return NULL;
        entropy_id(d->call_prefix, 24, part->id);
        choice->n_calls++;
    }
    choice->n_parts++;
    return part;
}

static void on_piece(void *user, const calla_piece *piece) {
    completion_choice *choice = user;
    completion *c = choice->completion;
    if (choice->enough) return;
    if (piece->kind != CALLA_PIECE_REASONING) choice->in_reasoning = false;
    completion_part *part = choice->failed ? NULL : part_for(choice, piece);
    if (part && (!c->own->stream || c->dialect->keeps_parts)) buffer_append(&part->text, piece->text, piece->n);
    if (!part || part->text.failed) {
        choice->failed = true; /* told by take_token, outside the parser */
        return;
    }
    part->n_text += piece->n;
    if (c->own->stream && c->connection) c->dialect->piece(choice, piece, part);
    choice->enough = c->own->single_call && piece->kind == CALLA_PIECE_CALL_END;
}

/* -------------------------------------------------------------- answer --------------------------------------------------- */

static void complete(completion *c) {
    const unsigned outcome = c->n_choices ? c->choices[0].finish : COMPLETION_STOP;
    if (c->own->stream) {
        c->dialect->end(c);
        connection *link = detach(c, outcome);
        if (link) reply_stream_end(link, true);
        return;
    }
    buffer body = {0};
    c->dialect->whole(c, &body);
    char headers[REMARKS_BYTES];
    connection *link = detach(c, outcome);
    reply_json(link, 200, remarks_write(c->own, c->n_choices > 0, headers), &body);
    buffer_free(&body);
}

static completion_finish finish_of(const completion_choice *choice, calla_finish finish) {
    if (choice->stopped) return COMPLETION_STOP_STRING;
    if (finish == CALLA_FINISH_LENGTH && !choice->enough) return COMPLETION_LENGTH;
    return choice->n_calls ? COMPLETION_TOOL_CALLS : COMPLETION_STOP;
}

static void finish_choice(completion_choice *choice, const job_result *result) {
    completion *c = choice->completion;
    calla_error err;
    metrics_queue(&c->server->metrics, (double)result->queue_ns / 1e9);
    if (result->queue_ns > c->queue_ns) c->queue_ns = result->queue_ns;
    if (result->prompt_ns > c->prompt_ns) c->prompt_ns = result->prompt_ns;
    if (result->decode_ns > c->decode_ns) c->decode_ns = result->decode_ns;
    if (result->finish == CALLA_FINISH_ERROR) {
        fail_with(c, &result->error);
        return;
    }
    if (result->finish == CALLA_FINISH_CANCELLED && !choice->stopped && !choice->enough) {
        fail_stopping(c);
        return;
    }
    if (calla_answer_finish(choice->answer, result->finish != CALLA_FINISH_STOP, &err)) {
        fail_with(c, &err);
        return;
    }
    if (choice->failed) {
        fail_nomem(c, "an answer");
        return;
    }
    choice->stopped = calla_answer_stopped_by(choice->answer) != NULL; /* the end of a held-back text may have completed one */
    choice->stop_string = calla_answer_stopped_by(choice->answer);
    choice->finish = finish_of(choice, result->finish);
    choice->finished = true;
    completion_part *last = last_part(choice);
    if (last) {
        last->cut = last->kind == CALLA_PIECE_CALL && !last->ended;
        last->ended = true;
    }
    job_release(choice->job);
    choice->job = NULL;
    if (c->own->stream && c->connection) c->dialect->finish(choice);
    if (--c->live == 0 && c->connection) complete(c);
}

static void count_token(completion_choice *choice, const job_token *token) {
    completion *c = choice->completion;
    metrics *m = &c->server->metrics;
    if (choice->completion_tokens++) metrics_between_tokens(m, (double)token->after_s);
    m->completion_tokens++;
    if (c->first_token_ns) return;
    c->first_token_ns = clock_now_ns();
    metrics_first_token(m, (double)(c->first_token_ns - c->begun_ns) / 1e9);
}

static bool is_stop_id(const conversation *r, int32_t id) {
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

static void take_token(completion_choice *choice, const job_token *token) {
    completion *c = choice->completion;
    if (choice->stopped || choice->enough) return;
    count_token(choice, token);
    if (is_stop_id(c->own, token->id)) {
        choice->enough = true;
        job_cancel(choice->job);
    }
    if (token->is_stop || choice->enough) return;
    const bool reasoning = choice->in_reasoning, ends = token->id == c->server->think_end_id;
    if (ends) choice->in_reasoning = false;
    if (c->dialect->token) c->dialect->token(choice, token);
    calla_error err;
    if (calla_answer_push(choice->answer, token->id, &choice->stopped, &err)) {
        fail_with(c, &err);
        return;
    }
    if (choice->failed) {
        fail_nomem(c, "an answer");
        return;
    }
    choice->reasoning_tokens += reasoning && (choice->in_reasoning || ends);
    if (c->dialect->token_end && c->own->stream && c->connection) c->dialect->token_end(choice);
    if (choice->stopped || choice->enough) job_cancel(choice->job);
}

/* Takes what the job has, as far as the socket takes it. */
static void advance(completion_choice *choice) {
    completion *c = choice->completion;
    job_token token;
    while (c->connection && !choice->finished) {
        if (c->own->stream && reply_is_backed_up(c->connection)) return; /* on_proceed goes on */
        if (job_take(choice->job, &token)) {
            if (token.of_prompt)
                c->dialect->prompt_token(choice, &token);
            else
                take_token(choice, &token);
            continue;
        }
        const job_result *result = job_get_result(choice->job);
        if (!result) return;
        finish_choice(choice, result);
    }
}

/* Of several choices the first speaks for all: they process the same prompt, or the first of several. */
static void tell_progress(completion_choice *choice) {
    completion *c = choice->completion;
    uint32_t done, of;
    if (!c->own->return_progress || !c->own->stream || !c->dialect->progress || choice->index || !c->connection || !choice->job) return;
    if (job_take_progress(choice->job, &done, &of)) c->dialect->progress(c, done, of);
}

static void on_news(void *user) {
    completion_choice *choice = user;
    completion *c = choice->completion;
    enter(c);
    tell_progress(choice);
    advance(choice);
    leave(c);
}

static void on_proceed(void *user) {
    completion *c = user;
    enter(c);
    for (uint32_t i = 0; i < c->n_choices && c->connection; i++)
        if (c->choices[i].job) advance(&c->choices[i]);
    leave(c);
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    completion *c = user;
    enter(c);
    const uint64_t now = clock_now_ns();
    if (c->connection && now - c->last_write_ns >= SILENCE_MS * 1000000ull && !reply_unsent(c->connection)) c->dialect->keepalive(c);
    leave(c);
}

/* -------------------------------------------------------------- start ---------------------------------------------------- */

/* A thought is closed when its budget is used up, and in any case while something is left for the answer: a fourth of all tokens, at most
 * ANSWER_RESERVE.  A call within the thought closes it as well, so that it is not cut. */
static void limit_thought(const completion *c, calla_force *force) {
    const server *s = c->server;
    const conversation *r = c->own;
    if (s->think_end_id < 0 || !s->think_close.n || s->think_close.n > CALLA_MAX_FORCED) return;
    const uint32_t n = (uint32_t)s->think_close.n, most = r->max_tokens;
    const uint32_t reserve = most / 4 < ANSWER_RESERVE ? most / 4 : ANSWER_RESERVE;
    if (most < 4 * n) return; /* no room for thoughts and an answer */
    *force = (calla_force){.after = most - reserve - n, .n = n, .unless = {s->think_end_id}, .n_unless = 1};
    if (r->thinking_budget < force->after) force->after = r->thinking_budget;
    if (r->tools && s->call_id >= 0) force->unless[force->n_unless++] = s->call_id;
    memcpy(force->ids, s->think_close.ids, n * sizeof *force->ids);
}

static bool start_choice(completion *c, uint32_t index, calla_error *err) {
    completion_choice *choice = &c->choices[index];
    const conversation *r = c->own;
    const calla_prompt *prompt = &c->prompts[choice->prompt];
    choice->in_reasoning = prompt->thinking;
    const calla_answer_options answer = {.thinking = prompt->thinking,
                                         .raw = c->dialect->raw,
                                         /* Letters are beyond a form: a call spelled in them, as models do at times, is taken
                                          * for one where nothing is owed. */
                                         .only_tokens = c->form && conversation_form_is_owed(r),
                                         .held = c->form != NULL,
                                         .stop = r->stop,
                                         .n_stop = r->n_stop,
                                         .tools_json = conversation_tools_json(r),
                                         .piece = on_piece,
                                         .user = choice};
    if (r->tools && !answer.tools_json) {
        error_nomem(err, "the request's tools");
        return false;
    }
    if (calla_answer_open(c->server->text, &answer, &choice->answer, err)) return false;
    calla_generate_options options = {.sampling = r->sampling,
                                      .max_tokens = r->max_tokens,
                                      .logprobs = r->logprobs,
                                      .n_top_logprobs = r->top_logprobs,
                                      .prompt_logprobs = c->prompt_logprobs,
                                      .only_prompt = c->only_prompt,
                                      .ignore_stop = r->ignore_stop};
    options.sampling.choice = index;
    if (prompt->thinking) limit_thought(c, &options.force);
    calla_matcher *matcher = NULL;
    if (c->form && calla_matcher_open(c->form, prompt->thinking, &matcher, err)) return false;
    return !job_start(c->server->mailbox, c->server->engine, prompt->ids.ids, prompt->ids.n, &options, matcher, on_news, choice,
                      &choice->job, err);
}

static bool start_stream(completion *c) {
    char headers[REMARKS_BYTES];
    const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    c->tick = event_new(c->server->base, -1, EV_PERSIST, on_tick, c);
    if (!c->tick || event_add(c->tick, &tick)) return false;
    reply_stream_begin(c->connection, remarks_write(c->own, c->n_choices > 0, headers));
    if (c->connection) c->dialect->begin(c);
    return true;
}

/* Prompts take turns in the order of choices: all of the first, then all of the second. */
static bool open_choices(completion *c) {
    c->choices = mem_calloc(c->n_choices, sizeof *c->choices);
    if (!c->choices) return false;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        c->choices[i].completion = c;
        c->choices[i].index = i;
        c->choices[i].prompt = i / (c->n_choices / (uint32_t)c->n_prompts);
    }
    c->live = c->n_choices;
    return true;
}

/* As JSON strings, in lines short enough for the log. */
static void log_prompts(const completion *c) {
    enum { PIECE_BYTES = 800 };
    for (size_t i = 0; i < c->n_prompts; i++) {
        const calla_prompt *p = &c->prompts[i];
        for (size_t at = 0, n; at < p->n_text; at += n) {
            n = p->n_text - at < PIECE_BYTES ? p->n_text - at : PIECE_BYTES;
            n = utf8_valid(p->text + at, n); /* not cut within a character: the text itself is valid */
            if (!n) return;
            buffer line = {0};
            json_append_string(&line, p->text + at, n);
            log_info("prompt %s from byte %zu: %.1900s", c->id, at, line.n ? line.data : "");
            buffer_free(&line);
        }
    }
}

static void start(completion *c) {
    calla_error err = {0};
    if (!c->n_choices) {
        c->own->stream = false;
        complete(c);
        return;
    }
    if (!c->own->said_seed) c->own->sampling.seed = entropy_u64() >> 11; /* 53 bits: clients read it as a double */
    c->connection->reply.proceed = on_proceed;                           /* not before: until then the completion may be the worker's */
    if (c->server->log_prompts) log_prompts(c);
    if (!open_choices(c)) {
        fail_nomem(c, "the answers");
        return;
    }
    for (uint32_t i = 0; i < c->n_choices; i++)
        if (!start_choice(c, i, &err)) {
            fail_with(c, &err);
            return;
        }
    for (size_t i = 0; i < c->n_prompts; i++) calla_prompt_free(&c->prompts[i]); /* the sessions have the ids */
    if (c->own->stream && !start_stream(c)) fail_nomem(c, "a stream");
}

/* Body → request → prompts.  On the loop's or the worker's thread: touches nothing but this completion and what never changes. */
static void prepare(void *user) {
    completion *c = user;
    c->prepared = c->dialect->prepare(c, &c->error);
    for (size_t i = 0; i < c->n_prompts; i++) c->prompt_tokens += (uint32_t)c->prompts[i].ids.n;
    buffer_free(&c->body);
}

/* What has come of the form's compilation.  Tools that may be called and are not strict were served before there were forms: where theirs
 * cannot be compiled, their calls are parsed as they come. */
static void take_form(completion *c, calla_status status, const calla_error *err) {
    if (!status) return;
    c->prepared = conversation_form_error(c->own, err, &c->error);
    if (c->error.status != 400 || conversation_form_is_owed(c->own)) return;
    conversation_warn(c->own, "calls are not held to the tools: %s", err->message);
    c->prepared = true;
}

/* The answer is free, or its form is there already: nothing is left for the worker to do. */
static bool needs_no_compiling(completion *c) {
    calla_form_options options;
    calla_status status;
    calla_error err;
    if (!c->prepared || !c->n_choices || !conversation_has_form(c->own)) return true;
    c->prepared = conversation_form_options(c->own, &options, &c->error);
    if (!c->prepared) return true;
    const bool found = compiled_forms_find(c->server->forms, &options, &c->form, &status, &err);
    if (found) take_form(c, status, &err);
    return found;
}

static void compile(void *user) {
    completion *c = user;
    calla_form_options options;
    calla_error err;
    c->prepared = conversation_form_options(c->own, &options, &c->error);
    if (c->prepared) take_form(c, compiled_forms_get(c->server->forms, c->server->text, &options, &c->form, &err), &err);
}

static void prepare_all(void *user) {
    prepare(user);
    if (!needs_no_compiling(user)) compile(user);
}

static void on_prepared(void *user) {
    completion *c = user;
    c->with_worker = false;
    release_upload(c);
    enter(c);
    if (c->connection) {
        if (c->server->cancelling)
            fail_stopping(c);
        else if (c->prepared)
            start(c);
        else
            fail(c, &c->error);
    }
    leave(c);
}

/* Requests that would be refused anyway. */
static bool check_room(const server *s, api_error *e) {
    if (s->draining) return api_error_set(e, 503, "server_stopping", NULL, "the server is stopping");
    if (s->n_completions < s->limits.requests) return true;
    api_error_set(e, 429, "too_many_requests", NULL, "%u requests are at work or waiting: try again later", s->n_completions);
    e->retry_after = 1;
    return false;
}

static void hand_over(completion *c, void (*run)(void *user)) {
    c->task.run = run;
    c->task.done = on_prepared;
    c->task.user = c;
    c->with_worker = true;
    worker_submit(c->server->worker, &c->task);
}

void completion_begin(connection *link, const completion_dialect *dialect) {
    server *s = link->server;
    api_error e;
    if (!check_room(s, &e)) {
        reply_error(link, &e);
        return;
    }
    completion *c = mem_calloc(1, sizeof *c);
    conversation *own = c ? mem_calloc(1, dialect->own_bytes) : NULL;
    if (!own) {
        mem_free(c);
        api_error_set(&e, 503, "out_of_memory", NULL, "out of memory for the request");
        reply_error(link, &e);
        return;
    }
    c->dialect = dialect;
    c->server = s;
    c->connection = link;
    c->own = own;
    conversation_init(own, &s->info);
    c->created = (int64_t)time(NULL);
    c->begun_ns = clock_now_ns();
    entropy_id(dialect->id_prefix, 24, c->id);
    c->next = s->completions;
    if (c->next) c->next->prev = c;
    s->completions = c;
    s->n_completions++;
    c->body = http_reader_take_body(&link->reader);
    c->held = link->reader.counted; /* until it is read, whether or not the client waits for that */
    link->reader.counted = 0;
    link->reply.gone = on_gone;
    link->reply.user = c;
    if (c->body.n > WORKER_BYTES)
        hand_over(c, prepare_all);
    else {
        prepare(c);
        if (needs_no_compiling(c))
            on_prepared(c);
        else
            hand_over(c, compile);
    }
}

/* ----------------------------------------------------------- for dialects ------------------------------------------------ */

bool completion_reserve_prompts(completion *c, size_t n, api_error *e) {
    c->prompts = mem_calloc(n, sizeof *c->prompts);
    if (!c->prompts) return api_error_set(e, 503, "out_of_memory", NULL, "out of memory for the request");
    c->n_prompts = n;
    return true;
}

bool completion_render(completion *c, api_error *e) {
    if (!completion_reserve_prompts(c, 1, e) || !conversation_render(c->own, c->server->text, c->prompts, e)) return false;
    c->n_choices = c->own->n;
    return conversation_fit(c->own, c->prompts[0].ids.n, e);
}

const char *completion_model(const completion *c) { return c->own->model ? c->own->model : c->server->info.model_name; }

buffer *completion_line(completion *c) {
    buffer_clear(&c->line);
    return &c->line;
}

void completion_send(completion *c, const char *name) {
    if (!c->connection) return;
    if (c->line.failed) {
        connection_abort(c->connection, ABORT_NO_MEMORY);
        return;
    }
    c->last_write_ns = clock_now_ns();
    reply_stream_event(c->connection, name, c->line.n ? c->line.data : "", c->line.n);
}

void completion_send_comment(completion *c, const char *text) {
    if (!c->connection) return;
    c->last_write_ns = clock_now_ns();
    reply_stream_comment(c->connection, text);
}

void completion_join(const completion_choice *choice, calla_piece_kind kind, buffer *out) {
    for (size_t i = 0; i < choice->n_parts; i++) {
        const completion_part *part = &choice->parts[i];
        if (part->kind == kind && part->text.n) buffer_append(out, part->text.data, part->text.n);
    }
}

void completion_write_progress(const completion *c, uint32_t done, uint32_t of, buffer *out) {
    buffer_printf(out, "\"prompt_progress\":{\"processed\":%u,\"total\":%u,\"cached\":%u}", done, of, c->cached_tokens);
}

void completion_usage(const completion *c, uint64_t *tokens, uint64_t *reasoning_tokens) {
    *tokens = *reasoning_tokens = 0;
    for (uint32_t i = 0; c->choices && i < c->n_choices; i++) {
        *tokens += c->choices[i].completion_tokens;
        *reasoning_tokens += c->choices[i].reasoning_tokens;
    }
}

/* ------------------------------------------------------------ the server ------------------------------------------------- */

void completion_cancel_all(server *s) {
    for (completion *c = s->completions, *next; c; c = next) {
        next = c->next;
        enter(c);
        atomic_store(&c->task.skip, true); /* its on_prepared will say that the server stops */
        if (!c->with_worker) fail_stopping(c);
        leave(c);
    }
}

void completion_abandon_all(server *s) {
    for (completion *c = s->completions; c; c = c->next) atomic_store(&c->task.skip, true);
}

void completion_free_all(server *s) {
    while (s->completions) destroy(s->completions);
}

/* chat.c: POST /v1/chat/completions, from body to last byte: parse and render (on the worker if large), one job per choice, tokens to
 * pieces, pieces to output.
 *
 * A chat lives until its reply has ended or its client has left, whichever comes first; sessions that the engine has not let go of by then
 * are closed by their jobs.  Any write may find that the client is gone and call on_gone; therefore every callback is bracketed by enter
 * and leave, and the chat is freed only by the outermost leave. */
#include "server/chat.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/chat_impl.h"
#include "server/entropy.h"
#include "server/reply.h"
#include "server/routes.h"

enum {
    WORKER_BYTES = 256 << 10, /* bodies above this are parsed and tokenized by the worker */
    TICK_MS = 500,            /* how often a stream is looked at … */
    SILENCE_MS = 1000         /* … and given a comment if it was silent for so long: never 2 s without a byte */
};

/* ------------------------------------------------------------- lifetime -------------------------------------------------- */

static void destroy(chat_completion *chat) {
    server *s = chat->server;
    for (uint32_t i = 0; i < CHAT_MAX_CHOICES; i++) {
        chat_choice *choice = &chat->choices[i];
        if (choice->job) job_release(choice->job);
        calla_answer_close(choice->answer);
        buffer_free(&choice->logprobs);
        buffer_free(&choice->reasoning);
        buffer_free(&choice->content);
        buffer_free(&choice->tool_calls);
    }
    if (chat->tick) event_free(chat->tick);
    chat_request_free(&chat->request);
    calla_prompt_free(&chat->prompt);
    buffer_free(&chat->body);
    buffer_free(&chat->line);
    if (chat->prev)
        chat->prev->next = chat->next;
    else
        s->chats = chat->next;
    if (chat->next) chat->next->prev = chat->prev;
    s->n_chats--;
    mem_free(chat);
    server_check_drained(s);
}

static void enter(chat_completion *chat) { chat->busy++; }

static void leave(chat_completion *chat) {
    if (--chat->busy == 0 && !chat->connection && !chat->with_worker) destroy(chat);
}

/* The connection, no longer the chat's: what follows on it is the end of the reply. */
static connection *detach(chat_completion *chat) {
    connection *c = chat->connection;
    chat->connection = NULL;
    if (c) c->reply.gone = c->reply.proceed = NULL;
    return c;
}

static void on_gone(void *user) {
    chat_completion *chat = user;
    enter(chat);
    detach(chat);
    atomic_store(&chat->task.skip, true);
    log_info("chat %s: the client left", chat->id);
    leave(chat);
}

static void fail(chat_completion *chat, const api_error *e) {
    connection *c = detach(chat);
    if (!c) return;
    if (!c->reply.begun) {
        reply_error(c, e);
        return;
    }
    buffer_clear(&chat->line);
    api_error_write(e, &chat->line);
    if (!chat->line.failed) reply_stream_event(c, chat->line.data, chat->line.n);
    reply_stream_end(c, false); /* without [DONE]: nobody may take this for an answer that is whole */
}

static void fail_with(chat_completion *chat, const calla_error *err) {
    api_error e;
    api_error_from(&e, err, NULL);
    log_warn("chat %s: %s", chat->id, err->message);
    fail(chat, &e);
}

static void fail_stopping(chat_completion *chat) {
    api_error e;
    api_error_set(&e, 503, "server_stopping", NULL, "the server is stopping");
    fail(chat, &e);
}

/* Names of fields without effect as a header line in out [cap], or NULL if there are none. */
static const char *ignored_header(const chat_completion *chat, char *out, size_t cap) {
    const buffer *ignored = &chat->request.ignored;
    if (!ignored->n) return NULL;
    snprintf(out, cap, "x-calla-ignored: %s\r\n", ignored->data);
    return out;
}

/* -------------------------------------------------------------- answer --------------------------------------------------- */

static void on_piece(void *user, const calla_piece *piece) {
    chat_choice *choice = user;
    if (piece->kind != CALLA_PIECE_REASONING) choice->in_reasoning = false;
    chat_output_piece(choice, piece);
}

static void complete(chat_completion *chat) {
    if (chat->request.stream) {
        if (chat->request.include_usage) chat_output_usage(chat);
        chat_output_done(chat);
        connection *c = detach(chat);
        if (c) reply_stream_end(c, true);
        return;
    }
    buffer body = {0};
    chat_output_whole(chat, &body);
    char headers[640];
    connection *c = detach(chat);
    reply_json(c, 200, ignored_header(chat, headers, sizeof headers), &body);
    buffer_free(&body);
}

static void finish_choice(chat_choice *choice, const job_result *result) {
    chat_completion *chat = choice->chat;
    calla_error err;
    if (result->finish == CALLA_FINISH_ERROR) {
        fail_with(chat, &result->error);
        return;
    }
    if (result->finish == CALLA_FINISH_CANCELLED && !choice->stopped) {
        fail_stopping(chat);
        return;
    }
    if (calla_answer_finish(choice->answer, &err)) {
        fail_with(chat, &err);
        return;
    }
    const bool cut = result->finish == CALLA_FINISH_LENGTH && !choice->stopped;
    choice->finish_reason = cut ? "length" : choice->n_tool_calls ? "tool_calls" : "stop";
    choice->finished = true;
    job_release(choice->job);
    choice->job = NULL;
    if (chat->connection) chat_output_finish(choice);
    if (--chat->live == 0 && chat->connection) complete(chat);
}

static void take_token(chat_choice *choice, const job_token *token) {
    chat_completion *chat = choice->chat;
    if (choice->stopped) return;
    choice->completion_tokens++;
    if (token->is_stop) return;
    const bool reasoning = choice->in_reasoning;
    if (token->id == chat->server->think_end_id) choice->in_reasoning = false;
    if (chat->request.logprobs) chat_output_token_logprob(chat->server->text, token, &choice->logprobs);
    calla_error err;
    if (calla_answer_push(choice->answer, token->id, &choice->stopped, &err)) {
        fail_with(chat, &err);
        return;
    }
    choice->reasoning_tokens += reasoning && (choice->in_reasoning || token->id == chat->server->think_end_id);
    chat_output_logprobs(choice);
    if (choice->stopped) job_cancel(choice->job);
}

/* Takes what the job has, as far as the socket takes it. */
static void advance(chat_choice *choice) {
    chat_completion *chat = choice->chat;
    job_token token;
    while (chat->connection && !choice->finished) {
        if (chat->request.stream && reply_is_backed_up(chat->connection)) return; /* on_proceed goes on */
        if (job_take(choice->job, &token)) {
            take_token(choice, &token);
            continue;
        }
        const job_result *result = job_get_result(choice->job);
        if (!result) return;
        finish_choice(choice, result);
    }
}

static void on_news(void *user) {
    chat_choice *choice = user;
    chat_completion *chat = choice->chat;
    enter(chat);
    advance(choice);
    leave(chat);
}

static void on_proceed(void *user) {
    chat_completion *chat = user;
    enter(chat);
    for (uint32_t i = 0; i < chat->request.n && chat->connection; i++)
        if (chat->choices[i].job) advance(&chat->choices[i]);
    leave(chat);
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    chat_completion *chat = user;
    enter(chat);
    const uint64_t now = clock_now_ns();
    if (chat->connection && now - chat->last_write_ns >= SILENCE_MS * 1000000ull && !reply_unsent(chat->connection)) {
        chat->last_write_ns = now;
        reply_stream_comment(chat->connection, "keep-alive");
    }
    leave(chat);
}

/* -------------------------------------------------------------- start ---------------------------------------------------- */

static bool start_choice(chat_completion *chat, uint32_t index, calla_error *err) {
    chat_choice *choice = &chat->choices[index];
    chat_request *r = &chat->request;
    choice->chat = chat;
    choice->index = index;
    choice->in_reasoning = chat->prompt.thinking;
    const calla_answer_options answer = {.thinking = chat->prompt.thinking,
                                         .stop = r->stop,
                                         .n_stop = r->n_stop,
                                         .tools_json = r->tools_json,
                                         .piece = on_piece,
                                         .user = choice};
    if (calla_answer_open(chat->server->text, &answer, &choice->answer, err)) return false;
    calla_generate_options options = {
        .sampling = r->sampling, .max_tokens = r->max_tokens, .logprobs = r->logprobs, .n_top_logprobs = r->top_logprobs};
    options.sampling.choice = index;
    return !job_start(chat->server->mailbox, chat->server->engine, chat->prompt.ids.ids, chat->prompt.ids.n, &options, on_news, choice,
                      &choice->job, err);
}

static bool start_stream(chat_completion *chat) {
    char headers[640];
    const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    chat->tick = event_new(chat->server->base, -1, EV_PERSIST, on_tick, chat);
    if (!chat->tick || event_add(chat->tick, &tick)) return false;
    reply_stream_begin(chat->connection, ignored_header(chat, headers, sizeof headers));
    for (uint32_t i = 0; i < chat->request.n && chat->connection; i++) chat_output_role(&chat->choices[i]);
    return true;
}

static void start(chat_completion *chat) {
    calla_error err = {0};
    if (!chat->request.has_seed) chat->request.sampling.seed = entropy_u64();
    chat->live = chat->request.n;
    chat->connection->reply.proceed = on_proceed; /* not before: until then the chat may be the worker's */
    for (uint32_t i = 0; i < chat->request.n; i++)
        if (!start_choice(chat, i, &err)) {
            fail_with(chat, &err);
            return;
        }
    calla_prompt_free(&chat->prompt); /* the sessions have its ids */
    if (chat->request.stream && !start_stream(chat)) {
        error_nomem(&err, "a stream");
        fail_with(chat, &err);
    }
}

/* Body → request → prompt.  On the loop's or the worker's thread: touches nothing but this chat and what never changes. */
static void prepare(void *user) {
    chat_completion *chat = user;
    const server *s = chat->server;
    chat->prepared = chat_request_parse(chat->body.data, chat->body.n, &s->info, &chat->request, &chat->error) &&
                     chat_request_render(&chat->request, s->text, s->info.context_tokens, &chat->prompt, &chat->error);
    chat->prompt_tokens = (uint32_t)chat->prompt.ids.n;
    buffer_free(&chat->body);
}

static void on_prepared(void *user) {
    chat_completion *chat = user;
    chat->with_worker = false;
    enter(chat);
    if (chat->connection) {
        http_reader_drop_body(&chat->connection->reader);
        if (chat->server->cancelling)
            fail_stopping(chat);
        else if (chat->prepared)
            start(chat);
        else
            fail(chat, &chat->error);
    }
    leave(chat);
}

/* Chats that would be refused anyway. */
static bool check_room(const server *s, api_error *e) {
    if (s->draining) return api_error_set(e, 503, "server_stopping", NULL, "the server is stopping");
    if (s->n_chats < s->limits.requests) return true;
    api_error_set(e, 429, "too_many_requests", NULL, "%u requests are at work or waiting: try again later", s->n_chats);
    e->retry_after = 1;
    return false;
}

void chat_handle(connection *c) {
    server *s = c->server;
    api_error e;
    if (!check_room(s, &e)) {
        reply_error(c, &e);
        return;
    }
    chat_completion *chat = mem_calloc(1, sizeof *chat);
    if (!chat) {
        api_error_set(&e, 503, "out_of_memory", NULL, "out of memory for the request");
        reply_error(c, &e);
        return;
    }
    chat->server = s;
    chat->connection = c;
    chat->created = (int64_t)time(NULL);
    entropy_id("chatcmpl-", 24, chat->id);
    chat->next = s->chats;
    if (chat->next) chat->next->prev = chat;
    s->chats = chat;
    s->n_chats++;
    chat->body = http_reader_take_body(&c->reader);
    c->reply.gone = on_gone;
    c->reply.user = chat;
    if (chat->body.n > WORKER_BYTES) {
        chat->task.run = prepare;
        chat->task.done = on_prepared;
        chat->task.user = chat;
        chat->with_worker = true;
        worker_submit(s->worker, &chat->task);
    } else {
        prepare(chat);
        on_prepared(chat);
    }
}

/* ------------------------------------------------------------ the server ------------------------------------------------- */

void chat_cancel_all(server *s) {
    for (chat_completion *chat = s->chats, *next; chat; chat = next) {
        next = chat->next;
        enter(chat);
        atomic_store(&chat->task.skip, true); /* its on_prepared will say that the server stops */
        if (!chat->with_worker) fail_stopping(chat);
        leave(chat);
    }
}

void chat_abandon_all(server *s) {
    for (chat_completion *chat = s->chats; chat; chat = chat->next) atomic_store(&chat->task.skip, true);
}

void chat_free_all(server *s) {
    while (s->chats) destroy(s->chats);
}

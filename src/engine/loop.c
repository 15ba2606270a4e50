/* loop.c: the engine thread: admits jobs, makes one batch of all that run, steps the model, and delivers events.
 *
 * A session's sequence in the model can be taken away between steps: from idle sessions when another needs their place, from the
 * youngest running one when KV pages run out (it goes back to the front of the queue).  Its history is processed again when it comes
 * back; since the random number of a token is a hash of its position, nothing in the answer shows it.
 *
 * Where the device works by itself (model_runs_ahead), a step is submitted before what the one before has picked is known here: rows
 * that go on from it name its segment.  An answer that turns out to have ended there is taken out of the step that is under way, and its
 * sequence rolled back.  What depends on the token before (a guide's mask, penalties) is made while the device computes the logits, if it
 * picks tokens only when it is told how (model_picks_later); otherwise the loop waits.
 *
 * Allocates nothing. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

/* ---- sequences ---- */

static uint32_t processed(const calla_session *s) { return s->slot ? sequence_tokens(s->slot->sequence) : 0; }

/* The next five: under the lock. */
static void forget(engine_slot *slot) {
    slot->emptied++;
    sequence_reset(slot->sequence);
}

static void empty_slot(engine_slot *slot) {
    if (slot->owner) slot->owner->slot = NULL;
    slot->owner = NULL;
    forget(slot);
}

/* A slot whose session does not run: one that nobody owns (its session was closed) or the one that ran least recently.  With
 * with_tokens only those that hold pages.  NULL if there is none. */
static engine_slot *spare_slot(const calla_engine *e, bool with_tokens) {
    engine_slot *spare = NULL;
    for (uint32_t i = 0; i < e->info.max_sequences; i++) {
        engine_slot *slot = &e->slots[i];
        if (slot->running || (with_tokens && !sequence_tokens(slot->sequence))) continue;
        if (!slot->owner) return slot;
        if (!spare || slot->used < spare->used) spare = slot;
    }
    return spare;
}

/* What a fork shares: NULL if it is none, or the other session has gone on or lost its place. */
static const sequence *origin_of(const calla_session *s) {
    const engine_slot *slot = s->origin.slot;
    return slot && slot->emptied == s->origin.emptied && sequence_tokens(slot->sequence) == s->origin.tokens ? slot->sequence : NULL;
}

static void give_slot(calla_engine *e, calla_session *s) {
    engine_slot *slot = spare_slot(e, false); /* never NULL: fewer run than there are slots */
    const sequence *origin = origin_of(s);
    if (origin != slot->sequence)
        empty_slot(slot);
    else if (slot->owner)
        slot->owner->slot = NULL; /* there is one place: the fork goes on in it */
    if (origin && origin != slot->sequence) sequence_fork_into(origin, slot->sequence);
    s->origin.slot = NULL;
    slot->owner = s;
    s->slot = slot;
}

static uint32_t free_pages(const calla_engine *e) {
    const sequence *s = e->slots[0].sequence;
    uint32_t in_page = (KV_PAGE_TOKENS - sequence_tokens(s) % KV_PAGE_TOKENS) % KV_PAGE_TOKENS;
    return (sequence_room(s) - in_page) / KV_PAGE_TOKENS;
}

/* Takes the pages of a session that does not run; false if none has any. */
static bool evict_spare(calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    engine_slot *slot = spare_slot(e, true);
    if (slot) empty_slot(slot);
    pthread_mutex_unlock(&e->lock);
    return slot != NULL;
}

/* ---- beginning and ending ---- */

/* Takes a session out of the step under way, whose rows are undone. */
static void drop_under_way(const calla_engine *e, const calla_session *s) {
    calla_error unused;
    engine_step *step = e->under_way;
    for (uint32_t i = 0; step && i < step->n; i++) {
        if (step->planned[i] != s) continue;
        step->planned[i] = NULL;
        sequence_rollback(s->slot->sequence, &unused); /* it can: no step of it has begun since */
    }
}

static void leave_running(calla_engine *e, calla_session *s) {
    drop_under_way(e, s);
    s->slot->running = false;
    for (uint32_t i = 0; i < e->running_count; i++) {
        if (e->running[i] != s) continue;
        memmove(&e->running[i], &e->running[i + 1], (e->running_count - i - 1) * sizeof *e->running);
        e->running_count--;
        pthread_mutex_lock(&e->lock);
        e->n_running = e->running_count;
        pthread_mutex_unlock(&e->lock);
        return;
    }
}

/* Delivers DONE and gives the session back to its callers, who may free it at once.  It is in no list any more. */
static void finish(calla_engine *e, calla_session *s, calla_finish how, const calla_error *error) {
    job *j = &s->job;
    uint64_t now = clock_now_ns(), admitted = j->admitted ? j->admitted_ns : now, first = j->first_token_ns ? j->first_token_ns : now;
    calla_event event = {
        .kind = CALLA_EVENT_DONE,
        .prompt_tokens = j->admitted ? j->prompt_tokens : s->n_ids - processed(s),
        .prompt_done = j->prompt_done,
        .finish = how,
        .completion_tokens = j->made,
        .queue_ns = admitted - j->arrived_ns,
        .prompt_ns = first - admitted,
        .decode_ns = now - first,
    };
    if (how == CALLA_FINISH_ERROR) {
        s->error = *error;
        event.error = &s->error;
    }
    j->fn(j->user, &event);
    pthread_mutex_lock(&e->lock);
    s->active = false;
    e->n_active--;
    pthread_cond_broadcast(&e->idle);
    pthread_mutex_unlock(&e->lock);
}

static void finish_running(calla_engine *e, calla_session *s, calla_finish how, const calla_error *error) {
    leave_running(e, s);
    finish(e, s, how, error);
}

/* Ends what was cancelled; after a device failure, or when closing, everything. */
static void end_unwanted(calla_engine *e) {
    bool closing = atomic_load(&e->closing);
    calla_finish how = e->failed && !closing ? CALLA_FINISH_ERROR : CALLA_FINISH_CANCELLED;
    bool all = e->failed || closing;
    for (uint32_t i = e->running_count; i-- > 0;)
        if (all || atomic_load(&e->running[i]->cancel)) finish_running(e, e->running[i], how, &e->failure);
    for (calla_session **at = &e->queue; *at;) {
        calla_session *s = *at;
        if (all || atomic_load(&s->cancel)) {
            *at = s->next;
            finish(e, s, how, &e->failure);
        } else
            at = &s->next;
    }
}

static void begin(calla_engine *e, calla_session *s) {
    pthread_mutex_lock(&e->lock);
    if (!s->slot) give_slot(e, s);
    if (s->job.score && processed(s) > s->job.score->next) forget(s->slot); /* rows are wanted of what is processed already */
    s->slot->running = true;
    e->running[e->running_count++] = s;
    e->n_running = e->running_count;
    pthread_mutex_unlock(&e->lock);
    if (s->job.admitted) return; /* comes back */
    s->job.admitted = true;
    s->job.admitted_ns = clock_now_ns();
    s->job.prompt_from = processed(s);
    s->job.prompt_tokens = s->n_ids - s->job.prompt_from;
}

/* A new job may begin as soon as its tokens fit beside what the others hold now: a short one is done before a long prompt needs the
 * pages.  One that was set aside waits until there is room for all that the others are about to hold, and a page more for each:
 * otherwise it would come back only to be set aside again. */
static bool may_begin(const calla_engine *e, const calla_session *s) {
    uint32_t tokens[MAX_SEQUENCES];
    for (uint32_t i = 0; i < e->running_count; i++) {
        const calla_session *other = e->running[i];
        tokens[i] = s->job.was_set_aside ? other->n_ids + KV_PAGE_TOKENS : processed(other);
    }
    return schedule_fits(tokens, e->running_count, s->n_ids + 1, model_get_plan(e->m)->limits.pages);
}

/* In order of arrival; nobody overtakes. */
static void admit(calla_engine *e) {
    while (e->queue && e->running_count < e->info.max_sequences) {
        calla_session *s = e->queue;
        if (!s->job.only_prompt && s->job.max_tokens == 0) { /* the window is full: there is no token to make */
            e->queue = s->next;
            finish(e, s, CALLA_FINISH_LENGTH, NULL);
            continue;
        }
        if (!may_begin(e, s)) return;
        e->queue = s->next;
        begin(e, s);
    }
}

/* Puts the youngest running job back to the front of the queue, without its place in the model. */
static void set_aside_youngest(calla_engine *e) {
    calla_session *s = e->running[e->running_count - 1];
    log_debug("no KV page is left: a sequence of %u tokens waits and will be processed again", s->n_ids);
    leave_running(e, s);
    s->job.was_set_aside = true;
    pthread_mutex_lock(&e->lock);
    empty_slot(s->slot);
    e->set_aside++;
    pthread_mutex_unlock(&e->lock);
    s->next = e->queue;
    e->queue = s;
}

/* ---- a step ---- */

/* The segment of a step whose token a session goes on from; UINT32_MAX: it knows its tokens. */
static uint32_t awaited_segment(const engine_step *step, const calla_session *s) {
    for (uint32_t i = 0; step && i < step->n; i++)
        if (step->planned[i] == s) return step->segments[i].sample ? i : UINT32_MAX;
    return UINT32_MAX;
}

/* Whether a step may be described before this one's results are known, which has been picked. */
static bool may_run_ahead(const calla_engine *e, const engine_step *step) {
    if (!model_runs_ahead(e->m)) return false;
    for (uint32_t i = 0; i < step->n; i++) {
        if (!step->planned[i]) continue;
        const job *j = &step->planned[i]->job;
        if (j->score || (!model_picks_later(e->m) && (j->guide.mask || j->force.n || j->tally.places))) return false;
        if (step->segments[i].sample && !model_runs_ahead_of(e->m, i)) return false;
    }
    return true;
}

/* Who takes part in the next step, and how many rows each has left: all that run but those whose last token is on its way. */
static bool list(const calla_engine *e, const engine_step *before, engine_step *next) {
    uint32_t scores = 0;
    for (uint32_t i = 0; i < e->running_count; i++) scores += e->running[i]->job.score != NULL;
    next->n = 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        calla_session *s = e->running[i];
        const bool awaits = awaited_segment(before, s) != UINT32_MAX;
        if (awaits && s->job.made + 1 == s->job.max_tokens) continue;
        uint32_t done = processed(s), most = e->info.batch_rows;
        if (s->job.score) most = score_most_rows(s->job.score, done, e->score_rows > scores ? e->score_rows / scores : 1, most);
        next->planned[next->n] = s;
        next->items[next->n++] = (schedule_item){.processed = done, .pending = s->n_ids + awaits - done, .max_rows = most};
    }
    return next->n > 0;
}

/* Plans the next step, with at least one row of everything that runs.  False: nothing is to be done, or not before the results of
 * `before`, the step under way, are known. */
static bool plan(calla_engine *e, const engine_step *before, engine_step *next) {
    if (before && !may_run_ahead(e, before)) return false;
    while (list(e, before, next)) {
        schedule_result result = schedule_rows(next->items, next->n, e->info.batch_rows, free_pages(e));
        if (result == SCHEDULE_FULL) return true;
        if (before) return false;
        if (evict_spare(e)) continue;
        if (result == SCHEDULE_CUT) return true;
        if (e->running_count > 1) {
            set_aside_youngest(e);
            continue;
        }
        calla_error err;
        error_set(&err, CALLA_E_INTERNAL, "no KV page is left for the only sequence that runs, of %u tokens", e->running[0]->n_ids);
        finish_running(e, e->running[0], CALLA_FINISH_ERROR, &err);
    }
    return false;
}

static void describe(const engine_step *before, engine_step *next, uint32_t i) {
    calla_session *s = next->planned[i];
    job *j = &s->job;
    const schedule_item *item = &next->items[i];
    const uint32_t awaited = awaited_segment(before, s);
    model_segment *g = &next->segments[i];
    *g = (model_segment){.sequence = s->slot->sequence, .ids = s->ids + item->processed, .rows = item->rows};
    if (awaited != UINT32_MAX) { /* its only row: all others are processed */
        next->chained[i] = -1 - (int32_t)awaited;
        g->ids = &next->chained[i];
    }
    if (j->score && score_wants_rows(j->score, item->processed)) g->want = WANT_ALL;
    if (j->only_prompt || item->rows < item->pending) return;
    if (g->want == WANT_NONE) g->want = WANT_LAST;
    next->requests[i] = j->sampling;
    next->requests[i].position = s->n_ids + (awaited != UINT32_MAX);
    g->sample = &next->requests[i];
}

/* The rest of the requests: what depends on the tokens before, which are known now. */
static void describe_picks(const calla_engine *e, engine_step *step) {
    for (uint32_t i = 0; i < step->n; i++) {
        sample_request *r = &step->requests[i];
        if (!step->segments[i].sample) continue;
        if (!step->planned[i]) { /* what it points to may be gone */
            *r = (sample_request){.tokens = r->tokens};
            continue;
        }
        job *j = &step->planned[i]->job;
        r->mask = force_mask(j, e);
        r->seen = j->tally.seen;
        r->n_seen = j->tally.n_seen;
        r->counts = j->tally.counts;
        r->n_counts = j->tally.n_counts;
    }
}

/* Asked by the model between layers, on the engine thread. */
static bool step_unwanted(void *user) {
    calla_engine *e = user;
    bool stop = atomic_load_explicit(&e->closing, memory_order_relaxed);
    for (uint32_t i = 0; i < e->running_count && !stop; i++) stop = atomic_load_explicit(&e->running[i]->cancel, memory_order_relaxed);
    return stop;
}

static void report_prompt(calla_session *s, uint32_t done) {
    job *j = &s->job;
    uint32_t prompt_done = done > j->prompt_from ? done - j->prompt_from : 0;
    if (prompt_done > j->prompt_tokens) prompt_done = j->prompt_tokens;
    if (prompt_done <= j->prompt_done) return; /* nothing new, or processed a second time */
    j->prompt_done = prompt_done;
    calla_event event = {.kind = CALLA_EVENT_PROMPT, .prompt_tokens = j->prompt_tokens, .prompt_done = prompt_done};
    j->fn(j->user, &event);
}

static bool is_stop(const calla_engine *e, int32_t id) {
    for (uint32_t i = 0; i < e->n_stop_ids; i++)
        if (e->stop_ids[i] == id) return true;
    return false;
}

static void report_token(calla_engine *e, calla_session *s, const sample_result *picked) {
    job *j = &s->job;
    if (!j->first_token_ns) j->first_token_ns = clock_now_ns();
    j->made++;
    force_took(j, picked->id);
    if (j->tally.places) tally_add(&j->tally, picked->id, true);
    pthread_mutex_lock(&e->lock);
    s->ids[s->n_ids++] = picked->id;
    pthread_mutex_unlock(&e->lock);
    calla_event event = {
        .kind = CALLA_EVENT_TOKEN,
        .prompt_tokens = j->prompt_tokens,
        .prompt_done = j->prompt_done,
        .id = picked->id,
        .is_stop = is_stop(e, picked->id),
        .logprob = picked->logprob,
        .top = picked->n_top ? picked->top : NULL,
        .n_top = picked->n_top,
        .completion_tokens = j->made,
    };
    j->fn(j->user, &event);
    if (event.is_stop && !j->ignore_stop)
        finish_running(e, s, CALLA_FINISH_STOP, NULL);
    else if (j->made == j->max_tokens)
        finish_running(e, s, CALLA_FINISH_LENGTH, NULL);
}

/* What segment i of a successful step brought. */
static void deliver(calla_engine *e, const engine_step *step, uint32_t i) {
    calla_session *s = step->planned[i];
    if (!s) return;
    const model_segment *g = &step->segments[i];
    uint32_t before = step->items[i].processed, done = before + g->rows;
    s->slot->used = e->turn;
    if (s->job.score) score_deliver(s->job.score, before, g->rows, e->m, i);
    report_prompt(s, done);
    if (done == s->n_ids) s->job.score = NULL; /* what is sampled is no part of the prompt */
    if (done == s->n_ids && s->job.only_prompt) finish_running(e, s, CALLA_FINISH_LENGTH, NULL);
    if (!g->sample) return;
    const sample_result *picked = model_sampled(e->m, i);
    if (picked->id >= 0) {
        report_token(e, s, picked);
        return;
    }
    leave_running(e, s);
    pthread_mutex_lock(&e->lock);
    empty_slot(s->slot); /* the next generate must have something left to process */
    pthread_mutex_unlock(&e->lock);
    calla_error err;
    if (s->job.guide.mask)
        error_set(&err, CALLA_E_INTERNAL,
                  "no token is left: those that the guide allows have logits of NaN or -infinity, or it allows none");
    else
        error_set(&err, CALLA_E_INTERNAL, "the model gave no token: all logits are NaN or -infinity; the weights may be damaged");
    finish(e, s, CALLA_FINISH_ERROR, &err);
}

static void fail_device(calla_engine *e, const calla_error *err) {
    log_error("the device failed: %s", err->message);
    pthread_mutex_lock(&e->lock);
    e->failed = true;
    e->failure = *err;
    pthread_mutex_unlock(&e->lock);
}

static void submit(calla_engine *e, const engine_step *before, engine_step *next) {
    calla_error err = {0};
    for (uint32_t i = 0; i < next->n; i++) describe(before, next, i);
    if (!model_picks_later(e->m)) describe_picks(e, next);
    calla_status status = model_submit(e->m, next->segments, next->n, step_unwanted, e, &err);
    if (status == CALLA_OK)
        e->under_way = next;
    else if (status == CALLA_E_DEVICE)
        fail_device(e, &err);
    else if (status != CALLA_E_CANCELLED && !before) /* whatever it was, the one that came last goes, and the others try again */
        finish_running(e, next->planned[next->n - 1], CALLA_FINISH_ERROR, &err);
}

/* Of the step under way, once the one before is settled. */
static void pick(calla_engine *e, engine_step *step) {
    if (model_picks_later(e->m)) describe_picks(e, step);
    model_pick(e->m, step->segments);
}

/* Waits for a step, the oldest under way, and delivers what it brought. */
static void settle(calla_engine *e, engine_step *step) {
    calla_error err = {0};
    if (e->under_way == step) e->under_way = NULL;
    if (model_collect(e->m, &err) == CALLA_OK)
        for (uint32_t i = 0; i < step->n; i++) deliver(e, step, i);
    else if (!e->failed)
        fail_device(e, &err);
}

static void step(calla_engine *e) {
    engine_step *before = e->under_way, *next = &e->steps[before == &e->steps[0]];
    if (plan(e, before, next)) submit(e, before, next);
    if (before) settle(e, before);
    if (!e->under_way) return;
    pick(e, e->under_way);
    if (e->failed || !may_run_ahead(e, e->under_way)) settle(e, e->under_way);
}

/* Waits for something to do and moves new jobs to the queue; false when closing and all is done. */
static bool collect(calla_engine *e) {
    pthread_mutex_lock(&e->lock);
    while (!e->inbox && !e->queue && !e->running_count && !e->under_way && !e->closing) pthread_cond_wait(&e->wake, &e->lock);
    calla_session **end = &e->queue;
    while (*end) end = &(*end)->next;
    *end = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->turn++;
    bool go_on = e->queue || e->running_count || e->under_way || !e->closing;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

void *engine_thread(void *engine) {
    calla_engine *e = engine;
    while (collect(e)) {
        end_unwanted(e);
        admit(e);
        step(e);
    }
    return NULL;
}

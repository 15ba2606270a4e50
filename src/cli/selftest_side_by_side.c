/* selftest_side_by_side.c: the same prompt, answered greedily by several sequences of one batch, must give the same tokens: what leaks
 * from one sequence into another shows here.
 *
 * Kernels sum in another order for other numbers of rows, so an exact tie may be broken differently; where both candidates of a step are
 * within TIE_MAX of each other, what follows is not compared. */
#include <string.h>

#include "base/memory.h"
#include "cli/report.h"
#include "cli/selftest.h"

enum { PROMPT = 40, ANSWER = 32 };

#define TIE_MAX 1e-3f /* nats */

typedef struct answer {
    uint32_t n;
    int32_t ids[ANSWER];
    float margin[ANSWER]; /* of the most likely token to the next, in nats */
    calla_error error;
    calla_finish finish;
} answer;

static void take_event(void *user, const calla_event *event) {
    answer *a = user;
    if (event->kind == CALLA_EVENT_TOKEN && a->n < ANSWER) {
        a->ids[a->n] = event->id;
        a->margin[a->n++] = event->n_top > 1 ? event->top[0].logprob - event->top[1].logprob : 0;
    }
    if (event->kind != CALLA_EVENT_DONE) return;
    a->finish = event->finish;
    if (event->error) a->error = *event->error;
}

static calla_status start(calla_engine *engine, const int32_t *ids, calla_session **session, answer *a, calla_error *err) {
    const calla_generate_options go = {
        .sampling = {.top_p = 1, .repetition_penalty = 1}, .max_tokens = ANSWER, .n_top_logprobs = 2, .ignore_stop = true};
    calla_status status = calla_session_open(engine, session, err);
    if (!status) status = calla_session_append(*session, ids, PROMPT, err);
    return status ? status : calla_session_generate(*session, &go, take_event, a, err);
}

static calla_status answer_all(calla_engine *engine, const int32_t *ids, answer *answers, calla_error *err) {
    calla_session *sessions[SELFTEST_SEQUENCES] = {0};
    calla_status status = CALLA_OK;
    for (int i = 0; i < SELFTEST_SEQUENCES && !status; i++) status = start(engine, ids, &sessions[i], &answers[i], err);
    for (int i = 0; i < SELFTEST_SEQUENCES; i++) {
        if (!sessions[i]) continue;
        calla_session_wait(sessions[i]);
        calla_session_close(sessions[i]);
        if (!status && answers[i].finish == CALLA_FINISH_ERROR)
            status = error_set(err, answers[i].error.status, "%s", answers[i].error.message);
    }
    return status;
}

static void compare(selftest *s, const answer *answers) {
    uint32_t compared = 0;
    for (int i = 1; i < SELFTEST_SEQUENCES; i++) {
        uint32_t t = 0;
        while (t < ANSWER && t < answers[0].n && t < answers[i].n && answers[0].ids[t] == answers[i].ids[t]) t++;
        compared += t;
        if (t == ANSWER) continue;
        if (answers[i].n == ANSWER && answers[0].n == ANSWER && answers[0].margin[t] <= TIE_MAX && answers[i].margin[t] <= TIE_MAX)
            continue;
        selftest_add(s, "side by side", CHECK_FAILED, "token %u of answer %d differs from that of the first, without a tie", t, i);
        return;
    }
    check *c = selftest_add(s, "side by side", CHECK_OK, "%d answers of %d tokens to one prompt: the same%s", SELFTEST_SEQUENCES, ANSWER,
                            compared == ANSWER * (SELFTEST_SEQUENCES - 1) ? "" : " up to a tie");
    report_append_count(&c->members, "compared_tokens", compared);
}

void selftest_side_by_side(selftest *s) {
    calla_error err = {0};
    int32_t ids[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++) ids[i] = (int32_t)((i + 1) * 2246822519u % s->info.vocabulary);
    answer *answers = mem_calloc(SELFTEST_SEQUENCES, sizeof *answers);
    calla_status status = answers ? answer_all(s->engine, ids, answers, &err) : error_nomem(&err, "answers");
    if (status)
        selftest_add_error(s, "side by side", &err);
    else
        compare(s, answers);
    mem_free(answers);
}

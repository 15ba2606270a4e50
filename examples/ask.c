/* ask.c: asks the embedded pocket model a question and prints the answer as it comes.  usage: ask [QUESTION] */
#include <calla.h>
#include <stdio.h>

static calla_answer *answer;

static void print_piece(void *user, const calla_piece *piece) {
    (void)user;
    if (piece->kind == CALLA_PIECE_CONTENT) fwrite(piece->text, 1, piece->n, stdout);
    fflush(stdout);
}

/* On the engine's thread. */
static void on_event(void *user, const calla_event *event) {
    calla_error *err = user;
    bool stopped;
    if (event->kind == CALLA_EVENT_TOKEN && !event->is_stop) calla_answer_push(answer, event->id, &stopped, err);
    if (event->kind == CALLA_EVENT_DONE) calla_answer_finish(answer, event->finish != CALLA_FINISH_STOP, err);
    if (event->kind == CALLA_EVENT_DONE && event->error) *err = *event->error;
}

int main(int argc, char **argv) {
    const char *question = argc > 1 ? argv[1] : "What is the capital of France?";
    char json[4096]; /* a real program would escape the question */
    int n = snprintf(json, sizeof json, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", question);
    calla_error err = {0};
    calla_engine *engine = NULL;
    calla_session *session = NULL;
    calla_prompt prompt = {0};

    calla_status status = n >= (int)sizeof json ? CALLA_E_LIMIT : calla_engine_open(NULL, &engine, &err);
    if (!status) status = calla_text_render(calla_engine_text(engine), json, (size_t)n, &prompt, &err);
    if (!status) {
        calla_answer_options options = {.thinking = prompt.thinking, .piece = print_piece};
        status = calla_answer_open(calla_engine_text(engine), &options, &answer, &err);
    }
    if (!status) status = calla_session_open(engine, &session, &err);
    if (!status) status = calla_session_append(session, prompt.ids.ids, prompt.ids.n, &err);
    if (!status) {
        calla_engine_info info;
        calla_engine_get_info(engine, &info);
        calla_generate_options options = {.sampling = info.defaults};
        options.sampling.temperature = 0; /* the likeliest answer */
        status = calla_session_generate(session, &options, on_event, &err, &err);
    }
    if (!status) calla_session_wait(session);
    calla_session_close(session);
    calla_answer_close(answer);
    calla_prompt_free(&prompt);
    calla_engine_close(engine);
    if (status || err.status)
        fprintf(stderr, "ask: %s\n", err.message);
    else
        puts("");
    return status || err.status ? 1 : 0;
}

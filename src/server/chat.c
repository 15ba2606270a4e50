/* chat.c: the dialect of POST /v1/chat/completions, put together from chat_request.c and chat_output.c. */
#include "server/chat.h"

static bool prepare(completion *c, api_error *e) {
    return chat_request_read((chat_request *)c->own, c->body.data, c->body.n, e) && completion_render(c, e);
}

static void keepalive(completion *c) { completion_send_comment(c, "keep-alive"); }

const completion_dialect chat_dialect = {
    .name = "chat",
    .id_prefix = "chatcmpl-",
    .call_prefix = "call_",
    .own_bytes = sizeof(chat_request),
    .prepare = prepare,
    .write_error = api_error_write,
    .whole = chat_output_whole,
    .begin = chat_output_begin,
    .token = chat_output_token,
    .piece = chat_output_piece,
    .token_end = chat_output_token_end,
    .finish = chat_output_finish,
    .end = chat_output_end,
    .fail = chat_output_fail,
    .keepalive = keepalive,
    .progress = chat_output_progress,
};

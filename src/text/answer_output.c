/* answer_output.c: see answer_output.h. */
#include "text/answer_output.h"

#include <string.h>

static size_t without_space(const buffer *b) {
    size_t n = b->n;
    while (n && (b->data[n - 1] == ' ' || b->data[n - 1] == '\n' || b->data[n - 1] == '\t' || b->data[n - 1] == '\r')) n--;
    return n;
}

static void deliver(answer_output *o, size_t n) {
    if (n == 0) return;
    const calla_piece piece = {.kind = o->kind, .text = o->pending.data, .n = n};
    o->fn(o->user, &piece);
    memmove(o->pending.data, o->pending.data + n, o->pending.n - n);
    o->pending.n -= n;
}

void output_text(answer_output *o, calla_piece_kind kind, const char *text, size_t n) {
    if (n == 0) return;
    if (o->kind != kind) output_flush(o);
    o->kind = kind;
    buffer_append(&o->pending, text, n);
    o->failed |= o->pending.failed;
}

void output_drop_space(answer_output *o) {
    if (o->pending.n) o->pending.n = without_space(&o->pending);
}

void output_call(answer_output *o, const char *name) {
    output_flush(o);
    o->fn(o->user, &(calla_piece){.kind = CALLA_PIECE_CALL, .text = "", .name = name});
}

void output_arguments(answer_output *o, const char *json, size_t n) {
    if (n) o->fn(o->user, &(calla_piece){.kind = CALLA_PIECE_ARGUMENTS, .text = json, .n = n});
}

void output_call_end(answer_output *o) { o->fn(o->user, &(calla_piece){.kind = CALLA_PIECE_CALL_END, .text = ""}); }

void output_deliver(answer_output *o) {
    const bool hold = o->kind == CALLA_PIECE_REASONING || o->hold_content_space;
    deliver(o, hold ? without_space(&o->pending) : o->pending.n);
}

void output_flush(answer_output *o) { deliver(o, o->pending.n); }

void output_free(answer_output *o) { buffer_free(&o->pending); }

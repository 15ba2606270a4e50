/* print.c: see print.h. */
#include "cli/print.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIM "\033[2m"
#define PLAIN "\033[0m"

void printer_init(printer *p, bool raw) {
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR"); /* https://no-color.org */
    memset(p, 0, sizeof *p);
    p->answer = stdout;
    p->answer_on_terminal = isatty(STDOUT_FILENO);
    p->thoughts = p->answer_on_terminal ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
    p->colour = term && strcmp(term, "dumb") != 0 && !(no_colour && *no_colour);
    p->raw = raw;
}

/* On a terminal, control characters other than line ends and tabs would be commands to it: they are left out.  So are U+0080 … U+009F,
 * which some terminals obey as well. */
static void put(FILE *out, bool terminal, const char *text, size_t n) {
    if (!terminal) {
        fwrite(text, 1, n, out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) continue;
        if (c == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0) {
            i++;
            continue;
        }
        putc(c, out);
    }
}

static void end_thoughts(printer *p) {
    if (!p->in_thoughts) return;
    p->in_thoughts = false;
    if (p->colour) fputs(PLAIN, p->thoughts);
    fputs(p->last_thought == '\n' ? "\n" : "\n\n", p->thoughts);
    fflush(p->thoughts);
}

void printer_piece(void *user, const calla_piece *piece) {
    printer *p = user;
    if (piece->n == 0) return;
    if (piece->kind == CALLA_PIECE_REASONING) {
        if (!p->thoughts) return;
        if (!p->in_thoughts && p->colour) fputs(DIM, p->thoughts);
        p->in_thoughts = true;
        p->last_thought = piece->text[piece->n - 1];
        put(p->thoughts, true, piece->text, piece->n);
        return;
    }
    end_thoughts(p);
    p->last = piece->text[piece->n - 1];
    put(p->answer, p->answer_on_terminal, piece->text, piece->n);
}

calla_status printer_flush(printer *p, calla_error *err) {
    if (p->thoughts) fflush(p->thoughts);
    if (fflush(p->answer) == 0 && !ferror(p->answer)) return CALLA_OK;
    return error_set(err, CALLA_E_IO, "cannot write standard output: %s", strerror(errno));
}

calla_status printer_end(printer *p, calla_error *err) {
    end_thoughts(p);
    bool exact = p->raw && !p->answer_on_terminal;
    if (!exact && p->last && p->last != '\n') putc('\n', p->answer);
    return printer_flush(p, err);
}

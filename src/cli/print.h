/* print.h: how an answer looks.  The answer goes to standard output; thoughts go, dimmed, to the terminal: to standard output if that
 * is one, else to standard error if that is one, else nowhere.  Nothing that the model writes can steer the terminal. */
#ifndef CALLA_CLI_PRINT_H
#define CALLA_CLI_PRINT_H

#include <stdio.h>

#include "base/error.h"

typedef struct printer {
    FILE *answer, *thoughts; /* thoughts: NULL where they are not shown */
    bool answer_on_terminal, colour;
    bool raw; /* print exactly what comes */
    bool in_thoughts;
    char last; /* byte of the answer; 0 before the first */
    char last_thought;
} printer;

void printer_init(printer *p, bool raw);
/* A calla_piece_fn; user is the printer. */
void printer_piece(void *user, const calla_piece *piece);
/* Pushes out what was printed; the error is that of standard output. */
calla_status printer_flush(printer *p, calla_error *err);
/* Ends the last line. */
calla_status printer_end(printer *p, calla_error *err);

#endif

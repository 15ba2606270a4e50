/* form_build.h: the machines of a form while it is compiled.
 *
 * A machine is reserved by its key and gets its automaton later, from a queue: so schemas may refer to themselves, and each automaton is
 * put together alone.  form_link turns the finished set into a program. */
#ifndef CALLA_TEXT_FORM_FORM_BUILD_H
#define CALLA_TEXT_FORM_FORM_BUILD_H

#include "text/form/form_dfa.h"
#include "text/form/form_table.h"

typedef struct form_build form_build;

/* Makes out, which is empty, from user.  n: an empty automaton to put together in, which the caller frees. */
typedef void (*form_build_fn)(form_build *b, const void *user, form_nfa *n, form_dfa *out);

typedef struct build_machine {
    form_dfa dfa;
    bool wide, text, free; /* see form_program.h; the start state is free */
    form_common common;    /* or FORM_OWN */
    uint32_t twin;         /* FORM_NONE: not counted */
    form_build_fn fn;
    const void *user;
    const void *key; /* [n_key] */
    size_t n_key;
    const char *where, *path, *keyword; /* what it was reserved for */
} build_machine;

struct form_build {
    form_work work;
    build_machine *machines;
    size_t n_machines, cap_machines, n_built;
    form_guard *guards;
    size_t n_guards, cap_guards;
    size_t n_states; /* of what is built */
    form_table keys;
};

void form_build_open(form_build *b, calla_error *err);
void form_build_close(form_build *b);

/* The machine of key [n_key], reserved if it is not there.  *fresh: it was reserved now, and its traits may be set.  user and key live
 * as long as b (form_alloc). */
uint32_t form_machine_of(form_build *b, const void *key, size_t n_key, form_build_fn fn, const void *user, bool *fresh);
uint32_t form_guard_of(form_build *b, form_guard_kind kind, uint64_t value); /* a symbol */
/* Builds all machines that are reserved and those that they reserve. */
void form_build_run(form_build *b);

/* The program of what was built; root and thought are machines. */
calla_status form_link(form_build *b, uint32_t root, uint32_t thought, form_program **out);

#endif

/* form_program.h: what a form is compiled to, and what both of its halves agree on: the compiler writes it once, the matcher reads it.
 *
 * A program is a set of machines.  A machine reads bytes and control tokens, may call another machine (a value within an object, white
 * space between two elements), and has one count of 64 bits in each of its frames (how many items, how many characters, which
 * parameters were seen).  Each machine's byte edges are deterministic: one row of next states a state.  Calls and guards are edges that
 * read nothing, several may leave a state beside its row, and then the matcher follows all of them at once: its state is a set of
 * configurations (state, count, stack), each of which alone could be finished.
 *
 * How a configuration moves (state s, count c, stack of (return state, its count) of depth d):
 *   - a byte b, or a control symbol: s' = form_next(p, s, b); c and stack stay
 *   - each guard edge (g, s'): if g holds of c, to s' with the count that g leaves; reads nothing
 *   - each call edge (m, s'): push (s', c), go to machine m's start state with count 0; a tail call pushes nothing
 *   - s accepts and the stack is not empty: pop, go to the return state with its count
 *   - s accepts and the stack is empty: the answer may end.
 * A move to s' that leaves depth d' is made only if d' + need[s'] <= FORM_MAX_FRAMES (a return needs no check: the call's own check
 * of its return state at the caller's depth was made when the call was made, which is a part of the rule).
 *
 * Invariants that the compiler keeps:
 *   - A guard stands before the byte that it permits, and whatever the count, a reachable state that does not accept has an edge that
 *     is passable.  So every configuration can be finished: dropping one of several is always sound, and no set is ever without a move.
 *   - Moves that read nothing never go in a circle, and a machine never calls itself before it has read something.  At most
 *     FORM_MAX_CHOICES call and guard edges leave a state.
 *   - Every state is reachable from its machine's start state over edges of any kind, and every state has a finite need.
 *   - An accepting state of the root with no edges means: only the stop token may follow.
 *   - need[root] <= FORM_MAX_FRAMES. */
#ifndef CALLA_TEXT_FORM_FORM_PROGRAM_H
#define CALLA_TEXT_FORM_FORM_PROGRAM_H

#include "calla.h"

#define FORM_NONE UINT32_MAX /* no state, no machine; form_next's answer where there is no edge */

enum {
    FORM_MAX_FRAMES = 100,     /* of a stack; json.h reads 128 levels, and a level is one frame and something around it */
    FORM_MAX_STATES = 65536,   /* of a program */
    FORM_MAX_CHOICES = 128,    /* call and guard edges of one state */
    FORM_MAX_COUNT = (1 << 30) /* of an INC or MIN guard: 64-bit counts never wrap */
};

/* The symbols that rows are indexed with: bytes, then the two control tokens that may stand in an answer. */
enum { FORM_TOOL_BEGIN = 256, /* <tool_call> */ FORM_TOOL_END, /* </tool_call> */ FORM_SYMBOLS };

typedef enum form_guard_kind {
    FORM_INC,    /* holds if count < value; count++ */
    FORM_MIN,    /* holds if count >= value */
    FORM_UNUSED, /* holds if no bit of value is set in count; sets them.  value has one bit */
    FORM_ALL     /* holds if all bits of value are set in count */
} form_guard_kind;

typedef struct form_guard {
    form_guard_kind kind;
    uint64_t value;
} form_guard;

/* A call edge or a guard edge. */
typedef struct form_edge {
    uint32_t what; /* the machine or the guard */
    uint32_t next; /* FORM_NONE: a tail call, which pushes nothing (the state to return to would accept and have no edges) */
} form_edge;

typedef struct form_state {
    uint32_t machine; /* that it belongs to */
    uint32_t row;     /* rows[row + classes[symbol]] is the next state; states with equal rows share one */
    uint32_t calls;   /* edges[calls .. calls + n_calls) */
    uint32_t guards;  /* edges[guards .. guards + n_guards) */
    uint8_t n_calls, n_guards;
    bool accepts;
    bool free;     /* see below */
    uint16_t need; /* least number of frames above its own that suffice to reach acceptance of its machine */
    uint32_t twin; /* of a counted machine's state that no guard leads to: the corresponding state of its twin, else FORM_NONE */
} form_state;

/* A free state, only ever in the root machine: text is free there.  Any token at all may follow, control tokens and stop among them,
 * and stays in the state; except <tool_call>, which is an edge like any other and is forbidden where the state has none.  (A self loop
 * on it: everything is free.)  It accepts, has no byte edges, no calls and no guards. */

/* What a machine is made of, so that the matcher can choose how to compute masks. */
typedef enum form_machine_kind {
    FORM_GENERAL, /* anything: walk the trie */
    FORM_BYTES,   /* byte edges only: no calls, guards, control symbols.  Literals, numbers, white space */
    FORM_WIDE,    /* as BYTES, and most tokens fit most of its states: free strings, raw text, patterns.  An accepting state may have
                   * byte edges too */
    FORM_COUNTED  /* byte edges and INC and MIN guards, one INC for each character: a string with bounds of length.  The machine `twin`
                   * is WIDE and the same without guards: a state with guards has as twin the state that stands for all it reaches over
                   * guards, and an edge on byte b leads to the twin's edge on b.  So where neither bound is within reach of a token,
                   * the tokens that stay in a counted state's machine are its twin's.  What MIN leads to accepts, or reads one byte
                   * and accepts then */
} form_machine_kind;

/* Machines that are the same in every program, states numbered alike from `start` on: their masks can be shared between programs. */
typedef enum form_common {
    FORM_OWN,         /* not one of these */
    FORM_STRING,      /* any JSON string, with its quotes */
    FORM_CALL_STRING, /* the same in a tool call, without what would end its parameter */
    FORM_WHITE_SPACE, /* between two elements of JSON */
    FORM_NUMBER,
    FORM_INTEGER,
    FORM_TEXT,       /* a tool parameter's free text */
    FORM_SHORT_TEXT, /* the same within a bound of length (form_text.h) */
    FORM_COMMONS
} form_common;

typedef struct form_machine {
    form_machine_kind kind;
    form_common common;
    bool text; /* a parameter's text, which goes on where it may end: what follows a call of it begins with "\n" or "<" */
    uint32_t first_state, n_states; /* its states are consecutive */
    uint32_t start;
    uint32_t classes;                         /* class_maps[classes]: its byte classes */
    uint32_t twin;                            /* of a COUNTED machine, else FORM_NONE */
    uint64_t first[(FORM_SYMBOLS + 63) / 64]; /* symbols that something it accepts may begin with, through calls and guards */
    bool nullable;                            /* it accepts the empty string: then what follows the call may begin as well */
} form_machine;

typedef struct form_class_map {
    uint16_t of[FORM_SYMBOLS]; /* symbol → class */
    uint32_t n_classes;
} form_class_map;

typedef struct form_program {
    form_machine *machines; /* [n_machines] */
    form_state *states;     /* [n_states] */
    uint32_t *rows;         /* [n_rows] states or FORM_NONE */
    form_edge *edges;       /* [n_edges] */
    form_guard *guards;     /* [n_guards] */
    form_class_map *class_maps;
    uint32_t n_machines, n_states, n_rows, n_edges, n_guards, n_class_maps;
    uint32_t root;    /* machine of an answer without a thought: the prompt has already written "<think>\n\n</think>\n\n" */
    uint32_t thought; /* machine of what comes behind a thought's </think>: the root behind at most two line ends, which the template
                       * has there.  Equal to root where the root is free */
    bool owed;        /* text is not free: during a thought neither stop nor <tool_call> may be taken.  Else a thought is not masked,
                       * and a <tool_call> within it begins the call (answer.c takes it as one) */
} form_program;

/* The state behind one symbol (a byte or one of the control symbols), or FORM_NONE. */
static inline uint32_t form_next(const form_program *p, uint32_t state, uint32_t symbol) {
    const form_state *s = &p->states[state];
    return p->rows[s->row + p->class_maps[p->machines[s->machine].classes].of[symbol]];
}

/* Compiles options as calla_form_compile does.  *out is freed with form_program_free. */
calla_status form_program_compile(const calla_form_options *options, form_program **out, calla_error *err);
void form_program_free(form_program *p); /* NULL is allowed */

#endif

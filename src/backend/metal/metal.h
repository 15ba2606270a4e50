/* metal.h: the Metal backend's host side.
 *
 * Everything that can be known beforehand is prepared once: where each weight lies (place.c), the arguments of every dispatch of every
 * layer, and the list of dispatches that an op consists of (prepare.c).  A step then writes its descriptor (batch.c) and walks the lists
 * (run.c).  Memory is shared by host and device, so nothing is sent and nothing fetched. */
#ifndef CALLA_BACKEND_METAL_METAL_H
#define CALLA_BACKEND_METAL_METAL_H

#include "backend/backend.h"
#include "backend/metal/args.h"
#include "backend/metal/gpu.h"

/* ---- weights ---- */

enum { METAL_MOST_PARTS = 4, METAL_MOST_WEIGHT_MEMORIES = 256, METAL_MOST_FILES = 64 };

typedef struct metal_parts { /* matrices side by side in the output; neighbours of one format are one matrix */
    metal_mat mat[METAL_MOST_PARTS];
    uint32_t column[METAL_MOST_PARTS]; /* of the output */
    uint32_t n;
} metal_parts;

typedef struct metal_layer {
    metal_parts mixer_in;      /* qkv | z | a | b, or q | k | v */
    metal_parts query, cached; /* of an attention layer the same in two: q, and k | v */
    metal_parts router;        /* router | shared expert's router */
    metal_mat mixer_out, shared_gate, shared_up, shared_down, gate, up, down;
    uint64_t norm_mixer, norm_moe;           /* vectors, all f32, as addresses on the device */
    uint64_t conv, decay, dt_bias, gdn_norm; /* delta net; decay: exp(A_log) */
    uint64_t q_norm, k_norm;                 /* attention */
} metal_layer;

typedef struct metal_file { /* of the checkpoint */
    const uint8_t *data;
    uint64_t bytes, alone; /* of it, matrices that are joined with no other */
    bool in_place;         /* these are computed with where they lie */
    metal_memory memory;
} metal_file;

typedef struct metal_weights {
    metal_memory memory[METAL_MOST_WEIGHT_MEMORIES];
    metal_file file[METAL_MOST_FILES];
    uint32_t memories, files;
    uint64_t bytes;     /* with the files in place */
    metal_layer *layer; /* [layers] */
    metal_mat embed, head;
    uint64_t final_norm;
} metal_weights;

/* ---- scratch: views into BUF_SCRATCH, as addresses on the device ---- */

typedef struct metal_scratch {
    uint64_t router_logits; /* [parts][rows][experts + 1] */
    uint64_t partial;       /* of split attention */
    uint64_t gathered;      /* [wanted][hidden]: the wanted rows of the residual */
    /* batches of many rows */
    uint64_t gated;        /* [rows][mixer out]: input of the output projection */
    uint64_t queries;      /* METAL_QUERIES floats */
    uint64_t long_partial; /* of split attention of long segments */
    uint64_t gdn;          /* METAL_GDN_SCRATCH bytes */
    uint64_t first, place; /* [experts + 1], [rows · top_k]: rows by expert */
    uint64_t expert_out;   /* [rows · top_k][hidden] */
    uint64_t bytes;
} metal_scratch;

/* ---- prepared dispatches ---- */

typedef enum metal_op {
    OP_EMBED,
    OP_MIXER_IN,
    OP_MIXER,
    OP_MIXER_OUT,
    OP_ROUTE,
    OP_EXPERT_IN,
    OP_EXPERT_OUT,
    OP_HEAD,
    OP_EMBED_MIXER_IN, /* few rows: the first layer's mixer_in with the embedding inside */
    OP_CHOOSE,         /* few rows: top-k alone, where somebody looks before expert_in has done it */
    OP_LAST_IN,        /* many rows, last layer: K and V of all rows, then the wanted rows alone */
    OP_LAST_MIXER,
    OP_MANY_HEAD, /* of more wanted rows than METAL_STEP_ROWS */
    OP_READ,      /* no part of a step: reads weights, to measure */
    OP_COUNT
} metal_op;

typedef enum metal_path { FEW_ROWS, MANY_ROWS, PATHS } metal_path;

typedef enum metal_extent { /* what a grid's dimension is multiplied by */
                            BY_ONE,
                            BY_ROWS,
                            BY_SEGMENTS,
                            BY_WANTED,
                            BY_SHORT_ROWS,
                            BY_SPLITS,
                            BY_LONG_SPLITS,
                            BY_GEMM_ROWS, /* ⌈rows / METAL_GEMM_ROWS⌉ */
                            BY_GDN_CHUNKS,
                            BY_TILES,
                            BY_ROUTER_PARTS,
                            BY_ROW_PARTS, /* of few rows, so that they make METAL_LEAST_THREADGROUPS */
} metal_extent;

typedef enum metal_when {
    ALWAYS,
    IF_SINGLE, /* every segment has one row */
    IF_NOT_SINGLE,
    IF_SHORT, /* rows in segments of fewer than METAL_SEGMENT_ROWS */
    IF_LONG,
    IF_LONG_SPLIT, /* and their positions are cut */
    IF_WIDE,       /* the wide GEMM's grid, `wide` outputs across, is large enough */
    IF_NARROW,
} metal_when;

enum { METAL_ARGUMENTS_ALIGN = 256 };

typedef struct metal_call {
    uint32_t kernel[2]; /* for one row, and for more */
    uint32_t threads, threadgroup_bytes;
    uint32_t grid[3];
    uint8_t by[3]; /* metal_extent */
    uint8_t when;  /* metal_when */
    bool barrier;  /* before it */
    bool whole;    /* all rows of the batch, where others take the wanted ones alone */
    bool cut;      /* along x, into commands of METAL_CUT_TILES or more: arguments has one after the other for each start */
    uint32_t wide;
    uint64_t arguments;
} metal_call;

typedef struct metal_program {
    uint32_t first, n; /* of calls */
} metal_program;

typedef struct metal_prepared {
    metal_memory arguments;
    uint64_t arguments_used;
    metal_call *calls;
    uint32_t n_calls, most_calls;
    metal_program *program; /* [layers][OP_COUNT][PATHS] */
} metal_prepared;

/* ---- a step ---- */

typedef struct metal_view { /* rows that ops are computed for: a batch, or its wanted rows alone */
    uint64_t step;          /* offset of its descriptor */
    uint32_t rows, segments, wanted, short_rows, splits, long_splits, long_positions, router_parts;
    metal_path path;
    bool single, any_long;
} metal_view;

/* Attention of a long context takes seconds: a command that holds up the desktop for so long is stopped by the system.  So it is cut into
 * commands of at most so many tiles × positions × K/V heads (each 64·256·4 flops; the two are some 1.1 and 0.3 TFLOP). */
enum { METAL_CUT_TILES = 4, METAL_COMMAND_WORK = 1 << 24, METAL_POLITE_WORK = 1 << 22 };
enum { METAL_LEAST_THREADGROUPS = 128 }; /* of a kernel that moves a megabyte: with fewer, part of a large device is idle */

enum { METAL_RING = 2 }; /* descriptors: of the step under way, and of the next one */

typedef struct metal_submitted { /* a step that is under way */
    const row_batch *batch;
    uint64_t commands; /* gpu_committed with its last ones */
} metal_submitted;

typedef struct metal_ring {
    metal_memory memory;
    uint64_t slot_bytes;
    uint32_t at;
    metal_submitted submitted[METAL_RING]; /* by slot */
    uint32_t under_way;                    /* the last of them is at `at` */
} metal_ring;

typedef struct metal_walk { /* of the dispatches of a step */
    uint32_t dispatches, barriers;
    bool dirty;    /* dispatches since the last barrier */
    bool dry;      /* only count */
    uint64_t step; /* offset of the descriptor that is bound, UINT64_MAX: none */
} metal_walk;

typedef struct metal_noted { /* an op that was called */
    metal_op op;
    uint32_t layer;
} metal_noted;

struct backend {
    const weights *w;
    const model_shape *s;
    backend_limits limits;
    metal_gpu *gpu;
    metal_facts facts;
    metal_weights weights;
    metal_memory buf[BUF_COUNT];
    metal_scratch scratch;
    metal_prepared prepared;
    metal_ring ring;

    const row_batch *batch;
    metal_view whole, last, head; /* head: as many rows as are wanted */
    const metal_view *view;       /* whole, or from the last layer on last */
    metal_commands commands;
    metal_walk walk;
    metal_noted *noted; /* [6·layers + 2] */
    uint32_t n_noted, most_noted, n_run;
    bool embedding_due, choice_due;            /* of few rows: what waits to be part of the next op */
    bool tensor;                               /* many rows: wide products by tensor operations */
    uint32_t command_work;                     /* METAL_COMMAND_WORK or METAL_POLITE_WORK */
    uint64_t read_bytes;                       /* of OP_READ */
    uint32_t token_dispatches, token_barriers; /* of one decoded token, attention split */

    void *sample_scratch;
    sample_result *results; /* [samples] of the step collected last */
    uint32_t *best_of;      /* [samples] of the step submitted last: the wanted row whose metal_step.best has the token, or UINT32_MAX */
};

/* What --without can turn off; bit i of limits.without. */
enum { WITHOUT_FUSED_EMBEDDING, WITHOUT_TENSOR_OPS };
static inline bool metal_turned_off(const backend *b, uint32_t bit) { return b->limits.without >> bit & 1; }

/* ---- place.c ---- */
/* Lays out the weights: first only sizes, then, once memory[] and those of the files are there, addresses. */
calla_status metal_place_weights(backend *b, calla_error *err);
/* `base`: address of BUF_SCRATCH, or 0 to measure. */
void metal_place_scratch(const model_shape *s, const backend_limits *n, uint64_t base, metal_scratch *out);
/* The host's pointer to a weight that was copied. */
uint8_t *metal_weight_host(backend *b, uint64_t address);

/* ---- files.c ---- */
/* Lists the files of the checkpoint and which of them are used in place: before anything is laid out. */
void metal_find_files(backend *b);
calla_status metal_adopt_files(backend *b, calla_error *err);
/* The file in which a matrix that is joined with no other is computed with; NULL: it is copied. */
const metal_file *metal_file_of(const backend *b, const weight_mat *m);
uint64_t metal_bytes_in_place(const metal_weights *w);

/* ---- load.c ---- */
calla_status metal_load(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err);

/* ---- prepare.c ---- */
calla_status metal_prepare(backend *b, calla_error *err);
void metal_prepared_free(backend *b);

/* ---- tensor.c ---- */
/* Sets `tensor`, where the kernels have shown that they compute here what the reference does.  An error: the device failed at that. */
calla_status metal_check_tensor(backend *b, calla_error *err);

/* ---- batch.c ---- */
uint64_t metal_ring_slot_bytes(const model_shape *s, const backend_limits *n);
/* Writes the descriptors of a batch into the next slot of the ring, and sets whole, last and head. */
void metal_batch_write(backend *b, const row_batch *t);
/* The slot that was written last is free again. */
void metal_batch_forget(backend *b);
/* The request that the device answers for a wanted row: of those with the vocabulary of the batch's first one, the row's first; or NULL. */
const sample_request *metal_batch_request(const row_batch *t, uint32_t wanted);
/* The best of each threadgroup of the head in a slot: [wanted][METAL_HEAD_GROUPS]. */
const metal_best *metal_batch_best(const backend *b, uint32_t slot);

/* ---- run.c ---- */
void metal_note(backend *b, metal_op op, uint32_t layer);
/* Records what was noted and has not been recorded. */
void metal_run_noted(backend *b);
/* Hands what is recorded to the device. */
void metal_commit(backend *b);
/* The same down to what waits to be part of a later op, and until it is done. */
void metal_flush(backend *b);
/* Bytes a second at which the device reads read_bytes; 0: it has failed. */
double metal_measure_reads(backend *b);
/* token_dispatches and token_barriers, without running anything. */
void metal_count(backend *b);

/* ---- results.c ---- */
/* best_of, when a step is submitted; and results, when the one in that slot of the ring is done. */
void metal_results_due(backend *b);
void metal_results(backend *b, uint32_t slot);

#endif

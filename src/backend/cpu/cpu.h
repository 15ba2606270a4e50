/* cpu.h: the CPU backend: weights read in place from the map, one pool of threads that meets once per stage or twice.
 *
 * Activations are f32; what a matrix multiplies is made ready once per stage (cpu_x) and shared by all outputs.  Outputs are computed up to
 * 64 at once; who writes a value is one thread, and sums over experts are in order of expert index, so results do not depend on how
 * tasks fall to threads. */
#ifndef CALLA_BACKEND_CPU_CPU_H
#define CALLA_BACKEND_CPU_CPU_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/pool.h"

/* What --without turns off, in the order of the table's list. */
typedef enum cpu_optimization {
    CPU_EXPERT_GROUPING,
    CPU_KV_SHARING,
    CPU_SPLIT_ATTENTION,
    CPU_DELTA_CHUNKS,
    CPU_LAST_ROWS,
    CPU_OPTIMIZATIONS
} cpu_optimization;

typedef struct cpu_scratch { /* views into BUF_SCRATCH */
    cpu_x input;             /* [rows] of up to max(H, mixer out values): normed residual, or the gated mixer output */
    cpu_x experts;           /* [rows·top_k] of expert width */
    cpu_x shared;            /* [rows] of shared width */
    float *normed;           /* [rows][max(H, mixer out values)] */
    float *up;               /* [rows·top_k][expert width], and behind it [rows][shared width] */
    float *router;           /* [rows][experts] */
    float *conv;             /* [rows][conv channels] after the convolution */
    float *alpha, *beta;     /* [value heads][rows] */
    float *down;             /* [CPU_FEW_ROWS·(top_k + 1)][H]: each place through its expert, and behind them the shared expert's rows */
    uint32_t *list;          /* [rows·top_k]: places row·top_k + i ordered by expert, and ascending within */
    uint32_t *rows_of;       /* [rows·top_k]: the rows of these places */
    uint32_t *first;         /* [experts + 1]: where an expert's places begin in list */
    float *partial;          /* parts of the context that rows attend to, of cpu_attention_partial_bytes */
    uint8_t *thread;         /* [threads][thread_bytes] */
    uint64_t thread_bytes;
    void *sample;
} cpu_scratch;

struct backend {
    const weights *w;
    const model_shape *s;
    backend_limits limits;
    const cpu_kernels *k;
    bool q8; /* fast precision: 4-bit matrices multiply 8-bit activations */
    pool *pool;
    void *buf[BUF_COUNT];
    uint64_t bytes[BUF_COUNT];
    cpu_scratch scratch;
    const row_batch *batch; /* the rows under way */
    const row_batch *whole; /* the batch as begun: `batch` is its `last` from the last layer's mixer on */
    sample_result *results; /* [limits.samples]; of the batch before, until head */
};

/* Whether it is on. */
static inline bool cpu_does(const backend *b, cpu_optimization what) { return !(b->limits.without >> what & 1); }

/* ---- populate.c ---- */
calla_status cpu_load(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err);

/* ---- linear.c ---- */

typedef enum cpu_epilogue { CPU_STORE, CPU_ADD } cpu_epilogue;

typedef struct cpu_linear { /* out[r][o] = or += Σ_k W[o][k] x[r][k] for all rows of x */
    const weight_mat *m;
    const cpu_x *x;
    float *out;
    size_t stride;
    cpu_epilogue epilogue;
    bool fine; /* in fast precision: multiply what x's 8 bits left over as well; x is fine too */
} cpu_linear;

/* Runs up to CPU_MAX_JOBS matrices in one meeting of the pool. */
enum { CPU_MAX_JOBS = 8, CPU_TASK_OUTPUTS = 2 * CPU_WIDE, CPU_FEW_ROWS = 4 /* so few that a matrix is memory, not arithmetic */ };
void cpu_run_linear(backend *b, const cpu_linear *jobs, uint32_t n);
/* Where outputs from `first` on of matrix `which` stand. */
cpu_ahead cpu_outputs_at(const weight_mat *m, uint32_t which, uint32_t first);
/* Asks for the first 5 KB of matrix `which` from an output on; kernels fetch ahead what follows. */
void cpu_fetch(const weight_mat *m, uint32_t which, uint32_t first);
/* Consecutive outputs of one task where `matrices` of m's form meet `rows` rows each; a multiple of CPU_PANEL. */
uint32_t cpu_task_outputs(const backend *b, const weight_mat *m, uint64_t matrices, uint32_t rows);
/* One panel on the calling thread: acc[i][j] for outputs first … first + count - 1 and n rows of x (list as in cpu_kernels). */
void cpu_panel(const backend *b, const weight_mat *m, uint32_t which, uint32_t first, uint32_t count, const cpu_x *x, const uint32_t *list,
               uint32_t n, const cpu_ahead *ahead, float *acc);
/* Sets the shape of x and makes row r ready from values [cols], which must stay in place if plain matrices use it. */
void cpu_x_shape(cpu_x *x, const float *plain, size_t stride, uint32_t cols, uint32_t rows, bool fine);
void cpu_x_row(const backend *b, cpu_x *x, uint32_t row);

/* ---- peak.c ---- */
void cpu_dot_rates(backend *b, calla_dot_rates *out);

/* ---- rows.c ---- */
void cpu_rmsnorm(const backend *b, const float *x, const float *gain, uint32_t n, float *out);
/* scratch.normed and scratch.input ← rmsnorm(residual) · gain, for all rows */
void cpu_norm_input(backend *b, const weight_vec *gain, float *out, bool fine);
void cpu_embed(backend *b);
void cpu_head(backend *b);
/* Runs fn for each row on the pool, or here when there is one. */
void cpu_each_row(backend *b, pool_task_fn fn, void *context, uint32_t rows);
void *cpu_thread_scratch(const backend *b, uint32_t thread);

/* ---- gdn.c, attention.c, moe.c ---- */
void cpu_gdn_in(backend *b, uint32_t layer);
void cpu_gdn_mix(backend *b, uint32_t layer);
void cpu_gdn_out(backend *b, uint32_t layer);
void cpu_attention_in(backend *b, uint32_t layer);
void cpu_attention_mix(backend *b, uint32_t layer);
void cpu_attention_out(backend *b, uint32_t layer);
void cpu_attention_copy_page(backend *b, uint32_t src, uint32_t dst, uint32_t tokens);
uint64_t cpu_attention_partial_bytes(const model_shape *s, const backend_limits *limits);
uint64_t cpu_attention_thread_bytes(const model_shape *s);
void cpu_route(backend *b, uint32_t layer);
void cpu_expert_in(backend *b, uint32_t layer);
void cpu_expert_out(backend *b, uint32_t layer);

#endif

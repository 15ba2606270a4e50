/* cuda.h: the CUDA backend's host side: one device, one stream of work, one allocation for all weights.
 *
 * Ops are only noted when they are called; submit runs them, as one captured graph where the batch is a plain decoding step, else one
 * launch after the other.  (A batch of many rows is launched as it is called, so that the device is not idle meanwhile.)  What a kernel
 * computes is the business of the .cu files; nothing here knows. */
#ifndef CALLA_BACKEND_CUDA_CUDA_H
#define CALLA_BACKEND_CUDA_CUDA_H

#include "backend/cuda/sampling.h"
#include "backend/cuda/step.h"

enum { CUDA_GRAPH_ROWS = STEP_ROWS, CUDA_PROMPT_ROWS = 32 /* from here on, products of f16 rows where fast */, CUDA_SEGMENT_ROWS = 16 };

/* Matrices side by side in the output: of one format, they are one matrix. */
typedef struct cuda_parts {
    cuda_mat mat[STEP_MAX_PARTS];
    uint32_t column[STEP_MAX_PARTS]; /* of the output */
    uint32_t n;
} cuda_parts;

typedef struct cuda_layer {
    cuda_parts mixer_in;
    cuda_parts routers; /* the experts' and, behind it, the shared expert's */
    cuda_mat mixer_out, router, shared_router /* views of these */, shared_gate, shared_up, shared_down, gate, up, down;
    float *norm_mixer, *norm_moe;
    cuda_gdn_weights gdn; /* delta net layers */
    float *q_norm, *k_norm;
} cuda_layer;

typedef struct cuda_weights {
    void *memory;
    uint64_t bytes;
    cuda_layer *layer; /* [layers] in host memory */
    cuda_mat embed, head;
    float *final_norm;
    double *rotary_rate; /* [32] */
    bool wide_scales;    /* some are too large for the products of prompts; set by cuda_upload */
} cuda_weights;

typedef struct cuda_scratch { /* views into BUF_SCRATCH */
    float *rotary;            /* [rows][64] */
    float *router_logits;     /* [rows][experts]; of a prompt [rows][experts + 1], the last of the shared expert */
    float *partial;           /* of split attention */
    float *squares;           /* [rows][value heads][GDN_PARTS]: of the delta net's output */
    uint64_t *best;           /* [wanted][STEP_HEAD_BLOCKS] */
    int32_t *picked;          /* [samples] */
    float *gathered;          /* [wanted][hidden]: rows of the residual on their way together */
    float *last_rotary;       /* [wanted][64]: of the wanted rows */
    float *adjusted;          /* [samples][vocabulary] and twice [samples][SAMPLING_SPANS]: of sampling */
    float *span_largest;
    sampling_weights *span_weights;
    uint32_t *counters; /* zero between kernels: route [rows], attention [rows][kv heads][STEP_MAX_GROUP], head [1] */
    uint32_t counters_n;
    /* fast, batches of many rows */
    uint16_t *input;   /* [rows][max(hidden, …)] f16: normed input of the projections and of the experts */
    uint16_t *mixed;   /* [rows][mixer out] f16: input of the output projection */
    uint16_t *queries; /* [rows][heads·256] bf16 */
    uint16_t *shared;  /* [rows][shared width] f16 */
    uint16_t *experts; /* [rows·top_k][width] f16 */
    void *expert_partial, *gdn;
    cuda_expert_rows lists;
} cuda_scratch;

typedef enum cuda_op { OP_EMBED, OP_MIXER_IN, OP_MIXER, OP_MIXER_OUT, OP_ROUTE, OP_EXPERT_IN, OP_EXPERT_OUT, OP_HEAD } cuda_op;

typedef struct cuda_noted { /* an op that was called */
    cuda_op op;
    uint32_t layer;
} cuda_noted;

struct backend {
    const weights *w;
    const model_shape *s;
    backend_limits limits;
    cuda_device device;
    char name[64];
    cudaStream_t stream;
    cudaError_t error; /* the first; all that follows is void */
    cuda_weights weights;
    void *buf[BUF_COUNT];
    uint64_t bytes[BUF_COUNT];
    cuda_scratch scratch;

    /* The batch: in pinned host memory, twice, since a step may be begun while the one before is under way; and on the device, where they
     * follow each other, behind the same offsets. */
    const row_batch *batch;
    uint32_t at, under_way; /* which of the two places is the last step's; how many are submitted and not collected */
    const row_batch *submitted[2];
    cudaEvent_t done[2];
    uint8_t *host_batch, *device_batch;
    uint64_t batch_bytes;
    cuda_batch on_device;
    /* NULL; once the last layer goes on with the wanted rows alone, the batch of all rows: batch and on_device are of the wanted ones */
    const row_batch *whole;
    cuda_batch whole_on_device, last_on_device;
    uint32_t wanted;
    bool decoding; /* every segment is one row, all wanted, few: a graph */
    bool prompt;   /* many rows with f16 activations */

    cuda_noted *noted; /* [6·layers + 2] */
    uint32_t n_noted, most_noted, n_run;
    cudaGraphExec_t graph[CUDA_GRAPH_ROWS + 1]; /* by rows */
    cudaEvent_t layer_done[2];                  /* of a prompt, so that the host is never many layers ahead */

    uint8_t *host_requests, *device_requests; /* as the batch; cuda_requests_capacity */
    sampling_step sampling;                   /* of the step that was picked last; without samples there is nothing to do */

    int32_t *largest;   /* [2][wanted] in pinned memory that the device writes */
    int32_t *chosen;    /* [2][samples] there */
    float *host_logits; /* [wanted][vocabulary] pinned */
    bool logits_here;
    void *sample_scratch;
    sample_result *results; /* [samples] */
};

static inline bool cuda_ok(backend *b, cudaError_t e) {
    if (e && !b->error) b->error = e;
    return !b->error;
}

/* ---- place.c: where weights and scratch lie ---- */
/* Lays out the weights; memory NULL only measures.  False: a format that the kernels do not take, err says which. */
calla_status cuda_place_weights(backend *b, void *memory, calla_error *err);
/* Outputs first … end - 1 of a matrix as one of their own; `first` is at a tile's edge. */
cuda_mat cuda_rows_of_mat(cuda_mat m, uint32_t first, uint32_t end);
uint64_t cuda_place_scratch(const model_shape *s, const backend_limits *n, uint8_t *base, cuda_scratch *out);

/* ---- upload.c ---- */
calla_status cuda_upload(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err);

/* ---- batch.c ---- */
uint64_t cuda_batch_capacity(const backend_limits *n);
void cuda_batch_send(backend *b, const row_batch *batch);

/* ---- requests.c ---- */
typedef enum cuda_picker { PICKED_BY_HEAD, PICKED_BY_SAMPLING, PICKED_BY_HOST } cuda_picker;
/* Who picks a sample's token; looks at the request's numbers only, not at what it points to. */
cuda_picker cuda_picker_of(const row_batch *t, uint32_t sample);
uint64_t cuda_requests_capacity(const model_shape *s, const backend_limits *n);
void cuda_requests_send(backend *b, const row_batch *t);

/* ---- ops.c ---- */
/* Launches one op.  early: in a graph, with dependent launch. */
void cuda_run_op(backend *b, cuda_op op, uint32_t layer, bool early);

/* ---- results.c ---- */
/* Of the step in place `at`, which has ended. */
calla_status cuda_fetch_results(backend *b, uint32_t at, calla_error *err);
calla_status cuda_failure(const backend *b, calla_error *err);
const float *cuda_fetch_logits(backend *b, uint32_t wanted);

#endif

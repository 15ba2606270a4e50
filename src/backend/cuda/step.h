/* step.h: launch functions of the kernels that compute a few rows at a time: decoding, and every batch in exact precision.
 *
 * Activations are f32 in device memory.  A product takes them as the sum of two bf16 numbers (17 bits of significand), or in exact
 * precision of three, which is all of them: then results differ from float32 products by the order of sums alone.  Up to STEP_ROWS rows share one reading of the weights;
 * more rows are done in blocks of that many.  `early`: start before the kernel in front has ended (device.cuh). */
#ifndef CALLA_BACKEND_CUDA_STEP_H
#define CALLA_BACKEND_CUDA_STEP_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GDN_PARTS = 4 /* blocks of a head of the delta net */, STEP_MAX_GROUP = 8 /* query heads of a K/V head */ };
enum { STEP_ROWS = 8, STEP_MAX_COLS = 4096, STEP_MAX_PARTS = 4, STEP_MAX_TOP_K = 16, STEP_MAX_SPLITS = 128, STEP_HEAD_BLOCKS = 1024 };

typedef struct cuda_device { /* what grids depend on */
    uint32_t multiprocessors, shared_bytes /* most of one block */;
    uint32_t parts;    /* bf16 numbers that stand for a float of a row: 2 (fast) or 3 (exact) */
    bool early;        /* dependent launch is there */
    uint32_t clusters; /* of attention's blocks that run at once; 0: there are none */
} cuda_device;

/* Set what the kernels ask of shared memory; once per device. */
cudaError_t linear_prepare(const cuda_device *device);
cudaError_t moe_prepare(const cuda_device *device);
cudaError_t moe_rows_prepare(void);
cudaError_t gdn_prepare(void);
cudaError_t attention_prepare(cuda_device *device); /* and counts clusters */

/* Where the input of a product comes from; what is done to it on the way stands beside. */
typedef enum step_source {
    STEP_PLAIN,      /* x */
    STEP_NORM,       /* rmsnorm(x) · gain */
    STEP_GATED_NORM, /* per 128 values: rmsnorm(x) · gain [128] · silu(gate) */
    STEP_GATED,      /* x · sigmoid(gate), gate of value i of head h at 2·h·HEAD_DIM + HEAD_DIM + i */
    STEP_HEADS       /* per 128 values: x · 1/rms, whose sum of squares stands in `squares`; gain and gate are in x already */
} step_source;

typedef struct step_input {
    step_source source;
    const float *x; /* [rows][x_stride] */
    const float *gain, *gate;
    const float *squares;   /* [rows][values / 128][GDN_PARTS] */
    const uint32_t *row_of; /* [rows]: row of x; NULL: the same */
    uint32_t x_stride, gate_stride;
    float eps;
} step_input;

/* out[r][o] = or += Σ_k W[o][k] in[r][k] */
typedef struct step_linear {
    cuda_mat w;
    step_input in;
    float *out;
    uint32_t out_stride, rows;
    bool add;
} step_linear;
void step_run_linear(const cuda_device *d, const step_linear *a, bool early, cudaStream_t stream);

/* Logits, and the largest of each row. */
typedef struct step_head {
    cuda_mat w;
    step_input in; /* row_of: the wanted rows */
    float *logits; /* [wanted][vocabulary] */
    uint32_t vocabulary, wanted;
    uint64_t *best; /* [wanted][STEP_HEAD_BLOCKS] scratch */
    uint32_t *counter;
    cuda_batch batch;
    int32_t *largest; /* from counts.largest_at on [wanted]: the id of the largest logit of each row, -1: none; may be host memory */
    int32_t *picked;  /* [samples]: the same of each sample's row */
} step_head;
void step_run_head(const cuda_device *d, const step_head *a, bool early, cudaStream_t stream);

/* Embedding, and what all layers need: cosine and sine of the rows' rotary angles. */
typedef struct step_embed {
    cuda_mat w;
    cuda_batch batch;
    const int32_t *picked; /* of the step before */
    float *residual;       /* [rows][hidden] */
    float *rotary;         /* [rows][32 cosines, 32 sines] */
    const double *rate;    /* [32]: theta^(-2j/64) */
    uint32_t hidden, rows;
} step_embed;
void step_run_embed(const step_embed *a, cudaStream_t stream);

/* Norm, router, top-k; the shared expert's gate and first half. */
typedef struct step_route {
    cuda_mat router, shared_router, shared_gate, shared_up;
    step_input in;
    float *moe_in;        /* [rows][hidden] */
    float *logits;        /* [rows][experts] scratch */
    uint32_t *expert;     /* [rows][top_k] */
    float *weight;        /* [rows][top_k] */
    float *shared;        /* [rows][shared width] */
    float *shared_weight; /* [rows]: sigmoid of the shared expert's router */
    uint32_t *counters;   /* [row blocks], zero */
    uint32_t top_k, rows;
} step_route;
void step_run_route(const cuda_device *d, const step_route *a, bool early, cudaStream_t stream);
/* The choice alone, of many rows: logits [rows][experts + 1], of which the last is the shared expert's.  Beyond 256 experts it overwrites
 * logits. */
void step_run_choose(float *logits, uint32_t experts, uint32_t top_k, uint32_t rows, uint32_t *expert, float *weight, float *shared_weight,
                     cudaStream_t stream);

typedef struct step_experts {
    cuda_mat gate, up, down, shared_down;
    const float *moe_in;
    const uint32_t *expert;
    const float *weight, *shared, *shared_weight;
    float *places;   /* [rows][top_k][width] */
    float *residual; /* [rows][hidden] */
    uint32_t top_k, rows;
} step_experts;
void step_run_experts_in(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream);
void step_run_experts_out(const cuda_device *d, const step_experts *a, bool early, cudaStream_t stream);

/* The same of up to STEP_ROWS rows in fast precision, with weights of the usual format (moe_rows.cu).  In a chain of dependent launches they
 * follow each other, and the kernel before the first writes the residual. */
typedef struct step_moe {
    cuda_mat router, shared_router, shared_gate, shared_up, shared_down, gate, up, down;
    step_input in;        /* the residual through the norm */
    float *logits;        /* [rows][experts] scratch */
    float *shared;        /* [rows][shared width] scratch */
    float *shared_weight; /* [rows] scratch */
    uint32_t *expert;     /* [rows][top_k] scratch: chosen, where there are several rows */
    float *weight;        /* [rows][top_k] scratch: of these */
    float *places;        /* [rows][top_k][width] scratch */
    float *residual;      /* [rows][hidden] */
    uint32_t top_k, rows;
} step_moe;
bool step_takes_moe(const cuda_device *d, const step_moe *a);
void step_run_moe_route(const step_moe *a, bool early, cudaStream_t stream);
void step_run_moe_in(const cuda_device *d, const step_moe *a, bool early, cudaStream_t stream);
void step_run_moe_out(const step_moe *a, bool early, cudaStream_t stream);

/* Convolution and delta rule, row after row of each segment with at most `most_rows` rows (0: all). */
typedef struct step_gdn {
    cuda_batch batch;
    cuda_gdn_weights w;
    const float *in; /* [rows][in_stride]: qkv | z | a | b */
    float *out;      /* [rows][out_stride] */
    float *squares;  /* [rows][value heads][GDN_PARTS]: of out, which then has gain and gate (STEP_HEADS); NULL: it is as it is */
    float *state;    /* [slots][value heads][128][128] of this layer */
    float *window;   /* [slots][3][channels] of this layer */
    uint32_t in_stride, out_stride, segments, most_rows;
} step_gdn;
void step_run_gdn(const step_gdn *a, bool early, cudaStream_t stream);

/* Attention of all rows that lie in segments of at most `most_rows` rows (0: all). */
typedef struct step_attention {
    cuda_batch batch;
    cuda_kv kv;
    float *in;  /* [rows][in_stride]: per head query and gate | k | v.  Raw: queries are normed and rotated on the way */
    float *out; /* [rows][out_stride] */
    const float *q_gain, *k_gain, *rotary;
    float *partial;     /* step_attention_partial_floats */
    uint32_t *counters; /* [rows][kv heads][STEP_MAX_GROUP], zero */
    uint32_t in_stride, out_stride, heads, rows, segments, most_rows;
    uint32_t clusters; /* of the device */
    bool exact;        /* weights of values keep more than bf16 */
    bool gated;        /* out has gone through the gate */
    bool single;       /* every segment has one row: its key is written on the way; else step_run_attention_write goes before */
    float norm_eps;
} step_attention;
uint32_t step_attention_splits(uint32_t rows);
uint64_t step_attention_partial_floats(uint32_t heads);
void step_run_attention(const step_attention *a, bool early, cudaStream_t stream);
/* Norms, rotates and stores the keys and values of all rows; with `queries` also writes the normed and rotated queries there,
 * [rows][heads][HEAD_DIM] bf16. */
void step_run_attention_write(const step_attention *a, uint16_t *queries, cudaStream_t stream);

/* out[r] = f16(rmsnorm(x[r]) · gain) */
void rows_run_norm_f16(const float *x, const float *gain, float eps, uint32_t hidden, uint32_t rows, uint16_t *out, cudaStream_t stream);
/* out[r][i] = f16 of a mixer's output through its gate, as STEP_GATED_NORM and STEP_GATED */
void rows_run_gate_f16(const step_input *in, uint32_t values, uint32_t first_row, uint32_t rows, uint16_t *out, cudaStream_t stream);

/* out [rows][values]: out[r] = x[row_of[r]]; they must not overlap */
void rows_run_gather(const float *x, const uint32_t *row_of, uint32_t values, uint32_t rows, float *out, cudaStream_t stream);

/* KV pages: copies the first `tokens` positions of page src to dst in all layers. */
void rows_run_copy_page(void *kv, uint32_t layers, uint32_t pages, uint32_t kv_heads, uint32_t element_bytes, uint32_t src, uint32_t dst,
                        uint32_t tokens, cudaStream_t stream);
/* Reads `bytes` and writes next to nothing: the memory's read rate. */
void rows_run_read(const void *data, uint64_t bytes, uint32_t *sink, cudaStream_t stream);

/* ---- upload: from MLX's order to tiles; the inputs are staged bytes, in order and without gaps ---- */

typedef struct repack_job {
    const uint8_t *codes, *scales, *biases; /* of matrices first … first + count - 1 of the source */
    uint32_t bits, group, rows, cols, count;
    cuda_mat to; /* rows of the source become rows first_row … of it */
    uint32_t first, first_row;
} repack_job;
void repack_run(const repack_job *j, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

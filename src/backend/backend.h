/* backend.h: what a device must offer.  The model issues composite ops in stages; a backend runs them.
 *
 * The model calls begin (which hands over the descriptor), then for each stage the ops and stage_end, then finish; or, where the backend
 * has them, submit and later collect, with one more step begun and submitted between these two.  Ops inside a stage are independent of each other; stages follow each other.  A stage boundary is one barrier of the device.
 * Everything that changes from step to step stands in the descriptor, never in arguments of ops (those name a layer only), so that a
 * captured graph or an indirect command buffer replays.
 *
 * Activations are rows: [rows][values] of the buffers below.  The residual stream is f32 everywhere; for the others the backend says
 * which type it wants. */
#ifndef CALLA_BACKEND_BACKEND_H
#define CALLA_BACKEND_BACKEND_H

#include "base/error.h"
#include "model/shape.h"
#include "weights/weights.h"

/* ---- sampling: pure data, so that every device computes the same token from the same logits ---- */

#define SAMPLE_MAX_TOP CALLA_MAX_TOP_LOGPROBS

typedef struct sample_count {
    int32_t id;
    uint32_t count;
} sample_count;
typedef struct sample_bias {
    int32_t id;
    float bias;
} sample_bias;

/* How to pick a token from one row of logits.  Order: repetition penalty, presence and frequency penalties, bias, mask, temperature,
 * top-k, top-p, min-p; candidates sorted by logit, then lowest id; inverse CDF of random_uniform(seed, choice, position) over float32
 * weights whose sums are exact, so that the order of adding does not matter: backend/ref/sample.h says how.
 * Ids at or above `tokens` (padding rows) are never picked. */
typedef struct sample_request {
    uint32_t tokens;            /* real vocabulary */
    float temperature;          /* 0: greedy (after penalties, bias and mask) */
    uint32_t top_k;             /* 0: off */
    float top_p, min_p;         /* 1 and 0: off */
    float presence, frequency;  /* subtracted once, and per occurrence, for each id in `counts` */
    float repetition;           /* for each id in `seen`: positive logits are divided by it, negative ones multiplied */
    const int32_t *seen;        /* [n_seen] distinct ids of prompt and answer; may be NULL when repetition is 1 */
    const sample_count *counts; /* [n_counts] generated ids */
    const sample_bias *bias;    /* [n_bias] */
    const uint32_t *mask;       /* bitset of `tokens` bits, 1 = allowed; NULL: all */
    uint32_t n_seen, n_counts, n_bias;
    uint64_t seed;
    uint32_t choice, position; /* position: index in the sequence of the token to be picked */
    uint32_t n_top;            /* alternatives to report, at most SAMPLE_MAX_TOP */
    bool logprob;              /* report the picked token's log-probability and the top ones: log-softmax of the raw logits, all rows */
} sample_request;

typedef struct sample_result {
    int32_t id; /* -1: no token is allowed */
    float logprob;
    uint32_t n_top;
    calla_token_logprob top[SAMPLE_MAX_TOP]; /* best first; ties: lowest id */
} sample_result;

/* ---- the batch ---- */

#define KV_PAGE_TOKENS 256u
#define NO_SLOT UINT32_MAX /* as a source: the zero state at position 0 */

typedef struct batch_segment {
    uint32_t first_row, rows;
    uint32_t first_position;     /* position of the first row in its sequence */
    uint32_t slot_src, slot_dst; /* recurrent state read, and written; never the same */
    uint32_t first_page, pages;  /* in batch.page_table: pages that hold positions 0 … first_position + rows - 1 */
} batch_segment;

typedef struct row_batch {
    uint32_t rows, segments, wanted, samples;
    const int32_t *ids;           /* [rows]; -1 - k: the token that sample k of the batch before picked (it need not pass the host) */
    const uint32_t *positions;    /* [rows] */
    const uint32_t *segment_of;   /* [rows] */
    const batch_segment *segment; /* [segments] */
    const uint32_t *page_table;   /* pages of all segments, one after the other */
    const uint32_t *wanted_row;   /* [wanted] rows whose logits are computed, ascending */
    const uint32_t *sample_of;    /* [samples] index into wanted */
    const sample_request *sample; /* [samples] */

    /* NULL, or this batch with the wanted rows alone: of the others the last layer, an attention layer, is to cache K and V and nothing
     * more.  A backend that makes use of it moves these rows of the residual together once K and V are projected, and goes on with
     * `last` in place of the batch; one that does not gives the same. */
    const struct row_batch *last;
} row_batch;

/* ---- buffers ---- */

typedef enum buffer_id {
    BUF_RESIDUAL,     /* [rows][H] f32 */
    BUF_MIXER_IN,     /* [rows][shape_mixer_in_values]: qkv | z | a | b, or q with its gate | k | v */
    BUF_MIXER_OUT,    /* [rows][shape_mixer_out_values]: before the gated norm, or before the gate */
    BUF_MOE_IN,       /* [rows][H]: normed input of router and experts */
    BUF_ROUTE_EXPERT, /* [rows][top_k] uint32 */
    BUF_ROUTE_WEIGHT, /* [rows][top_k] f32 */
    BUF_SHARED,       /* [rows][shared width]: silu(gate) ⊙ up of the shared expert; then [rows] its sigmoid gate */
    BUF_EXPERT,       /* [rows][top_k][expert width] */
    BUF_LOGITS,       /* [wanted][vocabulary] f32 */
    BUF_SCRATCH,      /* the backend's own use, size from scratch_bytes */
    BUF_KV,           /* [attention layers][pages][k, v][kv heads] blocks, kv_block_bytes each */
    BUF_STATE,        /* [gdn layers][slots][value heads][128 key][128 value] f32 */
    BUF_CONV,         /* [gdn layers][slots][3][conv channels] f32: the last inputs of the convolution, oldest first */
    BUF_COUNT
} buffer_id;

/* A block of the cache: K or V of one head and page.  [page tokens][256] in f32 or bf16; or in 8 bits, and behind them the scales,
 * [page tokens][256 / KV_GROUP] f32. */
#define KV_GROUP 64u /* values that share a scale */
static inline uint64_t kv_block_bytes(calla_kv kv) {
    const uint64_t row = kv == CALLA_KV_F32 ? 4 * HEAD_DIM : kv == CALLA_KV_BF16 ? 2 * HEAD_DIM : HEAD_DIM + 4 * HEAD_DIM / KV_GROUP;
    return KV_PAGE_TOKENS * row;
}

typedef struct buffer_want {
    uint32_t element_bytes, align; /* the size of BUF_KV follows from limits.kv alone */
} buffer_want;

/* Sizes that the plan fixes once. */
typedef struct backend_limits {
    uint32_t rows, segments, wanted, samples; /* of one batch */
    uint32_t pages, slots;
    calla_kv kv;
    uint32_t threads;   /* of a CPU; 0: one per physical core */
    bool fast;          /* 8-bit activations where the device has them; else exact */
    bool deterministic; /* the bits of a row do not depend on what else is in the batch, nor on how its sequence was cut into batches */
    bool polite;        /* a GPU is given its work in small pieces, so that others get their turn */
    uint32_t without;   /* bit i: the backend's i-th optimization is turned off */
} backend_limits;

#define MAX_OPTIMIZATIONS 32u

typedef struct backend backend; /* one device with bound weights and allocated buffers */

typedef struct backend_vtable {
    const char *name;
    /* What can be turned off by backend_limits.without: at most MAX_OPTIMIZATIONS and a NULL name; NULL: nothing. */
    const calla_optimization *optimizations;
    uint32_t batch_rows; /* of a step, unless the caller says how many: enough that a prompt runs at full speed */
    /* Binds weights (which must outlive the backend). */
    calla_status (*open)(const weights *w, const backend_limits *limits, backend **out, calla_error *err);
    void (*close)(backend *b);
    /* Wishes, known before opening: element type by its size, alignment; bytes of BUF_SCRATCH. */
    buffer_want (*want)(const backend_limits *limits, buffer_id id);
    uint64_t (*scratch_bytes)(const model_shape *s, const backend_limits *limits);
    /* Allocates all buffers: bytes[BUF_COUNT]; once. */
    calla_status (*allocate)(backend *b, const uint64_t *bytes, calla_error *err);
    /* Brings the weights to where they are computed with, so that the first step is as fast as any other; `progress` may be NULL.  NULL:
     * there is nothing to bring. */
    calla_status (*load)(backend *b, void (*progress)(void *user, uint64_t done, uint64_t total), void *user, calla_error *err);
    /* Copies the first `tokens` positions of a KV page to another, in all layers, after all that was submitted. */
    void (*copy_page)(backend *b, uint32_t src, uint32_t dst, uint32_t tokens);

    calla_status (*begin)(backend *b, const row_batch *batch, calla_error *err);
    void (*embed)(backend *b);                     /* ids → BUF_RESIDUAL */
    void (*mixer_in)(backend *b, uint32_t layer);  /* 1: norm, input projections → BUF_MIXER_IN */
    void (*mixer)(backend *b, uint32_t layer);     /* 2: conv + delta rule, or cache write + attention → BUF_MIXER_OUT */
    void (*mixer_out)(backend *b, uint32_t layer); /* 3: gated norm or gate, output projection, residual add */
    void (*route)(backend *b, uint32_t layer); /* 4: norm, router, top-k → BUF_ROUTE_*; and the shared expert's first half → BUF_SHARED */
    void (*expert_in)(backend *b, uint32_t layer);  /* 5: gate, up, SwiGLU of the chosen experts → BUF_EXPERT */
    void (*expert_out)(backend *b, uint32_t layer); /* 6: down, weighted combine, shared expert, residual add */
    void (*head)(backend *b);                       /* final norm, lm_head, sampling for the wanted rows → BUF_LOGITS */
    void (*stage_end)(backend *b);
    /* Waits for all stages and fetches results.  A failure of any op since begin is reported here.  With submit it only ends a step that is
     * given up before its last stage, waiting for all that was handed over. */
    calla_status (*finish)(backend *b, calla_error *err);
    /* In place of finish, where a device works by itself; NULL: it does not.  submit hands over all stages and does not wait, so that
     * the next step can be described and submitted before this one has ended.  collect waits for the oldest that was submitted and
     * fetches its results: logits and sampled answer for it.  At most two are submitted and not collected; the batch of each stays as it
     * is until then.  Steps are carried out one after the other: what one writes the next may read, and overwrite what one has read. */
    calla_status (*submit)(backend *b, calla_error *err);
    calla_status (*collect)(backend *b, calla_error *err);
    /* Picks the tokens of the step submitted last: called once for each, before the next begin and before that step is collected; the one before
     * may be collected first.  The batch's requests are read only then (until then, of all that they say only `tokens` counts), so that a
     * mask or penalties may depend on what the step before picked.  collect reports a failure.  NULL: submit picks, and finds the requests
     * complete in begin. */
    void (*pick)(backend *b);
    /* Whether the next batch may name sample k (as id -1 - k) of the step submitted, and picked, last before this is collected; then collect
     * needs nothing any more that its request points to. */
    bool (*runs_ahead)(const backend *b, uint32_t sample);

    /* After finish or collect, until the next begin; logits only if no step has been submitted since that one. */
    const float *(*logits)(backend *b, uint32_t wanted); /* [vocabulary] in host memory */
    const sample_result *(*sampled)(backend *b, uint32_t sample);
    /* "vnni, 2 threads, exact" into out [n]; NULL: nothing to add to the name */
    void (*describe)(const backend *b, char *out, size_t n);
    /* Bytes a second that the device reads from its memory, outside any batch; NULL: cannot be measured. */
    double (*read_rate)(backend *b);
    /* The same of arithmetic; NULL: cannot be measured. */
    void (*dot_rates)(backend *b, calla_dot_rates *out);
    /* For tests: copies elements of an activation buffer as f32 (or uint32 bits for BUF_ROUTE_EXPERT). */
    void (*peek)(backend *b, buffer_id id, uint64_t first, uint64_t n, float *out);
} backend_vtable;

/* The compiled backends, best first, NULL-terminated. */
extern const backend_vtable *const backend_list[];
const backend_vtable *backend_find(const char *name); /* NULL name: the best; NULL when unknown */

#endif

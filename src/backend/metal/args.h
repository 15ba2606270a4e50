/* args.h: the border between the Metal backend's host code (C, Objective-C) and its kernels (.metal): argument structs, the descriptor of
 * a step, and what each kernel is called with.  Both sides include it.
 *
 * A kernel has two buffers:  constant XXX_args &a [[buffer(0)]], prepared once per layer and op, and  constant metal_step &t [[buffer(1)]],
 * the step.  Everything else is reached through device addresses inside them (MTLBuffer.gpuAddress; struct members are typed pointers on
 * the device and 64-bit numbers on the host), so a dispatch sets a pipeline and one offset, and weights may lie in any number of buffers.
 * Threadgroup memory is one argument, TG_ARG(0), of the bytes METAL_TG_… named below, at most 32,768.
 *
 * Formats of weights are template instances: …_q4, …_q8 (MLX affine codes), …_b16 (plain bf16); the group, 32, 64 or 128 inputs, is read
 * from the matrix.  Activations in device memory are f32 everywhere.  Kernels for few rows (step_…) take up to METAL_STEP_ROWS rows that
 * share one reading of the weights, as instances _r1 (one row) and _r8 (1 … 8 rows, t.rows of them), and sum in f32.  Kernels for many rows
 * (the others) are instances _exact (f32 tiles) and _fast (16-bit tiles); _tensor, beside them, of wide products and of attention, takes
 * what _fast takes (tensor.metal).  Kernels whose names end in none of these exist once.
 * K and V are instances _kf32, _kb16 and _kq8.
 *
 * Dispatches of one stage run concurrently: none may read what another of the same stage writes.  "stage" below is the model's op. */
#ifndef CALLA_BACKEND_METAL_ARGS_H
#define CALLA_BACKEND_METAL_ARGS_H

#ifdef __cplusplus /* Metal's language, or the compiler that stands in for it */
#define METAL_PTR(T) device T *
#define METAL_SIZE(T, bytes) static_assert(sizeof(T) == (bytes), #T)
#else
#include <stdint.h>
#define METAL_PTR(T) uint64_t
#define METAL_SIZE(T, bytes) _Static_assert(sizeof(T) == (bytes), #T)
#endif

enum {
    METAL_STEP_ROWS = 8,     /* most rows of the step_ kernels; a batch of more takes the others */
    METAL_SEGMENT_ROWS = 16, /* in such a batch, segments of fewer rows still take the step_ mixers */
    METAL_MAX_COLS = 4096,   /* inputs of a matrix: a multiple of 32 up to this */
    METAL_MAX_TOP_K = 16,
    METAL_MAX_EXPERTS = 1024, /* a multiple of 8 is not required */
    METAL_MAX_GROUP_HEADS = 8 /* query heads of a K/V head */
};

/* ---- weights ---- */

/* y = W x as in the file: row o of matrix e has its codes at (e·rows + o)·cols·bits/8 bytes, lowest bits first, and its scales and biases
 * (bf16) at (e·rows + o)·groups; w = scale · code + bias.  codes, scales and biases start at multiples of 256.  Neighbours of one format
 * (qkv | z | a | b, q | k | v, router | shared expert's router) are one matrix. */
typedef struct metal_mat {
    METAL_PTR(const uint8_t) codes;
    METAL_PTR(const uint16_t) scales; /* NULL with 16 bits */
    METAL_PTR(const uint16_t) biases;
    uint32_t count, rows, cols;
    uint32_t bits, group, groups; /* groups: cols / group; both 0 with 16 bits */
} metal_mat;
METAL_SIZE(metal_mat, 48);

/* ---- the step: buffer(1) ---- */

#define METAL_NO_SLOT 0xFFFFFFFFu /* as a source: the zero state */
#define METAL_PAGE_TOKENS 256u

typedef struct metal_segment { /* batch_segment of backend.h */
    uint32_t first_row, rows, first_position, slot_src, slot_dst, first_page, pages;
} metal_segment;
METAL_SIZE(metal_segment, 28);

typedef struct metal_best { /* the largest logit among some ids; ties: the lowest id.  NaN never; no candidate: id 0xFFFFFFFF */
    float value;
    uint32_t id;
} metal_best;
METAL_SIZE(metal_best, 8);

typedef struct metal_step {
    METAL_PTR(const int32_t) ids;            /* [rows]; -1 - w: the token of wanted row w of the step before, from best_before */
    METAL_PTR(const uint32_t) positions;     /* [rows] */
    METAL_PTR(const uint32_t) segment_of;    /* [rows] */
    METAL_PTR(const metal_segment) segment;  /* [segments] */
    METAL_PTR(const uint32_t) page_table;    /* of a segment: from its first_page */
    METAL_PTR(const uint32_t) wanted_row;    /* [wanted] */
    METAL_PTR(const float) rotary;           /* [rows][32 cosines, 32 sines], computed by the host in double */
    METAL_PTR(const metal_best) best_before; /* [wanted of the step before][METAL_HEAD_GROUPS] */
    METAL_PTR(metal_best) best;              /* [wanted][METAL_HEAD_GROUPS] of this step */
    METAL_PTR(const uint32_t) short_row;     /* [short_rows] rows whose attention step_attention computes; all in a batch of few rows */
    METAL_PTR(const uint32_t) mask;          /* [wanted][METAL_MASK_WORDS(tokens)]: bit i: id i may be best; only where `masked` says so */
    uint32_t rows, segments, wanted;
    uint32_t tokens;       /* ids at or above are padding and never best */
    uint32_t splits;       /* of attention: blocks that a row's positions are cut into, 1 … METAL_MAX_SPLITS */
    uint32_t short_rows;   /* short_rows · splits is at most METAL_MOST_PARTIALS, or splits is 1 */
    uint32_t long_splits;  /* of attention_…; rows · long_splits is below METAL_MOST_PARTIALS + rows */
    uint32_t masked;       /* bit w: wanted row w has a mask; of others all ids may be best */
    uint32_t router_parts; /* of many rows: what the router's inputs are cut into, 1 … METAL_MAX_ROUTER_PARTS */
    uint32_t unused;
} metal_step;
METAL_SIZE(metal_step, 128);
#define METAL_MASK_WORDS(tokens) (((tokens) + 31) / 32)

/* ---- rows as inputs of few-row products ---- */

enum {                   /* metal_input.source */
       METAL_PLAIN,      /* x */
       METAL_NORM,       /* rmsnorm(x) · gain [cols] */
       METAL_GATED_NORM, /* per 128 values: rmsnorm(x) · gain [128] · silu(gate) */
       METAL_GATED       /* x · sigmoid(gate), gate of value i of head h at 2·256·h + i (`gate` points at the first one) */
};

typedef struct metal_input {
    METAL_PTR(const float) x; /* [rows][x_stride] */
    METAL_PTR(const float) gain;
    METAL_PTR(const float) gate; /* [rows][gate_stride] */
    METAL_PTR(float) normed;     /* NULL, or [rows][cols]: what was multiplied, left there by threadgroup 0 */
    uint32_t source, x_stride, gate_stride;
    float eps;
} metal_input;
METAL_SIZE(metal_input, 48);

/* ==== kernels for few rows ==== */

/* step_linear_{q4,q8,b16}_{r1,r8}: out[r][o] = or += Σ_k W[o][k] in[r][k].
 * grid (⌈w.rows / METAL_LINEAR_OUTPUTS⌉), METAL_LINEAR_THREADS threads.  Stages mixer_in, mixer_out, and the router (out: logits). */
enum { METAL_LINEAR_OUTPUTS = 16, METAL_LINEAR_THREADS = 128 };
typedef struct metal_linear_args {
    metal_mat w;
    metal_input in;
    METAL_PTR(float) out; /* [rows][out_stride] */
    uint32_t out_stride, add;
} metal_linear_args;
METAL_SIZE(metal_linear_args, 112);

/* step_embed_linear_{q4,q8,b16}_{r1,r8}: the first layer's mixer_in with the embedding in front: linear.in.x is not read; its rows are the
 * rows t.ids of `embed` (in whatever format: a branch), then normed by gain; threadgroup 0 leaves them in `residual` where that is not
 * NULL.  Saves a stage.  grid and threads as step_linear, METAL_TG_EMBED bytes. */
enum { METAL_TG_EMBED = 256 };
typedef struct metal_embed_linear_args {
    metal_linear_args linear;
    metal_mat embed;
    METAL_PTR(float) residual; /* [rows][embed.cols] */
} metal_embed_linear_args;
METAL_SIZE(metal_embed_linear_args, 168);

/* step_swiglu_{q4,q8,b16}_{r1,r8}: out[r][o] = silu(gate x) · (up x): the shared expert's first half, in stage route beside the router.
 * gate and up have one shape and format.  grid (⌈gate.rows / METAL_SWIGLU_OUTPUTS⌉), METAL_SWIGLU_THREADS threads. */
enum { METAL_SWIGLU_OUTPUTS = 4, METAL_SWIGLU_THREADS = 64 };
typedef struct metal_swiglu_args {
    metal_mat gate, up;
    metal_input in;
    METAL_PTR(float) out; /* [rows][out_stride] */
    uint32_t out_stride, unused;
} metal_swiglu_args;
METAL_SIZE(metal_swiglu_args, 160);

/* The experts of a row, for all kernels that know experts.  logits [rows][experts + 1]: of the router, then of the shared expert's router;
 * where gemm has left them in parts, [t.router_parts][rows][experts + 1], `route` adds these up in the first one.
 * Chosen: the top_k largest, ties to the lower index, in descending order; weights: softmax over the chosen. */
typedef struct metal_experts_args {
    metal_mat gate, up, down, shared_down;
    METAL_PTR(const float) moe_in; /* [rows][hidden], normed */
    METAL_PTR(float) logits;
    METAL_PTR(uint32_t) expert;     /* [rows][top_k] */
    METAL_PTR(float) weight;        /* [rows][top_k] */
    METAL_PTR(float) shared;        /* [rows][shared width] */
    METAL_PTR(float) shared_weight; /* [rows]: sigmoid of the last logit */
    METAL_PTR(float) places;        /* [rows][top_k][width]: silu(gate) · up of each chosen expert */
    METAL_PTR(float) residual;      /* [rows][hidden] */
    uint32_t experts, top_k;
} metal_experts_args;
METAL_SIZE(metal_experts_args, 264);

/* step_experts_in_{q4,q8,b16}_{r1,r8}: stage expert_in.  Each threadgroup finds the rows' experts itself, from the logits, a simdgroup for
 * each row (so that routing needs no stage of its own); the one with x = 0, y = 0 also writes expert, weight and shared_weight of row z for
 * the next stage.  Then silu(gate) · up of METAL_EXPERT_OUTPUTS outputs of row z's y-th chosen expert, for all rows that chose it; where a
 * row before z has chosen it too, nothing.
 * grid (⌈width / METAL_EXPERT_OUTPUTS⌉, top_k, rows), METAL_LINEAR_THREADS threads. */
enum { METAL_EXPERT_OUTPUTS = 8, METAL_TG_EXPERTS_IN = 512 };
/* step_experts_out_{q4,q8,b16}_{r1,r8}: stage expert_out: residual[r][o] += Σ_i weight[r][i] · (down_e places[r][i]) + shared_weight[r] ·
 * (shared_down shared[r]).  The instance is the format of `down`; shared_down's is a branch.
 * grid (⌈hidden / METAL_DOWN_OUTPUTS⌉), METAL_LINEAR_THREADS threads, METAL_TG_EXPERTS_OUT bytes. */
enum { METAL_DOWN_OUTPUTS = 16, METAL_TG_EXPERTS_OUT = 2048 };

/* step_gdn: convolution, delta rule; rows one after the other, for each segment with first ≤ rows < beyond (metal_gdn_args).  Stage mixer.
 * A threadgroup owns METAL_GDN_COLUMNS value columns of a value head, keeps that part of the state in registers, reads it from slot_src and
 * writes it to slot_dst once.  The window of q and k channels is written by the threadgroup of the key head's first value head and column
 * block 0.  out [rows][value heads·128] is raw: the gated norm belongs to mixer_out.
 * grid (value_heads · 128 / METAL_GDN_COLUMNS, segments), METAL_GDN_THREADS threads. */
enum { METAL_GDN_COLUMNS = 32, METAL_GDN_THREADS = 128, METAL_TG_GDN = 2560 };
typedef struct metal_gdn_args {
    METAL_PTR(const float) conv;    /* [channels][4], tap 3 is the newest */
    METAL_PTR(const float) decay;   /* [value heads]: exp(A_log) */
    METAL_PTR(const float) dt_bias; /* [value heads] */
    METAL_PTR(const float) in;      /* [rows][in_stride]: qkv | z | a | b */
    METAL_PTR(float) out;           /* [rows][out_stride] */
    METAL_PTR(float) state;         /* [slots][value heads][128 key][128 value] of this layer */
    METAL_PTR(float) window;        /* [slots][3][channels] of this layer, oldest first */
    METAL_PTR(float) scratch;       /* METAL_GDN_SCRATCH bytes, for gdn_conv, gdn_chunks and gdn_scan alone */
    uint32_t in_stride, out_stride, key_heads, value_heads, channels;
    uint32_t first, beyond; /* rows of the segments that take this kernel; others are left alone */
    uint32_t unused;
} metal_gdn_args;
METAL_SIZE(metal_gdn_args, 96);

/* Attention, stage mixer.  K and V of a layer: [pages][k, v][kv heads][256 positions][256 values] in f32 or bf16,
 * or in 8 bits with scales behind (backend.h).
 * in [rows][in_stride]: per head 256 query and 256 gate values | k | v, raw: norm (gain, norm_eps) and rotation (of the first 64 values, in
 * pairs j, j + 32) happen on the way; scores are q·k / 16.
 *
 * step_attention_{kf32,kb16,kq8}: grid (t.splits, kv_heads, t.short_rows), METAL_ATTENTION_THREADS threads; the query heads of a group
 *   share each K/V row.  Row t.short_row[z] is computed; of it, positions 0 … p are cut into t.splits blocks.  partial [z][head][split]:
 *   256 values, unnormalized, relative to the largest score; then that score, the sum of weights and two unused: METAL_PARTIAL floats.  An
 *   empty split has sum 0.
 *   Where all segments have one row (`write`), the threadgroup of the last position's split also norms, rotates and stores its key and
 *   value; else attention_write and a barrier go before.
 * step_attention_combine: grid (heads · METAL_COMBINE_PARTS, t.short_rows), METAL_COMBINE_THREADS threads: partial → out
 *   [row][out_stride], raw (the gate belongs to mixer_out).
 * attention_write_{kf32,kb16,kq8} (rows.metal): grid (heads + 2·kv_heads, rows), 32 threads: keys and values of all rows into the cache;
 *   and where `queries` is not NULL the normed and rotated queries there, for attention_…. */
enum { METAL_MAX_SPLITS = 64, METAL_SPLIT_POSITIONS = 8 /* least of a split, about */, METAL_PARTIAL = 260, METAL_MOST_PARTIALS = 512 };
enum {
    METAL_ATTENTION_THREADS = 128,
    METAL_TG_ATTENTION = 12544,
    METAL_TG_COMBINE = 512,
    METAL_COMBINE_PARTS = 8,
    METAL_COMBINE_THREADS = 128
};
typedef struct metal_attention_args {
    METAL_PTR(const float) in;
    METAL_PTR(float) out;
    METAL_PTR(const float) q_gain; /* [256] */
    METAL_PTR(const float) k_gain;
    METAL_PTR(uint8_t) kv; /* page 0 of this layer */
    METAL_PTR(float) partial;
    METAL_PTR(float) queries; /* NULL, or METAL_QUERIES floats, or halves in their place: [kv heads][rows][heads of a group][256] */
    uint32_t in_stride, out_stride, heads, kv_heads;
    uint32_t first, beyond; /* of attention_…: rows of the segments that take it */
    uint32_t write;
    float norm_eps;
    uint32_t first_tile;   /* of attention_…, where a dispatch has not all of the tiles */
    uint32_t half_queries; /* `queries` are half, as attention_…_fast and _tensor take them */
} metal_attention_args;
METAL_SIZE(metal_attention_args, 96);
/* Tiles are read whole: behind the last query there is room for 64 of whatever value. */
#define METAL_QUERIES(rows, heads) (((uint64_t)(rows) * (heads) + 64) * 256)

/* step_head_{q4,q8,b16}_{r1,r8}: logits of the wanted rows, whatever their masks, and t.best.  in.source is METAL_NORM; row w of it is row
 * t.wanted_row[w] of in.x.
 * Threadgroup g loops over the outputs; its best goes to t.best[w·METAL_HEAD_GROUPS + g] (all of them are written).
 * grid (METAL_HEAD_GROUPS, ⌈wanted / rows of the instance⌉), METAL_LINEAR_THREADS threads, METAL_TG_HEAD bytes. */
enum { METAL_TG_HEAD = 256 };
enum { METAL_HEAD_GROUPS = 512 };
typedef struct metal_head_args {
    metal_mat w;
    metal_input in;
    METAL_PTR(float) logits; /* [wanted][w.rows] */
} metal_head_args;
METAL_SIZE(metal_head_args, 104);

/* ==== kernels for any number of rows (embed and route beside the step_ kernels; rows_input and gather_rows in rows.metal) ==== */

/* embed: residual[r] = row t.ids[r] of w.  grid (rows), 256 threads. */
typedef struct metal_embed_args {
    metal_mat w;
    METAL_PTR(float) residual; /* [rows][w.cols] */
} metal_embed_args;
METAL_SIZE(metal_embed_args, 56);

/* route: expert, weight and shared_weight of metal_experts_args from its logits.  grid (rows), 32 threads. */

/* rows_input: out[r] = in[r] prepared as metal_input says (norm, gated norm, gate).  grid (rows, parts of a row: any number), 256 threads,
 * METAL_TG_ROWS bytes. */
enum { METAL_TG_ROWS = 32, METAL_MOST_ROW_PARTS = 4 };
typedef struct metal_rows_args {
    metal_input in;
    METAL_PTR(float) out; /* [rows][cols] */
    uint32_t cols, unused;
} metal_rows_args;
METAL_SIZE(metal_rows_args, 64);

/* read_memory: for measuring: reads data[0 … n) once, and leaves the sum of the words that simdgroup s of threadgroup g has read in
 * sum[g · METAL_READ_THREADS / 32 + s].  grid (METAL_READ_GROUPS), METAL_READ_THREADS threads. */
enum { METAL_READ_GROUPS = 1024, METAL_READ_THREADS = 256, METAL_READ_BYTES = 16 /* of an element */ };
typedef struct metal_read_args {
    METAL_PTR(const uint32_t) data; /* [n][4] */
    METAL_PTR(uint32_t) sum;
    uint32_t n, unused;
} metal_read_args;
METAL_SIZE(metal_read_args, 24);

/* gather_rows: out[w] = x[t.wanted_row[w]] for the last layer.  grid (wanted), 256 threads. */
typedef struct metal_gather_args {
    METAL_PTR(const float) x; /* [rows][cols] */
    METAL_PTR(float) out;     /* [wanted][cols] */
    uint32_t cols, unused;
} metal_gather_args;
METAL_SIZE(metal_gather_args, 24);

/* ==== kernels for many rows ==== */

/* gemm_{q4,q8,b16}_{exact,fast}: out[r][o] = , += or += scale[r] · Σ_k W[o][k] x[r][k] for r < t.rows.  x stands 16-byte aligned, x_stride
 * is a multiple of 4.  grid (⌈w.rows / METAL_GEMM_OUTPUTS⌉, ⌈rows / METAL_GEMM_ROWS⌉), METAL_GEMM_THREADS threads, METAL_TG_GEMM bytes.
 * gemm_narrow_{…}: the same with METAL_NARROW_OUTPUTS, METAL_NARROW_THREADS, METAL_TG_NARROW: for where the wide grid would have fewer than
 * 128 threadgroups.  No two dispatches of a stage add to the same out.
 * gemm_swiglu_{…}: out = silu(W x) · (up x); half as many outputs a threadgroup: grid (⌈w.rows / METAL_SWIGLU_GEMM_OUTPUTS⌉, as above).
 * gemm_swiglu_narrow_{…}: with outputs, threads and bytes as gemm_narrow. */
enum { METAL_GEMM_OUTPUTS = 64, METAL_GEMM_ROWS = 64, METAL_GEMM_THREADS = 128, METAL_TG_GEMM = 16384, METAL_SWIGLU_GEMM_OUTPUTS = 32 };
enum { METAL_NARROW_OUTPUTS = 16, METAL_NARROW_THREADS = 64, METAL_TG_NARROW = 12288, METAL_MAX_ROUTER_PARTS = 8 };
typedef struct metal_gemm_args {
    metal_mat w, up;
    METAL_PTR(const float) x;     /* [rows][x_stride] */
    METAL_PTR(float) out;         /* [rows][out_stride] */
    METAL_PTR(const float) scale; /* NULL, or [rows] */
    uint32_t x_stride, out_stride, add;
    uint32_t
        in_parts; /* threadgroups with z take the z-th of t.router_parts parts of the inputs; their sums go to out + z·t.rows·out_stride */
} metal_gemm_args;
METAL_SIZE(metal_gemm_args, 136);

/* Rows of each expert by counting sort.  A place is row·top_k + i.
 * expert_lists: `first` and `place`.  grid (experts), METAL_LISTS_THREADS threads, METAL_TG_LISTS bytes: each threadgroup counts the places
 *   of lower experts and of its own, then lists its own.
 * expert_gemm_in_{q4,q8,b16}_{exact,fast}: places[place] = silu(gate_e x) · (up_e x), x row place/top_k of moe_in.
 *   grid (⌈width / METAL_SWIGLU_GEMM_OUTPUTS⌉, experts), threads and bytes as gemm: a threadgroup takes all rows of its expert, 64 at a
 *   time.
 * expert_gemm_out_{q4,q8,b16}_{exact,fast}: partial[place] = down_e places[place].  grid (⌈hidden / METAL_GEMM_OUTPUTS⌉, experts), as
 *   above.
 * expert_combine: residual[r] += Σ_i weight[r][i] partial[r·top_k + i], i ascending.  grid (rows, ⌈hidden / METAL_SUM_VALUES⌉),
 *   METAL_SUM_VALUES / 4 threads.  The shared expert's half is a gemm that adds to the residual, beside expert_gemm_out (which does not
 *   touch it). */
enum { METAL_LISTS_THREADS = 256, METAL_TG_LISTS = 64, METAL_SUM_VALUES = 256 };
typedef struct metal_expert_gemm_args {
    metal_mat gate, up, down;
    METAL_PTR(const float) moe_in;    /* [rows][hidden] */
    METAL_PTR(const uint32_t) expert; /* [rows][top_k] */
    METAL_PTR(const float) weight;
    METAL_PTR(uint32_t) first; /* [experts + 1]: where an expert's places begin in place[] */
    METAL_PTR(uint32_t) place; /* [places] ordered by expert, ascending within one */
    METAL_PTR(float) places;   /* [places][width] */
    METAL_PTR(float) partial;  /* [places][hidden] */
    METAL_PTR(float) residual; /* [rows][hidden] */
    uint32_t experts, top_k;
} metal_expert_gemm_args;
METAL_SIZE(metal_expert_gemm_args, 216);

/* Delta net of the segments with first ≤ rows < beyond (metal_gdn_args), in chunks of METAL_GDN_CHUNK rows; each begins where the one
 * before has ended.  Window and state as for step_gdn; out raw.  With C = METAL_GDN_CHUNKS(t.rows, t.segments), no less than the chunks of
 * all:
 *   gdn_conv    grid (C, channels / 128), 32 threads: convolution, SiLU and the norms of q and k; writes the windows
 *   gdn_chunks  grid (C, key_heads), 128 threads, METAL_TG_GDN_CHUNKS bytes
 *   gdn_scan    grid (value_heads · 128 / 32, segments), 256 threads, METAL_TG_GDN_SCAN bytes; writes the states and out
 * with a barrier between them. */
enum { METAL_GDN_CHUNK = 32, METAL_TG_GDN_CHUNKS = 24576, METAL_TG_GDN_SCAN = 29184 };
#define METAL_GDN_CHUNKS(rows, segments) ((rows) / METAL_GDN_CHUNK + (segments))
#define METAL_GDN_SCRATCH(rows, segments, key_heads, value_heads)                                                                          \
    ((uint64_t)METAL_GDN_CHUNKS(rows, segments) * (32 * (2 * (key_heads) + (value_heads)) * 128 + (value_heads) * (2 * 32 * 32 + 64)) * 4)

/* attention_{kf32,kb16,kq8}_{exact,fast}: rows of segments with first ≤ rows < beyond; `queries`, K and V are there already
 * (attention_write).  A threadgroup takes the query heads of a K/V head and as many rows as make up to 64 queries, so that each K/V tile
 * that is read serves all of them.  grid (METAL_TILES(t.rows, t.segments), kv_heads, t.long_splits): tile first_tile + x finds its segment by walking
 * t.segment, and the last ones may have none.  METAL_PREFILL_THREADS threads.  out raw.
 * Few rows after many make too few tiles: with long_splits above 1 their positions are cut, and `partial` gets what step_attention leaves
 * there, for each row of the batch.  attention_combine: grid (heads · METAL_COMBINE_PARTS, rows), else as step_attention_combine. */
enum {
    METAL_ATTENTION_ROWS = 8 /* least of a tile */,
    METAL_LONG_SPLIT_POSITIONS = 128 /* least of a split, about */,
    METAL_PREFILL_THREADS = 256,
    METAL_TG_PREFILL = 28928
};
#define METAL_TILES(rows, segments) ((rows) / METAL_ATTENTION_ROWS + (segments))

#endif

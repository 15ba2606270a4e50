/* traffic.h: what a step of the real model moves on Metal, counted by the watched fake device from the loads and stores that happen.
 *
 * The host and the kernels are the ones that ship, the shapes the real model's; of its 40 layers one of each kind is run, and of large
 * grids a few threadgroups (simt_sample).  Weights are zero but for the router's and the embeddings, which are random, so that rows choose
 * experts as they would. */
#ifndef CALLA_TESTS_METAL_TRAFFIC_H
#define CALLA_TESTS_METAL_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/* Parts of a step that are repeated differently often. */
typedef enum traffic_part {
    FIRST_LAYER, /* with the embedding; a delta net's */
    DELTA_LAYER,
    ATTENTION_LAYER,
    LAST_LAYER, /* attention; of a prompt for the wanted rows alone */
    HEAD_PART,
    TRAFFIC_PARTS
} traffic_part;

/* Bytes.  Matrices, keys and values, and states are too large for any cache: each byte counts once for every threadgroup that reads it, and
 * once where it is written.  The rest (activations, descriptors, vectors of weights) is small or shared by threadgroups that run side by
 * side: each byte counts once for each dispatch that reads it, and once for each that writes it. */
typedef struct traffic {
    uint64_t weights, cache, states, rest;
    uint64_t flops;      /* of matrix units; of products of few rows: from the weights that were loaded */
    uint64_t cache_once; /* each byte once for each dispatch that reads it */
    uint64_t dispatches;
} traffic;

typedef struct traffic_step {
    uint32_t rows, position; /* of the first row */
    bool wanted;             /* the logits of the last row */
    uint32_t first, end;     /* parts: layers first … end - 1, with LAST_LAYER the head too */
    bool whole;              /* every threadgroup of every grid */
    bool grids;              /* nothing is computed or counted: `narrow` is told of any small grid */
    uint32_t tokens;         /* the rows are of so many different ones, so that few experts are chosen; 0: all differ */
} traffic_step;

typedef struct traffic_result {
    traffic part[TRAFFIC_PARTS];
    bool again; /* two threadgroups of a product of few rows have read the same matrix */
    /* The kernel of a dispatch that moved over 1 MB on fewer than 128 threadgroups (but for those few of short pieces that traffic.c names),
     * or with `grids` of any on so few; empty: none. */
    char narrow[64];
    uint64_t narrow_bytes, narrow_threadgroups;
    /* What a device that needs 128 threadgroups could have moved more while kernels that moved over 1 MB had fewer: at most, since others of
     * their stage run beside them. */
    uint64_t idle_bytes;
    uint64_t expert_rows, expert_blocks; /* of all experts of the last layer run, and their blocks of 64; where that is not LAST_LAYER */
} traffic_result;

typedef struct traffic_model traffic_model;
/* For steps of up to `rows` rows at up to `positions`.  Ends the program where anything fails. */
traffic_model *traffic_open(uint32_t rows, uint32_t positions);
void traffic_close(traffic_model *m);
traffic_result traffic_count(traffic_model *m, const traffic_step *step);

/* Of the real model: the first layer, 29 delta nets, 9 attention layers, the last, and the head. */
traffic traffic_of_model(const traffic_result *r);
uint64_t traffic_bytes(const traffic *t);

/* The least that a token at the end of `positions` can move: its weights, the states in and out, keys and values. */
uint64_t traffic_least_of_token(uint32_t positions);

#endif

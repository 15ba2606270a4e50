/* bpe_queue.h: the pairs of one long word, ordered by rank, then by position.  Owns no merges and no symbols: positions and ranks only.
 *
 * One bucket for each rank, a doubly linked list of positions in ascending order, and a bitmap of the buckets that hold something.
 * Merging goes through a word from left to right, so positions arrive nearly always in ascending order; a bucket that got one out of
 * order is sorted when it is next read.  All else takes constant time, so encoding takes time in proportion to the word. */
#ifndef CALLA_TEXT_BPE_QUEUE_H
#define CALLA_TEXT_BPE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPE_QUEUE_END UINT32_MAX

typedef struct bpe_bucket {
    uint32_t head, tail; /* valid while the bucket's bit is set */
} bpe_bucket;

typedef struct bpe_link {
    uint32_t rank; /* BPE_QUEUE_END: not queued */
    uint32_t next, previous;
} bpe_link;

typedef struct bpe_queue {
    bpe_bucket *buckets;  /* [n_ranks] */
    uint64_t *used;       /* [n_ranks / 64] bit r: bucket r holds something */
    uint64_t *used_words; /* [n_ranks / 4096] bit i: used[i] is not 0 */
    uint64_t *unsorted;   /* [n_ranks / 64] bit r: bucket r is out of order */
    uint32_t n_ranks;
    uint32_t lowest; /* no word of used_words before this one holds a bit */
    bpe_link *links; /* [cap], by position */
    size_t cap;
} bpe_queue;

/* Makes room for ranks 0 … n_ranks-1 (the same number in all calls for one queue) and positions 0 … n-1, none queued.
 * false: out of memory. */
bool bpe_queue_reserve(bpe_queue *q, uint32_t n_ranks, size_t n);
void bpe_queue_free(bpe_queue *q);

/* position is not queued. */
void bpe_queue_push(bpe_queue *q, uint32_t position, uint32_t rank);
/* Nothing happens if position is not queued. */
void bpe_queue_remove(bpe_queue *q, uint32_t position);
/* Takes the leftmost position of the lowest rank, and says its rank; BPE_QUEUE_END when empty. */
uint32_t bpe_queue_pop(bpe_queue *q, uint32_t *rank);

#endif

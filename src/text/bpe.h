/* bpe.h: byte-pair encoding of one word: the merge table, built once, and the two ways of applying it.
 *
 * The rule (as the reference): of all neighbouring pairs that have a merge, the one of lowest rank is replaced by its result, the
 * leftmost first among equals, until none is left.  A merge may come before one that makes its parts (23 merges of the real
 * tokenizer do), so after a merge the lowest rank can fall again; both ways below keep to the rule in that case too. */
#ifndef CALLA_TEXT_BPE_H
#define CALLA_TEXT_BPE_H

#include "text/bpe_queue.h"

enum { BPE_MAX_IDS = 1 << 20, BPE_MAX_MERGES = 1 << 20 }; /* what bpe.pairs has bits for; the model has 248,077 and 247,587 */

#define BPE_NONE UINT32_MAX

typedef struct bpe {
    uint64_t *pairs; /* [1 << (64 - shift)], open addressing: left id, right id, rank in 20, 20 and 24 bits; all ones: empty */
    unsigned shift;
    uint32_t *byte_pairs; /* [256][256] rank of a pair of bytes, or BPE_NONE: most look-ups of short words end here */
    int32_t *merged;      /* [max_merges] the id that a rank makes */
    uint32_t n_merges, max_merges;
    int32_t byte_ids[256];
} bpe;

/* byte_ids [256]: the ids of single bytes.  false: out of memory; b is then empty and needs no free. */
bool bpe_init(bpe *b, const int32_t *byte_ids, uint32_t max_merges);
void bpe_free(bpe *b);
/* Adds the merge of the next rank.  false: the pair is there already. */
bool bpe_add(bpe *b, int32_t left, int32_t right, int32_t result);
/* After the last merge, before the first word. */
void bpe_seal(bpe *b);

/* Working memory of one caller; all zero at the start. */
typedef struct bpe_work {
    bpe_queue queue;
    uint32_t *next, *previous; /* [cap] the positions of a long word's symbols as a list */
    size_t cap;
} bpe_work;

void bpe_work_free(bpe_work *w);

/* Encodes word [n], n > 0, writing at most n ids to out; their number, or 0 when out of memory. */
size_t bpe_encode(const bpe *b, bpe_work *w, const unsigned char *word, size_t n, int32_t *out);

#endif

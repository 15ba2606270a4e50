/* bpe.c: see bpe.h. */
#include "text/bpe.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

/* Words of up to this many bytes are merged by scanning an array, which for so few is faster than any queue. */
enum { SHORT_WORD = 48 };

#define EMPTY UINT64_MAX
#define ID_BITS 20
#define RANK_BITS 24

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << ID_BITS | (uint32_t)right; }

static size_t pair_slot(const bpe *b, uint64_t key) { return (size_t)(random_mix(key) >> b->shift); }

bool bpe_init(bpe *b, const int32_t *byte_ids, uint32_t max_merges) {
    memset(b, 0, sizeof *b);
    unsigned bits = 4;
    while (((size_t)1 << bits) < (size_t)max_merges * 2) bits++;
    b->shift = 64 - bits;
    b->max_merges = max_merges;
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    b->pairs = mem_array((size_t)1 << bits, sizeof *b->pairs);
    b->byte_pairs = mem_array(65536, sizeof *b->byte_pairs);
    b->merged = mem_array(max_merges ? max_merges : 1, sizeof *b->merged);
    if (!b->pairs || !b->byte_pairs || !b->merged) {
        bpe_free(b);
        return false;
    }
    memset(b->pairs, 0xFF, ((size_t)1 << bits) * sizeof *b->pairs);
    memset(b->byte_pairs, 0xFF, 65536 * sizeof *b->byte_pairs);
    return true;
}

void bpe_free(bpe *b) {
    mem_free(b->pairs);
    mem_free(b->byte_pairs);
    mem_free(b->merged);
    memset(b, 0, sizeof *b);
}

static uint32_t find_rank(const bpe *b, int32_t left, int32_t right) {
    const uint64_t key = pair_key(left, right);
    const size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    for (size_t i = pair_slot(b, key);; i = (i + 1) & mask) {
        const uint64_t entry = b->pairs[i];
        if (entry >> RANK_BITS == key && entry != EMPTY) return (uint32_t)entry & ((1u << RANK_BITS) - 1);
        if (entry == EMPTY) return BPE_NONE;
    }
}

bool bpe_add(bpe *b, int32_t left, int32_t right, int32_t result) {
    const uint64_t key = pair_key(left, right);
    const size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    size_t i = pair_slot(b, key);
    for (; b->pairs[i] != EMPTY; i = (i + 1) & mask) {
        if (b->pairs[i] >> RANK_BITS == key) return false;
    }
    b->pairs[i] = key << RANK_BITS | b->n_merges;
    b->merged[b->n_merges++] = result;
    return true;
}

void bpe_seal(bpe *b) {
    for (size_t i = 0; i < 65536; i++) b->byte_pairs[i] = find_rank(b, b->byte_ids[i / 256], b->byte_ids[i % 256]);
}

void bpe_work_free(bpe_work *w) {
    bpe_queue_free(&w->queue);
    mem_free(w->next);
    mem_free(w->previous);
    *w = (bpe_work){0};
}

/* ---------------------------------------------------------- short words --------------------------------------------------- */

static size_t encode_short(const bpe *b, const unsigned char *word, size_t n, int32_t *id) {
    uint32_t rank[SHORT_WORD]; /* of the pair (i, i + 1) */
    for (size_t i = 0; i < n; i++) id[i] = b->byte_ids[word[i]];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = b->byte_pairs[(size_t)word[i] << 8 | word[i + 1]];
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == BPE_NONE) break;
        id[best] = b->merged[rank[best]];
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (size_t i = best; i + 1 < n; i++) rank[i] = rank[i + 1];
        if (best) rank[best - 1] = find_rank(b, id[best - 1], id[best]);
        if (best + 1 < n) rank[best] = find_rank(b, id[best], id[best + 1]);
    }
    return n;
}

/* ----------------------------------------------------------- long words --------------------------------------------------- */

static bool reserve_work(const bpe *b, bpe_work *w, size_t n) {
    if (n >= BPE_QUEUE_END) return false;
    if (n > w->cap) {
        mem_free(w->next);
        mem_free(w->previous);
        w->next = mem_array(n, sizeof *w->next);
        w->previous = mem_array(n, sizeof *w->previous);
        w->cap = w->next && w->previous ? n : 0;
        if (!w->cap) return false;
    }
    return bpe_queue_reserve(&w->queue, b->n_merges, n);
}

/* Queues the pair that begins at `at`, if it has a merge and is not the last symbol's. */
static void queue_pair(const bpe *b, bpe_work *w, const int32_t *id, uint32_t at) {
    const uint32_t right = w->next[at];
    if (right == BPE_QUEUE_END) return;
    const uint32_t rank = find_rank(b, id[at], id[right]);
    if (rank != BPE_NONE) bpe_queue_push(&w->queue, at, rank);
}

/* id [n]: room for one symbol at each byte's position; in the end the symbols that are left, side by side. */
static size_t encode_long(const bpe *b, bpe_work *w, const unsigned char *word, size_t n, int32_t *id) {
    if (!reserve_work(b, w, n)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        id[i] = b->byte_ids[word[i]];
        w->next[i] = i + 1 < n ? i + 1 : BPE_QUEUE_END;
        w->previous[i] = i ? i - 1 : BPE_QUEUE_END;
        if (i + 1 == n) break;
        const uint32_t rank = b->byte_pairs[(size_t)word[i] << 8 | word[i + 1]];
        if (rank != BPE_NONE) bpe_queue_push(&w->queue, i, rank);
    }
    uint32_t rank;
    for (uint32_t at; (at = bpe_queue_pop(&w->queue, &rank)) != BPE_QUEUE_END;) {
        const uint32_t right = w->next[at], left = w->previous[at];
        bpe_queue_remove(&w->queue, right); /* the right symbol goes, and with it the pair it began */
        id[at] = b->merged[rank];
        w->next[at] = w->next[right];
        if (w->next[at] != BPE_QUEUE_END) w->previous[w->next[at]] = at;
        if (left != BPE_QUEUE_END) {
            bpe_queue_remove(&w->queue, left);
            queue_pair(b, w, id, left);
        }
        queue_pair(b, w, id, at);
    }
    size_t n_left = 0;
    for (uint32_t at = 0; at != BPE_QUEUE_END; at = w->next[at]) id[n_left++] = id[at];
    return n_left;
}

size_t bpe_encode(const bpe *b, bpe_work *w, const unsigned char *word, size_t n, int32_t *out) {
    if (n == 1) {
        out[0] = b->byte_ids[word[0]];
        return 1;
    }
    return n <= SHORT_WORD ? encode_short(b, word, n, out) : encode_long(b, w, word, n, out);
}

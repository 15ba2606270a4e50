/* bpe_queue.c: see bpe_queue.h. */
#include "text/bpe_queue.h"

#include <string.h>

#include "base/memory.h"

#define END BPE_QUEUE_END

bool bpe_queue_reserve(bpe_queue *q, uint32_t n_ranks, size_t n) {
    if (!q->buckets) {
        const size_t words = (size_t)n_ranks / 64 + 1;
        q->buckets = mem_array(n_ranks ? n_ranks : 1, sizeof *q->buckets);
        q->used = mem_calloc(words, sizeof *q->used);
        q->unsorted = mem_calloc(words, sizeof *q->unsorted);
        q->used_words = mem_calloc(words / 64 + 1, sizeof *q->used_words);
        if (!q->buckets || !q->used || !q->unsorted || !q->used_words) {
            bpe_queue_free(q);
            return false;
        }
        q->n_ranks = n_ranks;
    }
    if (mem_grow(&q->links, &q->cap, n, sizeof *q->links, END)) return false;
    for (size_t i = 0; i < n; i++) q->links[i].rank = END;
    q->lowest = 0;
    return true;
}

void bpe_queue_free(bpe_queue *q) {
    mem_free(q->buckets);
    mem_free(q->used);
    mem_free(q->unsorted);
    mem_free(q->used_words);
    mem_free(q->links);
    *q = (bpe_queue){0};
}

static bool get_bit(const uint64_t *bits, uint32_t i) { return bits[i / 64] >> i % 64 & 1; }
static void set_bit(uint64_t *bits, uint32_t i) { bits[i / 64] |= UINT64_C(1) << i % 64; }
static void clear_bit(uint64_t *bits, uint32_t i) { bits[i / 64] &= ~(UINT64_C(1) << i % 64); }

void bpe_queue_push(bpe_queue *q, uint32_t position, uint32_t rank) {
    bpe_bucket *b = &q->buckets[rank];
    bpe_link *link = &q->links[position];
    link->rank = rank;
    link->next = END;
    if (get_bit(q->used, rank)) {
        if (b->tail > position) set_bit(q->unsorted, rank);
        link->previous = b->tail;
        q->links[b->tail].next = position;
        b->tail = position;
        return;
    }
    link->previous = END;
    b->head = b->tail = position;
    set_bit(q->used, rank);
    set_bit(q->used_words, rank / 64);
    if (rank / 4096 < q->lowest) q->lowest = rank / 4096;
}

void bpe_queue_remove(bpe_queue *q, uint32_t position) {
    bpe_link *link = &q->links[position];
    const uint32_t rank = link->rank;
    if (rank == END) return;
    bpe_bucket *b = &q->buckets[rank];
    if (link->previous == END)
        b->head = link->next;
    else
        q->links[link->previous].next = link->next;
    if (link->next == END)
        b->tail = link->previous;
    else
        q->links[link->next].previous = link->previous;
    link->rank = END;
    if (b->head != END) return;
    clear_bit(q->used, rank);
    clear_bit(q->unsorted, rank);
    if (!q->used[rank / 64]) clear_bit(q->used_words, rank / 64);
}

/* Merges two ascending lists linked by next. */
static uint32_t merge_lists(bpe_link *links, uint32_t a, uint32_t b) {
    uint32_t head = END, *to = &head;
    while (a != END && b != END) {
        uint32_t *from = a < b ? &a : &b;
        *to = *from;
        to = &links[*from].next;
        *from = *to;
    }
    *to = a != END ? a : b;
    return head;
}

/* Sorts a bucket by position: a merge sort from the bottom, runs[i] being an ascending list of 2^i positions or none. */
static void sort_bucket(bpe_queue *q, bpe_bucket *b) {
    uint32_t runs[32];
    memset(runs, 0xFF, sizeof runs);
    for (uint32_t at = b->head, next; at != END; at = next) {
        next = q->links[at].next;
        q->links[at].next = END;
        uint32_t run = at;
        unsigned i = 0;
        for (; runs[i] != END; i++) {
            run = merge_lists(q->links, runs[i], run);
            runs[i] = END;
        }
        runs[i] = run;
    }
    uint32_t head = END, previous = END;
    for (unsigned i = 0; i < 32; i++) head = merge_lists(q->links, runs[i], head);
    b->head = head;
    for (uint32_t at = head; at != END; previous = at, at = q->links[at].next) q->links[at].previous = previous;
    b->tail = previous;
}

uint32_t bpe_queue_pop(bpe_queue *q, uint32_t *rank) {
    const uint32_t n_lowest = q->n_ranks / 4096 + 1;
    while (q->lowest < n_lowest && !q->used_words[q->lowest]) q->lowest++;
    if (q->lowest == n_lowest) {
        q->lowest = 0;
        return END;
    }
    const uint32_t word = q->lowest * 64 + (uint32_t)__builtin_ctzll(q->used_words[q->lowest]);
    *rank = word * 64 + (uint32_t)__builtin_ctzll(q->used[word]);
    bpe_bucket *b = &q->buckets[*rank];
    if (get_bit(q->unsorted, *rank)) {
        sort_bucket(q, b);
        clear_bit(q->unsorted, *rank);
    }
    const uint32_t position = b->head;
    bpe_queue_remove(q, position);
    return position;
}

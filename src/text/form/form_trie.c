/* form_trie.c: see form_trie.h.  Tokens are sorted by their bytes, which puts the nodes of each in preorder. */
#include "text/form/form_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_LENGTH = UINT16_MAX }; /* longer tokens are left out: they are never needed, and allowed nowhere */

typedef struct word {
    uint64_t front; /* its first bytes as a number: most comparisons need no more */
    const unsigned char *bytes;
    uint32_t n;
    int32_t id;
} word;

static int compare_words(const void *a, const void *b) {
    const word *x = a, *y = b;
    if (x->front != y->front) return x->front < y->front ? -1 : 1;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order) return order;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

uint32_t form_count_characters(const unsigned char *bytes, size_t n) {
    uint32_t characters = 0;
    for (size_t i = 0; i < n; i++) characters += (bytes[i] & 0xC0) != 0x80;
    return characters;
}

uint32_t form_trie_characters(const form_trie *trie, int32_t id) {
    uint32_t characters = 0;
    for (uint32_t k = 0; k < trie->n_digits; k++) characters |= (trie->digits[k * trie->n_words + (uint32_t)id / 32] >> id % 32 & 1) << k;
    return characters;
}

void form_trie_add_short(const form_trie *trie, const uint32_t *from, uint32_t most, uint32_t *mask) {
    enum { BLOCK = 16 }; /* words at a time, which compilers make vectors of: a whole mask takes 68 µs, token by token it took 321 */
    for (uint32_t i = 0; i < trie->n_words; i += BLOCK) {
        const uint32_t n = trie->n_words - i < BLOCK ? trie->n_words - i : BLOCK;
        uint32_t less[BLOCK] = {0}, equal[BLOCK];
        memset(equal, 0xFF, sizeof equal);
        for (uint32_t k = trie->n_digits; k-- > 0;) {
            const uint32_t *digit = trie->digits + k * trie->n_words + i, wanted = most >> k & 1 ? UINT32_MAX : 0;
            for (uint32_t j = 0; j < n; j++) {
                less[j] |= equal[j] & wanted & ~digit[j];
                equal[j] &= ~(wanted ^ digit[j]);
            }
        }
        for (uint32_t j = 0; j < n; j++) mask[i + j] |= from[i + j] & (less[j] | equal[j]);
    }
}

bool form_trie_has(const form_trie *trie, const tokenizer *t, int32_t id) {
    size_t n;
    return tokenizer_bytes(t, id, &n) && n <= MAX_LENGTH && !tokenizer_is_special(t, id) && id != trie->call_id && id != trie->call_end_id;
}

static word *sorted_words(const form_trie *trie, const tokenizer *t, size_t *n_words) {
    const uint32_t n_ids = tokenizer_vocabulary(t);
    word *words = mem_array(n_ids, sizeof *words);
    size_t n = 0;
    for (uint32_t id = 0; words && id < n_ids; id++) {
        size_t length;
        const unsigned char *bytes = (const unsigned char *)tokenizer_bytes(t, (int32_t)id, &length);
        if (!form_trie_has(trie, t, (int32_t)id)) continue;
        word *w = &words[n++];
        *w = (word){.bytes = bytes, .n = (uint32_t)length, .id = (int32_t)id};
        for (size_t i = 0; i < 8; i++) w->front = w->front << 8 | (i < length ? bytes[i] : 0);
    }
    if (words) qsort(words, n, sizeof *words, compare_words);
    *n_words = n;
    return words;
}

static size_t common_bytes(const word *a, const word *b) {
    const size_t most = a->n < b->n ? a->n : b->n;
    size_t n = 0;
    while (n < most && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* digits, which are zero, of a token's characters. */
static void write_characters(form_trie *trie, int32_t id, uint32_t characters) {
    for (uint32_t k = 0; k < trie->n_digits; k++) trie->digits[k * trie->n_words + (uint32_t)id / 32] |= (characters >> k & 1) << id % 32;
}

static bool fill(form_trie *trie, const word *words, size_t n_words) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < n_words; i++) {
        n_nodes += words[i].n - (i ? common_bytes(&words[i - 1], &words[i]) : 0);
        if (words[i].n > trie->longest) trie->longest = words[i].n;
    }
    while (trie->longest >> trie->n_digits) trie->n_digits++;
    trie->digits = mem_calloc((size_t)trie->n_digits * trie->n_words, sizeof *trie->digits);
    /* the nodes above the next one, by depth */
    uint32_t *path = mem_array(MAX_LENGTH + 1, sizeof *path);
    trie->nodes = n_nodes < UINT32_MAX ? mem_array(n_nodes, sizeof *trie->nodes) : NULL;
    if (!path || !trie->nodes || !trie->digits) {
        mem_free(path);
        return false;
    }
    size_t depth = 0;
    for (size_t i = 0; i < n_words; i++) {
        const word *w = &words[i];
        for (const size_t shared = i ? common_bytes(&words[i - 1], w) : 0; depth > shared; depth--)
            trie->nodes[path[depth]].skip = trie->n_nodes;
        while (depth < w->n) {
            path[++depth] = trie->n_nodes;
            trie->nodes[trie->n_nodes++] = (form_trie_node){.token = -1, .depth = (uint16_t)depth, .byte = w->bytes[depth - 1]};
        }
        write_characters(trie, w->id, form_count_characters(w->bytes, w->n));
        trie->nodes[path[depth]].token = w->id; /* of equal tokens, which no byte-level vocabulary has, the last */
        if (w->n == 1) trie->of_byte[w->bytes[0]] = w->id;
    }
    for (; depth; depth--) trie->nodes[path[depth]].skip = trie->n_nodes;
    mem_free(path);
    return true;
}

static bool in_utf8(int byte) { return byte < 0xC0 || (byte > 0xC1 && byte < 0xF5); }

calla_status form_trie_build(const tokenizer *t, form_trie **out, calla_error *err) {
    *out = NULL;
    form_trie *trie = mem_calloc(1, sizeof *trie);
    size_t n_words = 0;
    if (trie) {
        trie->stop_id = tokenizer_stop_id(t);
        trie->think_id = tokenizer_find_added(t, "<think>");
        trie->think_end_id = tokenizer_find_added(t, "</think>");
        trie->call_id = tokenizer_find_added(t, "<tool_call>");
        trie->call_end_id = tokenizer_find_added(t, "</tool_call>");
    }
    word *words = trie ? sorted_words(trie, t, &n_words) : NULL;
    if (words) {
        trie->n_words = (tokenizer_vocabulary(t) + 31) / 32;
        trie->of_byte = mem_array(256, sizeof *trie->of_byte);
    }
    for (int i = 0; words && trie->of_byte && i < 256; i++) trie->of_byte[i] = -1;
    const bool filled = words && trie->of_byte && fill(trie, words, n_words);
    mem_free(words);
    if (!filled) {
        form_trie_free(trie);
        return error_nomem(err, "the trie of the vocabulary");
    }
    calla_status status = CALLA_OK;
    if (trie->stop_id < 0)
        status =
            error_set(err, CALLA_E_UNSUPPORTED, "an answer's form: tokenizer_config.json names no eos_token that could end the answer");
    for (int i = 0; !status && i < 256; i++)
        if (in_utf8(i) && trie->of_byte[i] < 0)
            status = error_set(err, CALLA_E_UNSUPPORTED,
                               "an answer's form: the tokenizer has no token for the byte %d, which a form may need", i);
    if (status) {
        form_trie_free(trie);
        return status;
    }
    *out = trie;
    return CALLA_OK;
}

void form_trie_free(form_trie *trie) {
    if (!trie) return;
    mem_free(trie->nodes);
    mem_free(trie->of_byte);
    mem_free(trie->digits);
    mem_free(trie);
}

/* form_trie.h: the tokens that text is made of, as a trie that is walked from front to back.
 *
 * Control tokens are left out: special ones, and <tool_call> and </tool_call>.  Other added tokens are text where they stand in text, as
 * answer.c prints them; so are <think> and </think> once the answer has begun.
 * Immutable once built: any thread may read it.  Knows nothing of forms. */
#ifndef CALLA_TEXT_FORM_TRIE_H
#define CALLA_TEXT_FORM_TRIE_H

#include "text/tokenizer.h"

/* Nodes stand in preorder: a node is followed by those below it, and its next sibling or whatever else is not below it is at `skip`.  A
 * walk therefore reads them in order, and jumps where a byte is refused. */
typedef struct form_trie_node {
    uint32_t skip;
    int32_t token;  /* that ends here, or -1 */
    uint16_t depth; /* bytes up to and with this one: 1 … longest */
    uint8_t byte;
} form_trie_node;

typedef struct form_trie {
    form_trie_node *nodes; /* [n_nodes] */
    uint32_t n_nodes;
    uint32_t n_words;               /* 32-bit words of a mask */
    uint32_t longest;               /* bytes of a token */
    uint32_t *digits;               /* [n_digits][n_words] masks: digit k, in base two, of the number of characters that begin in a token */
    uint32_t n_digits;              /* so many as `longest` has */
    int32_t *of_byte;               /* [256] the token of each single byte: whatever byte a form wants can be had */
    int32_t stop_id;                /* ends the answer */
    int32_t think_id, think_end_id; /* <think>, </think>; -1 where the tokenizer has none */
    int32_t call_id, call_end_id;   /* <tool_call>, </tool_call> */
} form_trie;

/* CALLA_E_UNSUPPORTED for a vocabulary without a token that ends an answer, or without a token for each byte of UTF-8: a form could ask
 * for what no token spells. */
calla_status form_trie_build(const tokenizer *t, form_trie **out, calla_error *err);
void form_trie_free(form_trie *trie); /* NULL is allowed */

/* It is a token of text, and as such in the trie. */
bool form_trie_has(const form_trie *trie, const tokenizer *t, int32_t id);
/* Characters that begin in a token of the trie. */
uint32_t form_trie_characters(const form_trie *trie, int32_t id);
/* Adds to mask [n_words] those of `from` [n_words] that have at most so many.  most < 2^n_digits */
void form_trie_add_short(const form_trie *trie, const uint32_t *from, uint32_t most, uint32_t *mask);
/* Characters that begin in bytes [n] of UTF-8. */
uint32_t form_count_characters(const unsigned char *bytes, size_t n);

#endif

/* pretokenize.h: cuts text into words, as the regex of tokenizer.json does.  Knows two regexes and no others. */
#ifndef CALLA_TEXT_PRETOKENIZE_H
#define CALLA_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum pretokenize_rule {
    PRETOKENIZE_MARKS,   /* the official one: combining marks belong to words */
    PRETOKENIZE_NO_MARKS /* Qwen2's: combining marks are symbols */
} pretokenize_rule;

/* The regexes as text. */
extern const char *const pretokenize_regex[2];

/* false if regex [n] is none of them. */
bool pretokenize_find_rule(const char *regex, size_t n, pretokenize_rule *rule);

/* Length of the word at the beginning of s [n]: valid UTF-8, n > 0, reaching to the end of the text (the regex looks ahead). */
size_t pretokenize_next(pretokenize_rule rule, const char *s, size_t n);

#endif

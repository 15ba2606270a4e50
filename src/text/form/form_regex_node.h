/* form_regex_node.h: a parsed regular expression, for form_regex.c and form_regex_parse.c. */
#ifndef CALLA_TEXT_FORM_FORM_REGEX_NODE_H
#define CALLA_TEXT_FORM_FORM_REGEX_NODE_H

#include "text/form/form_regex.h"

enum { REGEX_MOST = 1 << 20 /* of a quantifier */, REGEX_UNBOUNDED = UINT32_MAX };

typedef enum regex_kind { REGEX_SET, REGEX_SEQ, REGEX_ALT, REGEX_REPEAT, REGEX_BEGIN, REGEX_END } regex_kind;

typedef struct regex_range {
    uint32_t lo, hi; /* code points */
} regex_range;

struct regex_node {
    regex_kind kind;
    uint32_t least, most;      /* of a repetition; most may be REGEX_UNBOUNDED */
    const regex_range *ranges; /* [n_ranges] of a set: ascending, not touching */
    size_t n_ranges;
    struct regex_node *first, *last; /* parts of a sequence, alternatives, what is repeated */
    struct regex_node *next;         /* within the node above */
};

#endif

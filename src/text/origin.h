/* origin.h: text under construction that knows of every byte whether it came from the template or from content. */
#ifndef CALLA_TEXT_ORIGIN_H
#define CALLA_TEXT_ORIGIN_H

#include "base/buffer.h"

typedef struct origin_text {
    buffer text;
    size_t *runs; /* [n_runs], as text_origin of tokenizer.h: template, content, template, …; they sum to text.n */
    size_t n_runs, cap_runs;
    bool all_template; /* content is recorded as template (the reference's behaviour) */
    bool failed;       /* something was lost for want of memory; sticks, also over origin_clear */
} origin_text;

/* Bytes from … to-1 of a text; stays valid while that text only grows. */
typedef struct origin_span {
    const origin_text *of;
    size_t from, to;
} origin_span;

void origin_template(origin_text *o, const char *s);
void origin_content(origin_text *o, const char *s, size_t n);
void origin_append_span(origin_text *o, origin_span span); /* keeps each byte's origin; span.of is another text */
void origin_clear(origin_text *o);
void origin_free(origin_text *o);

static inline const char *span_data(origin_span s) { return s.from < s.to ? s.of->text.data + s.from : ""; }
static inline size_t span_n(origin_span s) { return s.to - s.from; }

/* Python's str methods on the bytes of a span.  strip takes Unicode's white space; the others exactly the ASCII strings given. */
origin_span span_strip(origin_span s);
origin_span span_strip_newlines_left(origin_span s);
origin_span span_strip_newlines_right(origin_span s);
bool span_starts_with(origin_span s, const char *prefix);
bool span_ends_with(origin_span s, const char *suffix);
bool span_contains(origin_span s, const char *word);
origin_span span_split_first(origin_span s, const char *separator); /* s.split(separator)[0] */
origin_span span_split_last(origin_span s, const char *separator);  /* s.split(separator)[-1] */

#endif

/* remarks.c: see remarks.h. */
#include "server/remarks.h"

#include <stdio.h>
#include <string.h>

static void add_list(const char *name, const buffer *list, char *out) {
    const size_t n = strlen(out);
    if (list->n) snprintf(out + n, REMARKS_BYTES - n, "%s: %s\r\n", name, list->data);
}

/* With the seed, so that an answer can be had again from a request that gave none. */
static void add_sampling(const conversation *c, char *out) {
    const calla_sampling *s = &c->sampling;
    const size_t n = strlen(out);
    snprintf(out + n, REMARKS_BYTES - n,
             "x-calla-sampling: temperature=%.7g top_p=%.7g top_k=%u min_p=%.7g presence_penalty=%.7g frequency_penalty=%.7g "
             "repetition_penalty=%.7g seed=%lld max_tokens=%u\r\n",
             (double)s->temperature, (double)s->top_p, s->top_k, (double)s->min_p, (double)s->presence_penalty,
             (double)s->frequency_penalty, (double)s->repetition_penalty, (long long)s->seed, c->max_tokens);
}

const char *remarks_write(const conversation *c, bool answers, char *out) {
    *out = 0;
    if (answers) add_sampling(c, out);
    add_list("x-calla-ignored", &c->ignored, out);
    add_list("x-calla-warning", &c->warnings, out);
    return *out ? out : NULL;
}

/* selftest_pieces.c: the same prompt processed in pieces of different sizes must give the same logits: what is lost at a border between
 * pieces (recurrent state, cache, positions) shows here.
 *
 * Exact, kernels for many rows and for one differ only in the order of their sums: by about 1e-6 of the largest logit.  Where that turns a
 * near tie of the router another expert answers and a row moves by more, so the median of the rows is held to the limit, and each row
 * to a wider one: a lost state moves all of them. */
#include <math.h>

#include "base/memory.h"
#include "cli/distribution.h"
#include "cli/report.h"
#include "cli/selftest.h"

enum { PROMPT = 300, COMPARED = 16 }; /* more than a page of the cache; the last rows, which have seen all of it */

/* Of the largest logit: for the median of the rows, and for each. */
typedef struct limits {
    double median, each;
} limits;

static const limits exact_limits = {1e-4, 1e-2};
static const limits fast_limits = {3e-2, 3e-1}; /* rounding to 8 bits makes steps of 1/127 of a group's largest number out of 1e-6 */

static const uint32_t piece_rows[] = {1, 17, 64};

typedef struct rows {
    float *logits; /* [COMPARED][vocabulary_rows]: of the whole */
    uint32_t vocabulary_rows;
    float largest;              /* of those logits, by size */
    float difference[COMPARED]; /* largest of each row */
    bool finite;
} rows;

static void keep_row(void *user, size_t at, const float *logits) {
    rows *r = user;
    float *to = r->logits + (at - (PROMPT - COMPARED)) * r->vocabulary_rows;
    for (uint32_t i = 0; i < r->vocabulary_rows; i++) {
        to[i] = logits[i];
        if (!isfinite(logits[i])) r->finite = false;
        r->largest = fmaxf(r->largest, fabsf(logits[i]));
    }
}

static void compare_row(void *user, size_t at, const float *logits) {
    rows *r = user;
    const size_t row = at - (PROMPT - COMPARED);
    const float *whole = r->logits + row * r->vocabulary_rows;
    r->difference[row] = 0;
    for (uint32_t i = 0; i < r->vocabulary_rows; i++) {
        if (!isfinite(logits[i])) r->finite = false;
        r->difference[row] = fmaxf(r->difference[row], fabsf(logits[i] - whole[i]));
    }
}

/* Spread over the vocabulary without repeating. */
static void fill_prompt(int32_t *ids, uint32_t vocabulary) {
    for (uint32_t i = 0; i < PROMPT; i++) ids[i] = (int32_t)((i + 1) * 2654435761u % vocabulary);
}

static calla_status score(const selftest *s, uint32_t batch_rows, const int32_t *ids, calla_row_fn fn, rows *r, calla_error *err) {
    calla_engine *engine = NULL;
    calla_status status = selftest_open_engine(s, PROMPT, 1, batch_rows, &engine, err);
    if (!status) status = calla_engine_score_rows(engine, ids, PROMPT, PROMPT - COMPARED, fn, r, err);
    calla_engine_close(engine);
    return status;
}

static void check_pieces(selftest *s, uint32_t batch_rows, const int32_t *ids, rows *r) {
    calla_error err = {0};
    char name[64];
    snprintf(name, sizeof name, "pieces of %u", batch_rows);
    if (score(s, batch_rows, ids, compare_row, r, &err)) {
        selftest_add_error(s, name, &err);
        return;
    }
    const limits limit = s->o->value[OPTION_PRECISION].integer ? fast_limits : exact_limits;
    const double largest = (double)r->largest;
    const double median = distribution_percentile(r->difference, COMPARED, 0.5) / largest;
    const double worst = distribution_percentile(r->difference, COMPARED, 1) / largest;
    const bool ok = r->finite && median <= limit.median && worst <= limit.each;
    if (!r->finite) {
        selftest_add(s, name, CHECK_FAILED, "there are logits that are not finite");
        return;
    }
    check *c = selftest_add(s, name, ok ? CHECK_OK : CHECK_FAILED,
                            "against pieces of %d, of the largest logit: median of %d rows %.2g (limit %.2g), worst %.2g (limit %.2g)",
                            SELFTEST_BATCH_ROWS, COMPARED, median, limit.median, worst, limit.each);
    report_append_number(&c->members, "median", median);
    report_append_number(&c->members, "worst", worst);
}

void selftest_pieces(selftest *s) {
    calla_error err = {0};
    int32_t ids[PROMPT];
    rows r = {.vocabulary_rows = s->info.vocabulary_rows, .finite = true};
    fill_prompt(ids, s->info.vocabulary);
    r.logits = mem_array((size_t)COMPARED * r.vocabulary_rows, sizeof *r.logits);
    calla_status status = r.logits ? score(s, SELFTEST_BATCH_ROWS, ids, keep_row, &r, &err) : error_nomem(&err, "rows of logits");
    if (status)
        selftest_add_error(s, "pieces", &err);
    else if (!r.finite || r.largest == 0)
        selftest_add(s, "pieces", CHECK_FAILED, "the logits are %s", r.finite ? "all zero" : "not all finite");
    else
        for (size_t i = 0; i < sizeof piece_rows / sizeof *piece_rows; i++) check_pieces(s, piece_rows[i], ids, &r);
    mem_free(r.logits);
}

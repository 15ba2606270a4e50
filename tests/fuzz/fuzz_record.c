/* fuzz_record.c: the reader of calla eval --record's files on any bytes.  What is accepted keeps the promises of record.h, can be
 * compared with any logits, and is the same file when it is written again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool holds) {
    if (!holds) abort();
}

static void check_row(const record *r, const row_top *row) {
    enum { MOST = 4096 };
    static float logits[MOST], scratch[MOST];
    double mass = exp((double)row->rest_logprob);
    check((uint32_t)row->target < r->vocabulary_rows && isfinite(row->target_logprob));
    for (uint32_t i = 0; i < row->n; i++) {
        check((uint32_t)row->ids[i] < r->vocabulary_rows && isfinite(row->logprobs[i]));
        mass += exp((double)row->logprobs[i]);
    }
    check(fabs(mass - 1) < 1e-2);
    if (r->vocabulary_rows > MOST) return;
    const double kl = distribution_divergence(row, logits, r->vocabulary_rows, scratch);
    check(kl >= 0 && isfinite(kl));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    record r;
    calla_error err = {0};
    if (record_parse((const char *)data, n, "f", &r, &err)) {
        check(err.message[0] && !r.rows);
        return 0;
    }
    buffer again = {0};
    record_append_header(&again, &r);
    for (uint32_t i = 0; i < r.positions; i++) {
        row_top row;
        record_row(&r, i, &row);
        check(row.n == r.top);
        check_row(&r, &row);
        record_append_row(&again, &row);
    }
    check(again.failed || (again.n == n && memcmp(again.data, data, n) == 0));
    buffer_free(&again);
    return 0;
}

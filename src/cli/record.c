/* record.c: see record.h. */
#include "cli/record.h"

#include <math.h>
#include <string.h>

#include "base/float.h"
#include "base/json.h"

enum { HEADER_BYTES = 48, VERSION = 1, FIXED_ROW_BYTES = 12 };

static const char magic[8] = {'c', 'a', 'l', 'l', 'a', 'r', 'e', 'f'};

static size_t row_bytes(uint32_t top) { return FIXED_ROW_BYTES + (size_t)top * 8; }

uint64_t record_hash_tokens(const int32_t *ids, size_t n) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        for (int byte = 0; byte < 4; byte++) hash = (hash ^ ((uint32_t)ids[i] >> 8 * byte & 0xFF)) * 0x100000001B3u;
    return hash;
}

/* ---- writing ---- */

static void append_u32(buffer *b, uint32_t x) { buffer_append(b, &x, sizeof x); }

void record_append_header(buffer *b, const record *r) {
    buffer_append(b, magic, sizeof magic);
    append_u32(b, VERSION);
    append_u32(b, r->top);
    append_u32(b, r->vocabulary_rows);
    append_u32(b, r->positions);
    append_u32(b, r->window);
    append_u32(b, r->stride);
    buffer_append(b, &r->tokens, sizeof r->tokens);
    append_u32(b, (uint32_t)r->n_about);
    append_u32(b, 0);
    buffer_append(b, r->about, r->n_about);
}

void record_append_row(buffer *b, const row_top *row) {
    append_u32(b, (uint32_t)row->target);
    buffer_append(b, &row->target_logprob, 4);
    buffer_append(b, &row->rest_logprob, 4);
    buffer_append(b, row->ids, (size_t)row->n * 4);
    buffer_append(b, row->logprobs, (size_t)row->n * 4);
}

/* ---- reading ---- */

void record_row(const record *r, uint32_t at, row_top *out) {
    const uint8_t *p = r->rows + at * row_bytes(r->top);
    out->n = r->top;
    out->target = (int32_t)load_u32(p);
    out->target_logprob = load_f32(p + 4);
    out->rest_logprob = load_f32(p + 8);
    memcpy(out->ids, p + FIXED_ROW_BYTES, (size_t)r->top * 4);
    memcpy(out->logprobs, p + FIXED_ROW_BYTES + (size_t)r->top * 4, (size_t)r->top * 4);
}

/* A logarithm of a probability: not NaN, and not above zero but for rounding. */
static bool is_logprob(float x) { return x <= 1e-4f; }

/* What is wrong with a row, or NULL. */
static const char *find_fault(const record *r, const row_top *row) {
    double mass = exp((double)row->rest_logprob);
    if ((uint32_t)row->target >= r->vocabulary_rows) return "its target is not in the vocabulary";
    if (!is_logprob(row->target_logprob) || !isfinite(row->target_logprob)) return "its target's log-probability is not one";
    if (!is_logprob(row->rest_logprob)) return "the rest's log-probability is not one";
    for (uint32_t i = 0; i < row->n; i++) {
        if ((uint32_t)row->ids[i] >= r->vocabulary_rows) return "a token is not in the vocabulary";
        for (uint32_t j = 0; j < i; j++)
            if (row->ids[j] == row->ids[i]) return "a token appears twice";
        if (!is_logprob(row->logprobs[i]) || !isfinite(row->logprobs[i])) return "a log-probability is not one";
        if (i && row->logprobs[i] > row->logprobs[i - 1]) return "its log-probabilities do not fall";
        mass += exp((double)row->logprobs[i]);
    }
    return fabs(mass - 1) < 1e-3 ? NULL : "its probabilities do not sum to one";
}

static calla_status check_rows(const record *r, const char *what, calla_error *err) {
    for (uint32_t i = 0; i < r->positions; i++) {
        row_top row;
        record_row(r, i, &row);
        const char *fault = find_fault(r, &row);
        if (fault) return error_set(err, CALLA_E_FORMAT, "%s: position %u: %s: the file is damaged, record it again", what, i, fault);
    }
    return CALLA_OK;
}

static calla_status check_about(const record *r, const char *what, calla_error *err) {
    json_object *about = NULL;
    calla_status status = json_parse(r->about, r->n_about, what, &about, err);
    if (!status && !json_object_is_type(about, json_type_object))
        status = error_set(err, CALLA_E_FORMAT, "%s: its description is not a JSON object: the file is damaged, record it again", what);
    json_object_put(about);
    return status;
}

calla_status record_parse(const char *data, size_t n, const char *what, record *out, calla_error *err) {
    const uint8_t *p = (const uint8_t *)data;
    *out = (record){0};
    if (n < HEADER_BYTES || memcmp(p, magic, sizeof magic) != 0)
        return error_set(err, CALLA_E_FORMAT, "%s: not a file that calla eval --record wrote", what);
    if (load_u32(p + 8) != VERSION)
        return error_set(err, CALLA_E_UNSUPPORTED, "%s: version %u of the format; this calla reads %d: record it again", what,
                         load_u32(p + 8), VERSION);
    record r = {.top = load_u32(p + 12),
                .vocabulary_rows = load_u32(p + 16),
                .positions = load_u32(p + 20),
                .window = load_u32(p + 24),
                .stride = load_u32(p + 28),
                .about = data + HEADER_BYTES,
                .n_about = load_u32(p + 40)};
    memcpy(&r.tokens, p + 32, 8);
    if (r.top < 1 || r.top > TOP_MAX || r.top > r.vocabulary_rows || r.vocabulary_rows > INT32_MAX || !r.positions || !r.stride ||
        r.stride > r.window || load_u32(p + 44) != 0)
        return error_set(err, CALLA_E_FORMAT, "%s: its header makes no sense: the file is damaged, record it again", what);
    const size_t left = n - HEADER_BYTES, need = row_bytes(r.top) * (size_t)r.positions; /* at most 2^42 */
    if (r.n_about > left || left - r.n_about != need)
        return error_set(err, CALLA_E_FORMAT, "%s: its size does not fit %u positions: the file is damaged, record it again", what,
                         r.positions);
    r.rows = p + HEADER_BYTES + r.n_about;
    calla_status status = check_about(&r, what, err);
    if (!status) status = check_rows(&r, what, err);
    if (!status) *out = r;
    return status;
}

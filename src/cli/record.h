/* record.h: the file that calla eval --record writes and --against reads: for each scored position the most likely tokens.
 *
 * Little-endian, at offset
 *    0  8 bytes "callaref"
 *    8  u32 version, 1
 *   12  u32 top: tokens of each position by name, 1 to 64
 *   16  u32 rows of the vocabulary
 *   20  u32 positions
 *   24  u32 window, u32 stride: as calla eval was told
 *   32  u64 tokens: FNV-1a over the ids that were given to the model, 4 bytes each, first to last
 *   40  u32 length of the description, u32 0
 *   48  the description: a JSON object that says what computed
 * and then for each position, without padding
 *       u32 target: the token that came next; f32 its log-probability
 *       f32 log-probability of all tokens that are not named; -infinity if they have none
 *       u32 ids [top], most likely first; f32 log-probabilities [top], falling
 * Log-probabilities are natural logarithms.  The file ends with the last position.
 *
 * A record that record_parse has accepted keeps all of that: ids below the vocabulary, log-probabilities that are numbers, fall, and
 * sum to one.  Knows nothing of engines. */
#ifndef CALLA_CLI_RECORD_H
#define CALLA_CLI_RECORD_H

#include "base/buffer.h"
#include "base/error.h"
#include "cli/distribution.h"

typedef struct record {
    uint32_t top, vocabulary_rows, positions, window, stride;
    uint64_t tokens;
    const char *about; /* [n_about] JSON */
    size_t n_about;
    const uint8_t *rows; /* private: [positions] */
} record;

/* data [n] must outlive *out; `what` names it in errors. */
calla_status record_parse(const char *data, size_t n, const char *what, record *out, calla_error *err);
void record_row(const record *r, uint32_t at, row_top *out);

/* FNV-1a over ids [n]. */
uint64_t record_hash_tokens(const int32_t *ids, size_t n);

/* Header and description of r (r->rows is not used), then one row after the other.  Each row has r->top tokens. */
void record_append_header(buffer *b, const record *r);
void record_append_row(buffer *b, const row_top *row);

#endif

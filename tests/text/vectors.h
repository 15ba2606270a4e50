/* vectors.h: what the tokenizer tests share: vectors [{"text", "ids"}, …] against a tokenizer, and CPU time. */
#ifndef CALLA_TESTS_TEXT_VECTORS_H
#define CALLA_TESTS_TEXT_VECTORS_H

#include "base/json.h"
#include "text/tokenizer.h"

json_object *vectors_read(const char *path);

/* Encodes text with added tokens matched everywhere, and says whether ids and the decoded bytes are those expected; prints the first
 * difference.  decoded NULL: not compared. */
bool vector_holds(const tokenizer *t, const char *name, json_object *text, json_object *ids, json_object *decoded);

/* Seconds of CPU time that encoding takes, the best of several runs; of fewer where sanitizers make it slow. */
double encode_seconds(const tokenizer *t, const char *text, size_t n, int runs);

double cpu_seconds(void);

#endif

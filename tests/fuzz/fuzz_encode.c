/* fuzz_encode.c: any bytes through pocket's tokenizer: what is not UTF-8 is refused; the rest comes back as its NFC, whether added
 * tokens were matched or not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static tokenizer *pocket; /* one for all runs */

static void open_pocket(void) {
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    calla_error err;
    if (!dir || tokenizer_open(dir, &pocket, &err)) abort();
    mem_free(dir);
}

static void check(const char *text, size_t n, text_origin origin, const char *expected, size_t n_expected) {
    calla_ids ids;
    calla_error err;
    if (tokenizer_encode(pocket, text, n, origin, &ids, &err)) abort();
    buffer decoded = {0}, normalized = {0};
    for (size_t i = 0; i < ids.n; i++) {
        size_t length = 0;
        const char *bytes = tokenizer_bytes(pocket, ids.ids[i], &length);
        if (!bytes || !length) abort();
        if (origin.runs && tokenizer_is_added(pocket, ids.ids[i])) abort(); /* all of it is content */
        buffer_append(&decoded, bytes, length);
    }
    mem_free(ids.ids);
    /* Beside an added token a mark may stay that NFC of the whole would join to it, so the whole is normalized once more. */
    const char *again;
    size_t n_again;
    if (decoded.failed || !nfc_normalize(decoded.n ? decoded.data : "", decoded.n, &normalized, &again, &n_again)) abort();
    if (n_again != n_expected || memcmp(again, expected, n_again) != 0) abort();
    if (origin.runs && decoded.n != n_expected) abort();
    buffer_free(&decoded);
    buffer_free(&normalized);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!pocket) open_pocket();
    const char *text = (const char *)data;
    if (utf8_valid(text, n) < n) {
        calla_ids ids;
        calla_error err;
        if (tokenizer_encode(pocket, text, n, (text_origin){0}, &ids, &err) != CALLA_E_FORMAT) abort();
        return 0;
    }
    buffer normalized = {0};
    const char *expected;
    size_t n_expected;
    if (!nfc_normalize(text, n, &normalized, &expected, &n_expected)) abort();
    const size_t runs[2] = {0, n};
    check(text, n, (text_origin){runs, 2}, expected, n_expected);
    check(text, n, (text_origin){0}, expected, n_expected);
    buffer_free(&normalized);
    return 0;
}

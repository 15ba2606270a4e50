/* fuzz_tokenizer_json.c: any bytes as tokenizer.json (up to the first NUL) and tokenizer_config.json (what follows) give an error with a
 * message or a tokenizer that works. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const tokenizer *t) {
    static const char text[] = "<end>abc abab e\xCC\x81t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87\n\n  123 "
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    calla_ids ids;
    calla_error err;
    if (tokenizer_encode(t, text, sizeof text - 1, (text_origin){0}, &ids, &err)) abort();
    for (size_t i = 0; i < ids.n; i++) {
        size_t length = 0;
        if ((uint32_t)ids.ids[i] >= tokenizer_vocabulary(t) || !tokenizer_bytes(t, ids.ids[i], &length) || !length) abort();
    }
    mem_free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    log_set_level(LOG_QUIET);
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    const tokenizer_file json = {(const char *)data, nul ? (size_t)(nul - data) : n, "tokenizer.json"};
    const tokenizer_file config = {nul ? (const char *)nul + 1 : NULL, nul ? n - json.n - 1 : 0, "tokenizer_config.json"};
    tokenizer *t;
    calla_error err = {0};
    const calla_status status = tokenizer_parse(&json, nul ? &config : NULL, &t, &err);
    if (status) {
        if (t || !err.message[0] || utf8_valid(err.message, strlen(err.message)) != strlen(err.message)) abort();
        return 0;
    }
    use(t);
    tokenizer_close(t);
    return 0;
}

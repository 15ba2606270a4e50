/* fuzz_responses_body.c: bytes → a request of the responses dialect, up to its prompt. */
#include "body.h"
#include "server/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    body_prepare(&responses_dialect, data, n);
    return 0;
}

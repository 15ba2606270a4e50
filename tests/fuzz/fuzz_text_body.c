/* fuzz_text_body.c: bytes → requests of the routes that take plain text, and the replies of those that need no engine. */
#include "body.h"
#include "server/text_completion.h"
#include "server/text_routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    body_prepare(&text_completion_dialect, data, n);
    body_prepare(&tokenize_dialect, data, n);
    body_prepare(&detokenize_dialect, data, n);
    body_prepare(&apply_template_dialect, data, n);
    return 0;
}

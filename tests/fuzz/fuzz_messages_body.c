/* fuzz_messages_body.c: bytes → the parser of messages requests and, where it accepts them, the chat template of the pocket model. */
#include <stdint.h>

#include "body.h"
#include "server/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    messages_request r = {0};
    api_error e;
    body_init(&r.conversation);
    body_check(&r.conversation, messages_request_read(&r.conversation, (const char *)data, n, &e), &e, messages_dialect.write_error);
    return 0;
}

/* fuzz_chat_body.c: bytes → the parser of chat requests and, where it accepts them, the chat template of the pocket model. */
#include <stdint.h>

#include "body.h"
#include "server/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    chat_request r = {0};
    api_error e;
    body_init(&r.conversation);
    body_check(&r.conversation, chat_request_read(&r, (const char *)data, n, &e), &e, chat_dialect.write_error);
    return 0;
}

/* byte_level.c: see byte_level.h.  GPT-2's table: the printable bytes of Latin-1 stand for themselves, the other 68, in order, are
 * U+0100, U+0101, … */
#include "text/byte_level.h"

#include "base/utf8.h"

void byte_level_init(byte_level *b) {
    for (int c = 0; c < BYTE_LEVEL_CODES; c++) b->byte_of[c] = -1;
    short other = 0x100;
    for (short byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        b->byte_of[printable ? byte : other++] = byte;
    }
}

bool byte_level_decode(const byte_level *b, const char *s, size_t n, buffer *out) {
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        const int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0 || cp >= BYTE_LEVEL_CODES || b->byte_of[cp] < 0) return false;
        buffer_append_char(out, (char)b->byte_of[cp]);
        i += (size_t)len;
    }
    return !out->failed;
}

/* utf8.c: see utf8.h. */
#include "base/utf8.h"

int utf8_decode(const char *s, size_t n, uint32_t *cp) {
    const unsigned char *p = (const unsigned char *)s;
    unsigned a = p[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    int len = a >= 0xC2 && a <= 0xDF ? 2 : (a & 0xF0) == 0xE0 ? 3 : a >= 0xF0 && a <= 0xF4 ? 4 : 0;
    if (!len) return 0;
    uint32_t v = a & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) return -1;
        unsigned c = p[i], low = 0x80, high = 0xBF;
        if (i == 1) { /* Unicode 16, table 3-7 */
            if (a == 0xE0) low = 0xA0;
            if (a == 0xED) high = 0x9F;
            if (a == 0xF0) low = 0x90;
            if (a == 0xF4) high = 0x8F;
        }
        if (c < low || c > high) return 0;
        v = v << 6 | (c & 0x3F);
    }
    *cp = v;
    return len;
}

int utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0) return i;
        i += (size_t)len;
    }
    return n;
}

/* test_utf8.c: every character goes through encode and decode; what RFC 3629 forbids is refused; cut characters are told apart. */
#include "../unit.h"

#include <string.h>

#include "base/utf8.h"

static void every_character_comes_back(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        char s[4];
        uint32_t back = 0;
        const int n = utf8_encode(cp, s);
        const int expected = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        if (n != expected || utf8_decode(s, (size_t)n, &back) != n || back != cp) fail_msg("U+%04X", cp);
        for (int cut = 1; cut < n; cut++)
            if (utf8_decode(s, (size_t)cut, &back) != -1 || utf8_valid(s, (size_t)cut) != 0) fail_msg("U+%04X cut after %d", cp, cut);
    }
}

/* All sequences of two bytes, and three for each lead byte of three, against the ranges of Unicode 16's table 3-7. */
static void the_second_byte_decides(void **state) {
    (void)state;
    for (unsigned a = 0x80; a <= 0xFF; a++)
        for (unsigned b = 0; b <= 0xFF; b++) {
            const char s[4] = {(char)a, (char)b, (char)0x80, (char)0x80};
            const bool continues = b >= 0x80 && b <= 0xBF;
            int expected = 0;
            if (a >= 0xC2 && a <= 0xDF && continues)
                expected = 2;
            else if (a == 0xE0)
                expected = b >= 0xA0 && b <= 0xBF ? 3 : 0;
            else if (a == 0xED)
                expected = b >= 0x80 && b <= 0x9F ? 3 : 0;
            else if (a >= 0xE1 && a <= 0xEF)
                expected = continues ? 3 : 0;
            else if (a == 0xF0)
                expected = b >= 0x90 && b <= 0xBF ? 4 : 0;
            else if (a >= 0xF1 && a <= 0xF3)
                expected = continues ? 4 : 0;
            else if (a == 0xF4)
                expected = b >= 0x80 && b <= 0x8F ? 4 : 0;
            uint32_t cp;
            if (utf8_decode(s, 4, &cp) != expected) fail_msg("%02x %02x", a, b);
        }
}

static void finds_the_first_invalid_byte(void **state) {
    (void)state;
    assert_int_equal(utf8_valid("", 0), 0);
    assert_int_equal(utf8_valid("abc", 3), 3);
    assert_int_equal(utf8_valid("a\xC3\xA9z", 4), 4);
    assert_int_equal(utf8_valid("a\xC3z", 3), 1);
    assert_int_equal(utf8_valid("ab\xE4\xB8", 4), 2);
    assert_int_equal(utf8_valid("ab\xED\xA0\x80", 5), 2);
    assert_int_equal(utf8_valid("\xE4\xB8\xAD\x80", 4), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_comes_back),
        cmocka_unit_test(the_second_byte_decides),
        cmocka_unit_test(finds_the_first_invalid_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

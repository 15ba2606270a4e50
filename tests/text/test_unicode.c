/* test_unicode.c: the class tables hold what Unicode 16.0 says: totals, edges, and characters that told versions apart. */
#include "../unit.h"

#include "text/unicode.h"

/* Totals of DerivedGeneralCategory 16.0 and PropList 16.0. */
static void test_totals(void **state) {
    (void)state;
    unsigned count[UNICODE_CLASSES] = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp++) count[unicode_class_of(cp)]++;
    assert_int_equal(count[UNICODE_LETTER], 141028);
    assert_int_equal(count[UNICODE_MARK], 2501);
    assert_int_equal(count[UNICODE_NUMBER], 1911);
    assert_int_equal(count[UNICODE_SPACE] + count[UNICODE_NEWLINE], 25);
    assert_int_equal(count[UNICODE_NEWLINE], 2);
}

static void test_characters(void **state) {
    (void)state;
    static const struct {
        uint32_t cp;
        unicode_class class;
    } cases[] = {
        {0, UNICODE_OTHER},
        {'\t', UNICODE_SPACE},
        {'\n', UNICODE_NEWLINE},
        {0x0B, UNICODE_SPACE},
        {'\r', UNICODE_NEWLINE},
        {0x1C, UNICODE_OTHER},
        {' ', UNICODE_SPACE},
        {'0', UNICODE_NUMBER},
        {'9', UNICODE_NUMBER},
        {':', UNICODE_OTHER},
        {'A', UNICODE_LETTER},
        {'_', UNICODE_OTHER},
        {'z', UNICODE_LETTER},
        {0x7F, UNICODE_OTHER},
        {0x85, UNICODE_SPACE},
        {0xA0, UNICODE_SPACE},
        {0xAA, UNICODE_LETTER},
        {0xB2, UNICODE_NUMBER},
        {0xD7, UNICODE_OTHER},
        {0x17F, UNICODE_LETTER},
        {0x300, UNICODE_MARK},
        {0x345, UNICODE_MARK},
        {0x903, UNICODE_MARK},
        {0xE38, UNICODE_MARK},
        {0x1680, UNICODE_SPACE},
        {0x180E, UNICODE_OTHER},
        {0x200A, UNICODE_SPACE},
        {0x200B, UNICODE_OTHER},
        {0x200D, UNICODE_OTHER},
        {0x2028, UNICODE_SPACE},
        {0x2029, UNICODE_SPACE},
        {0x202F, UNICODE_SPACE},
        {0x205F, UNICODE_SPACE},
        {0x2160, UNICODE_NUMBER},
        {0x20E3, UNICODE_MARK},
        {0x24B6, UNICODE_OTHER},
        {0x3000, UNICODE_SPACE},
        {0x3400, UNICODE_LETTER},
        {0x4DBF, UNICODE_LETTER},
        {0xAC00, UNICODE_LETTER},
        {0xD7A3, UNICODE_LETTER},
        {0xD7A4, UNICODE_OTHER},
        {0xE000, UNICODE_OTHER},
        {0xFE0F, UNICODE_MARK},
        {0xFEFF, UNICODE_OTHER},
        {0xFFFD, UNICODE_OTHER},
        {0x105D2, UNICODE_LETTER} /* new in 16.0 */,
        {0x16D43, UNICODE_LETTER} /* new in 16.0 */,
        {0x1F600, UNICODE_OTHER},
        {0x1FBF0, UNICODE_NUMBER},
        {0x20000, UNICODE_LETTER},
        {0x323AF, UNICODE_LETTER},
        {0x323B0, UNICODE_OTHER} /* a letter from 17.0 on */,
        {0xE0100, UNICODE_MARK},
        {0x10FFFF, UNICODE_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (unicode_class_of(cases[i].cp) != cases[i].class)
            fail_msg("U+%04X has class %d, not %d", (unsigned)cases[i].cp, (int)unicode_class_of(cases[i].cp), (int)cases[i].class);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_totals), cmocka_unit_test(test_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

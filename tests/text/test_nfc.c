/* test_nfc.c: normalization against Unicode's own test file (characters of version 9.0), Hangul by its arithmetic, what later versions
 * added staying as it is, and time on hostile text.
 *
 * usage: test_nfc NFC_VECTORS */
#include "../unit.h"

#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "vectors.h"

static const char *vectors_path;
static buffer work;

static void assert_nfc(const char *s, size_t n, const char *expected, size_t n_expected) {
    const char *text;
    size_t n_text;
    assert_true(nfc_normalize(s, n, &work, &text, &n_text));
    if (n_text != n_expected || memcmp(text, expected, n_text) != 0)
        fail_msg("NFC(\"%.*s\") is \"%.*s\", not \"%.*s\"", (int)n, s, (int)n_text, text, (int)n_expected, expected);
}

static void assert_nfc_str(const char *s, const char *expected) { assert_nfc(s, strlen(s), expected, strlen(expected)); }

/* Each line alone, and between neighbours that join nothing. */
static void test_unicode_vectors(void **state) {
    (void)state;
    calla_error err;
    char *data;
    size_t n, lines = 0;
    if (file_read(vectors_path, 1 << 20, &data, &n, &err)) fail_msg("%s", err.message);
    for (char *line = data, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        *end = 0;
        char *tab = strchr(line, '\t');
        assert_non_null(tab);
        *tab = 0;
        assert_nfc_str(line, tab + 1);
        char around[256], expected[256];
        snprintf(around, sizeof around, "a\xE4\xB8\xAD%s\xE4\xB8\xAD%sz", line, line);
        snprintf(expected, sizeof expected, "a\xE4\xB8\xAD%s\xE4\xB8\xAD%sz", tab + 1, tab + 1);
        assert_nfc_str(around, expected);
    }
    mem_free(data);
    assert_int_equal(lines, 11994);
}

static void test_hangul(void **state) {
    (void)state;
    for (uint32_t l = 0; l < 19; l++) {
        for (uint32_t v = 0; v < 21; v++) {
            for (uint32_t t = 0; t < 28; t++) {
                char jamo[16], syllable[4], lv_t[8];
                size_t n = (size_t)utf8_encode(0x1100 + l, jamo);
                n += (size_t)utf8_encode(0x1161 + v, jamo + n);
                if (t) n += (size_t)utf8_encode(0x11A7 + t, jamo + n);
                const size_t n_syllable = (size_t)utf8_encode(0xAC00 + (l * 21 + v) * 28 + t, syllable);
                assert_nfc(jamo, n, syllable, n_syllable);
                assert_nfc(syllable, n_syllable, syllable, n_syllable);
                size_t n_lv = (size_t)utf8_encode(0xAC00 + (l * 21 + v) * 28, lv_t);
                if (t) n_lv += (size_t)utf8_encode(0x11A7 + t, lv_t + n_lv);
                assert_nfc(lv_t, n_lv, syllable, n_syllable);
            }
        }
    }
    assert_nfc_str("\xEA\xB0\x81\xE1\x86\xA8", "\xEA\xB0\x81\xE1\x86\xA8"); /* LVT + T stays */
    assert_nfc_str("\xEA\xB0\x80\xE1\x86\xA7", "\xEA\xB0\x80\xE1\x86\xA7"); /* U+11A7 is no T */
}

/* Composed by later versions of Unicode, not by the reference. */
static void test_later_characters_stay(void **state) {
    (void)state;
    static const char *const same[] = {
        "\xF0\x90\x97\x92\xCC\x87",         /* U+105D2 U+0307: 16.0 */
        "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", /* U+11935 U+11930: 13.0 */
        "\xF0\x91\xA4\xB8",                 /* U+11938, what they compose to */
        "a\xE1\xAA\xBF\xCC\x81",            /* U+1ABF, class 220, is unassigned there and stands between */
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) assert_nfc_str(same[i], same[i]);
    assert_nfc_str("\xF0\x90\x97\x92\xCC\x87 e\xCC\x81", "\xF0\x90\x97\x92\xCC\x87 \xC3\xA9");
}

/* Normal text is not copied. */
static void test_normal_text_is_returned_as_it_is(void **state) {
    (void)state;
    static const char *const normal[] = {
        "", "plain", "caf\xC3\xA9 \xC4\xB0", "\xE4\xB8\xAD\xE6\x96\x87", "x\xE0\xB8\xB8\xCC\x96", "\xF0\x9F\x98\x80"};
    for (size_t i = 0; i < sizeof normal / sizeof *normal; i++) {
        const char *text;
        size_t n_text;
        assert_true(nfc_normalize(normal[i], strlen(normal[i]), &work, &text, &n_text));
        assert_ptr_equal(text, normal[i]);
        assert_int_equal(n_text, strlen(normal[i]));
    }
}

static size_t random_text(uint64_t *seed, char *out) {
    static const uint32_t pool[] = {'a',    'e',    ' ',    0xE9,    0x1E69,  0x73,   0x323,  0x307, 0x301,  0x345,
                                    0x344,  0x1100, 0x1161, 0x11A8,  0xAC00,  0xAC01, 0xE38,  0x94D, 0x9C7,  0x9BE,
                                    0x212B, 0xF73,  0xF71,  0x1D15E, 0x1F600, 0x4E2D, 0xFB1D, 0x5B4, 0x105D2};
    size_t n = 0;
    for (uint64_t length = 1 + random_mix(++*seed) % 12; length--;)
        n += (size_t)utf8_encode(pool[random_mix(++*seed) % (sizeof pool / sizeof *pool)], out + n);
    return n;
}

/* Twice is once, and cutting the work by a stable starter changes nothing. */
static void test_idempotent_and_local(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        char a[64], b[64], joined[256], na[256], nb[256], expected[600];
        const size_t n_a = random_text(&seed, a), n_b = random_text(&seed, b);
        const char *text;
        size_t n_na, n_nb;
        assert_true(nfc_normalize(a, n_a, &work, &text, &n_na));
        memcpy(na, text, n_na);
        assert_nfc(na, n_na, na, n_na);
        char with_x[80] = "x"; /* so that b begins behind a starter that nothing of the pool joins but marks, as in the joined text */
        memcpy(with_x + 1, b, n_b);
        assert_true(nfc_normalize(with_x, n_b + 1, &work, &text, &n_nb));
        memcpy(nb, text, n_nb);
        memcpy(joined, a, n_a);
        memcpy(joined + n_a, with_x, n_b + 1);
        memcpy(expected, na, n_na);
        memcpy(expected + n_na, nb, n_nb);
        assert_nfc(joined, n_a + n_b + 1, expected, n_na + n_nb);
    }
}

/* A million marks behind one letter, in descending order of class: ordering them must not be quadratic. */
static void test_many_marks(void **state) {
    (void)state;
    enum { HALF = 500000 };
    const size_t n = 1 + 4 * (size_t)HALF;
    char *text = mem_alloc(n), *expected = mem_alloc(n);
    assert_non_null(text);
    assert_non_null(expected);
    text[0] = expected[0] = 'q';
    for (size_t i = 0; i < HALF; i++) {
        memcpy(text + 1 + 4 * i, "\xCC\x81\xCC\xA4", 4); /* classes 230, 220 */
        memcpy(expected + 1 + 2 * i, "\xCC\xA4", 2);
        memcpy(expected + 1 + 2 * HALF + 2 * i, "\xCC\x81", 2);
    }
    const double start = cpu_seconds();
    const char *out;
    size_t n_out;
    assert_true(nfc_normalize(text, n, &work, &out, &n_out));
    const double seconds = cpu_seconds() - start;
    assert_int_equal(n_out, n);
    assert_memory_equal(out, expected, n);
    printf("2 MB of marks: %.3f s\n", seconds);
    assert_true(seconds < 5); /* insertion would take minutes */
    mem_free(text);
    mem_free(expected);
}

static int fail_from(void *user, uint64_t number) { return number >= *(uint64_t *)user; }

static void test_out_of_memory(void **state) {
    (void)state;
    const char *s = "e\xCC\x81";
    for (uint64_t allowed = 0;; allowed++) {
        buffer out = {0};
        const char *text;
        size_t n;
        uint64_t first = mem_allocations() + allowed;
        mem_set_failure(fail_from, &first);
        const bool ok = nfc_normalize(s, strlen(s), &out, &text, &n);
        mem_set_failure(NULL, NULL);
        buffer_free(&out);
        if (!ok) continue;
        assert_true(allowed > 0);
        break;
    }
}

static int free_work(void **state) {
    (void)state;
    buffer_free(&work);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s NFC_VECTORS\n", argv[0]), 2;
    vectors_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unicode_vectors),       cmocka_unit_test(test_hangul),
        cmocka_unit_test(test_later_characters_stay), cmocka_unit_test(test_normal_text_is_returned_as_it_is),
        cmocka_unit_test(test_idempotent_and_local),  cmocka_unit_test(test_many_marks),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, free_work);
}

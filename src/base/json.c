/* json.c: the strict pull reader of json.h.
 *
 * Owns the grammar and nothing else: no tree, no meaning.  It must not allocate for what needs no decoding (a tokenizer.json of 20 MB
 * is read through it), and it never looks at data[n].  Invariant: once a call returned JSON_ERROR, all later calls do. */
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { BEFORE_VALUE, FIRST_VALUE, FIRST_KEY, NEXT_KEY, AFTER_VALUE, FAILED }; /* json_reader.state: what may come next */

void json_reader_init(json_reader *r, const char *data, size_t n) {
    memset(r, 0, sizeof *r);
    r->data = data;
    r->n = n;
    r->scratch.max = n ? n : 1; /* no escape is shorter than what it stands for */
}

void json_reader_free(json_reader *r) { buffer_free(&r->scratch); }

__attribute__((format(printf, 3, 4))) static json_token fail(json_reader *r, size_t at, const char *format, ...) {
    int n = snprintf(r->error, sizeof r->error, "byte %zu: ", at);
    va_list ap;
    va_start(ap, format);
    vsnprintf(r->error + n, sizeof r->error - (size_t)n, format, ap);
    va_end(ap);
    r->state = FAILED;
    return JSON_ERROR;
}

static json_token fail_memory(json_reader *r, size_t at) {
    r->scratch.failed = true;
    return fail(r, at, "out of memory while decoding a string");
}

/* What stands at `at`, for messages. */
static json_token fail_expected(json_reader *r, const char *expected) {
    if (r->at >= r->n) return fail(r, r->at, "the text ends where %s is expected", expected);
    const unsigned char c = (unsigned char)r->data[r->at];
    if (c > 0x20 && c < 0x7F) return fail(r, r->at, "%s is expected, not '%c'", expected, c);
    return fail(r, r->at, "%s is expected, not the byte 0x%02x", expected, c);
}

static void skip_space(json_reader *r) {
    while (r->at < r->n) {
        const char c = r->data[r->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
        r->at++;
    }
}

static bool at_char(const json_reader *r, char c) { return r->at < r->n && r->data[r->at] == c; }

static bool in_object(const json_reader *r) { return r->kinds[(r->depth - 1) / 64] >> ((r->depth - 1) % 64) & 1; }

/* ------------------------------------------------------------- strings --------------------------------------------------- */

static bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

/* How many bytes at the start of s [n] stand for themselves and are ASCII.  Eight at a time: in each word the lowest byte that is a
 * control character, non-ASCII, a quote or a backslash gets its high bit set in `hit` (bytes above it may, falsely; the loop below
 * it is exact). */
static size_t plain_run(const char *s, size_t n) {
    const uint64_t ones = 0x0101010101010101u, high = ones << 7;
    size_t i = 0;
    for (; n - i >= 8; i += 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        const uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
        const uint64_t hit = w | (w - ones * 0x20) | (quote - ones) | (slash - ones);
        if (hit & high) break;
    }
    while (i < n && is_plain((unsigned char)s[i])) i++;
    return i;
}

/* Four hexadecimal digits at data[at], or -1. */
static int read_hex4(const json_reader *r, size_t at) {
    if (at > r->n || r->n - at < 4) return -1;
    int v = 0;
    for (size_t i = at; i < at + 4; i++) {
        const char c = r->data[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* The escape at data[at] (a backslash) → scratch; false after fail(). */
static bool read_escape(json_reader *r) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const size_t at = r->at;
    const char c = at + 1 < r->n ? r->data[at + 1] : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        buffer_append_char(&r->scratch, to[simple - from]);
        r->at += 2;
        return true;
    }
    int unit = c == 'u' ? read_hex4(r, at + 2) : -1;
    if (unit < 0) return fail(r, at, "an escape that is none of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX"), false;
    r->at += 6;
    uint32_t cp = (uint32_t)unit;
    if (cp >= 0xD800 && cp < 0xE000) { /* half of a surrogate pair: alone it becomes U+FFFD */
        int low = -1;
        if (cp < 0xDC00 && r->n - r->at >= 6 && r->data[r->at] == '\\' && r->data[r->at + 1] == 'u') low = read_hex4(r, r->at + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
            r->at += 6;
        } else {
            cp = 0xFFFD;
        }
    }
    char utf8[4];
    buffer_append(&r->scratch, utf8, (size_t)utf8_encode(cp, utf8));
    return true;
}

/* The string at data[at] (a quote) → text. */
static bool read_string(json_reader *r) {
    const size_t start = ++r->at;
    size_t pending = start; /* bytes from here to at are not in scratch yet */
    bool escaped = false;
    buffer_clear(&r->scratch);
    for (;;) {
        r->at += plain_run(r->data + r->at, r->n - r->at);
        if (r->at >= r->n) return fail(r, start - 1, "a string that does not end"), false;
        const unsigned char c = (unsigned char)r->data[r->at];
        if (c == '"') break;
        if (c == '\\') {
            buffer_append(&r->scratch, r->data + pending, r->at - pending);
            escaped = true;
            if (!read_escape(r)) return false;
            pending = r->at;
        } else if (c < 0x20) {
            return fail(r, r->at, "a raw control character in a string: write it as \\u%04x", c), false;
        } else {
            uint32_t cp;
            const int len = utf8_decode(r->data + r->at, r->n - r->at, &cp);
            if (len <= 0) return fail(r, r->at, "invalid UTF-8 (0x%02x)", c), false;
            r->at += (size_t)len;
        }
    }
    if (escaped) {
        buffer_append(&r->scratch, r->data + pending, r->at - pending);
        if (r->scratch.failed) return fail_memory(r, start), false;
        r->text = r->scratch.data;
        r->n_text = r->scratch.n;
    } else {
        r->text = r->data + start;
        r->n_text = r->at - start;
    }
    r->at++;
    return true;
}

static json_token read_key(json_reader *r) {
    if (!at_char(r, '"')) return fail_expected(r, r->state == FIRST_KEY ? "a key in quotes or '}'" : "a key in quotes");
    const size_t start = r->at;
    if (!read_string(r)) return JSON_ERROR;
    if (memchr(r->text, 0, r->n_text)) return fail(r, start, "a key with \\u0000 in it is not accepted");
    skip_space(r);
    if (!at_char(r, ':')) return fail_expected(r, "':' after the key");
    r->at++;
    r->state = BEFORE_VALUE;
    return JSON_KEY;
}

/* ------------------------------------------------------------- numbers --------------------------------------------------- */

static size_t skip_digits(json_reader *r) {
    const size_t start = r->at;
    while (r->at < r->n && r->data[r->at] >= '0' && r->data[r->at] <= '9') r->at++;
    return r->at - start;
}

/* The digits of an integer → integer, unsigned_integer and which of them holds it; false if neither does. */
static bool read_integer(json_reader *r, const char *digits, size_t n, bool negative) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(digits[i] - '0'), &v)) return false;
    r->fits_signed = v <= (negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX);
    r->fits_unsigned = !negative || v == 0;
    r->integer = !r->fits_signed ? 0 : negative ? (int64_t)(0 - v) : (int64_t)v;
    r->unsigned_integer = r->fits_unsigned ? v : 0;
    return r->fits_signed || r->fits_unsigned;
}

static json_token read_number(json_reader *r) {
    const size_t start = r->at;
    const bool negative = r->data[r->at] == '-';
    if (negative) r->at++;
    const size_t digits = r->at;
    if (!skip_digits(r)) return fail_expected(r, "a digit");
    if (r->data[digits] == '0' && r->at - digits > 1) return fail(r, start, "a number with leading zeros");
    const size_t n_digits = r->at - digits;
    r->is_integer = true;
    if (at_char(r, '.')) {
        r->at++;
        r->is_integer = false;
        if (!skip_digits(r)) return fail_expected(r, "a digit after the point");
    }
    if (at_char(r, 'e') || at_char(r, 'E')) {
        r->at++;
        r->is_integer = false;
        if (at_char(r, '+') || at_char(r, '-')) r->at++;
        if (!skip_digits(r)) return fail_expected(r, "a digit of the exponent");
    }
    r->fits_signed = r->fits_unsigned = false;
    if (r->is_integer && !read_integer(r, r->data + digits, n_digits, negative))
        return fail(r, start, "an integer outside 64 bits: write it as a string or with a decimal point");
    r->text = r->data + start;
    r->n_text = r->at - start;
    r->state = AFTER_VALUE;
    return JSON_NUMBER;
}

/* ------------------------------------------------------------- structure ------------------------------------------------- */

static json_token open_level(json_reader *r, bool object) {
    if (r->depth == JSON_MAX_DEPTH) return fail(r, r->at, "nesting deeper than %d levels", JSON_MAX_DEPTH);
    const uint64_t bit = (uint64_t)1 << (r->depth % 64);
    uint64_t *kinds = &r->kinds[r->depth / 64];
    *kinds = object ? *kinds | bit : *kinds & ~bit;
    r->depth++;
    r->at++;
    r->state = object ? FIRST_KEY : FIRST_VALUE;
    return object ? JSON_OBJECT_BEGIN : JSON_ARRAY_BEGIN;
}

static json_token close_level(json_reader *r) {
    const bool object = in_object(r);
    r->depth--;
    r->at++;
    r->state = AFTER_VALUE;
    return object ? JSON_OBJECT_END : JSON_ARRAY_END;
}

static json_token read_word(json_reader *r, const char *word, json_token token) {
    const size_t n = strlen(word);
    if (r->n - r->at < n || memcmp(r->data + r->at, word, n) != 0) return fail_expected(r, "a value");
    r->at += n;
    r->state = AFTER_VALUE;
    return token;
}

static json_token read_value(json_reader *r) {
    const char c = r->at < r->n ? r->data[r->at] : 0;
    switch (c) {
    case '{': return open_level(r, true);
    case '[': return open_level(r, false);
    case '"':
        if (!read_string(r)) return JSON_ERROR;
        r->state = AFTER_VALUE;
        return JSON_STRING;
    case 't': return read_word(r, "true", JSON_TRUE);
    case 'f': return read_word(r, "false", JSON_FALSE);
    case 'n': return read_word(r, "null", JSON_NULL);
    default:
        if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
        return fail_expected(r, r->state == FIRST_VALUE ? "a value or ']'" : "a value");
    }
}

json_token json_next(json_reader *r) {
    if (r->state == FAILED) return JSON_ERROR;
    skip_space(r);
    if (r->state == AFTER_VALUE) {
        if (r->depth == 0) {
            if (r->at == r->n) return JSON_END;
            return fail(r, r->at, "more text after the end of the value");
        }
        const bool object = in_object(r);
        if (at_char(r, object ? '}' : ']')) return close_level(r);
        if (!at_char(r, ',')) return fail_expected(r, object ? "',' or '}'" : "',' or ']'");
        r->at++;
        r->state = object ? NEXT_KEY : BEFORE_VALUE;
        skip_space(r);
    } else if ((r->state == FIRST_KEY && at_char(r, '}')) || (r->state == FIRST_VALUE && at_char(r, ']'))) {
        return close_level(r);
    }
    return r->state == FIRST_KEY || r->state == NEXT_KEY ? read_key(r) : read_value(r);
}

bool json_skip(json_reader *r, json_token token) {
    if (token == JSON_ERROR) return false;
    if (token != JSON_OBJECT_BEGIN && token != JSON_ARRAY_BEGIN) return true;
    const unsigned depth = r->depth - 1;
    while (r->depth > depth)
        if (json_next(r) == JSON_ERROR) return false;
    return true;
}

/* nfc.c: see nfc.h.
 *
 * The text is cut into spans at stable starters: characters of combining class 0 that may stand in NFC and never join the one before
 * them (kind 0 of the tables; the generator checks that the same holds for what they decompose into).  Nothing crosses such a cut, so
 * a span is looked at alone, and most are normal as they stand: only the others are decomposed, ordered and composed (Unicode
 * Standard Annex 15; chapter 3.11 of the standard, D108 to D117). */
#include "text/nfc.h"

#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "text/nfc_tables.h"

enum { /* chapter 3.12: Hangul syllables are composed by arithmetic */
       HANGUL_S = 0xAC00,
       HANGUL_L = 0x1100,
       HANGUL_V = 0x1161,
       HANGUL_T = 0x11A7,
       HANGUL_LS = 19,
       HANGUL_VS = 21,
       HANGUL_TS = 28,
       HANGUL_SS = HANGUL_LS * HANGUL_VS * HANGUL_TS
};

/* One code point of a span, with its combining class in the high byte: comparing classes needs no second table access. */
typedef uint32_t point;
static unsigned point_class(point p) { return p >> 24; }
static uint32_t point_code(point p) { return p & 0xFFFFFF; }

typedef struct span {
    point *points; /* [n] */
    size_t n, cap;
    point *sorted; /* room for reordering long runs */
    size_t cap_sorted;
} span;

static nfc_kind kind_of(uint32_t cp) { return nfc_kinds[nfc_kind_of[(unsigned)nfc_block[cp >> NFC_SHIFT] << NFC_SHIFT | (cp & NFC_MASK)]]; }

static const nfc_decomposition *find_decomposition(uint32_t cp) {
    size_t low = 0, high = nfc_n_decompositions;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (nfc_decompositions[mid].whole < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < nfc_n_decompositions && nfc_decompositions[low].whole == cp ? &nfc_decompositions[low] : NULL;
}

/* What first and second compose into, or 0. */
static uint32_t compose(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < HANGUL_LS && second - HANGUL_V < HANGUL_VS)
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_VS + (second - HANGUL_V)) * HANGUL_TS;
    if (first - HANGUL_S < HANGUL_SS && (first - HANGUL_S) % HANGUL_TS == 0 && second - HANGUL_T - 1 < HANGUL_TS - 1)
        return first + (second - HANGUL_T);
    size_t low = 0, high = nfc_n_compositions;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const nfc_decomposition *d = &nfc_decompositions[nfc_compositions[mid]];
        if (d->first == first && d->second == second) return d->whole;
        if (d->first < first || (d->first == first && d->second < second))
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

static bool append_point(span *s, uint32_t cp) {
    if (s->n == s->cap && mem_grow(&s->points, &s->cap, s->n + 1, sizeof *s->points, SIZE_MAX / sizeof *s->points)) return false;
    s->points[s->n++] = (uint32_t)kind_of(cp).combining << 24 | cp;
    return true;
}

/* Appends the full canonical decomposition.  Chains are short: the first part may decompose again, the second never does so for more
 * than one step. */
static bool append_decomposed(span *s, uint32_t cp) {
    if (cp - HANGUL_S < HANGUL_SS) {
        const uint32_t index = cp - HANGUL_S, t = index % HANGUL_TS;
        return append_point(s, HANGUL_L + index / (HANGUL_VS * HANGUL_TS)) &&
               append_point(s, HANGUL_V + index % (HANGUL_VS * HANGUL_TS) / HANGUL_TS) && (!t || append_point(s, HANGUL_T + t));
    }
    const nfc_decomposition *d = find_decomposition(cp);
    if (!d) return append_point(s, cp);
    return append_decomposed(s, d->first) && (!d->second || append_decomposed(s, d->second));
}

/* Stable sort of p [n] by combining class: by insertion while short, else by counting, so that a run of a million marks stays cheap. */
static bool sort_run(span *s, point *p, size_t n) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            const point moved = p[i];
            size_t j = i;
            for (; j && point_class(p[j - 1]) > point_class(moved); j--) p[j] = p[j - 1];
            p[j] = moved;
        }
        return true;
    }
    if (n > s->cap_sorted && mem_grow(&s->sorted, &s->cap_sorted, n, sizeof *s->sorted, SIZE_MAX / sizeof *s->sorted)) return false;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[point_class(p[i]) + 1]++;
    for (size_t c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) s->sorted[start[point_class(p[i])]++] = p[i];
    memcpy(p, s->sorted, n * sizeof *p);
    return true;
}

static bool reorder(span *s) {
    for (size_t i = 0; i < s->n;) {
        if (!point_class(s->points[i])) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < s->n && point_class(s->points[end])) end++;
        if (!sort_run(s, s->points + i, end - i)) return false;
        i = end;
    }
    return true;
}

/* D117: each character joins the last starter if nothing between them is a starter or of its own class or a higher one. */
static void compose_all(span *s) {
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < s->n; i++) {
        const point p = s->points[i];
        if (starter != SIZE_MAX && (kept == starter + 1 || point_class(s->points[kept - 1]) < point_class(p))) {
            const uint32_t whole = compose(point_code(s->points[starter]), point_code(p));
            if (whole) { /* always a starter itself */
                s->points[starter] = whole;
                continue;
            }
        }
        if (!point_class(p)) starter = kept;
        s->points[kept++] = p;
    }
    s->n = kept;
}

static bool append_normalized(span *s, const char *text, size_t n, buffer *out) {
    s->n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const int len = utf8_decode(text + i, n - i, &cp);
        if (!append_decomposed(s, cp)) return false;
        i += (size_t)len;
    }
    if (!reorder(s)) return false;
    compose_all(s);
    for (size_t i = 0; i < s->n; i++) {
        char bytes[4];
        buffer_append(out, bytes, (size_t)utf8_encode(point_code(s->points[i]), bytes));
    }
    return !out->failed;
}

/* Looks at every character once, appending spans that change in their new form and all between them as it stands. */
static bool normalize(span *s, const char *text, size_t n, size_t at, buffer *out, size_t *copied) {
    size_t start = at; /* of the span */
    unsigned last = 0; /* combining class of the character before */
    bool normal = true;
    while (at < n) {
        uint32_t cp = (unsigned char)text[at];
        const size_t len = cp < 0x80 ? 1 : (size_t)utf8_decode(text + at, n - at, &cp);
        const nfc_kind kind = cp < 0x300 ? (nfc_kind){0, 0} : kind_of(cp);
        if (!kind.combining && !kind.may_change) {
            if (!normal) {
                buffer_append(out, text + *copied, start - *copied);
                if (!append_normalized(s, text + start, at - start, out)) return false;
                *copied = at;
            }
            start = at;
            normal = true;
        } else if (kind.may_change || kind.combining < last) {
            normal = false;
        }
        last = kind.combining;
        at += len;
    }
    if (!normal) {
        buffer_append(out, text + *copied, start - *copied);
        if (!append_normalized(s, text + start, n - start, out)) return false;
        *copied = n;
    }
    return true;
}

bool nfc_normalize(const char *s, size_t n, buffer *out, const char **text, size_t *n_text) {
    *text = s;
    *n_text = n;
    /* Below U+0300 everything is normal: its UTF-8 has no byte from 0xCC up. */
    size_t plain = 0;
    while (plain < n && (unsigned char)s[plain] < 0xCC) plain++;
    if (plain == n) return true;
    /* The span may begin with the character before. */
    if (plain) plain--;
    while (plain && ((unsigned char)s[plain] & 0xC0) == 0x80) plain--;

    buffer_clear(out);
    span work = {0};
    size_t copied = 0;
    bool ok = normalize(&work, s, n, plain, out, &copied);
    mem_free(work.points);
    mem_free(work.sorted);
    if (ok && copied) {
        buffer_append(out, s + copied, n - copied);
        *text = out->data;
        *n_text = out->n;
        ok = !out->failed;
    }
    return ok;
}

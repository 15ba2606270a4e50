/* added.c: see added.h.  The sorted array is searched as if it were a trie: with each byte of the text the range of tokens that agree so
 * far gets narrower. */
#include "text/added.h"

#include <string.h>

#include "base/memory.h"

void added_free(added_tokens *a) {
    mem_free(a->ids);
    memset(a, 0, sizeof *a);
}

bool added_append(added_tokens *a, int32_t id) {
    if (mem_grow(&a->ids, &a->cap, a->n + 1, sizeof *a->ids, INT32_MAX)) return false;
    a->ids[a->n++] = id;
    return true;
}

static int compare(const vocabulary *v, int32_t id, const char *s, size_t n) {
    size_t n_id = 0;
    const char *bytes = vocabulary_get(v, id, &n_id);
    const int order = memcmp(bytes, s, n_id < n ? n_id : n);
    return order ? order : (n_id > n) - (n_id < n);
}

static void sift_down(const added_tokens *a, const vocabulary *v, size_t at, size_t n) {
    const int32_t moved = a->ids[at];
    size_t n_moved = 0;
    const char *bytes = vocabulary_get(v, moved, &n_moved);
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n) {
            size_t n_right = 0;
            const char *right = vocabulary_get(v, a->ids[child + 1], &n_right);
            if (compare(v, a->ids[child], right, n_right) < 0) child++;
        }
        if (compare(v, a->ids[child], bytes, n_moved) <= 0) break;
        a->ids[at] = a->ids[child];
    }
    a->ids[at] = moved;
}

void added_seal(added_tokens *a, const vocabulary *v) {
    for (size_t i = a->n / 2; i--;) sift_down(a, v, i, a->n);
    for (size_t i = a->n; i-- > 1;) {
        const int32_t largest = a->ids[0];
        a->ids[0] = a->ids[i];
        a->ids[i] = largest;
        sift_down(a, v, 0, i);
    }
    for (size_t i = 0; i < a->n; i++) {
        size_t n;
        a->first[(unsigned char)vocabulary_get(v, a->ids[i], &n)[0]] = true;
    }
}

int32_t added_exact(const added_tokens *a, const vocabulary *v, const char *s, size_t n) {
    size_t low = 0, high = a->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = compare(v, a->ids[mid], s, n);
        if (!order) return a->ids[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

/* The byte of a token at `depth`, or -1 past its end: shorter tokens sort first. */
static int byte_at(const vocabulary *v, int32_t id, size_t depth) {
    size_t n;
    const char *bytes = vocabulary_get(v, id, &n);
    return depth < n ? (unsigned char)bytes[depth] : -1;
}

/* First index in low … high-1 whose byte at depth is at least `byte`. */
static size_t lower_bound(const added_tokens *a, const vocabulary *v, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (byte_at(v, a->ids[mid], depth) < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token at the beginning of s [n], or -1. */
static int32_t longest_at(const added_tokens *a, const vocabulary *v, const char *s, size_t n, size_t *length) {
    size_t low = 0, high = a->n;
    int32_t found = -1;
    for (size_t depth = 0; low < high; depth++) {
        if (byte_at(v, a->ids[low], depth) < 0) { /* the shortest of the range ends here: all its bytes agreed */
            found = a->ids[low];
            *length = depth;
        }
        if (depth == n) break;
        const int byte = (unsigned char)s[depth];
        low = lower_bound(a, v, low, high, depth, byte);
        high = lower_bound(a, v, low, high, depth, byte + 1);
    }
    return found;
}

int32_t added_find(const added_tokens *a, const vocabulary *v, const char *s, size_t n, size_t from, size_t *at, size_t *length) {
    for (size_t i = from; i < n; i++) {
        if (!a->first[(unsigned char)s[i]]) continue;
        const int32_t id = longest_at(a, v, s + i, n - i, length);
        if (id < 0) continue;
        *at = i;
        return id;
    }
    return -1;
}

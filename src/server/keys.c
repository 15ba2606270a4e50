/* keys.c: see keys.h.  Keys are kept padded with zeros to one size, and each comparison reads all of all of them. */
#include "server/keys.h"

#include <stdint.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"

enum { KEY_BYTES = 256, MIN_KEY = 16, MAX_KEYS = 1000, MAX_FILE = 1 << 20 };

typedef struct padded {
    uint8_t bytes[KEY_BYTES]; /* the key and zeros; a key holds none */
} padded;

struct keys {
    padded *items; /* [n] */
    size_t n, cap;
};

/* Of what is not needed any more; volatile, so that the compiler does not find it useless. */
static void wipe(void *p, size_t n) {
    for (volatile uint8_t *at = p; n; n--) *at++ = 0;
}

static calla_status add(keys *k, const char *path, size_t line, const char *key, size_t n, calla_error *err) {
    if (n < MIN_KEY)
        return error_set(err, CALLA_E_FORMAT,
                         "%s, line %zu: a key of fewer than %d characters can be guessed; make one with `openssl rand -hex 24`", path, line,
                         MIN_KEY);
    if (n >= KEY_BYTES)
        return error_set(err, CALLA_E_FORMAT, "%s, line %zu: a key may have %d characters at most", path, line, KEY_BYTES - 1);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return error_set(err, CALLA_E_FORMAT,
                             "%s, line %zu: a key is made of letters, digits and signs of ASCII, without spaces: one key a line", path,
                             line);
    if (k->n == MAX_KEYS) return error_set(err, CALLA_E_LIMIT, "%s holds more than %d keys", path, MAX_KEYS);
    if (mem_grow(&k->items, &k->cap, k->n + 1, sizeof *k->items, MAX_KEYS)) return error_nomem(err, "the API keys");
    memset(&k->items[k->n], 0, sizeof *k->items);
    memcpy(k->items[k->n++].bytes, key, n);
    return CALLA_OK;
}

static calla_status read_lines(keys *k, const char *path, const char *text, size_t n, calla_error *err) {
    calla_status rc = CALLA_OK;
    const char *end = text + n;
    size_t line = 1;
    for (const char *at = text; at < end && !rc; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        const char *last = stop;
        while (at < last && (*at == ' ' || *at == '\t')) at++;
        while (at < last && (last[-1] == ' ' || last[-1] == '\t' || last[-1] == '\r')) last--;
        if (at < last && *at != '#') rc = add(k, path, line, at, (size_t)(last - at), err);
        at = stop + 1;
    }
    if (!rc && !k->n)
        return error_set(err, CALLA_E_FORMAT, "%s holds no key: write one a line, made for example with `openssl rand -hex 24`", path);
    return rc;
}

calla_status keys_open(const char *path, keys **out, calla_error *err) {
    char *text = NULL;
    size_t n = 0;
    calla_status rc = file_read(path, MAX_FILE, &text, &n, err);
    if (rc) return rc;
    keys *k = mem_calloc(1, sizeof *k);
    rc = k ? read_lines(k, path, text, n, err) : error_nomem(err, "the API keys");
    wipe(text, n);
    mem_free(text);
    if (rc)
        keys_close(k);
    else
        *out = k;
    return rc;
}

void keys_close(keys *k) {
    if (!k) return;
    wipe(k->items, k->n * sizeof *k->items);
    mem_free(k->items);
    mem_free(k);
}

bool keys_match(const keys *k, const char *key) {
    padded given = {0};
    const size_t n = strlen(key);
    memcpy(given.bytes, key, n < KEY_BYTES ? n : KEY_BYTES - 1);
    unsigned found = 0;
    for (size_t i = 0; i < k->n; i++) {
        volatile uint8_t differs = 0; /* volatile: no compiler may leave the loop at the first difference */
        for (size_t b = 0; b < KEY_BYTES; b++) differs |= given.bytes[b] ^ k->items[i].bytes[b];
        found |= (differs - 1u) >> 8 & 1u; /* 1 only of 0 */
    }
    return (found & (n < KEY_BYTES)) != 0;
}

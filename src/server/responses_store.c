/* responses_store.c: see responses_store.h.  A list in order of use, in which whatever a response points at stands before it, and a table
 * of ids. */
#include "server/responses_store.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"

enum { BUCKETS = 1024, NODE_OVERHEAD_BYTES = 64 /* of its allocations */ };

typedef struct node node;
struct node {
    node *newer, *older; /* in order of use */
    node *chain;         /* of its bucket */
    node *previous;      /* the response that this one went on from; newer than this one */
    node *next;          /* towards the end that is being read; stale otherwise */
    uint32_t n_next;     /* how many went on from this one */
    bool deleted;        /* in no bucket; kept for those */
    char *id, *text;     /* owned; text: the input's items, then the response */
    size_t n_input, n_whole, output_at, n_output;
    size_t bytes;
};

struct responses_store {
    pthread_mutex_t mutex;
    node *newest, *oldest;
    node *buckets[BUCKETS];
    size_t bytes, max_bytes;
};

static node **bucket_of(responses_store *s, const char *id) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *id; id++) hash = (hash ^ (unsigned char)*id) * 16777619u;
    return &s->buckets[hash % BUCKETS];
}

static node *find(responses_store *s, const char *id) {
    node *n = *bucket_of(s, id);
    while (n && strcmp(n->id, id) != 0) n = n->chain;
    return n;
}

static void link_newest(responses_store *s, node *n) {
    n->newer = NULL;
    n->older = s->newest;
    if (s->newest)
        s->newest->newer = n;
    else
        s->oldest = n;
    s->newest = n;
}

static void unlink_node(responses_store *s, node *n) {
    if (n->newer)
        n->newer->older = n->older;
    else
        s->newest = n->older;
    if (n->older)
        n->older->newer = n->newer;
    else
        s->oldest = n->newer;
}

/* n and all that it points at become the newest, in this order. */
static void touch(responses_store *s, node *n) {
    for (; n; n = n->previous) {
        unlink_node(s, n);
        link_newest(s, n);
    }
}

static void free_node(node *n) {
    mem_free(n->id);
    mem_free(n->text);
    mem_free(n);
}

static void leave_bucket(responses_store *s, node *n) {
    node **at = bucket_of(s, n->id);
    while (*at != n) at = &(*at)->chain;
    *at = n->chain;
}

/* An end goes, and with it the deleted ones that were kept for it. */
static void drop_end(responses_store *s, node *n) {
    do {
        node *previous = n->previous;
        if (!n->deleted) leave_bucket(s, n);
        unlink_node(s, n);
        s->bytes -= n->bytes;
        free_node(n);
        n = previous;
        if (n) n->n_next--;
    } while (n && n->deleted && !n->n_next);
}

/* The oldest is an end: whatever pointed at it would be older still. */
static void drop_oldest(responses_store *s) { drop_end(s, s->oldest); }

calla_status responses_store_open(size_t max_bytes, responses_store **out, calla_error *err) {
    responses_store *s = mem_calloc(1, sizeof *s);
    if (!s) return error_nomem(err, "the store of responses");
    pthread_mutex_init(&s->mutex, NULL);
    s->max_bytes = max_bytes;
    *out = s;
    return CALLA_OK;
}

void responses_store_close(responses_store *s) {
    if (!s) return;
    while (s->oldest) drop_oldest(s);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}

/* NULL when out of memory. */
static node *new_node(const char *id, const stored_response *r) {
    node *fresh = mem_calloc(1, sizeof *fresh);
    if (!fresh) return NULL;
    const size_t n = r->n_input + r->n_whole;
    fresh->id = mem_strdup(id);
    fresh->text = mem_alloc(n ? n : 1);
    fresh->n_input = r->n_input;
    fresh->n_whole = r->n_whole;
    fresh->output_at = r->n_input + r->output_at;
    fresh->n_output = r->n_output;
    fresh->bytes = sizeof *fresh + NODE_OVERHEAD_BYTES + strlen(id) + n;
    if (fresh->id && fresh->text) {
        if (r->n_input) memcpy(fresh->text, r->input, r->n_input);
        if (r->n_whole) memcpy(fresh->text + r->n_input, r->whole, r->n_whole);
        return fresh;
    }
    free_node(fresh);
    return NULL;
}

void responses_store_put(responses_store *s, const char *id, const char *previous, const stored_response *r) {
    node *fresh = new_node(id, r);
    if (!fresh) return;
    pthread_mutex_lock(&s->mutex);
    fresh->previous = previous ? find(s, previous) : NULL;
    bool keep = (!previous || fresh->previous) && !find(s, id);
    if (keep) {
        node **bucket = bucket_of(s, id);
        fresh->chain = *bucket;
        *bucket = fresh;
        s->bytes += fresh->bytes;
        link_newest(s, fresh);
        if (fresh->previous) fresh->previous->n_next++;
        touch(s, fresh->previous);
        while (s->bytes > s->max_bytes) drop_oldest(s); /* at last the new one itself */
    }
    pthread_mutex_unlock(&s->mutex);
    if (!keep) free_node(fresh);
}

static void append_items(buffer *out, const char *items, size_t n) {
    if (n && out->n) buffer_append_str(out, ",");
    if (n) buffer_append(out, items, n);
}

/* Items of last's chain, the first response's first; with its own output or without. */
static void append_chain(node *last, bool output, buffer *out) {
    last->next = NULL;
    node *n = last;
    for (; n->previous; n = n->previous) n->previous->next = n;
    for (; n; n = n->next) {
        append_items(out, n->text, n->n_input);
        if (n != last || output) append_items(out, n->text + n->output_at, n->n_output);
    }
}

typedef enum what { WHAT_ALL, WHAT_INPUT, WHAT_WHOLE, WHAT_OUTPUT } what;

static bool get(responses_store *s, const char *id, what w, buffer *out) {
    pthread_mutex_lock(&s->mutex);
    node *n = find(s, id);
    if (n) {
        touch(s, n);
        switch (w) {
        case WHAT_WHOLE: buffer_append(out, n->text + n->n_input, n->n_whole); break;
        case WHAT_OUTPUT: append_items(out, n->text + n->output_at, n->n_output); break;
        default: append_chain(n, w == WHAT_ALL, out);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return n != NULL;
}

bool responses_store_get(responses_store *s, const char *id, buffer *out) { return get(s, id, WHAT_ALL, out); }
bool responses_store_get_input(responses_store *s, const char *id, buffer *out) { return get(s, id, WHAT_INPUT, out); }
bool responses_store_get_whole(responses_store *s, const char *id, buffer *out) { return get(s, id, WHAT_WHOLE, out); }
bool responses_store_get_output(responses_store *s, const char *id, buffer *out) { return get(s, id, WHAT_OUTPUT, out); }

bool responses_store_delete(responses_store *s, const char *id) {
    pthread_mutex_lock(&s->mutex);
    node *n = find(s, id);
    if (n && n->n_next) {
        leave_bucket(s, n);
        n->deleted = true;
    } else if (n)
        drop_end(s, n);
    pthread_mutex_unlock(&s->mutex);
    return n != NULL;
}

size_t responses_store_bytes(responses_store *s) {
    pthread_mutex_lock(&s->mutex);
    const size_t bytes = s->bytes;
    pthread_mutex_unlock(&s->mutex);
    return bytes;
}

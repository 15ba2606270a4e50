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
    char *id, *items;    /* owned */
    size_t n, bytes;
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
    mem_free(n->items);
    mem_free(n);
}

/* The oldest is an end: whatever pointed at it would be older still. */
static void drop_oldest(responses_store *s) {
    node *n = s->oldest, **at = bucket_of(s, n->id);
    while (*at != n) at = &(*at)->chain;
    *at = n->chain;
    unlink_node(s, n);
    s->bytes -= n->bytes;
    free_node(n);
}

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
static node *new_node(const char *id, const char *items, size_t n) {
    node *fresh = mem_calloc(1, sizeof *fresh);
    if (!fresh) return NULL;
    fresh->id = mem_strdup(id);
    fresh->items = mem_strndup(n ? items : "", n);
    fresh->n = n;
    fresh->bytes = sizeof *fresh + NODE_OVERHEAD_BYTES + strlen(id) + n;
    if (fresh->id && fresh->items) return fresh;
    free_node(fresh);
    return NULL;
}

void responses_store_put(responses_store *s, const char *id, const char *previous, const char *items, size_t n) {
    node *fresh = new_node(id, items, n);
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
        touch(s, fresh->previous);
        while (s->bytes > s->max_bytes) drop_oldest(s); /* at last the new one itself */
    }
    pthread_mutex_unlock(&s->mutex);
    if (!keep) free_node(fresh);
}

/* Items of last's chain, the first response's first. */
static void append_chain(node *last, buffer *out) {
    last->next = NULL;
    node *n = last;
    for (; n->previous; n = n->previous) n->previous->next = n;
    for (; n; n = n->next) {
        if (n->n && out->n) buffer_append_str(out, ",");
        buffer_append(out, n->items, n->n);
    }
}

bool responses_store_get(responses_store *s, const char *id, buffer *out) {
    pthread_mutex_lock(&s->mutex);
    node *n = find(s, id);
    if (n) {
        touch(s, n);
        append_chain(n, out);
    }
    pthread_mutex_unlock(&s->mutex);
    return n != NULL;
}

size_t responses_store_bytes(responses_store *s) {
    pthread_mutex_lock(&s->mutex);
    const size_t bytes = s->bytes;
    pthread_mutex_unlock(&s->mutex);
    return bytes;
}

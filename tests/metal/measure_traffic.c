/* measure_traffic.c: what a token and a prompt of the real model move on Metal, for 256 … 131,072 tokens, as JSON; minutes.  Its output is
 * tests/metal/traffic.json, from which traffic_table.py makes the table of docs/speed.md.
 *
 *     measure_traffic > tests/metal/traffic.json
 *     measure_traffic ROWS      of a delta net's and an attention layer, for a prompt of so few rows: what too few threadgroups cost at most
 *
 * Prompts go in pieces of PIECE rows.  Pieces differ in attention alone, whose counts grow evenly with the position: two pieces are counted
 * and the others follow; a third is counted to see that they do. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_metal.h"
#include "metal/traffic.h"

enum { PIECE = 256, MOST = 131072 };

static traffic_model *m;

static traffic_result count(const traffic_step *step) {
    const traffic_result r = traffic_count(m, step);
    const char *broken = fake_metal_broken();
    if (broken || r.again) {
        fprintf(stderr, "%s\n", broken ? broken : "a product of few rows reads a matrix twice");
        exit(1);
    }
    if (r.narrow[0])
        fprintf(stderr, "%u rows at %u: %s moves %" PRIu64 " bytes on %" PRIu64 " threadgroups\n", step->rows, step->position, r.narrow,
                r.narrow_bytes, r.narrow_threadgroups);
    return r;
}

static traffic attention_at(uint32_t position) {
    const traffic_step step = {.rows = PIECE, .position = position, .first = ATTENTION_LAYER, .end = LAST_LAYER};
    return count(&step).part[ATTENTION_LAYER];
}

/* Value number `piece` of those that begin with first, second. */
static uint64_t follow(uint64_t first, uint64_t second, uint64_t piece) { return first + (second - first) * piece; }

static traffic following(const traffic *first, const traffic *second, uint64_t piece) {
    return (traffic){.weights = first->weights,
                     .cache = follow(first->cache, second->cache, piece),
                     .cache_once = follow(first->cache_once, second->cache_once, piece),
                     .rest = follow(first->rest, second->rest, piece),
                     .flops = follow(first->flops, second->flops, piece),
                     .dispatches = first->dispatches};
}

static void must_follow(const traffic *first, const traffic *second, const traffic *third) {
    const traffic t = following(first, second, 2);
    if (t.cache == third->cache && t.cache_once == third->cache_once && t.flops == third->flops) return;
    fprintf(stderr, "attention does not grow evenly: %" PRIu64 " and %" PRIu64 " bytes\n", t.cache, third->cache);
    exit(1);
}

static void print(const char *name, const traffic *t, const char *end) {
    printf("\"%s\": {\"weights\": %" PRIu64 ", \"cache\": %" PRIu64 ", \"cache_once\": %" PRIu64 ", \"states\": %" PRIu64
           ", \"rest\": %" PRIu64 ", \"flops\": %" PRIu64 "}%s",
           name, t->weights, t->cache, t->cache_once, t->states, t->rest, t->flops, end);
}

static int short_piece(uint32_t rows) {
    m = traffic_open(rows, rows);
    const traffic_step step = {.rows = rows, .first = DELTA_LAYER, .end = LAST_LAYER};
    const traffic_result r = count(&step);
    const uint64_t all = traffic_bytes(&r.part[DELTA_LAYER]) + traffic_bytes(&r.part[ATTENTION_LAYER]);
    printf("%u rows: %.1f MB, idle for %.1f more\n", rows, (double)all / 1e6, (double)r.idle_bytes / 1e6);
    traffic_close(m);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return short_piece((uint32_t)atoi(argv[1]));
    m = traffic_open(PIECE, MOST);
    const traffic_step piece = {.rows = PIECE, .wanted = true, .end = HEAD_PART};
    const traffic_step caching = {.rows = PIECE, .first = LAST_LAYER, .end = HEAD_PART};
    traffic_result base = count(&piece);                          /* its attention layer is replaced below */
    const traffic cached_only = count(&caching).part[LAST_LAYER]; /* of all pieces but the last */
    const traffic first = attention_at(0), at_one = attention_at(PIECE), at_two = attention_at(2 * PIECE),
                  at_three = attention_at(3 * PIECE);
    must_follow(&at_one, &at_two, &at_three);
    printf("{\"piece\": %d, \"lengths\": [\n", PIECE);
    for (uint32_t tokens = 256; tokens <= MOST; tokens *= 2) {
        const traffic_step one = {.rows = 1, .position = tokens - 1, .wanted = true, .end = HEAD_PART};
        const traffic_result r = count(&one);
        const traffic token = traffic_of_model(&r);
        traffic prompt = {0};
        for (uint32_t i = 0; i < tokens / PIECE; i++) {
            traffic_result p = base;
            p.part[ATTENTION_LAYER] = i ? following(&at_one, &at_two, i - 1) : first;
            if ((i + 1) * PIECE < tokens) p.part[LAST_LAYER] = cached_only, p.part[HEAD_PART] = (traffic){0};
            const traffic t = traffic_of_model(&p);
            prompt.weights += t.weights, prompt.cache += t.cache, prompt.cache_once += t.cache_once, prompt.states += t.states;
            prompt.rest += t.rest, prompt.flops += t.flops;
        }
        printf("{\"tokens\": %u, \"least\": %" PRIu64 ", ", tokens, traffic_least_of_token(tokens));
        print("token", &token, ", ");
        print("prompt", &prompt, tokens < MOST ? "},\n" : "}\n");
        fflush(stdout);
    }
    printf("]}\n");
    traffic_close(m);
    return 0;
}

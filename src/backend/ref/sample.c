/* sample.c: see sample.h.
 *
 * A candidate is one 64-bit number, its sort key: the upper half makes larger logits smaller numbers, the lower half is the id.
 * Sorting ascending is then "by logit, then lowest id", and no two keys are equal. */
#include "backend/ref/sample.h"

#include <float.h>
#include <math.h>

#include "base/random.h"

#define HEAP_MAX 256u /* up to this top_k a heap finds the best; beyond, all candidates are sorted */

uint64_t ref_sample_scratch_bytes(uint32_t rows) { return (uint64_t)rows * (2 * sizeof(uint64_t) + sizeof(float)); }

/* NaN → -inf, +inf → the largest float, -0 → +0 (equal logits must have equal keys). */
static float sane(float x) {
    if (x != x) return -INFINITY;
    if (x > FLT_MAX) return FLT_MAX;
    return x + 0.0f;
}

static uint64_t key_of(float x, uint32_t id) {
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t ascending = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)~ascending << 32 | id;
}

static float key_logit(uint64_t key) {
    uint32_t ascending = ~(uint32_t)(key >> 32), u = ascending >> 31 ? ascending & 0x7FFFFFFFu : ~ascending;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static int32_t key_id(uint64_t key) { return (int32_t)(uint32_t)key; }

/* x [tokens] := logits after penalties, bias and mask. */
static void adjust(const float *logits, const sample_request *r, float *x) {
    for (uint32_t i = 0; i < r->tokens; i++) x[i] = logits[i];
    for (uint32_t i = 0; i < r->n_seen && r->repetition != 1.0f; i++) {
        uint32_t id = (uint32_t)r->seen[i];
        if (id < r->tokens) x[id] = x[id] > 0 ? x[id] / r->repetition : x[id] * r->repetition;
    }
    for (uint32_t i = 0; i < r->n_counts; i++) {
        uint32_t id = (uint32_t)r->counts[i].id;
        if (id >= r->tokens || !r->counts[i].count) continue;
        x[id] = x[id] - r->presence;
        x[id] = x[id] - r->frequency * (float)r->counts[i].count;
    }
    for (uint32_t i = 0; i < r->n_bias; i++) {
        uint32_t id = (uint32_t)r->bias[i].id;
        if (id < r->tokens) x[id] = x[id] + r->bias[i].bias;
    }
    for (uint32_t i = 0; i < r->tokens; i++) x[i] = sane(x[i]);
    for (uint32_t i = 0; r->mask && i < r->tokens; i++)
        if (!(r->mask[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
}

/* The first of the largest; x holds no NaN.  Eight running maxima, since a compiler may not reorder one. */
static uint32_t largest_at(const float *x, uint32_t n) {
    float most[8];
    for (int j = 0; j < 8; j++) most[j] = -INFINITY;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (; i < n; i++) most[0] = x[i] > most[0] ? x[i] : most[0];
    for (int j = 1; j < 8; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    for (i = 0; i < n && x[i] != most[0]; i++) {
    }
    return i;
}

static void heap_sink(uint64_t *heap, uint32_t n, uint32_t at) {
    uint64_t key = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= key) break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

/* keys [k] := the k best of x [n] that are not -inf, sorted; returns how many there are.  The heap's root is the worst kept. */
static uint32_t best_of(const float *x, uint32_t n, uint32_t k, uint64_t *keys) {
    uint32_t kept = 0;
    float worst = -INFINITY; /* of k kept; an equal one that comes later has a higher id, and so is worse */
    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] > worst)) continue;
        float v = sane(x[i]);
        uint64_t key = key_of(v, i);
        if (kept < k) {
            keys[kept++] = key;
            if (kept == k)
                for (uint32_t j = k / 2; j-- > 0;) heap_sink(keys, k, j);
        } else if (key < keys[0]) {
            keys[0] = key;
            heap_sink(keys, k, 0);
        }
        if (kept == k) worst = key_logit(keys[0]);
    }
    if (kept < k)
        for (uint32_t j = kept / 2; j-- > 0;) heap_sink(keys, kept, j);
    for (uint32_t end = kept; end > 1; end--) { /* heap sort */
        uint64_t last = keys[0];
        keys[0] = keys[end - 1];
        keys[end - 1] = last;
        heap_sink(keys, end - 1, 0);
    }
    return kept;
}

/* Sorts keys [n], which stand in order of id, by their upper halves: three stable counting passes of 11, 11 and 10 bits. */
static void sort_keys(uint64_t *keys, uint64_t *other, uint32_t n) {
    static const unsigned shift[3] = {32, 43, 54};
    uint32_t count[3][2048] = {0};
    for (uint32_t i = 0; i < n; i++)
        for (int p = 0; p < 3; p++) count[p][keys[i] >> shift[p] & 2047]++;
    uint64_t *from = keys, *to = other;
    for (int p = 0; p < 3; p++) {
        uint32_t sum = 0;
        for (int d = 0; d < 2048; d++) {
            uint32_t c = count[p][d];
            count[p][d] = sum;
            sum += c;
        }
        for (uint32_t i = 0; i < n; i++) to[count[p][from[i] >> shift[p] & 2047]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (n) memcpy(keys, from, n * sizeof *keys); /* three passes end in `other` */
}

static float exp_weight(uint64_t key, float largest, float temperature) { return sample_exp((key_logit(key) - largest) / temperature); }

static uint64_t fixed(float weight) { return (uint64_t)(weight * (float)SAMPLE_WEIGHT_ONE); }

/* floor(part · total) for part a multiple of 2^-24 in 0 ... 1 (others are rounded down to one); total below 2^59. */
static uint64_t share(float part, uint64_t total) {
    uint64_t p = (uint64_t)(part * 0x1p24f);
    return p * (total >> 24) + (p * (total & 0xFFFFFF) >> 24);
}

/* Temperature above 0: sorts the candidates, cuts them by top-k, top-p and min-p, and draws. */
static int32_t draw(const float *x, float largest, const sample_request *r, uint64_t *keys, uint64_t *other) {
    uint32_t n = 0;
    if (r->top_k && r->top_k <= HEAP_MAX) {
        n = best_of(x, r->tokens, r->top_k, keys);
    } else {
        for (uint32_t i = 0; i < r->tokens; i++) { /* without weight there is no chance to be picked: most of a large vocabulary */
            if (x[i] == -INFINITY || fixed(sample_exp((x[i] - largest) / r->temperature)) == 0) continue;
            keys[n++] = key_of(x[i], i);
        }
        sort_keys(keys, other, n);
        if (r->top_k && n > r->top_k) n = r->top_k;
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) total += fixed(exp_weight(keys[i], largest, r->temperature));
    /* top-p: the shortest beginning of the list with at least that share of it.  min-p: up to the first candidate whose probability is
     * less than min_p times the best one's.  Both keep a beginning, and the first candidate. */
    uint64_t enough = r->top_p < 1.0f ? share(r->top_p, total) : total, kept_total = 0;
    uint32_t kept = 0;
    while (kept < n && (kept == 0 || kept_total < enough)) {
        float w = exp_weight(keys[kept], largest, r->temperature);
        if (kept > 0 && w < r->min_p) break;
        kept_total += fixed(w);
        kept++;
    }
    /* The first candidate at which the running sum passes u · total; the sum of all is larger, since u < 1. */
    uint64_t target = share(random_uniform(r->seed, r->choice, r->position), kept_total), sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        sum += fixed(exp_weight(keys[i], largest, r->temperature));
        if (sum > target) return key_id(keys[i]);
    }
    return key_id(keys[0]);
}

/* log-softmax of the raw logits over all rows, in float64, summed in order of id. */
static void report(const float *logits, uint32_t rows, const sample_request *r, uint64_t *keys, sample_result *out) {
    float largest = -INFINITY;
    for (uint32_t i = 0; i < rows; i++) largest = fmaxf(largest, sane(logits[i]));
    double sum = 0;
    for (uint32_t i = 0; i < rows; i++) sum += exp((double)sane(logits[i]) - (double)largest);
    double log_sum = (double)largest + log(sum);
    out->logprob = (float)((double)sane(logits[out->id]) - log_sum);
    out->n_top = 0;
    uint32_t want = r->n_top < SAMPLE_MAX_TOP ? r->n_top : SAMPLE_MAX_TOP;
    if (want) out->n_top = best_of(logits, r->tokens, want, keys);
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top[i].id = key_id(keys[i]);
        out->top[i].logprob = (float)((double)key_logit(keys[i]) - log_sum);
    }
}

void ref_sample(const float *logits, uint32_t rows, const sample_request *r, void *scratch, sample_result *out) {
    uint64_t *keys = scratch, *other = keys + rows;
    float *x = (float *)(other + rows);
    adjust(logits, r, x);
    uint32_t best = largest_at(x, r->tokens);
    float largest = best < r->tokens ? x[best] : -INFINITY;
    *out = (sample_result){.id = -1};
    if (largest == -INFINITY) return;
    out->id = r->temperature > 0 ? draw(x, largest, r, keys, other) : (int32_t)best;
    if (r->logprob) report(logits, rows, r, keys, out);
}

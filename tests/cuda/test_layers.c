/* test_layers.c: what fast precision changes in each layer's output on the device, beside the cpu in float32.
 *
 * usage: test_layers DIR TOKENS LIMIT [wide]
 *
 * The same TOKENS go through both; through the device as a prompt, eight rows at a time, and one.  A near tie of a router may fall the other
 * way there, and from then on the row is another one, which says nothing of the arithmetic: so the device is given the cpu's experts and
 * their weights, and how often it had chosen others is reported.  A layer's error is |device - cpu| / |cpu| over the residual stream behind
 * it: "whole" with the errors of the layers before in it, "alone" where the layer begins with the cpu's residual stream.  LIMIT holds for
 * both.
 *
 * wide: the first layer's norm gives a part in 4096 of what it gave, and the input projections behind it have scales and biases times 4096:
 * the same model, with scales that the products of prompts cannot take. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "model/model.h"
#include "support/program.h"

typedef struct layer_run { /* of the cpu */
    uint32_t *expert;      /* [tokens][top_k] */
    float *weight;         /* [tokens][top_k] */
    float *out;            /* [tokens][H] behind the layer */
    double difference, norm;
    uint32_t moved; /* rows of the device that chose other experts */
} layer_run;

static struct {
    const backend_vtable *vt; /* in use */
    const model_shape *shape;
    uint32_t tokens, first, rows; /* of the step under way */
    bool recording, alone;
    layer_run *layer; /* [layers] */
} world;

static void put(backend *b, void *to, const void *from, uint64_t bytes) {
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream);
    if (e || cudaStreamSynchronize(b->stream)) fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e)), exit(2);
}

/* ---- in place of the backend's ops ---- */

static bool is_chosen(uint32_t expert, const uint32_t *chosen) {
    for (uint32_t i = 0; i < world.shape->top_k; i++)
        if (chosen[i] == expert) return true;
    return false;
}

/* Whether the logits choose other experts. */
static bool chooses_others(const float *logits, const uint32_t *chosen) {
    float least = INFINITY, most = -INFINITY; /* of the chosen, of the others */
    for (uint32_t e = 0; e < world.shape->experts; e++) {
        if (is_chosen(e, chosen))
            least = fminf(least, logits[e]);
        else
            most = fmaxf(most, logits[e]);
    }
    return most > least;
}

static void force_experts(backend *b, layer_run *l) {
    const uint32_t E = world.shape->experts, k = world.shape->top_k, rows = world.rows, stride = b->prompt ? E + 1 : E;
    const uint32_t *chosen = l->expert + (size_t)world.first * k;
    const float *weight = l->weight + (size_t)world.first * k;
    float *logits = take((size_t)rows * stride, sizeof *logits), unused;
    world.vt->peek(b, BUF_RESIDUAL, 0, 1, &unused); /* what was noted has run */
    if (cudaMemcpy(logits, b->scratch.router_logits, (size_t)rows * stride * sizeof *logits, cudaMemcpyDeviceToHost)) exit(2);
    for (uint32_t r = 0; r < rows; r++) l->moved += chooses_others(logits + (size_t)r * stride, chosen + (size_t)r * k);
    /* kernels of many rows choose by these, those of few by logits */
    put(b, b->buf[BUF_ROUTE_EXPERT], chosen, (size_t)rows * k * sizeof *chosen);
    put(b, b->buf[BUF_ROUTE_WEIGHT], weight, (size_t)rows * k * sizeof *weight);
    if (b->prompt) {
        cuda_route_lists(b->buf[BUF_ROUTE_EXPERT], rows, k, E, &b->scratch.lists, b->stream);
    } else {
        for (size_t i = 0; i < (size_t)rows * E; i++) logits[i] = -1e9f;
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < k; i++) logits[(size_t)r * E + chosen[(size_t)r * k + i]] = logf(weight[(size_t)r * k + i]);
        put(b, b->scratch.router_logits, logits, (size_t)rows * E * sizeof *logits);
    }
    free(logits);
}

static void route(backend *b, uint32_t layer) {
    layer_run *l = &world.layer[layer];
    const uint64_t n = (uint64_t)world.rows * world.shape->top_k;
    world.vt->route(b, layer);
    if (!world.recording) {
        force_experts(b, l);
        return;
    }
    world.vt->peek(b, BUF_ROUTE_EXPERT, 0, n, (float *)(void *)l->expert);
    world.vt->peek(b, BUF_ROUTE_WEIGHT, 0, n, l->weight);
}

static void mixer_in(backend *b, uint32_t layer) {
    const uint64_t H = world.shape->hidden;
    if (world.alone && layer > 0) {
        float unused;
        world.vt->peek(b, BUF_RESIDUAL, 0, 1, &unused);
        put(b, b->buf[BUF_RESIDUAL], world.layer[layer - 1].out + world.first * H, world.rows * H * sizeof(float));
    }
    world.vt->mixer_in(b, layer);
}

static void on_layer(void *user, uint32_t layer, const float *residual, uint32_t rows) {
    (void)user;
    if (layer == 0) return; /* the embedding */
    layer_run *l = &world.layer[layer - 1];
    const size_t H = world.shape->hidden;
    float *want = l->out + world.first * H;
    if (world.recording) memcpy(want, residual, rows * H * sizeof *want);
    for (size_t i = 0; i < rows * H; i++) {
        const double d = (double)residual[i] - (double)want[i];
        l->difference += d * d;
        l->norm += (double)want[i] * (double)want[i];
    }
}

/* ---- runs ---- */

/* detail [64]: how it computed. */
static void run(const weights *w, const char *device, uint32_t piece, const int32_t *ids, char *detail) {
    calla_error err;
    model *m = NULL;
    sequence *s = NULL;
    world.recording = !strcmp(device, "cpu");
    world.vt = backend_find(device);
    backend_vtable watched = *world.vt;
    watched.route = route;
    watched.mixer_in = mixer_in;
    const model_options o = {.backend = &watched,
                             .batch_rows = piece > 256 ? piece : 256,
                             .max_segments = 1,
                             .max_wanted = piece,
                             .sequences = 1,
                             .kv_tokens = world.tokens,
                             .kv = world.recording ? CALLA_KV_F32 : CALLA_KV_BF16,
                             .all_rows = true,
                             .fast = !world.recording};
    for (uint32_t i = 0; i < world.shape->layers; i++) world.layer[i].difference = world.layer[i].norm = 0, world.layer[i].moved = 0;
    must(model_open(w, &o, &m, &err), &err);
    must(model_set_probe(m, on_layer, NULL, &err), &err);
    must(sequence_open(m, &s, &err), &err);
    model_describe_device(m, detail, 64);
    for (world.first = 0; world.first < world.tokens; world.first += piece) {
        world.rows = piece < world.tokens - world.first ? piece : world.tokens - world.first;
        const model_segment g = {.sequence = s, .ids = ids + world.first, .rows = world.rows, .want = WANT_ALL};
        must(model_step(m, &g, 1, NULL, NULL, &err), &err);
    }
    sequence_close(s);
    model_close(m);
}

static double report(const char *name, uint32_t piece) {
    double worst = 0;
    uint32_t moved = 0;
    printf("%s, %4u rows a step:", name, piece);
    for (uint32_t i = 0; i < world.shape->layers; i++) {
        const layer_run *l = &world.layer[i];
        const double error = sqrt(l->difference / l->norm);
        printf(" %.1e%s", error, world.shape->is_attention[i] ? "a" : "");
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
        moved += l->moved;
    }
    printf("; other experts in %u of %u rows\n", moved, world.tokens * world.shape->layers);
    return worst;
}

/* A copy [bytes] of bf16 numbers, each times 2^power. */
static uint8_t *times_power(const uint8_t *from, uint64_t bytes, int power) {
    uint8_t *to = take(bytes, 1);
    for (uint64_t i = 0; i < bytes; i += 2) {
        uint16_t x;
        memcpy(&x, from + i, sizeof x);
        if (x & 0x7F80) x = (uint16_t)(x + power * 128);
        memcpy(to + i, &x, sizeof x);
    }
    return to;
}

static void widen_scales(weights *w) {
    layer_weights *l = &w->layer[0];
    weight_mat *const behind[] = {&l->in_qkv, &l->in_z, &l->in_a, &l->in_b};
    if (w->shape.is_attention[0] || l->norm_mixer.type != WEIGHT_BF16 || l->norm_mixer.add != 0 || l->in_qkv.bits == 16)
        fprintf(stderr, "not of this model\n"), exit(2);
    l->norm_mixer.data = times_power(l->norm_mixer.data, 2u * l->norm_mixer.n, -12);
    for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) {
        weight_mat *m = behind[i];
        const uint64_t bytes = 2 * weight_row_groups(m) * m->rows;
        m->scales = times_power(m->scales, bytes, 12), m->biases = times_power(m->biases, bytes, 12);
    }
}

int main(int argc, char **argv) {
    const bool wide = argc == 5 && !strcmp(argv[4], "wide");
    if (argc != 4 && !wide) return fprintf(stderr, "usage: %s DIR TOKENS LIMIT [wide]\n", argv[0]), 2;
    calla_error err;
    weights *w = NULL;
    char cpu[64], device[64];
    double worst = 0;
    must(weights_open(argv[1], &w, &err), &err);
    if (wide) widen_scales(w);
    world.shape = &w->shape;
    world.tokens = (uint32_t)strtoul(argv[2], NULL, 10);
    world.layer = take(w->shape.layers, sizeof *world.layer);
    for (uint32_t i = 0; i < w->shape.layers; i++) {
        world.layer[i].expert = take((size_t)world.tokens * w->shape.top_k, sizeof(uint32_t));
        world.layer[i].weight = take((size_t)world.tokens * w->shape.top_k, sizeof(float));
        world.layer[i].out = take((size_t)world.tokens * w->shape.hidden, sizeof(float));
    }
    int32_t *ids = take(world.tokens, sizeof *ids);
    for (uint32_t i = 0; i < world.tokens; i++) ids[i] = (int32_t)(i * 2654435761u % w->shape.vocabulary);
    run(w, "cpu", world.tokens, ids, cpu);
    for (int alone = 0; alone < 2; alone++) {
        const uint32_t pieces[] = {world.tokens, 8, 1};
        world.alone = alone;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            run(w, "cuda", pieces[i], ids, device);
            const double error = report(alone ? "alone" : "whole", pieces[i]);
            if (!(error <= worst)) worst = error;
        }
    }
    printf("%s beside %s: at most %.1e\n", device, cpu, worst);
    for (uint32_t i = 0; i < w->shape.layers; i++) free(world.layer[i].expert), free(world.layer[i].weight), free(world.layer[i].out);
    free(world.layer), free(ids);
    weights_close(w);
    return !(worst <= strtod(argv[3], NULL));
}

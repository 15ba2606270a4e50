/* measure_layers.c: what fast precision changes in each layer's output, as JSON.
 *
 * usage: measure_layers DIR ROWS [LIMIT]: with LIMIT the exit code is 1 where a layer's error is above it.
 *
 * The same prompt of ROWS tokens goes through the cpu backend exactly and fast, in one step.  A near tie of a router may fall the other way
 * in fast precision; from there on the row would be another row, and the difference would say nothing of the arithmetic.  So the fast run
 * is given the exact run's experts (and their weights) wherever it chose others; how many rows those are is reported.  A layer's error is
 * |fast - exact| / |exact| over the residual stream of all rows behind it: "error" in a whole run, so errors of the layers before are in
 * it, "alone" when the layer begins with the exact run's residual stream.  LIMIT is for the first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "model/model.h"
#include "support/program.h"

typedef struct layer_run { /* of the exact run */
    uint32_t *expert;      /* [rows][top_k] */
    float *weight;         /* [rows][top_k] */
    float *out;            /* [rows][H] behind the layer */
    uint32_t moved;        /* rows of the fast run that chose other experts */
    double error, alone;
} layer_run;

typedef enum run_kind { EXACT, FAST, FAST_ALONE } run_kind;

static struct {
    const backend_vtable *cpu;
    const model_shape *shape;
    uint32_t rows;
    run_kind kind;
    layer_run *layer; /* [layers] */
} world;

static bool same_set(const uint32_t *a, const uint32_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        bool found = false;
        for (uint32_t j = 0; j < n; j++) found = found || a[i] == b[j];
        if (!found) return false;
    }
    return true;
}

/* In place of the backend's route: notes the exact run's choice, and puts it into the fast run. */
static void route(backend *b, uint32_t layer) {
    layer_run *l = &world.layer[layer];
    const uint32_t k = world.shape->top_k;
    world.cpu->route(b, layer);
    if (world.kind == EXACT) {
        world.cpu->peek(b, BUF_ROUTE_EXPERT, 0, (uint64_t)world.rows * k, (float *)(void *)l->expert);
        world.cpu->peek(b, BUF_ROUTE_WEIGHT, 0, (uint64_t)world.rows * k, l->weight);
        return;
    }
    for (uint32_t r = 0; r < world.rows; r++) {
        uint32_t *chosen = (uint32_t *)b->buf[BUF_ROUTE_EXPERT] + (size_t)r * k;
        if (same_set(chosen, l->expert + (size_t)r * k, k)) continue;
        memcpy(chosen, l->expert + (size_t)r * k, k * sizeof *chosen);
        memcpy((float *)b->buf[BUF_ROUTE_WEIGHT] + (size_t)r * k, l->weight + (size_t)r * k, k * sizeof *l->weight);
        l->moved += world.kind == FAST;
    }
}

/* In place of the backend's mixer_in, the layer's first op. */
static void mixer_in(backend *b, uint32_t layer) {
    if (world.kind == FAST_ALONE && layer > 0)
        memcpy(b->buf[BUF_RESIDUAL], world.layer[layer - 1].out, (size_t)world.rows * world.shape->hidden * sizeof(float));
    world.cpu->mixer_in(b, layer);
}

static void on_layer(void *user, uint32_t layer, const float *residual, uint32_t rows) {
    const size_t n = (size_t)rows * world.shape->hidden;
    (void)user;
    if (layer == 0) return; /* the embedding */
    layer_run *l = &world.layer[layer - 1];
    if (world.kind == EXACT) {
        memcpy(l->out, residual, n * sizeof *residual);
        return;
    }
    double difference = 0, whole = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)residual[i] - (double)l->out[i];
        difference += d * d;
        whole += (double)l->out[i] * (double)l->out[i];
    }
    *(world.kind == FAST ? &l->error : &l->alone) = sqrt(difference / whole);
}

/* detail [64]: how it computed. */
static void run(const weights *w, const backend_vtable *vt, run_kind kind, const int32_t *ids, char *detail) {
    calla_error err;
    model *m = NULL;
    sequence *s = NULL;
    const model_options o = {.backend = vt,
                             .batch_rows = world.rows,
                             .max_segments = 1,
                             .max_wanted = 1,
                             .sequences = 1,
                             .kv_tokens = world.rows,
                             .kv = CALLA_KV_BF16,
                             .fast = kind != EXACT};
    world.kind = kind;
    must(model_open(w, &o, &m, &err), &err);
    must(model_set_probe(m, on_layer, NULL, &err), &err);
    must(sequence_open(m, &s, &err), &err);
    model_describe_device(m, detail, 64);
    const model_segment g = {.sequence = s, .ids = ids, .rows = world.rows, .want = WANT_NONE};
    must(model_step(m, &g, 1, NULL, NULL, &err), &err);
    sequence_close(s);
    model_close(m);
}

/* Returns the largest error of the whole run; NaN counts as the largest. */
static double print(const char *exact, const char *fast) {
    double worst = 0;
    printf("{\"rows\":%u,\"exact\":\"%s\",\"fast\":\"%s\",\"layers\":[", world.rows, exact, fast);
    for (uint32_t i = 0; i < world.shape->layers; i++) {
        const layer_run *l = &world.layer[i];
        printf("%s\n{\"layer\":%u,\"mixer\":\"%s\",\"error\":%.6g,\"alone\":%.6g,\"rows_with_other_experts\":%u}", i ? "," : "", i,
               world.shape->is_attention[i] ? "attention" : "gated delta net", l->error, l->alone, l->moved);
        if (!(l->error <= worst)) worst = l->error;
    }
    printf("],\n\"worst\":%.6g}\n", worst);
    return worst;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) return fprintf(stderr, "usage: %s DIR ROWS [LIMIT]\n", argv[0]), 2;
    calla_error err;
    weights *w = NULL;
    char exact[64], fast[64];
    must(weights_open(argv[1], &w, &err), &err);
    world.cpu = backend_find("cpu");
    world.shape = &w->shape;
    world.rows = (uint32_t)strtoul(argv[2], NULL, 10);
    world.layer = take(w->shape.layers, sizeof *world.layer);
    for (uint32_t i = 0; i < w->shape.layers; i++) {
        world.layer[i].expert = take((size_t)world.rows * w->shape.top_k, sizeof(uint32_t));
        world.layer[i].weight = take((size_t)world.rows * w->shape.top_k, sizeof(float));
        world.layer[i].out = take((size_t)world.rows * w->shape.hidden, sizeof(float));
    }
    int32_t *ids = take(world.rows, sizeof *ids);
    for (uint32_t i = 0; i < world.rows; i++) ids[i] = (int32_t)(i * 2654435761u % w->shape.vocabulary);
    backend_vtable watched = *world.cpu;
    watched.route = route;
    watched.mixer_in = mixer_in;
    run(w, &watched, EXACT, ids, exact);
    run(w, &watched, FAST, ids, fast);
    run(w, &watched, FAST_ALONE, ids, fast);
    const double worst = print(exact, fast);
    const bool failed = argc > 3 && !(worst <= strtod(argv[3], NULL));
    for (uint32_t i = 0; i < w->shape.layers; i++) free(world.layer[i].expert), free(world.layer[i].weight), free(world.layer[i].out);
    free(world.layer), free(ids);
    weights_close(w);
    return failed;
}

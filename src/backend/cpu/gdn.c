/* gdn.c: the gated delta net (docs/model.md, "GDN mixer").  One task per segment and key head: its share of the convolution, then its
 * value heads, the state read once and written once for a decoded token. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/ref/plain.h"

enum { D = GDN_HEAD_DIM };

void cpu_gdn_in(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const size_t stride = shape_mixer_in_values(s);
    float *qkv = b->buf[BUF_MIXER_IN], *z = qkv + shape_conv_channels(s), *a = z + shape_gdn_values(s), *beta = a + s->gdn_value_heads;
    cpu_norm_input(b, &l->norm_mixer, b->scratch.normed, true);
    const cpu_x *x = &b->scratch.input;
    const cpu_linear jobs[] = {{&l->in_qkv, x, qkv, stride, CPU_STORE, false},
                               {&l->in_z, x, z, stride, CPU_STORE, true},
                               {&l->in_a, x, a, stride, CPU_STORE, true},
                               {&l->in_b, x, beta, stride, CPU_STORE, true}};
    cpu_run_linear(b, jobs, 4);
}

typedef struct gdn_run {
    backend *b;
    uint32_t layer;
} gdn_run;

/* Taps of 128 channels from `channel` on, one row per tap. */
static void load_taps(const weight_vec *conv, uint32_t channel, float w[CONV_WIDTH][D]) {
    weight_vec part = *conv;
    float flat[D * CONV_WIDTH];
    part.n = D * CONV_WIDTH;
    part.data += (size_t)channel * CONV_WIDTH * (conv->type == WEIGHT_BF16 ? 2 : 4);
    ref_load_vec(&part, flat);
    for (uint32_t c = 0; c < D; c++)
        for (uint32_t j = 0; j < CONV_WIDTH; j++) w[j][c] = flat[c * CONV_WIDTH + j];
}

/* y_t = silu(Σ_j w_j x_{t-3+j}) for 128 channels from `channel` on, all rows of a segment; the last three inputs go to window_out. */
static void conv_head(backend *b, const layer_weights *l, const batch_segment *seg, const float *window_in, float *window_out,
                      uint32_t channel) {
    const uint32_t C = shape_conv_channels(b->s), rows = seg->rows;
    const size_t stride = shape_mixer_in_values(b->s);
    const float *in = (const float *)b->buf[BUF_MIXER_IN] + seg->first_row * stride + channel;
    float *out = b->scratch.conv + (size_t)seg->first_row * C + channel, w[CONV_WIDTH][D], last[CONV_HISTORY][D];
    load_taps(&l->conv, channel, w);
    static const float zeros[D];
    const float *x[CONV_WIDTH]; /* the inputs at t-3 … t */
    for (uint32_t j = 0; j < CONV_HISTORY; j++) x[j] = window_in ? window_in + (size_t)j * C + channel : zeros;
    for (uint32_t t = 0; t < rows; t++) {
        x[3] = in + t * stride;
        float *y = out + (size_t)t * C;
        for (uint32_t c = 0; c < D; c++) y[c] = w[0][c] * x[0][c] + w[1][c] * x[1][c] + w[2][c] * x[2][c] + w[3][c] * x[3][c];
        b->k->silu_mul(y, NULL, D);
        x[0] = x[1], x[1] = x[2], x[2] = x[3];
    }
    for (uint32_t j = 0; j < CONV_HISTORY; j++) memcpy(last[j], x[j], sizeof last[j]);
    for (uint32_t j = 0; j < CONV_HISTORY; j++) memcpy(window_out + (size_t)j * C + channel, last[j], sizeof last[j]);
}

/* q ← q·rsqrt(Σq²+1e-6)/√128 and k alike without the last factor, packed [rows][128] */
static void normalize(const backend *b, const float *x, size_t stride, uint32_t rows, float factor, float *out) {
    for (uint32_t t = 0; t < rows; t++, x += stride, out += D) {
        const float n = factor / sqrtf(b->k->dot(x, x, D) + 1e-6f);
        for (uint32_t i = 0; i < D; i++) out[i] = x[i] * n;
    }
}

static void gdn_task(void *context, uint32_t task, uint32_t thread) {
    const gdn_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[run->layer];
    const uint32_t C = shape_conv_channels(s), V = s->gdn_value_heads, keys = s->gdn_key_heads, per_key = V / keys, h = task % keys;
    const batch_segment *seg = &b->batch->segment[task / keys];
    const size_t state_n = (size_t)V * D * D, conv_n = (size_t)CONV_HISTORY * C, base = (size_t)s->kind_index[run->layer] * b->limits.slots;
    float *states = (float *)b->buf[BUF_STATE] + base * state_n, *windows = (float *)b->buf[BUF_CONV] + base * conv_n;
    float *state_out = states + seg->slot_dst * state_n, *window_out = windows + seg->slot_dst * conv_n;
    const float *state_in = seg->slot_src == NO_SLOT ? NULL : states + seg->slot_src * state_n,
                *window_in = seg->slot_src == NO_SLOT ? NULL : windows + seg->slot_src * conv_n;

    conv_head(b, l, seg, window_in, window_out, h * D);
    conv_head(b, l, seg, window_in, window_out, (keys + h) * D);
    float *q = cpu_thread_scratch(b, thread), *k = q + (size_t)seg->rows * D;
    const float *y = b->scratch.conv + (size_t)seg->first_row * C;
    normalize(b, y + (size_t)h * D, C, seg->rows, 0.08838834764831845f /* 1/√128 */, q);
    normalize(b, y + (size_t)(keys + h) * D, C, seg->rows, 1, k);

    float a_log[MAX_GDN_HEADS], dt_bias[MAX_GDN_HEADS];
    ref_load_vec(&l->a_log, a_log);
    ref_load_vec(&l->dt_bias, dt_bias);
    for (uint32_t v = h * per_key; v < (h + 1) * per_key; v++) {
        conv_head(b, l, seg, window_in, window_out, (2 * keys + v) * D);
        float *alpha = b->scratch.alpha + (size_t)v * b->limits.rows + seg->first_row,
              *beta = b->scratch.beta + (size_t)v * b->limits.rows + seg->first_row;
        for (uint32_t t = 0; t < seg->rows; t++) {
            const float *ab =
                (const float *)b->buf[BUF_MIXER_IN] + (size_t)(seg->first_row + t) * shape_mixer_in_values(s) + C + (size_t)V * D;
            alpha[t] = expf(-expf(a_log[v]) * ref_softplus(ab[v] + dt_bias[v]));
            beta[t] = 1 / (1 + expf(-ab[V + v]));
        }
        float *to = state_out + (size_t)v * D * D;
        if (!state_in) memset(to, 0, (size_t)D * D * sizeof *to);
        b->k->mixer->delta(state_in ? state_in + (size_t)v * D * D : to, to, q, k, y + (size_t)(2 * keys + v) * D, C, alpha, beta,
                           (float *)b->buf[BUF_MIXER_OUT] + (size_t)seg->first_row * shape_mixer_out_values(s) + (size_t)v * D,
                           shape_mixer_out_values(s), seg->rows, b->limits.deterministic || !cpu_does(b, CPU_DELTA_CHUNKS));
    }
}

void cpu_gdn_mix(backend *b, uint32_t layer) {
    gdn_run run = {b, layer};
    pool_run(b->pool, gdn_task, &run, b->batch->segments * b->s->gdn_key_heads);
}

/* o ← rmsnorm(o)·w · silu(z) per head */
static void gate_task(void *context, uint32_t row, uint32_t thread) {
    const gdn_run *run = context;
    backend *b = run->b;
    const model_shape *s = b->s;
    const uint32_t n = shape_gdn_values(s);
    const float *o = (const float *)b->buf[BUF_MIXER_OUT] + (size_t)row * shape_mixer_out_values(s);
    const float *z = (const float *)b->buf[BUF_MIXER_IN] + (size_t)row * shape_mixer_in_values(s) + shape_conv_channels(s);
    float *x = b->scratch.normed + (size_t)row * n, *silu = cpu_thread_scratch(b, thread), gain[D];
    ref_load_vec(&b->w->layer[run->layer].gdn_norm, gain);
    memcpy(silu, z, n * sizeof *silu);
    for (uint32_t h = 0; h < s->gdn_value_heads; h++) cpu_rmsnorm(b, o + (size_t)h * D, gain, D, x + (size_t)h * D);
    b->k->silu_mul(silu, x, n);
    memcpy(x, silu, n * sizeof *x);
    cpu_x_row(b, &b->scratch.input, row);
}

void cpu_gdn_out(backend *b, uint32_t layer) {
    gdn_run run = {b, layer};
    const uint32_t n = shape_gdn_values(b->s);
    cpu_x_shape(&b->scratch.input, b->scratch.normed, n, n, b->batch->rows, true);
    cpu_each_row(b, gate_task, &run, b->batch->rows);
    cpu_linear job = {&b->w->layer[layer].gdn_out, &b->scratch.input, b->buf[BUF_RESIDUAL], b->s->hidden, CPU_ADD, true};
    cpu_run_linear(b, &job, 1);
}

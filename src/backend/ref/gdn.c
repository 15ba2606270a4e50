/* gdn.c: the gated delta net, token by token (docs/model.md, "GDN mixer"; Yang, Kautz, Hatamizadeh 2024, eq. 10).
 *
 * State is out of place: a segment reads slot_src and leaves its result in slot_dst; slot_src stays as it was. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

enum { D = GDN_HEAD_DIM };

void ref_gdn_in(backend *b, const layer_weights *l) {
    const model_shape *s = b->s;
    const uint32_t H = s->hidden, stride = shape_mixer_in_values(s), rows = b->batch->rows;
    float *out = b->buf[BUF_MIXER_IN], *z = out + shape_conv_channels(s), *a = z + shape_gdn_values(s), *beta = a + s->gdn_value_heads;
    ref_mixer_norm(b, l);
    ref_linear(&l->in_qkv, 0, b->scratch.rows, H, out, stride, rows, b->scratch.weight);
    ref_linear(&l->in_z, 0, b->scratch.rows, H, z, stride, rows, b->scratch.weight);
    ref_linear(&l->in_a, 0, b->scratch.rows, H, a, stride, rows, b->scratch.weight);
    ref_linear(&l->in_b, 0, b->scratch.rows, H, beta, stride, rows, b->scratch.weight);
}

/* y_t = silu(Σ_j w_j · x_{t-3+j}), tap 3 is the newest.  `history` [3][channels] holds the inputs before this row, oldest first, and
 * is moved on by it. */
static void conv_row(const float *x, float *history, const float *taps /* [channels][4] */, uint32_t channels, float *y) {
    for (uint32_t c = 0; c < channels; c++) {
        const float *w = taps + (size_t)c * CONV_WIDTH;
        float h0 = history[c], h1 = history[channels + c], h2 = history[2 * (size_t)channels + c];
        y[c] = ref_silu(w[0] * h0 + w[1] * h1 + w[2] * h2 + w[3] * x[c]);
        history[c] = h1;
        history[channels + c] = h2;
        history[2 * (size_t)channels + c] = x[c];
    }
}

/* x · rsqrt(Σx² + 1e-6) · scale */
static void l2norm(const float *x, float scale, float *out) {
    float n = scale / sqrtf(ref_dot(x, x, D) + 1e-6f);
    for (uint32_t i = 0; i < D; i++) out[i] = x[i] * n;
}

/* S ← αS; u = β(v − kᵀS); S ← S + k uᵀ; o = qᵀS.  S [128 key][128 value] */
static void delta_step(float *S, const float *q, const float *k, const float *v, float alpha, float beta, float *o) {
    float u[D] = {0};
    for (uint32_t i = 0; i < D; i++) {
        float *row = S + (size_t)i * D;
        for (uint32_t j = 0; j < D; j++) {
            row[j] *= alpha;
            u[j] += k[i] * row[j];
        }
    }
    for (uint32_t j = 0; j < D; j++) u[j] = beta * (v[j] - u[j]);
    memset(o, 0, D * sizeof *o);
    for (uint32_t i = 0; i < D; i++) {
        float *row = S + (size_t)i * D;
        for (uint32_t j = 0; j < D; j++) {
            row[j] += k[i] * u[j];
            o[j] += q[i] * row[j];
        }
    }
}

void ref_gdn_mix(backend *b, uint32_t layer) {
    const model_shape *s = b->s;
    const layer_weights *l = &b->w->layer[layer];
    const uint32_t C = shape_conv_channels(s), V = s->gdn_value_heads, per_key = V / s->gdn_key_heads, keys = s->gdn_key_heads * D;
    const uint32_t in_stride = shape_mixer_in_values(s), out_stride = shape_mixer_out_values(s);
    const size_t state_n = (size_t)V * D * D, conv_n = (size_t)CONV_HISTORY * C, base = (size_t)s->kind_index[layer] * b->limits.slots;
    float *states = (float *)b->buf[BUF_STATE] + base * state_n, *windows = (float *)b->buf[BUF_CONV] + base * conv_n;
    float *taps = b->scratch.vec, *x = b->scratch.conv, a_log[MAX_GDN_HEADS], dt_bias[MAX_GDN_HEADS];
    ref_load_vec(&l->conv, taps);
    ref_load_vec(&l->a_log, a_log);
    ref_load_vec(&l->dt_bias, dt_bias);
    for (uint32_t g = 0; g < b->batch->segments; g++) {
        const batch_segment *seg = &b->batch->segment[g];
        float *state = states + seg->slot_dst * state_n, *window = windows + seg->slot_dst * conv_n;
        if (seg->slot_src == NO_SLOT) {
            memset(state, 0, state_n * sizeof *state);
            memset(window, 0, conv_n * sizeof *window);
        } else {
            memcpy(state, states + seg->slot_src * state_n, state_n * sizeof *state);
            memcpy(window, windows + seg->slot_src * conv_n, conv_n * sizeof *window);
        }
        for (uint32_t r = seg->first_row; r < seg->first_row + seg->rows; r++) {
            const float *in = (const float *)b->buf[BUF_MIXER_IN] + (size_t)r * in_stride, *a = in + C + V * D, *beta = a + V;
            float *out = (float *)b->buf[BUF_MIXER_OUT] + (size_t)r * out_stride, q[D], k[D];
            conv_row(in, window, taps, C, x);
            for (uint32_t h = 0; h < V; h++) {
                if (h % per_key == 0) {
                    l2norm(x + (size_t)h / per_key * D, 0.08838834764831845f /* 1/√128 */, q);
                    l2norm(x + keys + (size_t)h / per_key * D, 1, k);
                }
                const float alpha = expf(-expf(a_log[h]) * ref_softplus(a[h] + dt_bias[h]));
                delta_step(state + (size_t)h * D * D, q, k, x + 2 * (size_t)keys + (size_t)h * D, alpha, ref_sigmoid(beta[h]),
                           out + (size_t)h * D);
            }
        }
    }
}

/* o ← rmsnorm(o)·w · silu(z) per head, then the output projection and the residual. */
void ref_gdn_out(backend *b, const layer_weights *l) {
    const model_shape *s = b->s;
    const uint32_t n = shape_gdn_values(s), in_stride = shape_mixer_in_values(s), out_stride = shape_mixer_out_values(s);
    float gain[D];
    ref_load_vec(&l->gdn_norm, gain);
    for (uint32_t r = 0; r < b->batch->rows; r++) {
        const float *o = (const float *)b->buf[BUF_MIXER_OUT] + (size_t)r * out_stride;
        const float *z = (const float *)b->buf[BUF_MIXER_IN] + (size_t)r * in_stride + shape_conv_channels(s);
        float *x = b->scratch.rows + (size_t)r * n;
        for (uint32_t h = 0; h < s->gdn_value_heads; h++) ref_rmsnorm(o + (size_t)h * D, gain, s->norm_eps, D, x + (size_t)h * D);
        for (uint32_t i = 0; i < n; i++) x[i] *= ref_silu(z[i]);
    }
    ref_project_residual(b, &l->gdn_out);
}

/* row.c: the norm of single rows; the embedding, the head, and the two projections around a mixer. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "backend/ref/sample.h"

void ref_rmsnorm(const float *x, const float *gain, float eps, uint32_t n, float *out) {
    double sum = 0; /* the one place where float32 would lose digits for nothing */
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    const float scale = (float)(1 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * scale * gain[i];
}

void ref_embed(backend *b) {
    const uint32_t H = b->s->hidden;
    float *residual = b->buf[BUF_RESIDUAL];
    for (uint32_t r = 0; r < b->batch->rows; r++) {
        int32_t id = b->batch->ids[r];
        if (id < 0) id = b->results[-1 - id].id;
        ref_weight_row(&b->w->embed, 0, (uint32_t)id, residual + (size_t)r * H);
    }
}

void ref_mixer_norm(backend *b, const layer_weights *l) {
    const uint32_t H = b->s->hidden;
    const float *residual = b->buf[BUF_RESIDUAL];
    ref_load_vec(&l->norm_mixer, b->scratch.vec);
    for (uint32_t r = 0; r < b->batch->rows; r++)
        ref_rmsnorm(residual + (size_t)r * H, b->scratch.vec, b->s->norm_eps, H, b->scratch.rows + (size_t)r * H);
}

void ref_project_residual(backend *b, const weight_mat *m) {
    const uint32_t H = b->s->hidden;
    float *residual = b->buf[BUF_RESIDUAL];
    for (uint32_t o = 0; o < H; o++) {
        ref_weight_row(m, 0, o, b->scratch.weight);
        for (uint32_t r = 0; r < b->batch->rows; r++)
            residual[(size_t)r * H + o] += ref_dot(b->scratch.weight, b->scratch.rows + (size_t)r * m->cols, m->cols);
    }
}

void ref_head(backend *b) {
    const row_batch *t = b->batch;
    const uint32_t H = b->s->hidden;
    const float *residual = b->buf[BUF_RESIDUAL];
    float *logits = b->buf[BUF_LOGITS];
    ref_load_vec(&b->w->final_norm, b->scratch.vec);
    for (uint32_t i = 0; i < t->wanted; i++)
        ref_rmsnorm(residual + (size_t)t->wanted_row[i] * H, b->scratch.vec, b->s->norm_eps, H, b->scratch.rows + (size_t)i * H);
    ref_linear(&b->w->lm_head, 0, b->scratch.rows, H, logits, b->s->vocabulary, t->wanted, b->scratch.weight);
    for (uint32_t i = 0; i < t->samples; i++)
        ref_sample(logits + (size_t)t->sample_of[i] * b->s->vocabulary, b->s->vocabulary, &t->sample[i], b->scratch.sample, &b->results[i]);
}

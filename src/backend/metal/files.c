/* files.c: which files of the checkpoint are used where they are mapped.
 *
 * One whose matrices all stand at multiples of 256 needs no copy of them: a buffer is put around the map.  Those that are joined with
 * their neighbours are copied all the same.  The published files do not qualify, since their data begin at odd addresses; one that was
 * written by a tool that pads does.  All of a buffer is kept in memory: a file with much that is not used is better copied. */
#include "backend/metal/metal.h"

enum { ALIGN = 256 };

static metal_file *file_at(metal_weights *w, const uint8_t *data) {
    for (uint32_t i = 0; i < w->files; i++)
        if ((uintptr_t)data - (uintptr_t)w->file[i].data < w->file[i].bytes) return &w->file[i];
    return NULL;
}

/* NULL: there are more than can be listed. */
static metal_file *file_with(backend *b, const uint8_t *data) {
    metal_weights *w = &b->weights;
    metal_file *f = file_at(w, data);
    weights_place p;
    if (f || w->files == METAL_MOST_FILES || !weights_locate(b->w, data, &p)) return f;
    f = &w->file[w->files++];
    *f = (metal_file){.data = p.file_data, .bytes = p.file_bytes, .in_place = p.file_bytes <= b->facts.largest_buffer_bytes};
    return f;
}

static bool is_aligned(const metal_file *f, const uint8_t *data) {
    const uint64_t offset = (uintptr_t)data - (uintptr_t)f->data;
    return offset < f->bytes && offset % ALIGN == 0;
}

static void look_at(backend *b, const weight_mat *m) {
    metal_file *f = m->codes ? file_with(b, m->codes) : NULL;
    if (!f) return;
    f->alone += weight_mat_bytes(m);
    f->in_place &= is_aligned(f, m->codes) && (m->bits == 16 || (is_aligned(f, m->scales) && is_aligned(f, m->biases)));
}

void metal_find_files(backend *b) {
    metal_weights *w = &b->weights;
    look_at(b, &b->w->embed);
    if (b->w->lm_head.codes != b->w->embed.codes) look_at(b, &b->w->lm_head);
    for (uint32_t i = 0; i < b->s->layers; i++) {
        const layer_weights *l = &b->w->layer[i];
        const weight_mat *const alone[] = {b->s->is_attention[i] ? &l->attn_out : &l->gdn_out,
                                           &l->shared_gate,
                                           &l->shared_up,
                                           &l->shared_down,
                                           &l->expert_gate,
                                           &l->expert_up,
                                           &l->expert_down};
        for (size_t j = 0; j < sizeof alone / sizeof *alone; j++) look_at(b, alone[j]);
    }
    for (uint32_t i = 0; i < w->files; i++) w->file[i].in_place &= w->file[i].alone >= w->file[i].bytes / 2;
}

const metal_file *metal_file_of(const backend *b, const weight_mat *m) {
    const metal_weights *w = &b->weights;
    for (uint32_t i = 0; i < w->files; i++)
        if (w->file[i].in_place && (uintptr_t)m->codes - (uintptr_t)w->file[i].data < w->file[i].bytes) return &w->file[i];
    return NULL;
}

uint64_t metal_bytes_in_place(const metal_weights *w) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->files; i++) bytes += w->file[i].in_place ? w->file[i].bytes : 0;
    return bytes;
}

calla_status metal_adopt_files(backend *b, calla_error *err) {
    calla_status status = CALLA_OK;
    for (uint32_t i = 0; i < b->weights.files && !status; i++) {
        metal_file *f = &b->weights.file[i];
        if (f->in_place) status = gpu_adopt(b->gpu, f->data, f->bytes, "weights", &f->memory, err);
    }
    return status;
}

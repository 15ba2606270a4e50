/* force.c: what the next token of an answer may be: tokens that it is made to take at a given place, and the caller's guide.  Both work by
 * the sampler's mask, so that no backend knows of them; it is looked at once per step, and only jobs that force or are guided have one. */
#include <string.h>

#include "engine/engine.h"

static bool holds(const int32_t *ids, uint32_t n, int32_t id) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

calla_status force_check(const calla_force *f, const calla_engine_info *info, calla_error *err) {
    if (f->n > CALLA_MAX_FORCED || f->n_unless > CALLA_MAX_FORCED)
        return error_set(err, CALLA_E_ARGUMENT, "forced tokens: at most %d are possible", CALLA_MAX_FORCED);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->ids[i] < 0 || (uint32_t)f->ids[i] >= info->vocabulary)
            return error_set(err, CALLA_E_ARGUMENT, "forced tokens: there is no token %d; ids are 0 to %u", f->ids[i],
                             info->vocabulary - 1);
    return CALLA_OK;
}

static const uint32_t *mask_of_one(job *j, size_t words, uint32_t id) {
    memset(j->mask, 0, words * sizeof *j->mask);
    j->mask[id / 32] = 1u << id % 32;
    return j->mask;
}

static const uint32_t *mask_without_stops(job *j, size_t words, const calla_engine *e) {
    memset(j->mask, 0xFF, words * sizeof *j->mask);
    for (uint32_t i = 0; i < e->n_stop_ids; i++) {
        const uint32_t id = (uint32_t)e->stop_ids[i];
        if (id < e->info.vocabulary) j->mask[id / 32] &= ~(1u << id % 32);
    }
    return j->mask;
}

const uint32_t *force_mask(job *j, const calla_engine *e) {
    const calla_force *f = &j->force;
    const size_t words = (e->info.vocabulary + 31u) / 32;
    const bool due = f->n && j->made >= f->after;
    if (due && j->forced < f->n) return mask_of_one(j, words, (uint32_t)f->ids[j->forced]);
    const uint32_t *guided = j->guide.mask ? j->guide.mask(j->guide.user) : NULL;
    /* Behind the last of them the model must not take it for the end.  A guide that has something to say knows itself where that may be. */
    return due && !guided ? mask_without_stops(j, words, e) : guided;
}

static void force_advance(job *j, int32_t id) {
    calla_force *f = &j->force;
    if (!f->n) return;
    if (j->made <= f->after) {
        if (holds(f->unless, f->n_unless, id)) f->n = 0;
    } else if (j->forced < f->n)
        j->forced++;
    else
        f->n = 0;
}

void force_took(job *j, int32_t id) {
    force_advance(j, id);
    if (j->guide.mask) j->guide.took(j->guide.user, id);
}

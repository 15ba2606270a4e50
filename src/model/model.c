/* model.c: opening a model, and turning segments of sequences into the batch that the device runs. */
#include "model/model.h"

#include "base/memory.h"
#include "model/forward.h"
#include "model/plan.h"
#include "model/state.h"

struct model {
    const weights *w;
    const backend_vtable *vt;
    backend *device;
    model_plan plan;
    state st;
    forward_hooks hooks;
    bool all_rows;
    row_batch batch, last; /* arrays below, in the sizes of plan.limits */
    int32_t *ids;
    uint32_t *positions, *segment_of, *page_table, *wanted_row, *sample_of;
    batch_segment *segment;
    uint32_t *last_positions, *last_segment_of, *last_wanted_row; /* of the wanted rows alone */
    batch_segment *last_segment;
    sample_request *sample;
    uint32_t *first_wanted, *sample_at; /* [segments] of the last successful step: index into wanted; into samples or UINT32_MAX */
    uint32_t segments;                  /* of the last successful step */
};

calla_status model_open(const weights *w, const model_options *o, model **out, calla_error *err) {
    *out = NULL;
    if (!o->batch_rows || !o->max_segments || !o->sequences || !o->kv_tokens)
        return error_set(err, CALLA_E_ARGUMENT, "model: rows, segments, sequences and KV tokens must be at least 1");
    model *m = mem_calloc(1, sizeof *m);
    if (!m) return error_nomem(err, "the model");
    m->w = w;
    m->vt = o->backend;
    m->all_rows = o->all_rows;
    model_plan_compute(&w->shape, o, &m->plan);
    const backend_limits *n = &m->plan.limits;
    m->ids = mem_array(n->rows, sizeof *m->ids);
    m->positions = mem_array(n->rows, sizeof *m->positions);
    m->segment_of = mem_array(n->rows, sizeof *m->segment_of);
    m->page_table = mem_array((size_t)n->segments * n->pages, sizeof *m->page_table);
    m->wanted_row = mem_array(n->wanted, sizeof *m->wanted_row);
    m->sample_of = mem_array(n->samples, sizeof *m->sample_of);
    m->segment = mem_array(n->segments, sizeof *m->segment);
    m->sample = mem_array(n->samples, sizeof *m->sample);
    m->last_positions = mem_array(n->wanted, sizeof *m->last_positions);
    m->last_segment_of = mem_array(n->wanted, sizeof *m->last_segment_of);
    m->last_wanted_row = mem_array(n->wanted, sizeof *m->last_wanted_row);
    m->last_segment = mem_array(n->segments, sizeof *m->last_segment);
    m->first_wanted = mem_array(n->segments, sizeof *m->first_wanted);
    m->sample_at = mem_array(n->segments, sizeof *m->sample_at);
    calla_status status = CALLA_OK;
    if (!m->ids || !m->positions || !m->segment_of || !m->page_table || !m->wanted_row || !m->sample_of || !m->segment || !m->sample ||
        !m->first_wanted || !m->sample_at || !m->last_positions || !m->last_segment_of || !m->last_wanted_row || !m->last_segment)
        status = error_nomem(err, "the batch");
    if (!status) status = m->vt->open(w, n, &m->device, err);
    if (!status) status = m->vt->allocate(m->device, m->plan.bytes, err);
    if (!status && m->vt->load) status = m->vt->load(m->device, o->progress, o->progress_user, err);
    if (!status) status = state_open(&m->st, m->vt, m->device, n, err);
    if (status) {
        model_close(m);
        return status;
    }
    *out = m;
    return CALLA_OK;
}

void model_close(model *m) {
    if (!m) return;
    state_close(&m->st);
    if (m->device) m->vt->close(m->device);
    void *const arrays[] = {
        m->ids,         m->positions,    m->segment_of, m->page_table,       m->wanted_row,     m->sample_of,       m->segment,
        m->sample,      m->first_wanted, m->sample_at,  m->hooks.probe_rows, m->last_positions, m->last_segment_of, m->last_wanted_row,
        m->last_segment};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) mem_free(arrays[i]);
    mem_free(m);
}

const model_shape *model_get_shape(const model *m) { return &m->w->shape; }

const model_plan *model_get_plan(const model *m) { return &m->plan; }

uint64_t model_state_bytes(const model *m) { return (m->plan.bytes[BUF_STATE] + m->plan.bytes[BUF_CONV]) / m->plan.limits.slots; }

uint64_t model_kv_token_bytes(const model *m) { return m->plan.bytes[BUF_KV] / ((uint64_t)m->plan.limits.pages * KV_PAGE_TOKENS); }

void model_describe_device(const model *m, char *out, size_t n) {
    out[0] = 0;
    if (m->vt->describe) m->vt->describe(m->device, out, n);
}

double model_read_rate(model *m) { return m->vt->read_rate ? m->vt->read_rate(m->device) : 0; }

void model_dot_rates(model *m, calla_dot_rates *out) {
    *out = (calla_dot_rates){0};
    if (m->vt->dot_rates) m->vt->dot_rates(m->device, out);
}

calla_status model_set_probe(model *m, model_probe_fn fn, void *user, calla_error *err) {
    if (fn && !m->hooks.probe_rows &&
        !(m->hooks.probe_rows = mem_array((size_t)m->plan.limits.rows * m->w->shape.hidden, sizeof *m->hooks.probe_rows)))
        return error_nomem(err, "the probe");
    m->hooks.probe = fn;
    m->hooks.probe_user = user;
    return CALLA_OK;
}

calla_status sequence_open(model *m, sequence **out, calla_error *err) {
    *out = sequence_create(&m->st);
    return *out ? CALLA_OK : error_nomem(err, "a sequence");
}

/* Which rows of a segment are wanted: the first of them, and how many. */
static uint32_t wanted_rows(const model_segment *g) { return g->want == WANT_ALL ? g->rows : g->want == WANT_LAST || g->sample ? 1 : 0; }

static calla_status check(const model *m, const model_segment *segments, uint32_t n, calla_error *err) {
    const backend_limits *limits = &m->plan.limits;
    uint64_t rows = 0, wanted = 0;
    if (!n || n > limits->segments)
        return error_set(err, CALLA_E_LIMIT, "a batch of %u segments; 1 to %u are possible", n, limits->segments);
    for (uint32_t g = 0; g < n; g++) {
        rows += segments[g].rows;
        wanted += wanted_rows(&segments[g]);
        if (!segments[g].rows) return error_set(err, CALLA_E_ARGUMENT, "segment %u of a batch has no rows", g);
        for (uint32_t j = 0; j < g; j++)
            if (segments[j].sequence == segments[g].sequence)
                return error_set(err, CALLA_E_ARGUMENT, "segments %u and %u are of one sequence", j, g);
    }
    if (rows > limits->rows || wanted > limits->wanted)
        return error_set(err, CALLA_E_LIMIT, "a batch of %llu rows, %llu with logits; %u and %u are planned", (unsigned long long)rows,
                         (unsigned long long)wanted, limits->rows, limits->wanted);
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t i = 0; i < segments[g].rows; i++) {
            const int32_t id = segments[g].ids[i];
            const bool chained = id < 0 && id >= -(int32_t)m->segments && m->sample_at[-1 - id] != UINT32_MAX;
            if (!chained && (id < 0 || (uint32_t)id >= m->w->shape.vocabulary))
                return error_set(err, CALLA_E_ARGUMENT, "token id %d; the embedding has %u rows", id, m->w->shape.vocabulary);
        }
    return CALLA_OK;
}

/* The wanted rows alone, for the last layer. */
static void describe_last(model *m) {
    const row_batch *all = &m->batch;
    for (uint32_t g = 0; g < all->segments; g++) {
        m->last_segment[g] = m->segment[g];
        m->last_segment[g].rows = 0;
    }
    for (uint32_t i = 0; i < all->wanted; i++) {
        const uint32_t row = m->wanted_row[i], g = m->segment_of[row];
        batch_segment *seg = &m->last_segment[g];
        if (!seg->rows++) seg->first_row = i, seg->first_position = m->positions[row];
        m->last_positions[i] = m->positions[row];
        m->last_segment_of[i] = g;
        m->last_wanted_row[i] = i;
    }
    m->last = *all;
    m->last.rows = all->wanted;
    m->last.ids = NULL; /* embedded already */
    m->last.positions = m->last_positions;
    m->last.segment_of = m->last_segment_of;
    m->last.segment = m->last_segment;
    m->last.wanted_row = m->last_wanted_row;
    m->batch.last = &m->last;
}

/* Fills the descriptor; every sequence has begun its step. */
static void describe(model *m, const model_segment *segments, uint32_t n) {
    uint32_t row = 0, page = 0, wanted = 0, samples = 0;
    for (uint32_t g = 0; g < n; g++) {
        const model_segment *in = &segments[g];
        const sequence *s = in->sequence;
        m->segment[g] = (batch_segment){row, in->rows, s->tokens, s->slot, s->step_slot, page, s->pages};
        for (uint32_t i = 0; i < s->pages; i++) m->page_table[page++] = s->page[i];
        for (uint32_t i = 0; i < in->rows; i++) {
            const int32_t id = in->ids[i]; /* negative: names a segment of the last step; the device wants its sample */
            m->ids[row + i] = id < 0 ? -1 - (int32_t)m->sample_at[-1 - id] : id;
            m->positions[row + i] = s->tokens + i;
            m->segment_of[row + i] = g;
        }
        row += in->rows;
    }
    m->segments = n; /* only now: ids above referred to the step before */
    for (uint32_t g = 0; g < n; g++) {
        const batch_segment *seg = &m->segment[g];
        m->first_wanted[g] = wanted;
        for (uint32_t i = wanted_rows(&segments[g]); i--;) m->wanted_row[wanted++] = seg->first_row + seg->rows - 1 - i;
        m->sample_at[g] = segments[g].sample ? samples : UINT32_MAX;
        if (segments[g].sample) {
            m->sample_of[samples] = wanted - 1;
            m->sample[samples++] = *segments[g].sample;
        }
    }
    m->batch =
        (row_batch){row,          n,         wanted, samples, m->ids, m->positions, m->segment_of, m->segment, m->page_table, m->wanted_row,
                    m->sample_of, m->sample, NULL};
    const model_shape *shape = &m->w->shape;
    if (wanted < row && shape->is_attention[shape->layers - 1] && !m->all_rows && !m->hooks.probe) describe_last(m);
}

calla_status model_step(model *m, const model_segment *segments, uint32_t n, model_stop_fn stop, void *user, calla_error *err) {
    uint32_t begun = 0, stages = 0;
    calla_status status = check(m, segments, n, err);
    while (!status && begun < n) {
        status = sequence_begin(segments[begun].sequence, segments[begun].rows, err);
        if (!status) begun++;
    }
    if (!status) {
        describe(m, segments, n);
        m->hooks.stop = stop;
        m->hooks.stop_user = user;
        status = forward_run(m->vt, m->device, &m->w->shape, &m->batch, &m->hooks, &stages, err);
        if (!status && stages != m->plan.stages)
            status = error_set(err, CALLA_E_INTERNAL, "a step took %u stages; %u are planned", stages, m->plan.stages);
        if (status) m->segments = 0;
    }
    for (uint32_t g = 0; g < begun; g++) {
        if (status)
            sequence_abandon(segments[g].sequence);
        else
            sequence_commit(segments[g].sequence);
    }
    return status;
}

const float *model_logits(model *m, uint32_t segment, uint32_t row) { return m->vt->logits(m->device, m->first_wanted[segment] + row); }

const sample_result *model_sampled(model *m, uint32_t segment) {
    return m->sample_at[segment] == UINT32_MAX ? NULL : m->vt->sampled(m->device, m->sample_at[segment]);
}

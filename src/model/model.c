/* model.c: opening a model, and turning segments of sequences into the batch that the device runs. */
#include "model/model.h"

#include "base/memory.h"
#include "model/forward.h"
#include "model/plan.h"
#include "model/state.h"

typedef struct described_step {
    row_batch batch, last; /* arrays below, in the sizes of plan.limits */
    int32_t *ids;
    uint32_t *positions, *segment_of, *page_table, *wanted_row, *sample_of;
    batch_segment *segment;
    uint32_t *last_positions, *last_segment_of, *last_wanted_row; /* of the wanted rows alone */
    batch_segment *last_segment;
    sample_request *sample;
    uint32_t *first_wanted, *sample_at; /* [segments]: index into wanted; into samples or UINT32_MAX */
    uint32_t segments;                  /* 0: it has failed */
} described_step;

struct model {
    const weights *w;
    const backend_vtable *vt;
    backend *device;
    model_plan plan;
    state st;
    forward_hooks hooks;
    bool all_rows;
    described_step steps[2];
    described_step *submitted, *collected; /* the last one; before the first an empty one */
    uint32_t under_way;                    /* submitted and not collected */
};

static bool open_step(described_step *d, const backend_limits *n) {
    d->ids = mem_array(n->rows, sizeof *d->ids);
    d->positions = mem_array(n->rows, sizeof *d->positions);
    d->segment_of = mem_array(n->rows, sizeof *d->segment_of);
    d->page_table = mem_array((size_t)n->segments * n->pages, sizeof *d->page_table);
    d->wanted_row = mem_array(n->wanted, sizeof *d->wanted_row);
    d->sample_of = mem_array(n->samples, sizeof *d->sample_of);
    d->segment = mem_array(n->segments, sizeof *d->segment);
    d->sample = mem_array(n->samples, sizeof *d->sample);
    d->last_positions = mem_array(n->wanted, sizeof *d->last_positions);
    d->last_segment_of = mem_array(n->wanted, sizeof *d->last_segment_of);
    d->last_wanted_row = mem_array(n->wanted, sizeof *d->last_wanted_row);
    d->last_segment = mem_array(n->segments, sizeof *d->last_segment);
    d->first_wanted = mem_array(n->segments, sizeof *d->first_wanted);
    d->sample_at = mem_array(n->segments, sizeof *d->sample_at);
    return d->ids && d->positions && d->segment_of && d->page_table && d->wanted_row && d->sample_of && d->segment && d->sample &&
           d->last_positions && d->last_segment_of && d->last_wanted_row && d->last_segment && d->first_wanted && d->sample_at;
}

static void close_step(described_step *d) {
    void *const arrays[] = {d->ids,          d->positions,    d->segment_of, d->page_table,     d->wanted_row,
                            d->sample_of,    d->segment,      d->sample,     d->last_positions, d->last_segment_of,
                            d->last_segment, d->first_wanted, d->sample_at,  d->last_wanted_row};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) mem_free(arrays[i]);
}

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
    calla_status status = CALLA_OK;
    m->submitted = m->collected = &m->steps[1];
    for (int i = 0; i < (m->vt->submit ? 2 : 1) && !status; i++)
        if (!open_step(&m->steps[i], n)) status = error_nomem(err, "the batch");
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
    for (int i = 0; i < 2; i++) close_step(&m->steps[i]);
    mem_free(m->hooks.probe_rows);
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
            const bool chained = id < 0 && id >= -(int32_t)m->submitted->segments && m->submitted->sample_at[-1 - id] != UINT32_MAX;
            if (!chained && (id < 0 || (uint32_t)id >= m->w->shape.vocabulary))
                return error_set(err, CALLA_E_ARGUMENT, "token id %d; the embedding has %u rows", id, m->w->shape.vocabulary);
        }
    return CALLA_OK;
}

/* The wanted rows alone, for the last layer. */
static void describe_last(described_step *d) {
    const row_batch *all = &d->batch;
    for (uint32_t g = 0; g < all->segments; g++) {
        d->last_segment[g] = d->segment[g];
        d->last_segment[g].rows = 0;
    }
    for (uint32_t i = 0; i < all->wanted; i++) {
        const uint32_t row = d->wanted_row[i], g = d->segment_of[row];
        batch_segment *seg = &d->last_segment[g];
        if (!seg->rows++) seg->first_row = i, seg->first_position = d->positions[row];
        d->last_positions[i] = d->positions[row];
        d->last_segment_of[i] = g;
        d->last_wanted_row[i] = i;
    }
    d->last = *all;
    d->last.rows = all->wanted;
    d->last.ids = NULL; /* embedded already */
    d->last.positions = d->last_positions;
    d->last.segment_of = d->last_segment_of;
    d->last.segment = d->last_segment;
    d->last.wanted_row = d->last_wanted_row;
    d->batch.last = &d->last;
}

/* Fills the descriptor, which may be that of the step before, `before`; every sequence has begun its step. */
static void describe(const model *m, const described_step *before, described_step *d, const model_segment *segments, uint32_t n) {
    uint32_t row = 0, page = 0, wanted = 0, samples = 0;
    for (uint32_t g = 0; g < n; g++) {
        const model_segment *in = &segments[g];
        const sequence *s = in->sequence;
        d->segment[g] = (batch_segment){row, in->rows, s->tokens, s->slot, s->step_slot, page, s->pages};
        for (uint32_t i = 0; i < s->pages; i++) d->page_table[page++] = s->page[i];
        for (uint32_t i = 0; i < in->rows; i++) {
            const int32_t id = in->ids[i]; /* negative: names a segment of the last step; the device wants its sample */
            d->ids[row + i] = id < 0 ? -1 - (int32_t)before->sample_at[-1 - id] : id;
            d->positions[row + i] = s->tokens + i;
            d->segment_of[row + i] = g;
        }
        row += in->rows;
    }
    d->segments = n; /* only now: ids above referred to the step before */
    for (uint32_t g = 0; g < n; g++) {
        const batch_segment *seg = &d->segment[g];
        d->first_wanted[g] = wanted;
        for (uint32_t i = wanted_rows(&segments[g]); i--;) d->wanted_row[wanted++] = seg->first_row + seg->rows - 1 - i;
        d->sample_at[g] = segments[g].sample ? samples : UINT32_MAX;
        if (segments[g].sample) {
            d->sample_of[samples] = wanted - 1;
            d->sample[samples++] = *segments[g].sample;
        }
    }
    d->batch =
        (row_batch){row,          n,         wanted, samples, d->ids, d->positions, d->segment_of, d->segment, d->page_table, d->wanted_row,
                    d->sample_of, d->sample, NULL};
    const model_shape *shape = &m->w->shape;
    if (wanted < row && shape->is_attention[shape->layers - 1] && !m->all_rows && !m->hooks.probe) describe_last(d);
}

static calla_status run(model *m, const model_segment *segments, uint32_t n, described_step *d, calla_error *err) {
    uint32_t stages = 0;
    describe(m, m->submitted, d, segments, n);
    calla_status status = forward_run(m->vt, m->device, &m->w->shape, &d->batch, &m->hooks, &stages, err);
    if (!status && stages != m->plan.stages)
        status = error_set(err, CALLA_E_INTERNAL, "a step took %u stages; %u are planned", stages, m->plan.stages);
    if (status) d->segments = 0;
    return status;
}

calla_status model_submit(model *m, const model_segment *segments, uint32_t n, model_stop_fn stop, void *user, calla_error *err) {
    described_step *d = &m->steps[m->vt->submit && m->submitted == &m->steps[0]];
    uint32_t begun = 0;
    if (m->under_way && !model_runs_ahead(m)) return error_set(err, CALLA_E_INTERNAL, "%u steps are under way already", m->under_way);
    calla_status status = check(m, segments, n, err);
    while (!status && begun < n) {
        status = sequence_begin(segments[begun].sequence, segments[begun].rows, err);
        if (!status) begun++;
    }
    if (!status) {
        m->hooks.stop = stop;
        m->hooks.stop_user = user;
        status = run(m, segments, n, d, err);
    }
    for (uint32_t g = 0; g < begun; g++) {
        if (status)
            sequence_abandon(segments[g].sequence);
        else
            sequence_commit(segments[g].sequence);
    }
    if (status) return status;
    m->submitted = d;
    m->under_way++;
    return CALLA_OK;
}

bool model_picks_later(const model *m) { return m->vt->pick; }

void model_pick(model *m, const model_segment *segments) {
    if (!m->vt->pick) return;
    const described_step *d = m->submitted;
    for (uint32_t g = 0; g < d->segments; g++)
        if (segments[g].sample) d->sample[d->sample_at[g]] = *segments[g].sample;
    m->vt->pick(m->device);
}

calla_status model_collect(model *m, calla_error *err) {
    if (!m->under_way) return error_set(err, CALLA_E_INTERNAL, "no step is under way");
    m->collected = m->under_way > 1 && m->submitted == &m->steps[0] ? &m->steps[1] : m->under_way > 1 ? &m->steps[0] : m->submitted;
    m->under_way--;
    const calla_status status = m->vt->collect ? m->vt->collect(m->device, err) : CALLA_OK;
    if (status) m->submitted->segments = 0;
    return status;
}

calla_status model_step(model *m, const model_segment *segments, uint32_t n, model_stop_fn stop, void *user, calla_error *err) {
    calla_error unused;
    calla_status status = model_submit(m, segments, n, stop, user, err);
    if (status) return status;
    model_pick(m, segments);
    status = model_collect(m, err);
    for (uint32_t g = 0; g < n && status; g++) sequence_rollback(segments[g].sequence, &unused);
    return status;
}

bool model_runs_ahead(const model *m) { return m->vt->submit && m->under_way < 2; }

bool model_runs_ahead_of(const model *m, uint32_t segment) {
    const uint32_t sample = m->submitted->sample_at[segment];
    return sample != UINT32_MAX && m->vt->runs_ahead(m->device, sample);
}

const float *model_logits(model *m, uint32_t segment, uint32_t row) {
    return m->vt->logits(m->device, m->collected->first_wanted[segment] + row);
}

const sample_result *model_sampled(model *m, uint32_t segment) {
    const uint32_t sample = m->collected->sample_at[segment];
    return sample == UINT32_MAX ? NULL : m->vt->sampled(m->device, sample);
}

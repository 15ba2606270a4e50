/* eval.c: calla eval: how well the model predicts a text, and how near that is to a recorded run; for comparing devices, precisions,
 * types of cache and batch sizes.  Owns the command; evaluate.h measures, record.h is the recorded run. */
#include "cli/eval.h"

#include <math.h>

#include "base/map.h"
#include "base/memory.h"
#include "cli/evaluate.h"
#include "cli/loading.h"
#include "cli/report.h"
#include "text/text.h"

typedef struct eval_run {
    const options *o;
    const char *from; /* --text or --ids */
    char *input;      /* [n_input] */
    size_t n_input;
    calla_engine *engine;
    calla_engine_info info;
    calla_ids ids;
    evaluation_task task;
    uint64_t bytes; /* of the scored tokens; 0: unknown */
    char *against_data;
    size_t n_against_data;
    record against;
    buffer recording;
    uint64_t recorded_bytes;
    evaluation result;
} eval_run;

static calla_status open_engine(eval_run *r, bool text, calla_error *err) {
    calla_engine_options eo;
    calla_status status = cli_engine_options(r->o, &eo, err);
    if (status) return status;
    eo.max_sequences = 1;
    eo.ids_only = !text;
    if (!eo.context_tokens) eo.context_tokens = r->task.window;
    status = loading_open_engine(&eo, &r->engine, err);
    if (!status) calla_engine_get_info(r->engine, &r->info);
    return status;
}

/* What computes and what it is given, as members of a JSON object. */
static void append_about(buffer *b, const eval_run *r) {
    report_append_build(b, &r->info, r->o);
    report_append_count(b, "batch_rows", r->info.batch_rows);
}

static calla_status compare_task(const eval_run *r, const char *what, calla_error *err) {
    const record *a = &r->against;
    const evaluation_task *t = &r->task;
    if (a->vocabulary_rows != r->info.vocabulary_rows)
        return error_set(err, CALLA_E_ARGUMENT, "%s is of a model with %u rows of vocabulary, this one has %u: record it with this model",
                         what, a->vocabulary_rows, r->info.vocabulary_rows);
    if (a->window != t->window || a->stride != t->stride)
        return error_set(err, CALLA_E_ARGUMENT, "%s was recorded with --window %u --stride %u: use the same", what, a->window, a->stride);
    if (a->positions != t->positions)
        return error_set(err, CALLA_E_ARGUMENT, "%s has %u positions, this run would score %u: use the same text and --positions", what,
                         a->positions, t->positions);
    if (a->tokens != record_hash_tokens(t->ids, t->n_ids))
        return error_set(err, CALLA_E_ARGUMENT, "%s was recorded with other tokens: use the same text, or record it again", what);
    return CALLA_OK;
}

static calla_status prepare_comparison(eval_run *r, calla_error *err) {
    const char *path = r->o->value[OPTION_AGAINST].text;
    if (!path) return CALLA_OK;
    calla_status status = file_read(path, INPUT_MAX, &r->against_data, &r->n_against_data, err);
    if (!status) status = record_parse(r->against_data, r->n_against_data, path, &r->against, err);
    if (!status) status = compare_task(r, path, err);
    r->task.against = &r->against;
    return status;
}

static calla_status prepare_recording(eval_run *r, calla_error *err) {
    if (!r->o->value[OPTION_RECORD].text) return CALLA_OK;
    buffer about = {0};
    buffer_append_char(&about, '{');
    append_about(&about, r);
    buffer_append_char(&about, '}');
    const record header = {.top = r->info.vocabulary_rows < TOP_MAX ? r->info.vocabulary_rows : TOP_MAX,
                           .vocabulary_rows = r->info.vocabulary_rows,
                           .positions = r->task.positions,
                           .window = r->task.window,
                           .stride = r->task.stride,
                           .tokens = record_hash_tokens(r->task.ids, r->task.n_ids),
                           .about = about.data,
                           .n_about = about.n};
    if (!about.failed) record_append_header(&r->recording, &header);
    const bool failed = about.failed || r->recording.failed;
    buffer_free(&about);
    r->task.recording = &r->recording;
    return failed ? error_nomem(err, "the recording") : CALLA_OK;
}

/* What calla_text_encode made of a text is its NFC form: its bytes are counted, not the file's. */
static void count_bytes(eval_run *r) {
    const calla_text *text = calla_engine_text(r->engine);
    for (uint32_t i = 0; text && i < r->task.positions; i++) {
        size_t n = 0;
        tokenizer_bytes(text->tokenizer, r->ids.ids[evaluation_target(r->task.window, r->task.stride, i)], &n);
        r->bytes += n;
    }
}

static calla_status prepare_task(eval_run *r, calla_error *err) {
    evaluation_task *t = &r->task;
    t->ids = r->ids.ids;
    t->n_ids = r->ids.n;
    t->positions = evaluation_positions(t->n_ids, t->window, t->stride, (uint32_t)r->o->value[OPTION_POSITIONS].integer);
    if (!t->positions)
        return error_set(err, CALLA_E_ARGUMENT,
                         "%s: %zu tokens, of which the first %u are only context and one more has nothing before it to score: give more, "
                         "or use --stride %u, without context",
                         r->from, t->n_ids, t->window - t->stride, t->window);
    t->n_ids = evaluation_target(t->window, t->stride, t->positions - 1) + 1; /* what --positions leaves out is not looked at */
    count_bytes(r);
    calla_status status = prepare_comparison(r, err);
    return status ? status : prepare_recording(r, err);
}

static calla_status write_recording(eval_run *r, calla_error *err) {
    if (!r->task.recording) return CALLA_OK;
    if (r->recording.failed)
        return error_set(err, CALLA_E_LIMIT, "the recording is larger than 1 GiB, or memory ran out: use --positions with fewer");
    r->recorded_bytes = r->recording.n;
    return cli_write_output(r->o->value[OPTION_RECORD].text, &r->recording, err);
}

/* ---- the report ---- */

static double per_position(const eval_run *r, double sum) { return sum / (double)r->task.positions; }

static double bits_per_byte(const eval_run *r) { return r->result.nats / log(2) / (double)r->bytes; }

static void append_report(buffer *b, const eval_run *r) {
    const evaluation *e = &r->result;
    buffer_append_char(b, '{');
    append_about(b, r);
    report_append_count(b, "window", r->task.window);
    report_append_count(b, "stride", r->task.stride);
    report_append_count(b, "positions", r->task.positions);
    report_append_number(b, "nats_per_token", per_position(r, e->nats));
    report_append_number(b, "perplexity", exp(per_position(r, e->nats)));
    if (r->bytes) {
        report_append_count(b, "bytes", r->bytes);
        report_append_number(b, "bits_per_byte", bits_per_byte(r));
    }
    if (r->task.against) {
        buffer_append_str(b, ",\"against\":{\"about\":");
        buffer_append(b, r->against.about, r->against.n_about);
        report_append_text(b, "file", r->o->value[OPTION_AGAINST].text);
        report_append_number(b, "perplexity", exp(per_position(r, e->reference_nats)));
        report_append_number(b, "top1_agreement", per_position(r, e->same_top1));
        report_append_number(b, "kl_mean", e->kl_mean);
        report_append_number(b, "kl_p99", e->kl_p99);
        report_append_number(b, "kl_largest", e->kl_largest);
        buffer_append_char(b, '}');
    }
    if (r->task.recording) {
        buffer_append_str(b, ",\"recorded\":{\"top\":");
        buffer_printf(b, "%u", r->info.vocabulary_rows < TOP_MAX ? r->info.vocabulary_rows : TOP_MAX);
        report_append_text(b, "file", r->o->value[OPTION_RECORD].text);
        report_append_count(b, "bytes", r->recorded_bytes);
        buffer_append_char(b, '}');
    }
    buffer_append_str(b, "}\n");
}

static void print_report(const eval_run *r) {
    const evaluation *e = &r->result;
    report_print_build(&r->info, r->o);
    report_print_line("positions", "%u in windows of %u, %u apart", r->task.positions, r->task.window, r->task.stride);
    report_print_line("perplexity", "%.4f", exp(per_position(r, e->nats)));
    if (r->bytes) report_print_line("bits per byte", "%.4f over %llu bytes", bits_per_byte(r), (unsigned long long)r->bytes);
    if (r->task.against) {
        report_print_line("against", "%s, of perplexity %.4f", r->o->value[OPTION_AGAINST].text, exp(per_position(r, e->reference_nats)));
        report_print_line("  same top token", "%.3f %%", 100 * per_position(r, e->same_top1));
        report_print_line("  KL divergence", "mean %.3g, 99th percentile %.3g, largest %.3g nats", e->kl_mean, e->kl_p99, e->kl_largest);
    }
    if (r->task.recording)
        report_print_line("recorded", "%s, %llu bytes", r->o->value[OPTION_RECORD].text, (unsigned long long)r->recorded_bytes);
}

static calla_status write_report(const eval_run *r, calla_error *err) {
    const char *to = r->o->value[OPTION_OUT].text;
    if (!to && !r->o->value[OPTION_JSON].given) return print_report(r), CALLA_OK;
    buffer b = {0};
    append_report(&b, r);
    return cli_write_output(to ? to : "-", &b, err);
}

/* ---- the command ---- */

static calla_status read_tokens(eval_run *r, bool text, calla_error *err) {
    calla_status status = cli_read_input(r->from, &r->input, &r->n_input, err);
    if (status || text) return status;
    status = cli_parse_ids(r->input, r->n_input, r->from, &r->ids, err);
    if (!status && r->ids.n == 0) status = error_set(err, CALLA_E_ARGUMENT, "%s: \"ids\" is empty: there is nothing to score", r->from);
    return status;
}

static calla_status run_report(eval_run *r, bool text, calla_error *err) {
    calla_status status = open_engine(r, text, err);
    if (!status && text) status = calla_text_encode(calla_engine_text(r->engine), r->input, r->n_input, &r->ids, err);
    if (!status) status = prepare_task(r, err);
    if (!status) status = evaluate(r->engine, &r->task, &r->result, err);
    if (!status) status = write_recording(r, err);
    if (!status) status = write_report(r, err);
    return status;
}

/* --ids and --out alone ask for the scores themselves. */
static bool wants_scores(const options *o) {
    static const option_id of_report[] = {OPTION_TEXT_FILE, OPTION_WINDOW,  OPTION_STRIDE, OPTION_POSITIONS,
                                          OPTION_RECORD,    OPTION_AGAINST, OPTION_JSON};
    for (size_t i = 0; i < sizeof of_report / sizeof *of_report; i++)
        if (o->value[of_report[i]].given) return false;
    return o->value[OPTION_OUT].given;
}

int command_eval(const options *o) {
    const char *text = o->value[OPTION_TEXT_FILE].text, *ids = o->value[OPTION_IDS].text;
    if (!text && !ids) return cli_fail_usage("eval needs --text FILE or --ids FILE (calla eval --help)");
    if (text && ids) return cli_fail_usage("eval takes --text or --ids, not both");
    eval_run r = {.o = o, .from = text ? text : ids};
    r.task.window = (uint32_t)o->value[OPTION_WINDOW].integer;
    r.task.stride = o->value[OPTION_STRIDE].given ? (uint32_t)o->value[OPTION_STRIDE].integer : (r.task.window + 1) / 2;
    if (r.task.window < r.task.stride)
        return cli_fail_usage("--stride %u is larger than --window %u: tokens between the windows would be left out", r.task.stride,
                              r.task.window);
    calla_error err = {0};
    calla_status status = read_tokens(&r, text != NULL, &err);
    if (!status)
        status = wants_scores(o) ? eval_write_scores(o, &r.ids, o->value[OPTION_OUT].text, &err) : run_report(&r, text != NULL, &err);
    calla_engine_close(r.engine);
    calla_ids_free(&r.ids);
    mem_free(r.input);
    mem_free(r.against_data);
    buffer_free(&r.recording);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

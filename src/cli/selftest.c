/* selftest.c: calla selftest: checks of a model on this machine that a user can run, and a report that can be attached to a bug.  Owns
 * the command and the report. */
#include "cli/selftest.h"

#include <stdarg.h>

#include "base/memory.h"
#include "cli/report.h"

static const char *const result_names[] = {"ok", "failed", "not for this model"};

calla_status selftest_open_engine(const selftest *s, uint32_t context_tokens, uint32_t sequences, uint32_t batch_rows, calla_engine **out,
                                  calla_error *err) {
    calla_engine_options eo;
    *out = NULL;
    calla_status status = cli_engine_options(s->o, &eo, err);
    if (status) return status;
    eo.context_tokens = context_tokens;
    eo.max_sequences = sequences;
    eo.batch_rows = batch_rows;
    eo.ids_only = true;
    return calla_engine_open(&eo, out, err);
}

check *selftest_add(selftest *s, const char *what, check_result result, const char *detail, ...) {
    if (s->n == SELFTEST_MAX_CHECKS) buffer_free(&s->checks[--s->n].members);
    check *c = &s->checks[s->n++];
    *c = (check){.result = result};
    snprintf(c->name, sizeof c->name, "%s", what);
    va_list ap;
    va_start(ap, detail);
    vsnprintf(c->detail, sizeof c->detail, detail, ap);
    va_end(ap);
    return c;
}

void selftest_add_error(selftest *s, const char *what, const calla_error *err) {
    selftest_add(s, what, CHECK_FAILED, "%s", err->message[0] ? err->message : calla_status_name(err->status));
}

static void check_weights(selftest *s) {
    calla_error err = {0};
    uint64_t bytes = 0;
    if (calla_engine_check_weights(s->engine, &bytes, &err)) {
        selftest_add_error(s, "weights", &err);
        return;
    }
    check *c = selftest_add(s, "weights", CHECK_OK, "%llu bytes of scales, biases and norms, all finite", (unsigned long long)bytes);
    report_append_count(&c->members, "bytes", bytes);
}

static uint32_t count(const selftest *s, check_result result) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += s->checks[i].result == result;
    return n;
}

static void append_report(buffer *b, const selftest *s) {
    buffer_append_char(b, '{');
    report_append_build(b, &s->info, s->o);
    buffer_append_str(b, ",\"checks\":[");
    for (uint32_t i = 0; i < s->n; i++) {
        const check *c = &s->checks[i];
        buffer_append_str(b, i ? ",{\"name\":" : "{\"name\":");
        json_append_str(b, c->name);
        report_append_text(b, "result", result_names[c->result]);
        report_append_text(b, "detail", c->detail);
        buffer_append(b, c->members.data, c->members.n);
        b->failed |= c->members.failed;
        buffer_append_char(b, '}');
    }
    buffer_append_char(b, ']');
    report_append_count(b, "passed", count(s, CHECK_OK));
    report_append_count(b, "failed", count(s, CHECK_FAILED));
    report_append_count(b, "not_for_this_model", count(s, CHECK_NOT_FOR_THIS_MODEL));
    buffer_append_str(b, "}\n");
}

static calla_status print_report(const selftest *s, calla_error *err) {
    if (s->o->value[OPTION_JSON].given) {
        buffer b = {0};
        append_report(&b, s);
        return cli_write_output("-", &b, err);
    }
    report_print_build(&s->info, s->o);
    putchar('\n');
    for (uint32_t i = 0; i < s->n; i++)
        report_print_line(s->checks[i].name, "%s: %s", result_names[s->checks[i].result], s->checks[i].detail);
    const uint32_t other = count(s, CHECK_NOT_FOR_THIS_MODEL);
    printf("\n%u passed, %u failed", count(s, CHECK_OK), count(s, CHECK_FAILED));
    if (other) printf(", %u not for this model", other);
    putchar('\n');
    return CALLA_OK;
}

static calla_status run(selftest *s, calla_error *err) {
    selftest_runs runs = {0};
    selftest_runs_open(s, &runs);
    const uint32_t context = runs.longest > SELFTEST_TOKENS ? runs.longest : SELFTEST_TOKENS;
    calla_status status = selftest_open_engine(s, context, SELFTEST_SEQUENCES, SELFTEST_BATCH_ROWS, &s->engine, err);
    if (!status) {
        calla_engine_get_info(s->engine, &s->info);
        check_weights(s);
        selftest_runs_check(s, &runs);
        selftest_side_by_side(s);
        calla_engine_close(s->engine);
        s->engine = NULL;
        selftest_pieces(s);
        status = print_report(s, err);
    }
    selftest_runs_close(&runs);
    return status;
}

int command_selftest(const options *o) {
    calla_error err = {0};
    selftest *s = mem_calloc(1, sizeof *s);
    if (!s) return error_nomem(&err, "the self-test"), cli_fail_error(&err);
    s->o = o;
    s->model_dir = cli_model_dir(o, &err);
    calla_status status = s->model_dir ? run(s, &err) : err.status;
    const uint32_t failed = count(s, CHECK_FAILED), n = s->n;
    for (uint32_t i = 0; i < s->n; i++) buffer_free(&s->checks[i].members);
    mem_free(s);
    if (status) return cli_fail_error(&err);
    return failed ? cli_fail("%u of %u checks failed", failed, n) : EXIT_OK;
}

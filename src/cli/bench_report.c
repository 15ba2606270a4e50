/* bench_report.c: what was measured, as figures, as a table, as JSON.  The names in the JSON are read by bench/table.py and by others:
 * they stay. */

#include "base/json.h"
#include "cli/bench.h"

static double per_second(uint64_t tokens, uint64_t ns) { return ns ? (double)tokens * 1e9 / (double)ns : 0; }

static double drift_of(uint64_t a, uint64_t b) {
    double least = (double)(a < b ? a : b), most = (double)(a < b ? b : a);
    return least > 0 ? most / least - 1 : 0;
}

bench_figures bench_figures_of(const bench *b, const bench_entry *e) {
    bench_figures f = {0};
    uint64_t prompt_ns = 0, decode_ns = 0, first_ns = 0;
    const double seen = (double)e->prompt * e->depth + (double)e->prompt * (e->prompt + 1.0) / 2; /* positions that the prompt's rows see */
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        const bench_run *run = &e->round[r];
        prompt_ns += run->prompt_ns;
        decode_ns += run->decode_ns;
        first_ns += run->first_token_ns;
        if (run->peak_bytes > f.peak_bytes) f.peak_bytes = run->peak_bytes;
        if (run->private_bytes > f.private_bytes) f.private_bytes = run->private_bytes;
    }
    f.prefill_tok_s = per_second((uint64_t)e->prompt * BENCH_ROUNDS, prompt_ns);
    f.prefill_tflop_s = ((double)b->info.token_flop + (double)b->info.context_flop * seen / e->prompt) * f.prefill_tok_s / 1e12;
    f.dot_peak_tflop_s = b->dots.used / 1e12;
    f.share_of_dot_peak = b->dots.used > 0 ? f.prefill_tflop_s / f.dot_peak_tflop_s : 0;
    f.decode_tok_s = per_second((uint64_t)e->decode * BENCH_ROUNDS, decode_ns);
    f.ttft_ms = (double)first_ns / (1e6 * (double)BENCH_ROUNDS);
    double prefill_drift = drift_of(e->round[0].prompt_ns, e->round[1].prompt_ns);
    double decode_drift = drift_of(e->round[0].decode_ns, e->round[1].decode_ns);
    f.drift = prefill_drift > decode_drift ? prefill_drift : decode_drift;
    f.decode_context = e->depth + e->prompt + (e->decode + 1) / 2; /* step k looks back at depth + prompt + k tokens, from k = 1 */
    f.bytes_per_token = b->info.token_bytes + 2 * b->info.state_bytes + f.decode_context * b->info.kv_token_bytes;
    f.achieved_gb_s = (double)f.bytes_per_token * f.decode_tok_s / 1e9;
    f.read_rate_gb_s = b->read_rate / 1e9;
    f.share_of_read_rate = b->read_rate > 0 ? f.achieved_gb_s / f.read_rate_gb_s : 0;
    return f;
}

static void print_dot_rates(const calla_dot_rates *dots, FILE *out) {
    const struct {
        const char *name;
        double rate;
    } types[] = {{"f32", dots->f32}, {"bf16", dots->bf16}, {"8 bits", dots->i8}};
    if (!(dots->used > 0)) {
        fprintf(out, "peak of dot products: unknown\n");
        return;
    }
    fprintf(out, "peak of dot products: %.3f TFLOP/s; by type:", dots->used / 1e12);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].rate > 0) fprintf(out, " %s %.3f", types[i].name, types[i].rate / 1e12);
    fputc('\n', out);
}

void bench_print(const bench *b, FILE *out) {
    bool unsteady = false;
    fprintf(out, "calla %s (commit %s), %s\n", calla_version(), calla_commit(), b->date);
    fprintf(out, "%s on %s%s%s; %s, %u cores\n\n", b->info.model_name, b->info.device, b->info.device_detail[0] ? ": " : "",
            b->info.device_detail, b->cpu, b->cores);
    fprintf(out, "%8s %8s %14s %8s %8s %13s %12s %10s %8s %8s %10s %16s\n", "prompt", "depth", "prefill tok/s", "TFLOP/s", "of peak",
            "decode tok/s", "first ms", "MB/token", "GB/s", "of read", "peak MB", "digest");
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const bench_entry *e = &b->entries[i];
        const bench_figures f = bench_figures_of(b, e);
        char share[16] = "-", dots[16] = "-", peak[32] = "-";
        if (f.share_of_dot_peak > 0) snprintf(dots, sizeof dots, "%.1f%%", f.share_of_dot_peak * 100);
        if (f.share_of_read_rate > 0) snprintf(share, sizeof share, "%.1f%%", f.share_of_read_rate * 100);
        if (f.peak_bytes) snprintf(peak, sizeof peak, "%.1f", (double)f.peak_bytes / 1e6);
        fprintf(out, "%8u %8u %14.1f %8.3f %8s %13.2f %12.1f %10.1f %8.2f %8s %10s %016llx%s\n", e->prompt, e->depth, f.prefill_tok_s,
                f.prefill_tflop_s, dots, f.decode_tok_s, f.ttft_ms, (double)f.bytes_per_token / 1e6, f.achieved_gb_s, share, peak,
                (unsigned long long)e->warm_up.digest, f.drift >= BENCH_DRIFT ? " unsteady" : "");
        unsteady = unsteady || f.drift >= BENCH_DRIFT;
    }
    if (b->read_rate > 0)
        fprintf(out, "\nread rate of the memory: %.2f GB/s; ", b->read_rate / 1e9);
    else
        fprintf(out, "\nread rate of the memory: unknown; ");
    fprintf(out, "%u stages a token\n", b->info.stages);
    print_dot_rates(&b->dots, out);
    if (unsteady) fprintf(out, "unsteady: the two rounds differ by 3 %% or more; close other programs and measure again\n");
}

double bench_worth(double with_tok_s, double without_tok_s) {
    return with_tok_s > 0 && without_tok_s > 0 ? with_tok_s / without_tok_s - 1 : 0;
}

void bench_print_ablation(const bench_ablation *a, FILE *out) {
    fprintf(out, "\n%8s %8s  %-24s %14s %8s %13s %8s\n", "prompt", "depth", "without", "prefill tok/s", "worth", "decode tok/s", "worth");
    for (uint32_t e = 0; e < a->arms[0].n_entries; e++) {
        const bench_entry *all = &a->arms[0].entries[e];
        const bench_figures with = bench_figures_of(&a->arms[0], all);
        for (uint32_t i = 0; i < a->n_arms; i++) {
            const bench_figures f = bench_figures_of(&a->arms[i], &a->arms[i].entries[e]);
            fprintf(out, "%8u %8u  %-24s %14.1f", all->prompt, all->depth, i ? a->off[i]->name : "-", f.prefill_tok_s);
            if (i)
                fprintf(out, " %+7.1f%% %13.2f %+7.1f%%", 100 * bench_worth(with.prefill_tok_s, f.prefill_tok_s), f.decode_tok_s,
                        100 * bench_worth(with.decode_tok_s, f.decode_tok_s));
            else
                fprintf(out, " %8s %13.2f %8s", "", f.decode_tok_s, "");
            fprintf(out, "%s\n", f.drift >= BENCH_DRIFT ? " unsteady" : "");
        }
    }
    fprintf(out, "\nworth: how much faster it is with it than without it\n");
    for (uint32_t i = 1; i < a->n_arms; i++) fprintf(out, "%s: %s\n", a->off[i]->name, a->off[i]->meaning);
}

/* JSON has no "unknown" but null. */
static void append_known(buffer *out, const char *name, double x, int digits) {
    if (x > 0)
        buffer_printf(out, ",\"%s\":%.*f", name, digits, x);
    else
        buffer_printf(out, ",\"%s\":null", name);
}

static void append_text(buffer *out, const char *name, const char *text) {
    buffer_printf(out, ",\"%s\":", name);
    json_append_str(out, text);
}

static void append_list(buffer *out, const char *name, const option_value *v) {
    buffer_printf(out, ",\"%s\":[", name);
    for (uint32_t i = 0; i < v->n_list; i++) buffer_printf(out, "%s%u", i ? "," : "", v->list[i]);
    buffer_append_char(out, ']');
}

static void append_options(buffer *out, const options *o, uint32_t batch_rows) {
    const option_value *v = o->value;
    buffer_printf(out, ",\"options\":{\"decode\":%llu", (unsigned long long)v[OPTION_DECODE_STEPS].integer);
    append_list(out, "prompt", &v[OPTION_PROMPT]);
    append_list(out, "depth", &v[OPTION_DEPTH]);
    append_known(out, "threads", (double)v[OPTION_THREADS].integer, 0);
    buffer_printf(out, ",\"batch_rows\":%u", batch_rows);
    append_text(out, "precision", v[OPTION_PRECISION].text);
    append_text(out, "kv", v[OPTION_KV].text);
    buffer_printf(out, ",\"deterministic\":%s", v[OPTION_DETERMINISTIC].given ? "true" : "false");
    append_text(out, "without", v[OPTION_WITHOUT].text ? v[OPTION_WITHOUT].text : "");
    buffer_append_char(out, '}');
}

static void append_dot_rates(buffer *out, const calla_dot_rates *dots) {
    buffer_append_str(out, ",\"dot_rates\":{\"unit\":\"TFLOP/s\"");
    append_known(out, "f32", dots->f32 / 1e12, 6);
    append_known(out, "bf16", dots->bf16 / 1e12, 6);
    append_known(out, "i8", dots->i8 / 1e12, 6);
    buffer_append_char(out, '}');
}

/* Without its closing brace. */
static void append_entry(buffer *out, const bench *b, const bench_entry *e) {
    const bench_figures f = bench_figures_of(b, e);
    buffer_printf(out, "{\"prompt\":%u,\"depth\":%u,\"decode\":%u,\"decode_context\":%u", e->prompt, e->depth, e->decode, f.decode_context);
    buffer_printf(out, ",\"prefill_tok_s\":%.3f,\"decode_tok_s\":%.3f,\"ttft_ms\":%.3f", f.prefill_tok_s, f.decode_tok_s, f.ttft_ms);
    buffer_printf(out, ",\"prefill_tflop_s\":%.6f", f.prefill_tflop_s);
    append_known(out, "dot_peak_tflop_s", f.dot_peak_tflop_s, 6);
    append_known(out, "share_of_dot_peak", f.share_of_dot_peak, 4);
    buffer_printf(out, ",\"bytes_per_token\":%llu,\"achieved_gb_s\":%.3f", (unsigned long long)f.bytes_per_token, f.achieved_gb_s);
    append_known(out, "read_rate_gb_s", f.read_rate_gb_s, 3);
    append_known(out, "share_of_read_rate", f.share_of_read_rate, 4);
    append_known(out, "peak_bytes", (double)f.peak_bytes, 0);
    append_known(out, "private_bytes", (double)f.private_bytes, 0);
    buffer_printf(out, ",\"stages_per_token\":%u,\"digest\":\"%016llx\"", b->info.stages, (unsigned long long)e->warm_up.digest);
    buffer_printf(out, ",\"drift\":%.4f,\"unsteady\":%s,\"rounds\":[", f.drift, f.drift >= BENCH_DRIFT ? "true" : "false");
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        const bench_run *run = &e->round[r];
        buffer_printf(out, "%s{\"prefill_tok_s\":%.3f,\"decode_tok_s\":%.3f,\"ttft_ms\":%.3f}", r ? "," : "",
                      per_second(e->prompt, run->prompt_ns), per_second(e->decode, run->decode_ns), (double)run->first_token_ns / 1e6);
    }
    buffer_append_char(out, ']');
}

static void append_ablation(buffer *out, const bench_ablation *a) {
    buffer_append_str(out, ",\"ablation\":[");
    for (uint32_t i = 1; i < a->n_arms; i++) {
        buffer_append_str(out, i > 1 ? ",{\"name\":" : "{\"name\":");
        json_append_str(out, a->off[i]->name);
        append_text(out, "meaning", a->off[i]->meaning);
        buffer_append_str(out, ",\"entries\":[");
        for (uint32_t j = 0; j < a->arms[i].n_entries; j++) {
            const bench_figures with = bench_figures_of(&a->arms[0], &a->arms[0].entries[j]);
            if (j) buffer_append_char(out, ',');
            append_entry(out, &a->arms[i], &a->arms[i].entries[j]);
            const bench_figures f = bench_figures_of(&a->arms[i], &a->arms[i].entries[j]);
            buffer_printf(out, ",\"prefill_worth\":%.4f,\"decode_worth\":%.4f}", bench_worth(with.prefill_tok_s, f.prefill_tok_s),
                          bench_worth(with.decode_tok_s, f.decode_tok_s));
        }
        buffer_append_str(out, "]}");
    }
    buffer_append_char(out, ']');
}

void bench_append_json(const bench *b, const options *o, const bench_ablation *ablation, buffer *out) {
    buffer_printf(out, "{\"date\":\"%s\"", b->date);
    append_text(out, "version", calla_version());
    append_text(out, "commit", calla_commit());
    buffer_append_str(out, ",\"machine\":{\"cpu\":");
    json_append_str(out, b->cpu);
    buffer_printf(out, ",\"cores\":%u}", b->cores);
    append_text(out, "model", b->info.model_name);
    buffer_printf(out, ",\"weights_bytes\":%llu,\"plan_bytes\":%llu", (unsigned long long)b->info.weights_bytes,
                  (unsigned long long)b->info.plan_bytes);
    append_text(out, "device", b->info.device);
    append_text(out, "device_detail", b->info.device_detail);
    append_options(out, o, b->info.batch_rows);
    append_dot_rates(out, &b->dots);
    buffer_append_str(out, ",\"entries\":[");
    for (uint32_t i = 0; i < b->n_entries; i++) {
        if (i) buffer_append_char(out, ',');
        append_entry(out, b, &b->entries[i]);
        buffer_append_char(out, '}');
    }
    buffer_append_char(out, ']');
    if (ablation) append_ablation(out, ablation);
    buffer_append_str(out, "}\n");
}

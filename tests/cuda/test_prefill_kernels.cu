/* test_prefill_kernels.cu: the kernels of prompts, and the products of single rows, against double arithmetic on the CPU, over odd sizes;
 * then the speed at the sizes of the model.  A program of its own, for a machine with a GPU: prints a line for each check and `N passed, N
 * failed`.
 *
 *     test_prefill_kernels [check | small | time | profile]
 *
 * small: a few checks of little work, for compute-sanitizer; profile: some of the timings, for ncu.
 *
 * Outputs are filled with NaN before each run, so an element that is not written fails, and so does one that should not be. */
#include "kernel_test.cuh"

#define PEAK_TFLOPS 788.0 /* of one H200, measured: a large product of f16 or bf16 */

static vector<uint16_t> random_rows(size_t n) {
    vector<uint16_t> x(n);
    for (auto &v : x) v = to_f16(random_float());
    return x;
}

static double dot(const double *w, const uint16_t *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += w[i] * (double)from_f16(x[i]);
    return sum;
}
static double silu(double x) { return x / (1 + exp(-x)); }

/* ---- products ---- */

static const double GEMM_LIMIT = 4e-4; /* weights are rounded to f16: 2^-11 at most */

enum product { STORE, ADD, SCALED_ADD, SWIGLU };

static void check_gemm(product kind, uint32_t bits, uint32_t subs, uint32_t rows, uint32_t outputs, uint32_t cols) {
    static const char *const names[] = {"store", "add", "scaled add", "swiglu"};
    const uint32_t x_stride = (cols + 7) / 8 * 8 + 8, out_stride = (outputs + 7) / 8 * 8 + 8;
    host_mat w = make_mat(1, outputs, cols, bits, subs), up = make_mat(1, kind == SWIGLU ? outputs : 1, cols, bits, subs);
    const vector<uint16_t> x = random_rows((size_t)rows * x_stride);
    vector<float> before((size_t)rows * out_stride), scale(rows), got;
    for (auto &v : before) v = random_float();
    for (auto &v : scale) v = random_float();
    device_array<uint16_t> dx(x), out16((size_t)rows * out_stride);
    device_array<float> out(before), dscale(scale);
    out16.poison();
    if (kind == STORE) out.poison();
    if (kind == SWIGLU)
        cuda_gemm_swiglu(&w.m, &up.m, dx.data, x_stride, out16.data, out_stride, rows, 0);
    else if (kind == SCALED_ADD)
        cuda_gemm_scaled_add(&w.m, dx.data, x_stride, dscale.data, out.data, out_stride, rows, 0);
    else
        cuda_gemm(&w.m, dx.data, x_stride, out.data, out_stride, rows, kind == ADD, 0);
    finish();
    const vector<float> all = kind == SWIGLU ? widen(out16.get()) : out.get();
    vector<double> want;
    bool margins = true; /* what stands between the rows is as it was */
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < out_stride; o++) {
            const size_t at = (size_t)r * out_stride + o;
            if (o >= outputs) {
                margins &= kind == ADD || kind == SCALED_ADD ? all[at] == before[at] : isnan(all[at]);
                continue;
            }
            const double y = dot(&w.value[(size_t)o * cols], &x[(size_t)r * x_stride], cols);
            want.push_back(kind == STORE    ? y
                           : kind == ADD    ? before[at] + y
                           : kind == SWIGLU ? silu(y) * dot(&up.value[(size_t)o * cols], &x[(size_t)r * x_stride], cols)
                                            : before[at] + (double)scale[r] * y);
            got.push_back(all[at]);
        }
    char name[128];
    snprintf(name, sizeof name, "gemm %s q%u/%u rows %u outputs %u inputs %u", names[kind], bits, subs, rows, outputs, cols);
    judge_close(name, want, got, kind == SWIGLU ? 2 * GEMM_LIMIT : GEMM_LIMIT);
    if (!margins) judge(name, false, NAN);
}

/* What f16 cannot hold: about one output in four, here. */
static void check_large_outputs(void) {
    const uint32_t rows = 40, outputs = 200, cols = 256;
    const host_mat gate = make_mat(1, outputs, cols, 4, 1), up = make_mat(1, outputs, cols, 4, 1);
    vector<uint16_t> x = random_rows((size_t)rows * cols);
    for (auto &v : x) v = to_f16(from_f16(v) * 1200);
    device_array<uint16_t> dx(x), out((size_t)rows * outputs);
    out.poison();
    cuda_gemm_swiglu(&gate.m, &up.m, dx.data, cols, out.data, outputs, rows, 0);
    finish();
    vector<double> want;
    uint32_t beyond = 0;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < outputs; o++) {
            const double y = silu(dot(&gate.value[(size_t)o * cols], &x[(size_t)r * cols], cols)) *
                             dot(&up.value[(size_t)o * cols], &x[(size_t)r * cols], cols);
            beyond += fabs(y) > 65504;
            want.push_back(std::min(std::max(y, -65504.0), 65504.0));
        }
    judge("some outputs are beyond f16", beyond > 0, beyond);
    judge_close("they become the largest of f16", want, widen(out.get()), 2 * GEMM_LIMIT);
}

/* ---- products of few rows ---- */

static const cuda_device &step_device(uint32_t parts) {
    static cuda_device d;
    if (!d.multiprocessors) {
        d = device_of_parts(parts);
        CUDA(linear_prepare(&d));
        CUDA(moe_rows_prepare());
        CUDA(attention_prepare(&d));
    }
    d.parts = parts;
    return d;
}

/* What the source makes of value k of a row, in double. */
static double step_value(const step_input &in, const float *x, const float *gain, const float *gate, uint32_t k, uint32_t cols) {
    if (in.source == STEP_PLAIN) return x[k];
    if (in.source == STEP_HEADS) {
        double squares = 0; /* given, not those of x */
        for (uint32_t i = 0; i < GDN_PARTS; i++) squares += gain[k / 128 * GDN_PARTS + i];
        return x[k] / sqrt(squares / 128 + (double)in.eps);
    }
    if (in.source == STEP_GATED) return x[k] / (1 + exp(-(double)gate[k / 256 * 512 + 256 + k % 256]));
    const uint32_t n = in.source == STEP_NORM ? cols : 128, first = in.source == STEP_NORM ? 0 : k / 128 * 128;
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)x[first + i] * x[first + i];
    const double y = x[k] * gain[k - first] / sqrt(squares / n + (double)in.eps);
    return in.source == STEP_NORM ? y : y * silu(gate[k]);
}

/* Of one row and two parts: its input is rounded to 1/32512 of the largest of a group, here up to 20 where the root mean square is 1.7:
 * 20 / 32512 / √12 / 1.7 = 1.05e-4 on average if every group had such a value. */
static const double STEP_LIMIT = 1.5e-4;

/* Some values are much larger than the others: what is cut into groups must not lose the small ones of the next group. */
static void check_step(step_source source, uint32_t parts, uint32_t rows, uint32_t outputs, uint32_t cols, bool add, double limit) {
    static const char *const names[] = {"plain", "norm", "gated norm", "gated", "heads"};
    const uint32_t gate_stride = 2 * cols;
    host_mat w = make_mat(1, outputs, cols, 4, 1);
    vector<float> x((size_t)rows * cols), gain(cols), gate((size_t)rows * gate_stride), before((size_t)rows * outputs);
    for (auto &v : x) v = random_float() * (random_bits() % 50 ? 1.0f : 20.0f);
    vector<float> squares((size_t)rows * (cols / 128) * GDN_PARTS);
    for (auto &v : gain) v = random_float();
    for (auto &v : squares) v = 100 + 50 * random_float();
    for (auto &v : gate) v = random_float() * 3;
    for (auto &v : before) v = random_float();
    device_array<float> dx(x), dgain(gain), dgate(gate), dsquares(squares), out(before);
    step_linear a = {};
    a.w = w.m, a.out = out.data, a.out_stride = outputs, a.rows = rows, a.add = add;
    a.in.source = source, a.in.x = dx.data, a.in.x_stride = cols, a.in.gain = dgain.data, a.in.gate = dgate.data;
    a.in.squares = dsquares.data;
    a.in.gate_stride = gate_stride, a.in.eps = 1e-6f;
    if (!add) out.poison();
    step_run_linear(&step_device(parts), &a, false, 0);
    finish();
    vector<double> want;
    for (uint32_t r = 0; r < rows; r++) {
        vector<double> v(cols);
        for (uint32_t k = 0; k < cols; k++)
            v[k] = step_value(a.in, &x[(size_t)r * cols], source == STEP_HEADS ? &squares[(size_t)r * (cols / 32)] : gain.data(),
                              &gate[(size_t)r * gate_stride], k, cols);
        for (uint32_t o = 0; o < outputs; o++) {
            double sum = add ? before[(size_t)r * outputs + o] : 0;
            for (uint32_t k = 0; k < cols; k++) sum += w.value[(size_t)o * cols + k] * v[k];
            want.push_back(sum);
        }
    }
    char name[128];
    snprintf(name, sizeof name, "step %s, %u parts, rows %u outputs %u inputs %u%s", names[source], parts, rows, outputs, cols,
             add ? " add" : "");
    judge_close(name, want, out.get(), limit);
}

static void check_steps(bool small) {
    static const uint32_t sizes[][2] = {{1, 64},     {15, 128},    {16, 192},    {17, 256},     {100, 320},    {33, 512},
                                        {130, 1024}, {2048, 4096}, {2100, 2048}, {12352, 2048}, {20000, 2048}, {40001, 256}};
    for (const auto &s : sizes) {
        if (small && s[0] > 200) continue;
        for (step_source source : {STEP_PLAIN, STEP_NORM}) check_step(source, 2, 1, s[0], s[1], source == STEP_PLAIN, STEP_LIMIT);
        if (s[1] % 128 == 0) check_step(STEP_GATED_NORM, 2, 1, s[0], s[1], true, STEP_LIMIT);
        if (s[1] % 128 == 0) check_step(STEP_HEADS, 2, 1, s[0], s[1], true, STEP_LIMIT);
        if (s[1] % 256 == 0) check_step(STEP_GATED, 2, 1, s[0], s[1], true, STEP_LIMIT);
    }
    for (uint32_t cols : {32, 96, 160, 2016}) check_step(STEP_PLAIN, 2, 1, 50, cols, false, STEP_LIMIT);
    for (uint32_t rows = 2; rows <= STEP_ROWS; rows++) {
        check_step(STEP_PLAIN, 2, rows, 33, 96, true, STEP_LIMIT);
        check_step(STEP_NORM, 2, rows, 100, 320, false, STEP_LIMIT);
        if (small) continue;
        check_step(STEP_HEADS, 2, rows, 2050, 4096, true, STEP_LIMIT);
        check_step(STEP_NORM, 2, rows, 4333, 2048, false, STEP_LIMIT);
    }
    check_step(STEP_NORM, 2, 9, 100, 320, false, 2e-5);
    check_step(STEP_NORM, 3, 2, 100, 320, false, 2e-6);
    check_step(STEP_HEADS, 2, 1, 100, 384, false, STEP_LIMIT);
}

/* ---- router and experts of single rows ---- */

static double row_dot(const host_mat &w, uint32_t which, uint32_t o, const double *x) {
    const double *row = &w.value[((size_t)which * w.m.rows + o) * w.m.cols];
    double sum = 0;
    for (uint32_t k = 0; k < w.m.cols; k++) sum += row[k] * x[k];
    return sum;
}

static void check_moe(uint32_t rows, uint32_t hidden, uint32_t experts, uint32_t top_k, uint32_t width, uint32_t shared_width) {
    const host_mat router = make_mat(1, experts, hidden, 8, 1), shared_router = make_mat(1, 1, hidden, 8, 1),
                   shared_gate = make_mat(1, shared_width, hidden, 4, 1), shared_up = make_mat(1, shared_width, hidden, 4, 1),
                   shared_down = make_mat(1, hidden, shared_width, 4, 1), gate = make_mat(experts, width, hidden, 4, 1),
                   up = make_mat(experts, width, hidden, 4, 1), down = make_mat(experts, hidden, width, 4, 1);
    vector<float> x((size_t)rows * hidden), gain(hidden);
    for (auto &v : x) v = random_float() * (random_bits() % 50 ? 1.0f : 20.0f);
    for (auto &v : gain) v = 1 + random_float();
    device_array<float> residual(x), dgain(gain), logits((size_t)rows * experts), shared((size_t)rows * shared_width), shared_weight(rows),
        weight((size_t)rows * top_k), places((size_t)rows * top_k * width);
    device_array<uint32_t> expert((size_t)rows * top_k);
    logits.poison(), shared.poison(), shared_weight.poison(), expert.poison(), weight.poison(), places.poison();
    step_moe a = {};
    a.router = router.m, a.shared_router = shared_router.m, a.shared_gate = shared_gate.m, a.shared_up = shared_up.m;
    a.shared_down = shared_down.m, a.gate = gate.m, a.up = up.m, a.down = down.m;
    a.in.source = STEP_NORM, a.in.x = residual.data, a.in.x_stride = hidden, a.in.gain = dgain.data, a.in.eps = 1e-6f;
    a.logits = logits.data, a.shared = shared.data, a.shared_weight = shared_weight.data, a.places = places.data;
    a.expert = expert.data, a.weight = weight.data, a.residual = residual.data, a.top_k = top_k, a.rows = rows;
    char name[128];
    const int n = snprintf(name, sizeof name, "moe rows %u hidden %u, %u of %u experts of %u, shared %u: ", rows, hidden, top_k, experts,
                           width, shared_width);
    snprintf(name + n, sizeof name - n, "taken");
    judge(name, step_takes_moe(&step_device(2), &a), 0);
    step_run_moe_route(&a, false, 0);
    step_run_moe_in(&step_device(2), &a, false, 0);
    step_run_moe_out(&a, false, 0);
    finish();
    const vector<float> got_logits = logits.get();
    vector<double> want_logits, want_shared, want_places, want;
    for (uint32_t r = 0; r < rows; r++) {
        vector<double> v(hidden), h(shared_width), mid(width), sum(hidden);
        double squares = 0;
        for (uint32_t k = 0; k < hidden; k++) squares += (double)x[(size_t)r * hidden + k] * x[(size_t)r * hidden + k];
        for (uint32_t k = 0; k < hidden; k++) v[k] = x[(size_t)r * hidden + k] / sqrt(squares / hidden + 1e-6) * gain[k];
        for (uint32_t e = 0; e < experts; e++) want_logits.push_back(row_dot(router, 0, e, v.data()));
        for (uint32_t i = 0; i < shared_width; i++) {
            h[i] = silu(row_dot(shared_gate, 0, i, v.data())) * row_dot(shared_up, 0, i, v.data());
            want_shared.push_back(h[i]);
        }
        const double scale = 1 / (1 + exp(-row_dot(shared_router, 0, 0, v.data())));
        for (uint32_t k = 0; k < hidden; k++) sum[k] = x[(size_t)r * hidden + k] + scale * row_dot(shared_down, 0, k, h.data());
        /* the choice by the logits that the device has: a near tie is no error */
        vector<std::pair<float, uint32_t>> order;
        for (uint32_t e = 0; e < experts; e++) order.push_back({-got_logits[(size_t)r * experts + e], e});
        std::sort(order.begin(), order.end());
        double all = 0;
        for (uint32_t i = 0; i < top_k; i++) all += exp((double)order[0].first - order[i].first);
        for (uint32_t i = 0; i < top_k; i++) {
            const uint32_t e = order[i].second;
            for (uint32_t j = 0; j < width; j++) {
                mid[j] = silu(row_dot(gate, e, j, v.data())) * row_dot(up, e, j, v.data());
                want_places.push_back(mid[j]);
            }
            const double weight = exp((double)order[0].first - order[i].first) / all;
            for (uint32_t k = 0; k < hidden; k++) sum[k] += weight * row_dot(down, e, k, mid.data());
        }
        want.insert(want.end(), sum.begin(), sum.end());
    }
    snprintf(name + n, sizeof name - n, "logits");
    judge_close(name, want_logits, got_logits, STEP_LIMIT);
    snprintf(name + n, sizeof name - n, "shared");
    judge_close(name, want_shared, shared.get(), 2 * STEP_LIMIT);
    snprintf(name + n, sizeof name - n, "experts");
    judge_close(name, want_places, places.get(), 2 * STEP_LIMIT);
    snprintf(name + n, sizeof name - n, "residual");
    judge_close(name, want, residual.get(), STEP_LIMIT);
}

static void check_moes(bool small) {
    check_moe(1, 192, 20, 3, 96, 64);
    check_moe(3, 320, 7, 2, 32, 160);
    if (small) return;
    check_moe(1, 2048, 256, 8, 512, 512);
    check_moe(8, 256, 256, 8, 64, 128);
    check_moe(2, 2048, 33, 16, 1056, 128); /* most chosen twice */
    check_moe(8, 160, 16, 16, 288, 96);    /* all by all */
    check_moe(5, 2048, 256, 8, 512, 512);
    check_moe(1, 2016, 1, 1, 544, 512);
}

/* ---- experts ---- */

struct routing {
    vector<uint32_t> expert;
    vector<float> weight;
    device_array<uint32_t> dexpert, first, place, slot_of;
    device_array<float> dweight;
    device_array<uint8_t> blocks;
    cuda_expert_rows lists;
};

/* skew: low experts are chosen more often, the highest never */
static routing make_routing(uint32_t rows, uint32_t top_k, uint32_t experts, bool skew) {
    routing r;
    vector<uint32_t> order(experts);
    for (uint32_t e = 0; e < experts; e++) order[e] = e;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < top_k; k++) {
            const uint32_t n = skew ? std::max((experts - 1) / (1 + random_bits() % 8), top_k) : experts;
            if (skew) { /* distinct by search, since n changes */
                uint32_t e = random_bits() % n;
                for (uint32_t j = 0; j < k; j++)
                    if (r.expert[(size_t)i * top_k + j] == e) e = (e + 1) % n, j = UINT32_MAX;
                r.expert.push_back(e);
            } else {
                std::swap(order[k], order[k + random_bits() % (experts - k)]);
                r.expert.push_back(order[k]);
            }
            r.weight.push_back(fabsf(random_float()));
        }
    r.dexpert = device_array<uint32_t>(r.expert), r.dweight = device_array<float>(r.weight);
    r.first = device_array<uint32_t>(experts + 1);
    r.place = device_array<uint32_t>(r.expert.size()), r.slot_of = device_array<uint32_t>(r.expert.size());
    r.blocks = device_array<uint8_t>(cuda_expert_block_bytes(experts, rows, top_k));
    r.first.poison(), r.place.poison(), r.slot_of.poison(), r.blocks.poison();
    r.lists = {r.first.data, r.place.data, r.slot_of.data, (uint32_t *)r.blocks.data};
    cuda_route_lists(r.dexpert.data, rows, top_k, experts, &r.lists, 0);
    return r;
}

static void check_lists(const routing &r, uint32_t experts, const char *name) {
    const vector<uint32_t> first = r.first.get(), place = r.place.get(), slot_of = r.slot_of.get();
    vector<uint32_t> want;
    bool good = true;
    for (uint32_t e = 0; e <= experts; e++) {
        good &= first[e] == want.size();
        for (uint32_t p = 0; p < r.expert.size(); p++)
            if (r.expert[p] == e) good &= slot_of[p] == want.size(), want.push_back(p);
    }
    judge(name, good && place == want, 0);
}

/* Logits of few values, so that many are equal: those with the lowest index win. */
static void check_choice(uint32_t rows, uint32_t experts, uint32_t top_k) {
    vector<float> logits((size_t)rows * (experts + 1));
    for (auto &v : logits) v = (float)(int)(random_float() * 40) / 4;
    device_array<float> dlogits(logits), weight((size_t)rows * top_k), shared(rows);
    device_array<uint32_t> expert((size_t)rows * top_k);
    expert.poison(), weight.poison(), shared.poison();
    step_run_choose(dlogits.data, experts, top_k, rows, expert.data, weight.data, shared.data, 0);
    finish();
    vector<uint32_t> want;
    vector<double> want_weight, want_shared;
    for (uint32_t r = 0; r < rows; r++) {
        const float *own = &logits[(size_t)r * (experts + 1)];
        vector<std::pair<float, uint32_t>> order;
        for (uint32_t e = 0; e < experts; e++) order.push_back({-own[e], e});
        std::sort(order.begin(), order.end());
        double all = 0;
        for (uint32_t i = 0; i < top_k; i++) all += exp((double)order[0].first - order[i].first);
        for (uint32_t i = 0; i < top_k; i++) {
            want.push_back(order[i].second);
            want_weight.push_back(exp((double)order[0].first - order[i].first) / all);
        }
        want_shared.push_back(1 / (1 + exp(-(double)own[experts])));
    }
    char name[96];
    const int n = snprintf(name, sizeof name, "choice of %u rows, %u of %u: ", rows, top_k, experts);
    snprintf(name + n, sizeof name - n, "experts");
    judge(name, expert.get() == want, 0);
    snprintf(name + n, sizeof name - n, "weights");
    judge_close(name, want_weight, weight.get(), 1e-6);
    snprintf(name + n, sizeof name - n, "shared");
    judge_close(name, want_shared, shared.get(), 1e-6);
}

static void check_experts(uint32_t bits, uint32_t rows, uint32_t top_k, uint32_t experts, uint32_t hidden, uint32_t width, bool skew) {
    char name[128];
    routing r = make_routing(rows, top_k, experts, skew);
    finish();
    snprintf(name, sizeof name, "expert lists rows %u top %u of %u%s", rows, top_k, experts, skew ? " skewed" : "");
    check_lists(r, experts, name);
    host_mat gate = make_mat(experts, width, hidden, bits, 1), up = make_mat(experts, width, hidden, bits, 1),
             down = make_mat(experts, hidden, width, bits, 1);
    const vector<uint16_t> x = random_rows((size_t)rows * hidden);
    vector<float> residual((size_t)rows * hidden);
    for (auto &v : residual) v = random_float();
    device_array<uint16_t> dx(x), mid((size_t)rows * top_k * width);
    device_array<uint8_t> partial(cuda_expert_partial_bytes(rows, top_k, hidden));
    device_array<float> out(residual);
    mid.poison(), partial.poison();
    cuda_expert_gemm_in(&gate.m, &up.m, dx.data, hidden, &r.lists, mid.data, rows, top_k, 0);
    cuda_expert_gemm_out(&down.m, mid.data, &r.lists, r.dweight.data, partial.data, out.data, hidden, rows, top_k, 0);
    finish();
    const vector<uint16_t> got_mid = mid.get();
    const vector<uint32_t> place = r.place.get();
    vector<double> want_mid, want(residual.begin(), residual.end());
    for (uint32_t s = 0; s < place.size(); s++) {
        const uint32_t row = place[s] / top_k, e = r.expert[place[s]];
        for (uint32_t o = 0; o < width; o++)
            want_mid.push_back(silu(dot(&gate.value[((size_t)e * width + o) * hidden], &x[(size_t)row * hidden], hidden)) *
                               dot(&up.value[((size_t)e * width + o) * hidden], &x[(size_t)row * hidden], hidden));
        for (uint32_t o = 0; o < hidden; o++)
            want[(size_t)row * hidden + o] +=
                r.weight[place[s]] * dot(&down.value[((size_t)e * hidden + o) * width], &got_mid[(size_t)s * width], width);
    }
    snprintf(name, sizeof name, "experts in q%u rows %u top %u of %u, %u to %u", bits, rows, top_k, experts, hidden, width);
    judge_close(name, want_mid, widen(got_mid), 2 * GEMM_LIMIT);
    snprintf(name, sizeof name, "experts out q%u rows %u top %u of %u, %u to %u", bits, rows, top_k, experts, width, hidden);
    judge_close(name, want, out.get(), GEMM_LIMIT);
    device_array<float> again(residual);
    cuda_expert_gemm_out(&down.m, mid.data, &r.lists, r.dweight.data, partial.data, again.data, hidden, rows, top_k, 0);
    finish();
    judge("experts out repeats bit by bit", out.get() == again.get(), 0);
}

/* ---- attention ---- */

static void check_attention(uint32_t heads, uint32_t kv_heads, uint32_t first_position, uint32_t rows) {
    const uint32_t D = HEAD_DIM, end = first_position + rows, pages = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS,
                   gate_stride = 2 * heads * D + 16;
    const size_t page_values = (size_t)2 * kv_heads * KV_PAGE_TOKENS * D;
    vector<uint32_t> table(pages);
    for (uint32_t i = 0; i < pages; i++) table[i] = (i * 5 + 2) % (pages * 5 + 1); /* a page of its own each, out of order */
    vector<uint16_t> cache((size_t)(pages * 5 + 1) * page_values, 0xFFFF),
        q = random_rows((size_t)rows * heads * D); /* NaN where nothing is cached */
    for (auto &v : q) v = to_bf16(from_f16(v) * 3);
    vector<float> gate((size_t)rows * gate_stride);
    for (auto &v : gate) v = 2 * random_float();
    auto at = [&](uint32_t p, uint32_t v, uint32_t h) {
        return table[p / KV_PAGE_TOKENS] * page_values + ((size_t)(v * kv_heads + h) * KV_PAGE_TOKENS + p % KV_PAGE_TOKENS) * D;
    };
    for (uint32_t p = 0; p < end; p++)
        for (uint32_t i = 0; i < 2 * kv_heads; i++)
            for (uint32_t d = 0; d < D; d++) cache[at(p, i / kv_heads, i % kv_heads) + d] = to_bf16(random_float());
    device_array<uint16_t> dq(q), dcache(cache), out((size_t)rows * heads * D);
    device_array<float> dgate(gate);
    device_array<uint32_t> dtable(table);
    out.poison();
    const cuda_kv kv = {dcache.data, kv_heads, false};
    cuda_attention_prefill(dq.data, dgate.data, gate_stride, &kv, dtable.data, first_position, rows, heads, out.data, 0);
    finish();
    vector<double> want;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const uint32_t n = first_position + r + 1, kh = h / (heads / kv_heads);
            vector<double> p(n), o(D, 0);
            double most = -INFINITY, sum = 0;
            for (uint32_t t = 0; t < n; t++) {
                for (uint32_t d = 0; d < D; d++)
                    p[t] += (double)from_bf16(q[((size_t)r * heads + h) * D + d]) * (double)from_bf16(cache[at(t, 0, kh) + d]) / 16;
                most = std::max(most, p[t]);
            }
            for (auto &v : p) sum += v = exp(v - most);
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t d = 0; d < D; d++) o[d] += p[t] / sum * (double)from_bf16(cache[at(t, 1, kh) + d]);
            for (uint32_t d = 0; d < D; d++) want.push_back(o[d] / (1 + exp(-(double)gate[(size_t)r * gate_stride + 2 * h * D + d])));
        }
    char name[128];
    snprintf(name, sizeof name, "attention %u heads on %u, position %u, rows %u", heads, kv_heads, first_position, rows);
    judge_close(name, want, widen(out.get()), 5e-3);
}

/* ---- gated delta net ---- */

struct gdn_case {
    uint32_t keys, values, rows, stride;
    vector<float> in, conv, decay, dt, norm, window, state; /* window and state empty: zero */
};

static gdn_case make_gdn(uint32_t keys, uint32_t values, uint32_t rows, bool continued, bool equal_keys) {
    const uint32_t C = (2 * keys + values) * GDN_HEAD_DIM;
    gdn_case c = {keys, values, rows, (C + values * (GDN_HEAD_DIM + 2) + 7) / 4 * 4};
    c.in.resize((size_t)rows * c.stride), c.conv.resize(C * 4), c.decay.resize(values), c.dt.resize(values), c.norm.resize(GDN_HEAD_DIM);
    for (auto *v : {&c.in, &c.conv, &c.dt})
        for (auto &x : *v) x = 2 * random_float();
    for (auto &x : c.decay) x = expf(2 * random_float() - 2);
    for (auto &x : c.norm) x = 1 + random_float() / 2;
    if (continued) {
        c.window.resize(3 * C), c.state.resize((size_t)values * GDN_HEAD_DIM * GDN_HEAD_DIM);
        for (auto *v : {&c.window, &c.state})
            for (auto &x : *v) x = random_float();
    }
    for (uint32_t r = 1; equal_keys && r < rows; r++) /* also strong writing (b large) and no decay (a small) */
        for (uint32_t i = 0; i < c.stride; i++) {
            const uint32_t a = C + values * GDN_HEAD_DIM;
            if (i < 2 * keys * GDN_HEAD_DIM) c.in[(size_t)r * c.stride + i] = c.in[i];
            if (i >= a && i < a + values) c.in[(size_t)r * c.stride + i] = -8;
            if (i >= a + values && i < a + 2 * values) c.in[(size_t)r * c.stride + i] = 6;
        }
    return c;
}

/* Token by token, in double: out (before f16), state and window after. */
static void gdn_reference(const gdn_case &c, vector<double> &out, vector<double> &state, vector<double> &window) {
    const uint32_t D = GDN_HEAD_DIM, C = (2 * c.keys + c.values) * D;
    window.assign(c.window.begin(), c.window.end()), state.assign(c.state.begin(), c.state.end());
    window.resize(3 * C), state.resize((size_t)c.values * D * D);
    vector<double> y(C), u(D), o(D);
    for (uint32_t r = 0; r < c.rows; r++) {
        const float *in = &c.in[(size_t)r * c.stride];
        for (uint32_t i = 0; i < C; i++) {
            y[i] = silu(c.conv[i * 4] * window[i] + c.conv[i * 4 + 1] * window[C + i] + c.conv[i * 4 + 2] * window[2 * C + i] +
                        (double)c.conv[i * 4 + 3] * in[i]);
            window[i] = window[C + i], window[C + i] = window[2 * C + i], window[2 * C + i] = in[i];
        }
        for (uint32_t h = 0; h < 2 * c.keys; h++) {
            double sum = 0;
            for (uint32_t i = 0; i < D; i++) sum += y[h * D + i] * y[h * D + i];
            for (uint32_t i = 0; i < D; i++) y[h * D + i] /= sqrt(sum + 1e-6) * (h < c.keys ? sqrt(128.0) : 1);
        }
        for (uint32_t h = 0; h < c.values; h++) {
            const double *q = &y[h / (c.values / c.keys) * D], *k = q + c.keys * D, *v = &y[(2 * c.keys + h) * D];
            const double a = in[C + c.values * D + h], b = in[C + c.values * (D + 1) + h];
            const double alpha = exp(-c.decay[h] * log1p(exp(a + c.dt[h]))), beta = 1 / (1 + exp(-b));
            double *S = &state[(size_t)h * D * D], sum = 0;
            for (uint32_t j = 0; j < D; j++) u[j] = v[j], o[j] = 0;
            for (uint32_t i = 0; i < D; i++)
                for (uint32_t j = 0; j < D; j++) u[j] -= k[i] * (S[i * D + j] *= alpha);
            for (uint32_t i = 0; i < D; i++)
                for (uint32_t j = 0; j < D; j++) o[j] += q[i] * (S[i * D + j] += k[i] * beta * u[j]);
            for (uint32_t j = 0; j < D; j++) sum += o[j] * o[j];
            for (uint32_t j = 0; j < D; j++) out.push_back(o[j] / sqrt(sum / D + 1e-6) * c.norm[j] * silu(in[C + h * D + j]));
        }
    }
}

static void check_gdn(uint32_t keys, uint32_t values, uint32_t rows, bool continued, bool equal_keys) {
    const gdn_case c = make_gdn(keys, values, rows, continued, equal_keys);
    device_array<float> in(c.in), conv(c.conv), decay(c.decay), dt(c.dt), norm(c.norm), window(c.window), state(c.state),
        window_out((size_t)3 * (2 * keys + values) * GDN_HEAD_DIM), state_out((size_t)values * GDN_HEAD_DIM * GDN_HEAD_DIM);
    device_array<uint16_t> out((size_t)rows * values * GDN_HEAD_DIM);
    device_array<uint8_t> scratch(cuda_gdn_scratch_bytes(keys, values, rows));
    window_out.poison(), state_out.poison(), out.poison(), scratch.poison();
    const cuda_gdn_weights w = {conv.data, decay.data, dt.data, norm.data, keys, values, 1e-6f};
    cuda_gdn_prefill(&w, in.data, c.stride, rows, continued ? window.data : NULL, window_out.data, continued ? state.data : NULL,
                     state_out.data, out.data, scratch.data, 0);
    finish();
    vector<double> want, want_state, want_window;
    gdn_reference(c, want, want_state, want_window);
    char name[128];
    const int n = snprintf(name, sizeof name, "gdn %u on %u heads, rows %u%s%s: ", values, keys, rows, continued ? ", continued" : "",
                           equal_keys ? ", equal keys" : "");
    snprintf(name + n, sizeof name - n, "state");
    judge_close(name, want_state, state_out.get(), 1e-3);
    snprintf(name + n, sizeof name - n, "output");
    judge_close(name, want, widen(out.get()), 2e-3);
    snprintf(name + n, sizeof name - n, "window");
    judge_close(name, want_window, window_out.get(), 1e-6);
}

static void run_checks(bool small) {
    check_steps(small);
    check_moes(small);
    static const uint32_t formats[][2] = {{4, 1}, {4, 2}, {8, 1}, {8, 2}, {16, 1}};
    for (auto &f : formats) {
        check_gemm(STORE, f[0], f[1], 33, 200, f[1] == 2 ? 96 : 192);
        check_gemm(SWIGLU, f[0], f[1], 19, 132, 256);
    }
    check_large_outputs();
    check_choice(19, 20, 3);
    check_experts(4, 40, 4, 16, 256, 128, true);
    check_attention(4, 1, 250, 35);
    check_gdn(1, 2, 70, true, false);
    if (small) return;
    for (auto &f : formats)
        for (int kind = STORE; kind <= SWIGLU; kind++) {
            check_gemm((product)kind, f[0], f[1], 1, 1040, 64);
            check_gemm((product)kind, f[0], f[1], 130, 272, f[1] == 2 ? 1056 : 1088);
            check_gemm((product)kind, f[0], f[1], 311, 31, 512);
        }
    for (uint32_t rows : {16, 17, 32, 47, 64, 65, 96, 127, 128, 129}) check_gemm(STORE, 4, 1, rows, 8192, 320); /* many tiles a block */
    check_gemm(STORE, 4, 1, 2100, 2000, 128);
    check_gemm(ADD, 8, 1, 600, 4100, 256);
    check_choice(1000, 256, 8);
    check_choice(5, 300, 16);
    check_experts(4, 1, 8, 256, 256, 64, false);
    check_experts(4, 7, 2, 3, 192, 72, false);
    check_experts(8, 90, 4, 16, 256, 128, false);
    check_experts(16, 50, 4, 8, 128, 128, false);
    check_experts(4, 900, 4, 16, 256, 128, true);
    check_experts(4, 700, 8, 256, 256, 128, false);
    for (uint32_t rows : {1, 15, 16, 17, 100}) check_attention(16, 2, 0, rows);
    check_attention(16, 2, 1, 80);
    check_attention(16, 2, 1000, 200);
    check_attention(4, 1, 300, 77);
    check_attention(6, 2, 63, 90);
    check_attention(2, 2, 40, 300);
    for (uint32_t rows : {1, 31, 32, 33, 63, 64, 65, 400}) check_gdn(2, 4, rows, rows % 2, false);
    check_gdn(2, 6, 100, true, false);
    check_gdn(1, 1, 100, false, false);
    check_gdn(2, 4, 300, true, true);
}

/* ---- speed at the sizes of the model: 40 layers, hidden 2048 ---- */

static __global__ void fill_noise(uint32_t *p, size_t n, uint32_t mask, uint32_t set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 7) * 40503u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        p[i] = (h & mask) | set;
    }
}
template <typename T> static device_array<T> noise(size_t n, uint32_t mask, uint32_t set) {
    device_array<T> a(n);
    fill_noise<<<1024, 256>>>((uint32_t *)a.data, n * sizeof(T) / 4, mask, set);
    finish();
    return a;
}
static device_array<uint16_t> noise_bf16(size_t n) { return noise<uint16_t>(n, 0x80FF80FFu, 0x3F003F00u); } /* ±0.5 ... ±2 */
static device_array<uint16_t> noise_f16(size_t n) { return noise<uint16_t>(n, 0x87FF87FFu, 0x38003800u); }  /* ±0.5 ... ±2 */
static device_array<float> noise_f32(size_t n) { return noise<float>(n, 0x80FFFFFFu, 0x3F000000u); }

struct device_mat {
    cuda_mat m;
    device_array<uint32_t> codes, scales;
};
static device_mat noise_mat(uint32_t count, uint32_t rows, uint32_t cols) {
    device_mat d;
    d.m = {};
    d.m.count = count, d.m.rows = rows, d.m.cols = cols, d.m.bits = 4, d.m.subs = 1, d.m.row_tiles = (rows + 15) / 16,
    d.m.col_tiles = cols / 64;
    const size_t tiles = (size_t)count * d.m.row_tiles * d.m.col_tiles;
    d.codes = noise<uint32_t>(tiles * 128, UINT32_MAX, 0), d.scales = noise<uint32_t>(tiles * 16, 0x807F807Fu, 0x3C003A00u);
    d.m.codes = (const uint4 *)d.codes.data, d.m.scales = d.scales.data;
    return d;
}

/* Median milliseconds of 7 runs after a warm-up. */
template <typename F> static double time_ms(F run) {
    cudaEvent_t a, b;
    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    vector<float> ms(7);
    run();
    for (auto &m : ms) {
        CUDA(cudaEventRecord(a));
        run();
        CUDA(cudaEventRecord(b));
        CUDA(cudaEventSynchronize(b));
        CUDA(cudaEventElapsedTime(&m, a, b));
    }
    finish();
    cudaEventDestroy(a), cudaEventDestroy(b);
    std::sort(ms.begin(), ms.end());
    return ms[3];
}

static double total_ms; /* of all layers */
static void report(const char *name, double ms, double flops, uint32_t layers) {
    printf("  %-34s %8.3f ms  %6.1f TFLOP/s  %5.1f %% of %.0f   x %2u = %7.2f ms\n", name, ms, flops / ms * 1e-9,
           flops / ms * 1e-7 / PEAK_TFLOPS, PEAK_TFLOPS, layers, ms * layers);
    total_ms += ms * layers;
}

static void time_dense(const char *name, uint32_t rows, uint32_t outputs, uint32_t cols, uint32_t layers, bool add = false) {
    const uint32_t copies = 4; /* so that weights come from memory */
    device_mat w = noise_mat(copies, outputs, cols);
    device_array<uint16_t> x = noise_f16((size_t)rows * cols);
    device_array<float> out((size_t)rows * outputs);
    CUDA(cudaMemset(out.data, 0, out.n * 4));
    cuda_mat m[copies];
    for (uint32_t i = 0; i < copies; i++) {
        m[i] = w.m, m[i].count = 1;
        m[i].codes += (size_t)i * w.m.row_tiles * w.m.col_tiles * 32, m[i].scales += (size_t)i * w.m.row_tiles * w.m.col_tiles * 16;
    }
    uint32_t turn = 0;
    const double ms = time_ms([&] { cuda_gemm(&m[turn++ % copies], x.data, cols, out.data, outputs, rows, add, 0); });
    report(name, ms, 2.0 * rows * outputs * cols, layers);
}

static void time_experts(uint32_t rows) {
    const uint32_t E = 256, K = 8, H = 2048, W = 512;
    routing r = make_routing(rows, K, E, false);
    device_mat gate = noise_mat(E, W, H), up = noise_mat(E, W, H), down = noise_mat(E, H, W);
    device_array<uint16_t> x = noise_f16((size_t)rows * H), mid((size_t)rows * K * W);
    device_array<uint8_t> partial(cuda_expert_partial_bytes(rows, K, H));
    device_array<float> out((size_t)rows * H);
    CUDA(cudaMemset(out.data, 0, out.n * 4));
    report("expert lists", time_ms([&] { cuda_route_lists(r.dexpert.data, rows, K, E, &r.lists, 0); }), 0, 40);
    report("experts gate, up, SwiGLU", time_ms([&] { cuda_expert_gemm_in(&gate.m, &up.m, x.data, H, &r.lists, mid.data, rows, K, 0); }),
           4.0 * rows * K * W * H, 40);
    report("experts down, combine",
           time_ms([&] { cuda_expert_gemm_out(&down.m, mid.data, &r.lists, r.dweight.data, partial.data, out.data, H, rows, K, 0); }),
           2.0 * rows * K * W * H, 40);
    cuda_mat g = gate.m, u = up.m;
    g.count = u.count = 1;
    report("shared gate, up, SwiGLU", time_ms([&] { cuda_gemm_swiglu(&g, &u, x.data, H, mid.data, W, rows, 0); }), 4.0 * rows * W * H, 40);
}

static void time_attention(uint32_t first, uint32_t rows, uint32_t layers) {
    const uint32_t end = first + rows, pages = (end + 255) / 256;
    vector<uint32_t> table(pages);
    for (uint32_t i = 0; i < pages; i++) table[i] = pages - 1 - i;
    device_array<uint32_t> dtable(table);
    device_array<uint16_t> q = noise_bf16((size_t)rows * 4096), cache = noise_bf16((size_t)pages * 4 * 65536), out((size_t)rows * 4096);
    device_array<float> gate = noise_f32((size_t)rows * 9216);
    const cuda_kv kv = {cache.data, 2, false};
    const double ms = time_ms([&] { cuda_attention_prefill(q.data, gate.data, 9216, &kv, dtable.data, first, rows, 16, out.data, 0); });
    char name[64];
    snprintf(name, sizeof name, "attention, %u rows from %u", rows, first);
    report(name, ms, 16384.0 * rows * (first + (rows + 1) / 2.0), layers);
}

static void time_gdn(uint32_t rows) {
    const uint32_t stride = 12352;
    device_array<float> in = noise_f32((size_t)rows * stride), conv = noise_f32(8192 * 4), decay = noise_f32(32), dt = noise_f32(32),
                        norm = noise_f32(128), window(3 * 8192), state((size_t)32 * 16384);
    CUDA(cudaMemset(decay.data, 0, 32 * 4));
    device_array<uint16_t> out((size_t)rows * 4096);
    device_array<uint8_t> scratch(cuda_gdn_scratch_bytes(16, 32, rows));
    const cuda_gdn_weights w = {conv.data, decay.data, dt.data, norm.data, 16, 32, 1e-6f};
    const double ms =
        time_ms([&] { cuda_gdn_prefill(&w, in.data, stride, rows, NULL, window.data, NULL, state.data, out.data, scratch.data, 0); });
    report("gated delta net", ms, 4e6 * rows, 30); /* of the chunked form, about */
}

static void run_timings(void) {
    for (uint32_t rows : {512, 2048, 8192}) {
        printf("%u rows:\n", rows);
        total_ms = 0;
        time_dense("gdn in: qkv, z 12288 x 2048", rows, 12288, 2048, 30);
        time_gdn(rows);
        time_dense("gdn out 2048 x 4096", rows, 2048, 4096, 30, true);
        time_dense("attention in: q, k, v 9216 x 2048", rows, 9216, 2048, 10);
        time_attention(0, rows, 10);
        time_dense("attention out 2048 x 4096", rows, 2048, 4096, 10, true);
        time_dense("router 256 x 2048", rows, 256, 2048, 40);
        time_experts(rows);
        time_dense("shared down 2048 x 512", rows, 2048, 512, 40, true);
        printf("  all of these: %.2f ms, %.0f tokens a second\n", total_ms, rows / total_ms * 1e3);
    }
    printf("far into a prompt:\n");
    time_attention(126976, 4096, 10);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    printf("%s, sm_%d%d\n", p.name, p.major, p.minor);
    if (strcmp(what, "time") && strcmp(what, "profile")) {
        run_checks(!strcmp(what, "small"));
        printf("%d passed, %d failed\n", passed, failed);
    }
    if (!*what || !strcmp(what, "time")) run_timings();
    if (!strcmp(what, "profile")) time_gdn(8192), time_experts(8192);
    return failed != 0;
}

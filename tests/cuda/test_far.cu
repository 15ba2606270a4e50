/* test_far.cu: the kernels far into a context and far into memory: attention of a row over 262,143 cached keys with a needle planted at
 * every place where they could be cut; rotary angles at the last position; K/V pages, weights and experts that lie more than 2^32 bytes and
 * elements behind the pointer.  A program of its own, for a machine with a GPU: prints a line for each check and `N passed, N failed`.
 *
 *     test_far [needles | row | f32 | rotary | memory | small]     row: of the needles, those of one row in fast precision; f32: those of a
 *                                                                  cache in f32; small: all in a short context, for compute-sanitizer
 *
 * The needle is a key that is alike to all queries, so that its weight is about that of all others together: losing it changes the output
 * by half, counting it twice by a third.  What a 32-bit offset would reach in place of what is meant is filled with NaN. */
#include "kernel_test.cuh"

static constexpr uint32_t HEADS = 16, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, D = HEAD_DIM, IN = (2 * HEADS + 2 * KV_HEADS) * D;
static constexpr uint64_t PAGE = 2ull * KV_HEADS * KV_PAGE_TOKENS * D; /* elements */
static constexpr float ATTENTION_EPS = 1e-6f;

static bool is_small;

/* Whether there is so much memory; says so where there is not. */
static bool has_memory(const char *what, uint64_t bytes) {
    size_t available = 0, all = 0;
    CUDA(cudaMemGetInfo(&available, &all));
    if (!is_small && bytes + (1u << 30) <= available) return true;
    printf("not run: %s, which takes %.1f GB\n", what, (double)bytes / 1e9);
    return false;
}

/* ---- the cache: one layer, whose pages in use lie behind 2^32 elements where there is room ---- */

static constexpr uint32_t FAR_PAGE = 16384;

template <typename T> struct kv_cache {
    device_array<T> data;
    cuda_kv kv;
    uint32_t base; /* physical page of logical page 0 */
};

static __device__ size_t cache_at(uint32_t base, uint32_t v, uint32_t head, uint32_t position) {
    return (base + position / KV_PAGE_TOKENS) * PAGE + ((size_t)(v * KV_HEADS + head) * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS) * D;
}

static __device__ float as_float(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
static __device__ float as_float(float x) { return x; }
static __device__ void set_from_bf16(uint16_t &to, uint16_t x) { to = x; }
static __device__ void set_from_bf16(float &to, uint16_t x) { to = as_float(x); }

/* Even in -1 … 1, the same for both types. */
template <typename T> static __global__ void fill_cache(T *cache, uint32_t base, uint32_t keys) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < (uint64_t)keys * 2 * KV_HEADS * D;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t h = (i + 1) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29, h *= 0xBF58476D1CE4E5B9u, h ^= h >> 32;
        const float x = (float)(int32_t)h * 0x1p-31f;
        const uint32_t part = (uint32_t)(i / D % (2 * KV_HEADS)), position = (uint32_t)(i / D / (2 * KV_HEADS));
        set_from_bf16(cache[cache_at(base, part / KV_HEADS, part % KV_HEADS, position) + i % D], (uint16_t)(__float_as_uint(x) >> 16));
    }
}

template <typename T> static kv_cache<T> make_cache(uint32_t keys) {
    const uint32_t pages = (keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    kv_cache<T> c;
    c.base = has_memory("a cache behind 2^32 elements", (FAR_PAGE + pages) * PAGE * sizeof(T)) ? FAR_PAGE : 0;
    c.data = device_array<T>((c.base + pages) * PAGE);
    c.data.poison();
    fill_cache<<<4096, 256>>>(c.data.data, c.base, keys);
    finish();
    c.kv = {c.data.data, KV_HEADS, sizeof(T) == 4};
    return c;
}

/* Key and value [KV_HEADS][2][D] of a position change places with those in `needle`. */
template <typename T> static __global__ void swap_needle(T *cache, uint32_t base, uint32_t position, T *needle) {
    const uint32_t head = blockIdx.x / 2, v = blockIdx.x % 2;
    T &a = cache[cache_at(base, v, head, position) + threadIdx.x], &b = needle[blockIdx.x * D + threadIdx.x];
    const T keep = a;
    a = b, b = keep;
}

/* ---- the truth, in double ---- */

/* p[head][key] = exp(q k / 16); q [HEADS][D] */
template <typename T> static __global__ void weigh(const T *cache, uint32_t base, const double *q, uint32_t keys, double *p) {
    const uint32_t key = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (key >= keys) return;
    const T *k = cache + cache_at(base, 0, head / GROUP, key);
    double dot = 0;
    for (uint32_t d = 0; d < D; d++) dot += q[head * D + d] * (double)as_float(k[d]);
    p[(size_t)head * keys + key] = exp(dot / 16);
}

/* sums[i][head][D + 1]: Σ p v and Σ p over the keys before stop[i], which ascend. */
template <typename T>
static __global__ void sum_weighed(const T *cache, uint32_t base, const double *p, uint32_t keys, const uint32_t *stop, uint32_t stops,
                                   double *sums) {
    const uint32_t head = blockIdx.x, d = threadIdx.x;
    double value = 0, all = 0;
    uint32_t key = 0;
    for (uint32_t i = 0; i < stops; i++) {
        for (; key < stop[i]; key++) {
            const double w = p[(size_t)head * keys + key];
            value += w * (double)as_float(cache[cache_at(base, 1, head / GROUP, key) + d]);
            all += w;
        }
        double *out = sums + ((size_t)i * HEADS + head) * (D + 1);
        out[d] = value;
        if (d == 0) out[D] = all;
    }
}

struct truth {
    vector<uint32_t> stop; /* [rows] keys that each sees, ascending */
    vector<double> p, sums;
    uint32_t keys;
};

template <typename T> static truth find_truth(const kv_cache<T> &c, const vector<double> &q, const vector<uint32_t> &stop) {
    truth t;
    t.stop = stop, t.keys = stop.back();
    device_array<double> dq(q), p((size_t)HEADS * t.keys), sums(stop.size() * HEADS * (D + 1));
    device_array<uint32_t> dstop(stop);
    weigh<<<dim3((t.keys + 255) / 256, HEADS), 256>>>(c.data.data, c.base, dq.data, t.keys, p.data);
    sum_weighed<<<HEADS, D>>>(c.data.data, c.base, p.data, t.keys, dstop.data, (uint32_t)stop.size(), sums.data);
    finish();
    t.p = p.get(), t.sums = sums.get();
    return t;
}

/* What was at `position` is replaced by the needle: relative error of out [rows][HEADS][D]. */
static double error_with_needle(const truth &t, const vector<double> &q, uint32_t position, const vector<float> &was,
                                const vector<float> &is, const vector<float> &out) {
    double error = 0, norm = 0;
    for (uint32_t head = 0; head < HEADS; head++) {
        const float *k = &is[head / GROUP * 2 * D], *v = k + D, *v_was = &was[head / GROUP * 2 * D] + D;
        double dot = 0;
        for (uint32_t d = 0; d < D; d++) dot += q[head * D + d] * (double)k[d];
        const double p = exp(dot / 16);
        for (uint32_t r = 0; r < t.stop.size(); r++) {
            const bool sees = position < t.stop[r];
            const double *sums = &t.sums[((size_t)r * HEADS + head) * (D + 1)], p_was = sees ? t.p[(size_t)head * t.keys + position] : 0,
                         p_is = sees ? p : 0, all = sums[D] - p_was + p_is;
            for (uint32_t d = 0; d < D; d++) {
                const double want = (sums[d] - p_was * (double)v_was[d] + p_is * (double)v[d]) / all,
                             e = want - (double)out[((size_t)r * HEADS + head) * D + d];
                error += e * e, norm += want * want;
            }
        }
    }
    const double relative = sqrt(error / norm);
    return isnan(relative) ? INFINITY : relative;
}

/* ---- needles ---- */

struct queries {
    vector<float> raw;    /* [IN] of a row: queries (gates between them: nothing), key and value */
    vector<double> value; /* [HEADS][D] normed */
    vector<float> common; /* [KV_HEADS][D]: what the queries of a group have in common */
};

static queries make_queries(void) {
    queries q;
    q.raw.resize(IN), q.value.resize(HEADS * D), q.common.resize(KV_HEADS * D);
    for (auto &x : q.common) x = random_float();
    for (auto &x : q.raw) x = random_float();
    for (uint32_t head = 0; head < HEADS; head++) {
        double squares = 0;
        float *raw = &q.raw[(size_t)head * 2 * D];
        for (uint32_t d = 0; d < D; d++) {
            raw[d] = q.common[head / GROUP * D + d] + 0.3f * random_float();
            squares += (double)raw[d] * (double)raw[d];
        }
        for (uint32_t d = 0; d < D; d++) q.value[head * D + d] = raw[d] / sqrt(squares / D + (double)ATTENTION_EPS);
    }
    return q;
}

/* [KV_HEADS][key, value][D], of values that bf16 has. */
static vector<float> make_needle(const queries &q, uint32_t keys) {
    vector<float> needle(KV_HEADS * 2 * D);
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        double alike = 0;
        for (uint32_t i = 0; i < GROUP * D; i++) alike += q.value[head * GROUP * D + i] * (double)q.common[head * D + i % D] / GROUP;
        for (uint32_t d = 0; d < D; d++) {
            needle[head * 2 * D + d] = from_bf16(to_bf16((float)(16 * log((double)keys) / alike) * q.common[head * D + d]));
            needle[head * 2 * D + D + d] = from_bf16(to_bf16(2 * random_float()));
        }
    }
    return needle;
}

static vector<uint16_t> to_cache(const vector<float> &x, uint16_t) {
    vector<uint16_t> y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = to_bf16(x[i]);
    return y;
}
static vector<float> to_cache(const vector<float> &x, float) { return x; }
static vector<float> to_floats(const vector<float> &x) { return x; }
static vector<float> to_floats(const vector<uint16_t> &x) {
    vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = from_bf16(x[i]);
    return y;
}

/* Plants the needle on both sides of every multiple of `step`, and at the end; run(out) gives the outputs of the rows. */
template <typename T, typename F>
static void find_needles(const char *name, const kv_cache<T> &c, const queries &q, const truth &t, uint32_t end, uint32_t step,
                         double limit, F run) {
    const vector<float> needle = make_needle(q, t.keys);
    device_array<T> planted(to_cache(needle, T()));
    double worst = 0;
    uint32_t places = 0, missed = 0, first_missed = 0;
    for (uint32_t i = 0; i <= end; i += i % step ? 1 : step - 1) { /* 0, step - 1, step, 2·step - 1 … */
        swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, i, planted.data);
        const vector<float> was = to_floats(planted.get()), out = run();
        swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, i, planted.data);
        const double error = error_with_needle(t, q.value, i, was, needle, out);
        worst = error > worst ? error : worst;
        places++;
        if (!(error <= limit) && !missed++) first_missed = i;
    }
    finish();
    char text[160];
    int n = snprintf(text, sizeof text, "%s: a needle at %u places", name, places);
    if (missed) snprintf(text + n, sizeof text - (size_t)n, ", %u missed, the first at %u", missed, first_missed);
    judge(text, !missed, worst);
}

/* ---- attention of single rows ---- */

struct attention_run {
    step_attention a;
    device_array<cuda_counts> counts;
    device_array<uint32_t> positions, segment_of, pages, counters;
    device_array<batch_segment> segment;
    device_array<float> in, out, gain, rotary, partial;
};

/* Rows of one cache, each a sequence of its own that sees stop[r] keys, the last of which is its own. */
static attention_run prepare_attention(const cuda_kv &kv, uint32_t base, const queries &q, const vector<uint32_t> &stop, bool exact,
                                       uint32_t clusters) {
    const uint32_t rows = (uint32_t)stop.size(), pages = (stop.back() + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    attention_run run;
    vector<uint32_t> table(pages), positions, segment_of;
    vector<batch_segment> segment;
    vector<float> in, gain(D, 1.0f), rotary;
    for (uint32_t i = 0; i < pages; i++) table[i] = base + i;
    for (uint32_t r = 0; r < rows; r++) {
        positions.push_back(stop[r] - 1), segment_of.push_back(r);
        segment.push_back({r, 1, stop[r] - 1, 0, 1, 0, pages});
        in.insert(in.end(), q.raw.begin(), q.raw.end());
        for (uint32_t i = 0; i < ROTARY_DIM; i++) rotary.push_back(i < ROTARY_DIM / 2 ? 1.0f : 0.0f); /* no rotation: a test of its own */
    }
    run.counts = device_array<cuda_counts>(vector<cuda_counts>{{rows, rows, rows, 0, 0, 0}});
    run.positions = device_array<uint32_t>(positions), run.segment_of = device_array<uint32_t>(segment_of);
    run.pages = device_array<uint32_t>(table), run.segment = device_array<batch_segment>(segment);
    run.in = device_array<float>(in), run.gain = device_array<float>(gain), run.rotary = device_array<float>(rotary);
    run.out = device_array<float>((size_t)rows * HEADS * D);
    run.partial = device_array<float>(step_attention_partial_floats(HEADS));
    run.counters = device_array<uint32_t>(vector<uint32_t>((size_t)rows * KV_HEADS * STEP_MAX_GROUP, 0));
    step_attention &a = run.a = {};
    a.batch.counts = run.counts.data, a.batch.positions = run.positions.data, a.batch.segment_of = run.segment_of.data;
    a.batch.segment = run.segment.data, a.batch.page_table = run.pages.data;
    a.kv = kv, a.in = run.in.data, a.out = run.out.data, a.q_gain = a.k_gain = run.gain.data, a.rotary = run.rotary.data;
    a.partial = run.partial.data, a.counters = run.counters.data;
    a.in_stride = IN, a.out_stride = HEADS * D, a.heads = HEADS, a.rows = a.segments = rows;
    a.clusters = clusters, a.exact = exact, a.single = true, a.norm_eps = ATTENTION_EPS;
    return run;
}

static vector<float> attend(attention_run &run) {
    run.out.poison();
    step_run_attention(&run.a, false, 0);
    return run.out.get();
}

/* The row's own key and value, which the kernel writes on the way: read back, they must be those of the row. */
template <typename T> static void check_own(const char *name, const kv_cache<T> &c, const queries &q, uint32_t position) {
    vector<T> got(2 * KV_HEADS * D);
    vector<double> want;
    vector<float> have;
    device_array<T> out(got.size());
    swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, position, out.data);
    got = out.get();
    swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, position, out.data);
    finish();
    have = to_floats(got);
    for (uint32_t head = 0; head < KV_HEADS; head++)
        for (uint32_t v = 0; v < 2; v++) {
            const float *raw = &q.raw[(2 * HEADS + v * KV_HEADS + head) * D];
            double squares = 0;
            for (uint32_t d = 0; d < D; d++) squares += (double)raw[d] * (double)raw[d];
            for (uint32_t d = 0; d < D; d++) want.push_back(v ? raw[d] : raw[d] / sqrt(squares / D + (double)ATTENTION_EPS));
        }
    char text[160];
    snprintf(text, sizeof text, "%s: the key and value written", name);
    judge_close(text, want, have, sizeof(T) == 4 ? 1e-6 : 3e-3);
}

template <typename T>
static void check_attention(const kv_cache<T> &c, const queries &q, const vector<uint32_t> &stop, bool exact, uint32_t clusters,
                            uint32_t step) {
    const uint32_t rows = (uint32_t)stop.size(), keys = stop.back();
    char name[96];
    snprintf(name, sizeof name, "attention %s%s%s%s, rows %u, %u keys", sizeof(T) == 4 ? "f32" : "bf16", exact ? ", exact" : "",
             clusters ? ", clusters" : "", c.base ? ", behind 2^32" : "", rows, keys);
    attention_run run = prepare_attention(c.kv, c.base, q, stop, exact, clusters);
    attend(run); /* writes the rows' own keys, which belong to the truth */
    check_own(name, c, q, keys - 1);
    const truth t = find_truth(c, q.value, stop);
    /* weights of values have 9 bits in fast precision */
    find_needles(name, c, q, t, stop.front() - 2, step, sizeof(T) == 2 && !exact ? 4e-3 : 1e-4, [&] { return attend(run); });
    if (rows > 1) return;
    /* at the very end: the row's own key */
    queries last = q;
    for (uint32_t i = 0; i < KV_HEADS * D; i++) last.raw[2 * HEADS * D + i] = q.common[i];
    device_array<float> k_gain(vector<float>(D, (float)(log((double)keys) / 16)));
    run.in.put(last.raw);
    run.a.k_gain = k_gain.data;
    const vector<float> out = attend(run);
    device_array<T> own(2 * KV_HEADS * D);
    swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, keys - 1, own.data);
    const vector<T> planted = own.get();
    swap_needle<<<2 * KV_HEADS, D>>>(c.data.data, c.base, keys - 1, own.data);
    const vector<float> is = to_floats(planted); /* the value is that of the truth, the key another */
    const double error = error_with_needle(t, q.value, keys - 1, is, is, out);
    snprintf(name + strlen(name), sizeof name - strlen(name), ": own key");
    judge(name, error <= (sizeof(T) == 2 && !exact ? 4e-3 : 1e-4), error);
}

/* ---- attention of a prompt's rows ---- */

static void check_prompt_attention(const kv_cache<uint16_t> &c, queries q, uint32_t end, uint32_t rows, uint32_t step) {
    const uint32_t pages = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS, first = end - rows;
    vector<uint32_t> table(pages), stop;
    vector<uint16_t> in;
    for (uint32_t i = 0; i < pages; i++) table[i] = c.base + i;
    for (auto &x : q.value) x = (double)from_bf16(to_bf16((float)x));
    for (uint32_t r = 0; r < rows; r++) {
        stop.push_back(first + r + 1);
        for (double x : q.value) in.push_back(to_bf16((float)x));
    }
    device_array<uint32_t> dtable(table);
    device_array<uint16_t> dq(in), out((size_t)rows * HEADS * D);
    device_array<float> gate(vector<float>((size_t)rows * HEADS * 2 * D, 30.0f)); /* open */
    char name[96];
    snprintf(name, sizeof name, "prompt attention%s, rows %u from %u", c.base ? " behind 2^32" : "", rows, first);
    find_needles(name, c, q, find_truth(c, q.value, stop), end - 1, step, 5e-3, [&] {
        out.poison();
        cuda_attention_prefill(dq.data, gate.data, HEADS * 2 * D, &c.kv, dtable.data, first, rows, HEADS, out.data, 0);
        return widen(out.get());
    });
}

/* Two layers, of which the second begins behind 2^32 bytes. */
static void check_copy_page(void) {
    const uint32_t pages = 8300, src = 8250, dst = 8222, tokens = 100;
    if (!has_memory("copies of pages behind 2^32 bytes", 2 * pages * PAGE * 2)) return;
    device_array<uint16_t> kv(2 * pages * PAGE);
    kv.poison();
    bool good = true;
    for (uint32_t layer = 0; layer < 2; layer++) fill_cache<<<64, 256>>>(kv.data, layer * pages + src, KV_PAGE_TOKENS);
    rows_run_copy_page(kv.data, 2, pages, KV_HEADS, 2, src, dst, tokens, 0);
    finish();
    for (uint32_t layer = 0; layer < 2; layer++) {
        vector<uint16_t> from(PAGE), to(PAGE);
        CUDA(cudaMemcpy(from.data(), kv.data + (layer * pages + src) * PAGE, PAGE * 2, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(to.data(), kv.data + (layer * pages + dst) * PAGE, PAGE * 2, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < PAGE; i++) good &= to[i] == (i / D % KV_PAGE_TOKENS < tokens ? from[i] : 0xFFFF);
    }
    judge("a page copied in two layers, behind 2^32 bytes", good, 0);
}

/* ---- rotary angles ---- */

static void check_rotary(void) {
    const vector<uint32_t> positions = {0, 1, 255, 256, 4095, 65535, 131071, 262142, 262143};
    const uint32_t rows = (uint32_t)positions.size(), hidden = 64;
    host_mat w = make_mat(1, 16, hidden, 4, 1);
    vector<double> rate, want;
    for (uint32_t j = 0; j < ROTARY_DIM / 2; j++) rate.push_back(pow(1e7, -2.0 * j / ROTARY_DIM));
    for (uint32_t p : positions)
        for (uint32_t i = 0; i < ROTARY_DIM; i++) {
            const double angle = p * rate[i % (ROTARY_DIM / 2)];
            want.push_back(i < ROTARY_DIM / 2 ? cos(angle) : sin(angle));
        }
    device_array<cuda_counts> counts(vector<cuda_counts>{{rows, rows, 0, 0, 0, 0}});
    device_array<int32_t> ids(vector<int32_t>(rows, 3));
    device_array<uint32_t> dpositions(positions);
    device_array<double> drate(rate);
    device_array<float> residual((size_t)rows * hidden), rotary((size_t)rows * ROTARY_DIM);
    step_embed a = {};
    a.w = w.m, a.batch.counts = counts.data, a.batch.ids = ids.data, a.batch.positions = dpositions.data;
    a.residual = residual.data, a.rotary = rotary.data, a.rate = drate.data, a.hidden = hidden, a.rows = rows;
    rotary.poison();
    step_run_embed(&a, 0);
    finish();
    const vector<float> got = rotary.get();
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) worst = std::max(worst, fabs(want[i] - (double)got[i]));
    judge("rotary angles up to position 262,143", worst <= 1e-7 && !isnan(got[0]), worst); /* half a last digit of a float near 1: 3e-8 */
}

/* ---- weights behind 2^32 bytes ---- */

static __global__ void fill_weights(uint32_t *p, size_t n, uint32_t mask, uint32_t set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = (i + 1) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29, h *= 0xBF58476D1CE4E5B9u, h ^= h >> 32;
        p[i] = ((uint32_t)h & mask) | set;
    }
}

struct far_mat {
    cuda_mat m;
    device_array<uint32_t> codes, scales;
};

static far_mat make_far(uint32_t count, uint32_t rows, uint32_t cols) {
    far_mat f;
    f.m = {};
    f.m.count = count, f.m.rows = rows, f.m.cols = cols, f.m.bits = 4, f.m.subs = 1, f.m.row_tiles = rows / 16, f.m.col_tiles = cols / 64;
    const size_t tiles = (size_t)count * f.m.row_tiles * f.m.col_tiles;
    f.codes = device_array<uint32_t>(tiles * 128), f.scales = device_array<uint32_t>(tiles * 16);
    fill_weights<<<4096, 256>>>(f.codes.data, f.codes.n, UINT32_MAX, 0);
    fill_weights<<<4096, 256>>>(f.scales.data, f.scales.n, 0x807F807Fu, 0x3C003A00u); /* scale and bias of about 0.01 */
    finish();
    f.m.codes = (const uint4 *)f.codes.data, f.m.scales = f.scales.data;
    return f;
}

/* The last `rows` outputs of the last matrix, as a matrix of its own. */
static cuda_mat last_of(const cuda_mat &w, uint32_t rows) {
    cuda_mat m = w;
    const size_t skipped = ((size_t)w.count * w.row_tiles - rows / 16) * w.col_tiles;
    m.count = 1, m.rows = rows, m.row_tiles = rows / 16, m.codes += skipped * 32, m.scales += skipped * 16;
    return m;
}

static vector<float> tail(const float *data, uint32_t rows, uint32_t stride, uint32_t n) {
    vector<float> x((size_t)rows * n);
    CUDA(cudaMemcpy2D(x.data(), n * 4, data + stride - n, (size_t)stride * 4, n * 4, rows, cudaMemcpyDeviceToHost));
    return x;
}

static void judge_same(const char *name, const vector<float> &want, const vector<float> &got, double limit) {
    judge_close(name, vector<double>(want.begin(), want.end()), got, limit);
}

static void check_far_products(void) {
    const uint32_t outputs = (1u << 21) + 32, cols = 4096, last = 32, most = 33;
    if (!has_memory("products of a matrix of more than 2^32 bytes", 6ull << 30)) return;
    const far_mat w = make_far(1, outputs, cols);
    const cuda_mat near = last_of(w.m, last);
    vector<float> x((size_t)most * cols);
    vector<uint16_t> x16(x.size());
    for (size_t i = 0; i < x.size(); i++) x[i] = random_float(), x16[i] = to_f16(x[i]);
    device_array<float> dx(x), out((size_t)most * outputs), out_near((size_t)most * last);
    device_array<uint16_t> dx16(x16);
    cuda_device d = device_of_parts(2);
    CUDA(linear_prepare(&d));
    const struct {
        uint32_t parts, rows;
    } runs[] = {{2, 1}, {2, 8}, {3, 2}};
    for (const auto &run : runs) {
        char name[96];
        d.parts = run.parts;
        step_linear a = {};
        a.w = w.m, a.out = out.data, a.out_stride = outputs, a.rows = run.rows;
        a.in.source = STEP_PLAIN, a.in.x = dx.data, a.in.x_stride = cols;
        out.poison(), out_near.poison();
        step_run_linear(&d, &a, false, 0);
        a.w = near, a.out = out_near.data, a.out_stride = last;
        step_run_linear(&d, &a, false, 0);
        finish();
        snprintf(name, sizeof name, "product behind 2^32 bytes, %u parts, rows %u", run.parts, run.rows);
        judge_same(name, tail(out_near.data, run.rows, last, last), tail(out.data, run.rows, outputs, last), 1e-5);
    }
    out.poison(), out_near.poison();
    cuda_gemm(&w.m, dx16.data, cols, out.data, outputs, most, false, 0);
    cuda_gemm(&near, dx16.data, cols, out_near.data, last, most, false, 0);
    finish();
    judge_same("product behind 2^32 bytes, f16 rows", tail(out_near.data, most, last, last), tail(out.data, most, outputs, last), 1e-5);

    device_array<cuda_counts> counts(vector<cuda_counts>{{2, 2, 0, 0, 0, 0}});
    device_array<int32_t> ids(vector<int32_t>{(int32_t)outputs - 1, (int32_t)outputs - 17}), near_ids(vector<int32_t>{31, 15});
    device_array<uint32_t> positions(vector<uint32_t>{0, 1});
    device_array<double> rate(vector<double>(ROTARY_DIM / 2, 1.0));
    device_array<float> rotary(2 * ROTARY_DIM);
    step_embed e = {};
    e.w = w.m, e.batch.counts = counts.data, e.batch.ids = ids.data, e.batch.positions = positions.data, e.rate = rate.data;
    e.rotary = rotary.data, e.residual = out.data, e.hidden = cols, e.rows = 2;
    out.poison(), out_near.poison();
    step_run_embed(&e, 0);
    e.w = near, e.batch.ids = near_ids.data, e.residual = out_near.data;
    device_array<float> near_rows(2 * cols);
    e.residual = near_rows.data;
    step_run_embed(&e, 0);
    finish();
    judge("embedding behind 2^32 bytes", tail(out.data, 2, cols, cols) == near_rows.get(), 0);
}

/* 256 experts in 4.3 GB, of which the last is taken; gate, up and down at once. */
static void check_far_experts(void) {
    const uint32_t experts = 256, width = 8192, cols = 4096, rows = 3;
    if (!has_memory("experts of more than 2^32 bytes", 6ull << 30)) return;
    const far_mat w = make_far(experts, width, cols);
    const cuda_mat near = last_of(w.m, width);
    vector<float> x((size_t)rows * cols);
    vector<uint16_t> x16(x.size());
    for (size_t i = 0; i < x.size(); i++) x[i] = random_float() / 16, x16[i] = to_f16(x[i]);
    device_array<float> dx(x), weight(vector<float>(rows, 1.0f)), residual((size_t)rows * width);
    device_array<uint16_t> dx16(x16), mid((size_t)rows * width);
    device_array<uint32_t> expert(vector<uint32_t>(rows, experts - 1)), only(vector<uint32_t>(rows, 0)), first(experts + 1), place(rows),
        slot_of(rows);
    device_array<uint8_t> blocks(cuda_expert_block_bytes(experts, rows, 1)), partial(cuda_expert_partial_bytes(rows, 1, width));
    device_array<float> places((size_t)rows * width);
    cuda_device d = device_of_parts(3);
    CUDA(moe_prepare(&d));
    vector<float> of_step[2], of_gemm[2], of_down[2];
    for (int far = 0; far < 2; far++) {
        const cuda_mat &m = far ? w.m : near;
        const uint32_t *which = far ? expert.data : only.data, n = far ? experts : 1;
        step_experts a = {};
        a.gate = a.up = m, a.moe_in = dx.data, a.expert = which, a.places = places.data, a.top_k = 1, a.rows = rows;
        places.poison();
        step_run_experts_in(&d, &a, false, 0);
        of_step[far] = places.get();
        const cuda_expert_rows lists = {first.data, place.data, slot_of.data, (uint32_t *)blocks.data};
        cuda_route_lists(which, rows, 1, n, &lists, 0);
        mid.poison();
        cuda_expert_gemm_in(&m, &m, dx16.data, cols, &lists, mid.data, rows, 1, 0);
        of_gemm[far] = widen(mid.get());
        CUDA(cudaMemset(residual.data, 0, residual.n * 4));
        cuda_expert_gemm_out(&m, dx16.data, &lists, weight.data, partial.data, residual.data, width, rows, 1, 0);
        of_down[far] = residual.get();
    }
    judge_same("experts' first half behind 2^32 bytes, exact", of_step[0], of_step[1], 1e-5);
    judge_same("experts' first half behind 2^32 bytes, f16 rows", of_gemm[0], of_gemm[1], 1e-3);
    judge_same("experts' second half behind 2^32 bytes, f16 rows", of_down[0], of_down[1], 1e-3);

    /* and how they get there */
    const uint32_t row_bytes = cols / 2, groups = cols / 64;
    device_array<uint8_t> codes((size_t)width * row_bytes), scales((size_t)width * groups * 2), biases((size_t)width * groups * 2);
    for (auto *p : {&codes, &scales, &biases}) fill_weights<<<256, 256>>>((uint32_t *)p->data, p->n / 4, UINT32_MAX, 0);
    far_mat small = make_far(1, width, cols);
    repack_job j = {codes.data, scales.data, biases.data, 4, 64, width, cols, 1, w.m, experts - 1, 0};
    repack_run(&j, 0);
    j.to = small.m, j.first = 0;
    repack_run(&j, 0);
    finish();
    vector<uint32_t> far_codes(small.codes.n), far_scales(small.scales.n);
    CUDA(cudaMemcpy(far_codes.data(), near.codes, far_codes.size() * 4, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(far_scales.data(), near.scales, far_scales.size() * 4, cudaMemcpyDeviceToHost));
    judge("an expert brought behind 2^32 bytes", far_codes == small.codes.get() && far_scales == small.scales.get(), 0);
}

/* ---- all ---- */

static vector<uint32_t> eight_rows(uint32_t keys) {
    vector<uint32_t> stop;
    for (uint32_t r = 0; r < 8; r++) stop.push_back(keys - (7 - r) * (is_small ? 11 : 1001));
    return stop;
}

static void check_needles(bool only_row) {
    const uint32_t most = is_small ? 2500 : 262144, odd = is_small ? 2003 : 200003, few = is_small ? 1000 : 256, all = is_small ? 1000 : 32;
    const queries q = make_queries();
    const kv_cache<uint16_t> c = make_cache<uint16_t>(most);
    cuda_device d = device_of_parts(2);
    CUDA(attention_prepare(&d));
    check_attention(c, q, {most}, false, d.clusters, all); /* first: own keys of other checks lie elsewhere */
    if (only_row) return;
    check_attention(c, q, {odd}, false, d.clusters, all);
    check_attention(c, q, {most}, true, d.clusters, all);
    check_attention(c, q, {most}, false, 0, few);
    check_attention(c, q, eight_rows(most), false, d.clusters, few * 2);
    check_attention(c, q, {most / 128}, false, d.clusters, 32); /* one cluster, nothing through memory */
    check_prompt_attention(c, q, most, 48, few * 4);
}

static void check_needles_f32(void) {
    const uint32_t most = is_small ? 2500 : 262144;
    check_attention(make_cache<float>(most), make_queries(), {most}, true, 0, is_small ? 1000 : 256);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const auto is = [what](const char *part) { return !strcmp(what, part); };
    is_small = is("small");
    cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    printf("%s, sm_%d%d\n", p.name, p.major, p.minor);
    const bool all = !*what || is_small;
    if (all || is("rotary")) check_rotary();
    if (all || is("needles") || is("row")) check_needles(is("row"));
    if (all || is("needles") || is("f32")) check_needles_f32();
    if (!*what || is("memory")) check_copy_page(), check_far_products(), check_far_experts();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

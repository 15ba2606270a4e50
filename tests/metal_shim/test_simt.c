/* test_simt.c: the runner of Metal kernels and its library do what a device does, and each kind of mistake is found.  test/library.metal
 * and test/faults.metal are compiled with every access watched; WATCHED is not defined where they are compiled for speed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/float.h"
#include "simt.h"
#include "unit.h"
#ifdef WATCHED
#include "watch.h"
#endif

#define BINDING(x) {&(x), sizeof(x), #x}

static void run(const simt_dispatch *d) {
    if (!simt_run_both(d)) fail_msg("%s", simt_error());
}

/* ---- the library ---- */

static void test_operations_of_a_simdgroup(void **state) {
    (void)state;
    int32_t x[32], out[20][32];
    int32_t all[3] = {-1, 0, 0}, sum = 0, bits = 0; /* and, or, xor */
    for (int i = 0; i < 32; i++) {
        x[i] = (i * 7 + 5) % 32 + 1;
        all[0] &= x[i];
        all[1] |= x[i];
        all[2] ^= x[i];
        sum += x[i];
        bits |= (int32_t)((uint32_t)(x[i] & 1) << i);
    }
    run(&(simt_dispatch){.kernel = "lanes", .buffer = {BINDING(x), BINDING(out)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}});
    int32_t before = 0;
    for (int i = 0; i < 32; i++) {
        const int quad = i & ~3;
        const int32_t want[20] = {sum,
                                  1,
                                  32,
                                  9,
                                  all[0],
                                  all[1],
                                  all[2],
                                  before + x[i],
                                  before,
                                  x[i * 7 % 32],
                                  x[i ^ 5],
                                  x[i >= 3 ? i - 3 : i],
                                  x[i + 3 < 32 ? i + 3 : i],
                                  x[9],
                                  x[0],
                                  x[quad] + x[quad + 1] + x[quad + 2] + x[quad + 3],
                                  x[i ^ 2],
                                  1,
                                  1,
                                  bits};
        for (int k = 0; k < 20; k++)
            if (out[k][i] != want[k]) fail_msg("operation %d, lane %d: %d instead of %d", k, i, out[k][i], want[k]);
        before += x[i];
    }
}

static void test_lanes_that_ended_take_no_part(void **state) {
    (void)state;
    int32_t x[32], out[32] = {0}, before = 0;
    uint32_t n = 11;
    for (int i = 0; i < 32; i++) x[i] = i + 1;
    run(&(simt_dispatch){
        .kernel = "some_lanes", .buffer = {BINDING(x), BINDING(out), BINDING(n)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}});
    for (int i = 0; i < 32; i++) assert_int_equal(out[i], i < 11 ? 66 + (before += x[i]) : 0);
}

/* small whole numbers: exact in every type */
static float number_at(size_t i) { return (float)((i * 37 + 11) % 13) - 6; }

static uint16_t half_of(float whole) {
    int exponent;
    const float m = frexpf(fabsf(whole), &exponent); /* in [0.5, 1) */
    const int bits = (whole < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | ((int)(m * 2048) & 1023);
    return (uint16_t)(whole == 0 ? 0 : bits);
}

static void matrix_case(const char *kernel, int type, bool transposed) { /* type 0: float, 1: half, 2: bfloat */
    float a[8 * 16], b[20 * 16], c[8 * 9], want[8 * 9];
    uint16_t a16[8 * 16], b16[20 * 16];
    for (size_t i = 0; i < 8 * 16; i++) {
        a[i] = number_at(i);
        a16[i] = type == 1 ? half_of(a[i]) : float_to_bf16(a[i]);
    }
    for (size_t i = 0; i < 20 * 16; i++) {
        b[i] = number_at(i + 3);
        b16[i] = type == 1 ? half_of(b[i]) : float_to_bf16(b[i]);
    }
    for (size_t i = 0; i < 8 * 9; i++) want[i] = c[i] = (float)i;
    for (size_t row = 0; row < 8; row++)
        for (size_t column = 0; column < 8; column++)
            for (size_t k = 0; k < 16; k++)
                want[row * 9 + column] += a[row * 16 + k] * (transposed ? b[column * 20 + k] : b[k * 10 + column]);
    simt_dispatch d = {.kernel = kernel, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}, .buffer = {[2] = BINDING(c)}};
    d.buffer[0] = type ? (simt_binding)BINDING(a16) : (simt_binding)BINDING(a);
    d.buffer[1] = type ? (simt_binding)BINDING(b16) : (simt_binding)BINDING(b);
    const uint64_t before = simt_matrix_products;
    run(&d);
    assert_int_equal(simt_matrix_products - before, 2 * 2); /* in both orders */
    for (size_t i = 0; i < 8 * 9; i++)
        if (c[i] != want[i]) fail_msg("%s, value %zu: %g instead of %g", kernel, i, c[i], want[i]);
}

static void test_matrices(void **state) {
    (void)state;
    matrix_case("matrices_float", 0, false);
    matrix_case("matrices_half", 1, false);
    matrix_case("matrices_bfloat_t", 2, true);
    float x[64], out[32][2];
    for (int i = 0; i < 64; i++) x[i] = (float)i;
    run(&(simt_dispatch){
        .kernel = "matrix_places", .buffer = {BINDING(out), BINDING(x)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}});
    bool seen[64] = {false};
    for (int lane = 0; lane < 32; lane++) {
        assert_true(out[lane][1] == out[lane][0] + 1); /* side by side */
        for (int i = 0; i < 2; i++) {
            const int place = (int)out[lane][i];
            assert_false(seen[place]);
            seen[place] = true;
        }
    }
    assert_true(out[0][0] == 0 && out[1][0] == 2 && out[2][0] == 8 && out[8][0] == 4 && out[16][0] == 32); /* as Apple's GPUs have it */
}

static void test_rounding_and_conversions(void **state) {
    (void)state;
    float out[10];
    run(&(simt_dispatch){.kernel = "rounding", .buffer = {BINDING(out)}, .threads = {1, 1, 1}, .threadgroups = {1, 1, 1}});
    const float want[10] = {0, 256, 65504, 1, 1.0f / 3.0f, -3.75f, 10, 1, 10 + 8 + 31 + 3, 2.5f};
    for (int i = 0; i < 10; i++)
        if (out[i] != want[i]) fail_msg("value %d: %.9g instead of %.9g", i, out[i], want[i]);
}

static void test_positions_and_constants(void **state) {
    (void)state;
    enum { WIDTH = 13, HEIGHT = 5 }; /* threadgroups of 8 x 4 */
    for (uint32_t given = 0; given < 2; given++) {
        uint32_t out[HEIGHT][WIDTH];
        simt_dispatch d = {.kernel = "positions",
                           .buffer = {BINDING(out)},
                           .threadgroup_bytes = {128, 128},
                           .threads = {8, 4, 1},
                           .threadgroups = {2, 2, 1},
                           .grid_threads = {WIDTH, HEIGHT, 1}};
        d.constant[3].b = given;
        d.constant_set[3] = true;
        d.constant[4].u = 100;
        d.constant_set[4] = given;
        run(&d);
        for (uint32_t y = 0; y < HEIGHT; y++)
            for (uint32_t x = 0; x < WIDTH; x++) {
                const uint32_t x0 = x / 8 * 8, y0 = y / 4 * 4, w = x0 + 8 <= WIDTH ? 8 : WIDTH - x0, h = y0 + 4 <= HEIGHT ? 4 : HEIGHT - y0;
                const uint32_t other = w * h - 1 - ((y - y0) * w + x - x0), at = (y0 + other / w) * WIDTH + x0 + other % w;
                assert_int_equal(out[y][x], (at + 1000 * w + h) * (given ? 2 : 1) + (given ? 100 : 7));
            }
    }
}

static void test_atomics(void **state) {
    (void)state;
    uint32_t next[2] = {0, 0}, holder[256];
    float sum = 0;
    const simt_dispatch d = {
        .kernel = "tickets", .buffer = {BINDING(next), BINDING(sum), BINDING(holder)}, .threads = {64, 1, 1}, .threadgroups = {4, 1, 1}};
    run(&d);
    assert_int_equal(next[0], 256);
    assert_int_equal(next[1], 255);
    assert_true(sum == 4 * 63 * 32); /* whole numbers: in any order */
    for (int i = 0; i < 256; i++) assert_int_equal(holder[i], 0);
}

/* ---- planted faults ---- */

enum { ROWS = 3, VALUES = 96 };
static struct { /* apart, so that what lies behind one is not the other */
    float x[ROWS * VALUES], gap[16], y[ROWS];
} memory;
static float *const x = memory.x, *const y = memory.y;
static struct {
    uint32_t n;
} args = {VALUES};

static simt_dispatch sums(uint32_t fault) {
    simt_dispatch d = {.kernel = "sums",
                       .buffer = {BINDING(args), {x, sizeof memory.x, "x"}, {y, sizeof memory.y, "y"}},
                       .threadgroup_bytes = {16},
                       .threads = {64, 1, 1},
                       .threadgroups = {ROWS, 1, 1}};
    for (size_t i = 0; i < ROWS * VALUES; i++) x[i] = number_at(i);
    d.constant[0].u = fault;
    return d;
}

static bool sums_are_right(void) {
    for (size_t r = 0; r < ROWS; r++) {
        float want = 0;
        for (size_t i = 0; i < VALUES; i++) want += x[r * VALUES + i];
        if (!(y[r] == want)) return false;
    }
    return true;
}

static void expect(const simt_dispatch *d, const char *message) {
    if (simt_run_both(d)) fail_msg("%s: not found: %s", d->kernel, message);
    if (!strstr(simt_error(), message)) fail_msg("%s: \"%s\" was expected, but it says: %s", d->kernel, message, simt_error());
}

static void test_no_fault(void **state) {
    (void)state;
    simt_dispatch d = sums(0);
    run(&d);
    assert_true(sums_are_right());
}

/* Found without watching: by NaN in fresh threadgroup memory and by the order of simdgroups. */
static void test_missing_barrier_shows_in_results(void **state) {
    (void)state;
    bool wrong = false;
    for (int order = 0; order < 2; order++) {
        simt_run_order = order ? SIMT_REVERSE : SIMT_FORWARD;
        simt_dispatch d = sums(1);
        wrong |= !simt_run(&d) || !sums_are_right();
    }
    simt_run_order = SIMT_FORWARD;
    assert_true(wrong);
}

static void test_divergence(void **state) {
    (void)state;
    simt_dispatch d = sums(4);
    expect(&d, "divergent barrier: 32 threads ended, 32 wait of 64");
    d = sums(6);
    expect(&d, "lanes of one simdgroup are at different operations");
    d = sums(0);
    run(&d); /* the next dispatch is unharmed */
}

static void test_arguments(void **state) {
    (void)state;
    simt_dispatch d = sums(0);
    d.kernel = "product";
    expect(&d, "there is no kernel product");
    d = sums(0);
    d.buffer[2].data = NULL;
    expect(&d, "nothing is bound to buffer 2 (y)");
    d = sums(0);
    d.buffer[0].bytes = 2;
    expect(&d, "buffer 0 (a) has 2 bytes, less than the 4 of its structure");
    d = sums(0);
    d.buffer[1].data = (char *)d.buffer[1].data + 2;
    expect(&d, "buffer 1 (x) is bound at an address that is no multiple of 4");
    d = sums(0);
    d.threadgroup_bytes[0] = 8;
    expect(&d, "threadgroup memory 0 (part) has 8 bytes: set a multiple of 16");
    d = sums(0);
    d.threads[0] = 2048;
    expect(&d, "2048 threads in a threadgroup; 1 to 1024 are possible");
    float out[64];
    const simt_dispatch large = {.kernel = "large", .buffer = {BINDING(out)}, .threads = {64, 1, 1}, .threadgroups = {1, 1, 1}};
    expect(&large, "more than 32768 bytes of threadgroup memory");
}

#ifdef WATCHED
static void test_accesses(void **state) {
    (void)state;
    simt_dispatch d = sums(2);
    expect(&d, "reads 4 bytes outside all buffers at faults.metal:18, at byte 1152 of x, which has 1152");
    d = sums(3);
    expect(&d, "writes 4 bytes outside its threadgroup memory at faults.metal:20, at byte 16 of a part of 16");
    float in[32] = {1}, out[32] = {0};
    simt_dispatch t = {.kernel = "twice", .buffer = {BINDING(in), BINDING(out)}, .threads = {8, 1, 1}, .threadgroups = {1, 1, 1}};
    run(&t);
    t.constant[0].u = 8;
    expect(&t, "undefined behaviour: an index outside its array at faults.metal:");
    t.constant[0].u = 9;
    expect(&t, "undefined behaviour: a pointer that is not aligned for its type");
    t.constant[0].u = 10;
    expect(&t, "undefined behaviour: a float that its integer type cannot hold");
}

static void test_races_in_a_dispatch(void **state) {
    (void)state;
    simt_dispatch d = sums(1);
    expect(&d, "data race at faults.metal:");
    expect(&d, "of threadgroup memory");
    d = sums(5); /* a barrier that orders no memory */
    expect(&d, "of threadgroup memory");
    d = sums(7);
    expect(&d, "of y, which another threadgroup wrote without a barrier between");
    float v[32];
    for (int i = 0; i < 32; i++) v[i] = (float)i;
    simt_dispatch m = {.kernel = "mirror", .buffer = {BINDING(v)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}};
    run(&m);
    for (int i = 0; i < 32; i++) assert_true(v[i] == (float)(31 - i));
    m.constant[0].u = 11;
    expect(&m, "of threadgroup memory");
    m.constant[0].u = 12;
    expect(&m, "of v, which");
    uint32_t n = 0;
    simt_dispatch c = {.kernel = "count", .buffer = {BINDING(n)}, .threads = {8, 1, 1}, .threadgroups = {2, 1, 1}};
    run(&c);
    assert_int_equal(n, 16);
    c.constant[0].u = 13;
    expect(&c, "of n, which");
}

static void test_races_between_dispatches(void **state) {
    (void)state;
    float a[32] = {1}, b[32] = {0}, c[32] = {0};
    const simt_dispatch first = {.kernel = "twice", .buffer = {BINDING(a), BINDING(b)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}};
    const simt_dispatch reader = {.kernel = "twice", .buffer = {BINDING(b), BINDING(c)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}};
    const simt_dispatch overwriter = {.kernel = "mirror", .buffer = {BINDING(a)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}};
    const simt_dispatch beside = {.kernel = "twice", .buffer = {BINDING(a), BINDING(c)}, .threads = {32, 1, 1}, .threadgroups = {1, 1, 1}};
    simt_end_stage();
    assert_true(simt_run_in_stage(&first));
    assert_true(simt_run_in_stage(&beside)); /* both only read a */
    simt_end_stage();
    assert_true(simt_run_in_stage(&first));
    assert_false(simt_run_in_stage(&reader));
    assert_non_null(strstr(
        simt_error(), "kernel twice: data race between dispatches of one stage: byte 0 of b is read by it and written by kernel twice"));
    simt_end_stage();
    assert_true(simt_run_in_stage(&first));
    assert_false(simt_run_in_stage(&overwriter));
    assert_non_null(strstr(
        simt_error(), "kernel mirror: data race between dispatches of one stage: byte 0 of a is written by it and read by kernel twice"));
    simt_end_stage();
    assert_true(simt_run_in_stage(&first));
    simt_end_stage(); /* the barrier */
    assert_true(simt_run_in_stage(&reader));
    simt_end_stage();
}

/* Memory that is reached through a pointer has to be declared, and is all there is. */
static void test_pointers_in_structures(void **state) {
    (void)state;
    float values[40];
    struct {
        float *values;
        uint32_t n;
    } p = {values, 32};
    const simt_binding more[] = {{values, 40 * sizeof *values, "values"}};
    simt_dispatch d = {.kernel = "number", .buffer = {BINDING(p)}, .threads = {64, 1, 1}, .threadgroups = {1, 1, 1}};
    expect(&d, "writes 4 bytes outside all buffers");
    d.reachable = more;
    d.n_reachable = 1;
    run(&d);
    for (int i = 0; i < 32; i++) assert_true(values[i] == (float)i);
    p.n = 41;
    expect(&d, "at byte 160 of values, which has 160");
}

static void test_traffic(void **state) {
    (void)state;
    simt_watch_reset();
    simt_dispatch d = sums(0);
    assert_true(simt_run(&d));
    uint32_t n;
    const simt_traffic *t = simt_watch_buffers(&n);
    bool found[2] = {false, false};
    for (uint32_t i = 0; i < n; i++) {
        if (!strcmp(t[i].label, "x")) {
            found[0] = true;
            assert_int_equal(t[i].loads, sizeof memory.x);
            assert_int_equal(t[i].group_reads, sizeof memory.x);
            assert_int_equal(t[i].reads, sizeof memory.x);
            assert_int_equal(t[i].writes, 0);
        } else if (!strcmp(t[i].label, "y")) {
            found[1] = true;
            assert_int_equal(t[i].stores, sizeof memory.y);
            assert_int_equal(t[i].writes, sizeof memory.y);
            assert_int_equal(t[i].reads, 0);
        } else {
            assert_string_equal(t[i].label, "args");
            assert_int_equal(t[i].group_reads, ROWS * sizeof args); /* by each threadgroup */
            assert_int_equal(t[i].reads, sizeof args);
        }
    }
    assert_true(found[0] && found[1]);
    assert_true(simt_run(&d));
    const simt_kernel_traffic *k = simt_watch_kernels(&n);
    assert_int_equal(n, 1);
    assert_string_equal(k->kernel, "sums");
    assert_int_equal(k->dispatches, 2);
    assert_int_equal(k->threadgroups, 6);
    assert_int_equal(k->all.reads, 2 * (sizeof memory.x + sizeof args));
    assert_int_equal(k->all.writes, 2 * sizeof memory.y);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_of_a_simdgroup),
        cmocka_unit_test(test_lanes_that_ended_take_no_part),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_rounding_and_conversions),
        cmocka_unit_test(test_positions_and_constants),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_no_fault),
        cmocka_unit_test(test_missing_barrier_shows_in_results),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_arguments),
#ifdef WATCHED
        cmocka_unit_test(test_accesses),
        cmocka_unit_test(test_races_in_a_dispatch),
        cmocka_unit_test(test_races_between_dispatches),
        cmocka_unit_test(test_pointers_in_structures),
        cmocka_unit_test(test_traffic),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

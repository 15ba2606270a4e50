/* test_linear.c: affine matrices of the reference backend: widening against recorded values of MLX's own dequantizer, all bit widths and
 * groups against a bit-by-bit reading, dot products at every length, and every alignment. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "base/float.h"
#include "base/json.h"
#include "base/map.h"
#include "base/random.h"
#include "support/arrays.h"
#include "unit.h"

static uint64_t random_state = 1;
static uint64_t next(void) { return random_mix(random_state += 0x9E3779B97F4A7C15u); }

static double at(json_object *o, const char *key, size_t i) {
    return json_object_get_double(json_object_array_get_idx(json_object_object_get(o, key), i));
}

/* quant_fixture.json: mx.dequantize in bfloat16, recorded with MLX 0.32.0 (from Perplexity's Lily).  It rounds scale · code and the sum
 * to bf16; rounding our f32 value once may differ in the last bit, so the comparison is of what MLX's two roundings give. */
static void test_mlx_values(void **state) {
    (void)state;
    char *text;
    size_t n;
    calla_error err;
    json_object *root;
    assert_int_equal(file_read(test_data("kernels/quant_fixture.json"), 1 << 20, &text, &n, &err), CALLA_OK);
    assert_int_equal(json_parse(text, n, "quant_fixture.json", &root, &err), CALLA_OK);
    free(text);
    json_object *cases = json_object_object_get(root, "cases");
    size_t exact = 0, total = 0;
    for (size_t c = 0; c < json_object_array_length(cases); c++) {
        json_object *o = json_object_array_get_idx(cases, c);
        weight_mat m = {.count = 1,
                        .rows = (uint32_t)json_object_get_int(json_object_object_get(o, "rows")),
                        .cols = (uint32_t)json_object_get_int(json_object_object_get(o, "cols")),
                        .bits = (uint32_t)json_object_get_int(json_object_object_get(o, "bits")),
                        .group = (uint32_t)json_object_get_int(json_object_object_get(o, "group_size"))};
        static uint32_t codes[1024];
        static uint16_t scales[64], biases[64];
        const uint32_t groups = m.rows * m.cols / m.group;
        for (uint32_t i = 0; i < m.rows * m.cols * m.bits / 32; i++)
            codes[i] = (uint32_t)json_object_get_int64(json_object_array_get_idx(json_object_object_get(o, "codes"), i));
        for (uint32_t i = 0; i < groups; i++)
            scales[i] = float_to_bf16((float)at(o, "scales", i)), biases[i] = float_to_bf16((float)at(o, "biases", i));
        m.codes = (const uint8_t *)codes, m.scales = (const uint8_t *)scales, m.biases = (const uint8_t *)biases;
        for (uint32_t r = 0; r < m.rows; r++) {
            float row[1024];
            ref_weight_row(&m, 0, r, row);
            for (uint32_t k = 0; k < m.cols; k++, total++) {
                const float want = (float)at(o, "expected", r * m.cols + k), once = float_from_bf16(float_to_bf16(row[k]));
                exact += once == want;
                /* one bf16 rounding of the product, at most |scale · code| · 2^-8, may be between them */
                const float product = row[k] - float_from_bf16(biases[r * (m.cols / m.group) + k / m.group]);
                assert_true(fabsf(once - want) <= (fabsf(product) + fabsf(want)) * 0x1p-8f);
            }
        }
    }
    print_message("%zu of %zu values equal after one rounding to bf16\n", exact, total);
    assert_true(total > 1000);
    json_object_put(root);
}

/* w = scale · code + bias, code by code, at 16 alignments. */
static void check_format(uint32_t bits, uint32_t group) {
    enum { ROWS = 5, COLS = 384, COUNT = 2 };
    static uint8_t memory[COUNT * ROWS * COLS * 2 + 32], scales[COUNT * ROWS * COLS / 16 + 32], biases[sizeof scales];
    for (uint32_t shift = 0; shift < 16; shift++) {
        weight_mat m = {memory + shift, scales + shift, biases + (shift + 5) % 16, COUNT, ROWS, COLS, bits, group};
        for (size_t i = 0; i < sizeof memory; i++) memory[i] = (uint8_t)next();
        for (size_t i = 0; i + 32 < sizeof scales; i += 2) { /* small finite numbers of both signs */
            uint16_t s = float_to_bf16((float)(int64_t)(next() % 200) * 0.01f - 1),
                     b = float_to_bf16((float)(int64_t)(next() % 200) * 0.1f - 10);
            memcpy(scales + shift + i, &s, 2);
            memcpy(biases + (shift + 5) % 16 + i, &b, 2);
        }
        if (bits == 16)
            for (size_t i = 0; i + 34 < sizeof memory; i += 2) {
                uint16_t v = float_to_bf16((float)(int64_t)(next() % 2000) * 0.01f - 10);
                memcpy(memory + shift + i, &v, 2);
            }
        float row[COLS];
        for (uint32_t e = 0; e < COUNT; e++)
            for (uint32_t r = 0; r < ROWS; r++) {
                ref_weight_row(&m, e, r, row);
                for (uint32_t k = 0; k < COLS; k++) {
                    const size_t index = ((size_t)e * ROWS + r) * COLS + k;
                    float want;
                    if (bits == 16) {
                        want = load_bf16(m.codes + 2 * index);
                    } else {
                        const uint32_t code = m.codes[index * bits / 8] >> (index * bits % 8) & ((1u << bits) - 1);
                        want = load_bf16(m.scales + index / group * 2) * (float)code + load_bf16(m.biases + index / group * 2);
                    }
                    assert_true(row[k] == want);
                }
            }
    }
}

static void test_formats(void **state) {
    (void)state;
    const uint32_t groups[] = {32, 64, 128};
    for (size_t i = 0; i < 3; i++) check_format(4, groups[i]), check_format(8, groups[i]);
    check_format(16, 0);
}

/* Every length, with values that cancel: the error stays below n · eps · Σ|ab|. */
static void test_dot(void **state) {
    (void)state;
    float a[300], b[300];
    for (uint32_t n = 0; n <= 300; n++) {
        double exact = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            a[i] = ((float)(int64_t)(next() % 20001) - 10000) * 1e-3f * (i % 2 ? 1 : -1);
            b[i] = ((float)(int64_t)(next() % 20001) - 10000) * 1e-4f;
            exact += (double)a[i] * b[i];
            sum += fabs((double)a[i] * b[i]);
        }
        assert_true(fabs((double)ref_dot(a, b, n) - exact) <= n * (double)FLT_EPSILON * sum);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlx_values), cmocka_unit_test(test_formats), cmocka_unit_test(test_dot)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

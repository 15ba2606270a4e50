/* What --without turns off changes speed, never answers; and names that a device lacks are refused. */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calla.h"
#include "support/arrays.h"

enum { TOKENS = 2100 }; /* long enough for attention to be split */

static calla_engine *open_engine(const char *device, const char *without, calla_error *err) {
    /* small steps, since attention is split only where few rows are under way */
    const calla_engine_options o = {.model_dir = test_data("checkpoints/tiny-a"),
                                    .device = device,
                                    .without = without,
                                    .ids_only = true,
                                    .context_tokens = TOKENS,
                                    .max_sequences = 1,
                                    .batch_rows = 16};
    calla_engine *e = NULL;
    return calla_engine_open(&o, &e, err) == CALLA_OK ? e : NULL;
}

/* Log-probabilities [tokens - 1] of the text; false if the device is not in this machine. */
static bool score(const char *device, const char *without, float *out, size_t tokens) {
    static int32_t ids[TOKENS];
    calla_error err = {0};
    calla_engine_info info;
    calla_engine *e = open_engine(device, without, &err);
    if (!e) return false;
    calla_engine_get_info(e, &info);
    for (size_t i = 0; i < tokens; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % info.vocabulary);
    if (calla_engine_score(e, ids, tokens, out, NULL, NULL, &err)) fail_msg("%s", err.message);
    calla_engine_close(e);
    return true;
}

/* Calls fn for each compiled device. */
static uint32_t each_device(uint32_t (*fn)(const char *device)) {
    char names[256], *rest = names;
    uint32_t done = 0;
    snprintf(names, sizeof names, "%s", calla_backends());
    for (char *name; (name = strsep(&rest, ","));) done += fn(name);
    return done;
}

static uint32_t answers_stay(const char *device) {
    static float all[TOKENS], less[TOKENS];
    const size_t tokens = test_short() ? 300 : TOKENS;
    const calla_optimization *o = calla_device_optimizations(device);
    assert_non_null(o);
    if (!o->name || !score(device, NULL, all, tokens)) return 0;
    uint32_t n = 0;
    for (; o->name; o++, n++) {
        double worst = 0;
        assert_true(score(device, o->name, less, tokens));
        for (size_t i = 0; i + 1 < tokens; i++) {
            const double d = fabs((double)all[i] - (double)less[i]);
            if (!(d <= worst)) worst = d;
        }
        print_message("%s without %s: log-probabilities differ by %.1e\n", device, o->name, worst);
        assert_true(worst <= 2e-3); /* sums in another order, before a cache of bf16 */
        assert_true(strlen(o->meaning) > 0 && !strchr(o->meaning, '\n') && !strpbrk(o->name, ", "));
    }
    return n;
}

static void test_answers_stay(void **state) {
    (void)state;
    assert_true(each_device(answers_stay) >= 3);
}

static uint32_t names_are_checked(const char *device) {
    const calla_optimization *o = calla_device_optimizations(device);
    calla_error err = {0};
    assert_null(open_engine(device, "no-such-thing", &err));
    assert_int_equal(err.status, CALLA_E_ARGUMENT);
    assert_non_null(strstr(err.message, "'no-such-thing'"));
    assert_non_null(strstr(err.message, o->name ? o->name : "none that can be turned off"));
    if (!o->name) return 1;
    const char *const forms[] = {"%s,", ",%s", "%s,,%s", "%sx", "%s %s", ""};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char names[256] = "", *out = names;
        for (const char *f = forms[i]; *f; f++) {
            if (*f == '%') {
                out += snprintf(out, (size_t)(names + sizeof names - out), "%s", o->name);
                f++;
            } else {
                *out++ = *f;
            }
        }
        *out = 0;
        assert_null(open_engine(device, names, &err));
        assert_int_equal(err.status, CALLA_E_ARGUMENT);
    }
    return 1;
}

static void test_names_are_checked(void **state) {
    (void)state;
    assert_true(each_device(names_are_checked) >= 2);
    assert_null(calla_device_optimizations("abacus"));
    assert_non_null(calla_device_optimizations(NULL));
}

static void test_several_at_once(void **state) {
    (void)state;
    static float all[64], less[64];
    char names[1024] = "";
    for (const calla_optimization *o = calla_device_optimizations("cpu"); o->name; o++) {
        strcat(names, *names ? "," : "");
        strcat(names, o->name);
    }
    assert_true(score("cpu", NULL, all, 64) && score("cpu", names, less, 64));
    for (size_t i = 0; i < 63; i++) assert_true(fabsf(all[i] - less[i]) <= 2e-3f);
    assert_true(score("cpu", "kv-sharing,kv-sharing", less, 64)); /* twice is once */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers_stay), cmocka_unit_test(test_names_are_checked),
                                       cmocka_unit_test(test_several_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

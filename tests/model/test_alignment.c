/* test_alignment.c: the checkpoint is read in place at any alignment: tiny-a rewritten with its data at 0, 1, 2, 3 and 13 mod 16 gives
 * identical logits.  Under UBSan a typed pointer into the file would be reported. */
#include <stdio.h>
#include <stdlib.h>

#include "support/arrays.h"
#include "support/model_run.h"
#include "support/shift_checkpoint.h"
#include "support/temp_dir.h"
#include "unit.h"

static void test_alignment(void **state) {
    (void)state;
    const unsigned residues[] = {0, 1, 2, 3, 13};
    size_t n;
    arrays *ref = arrays_open(test_data("checkpoints/tiny-a.reference.safetensors"));
    int32_t *ids = arrays_i32(ref, "p5.ids", &n);
    rig plain = rig_open(test_data("checkpoints/tiny-a"), (uint32_t)n, 32, 1, CALLA_KV_BF16);
    float *want = rig_run(&plain, ids, (uint32_t)n, 32);
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++) {
        char *dir = temp_dir_new();
        shift_checkpoint(test_data("checkpoints/tiny-a"), dir, residues[i]);
        rig r = rig_open(dir, (uint32_t)n, 32, 1, CALLA_KV_BF16);
        float *got = rig_run(&r, ids, (uint32_t)n, 32);
        assert_memory_equal(got, want, n * r.w->shape.vocabulary * sizeof *got);
        free(got);
        rig_close(&r);
        temp_dir_remove(dir);
    }
    free(want), free(ids);
    rig_close(&plain);
    arrays_close(ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alignment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* gemm.metal: products of many rows (gemm.h) on simdgroup matrices.
 *
 * Rows and weights stand in blocks of 8 × 8, so that simdgroup_load reads 256 consecutive bytes.  A simdgroup holds all 64 rows of OWN
 * blocks of outputs, s, s + SIMDGROUPS, …; blocks of 8 rows that are not there are not multiplied. */
#include <metal_stdlib>
using namespace metal;

#include "backend/metal/gemm.h"

template <typename T, int SIMDGROUPS, int OWN, bool PAIR> struct simdgroup_tiles {
    typedef gemm_shape<T, SIMDGROUPS, OWN, PAIR> shape;

    struct sums_of {
        simdgroup_float8x8 block[GEMM_ROW_BLOCKS][OWN];
    };

    static uint x_at(uint row, uint k) { return ((row / 8 * shape::STEPS8 + k / 8) * 8 + row % 8) * 8 + k % 8; }
    static uint w_at(uint row, uint k) { return (k / 8 * shape::BLOCKS + row / 8) * 64 + k % 8 * 8 + row % 8; }
    static sums_of sums() { return sums_of(); }
    static void clear(thread sums_of &sums) {
        for (uint r = 0; r < GEMM_ROW_BLOCKS; r++)
            for (uint j = 0; j < OWN; j++) sums.block[r][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    static void multiply(thread sums_of &sums, threadgroup const T *buffer, uint simdgroup, uint row_blocks) {
#pragma unroll
        for (uint step = 0; step < shape::STEPS8; step++) {
            simdgroup_matrix<T, 8, 8> x, w[OWN];
#pragma unroll
            for (uint j = 0; j < OWN; j++)
                simdgroup_load(w[j], buffer + shape::X_VALUES + (step * shape::BLOCKS + simdgroup + j * SIMDGROUPS) * 64, 8);
#pragma unroll
            for (uint r = 0; r < GEMM_ROW_BLOCKS; r++) {
                if (r >= row_blocks) continue;
                simdgroup_load(x, buffer + (r * shape::STEPS8 + step) * 64, 8);
#pragma unroll
                for (uint j = 0; j < OWN; j++) simdgroup_multiply_accumulate(sums.block[r][j], x, w[j], sums.block[r][j]);
            }
        }
    }
    /* As [64][OUTPUTS]. */
    static void store(thread sums_of &sums, threadgroup float *to, uint simdgroup, uint row_blocks) {
#pragma unroll
        for (uint r = 0; r < GEMM_ROW_BLOCKS; r++) {
            if (r >= row_blocks) continue;
            if (PAIR) {
#pragma unroll
                for (uint j = 0; j < OWN / 2; j++) {
                    thread auto &gate = sums.block[r][j].thread_elements();
                    thread auto &up = sums.block[r][j + OWN / 2].thread_elements();
                    gate[0] = silu(gate[0]) * up[0];
                    gate[1] = silu(gate[1]) * up[1];
                }
            }
#pragma unroll
            for (uint j = 0; j < (PAIR ? OWN / 2 : OWN); j++)
                simdgroup_store(sums.block[r][j], to + r * 8 * shape::OUTPUTS + (simdgroup + j * SIMDGROUPS) * 8, shape::OUTPUTS);
        }
    }
    static float value_at(threadgroup const float *stored, uint row, uint output) { return stored[row * shape::OUTPUTS + output]; }
};

KERNEL_INSTANCE("gemm_q4_exact", gemm<simdgroup_tiles<float, 4, 2, false>, 4>)
KERNEL_INSTANCE("gemm_q8_exact", gemm<simdgroup_tiles<float, 4, 2, false>, 8>)
KERNEL_INSTANCE("gemm_b16_exact", gemm<simdgroup_tiles<float, 4, 2, false>, 16>)
KERNEL_INSTANCE("gemm_q4_fast", gemm<simdgroup_tiles<half, 4, 2, false>, 4>)
KERNEL_INSTANCE("gemm_q8_fast", gemm<simdgroup_tiles<half, 4, 2, false>, 8>)
KERNEL_INSTANCE("gemm_b16_fast", gemm<simdgroup_tiles<half, 4, 2, false>, 16>)
KERNEL_INSTANCE("gemm_narrow_q4_exact", gemm<simdgroup_tiles<float, 2, 1, false>, 4>)
KERNEL_INSTANCE("gemm_narrow_q8_exact", gemm<simdgroup_tiles<float, 2, 1, false>, 8>)
KERNEL_INSTANCE("gemm_narrow_b16_exact", gemm<simdgroup_tiles<float, 2, 1, false>, 16>)
KERNEL_INSTANCE("gemm_narrow_q4_fast", gemm<simdgroup_tiles<half, 2, 1, false>, 4>)
KERNEL_INSTANCE("gemm_narrow_q8_fast", gemm<simdgroup_tiles<half, 2, 1, false>, 8>)
KERNEL_INSTANCE("gemm_narrow_b16_fast", gemm<simdgroup_tiles<half, 2, 1, false>, 16>)
KERNEL_INSTANCE("gemm_swiglu_q4_exact", gemm<simdgroup_tiles<float, 4, 2, true>, 4>)
KERNEL_INSTANCE("gemm_swiglu_q8_exact", gemm<simdgroup_tiles<float, 4, 2, true>, 8>)
KERNEL_INSTANCE("gemm_swiglu_b16_exact", gemm<simdgroup_tiles<float, 4, 2, true>, 16>)
KERNEL_INSTANCE("gemm_swiglu_q4_fast", gemm<simdgroup_tiles<half, 4, 2, true>, 4>)
KERNEL_INSTANCE("gemm_swiglu_q8_fast", gemm<simdgroup_tiles<half, 4, 2, true>, 8>)
KERNEL_INSTANCE("gemm_swiglu_b16_fast", gemm<simdgroup_tiles<half, 4, 2, true>, 16>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q4_exact", gemm<simdgroup_tiles<float, 2, 2, true>, 4>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q8_exact", gemm<simdgroup_tiles<float, 2, 2, true>, 8>)
KERNEL_INSTANCE("gemm_swiglu_narrow_b16_exact", gemm<simdgroup_tiles<float, 2, 2, true>, 16>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q4_fast", gemm<simdgroup_tiles<half, 2, 2, true>, 4>)
KERNEL_INSTANCE("gemm_swiglu_narrow_q8_fast", gemm<simdgroup_tiles<half, 2, 2, true>, 8>)
KERNEL_INSTANCE("gemm_swiglu_narrow_b16_fast", gemm<simdgroup_tiles<half, 2, 2, true>, 16>)
KERNEL_INSTANCE("expert_gemm_in_q4_exact", expert_gemm<simdgroup_tiles<float, 4, 2, true>, 4>)
KERNEL_INSTANCE("expert_gemm_in_q8_exact", expert_gemm<simdgroup_tiles<float, 4, 2, true>, 8>)
KERNEL_INSTANCE("expert_gemm_in_b16_exact", expert_gemm<simdgroup_tiles<float, 4, 2, true>, 16>)
KERNEL_INSTANCE("expert_gemm_in_q4_fast", expert_gemm<simdgroup_tiles<half, 4, 2, true>, 4>)
KERNEL_INSTANCE("expert_gemm_in_q8_fast", expert_gemm<simdgroup_tiles<half, 4, 2, true>, 8>)
KERNEL_INSTANCE("expert_gemm_in_b16_fast", expert_gemm<simdgroup_tiles<half, 4, 2, true>, 16>)
KERNEL_INSTANCE("expert_gemm_out_q4_exact", expert_gemm<simdgroup_tiles<float, 4, 2, false>, 4>)
KERNEL_INSTANCE("expert_gemm_out_q8_exact", expert_gemm<simdgroup_tiles<float, 4, 2, false>, 8>)
KERNEL_INSTANCE("expert_gemm_out_b16_exact", expert_gemm<simdgroup_tiles<float, 4, 2, false>, 16>)
KERNEL_INSTANCE("expert_gemm_out_q4_fast", expert_gemm<simdgroup_tiles<half, 4, 2, false>, 4>)
KERNEL_INSTANCE("expert_gemm_out_q8_fast", expert_gemm<simdgroup_tiles<half, 4, 2, false>, 8>)
KERNEL_INSTANCE("expert_gemm_out_b16_fast", expert_gemm<simdgroup_tiles<half, 4, 2, false>, 16>)

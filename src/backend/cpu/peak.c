/* peak.c: operations a second that dot products of registers reach on all threads, for `calla bench`. */
#include "backend/cpu/peak.h"
#include "backend/cpu/cpu.h"
#include "base/clock.h"

enum { PASSES = 5, TASKS = 64, PASS_NS = 30000000 };

typedef struct peak_run {
    const cpu_peak_kernel *kernel;
    uint64_t rounds; /* of one task */
} peak_run;

static void peak_task(void *context, uint32_t task, uint32_t thread) {
    const peak_run *run = context;
    _Alignas(64) uint8_t sums[PEAK_SUMS_BYTES] = {0};
    (void)task, (void)thread;
    run->kernel->run(run->rounds, sums);
    volatile uint8_t used = sums[0];
    (void)used;
}

/* The best of a few passes, each long enough that starting the threads does not count. */
static double measure(backend *b, const cpu_peak_kernel *kernel) {
    if (!kernel) return 0;
    peak_run run = {.kernel = kernel, .rounds = 1000};
    double best = 0;
    for (int pass = 0; pass < PASSES;) {
        const uint64_t start = clock_now_ns();
        pool_run(b->pool, peak_task, &run, TASKS);
        const uint64_t took = clock_now_ns() - start;
        if (took < PASS_NS) { /* still looking for the length of a pass */
            run.rounds *= 2;
            continue;
        }
        const double rate = (double)(run.rounds * TASKS * kernel->flop) * 1e9 / (double)took;
        best = rate > best ? rate : best;
        pass++;
    }
    return best;
}

void cpu_dot_rates(backend *b, calla_dot_rates *out) {
    const cpu_peak *peak = b->k->peak;
    *out = (calla_dot_rates){.f32 = measure(b, peak->f32), .bf16 = measure(b, peak->bf16), .i8 = measure(b, peak->i8)};
    out->used = b->q8 ? out->i8 : out->f32;
}

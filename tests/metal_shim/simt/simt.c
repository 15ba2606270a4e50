/* simt.c: the runner of simt.h: fibers, simdgroups, barriers.  It knows nothing of what kernels compute; trace.c watches their accesses.
 *
 * A lane runs until it waits (at a barrier or a simd operation) or ends.  It then hands over to the next lane of its simdgroup that can
 * run, directly, and the last one hands back to run_group, which looks at where they all are.  A simd operation does not end there: the
 * last lane to arrive completes it and the others can run again at once. */
#include "inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif

#define STACK_BYTES 65536u /* of a fiber, a guard page at its lower end included */
#define PAGE_BYTES 4096u

simt_lane *simt_self;
simt_group simt_now;
simt_constant_value simt_constants[SIMT_CONSTANTS];
bool simt_constants_set[SIMT_CONSTANTS];
simt_order simt_run_order;
simt_slot *simt_slots[SIMT_MAX_THREADS / SIMT_WIDTH];
uint64_t simt_matrix_products;
void (*simt_atomic)(const void *, size_t);
simt_sample (*simt_sampler)(const simt_dispatch *);

const simt_observer *simt_watching;
const simt_dispatch *simt_running;
char *simt_stacks, *simt_stacks_end;
__attribute__((aligned(256))) char simt_arena[SIMT_ARENA_BYTES];
simt_part simt_parts[64];
uint32_t simt_n_parts;
uint32_t simt_threadgroup_fences, simt_device_fences, simt_simdgroup_fences[SIMT_MAX_THREADS / SIMT_WIDTH];

/* Masks of lanes; each running lane of a simdgroup is in exactly one. */
typedef struct simdgroup {
    uint32_t all, can_run, done;
    uint32_t at_barrier;   /* of the threadgroup */
    uint32_t arrived;      /* at the simd operation `what` */
    uint32_t took_part[2]; /* in the last two operations */
    uint32_t parity;       /* which slots the next operation uses: a lane that comes back late still reads those of the last one */
    const char *what;
    simt_reduce reduce;
    simt_slot slots[2][SIMT_WIDTH];
} simdgroup;

static simt_lane lanes[SIMT_MAX_THREADS];
static simdgroup simdgroups[SIMT_MAX_THREADS / SIMT_WIDTH];
static void *scheduler; /* its stack pointer while lanes run */
static bool failed;
static char message[512];
static simt_kernel *first_kernel;
static uint64_t groups_run; /* ever: stamps the sites of threadgroup variables */
static size_t threadgroup_bytes, arena_used;
static uint32_t barrier_fences; /* that all lanes at the barrier asked for */
static const simt_kernel *kernel;
static void *buffer_pointer[SIMT_BUFFERS], *threadgroup_pointer[SIMT_THREADGROUPS];

extern void __asan_unpoison_memory_region(const volatile void *, size_t) __attribute__((weak));

__attribute__((constructor)) static void choose_order(void) {
    const char *order = getenv("SIMT_ORDER");
    if (order && strcmp(order, "reverse") == 0) simt_run_order = SIMT_REVERSE;
}

void simt_register(simt_kernel *k) {
    if (simt_find(k->name)) {
        fprintf(stderr, "simt: kernel %s is defined twice, in %s and %s\n", k->name, simt_find(k->name)->file, k->file);
        abort();
    }
    k->next = first_kernel;
    first_kernel = k;
}

const simt_kernel *simt_find(const char *name) {
    for (const simt_kernel *k = first_kernel; k; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return NULL;
}

const char *simt_error(void) { return message; }

static bool within(const char *p, const void *start, size_t bytes) { return p >= (const char *)start && p < (const char *)start + bytes; }

bool simt_is_own(const void *p) {
#define OWN(x) within(p, &(x), sizeof(x))
    return OWN(lanes) || OWN(simdgroups) || OWN(simt_now) || OWN(simt_self) || OWN(simt_constants) || OWN(simt_constants_set) ||
           OWN(buffer_pointer) || OWN(threadgroup_pointer) || OWN(simt_atomic) || OWN(simt_slots);
#undef OWN
}

/* ---- switching ---- */

/* Saves the callee's registers on this stack and its pointer in *save, goes on with stack `to`. */
void simt_switch(void **save, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".hidden simt_switch\n"
        ".type simt_switch,@function\n"
        "simt_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size simt_switch,.-simt_switch\n");

static char *stack_top(uint32_t lane) {
    /* Tops at the same offset of each page would all fall into the same set of the cache. */
    return simt_stacks + (size_t)(lane + 1) * STACK_BYTES - (lane * 5 % 64) * 64;
}

static void make_stacks(void) {
    if (simt_stacks) return;
    const size_t bytes = (size_t)SIMT_MAX_THREADS * STACK_BYTES;
    simt_stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (simt_stacks == MAP_FAILED) abort();
    simt_stacks_end = simt_stacks + bytes;
    for (uint32_t i = 0; i < SIMT_MAX_THREADS; i++)
        if (mprotect(simt_stacks + (size_t)i * STACK_BYTES, PAGE_BYTES, PROT_NONE) != 0) abort();
}

static uint32_t next_lane(uint32_t can_run) {
    return simt_run_order == SIMT_FORWARD ? (uint32_t)__builtin_ctz(can_run) : 31u - (uint32_t)__builtin_clz(can_run);
}

/* The running lane cannot go on: the next one of its simdgroup does, or else the scheduler. */
static void hand_over(simdgroup *s) {
    simt_lane *me = simt_self;
    if (!s->can_run || failed) {
        simt_switch(&me->stack, scheduler);
        return;
    }
    const uint32_t next = next_lane(s->can_run);
    s->can_run &= ~(1u << next);
    simt_self = &lanes[me->simdgroup * SIMT_WIDTH + next];
    if (simt_self != me) simt_switch(&me->stack, simt_self->stack);
}

void simt_fault(const char *format, ...) {
    if (!failed) {
        int n = kernel ? snprintf(message, sizeof message, "kernel %s: ", kernel->name) : 0;
        va_list list;
        va_start(list, format);
        n += vsnprintf(message + n, sizeof message - (size_t)n, format, list);
        va_end(list);
        if (simt_self && (size_t)n < sizeof message)
            snprintf(message + n, sizeof message - (size_t)n, " (threadgroup %u %u %u, thread %u)", simt_now.position[0],
                     simt_now.position[1], simt_now.position[2], simt_self->index);
    }
    failed = true;
    if (simt_self) simt_switch(&simt_self->stack, scheduler);
}

/* ---- what lanes call ---- */

static simdgroup *mine(void) { return &simdgroups[simt_self->simdgroup]; }

void simt_threadgroup_barrier(uint32_t fences) {
    simdgroup *s = mine();
    s->at_barrier |= 1u << simt_self->lane;
    barrier_fences &= fences;
    hand_over(s);
}

static const char barrier_of_simdgroup[] = "simdgroup_barrier";

/* All lanes of the simdgroup that still run have arrived: they can go on. */
static void complete(simdgroup *s, simt_reduce reduce) {
    if (reduce) reduce(s->slots[s->parity], s->arrived);
    if (s->what == barrier_of_simdgroup) simt_simdgroup_fences[s - simdgroups]++;
    s->took_part[s->parity] = s->arrived;
    s->parity ^= 1;
    simt_slots[s - simdgroups] = s->slots[s->parity];
    for (uint32_t ended = s->done; ended; ended &= ended - 1)
        memset(s->slots[s->parity][__builtin_ctz(ended)].bytes, 0xff, SIMT_SLOT_BYTES);
    s->can_run = s->arrived;
    s->arrived = 0;
}

simt_slot *simt_exchange(const char *what, simt_reduce reduce, uint32_t *mask) {
    simdgroup *s = mine();
    const uint32_t lane = simt_self->lane, parity = s->parity;
    if (!s->arrived)
        s->what = what;
    else if (s->what != what && strcmp(s->what, what) != 0)
        simt_fault("lanes of one simdgroup are at different operations: %s and %s", s->what, what);
    s->arrived |= 1u << lane;
    s->reduce = reduce;
    if ((s->arrived | s->done) == s->all) {
        complete(s, reduce);
        s->can_run &= ~(1u << lane);
    } else {
        hand_over(s);
    }
    *mask = s->took_part[parity];
    return s->slots[parity];
}

void simt_simdgroup_barrier(uint32_t fences) {
    uint32_t mask;
    (void)fences;
    simt_exchange(barrier_of_simdgroup, NULL, &mask);
}

/* A part of threadgroup memory, NaN all over, with a gap behind it. */
static void *take_part(size_t bytes, size_t align) {
    const size_t start = (arena_used + align - 1) & ~(align - 1);
    threadgroup_bytes += (bytes + 15) & ~(size_t)15;
    if (threadgroup_bytes > SIMT_MAX_THREADGROUP_BYTES || start + bytes + 64 > sizeof simt_arena || simt_n_parts == 64) {
        simt_fault("more than %u bytes of threadgroup memory", SIMT_MAX_THREADGROUP_BYTES);
        return simt_arena; /* not from a lane */
    }
    arena_used = start + bytes + 64;
    memset(simt_arena + start, 0xff, bytes);
    simt_parts[simt_n_parts] = (simt_part){simt_arena + start, simt_arena + start + bytes};
    if (simt_watching) simt_watching->part(&simt_parts[simt_n_parts]);
    simt_n_parts++;
    return simt_arena + start;
}

void *simt_threadgroup_variable(simt_site *site, size_t bytes, size_t align) {
    if (site->group != groups_run) {
        site->memory = take_part(bytes, align < 16 ? 16 : align);
        site->group = groups_run;
    }
    return site->memory;
}

static void lane_main(void) {
    kernel->entry(buffer_pointer, threadgroup_pointer);
    simdgroup *s = mine();
    const uint32_t lane = simt_self->lane;
    s->done |= 1u << lane;
    memset(s->slots[s->parity][lane].bytes, 0xff, SIMT_SLOT_BYTES); /* what an ended lane holds is undefined; the others still read the last
                                                                        operation's */
    if (s->arrived && (s->arrived | s->done) == s->all) complete(s, s->reduce);
    hand_over(s);
}

/* ---- the scheduler ---- */

static void prepare_lanes(void) {
    const simt_group *g = &simt_now;
    uint32_t i = 0;
    for (uint32_t z = 0; z < g->threads[2]; z++)
        for (uint32_t y = 0; y < g->threads[1]; y++)
            for (uint32_t x = 0; x < g->threads[0]; x++, i++) {
                simt_lane *l = &lanes[i];
                /* from the top: a return address that nobody uses, lane_main, six registers */
                void **sp = (void **)(void *)stack_top(i) - 8;
                sp[7] = NULL;
                void (*start)(void) = lane_main;
                memcpy(&sp[6], &start, sizeof start);
                *l = (simt_lane){.stack = sp, .position = {x, y, z}, .index = i, .lane = i % SIMT_WIDTH, .simdgroup = i / SIMT_WIDTH};
            }
    for (uint32_t k = 0; k < g->simdgroups; k++) {
        simdgroup *s = &simdgroups[k];
        const uint32_t n = g->n_threads - k * SIMT_WIDTH;
        s->all = s->can_run = n >= SIMT_WIDTH ? UINT32_MAX : (1u << n) - 1;
        s->done = s->at_barrier = s->arrived = s->parity = 0;
        simt_slots[k] = s->slots[0];
        if (n < SIMT_WIDTH) memset(s->slots, 0xff, sizeof s->slots);
    }
}

static void drive(uint32_t k) {
    simdgroup *s = &simdgroups[k];
    if (!s->can_run) return;
    const uint32_t first = next_lane(s->can_run);
    s->can_run &= ~(1u << first);
    simt_self = &lanes[k * SIMT_WIDTH + first];
    simt_switch(&scheduler, simt_self->stack);
    simt_self = NULL;
    if (!failed && s->arrived)
        simt_fault("divergent simd operation: %d lanes of simdgroup %u are at %s, %d at a threadgroup barrier",
                   __builtin_popcount(s->arrived), k, s->what, __builtin_popcount(s->at_barrier));
}

static bool run_group(void) {
    groups_run++;
    arena_used = threadgroup_bytes = 0;
    simt_n_parts = 0;
    simt_threadgroup_fences++;
    simt_device_fences++;
    for (uint32_t i = 0; i < SIMT_THREADGROUPS; i++)
        if (simt_running->threadgroup_bytes[i]) threadgroup_pointer[i] = take_part(simt_running->threadgroup_bytes[i], 16);
    prepare_lanes();
    if (simt_watching) simt_watching->threadgroup();
    const uint32_t n = simt_now.simdgroups;
    while (!failed) {
        barrier_fences = SIMT_FENCE_DEVICE | SIMT_FENCE_THREADGROUP;
        uint32_t done = 0, waiting = 0;
        for (uint32_t k = 0; k < n && !failed; k++) drive(simt_run_order == SIMT_FORWARD ? k : n - 1 - k);
        if (failed) break;
        for (uint32_t k = 0; k < n; k++) {
            done += (uint32_t)__builtin_popcount(simdgroups[k].done);
            waiting += (uint32_t)__builtin_popcount(simdgroups[k].at_barrier);
        }
        if (done == simt_now.n_threads) return true;
        if (waiting != simt_now.n_threads) {
            simt_fault("divergent barrier: %u threads ended, %u wait of %u in threadgroup %u %u %u", done, waiting, simt_now.n_threads,
                       simt_now.position[0], simt_now.position[1], simt_now.position[2]);
            break;
        }
        if (barrier_fences & SIMT_FENCE_THREADGROUP) simt_threadgroup_fences++;
        if (barrier_fences & SIMT_FENCE_DEVICE) simt_device_fences++;
        for (uint32_t k = 0; k < n; k++) {
            simdgroups[k].can_run = simdgroups[k].at_barrier;
            simdgroups[k].at_barrier = 0;
        }
    }
    return false;
}

/* Those threadgroups of the grid whose position along `axis` is at least `from` and below `to`. */
static void run_part(const simt_dispatch *d, uint32_t axis, uint32_t from, uint32_t to) {
    const uint64_t n = (uint64_t)d->threadgroups[0] * d->threadgroups[1] * d->threadgroups[2];
    for (uint64_t k = 0; k < n && !failed; k++) {
        uint64_t rest = simt_run_order == SIMT_FORWARD ? k : n - 1 - k;
        uint32_t at[3];
        for (int i = 0; i < 3; i++, rest /= d->threadgroups[i - 1]) at[i] = (uint32_t)(rest % d->threadgroups[i]);
        if (at[axis] < from || at[axis] >= to) continue;
        simt_now.n_threads = 1;
        for (int i = 0; i < 3; i++) {
            const uint32_t left = simt_now.grid_threads[i] - at[i] * d->threads[i];
            simt_now.position[i] = at[i];
            simt_now.n_threads *= simt_now.threads[i] = left < d->threads[i] ? left : d->threads[i];
        }
        simt_now.simdgroups = (simt_now.n_threads + SIMT_WIDTH - 1) / SIMT_WIDTH;
        run_group();
    }
}

static void run_grid(const simt_dispatch *d) {
    const simt_sample s = simt_sampler ? simt_sampler(d) : (simt_sample){0, 0};
    if (s.block == SIMT_NONE) return;
    const uint32_t all = d->threadgroups[s.axis], blocks = s.block ? (all + s.block - 1) / s.block : 0;
    if (blocks <= 3 || !simt_watching) {
        run_part(d, s.axis, 0, all);
        return;
    }
    const uint32_t part[] = {0, 1, blocks - 1};
    for (int i = 0; i < 3 && !failed; i++) {
        const uint32_t from = part[i] * s.block, to = from + s.block;
        run_part(d, s.axis, from, to < all ? to : all);
        if (!failed) simt_watching->block(blocks);
    }
}

static bool arguments_hold(const simt_dispatch *d) {
    const uint64_t threads = (uint64_t)d->threads[0] * d->threads[1] * d->threads[2];
    const uint32_t most = kernel->max_threads ? kernel->max_threads : SIMT_MAX_THREADS;
    if (threads == 0 || threads > most)
        simt_fault("%llu threads in a threadgroup; 1 to %u are possible", (unsigned long long)threads, most);
    for (uint32_t i = 0; i < kernel->n_params && !failed; i++) {
        const simt_param *p = &kernel->params[i];
        if (p->kind == SIMT_THREADGROUP) {
            const size_t bytes = d->threadgroup_bytes[p->index];
            if (bytes == 0 || bytes % 16 != 0)
                simt_fault("threadgroup memory %u (%s) has %zu bytes: set a multiple of 16", p->index, p->name, bytes);
            continue;
        }
        const simt_binding *b = &d->buffer[p->index];
        if (!b->data)
            simt_fault("nothing is bound to buffer %u (%s)", p->index, p->name);
        else if ((uintptr_t)b->data % p->align != 0)
            simt_fault("buffer %u (%s) is bound at an address that is no multiple of %u", p->index, p->name, p->align);
        else if (p->whole && b->bytes < p->bytes)
            simt_fault("buffer %u (%s) has %zu bytes, less than the %u of its structure", p->index, p->name, b->bytes, p->bytes);
    }
    return !failed;
}

bool simt_run_in_stage(const simt_dispatch *d) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
        fprintf(stderr, "simt: this processor lacks AVX2, FMA or F16C\n");
        exit(77); /* skipped */
    }
    make_stacks();
    failed = false;
    message[0] = '\0';
    kernel = NULL;
    if (simt_running) {
        simt_fault("two dispatches at once");
        return false;
    }
    const simt_kernel *found = simt_find(d->kernel);
    if (!found) {
        simt_fault("there is no kernel %s", d->kernel);
        return false;
    }
    kernel = found;
    if (!arguments_hold(d)) return false;
    simt_running = d;
    memcpy(simt_constants, d->constant, sizeof simt_constants);
    memcpy(simt_constants_set, d->constant_set, sizeof simt_constants_set);
    for (uint32_t i = 0; i < SIMT_BUFFERS; i++) buffer_pointer[i] = d->buffer[i].data;
    if (simt_watching) simt_watching->begin(d, kernel);
    for (int i = 0; i < 3; i++) {
        simt_now.threadgroups[i] = d->threadgroups[i];
        simt_now.full_threads[i] = d->threads[i];
        simt_now.grid_threads[i] = d->grid_threads[i] ? d->grid_threads[i] : d->threads[i] * d->threadgroups[i];
    }
    run_grid(d);
    if (failed && __asan_unpoison_memory_region) /* frames that nobody will leave */
        __asan_unpoison_memory_region(simt_stacks, (size_t)(simt_stacks_end - simt_stacks));
    if (simt_watching) simt_watching->end(!failed);
    simt_running = NULL;
    return !failed;
}

void simt_end_stage(void) {
    if (simt_watching) simt_watching->stage();
}

bool simt_run(const simt_dispatch *d) {
    simt_end_stage();
    const bool ok = simt_run_in_stage(d);
    simt_end_stage();
    return ok;
}

bool simt_run_both(const simt_dispatch *d) {
    unsigned char *before[SIMT_BUFFERS] = {NULL}, *after[SIMT_BUFFERS] = {NULL};
    const simt_order order = simt_run_order;
    for (uint32_t i = 0; i < SIMT_BUFFERS; i++) {
        if (!d->buffer[i].data) continue;
        before[i] = malloc(d->buffer[i].bytes + 1);
        after[i] = malloc(d->buffer[i].bytes + 1);
        if (!before[i] || !after[i]) abort();
        memcpy(before[i], d->buffer[i].data, d->buffer[i].bytes);
    }
    simt_run_order = SIMT_FORWARD;
    bool ok = simt_run(d);
    if (ok) {
        for (uint32_t i = 0; i < SIMT_BUFFERS; i++) {
            if (!before[i]) continue;
            memcpy(after[i], d->buffer[i].data, d->buffer[i].bytes);
            memcpy(d->buffer[i].data, before[i], d->buffer[i].bytes);
        }
        simt_run_order = SIMT_REVERSE;
        ok = simt_run(d);
    }
    for (uint32_t i = 0; i < SIMT_BUFFERS; i++) {
        for (size_t at = 0; ok && before[i] && at < d->buffer[i].bytes; at++)
            if (after[i][at] != ((unsigned char *)d->buffer[i].data)[at]) {
                simt_fault("buffer %u differs at byte %zu between forward and reverse order", i, at);
                ok = false;
            }
        free(before[i]);
        free(after[i]);
    }
    simt_run_order = order;
    return ok;
}

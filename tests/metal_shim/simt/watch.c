/* watch.c: see watch.h.  Called by compiled kernels before every access (the names are those of clang's -fsanitize-coverage and
 * -fsanitize-minimal-runtime), and by simt.c at the borders of dispatches, threadgroups and stages.
 *
 * For each page of device memory that a dispatch touches: which bytes were read, written, changed atomically (kept until the stage ends), and
 * who last read and wrote each two bytes (a tag).  For threadgroup memory: a tag per byte. */
#include "watch.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"

enum { READ, WRITE, ATOMIC };

/* ---- tags ---- */

/* Who and when.  Two accesses of one threadgroup are ordered if they are of one lane, if a threadgroup barrier with the right fence lies
 * between them, or if they are of one simdgroup and a simdgroup barrier does. */
typedef struct tag {
    uint32_t group : 19;       /* of the dispatch, from 1; 0: nobody yet */
    uint32_t other_groups : 1; /* others were here too */
    uint32_t atomic : 1;
    uint32_t lane : 11;      /* or SEVERAL_IN + simdgroup, or SEVERAL */
    uint32_t epoch : 14;     /* threadgroup barriers so far */
    uint32_t own_epoch : 18; /* barriers of the simdgroup so far */
} tag;
enum { SEVERAL_IN = 1024, SEVERAL = 2047 };

static uint32_t group_now; /* number of the threadgroup that runs, from 1 */

static tag tag_now(uint32_t fences, bool atomic) {
    return (tag){.group = group_now & 0x7ffffu,
                 .atomic = atomic,
                 .lane = simt_self->index & 1023u,
                 .epoch = fences & 0x3fffu,
                 .own_epoch = simt_simdgroup_fences[simt_self->simdgroup] & 0x3ffffu};
}

static uint32_t simdgroup_of(tag t) {
    const uint32_t lane = t.lane;
    return lane == SEVERAL ? UINT32_MAX : lane >= SEVERAL_IN ? lane - SEVERAL_IN : lane / SIMT_WIDTH;
}

static bool ordered(tag before, tag now) {
    if (!before.group) return true;
    if (before.atomic && now.atomic) return true;
    if (before.group != now.group || before.other_groups) return false;
    if (before.lane == now.lane || before.epoch != now.epoch) return true;
    return simdgroup_of(before) == simdgroup_of(now) && before.own_epoch != now.own_epoch;
}

static tag with_reader(tag before, tag now) {
    const bool first_of_group = before.group != now.group;
    now.other_groups = before.other_groups | (first_of_group && before.group);
    if (first_of_group || before.epoch != now.epoch || before.lane == now.lane) return now;
    const uint32_t a = simdgroup_of(before), b = simdgroup_of(now);
    if (a != b)
        now.lane = SEVERAL;
    else if (before.own_epoch == now.own_epoch)
        now.lane = (SEVERAL_IN + b) & 2047u;
    return now;
}

/* ---- memory that a dispatch touches ---- */

enum { PAGE_BITS = 12, PAGE_BYTES = 1 << PAGE_BITS, GRANULE = 2 };

typedef struct page {
    uintptr_t number;
    uint64_t bits[3][PAGE_BYTES / 64];
    tag reader[PAGE_BYTES / GRANULE], writer[PAGE_BYTES / GRANULE];
} page;

typedef struct seen_page { /* of an earlier dispatch of the stage */
    uintptr_t number;
    uint32_t dispatch;
    uint32_t next; /* 1 + index of one in the same bucket; 0: none */
    uint64_t bits[3][PAGE_BYTES / 64];
} seen_page;

typedef struct region {
    uintptr_t start, end;
    simt_traffic traffic;
    simt_traffic after[3]; /* of a sampled grid: after each of its blocks */
} region;

static region *regions; /* sorted, disjoint */
static uint32_t n_regions, region_room;
static region *last_region;

static page **pages, *last_page; /* of this dispatch; all ever allocated, used ones first */
static uint32_t n_pages, pages_made, page_room;
static uint32_t *page_map; /* number of page -> 1 + index; open addressing */
static uint32_t map_size;

static seen_page *seen;
static uint32_t n_seen, seen_room, seen_bucket[1 << 16];
static char (*stage_kernels)[64]; /* of the dispatches of the stage */
static uint32_t n_stage, stage_room;

static tag part_reader[SIMT_ARENA_BYTES], part_writer[SIMT_ARENA_BYTES];

static simt_traffic buffer_traffic[256];
static uint32_t n_buffer_traffic;
static simt_kernel_traffic kernel_traffic[256];
static uint32_t n_kernel_traffic;
static uint64_t products_before, products_after[3];
static uint32_t blocks_run, blocks_in_all; /* of a sampled grid; 0: none */

void (*simt_watch_each)(const simt_dispatch_traffic *);

static void *grow(void *p, uint32_t *room, size_t element) {
    *room = *room ? 2 * *room : 64;
    p = realloc(p, *room * element);
    if (!p) abort();
    return p;
}

static uint32_t map_slot(uintptr_t number) {
    uint32_t i = (uint32_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & (map_size - 1);
    while (page_map[i] && pages[page_map[i] - 1]->number != number) i = (i + 1) & (map_size - 1);
    return i;
}

static page *page_of(uintptr_t number) {
    if (last_page && last_page->number == number) return last_page;
    if (2 * n_pages >= map_size) {
        map_size = map_size ? 2 * map_size : 1024;
        free(page_map);
        page_map = calloc(map_size, sizeof *page_map);
        if (!page_map) abort();
        for (uint32_t i = 0; i < n_pages; i++) page_map[map_slot(pages[i]->number)] = i + 1;
    }
    const uint32_t slot = map_slot(number);
    if (!page_map[slot]) {
        if (n_pages == page_room) pages = grow(pages, &page_room, sizeof *pages);
        if (n_pages == pages_made) {
            pages[pages_made++] = malloc(sizeof(page));
            if (!pages[n_pages]) abort();
        }
        memset(pages[n_pages], 0, sizeof(page));
        pages[n_pages]->number = number;
        page_map[slot] = ++n_pages;
    }
    return last_page = pages[page_map[slot] - 1];
}

/* ---- accesses ---- */

static const char *const verbs[] = {"reads", "writes", "changes"};

static int load_address(struct dl_phdr_info *info, size_t bytes, void *out) {
    (void)bytes;
    *(uintptr_t *)out = info->dlpi_addr;
    return 1; /* the first is the program */
}

/* " at file:line" of the kernel's source, as far as it can be found out. */
static const char *source_of(const void *pc) {
    static char text[256];
    char command[128], line[200];
    uintptr_t base = 0;
    dl_iterate_phdr(load_address, &base);
    snprintf(command, sizeof command, "addr2line -s -i -e /proc/%d/exe %#zx 2>/dev/null", (int)getpid(),
             (size_t)((uintptr_t)pc - 1 - base));
    FILE *f = popen(command, "r");
    text[0] = '\0';
    while (f && !text[0] && fgets(line, sizeof line, f)) { /* from the innermost inlined function outwards */
        line[strcspn(line, " \n")] = '\0';
        if (line[0] != '?' && line[0] != '-' && strncmp(line, "metal_stdlib.h", 14) != 0) snprintf(text, sizeof text, " at %s", line);
    }
    if (f) pclose(f);
    return text;
}

static void race(int kind, const char *memory, size_t offset, tag other, int other_kind, const void *pc) {
    char who[64];
    if (other.group != group_now || other.other_groups)
        snprintf(who, sizeof who, "another threadgroup");
    else if (other.lane >= SEVERAL_IN)
        snprintf(who, sizeof who, "other threads");
    else
        snprintf(who, sizeof who, "thread %u", (uint32_t)other.lane);
    simt_fault("data race%s: %s byte %zu of %s, which %s %s without a barrier between", source_of(pc), verbs[kind], offset, memory, who,
               other_kind == READ ? "read" : "wrote");
}

static void touch_part(int kind, const char *address, size_t bytes, const void *pc) {
    const simt_part *p = simt_parts;
    while (p < simt_parts + simt_n_parts && !(address >= p->start && address + bytes <= p->end)) p++;
    if (p == simt_parts + simt_n_parts) {
        const simt_part *near = simt_parts; /* the last one that starts below */
        for (p = simt_parts; p < simt_parts + simt_n_parts && p->start <= address; p++) near = p;
        simt_fault("%s %zu bytes outside its threadgroup memory%s, at byte %td of a part of %td", verbs[kind], bytes, source_of(pc),
                   address - near->start, near->end - near->start);
        return;
    }
    const tag now = tag_now(simt_threadgroup_fences, kind == ATOMIC);
    for (size_t i = 0; i < bytes; i++) {
        const size_t at = (size_t)(address - simt_arena) + i, offset = (size_t)(address - p->start) + i;
        if (!ordered(part_writer[at], now)) race(kind, "threadgroup memory", offset, part_writer[at], WRITE, pc);
        if (kind != READ && !ordered(part_reader[at], now)) race(kind, "threadgroup memory", offset, part_reader[at], READ, pc);
        if (kind == READ)
            part_reader[at] = with_reader(part_reader[at], now);
        else
            part_writer[at] = now;
    }
}

static region *region_of(uintptr_t a, size_t bytes) {
    if (last_region && a >= last_region->start && a + bytes <= last_region->end) return last_region;
    uint32_t low = 0, high = n_regions;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (regions[middle].end <= a)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == n_regions || a < regions[low].start || a + bytes > regions[low].end) return NULL;
    return last_region = &regions[low];
}

static void outside(int kind, uintptr_t a, size_t bytes, const void *pc) {
    const region *near = NULL; /* the last one that starts below */
    for (uint32_t i = 0; i < n_regions && regions[i].start <= a; i++) near = &regions[i];
    if (near)
        simt_fault("%s %zu bytes outside all buffers%s, at byte %zu of %s, which has %zu", verbs[kind], bytes, source_of(pc),
                   a - near->start, near->traffic.label, near->end - near->start);
    else
        simt_fault("%s %zu bytes outside all buffers%s, at %#zx", verbs[kind], bytes, source_of(pc), a);
}

static void touch_device(int kind, uintptr_t a, size_t bytes, const void *pc) {
    region *r = region_of(a, bytes);
    if (!r) {
        outside(kind, a, bytes, pc);
        return;
    }
    if (kind != WRITE) r->traffic.loads += bytes;
    if (kind != READ) r->traffic.stores += bytes;
    const tag now = tag_now(simt_device_fences, kind == ATOMIC);
    for (size_t done = 0; done < bytes;) {
        page *p = page_of((a + done) >> PAGE_BITS);
        const size_t offset = (a + done) % PAGE_BYTES, room = PAGE_BYTES - offset, n = bytes - done < room ? bytes - done : room;
        for (size_t i = offset; i < offset + n; i++) p->bits[kind][i / 64] |= 1ull << i % 64;
        for (size_t i = offset / GRANULE; i <= (offset + n - 1) / GRANULE; i++) {
            tag *reader = &p->reader[i], *writer = &p->writer[i];
            const size_t byte = (p->number << PAGE_BITS) + i * GRANULE - r->start;
            if (bytes == 1 && kind == WRITE) continue;
            if (!ordered(*writer, now)) race(kind, r->traffic.label, byte, *writer, WRITE, pc);
            if (kind != READ && !ordered(*reader, now)) race(kind, r->traffic.label, byte, *reader, READ, pc);
            if (kind != WRITE && reader->group != now.group) r->traffic.group_reads += GRANULE;
            if (kind == READ)
                *reader = with_reader(*reader, now);
            else
                *writer = now;
        }
        done += n;
    }
}

static void touch(int kind, const void *address, size_t bytes, const void *pc) {
    const char *c = address;
    if (c >= simt_stacks && c < simt_stacks_end) return;
    if (!simt_self) return;                       /* static initialization */
    extern char __executable_start, __data_start; /* between them: code and constants */
    if (c >= simt_arena && c < simt_arena + sizeof simt_arena)
        touch_part(kind, c, bytes, pc);
    else if (!simt_is_own(c) && !(kind == READ && c >= &__executable_start && c < &__data_start))
        touch_device(kind, (uintptr_t)c, bytes, pc);
}

static void touch_atomic(const void *address, size_t bytes) { touch(ATOMIC, address, bytes, __builtin_return_address(0)); }

#define ACCESS(bytes)                                                                                                                      \
    void __sanitizer_cov_load##bytes(const void *p);                                                                                       \
    void __sanitizer_cov_store##bytes(const void *p);                                                                                      \
    void __sanitizer_cov_load##bytes(const void *p) { touch(READ, p, bytes, __builtin_return_address(0)); }                                \
    void __sanitizer_cov_store##bytes(const void *p) { touch(WRITE, p, bytes, __builtin_return_address(0)); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define UNDEFINED(name, text)                                                                                                              \
    void __ubsan_handle_##name##_minimal_abort(void);                                                                                      \
    void __ubsan_handle_##name##_minimal_abort(void) {                                                                                     \
        simt_fault("undefined behaviour: " text "%s", source_of(__builtin_return_address(0)));                                             \
    }
UNDEFINED(type_mismatch, "a pointer that is not aligned for its type")
UNDEFINED(alignment_assumption, "a pointer that is not aligned for its type")
UNDEFINED(out_of_bounds, "an index outside its array")
UNDEFINED(shift_out_of_bounds, "a shift by too many bits")
UNDEFINED(divrem_overflow, "a division by zero")
UNDEFINED(add_overflow, "an int sum overflows")
UNDEFINED(sub_overflow, "an int difference overflows")
UNDEFINED(mul_overflow, "an int product overflows")
UNDEFINED(negate_overflow, "an int negation overflows")
UNDEFINED(float_cast_overflow, "a float that its integer type cannot hold")
UNDEFINED(load_invalid_value, "a bool that is neither 0 nor 1")
UNDEFINED(builtin_unreachable, "an end that should not be reached")
UNDEFINED(missing_return, "a function without its return")

/* ---- borders ---- */

static int by_start(const void *a, const void *b) {
    const region *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static void add_region(const simt_binding *b) {
    if (!b->data || !b->bytes) return;
    if (n_regions == region_room) regions = grow(regions, &region_room, sizeof *regions);
    regions[n_regions++] = (region){(uintptr_t)b->data, (uintptr_t)b->data + b->bytes, {.label = b->label ? b->label : "a buffer"}};
}

static void begin(const simt_dispatch *d, const simt_kernel *k) {
    n_regions = n_pages = group_now = 0;
    last_region = NULL;
    last_page = NULL;
    if (map_size) memset(page_map, 0, map_size * sizeof *page_map);
    for (uint32_t i = 0; i < k->n_params; i++)
        if (k->params[i].kind != SIMT_THREADGROUP) add_region(&d->buffer[k->params[i].index]);
    for (size_t i = 0; i < d->n_reachable; i++) add_region(&d->reachable[i]);
    qsort(regions, n_regions, sizeof *regions, by_start);
    uint32_t n = 0; /* a buffer that is bound and reachable too, or bound twice, is one region */
    for (uint32_t i = 0; i < n_regions; i++) {
        if (n && regions[i].start < regions[n - 1].end) {
            if (regions[i].end > regions[n - 1].end) regions[n - 1].end = regions[i].end;
        } else {
            regions[n++] = regions[i];
        }
    }
    n_regions = n;
    products_before = simt_matrix_products;
    blocks_run = blocks_in_all = 0;
}

static void threadgroup_begins(void) { group_now++; }

static void new_part(const simt_part *p) {
    const size_t at = (size_t)(p->start - simt_arena), n = (size_t)(p->end - p->start);
    memset(part_reader + at, 0, n * sizeof(tag));
    memset(part_writer + at, 0, n * sizeof(tag));
}

static uint64_t popcount_between(const uint64_t *bits, size_t from, size_t to) {
    uint64_t n = 0;
    for (size_t i = from; i < to;) {
        if (i % 64 == 0 && to - i >= 64) {
            n += (uint64_t)__builtin_popcountll(bits[i / 64]);
            i += 64;
        } else {
            n += bits[i / 64] >> i % 64 & 1;
            i++;
        }
    }
    return n;
}

static void count_distinct_in(const page *p) {
    const uintptr_t start = p->number << PAGE_BITS;
    uint64_t read[PAGE_BYTES / 64], written[PAGE_BYTES / 64];
    for (size_t i = 0; i < PAGE_BYTES / 64; i++) {
        read[i] = p->bits[READ][i] | p->bits[ATOMIC][i];
        written[i] = p->bits[WRITE][i] | p->bits[ATOMIC][i];
    }
    for (uint32_t i = 0; i < n_regions; i++) {
        region *r = &regions[i];
        if (r->end <= start || r->start >= start + PAGE_BYTES) continue;
        const size_t from = r->start > start ? r->start - start : 0, to = r->end < start + PAGE_BYTES ? r->end - start : PAGE_BYTES;
        r->traffic.reads += popcount_between(read, from, to);
        r->traffic.writes += popcount_between(written, from, to);
    }
}

static void count_distinct(void) {
    for (uint32_t i = 0; i < n_regions; i++) regions[i].traffic.reads = regions[i].traffic.writes = 0;
    for (uint32_t i = 0; i < n_pages; i++) count_distinct_in(pages[i]);
}

static void block_ends(uint32_t blocks) {
    count_distinct();
    for (uint32_t i = 0; i < n_regions; i++) regions[i].after[blocks_run] = regions[i].traffic;
    products_after[blocks_run++] = simt_matrix_products - products_before;
    blocks_in_all = blocks;
}

/* What is counted after the first block, after the second, and after these and the last; so of all. */
static uint64_t of_all_blocks(uint64_t first, uint64_t second, uint64_t last) {
    return first + (second - first) * (blocks_in_all - 2) + (last - second);
}

static uint64_t products_of_all(void) {
    return blocks_in_all ? of_all_blocks(products_after[0], products_after[1], products_after[2]) : simt_matrix_products - products_before;
}

static void scale_up(void) {
    for (uint32_t i = 0; i < n_regions; i++) {
        const simt_traffic *a = regions[i].after;
        simt_traffic *t = &regions[i].traffic;
        t->loads = of_all_blocks(a[0].loads, a[1].loads, a[2].loads);
        t->group_reads = of_all_blocks(a[0].group_reads, a[1].group_reads, a[2].group_reads);
        t->reads = of_all_blocks(a[0].reads, a[1].reads, a[2].reads);
        t->stores = of_all_blocks(a[0].stores, a[1].stores, a[2].stores);
        t->writes = of_all_blocks(a[0].writes, a[1].writes, a[2].writes);
    }
}

/* Compares with earlier dispatches of the stage. */
static void check_stage(const page *p) {
    for (uint32_t s = seen_bucket[p->number & 0xffffu]; s; s = seen[s - 1].next) {
        const seen_page *o = &seen[s - 1];
        if (o->number != p->number) continue;
        for (size_t i = 0; i < PAGE_BYTES / 64; i++) {
            const uint64_t *const now[] = {p->bits[READ] + i, p->bits[WRITE] + i, p->bits[ATOMIC] + i};
            const uint64_t *const then[] = {o->bits[READ] + i, o->bits[WRITE] + i, o->bits[ATOMIC] + i};
            const uint64_t both_write = *now[WRITE] & (*then[WRITE] | *then[ATOMIC]), reads = *now[READ] & (*then[WRITE] | *then[ATOMIC]);
            const uint64_t overwrites = *now[WRITE] & *then[READ], changes = *now[ATOMIC] & (*then[READ] | *then[WRITE]);
            const uint64_t wrong = both_write | reads | overwrites | changes;
            if (!wrong) continue;
            const uintptr_t a = (p->number << PAGE_BITS) + i * 64 + (uintptr_t)__builtin_ctzll(wrong);
            const region *r = region_of(a, 1);
            simt_fault(
                "data race between dispatches of one stage: byte %zu of %s is %s by it and %s by kernel %s, without a barrier between",
                r ? a - r->start : (size_t)a, r ? r->traffic.label : "a buffer", reads && !both_write ? "read" : "written",
                overwrites && !both_write ? "read" : "written", stage_kernels[o->dispatch]);
            return;
        }
    }
}

static void keep_page(const page *p) {
    if (n_seen == seen_room) seen = grow(seen, &seen_room, sizeof *seen);
    seen[n_seen].number = p->number;
    seen[n_seen].dispatch = n_stage;
    seen[n_seen].next = seen_bucket[p->number & 0xffffu];
    seen_bucket[p->number & 0xffffu] = n_seen + 1;
    memcpy(seen[n_seen++].bits, p->bits, sizeof p->bits);
}

static void count_kernel(void) {
    simt_kernel_traffic *k = kernel_traffic;
    while (k < kernel_traffic + n_kernel_traffic && strcmp(k->kernel, simt_running->kernel) != 0) k++;
    if (k == kernel_traffic + n_kernel_traffic) {
        if (n_kernel_traffic == sizeof kernel_traffic / sizeof *kernel_traffic) return;
        *k = (simt_kernel_traffic){.kernel = simt_find(simt_running->kernel)->name};
        n_kernel_traffic++;
    }
    simt_traffic all = {.label = NULL};
    n_buffer_traffic = 0;
    for (uint32_t i = 0; i < n_regions; i++) {
        const simt_traffic *t = &regions[i].traffic;
        all.loads += t->loads;
        all.group_reads += t->group_reads;
        all.reads += t->reads;
        all.stores += t->stores;
        all.writes += t->writes;
        if ((t->loads || t->stores) && n_buffer_traffic < sizeof buffer_traffic / sizeof *buffer_traffic)
            buffer_traffic[n_buffer_traffic++] = *t;
    }
    const uint32_t *const grid = simt_running->threadgroups;
    const uint64_t threadgroups = (uint64_t)grid[0] * grid[1] * grid[2];
    k->dispatches++;
    k->threadgroups += threadgroups;
    if (all.reads + all.writes > 1 << 20 && (!k->fewest_threadgroups || threadgroups < k->fewest_threadgroups))
        k->fewest_threadgroups = threadgroups;
    k->matrix_products += products_of_all();
    k->all.loads += all.loads;
    k->all.group_reads += all.group_reads;
    k->all.reads += all.reads;
    k->all.stores += all.stores;
    k->all.writes += all.writes;
    const simt_dispatch_traffic told = {k->kernel, threadgroups, products_of_all(), buffer_traffic, n_buffer_traffic};
    if (simt_watch_each) simt_watch_each(&told);
}

static void end_of_dispatch(bool ok) {
    if (!ok) return;
    if (n_stage == stage_room) stage_kernels = grow(stage_kernels, &stage_room, sizeof *stage_kernels);
    snprintf(stage_kernels[n_stage], sizeof *stage_kernels, "%s", simt_running->kernel);
    if (blocks_in_all)
        scale_up();
    else
        count_distinct();
    for (uint32_t i = 0; i < n_pages; i++) check_stage(pages[i]);
    for (uint32_t i = 0; i < n_pages; i++) keep_page(pages[i]);
    n_stage++;
    count_kernel();
}

static void stage_ends(void) {
    for (uint32_t i = 0; i < n_seen; i++) seen_bucket[seen[i].number & 0xffffu] = 0;
    n_stage = n_seen = 0;
}

static const simt_observer watcher = {
    .begin = begin, .threadgroup = threadgroup_begins, .part = new_part, .block = block_ends, .stage = stage_ends, .end = end_of_dispatch};

__attribute__((constructor)) static void watch(void) {
    simt_watching = &watcher;
    simt_atomic = touch_atomic;
}

void simt_watch_reset(void) {
    n_kernel_traffic = n_buffer_traffic = 0;
    stage_ends();
}

const simt_traffic *simt_watch_buffers(uint32_t *n) {
    *n = n_buffer_traffic;
    return buffer_traffic;
}

const simt_kernel_traffic *simt_watch_kernels(uint32_t *n) {
    *n = n_kernel_traffic;
    return kernel_traffic;
}

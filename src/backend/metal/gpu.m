/* gpu.m: see gpu.h.  Manual reference counts, no classes of its own, no subscripting: the same file builds with Apple's compiler and with
 * clang for GNU's runtime (tests).
 *
 * Buffers are untracked and reached through their addresses, so Metal does not know who uses what: every encoder declares all buffers (or a
 * residency set does, from macOS 15 on), and a fence orders encoders.  Inside an encoder dispatches run concurrently but for
 * the barriers. */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <dispatch/dispatch.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/metal/gpu.h"
#include "backend/metal/source.h"
#include "base/log.h"
#include "base/memory.h"

#if defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
#define HAVE_RESIDENCY_SETS
#endif

enum { PAGE = 16384, NAME = 64, SIMD_WIDTH = 32 };

typedef struct kernel {
    char name[NAME];
    id<MTLComputePipelineState> pipeline;
} kernel;

struct metal_gpu {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLFence> fence;
    id<MTLLibrary> library, tensor_library; /* the second nil: none */
    id<MTLBinaryArchive> archive;
    char archive_path[1024]; /* empty: no place to keep kernels */
    bool archive_grew;
    id<MTLResource> memories[GPU_MAX_MEMORIES];
    uint32_t n_memories;
    void *residency; /* id<MTLResidencySet>, or NULL */
    kernel kernels[GPU_MAX_KERNELS];
    uint32_t n_kernels;
    id<MTLCommandBuffer> in_flight[GPU_MOST_IN_FLIGHT]; /* oldest first */
    uint32_t n_in_flight;
    uint64_t committed;
    char failure[256];
};

static const char *text_of(NSError *e) {
    const char *text = e ? [[e localizedDescription] UTF8String] : NULL;
    return text ? text : "no reason was given";
}

static void fail(metal_gpu *g, const char *what, const char *why) {
    if (!g->failure[0]) snprintf(g->failure, sizeof g->failure, "%s: %s", what, why);
}

const char *gpu_failure(const metal_gpu *g) { return g->failure[0] ? g->failure : NULL; }

/* ---- opening ---- */

static calla_status open_parts(metal_gpu *g, metal_facts *facts, calla_error *err) {
    g->device = MTLCreateSystemDefaultDevice();
    if (!g->device)
        return error_set(err, CALLA_E_UNSUPPORTED,
                         "there is no Metal device to compute on (a virtual machine or a remote login without one?); "
                         "use --device cpu");
    snprintf(facts->name, sizeof facts->name, "%.60s", [[g->device name] UTF8String]);
    if (![g->device supportsFamily:MTLGPUFamilyApple7] || ![g->device hasUnifiedMemory])
        return error_set(err, CALLA_E_UNSUPPORTED, "%s is not an Apple GPU of the M1's family or later; use --device cpu", facts->name);
    facts->working_set_bytes = [g->device recommendedMaxWorkingSetSize];
    facts->largest_buffer_bytes = [g->device maxBufferLength];
    g->queue = [g->device newCommandQueue];
    g->fence = [g->device newFence];
    if (!g->queue || !g->fence) return error_set(err, CALLA_E_DEVICE, "Metal: no command queue on %s", facts->name);
    return CALLA_OK;
}

#ifdef HAVE_RESIDENCY_SETS
static void open_residency(metal_gpu *g) {
    if (@available(macOS 15.0, *)) {
        MTLResidencySetDescriptor *d = [[MTLResidencySetDescriptor alloc] init];
        NSError *e = nil;
        id<MTLResidencySet> set = [g->device newResidencySetWithDescriptor:d error:&e];
        [d release];
        if (!set) return; /* encoders declare the buffers */
        [g->queue addResidencySet:set];
        g->residency = set;
    }
}

static void change_residency(metal_gpu *g, id<MTLBuffer> buffer, bool add) {
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = (id<MTLResidencySet>)g->residency;
        if (add)
            [set addAllocation:buffer];
        else
            [set removeAllocation:buffer];
        [set commit];
        if (add) [set requestResidency];
    }
}
#else
static void open_residency(metal_gpu *g) { g->residency = NULL; }
static void change_residency(metal_gpu *g, id<MTLBuffer> buffer, bool add) { (void)g, (void)buffer, (void)add; }
#endif

calla_status gpu_open(metal_gpu **out, metal_facts *facts, calla_error *err) {
    metal_gpu *g = *out = mem_calloc(1, sizeof *g);
    calla_status status;
    if (!g) return error_nomem(err, "the Metal device");
    *facts = (metal_facts){.name = ""};
    @autoreleasepool {
        status = open_parts(g, facts, err);
        if (!status) open_residency(g);
    }
    if (!status) return CALLA_OK;
    gpu_close(g);
    *out = NULL;
    return status;
}

void gpu_close(metal_gpu *g) {
    if (!g) return;
    gpu_wait(g, 0);
    @autoreleasepool {
        for (uint32_t i = 0; i < g->n_kernels; i++) [g->kernels[i].pipeline release];
        [g->archive release];
        [g->library release];
        [g->tensor_library release];
        [(id)g->residency release];
        [g->fence release];
        [g->queue release];
        [g->device release];
    }
    mem_free(g);
}

/* ---- memory ---- */

enum { OPTIONS = MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked };

/* In the list of memories from here on. */
static calla_status add_memory(metal_gpu *g, id<MTLBuffer> buffer, uint64_t bytes, const char *what, metal_memory *out, calla_error *err) {
    *out = (metal_memory){.bytes = bytes};
    if (!buffer) return error_set(err, CALLA_E_NOMEM, "Metal gave no memory for %s, %.2f GB", what, (double)bytes / 1e9);
    [buffer setLabel:[NSString stringWithUTF8String:what]];
    *out = (metal_memory){.object = buffer, .host = [buffer contents], .address = [buffer gpuAddress], .bytes = bytes};
    if (g->residency) change_residency(g, buffer, true);
    g->memories[g->n_memories++] = buffer;
    return CALLA_OK;
}

calla_status gpu_allocate(metal_gpu *g, uint64_t bytes, const char *what, metal_memory *out, calla_error *err) {
    const uint64_t whole = (bytes ? bytes + PAGE - 1 : PAGE) / PAGE * PAGE;
    calla_status status;
    @autoreleasepool {
        id<MTLBuffer> buffer = g->n_memories < GPU_MAX_MEMORIES ? [g->device newBufferWithLength:whole options:OPTIONS] : nil;
        status = add_memory(g, buffer, bytes, what, out, err);
    }
    return status;
}

calla_status gpu_adopt(metal_gpu *g, const uint8_t *host, uint64_t bytes, const char *what, metal_memory *out, calla_error *err) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page; /* a map ends with its page */
    calla_status status;
    @autoreleasepool {
        id<MTLBuffer> buffer = nil;
        if (g->n_memories < GPU_MAX_MEMORIES)
            buffer = [g->device newBufferWithBytesNoCopy:(void *)(uintptr_t)host length:whole options:OPTIONS deallocator:nil];
        status = add_memory(g, buffer, bytes, what, out, err);
    }
    return status;
}

void gpu_release(metal_gpu *g, metal_memory *m) {
    if (!m->object) return;
    id<MTLBuffer> buffer = (id<MTLBuffer>)m->object;
    gpu_wait(g, 0);
    for (uint32_t i = 0; i < g->n_memories; i++)
        if (g->memories[i] == buffer) g->memories[i] = g->memories[--g->n_memories];
    @autoreleasepool {
        if (g->residency) change_residency(g, buffer, false);
        [buffer release];
    }
    *m = (metal_memory){.object = NULL};
}

/* ---- kernels ---- */

static uint64_t hash(uint64_t h, const char *text) { /* FNV-1a */
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001b3;
    return h;
}

/* ~/Library/Caches/calla/kernels-….  Of this source on this device; Metal itself refuses one of another system. */
static void find_archive(metal_gpu *g) {
    const char *home = getenv("HOME");
    char folder[960];
    if (!home || !home[0] || strlen(home) > 900) return;
    static const char *const parts[] = {"/Library", "/Caches", "/calla"};
    snprintf(folder, sizeof folder, "%s", home);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        strcat(folder, parts[i]);
        if (mkdir(folder, 0755) && errno != EEXIST) return;
    }
    const uint64_t key = hash(hash(hash(0xcbf29ce484222325, metal_source), metal_tensor_source), [[g->device name] UTF8String]);
    snprintf(g->archive_path, sizeof g->archive_path, "%s/kernels-%016llx.metalarchive", folder, (unsigned long long)key);
}

static NSURL *url_of(const char *path) { return [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]]; }

static void open_archive(metal_gpu *g) {
    NSError *e = nil;
    find_archive(g);
    if (!g->archive_path[0]) return;
    MTLBinaryArchiveDescriptor *d = [[MTLBinaryArchiveDescriptor alloc] init];
    struct stat st;
    if (stat(g->archive_path, &st) == 0) {
        [d setUrl:url_of(g->archive_path)];
        g->archive = [g->device newBinaryArchiveWithDescriptor:d error:&e];
        if (!g->archive) log_info("the compiled kernels in %s are of no use (%s): compiling again", g->archive_path, text_of(e));
    }
    if (!g->archive) {
        [d setUrl:nil];
        g->archive = [g->device newBinaryArchiveWithDescriptor:d error:&e];
    }
    [d release];
}

static id<MTLLibrary> compile(metal_gpu *g, const char *source, MTLLanguageVersion version, NSError **e) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations" /* mathMode is new in macOS 15 */
    [options setFastMathEnabled:NO];
#pragma clang diagnostic pop
    [options setLanguageVersion:version];
    id<MTLLibrary> library = [g->device newLibraryWithSource:[NSString stringWithUTF8String:source] options:options error:e];
    [options release];
    return library;
}

static calla_status compile_source(metal_gpu *g, calla_error *err) {
    NSError *e = nil;
    g->library = compile(g, metal_source, MTLLanguageVersion3_1, &e);
    if (g->library) return CALLA_OK;
    log_error("Metal's compiler: %s", text_of(e));
    return error_set(err, CALLA_E_UNSUPPORTED, "the Metal kernels do not compile here (macOS 14 or later is needed): %.300s", text_of(e));
}

/* What was compiled with calla; one that this system does not take is no reason not to start. */
static bool take_library(metal_gpu *g) {
    NSError *e = nil;
    if (!metal_library_bytes) return false;
    dispatch_data_t data = dispatch_data_create(metal_library, metal_library_bytes, NULL, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
    g->library = [g->device newLibraryWithData:data error:&e];
    dispatch_release(data);
    if (!g->library) log_info("the kernels that were compiled with calla are of no use here (%s): compiling their source", text_of(e));
    return g->library != nil;
}

calla_status gpu_compile(metal_gpu *g, calla_error *err) {
    calla_status status;
    @autoreleasepool {
        open_archive(g);
        status = take_library(g) ? CALLA_OK : compile_source(g, err);
    }
    return status;
}

/* MTLGPUFamilyApple10 and MTLLanguageVersion4_0 of macOS 26's headers, which need not be those that calla is built with; an older system
 * knows neither and says no. */
enum { FAMILY_WITH_TENSOR_UNITS = 1010, LANGUAGE_4_0 = 4 << 16 };

bool gpu_compile_tensor(metal_gpu *g) {
    if (![g->device supportsFamily:(MTLGPUFamily)FAMILY_WITH_TENSOR_UNITS]) return false;
    @autoreleasepool {
        NSError *e = nil;
        g->tensor_library = compile(g, metal_tensor_source, (MTLLanguageVersion)LANGUAGE_4_0, &e);
        if (!g->tensor_library) log_warn("the tensor operations are not used: their kernels do not compile here: %s", text_of(e));
    }
    return g->tensor_library != nil;
}

static id<MTLComputePipelineState> make_pipeline(metal_gpu *g, const char *name, uint32_t threads, NSError **e) {
    NSString *text = [NSString stringWithUTF8String:name];
    id<MTLFunction> function = [g->library newFunctionWithName:text];
    if (!function) function = [g->tensor_library newFunctionWithName:text];
    if (!function) return nil;
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor alloc] init];
    id<MTLComputePipelineState> pipeline = nil;
    [d setComputeFunction:function];
    [d setLabel:[function name]];
    [d setMaxTotalThreadsPerThreadgroup:threads];
    [d setThreadGroupSizeIsMultipleOfThreadExecutionWidth:YES];
    if (g->archive) {
        [d setBinaryArchives:[NSArray arrayWithObject:g->archive]];
        pipeline = [g->device newComputePipelineStateWithDescriptor:d
                                                            options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                         reflection:NULL
                                                              error:e];
        if (!pipeline && [g->archive addComputePipelineFunctionsWithDescriptor:d error:e]) g->archive_grew = true;
    }
    if (!pipeline) pipeline = [g->device newComputePipelineStateWithDescriptor:d options:MTLPipelineOptionNone reflection:NULL error:e];
    [d release];
    [function release];
    return pipeline;
}

/* What Metal does not check when a kernel is dispatched. */
static calla_status check_pipeline(id<MTLComputePipelineState> pipeline, const char *name, uint32_t threads, calla_error *err) {
    const NSUInteger most = [pipeline maxTotalThreadsPerThreadgroup], width = [pipeline threadExecutionWidth];
    if (most >= threads && width == SIMD_WIDTH) return CALLA_OK;
    return error_set(err, CALLA_E_UNSUPPORTED,
                     "the Metal kernel %s cannot run here: it takes %u threads in simdgroups of %d, the device %u in simdgroups of %u; use "
                     "--device cpu",
                     name, threads, SIMD_WIDTH, (unsigned)most, (unsigned)width);
}

calla_status gpu_kernel(metal_gpu *g, const char *name, uint32_t threads, uint32_t *index, calla_error *err) {
    for (*index = 0; *index < g->n_kernels; ++*index)
        if (!strcmp(g->kernels[*index].name, name)) return CALLA_OK;
    if (g->n_kernels == GPU_MAX_KERNELS || strlen(name) >= NAME)
        return error_set(err, CALLA_E_INTERNAL, "Metal: no place for kernel %s", name);
    kernel *k = &g->kernels[g->n_kernels];
    calla_status status = CALLA_OK;
    @autoreleasepool {
        NSError *e = nil;
        k->pipeline = make_pipeline(g, name, threads, &e);
        if (!k->pipeline)
            status = error_set(err, CALLA_E_UNSUPPORTED, "the Metal kernel %s cannot run here: %.300s", name, text_of(e));
        else if ((status = check_pipeline(k->pipeline, name, threads, err)))
            [k->pipeline release];
    }
    if (status) return status;
    snprintf(k->name, sizeof k->name, "%s", name);
    g->n_kernels++;
    return CALLA_OK;
}

/* Under another name first: another process may have mapped the one that is there. */
void gpu_keep_kernels(metal_gpu *g) {
    char path[sizeof g->archive_path + 16];
    if (!g->archive || !g->archive_grew) return;
    snprintf(path, sizeof path, "%s.%ld", g->archive_path, (long)getpid());
    @autoreleasepool {
        NSError *e = nil;
        const bool written = [g->archive serializeToURL:url_of(path) error:&e];
        if (!written || rename(path, g->archive_path))
            log_info("the compiled kernels could not be kept in %s: %s", g->archive_path, written ? strerror(errno) : text_of(e));
        unlink(path); /* what is left of a failure */
    }
    g->archive_grew = false;
}

/* ---- commands ---- */

static id<MTLComputeCommandEncoder> encoder_of(const metal_commands *c) { return (id<MTLComputeCommandEncoder>)c->encoder; }

bool gpu_begin(metal_gpu *g, metal_commands *c) {
    *c = (metal_commands){.buffer = NULL};
    if (g->failure[0]) return false;
    @autoreleasepool {
        id<MTLCommandBuffer> buffer = [[g->queue commandBufferWithUnretainedReferences] retain];
        id<MTLComputeCommandEncoder> encoder = [[buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent] retain];
        if (encoder) {
            [encoder waitForFence:g->fence];
            if (!g->residency && g->n_memories)
                [encoder useResources:g->memories count:g->n_memories usage:MTLResourceUsageRead | MTLResourceUsageWrite];
            *c = (metal_commands){.buffer = buffer, .encoder = encoder};
        } else {
            [buffer release];
            fail(g, "Metal", "no commands can be recorded");
        }
    }
    return c->buffer != NULL;
}

void gpu_bind_arguments(metal_commands *c, const metal_memory *m) {
    if (c->encoder) [encoder_of(c) setBuffer:(id<MTLBuffer>)m->object offset:0 atIndex:0];
}

void gpu_bind_step(metal_commands *c, const metal_memory *m, uint64_t offset) {
    if (c->encoder) [encoder_of(c) setBuffer:(id<MTLBuffer>)m->object offset:offset atIndex:1];
}

void gpu_dispatch(metal_gpu *g, metal_commands *c, const metal_dispatch *d) {
    if (!c->encoder) return;
    id<MTLComputeCommandEncoder> encoder = encoder_of(c);
    [encoder setComputePipelineState:g->kernels[d->kernel].pipeline];
    [encoder setBufferOffset:d->arguments atIndex:0];
    if (d->threadgroup_bytes) [encoder setThreadgroupMemoryLength:d->threadgroup_bytes atIndex:0];
    [encoder dispatchThreadgroups:MTLSizeMake(d->grid[0], d->grid[1], d->grid[2]) threadsPerThreadgroup:MTLSizeMake(d->threads, 1, 1)];
}

void gpu_barrier(metal_commands *c) {
    if (c->encoder) [encoder_of(c) memoryBarrierWithScope:MTLBarrierScopeBuffers];
}

static void end(metal_gpu *g, metal_commands *c) {
    id<MTLComputeCommandEncoder> encoder = encoder_of(c);
    if (g) [encoder updateFence:g->fence];
    [encoder endEncoding];
    [encoder release];
    c->encoder = NULL;
}

void gpu_commit(metal_gpu *g, metal_commands *c) {
    if (!c->buffer) return;
    gpu_wait(g, GPU_MOST_IN_FLIGHT - 1);
    id<MTLCommandBuffer> buffer = (id<MTLCommandBuffer>)c->buffer;
    @autoreleasepool {
        end(g, c);
        [buffer commit];
    }
    g->in_flight[g->n_in_flight++] = buffer;
    g->committed++;
    c->buffer = NULL;
}

void gpu_discard(metal_commands *c) {
    if (!c->buffer) return;
    @autoreleasepool {
        end(NULL, c);
        [(id<MTLCommandBuffer>)c->buffer release];
    }
    c->buffer = NULL;
}

/* What a user can do about it, in words that need no knowledge of Metal. */
static const char *advice(NSInteger code, const char *text) {
    if (strstr(text, "Impacting Interactivity")) code = MTLCommandBufferErrorTimeout; /* a code without a name */
    switch (code) {
    case MTLCommandBufferErrorOutOfMemory: return "the GPU ran out of memory: use a smaller --context, --sequences or --batch-rows";
    case MTLCommandBufferErrorTimeout: return "the system stopped a command that ran for too long: use --polite, or a smaller --batch-rows";
    case MTLCommandBufferErrorPageFault: return "a kernel reached beyond its memory: please report this";
    case MTLCommandBufferErrorNotPermitted: return "the system lets no background process compute on the GPU";
    default: return "the GPU was reset or lost: see the system's log";
    }
}

static void check(metal_gpu *g, id<MTLCommandBuffer> buffer) {
    if ([buffer status] == MTLCommandBufferStatusCompleted) return;
    NSError *e = [buffer error];
    fail(g, advice(e ? [e code] : -1, text_of(e)), text_of(e));
}

void gpu_wait(metal_gpu *g, uint32_t leave) {
    @autoreleasepool {
        while (g->n_in_flight > leave) {
            id<MTLCommandBuffer> oldest = g->in_flight[0];
            [oldest waitUntilCompleted];
            check(g, oldest);
            [oldest release];
            memmove(g->in_flight, g->in_flight + 1, --g->n_in_flight * sizeof *g->in_flight);
        }
    }
}

uint64_t gpu_committed(const metal_gpu *g) { return g->committed; }

void gpu_wait_for(metal_gpu *g, uint64_t n) { gpu_wait(g, n < g->committed ? (uint32_t)(g->committed - n) : 0); }

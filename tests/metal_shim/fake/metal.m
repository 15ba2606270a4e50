/* metal.m: the classes behind Metal.h.  Commands are recorded by the encoder and run by simt.c, all of them on one queue, in the order in
 * which they were committed.  Every rule of Metal that is known to be broken here is reported (broken). */
#include "foundation.h"

#import <Metal/Metal.h>

#include <Block.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../simt/simt.h"
#include "fake_metal.h"

fake_metal_device fake_metal_is;
fake_metal_counts fake_metal_count;

__attribute__((constructor)) static void choose_when(void) { fake_metal_is.runs_late = getenv("FAKE_METAL_LATE") != NULL; }

static uint64_t calls, failing_call;
static const char *failed_call;
static char broken_rule[600];
static bool rule_is_broken;

uint64_t fake_metal_fail(uint64_t at) {
    const uint64_t before = calls;
    calls = 0;
    failing_call = at;
    failed_call = NULL;
    return before;
}

const char *fake_metal_failed(void) { return failed_call; }

const char *fake_metal_broken(void) {
    const bool was = rule_is_broken;
    rule_is_broken = false;
    return was ? broken_rule : NULL;
}

static bool fails(const char *call) {
    if (++calls != failing_call) return false;
    failed_call = call;
    return true;
}

static void broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void broken(const char *format, ...) {
    char text[sizeof broken_rule];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "fake Metal: %s\n", text);
    if (!rule_is_broken) memcpy(broken_rule, text, sizeof text);
    rule_is_broken = true;
}

static void *grow(void *p, size_t n, size_t element) { /* to hold one more than n */
    if (n & (n - 1) || n == 1) return p;
    p = realloc(p, (n ? 2 * n : 2) * element);
    if (!p) abort();
    return p;
}

/* ---- memory ---- */

enum { GUARD = 16384 };

@class FakeBuffer;
static bool in_residency_set(const FakeBuffer *b);

@interface FakeBuffer : NSObject <MTLBuffer> {
  @public
    char *memory;
    size_t bytes, mapped; /* mapped: 0: somebody else's memory */
    bool untracked;       /* encoders that use it are ordered by fences alone */
    char label[32];
}
@end
@implementation FakeBuffer
- (id)initWithBytes:(size_t)n {
    bytes = n;
    mapped = (n + GUARD - 1) / GUARD * GUARD;
    memory = mmap(NULL, mapped + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + mapped, GUARD, PROT_NONE)) abort();
    snprintf(label, sizeof label, "%zu bytes", n);
    return self;
}
- (id)initAround:(char *)there bytes:(size_t)n {
    bytes = n;
    memory = there;
    snprintf(label, sizeof label, "%zu bytes", n);
    return self;
}
- (void *)contents {
    return memory;
}
- (NSUInteger)length {
    return bytes;
}
- (uint64_t)gpuAddress {
    return (uintptr_t)memory;
}
- (void)setLabel:(NSString *)text {
    snprintf(label, sizeof label, "%s", [text UTF8String]);
}
- (void)dealloc {
    if (in_residency_set(self)) broken("%s is released, and a residency set has it", label);
    if (mapped) munmap(memory, mapped + GUARD);
    simt_end_stage(); /* its addresses may be another buffer's next */
    [super dealloc];
}
@end

/* What is added or removed counts once it is committed. */
enum { MOST_RESIDENT = 2048 };

@interface FakeResidencySet : NSObject <MTLResidencySet> {
  @public
    FakeBuffer *next[MOST_RESIDENT], *now[MOST_RESIDENT];
    size_t n_next, n_now;
    bool requested;
    FakeResidencySet *other; /* of all there are */
}
@end
static FakeResidencySet *residency_sets;

@implementation FakeResidencySet
- (id)init {
    other = residency_sets;
    residency_sets = self;
    return self;
}
- (void)dealloc {
    FakeResidencySet **at = &residency_sets;
    while (*at != self) at = &(*at)->other;
    *at = other;
    [super dealloc];
}
- (void)addAllocation:(id<MTLAllocation>)allocation {
    if (n_next == MOST_RESIDENT) abort();
    next[n_next++] = (FakeBuffer *)allocation;
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
    size_t kept = 0;
    for (size_t i = 0; i < n_next; i++)
        if (next[i] != (FakeBuffer *)allocation) next[kept++] = next[i];
    if (kept == n_next) broken("removeAllocation: of one that was not added");
    n_next = kept;
}
- (void)commit {
    memcpy(now, next, n_next * sizeof *next);
    n_now = n_next;
}
- (void)requestResidency {
    requested = true;
}
@end
@implementation MTLResidencySetDescriptor
@end

static bool in_residency_set(const FakeBuffer *b) {
    for (const FakeResidencySet *set = residency_sets; set; set = set->other) {
        for (size_t i = 0; i < set->n_now; i++)
            if (set->now[i] == b) return true;
        for (size_t i = 0; i < set->n_next; i++)
            if (set->next[i] == b) return true;
    }
    return false;
}

@interface FakeFence : NSObject <MTLFence> {
  @public
    uint64_t updated_by; /* number of the encoder, 0: none yet */
}
@end
@implementation FakeFence
@end

/* ---- kernels ---- */

@interface FakeFunction : NSObject <MTLFunction> {
  @public
    const simt_kernel *kernel;
}
@end
@implementation FakeFunction
- (NSString *)name {
    return [NSString stringWithUTF8String:kernel->name];
}
@end

@interface FakeLibrary : NSObject <MTLLibrary>
@end
@implementation FakeLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
    const simt_kernel *k = simt_find([name UTF8String]);
    if (!k) return nil;
    FakeFunction *f = [FakeFunction new];
    f->kernel = k;
    return f;
}
@end

@interface FakePipeline : NSObject <MTLComputePipelineState> {
  @public
    const simt_kernel *kernel;
    NSUInteger most_threads;
}
@end
@implementation FakePipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return most_threads;
}
- (NSUInteger)threadExecutionWidth {
    return SIMT_WIDTH;
}
@end

@implementation MTLCompileOptions
- (void)setFastMathEnabled:(BOOL)on {
    (void)on;
}
- (void)setLanguageVersion:(MTLLanguageVersion)v {
    version = v;
}
- (MTLLanguageVersion)version {
    return version;
}
@end

@implementation MTLBinaryArchiveDescriptor
- (void)setUrl:(NSURL *)u {
    [u retain];
    [url release];
    url = u;
}
- (NSURL *)url {
    return url;
}
- (void)dealloc {
    [url release];
    [super dealloc];
}
@end

@implementation MTLComputePipelineDescriptor
- (void)setComputeFunction:(id<MTLFunction>)f {
    [f retain];
    [function release];
    function = f;
}
- (void)setLabel:(NSString *)label {
    (void)label;
}
- (void)setBinaryArchives:(NSArray *)a {
    [a retain];
    [archives release];
    archives = a;
}
- (void)setMaxTotalThreadsPerThreadgroup:(NSUInteger)n {
    most_threads = n;
}
- (void)setThreadGroupSizeIsMultipleOfThreadExecutionWidth:(BOOL)is {
    (void)is;
}
- (NSUInteger)mostThreads {
    return most_threads;
}
- (const simt_kernel *)kernel {
    return function ? ((FakeFunction *)function)->kernel : NULL;
}
- (NSArray *)archives {
    return archives;
}
- (void)dealloc {
    [function release];
    [archives release];
    [super dealloc];
}
@end

/* A file of a first line and the names of kernels. */
static const char archive_mark[] = "fake Metal archive\n";

@interface FakeArchive : NSObject <MTLBinaryArchive> {
    const simt_kernel **kernels;
    size_t n;
}
@end
@implementation FakeArchive
- (void)add:(const simt_kernel *)k {
    kernels = grow(kernels, n, sizeof *kernels);
    kernels[n++] = k;
}
- (BOOL)has:(const simt_kernel *)k {
    for (size_t i = 0; i < n; i++)
        if (kernels[i] == k) return YES;
    return NO;
}
- (BOOL)readFrom:(const char *)path {
    char line[256];
    FILE *f = fopen(path, "r");
    BOOL good = f && fgets(line, sizeof line, f) && !strcmp(line, archive_mark);
    while (good && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const simt_kernel *k = simt_find(line);
        if (k) [self add:k];
    }
    if (f) fclose(f);
    return good;
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)d error:(NSError **)e {
    if (fails("addComputePipelineFunctionsWithDescriptor")) {
        fake_error(e, 1, "not added");
        return NO;
    }
    [self add:[(id)d kernel]];
    return YES;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)e {
    FILE *f = fails("serializeToURL") ? NULL : fopen(fake_path(url), "w");
    if (!f) {
        fake_error(e, 1, "%s cannot be written", fake_path(url));
        return NO;
    }
    fputs(archive_mark, f);
    for (size_t i = 0; i < n; i++) fprintf(f, "%s\n", kernels[i]->name);
    return fclose(f) == 0;
}
- (void)dealloc {
    free(kernels);
    [super dealloc];
}
@end

/* ---- commands ---- */

typedef struct command {
    enum { DISPATCH, BARRIER, WAIT_FENCE, UPDATE_FENCE, END } kind;
    simt_dispatch *dispatch; /* owned */
    size_t reachable;        /* how many of the encoder's resources were declared by then */
    FakeFence *fence;
} command;

static uint64_t encoders_begun, encoder_that_ran; /* the last one */

@class FakeCommandBuffer;

@interface FakeEncoder : NSObject <MTLComputeCommandEncoder> {
  @public
    FakePipeline *pipeline;
    simt_dispatch state;
    FakeBuffer *bound[SIMT_BUFFERS];
    simt_binding *resources;
    size_t n_resources;
    command *commands;
    size_t n;
    uint64_t number;
    bool serial, ended, untracked;
}
@end
@implementation FakeEncoder
- (command *)record {
    static command nowhere;
    if (ended) {
        broken("a command is encoded after endEncoding");
        return &nowhere;
    }
    commands = grow(commands, n, sizeof *commands);
    commands[n] = (command){.kind = BARRIER};
    return &commands[n++];
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)p {
    if (!p) broken("setComputePipelineState: nil");
    pipeline = (FakePipeline *)p;
}
- (void)setBuffer:(id<MTLBuffer>)b offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    if (index >= SIMT_BUFFERS) {
        broken("setBuffer: atIndex: %lu", index);
        return;
    }
    bound[index] = (FakeBuffer *)b;
    if (b) untracked |= bound[index]->untracked;
    if (b) [self setBufferOffset:offset atIndex:index];
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
    const FakeBuffer *b = index < SIMT_BUFFERS ? bound[index] : nil;
    if (!b)
        broken("setBufferOffset: nothing is bound to index %lu", index);
    else if (offset >= b->bytes)
        broken("offset %lu of a buffer of %zu bytes", offset, b->bytes);
    else
        state.buffer[index] = (simt_binding){b->memory + offset, b->bytes - offset, b->label};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)bytes atIndex:(NSUInteger)index {
    if (index >= SIMT_THREADGROUPS || bytes % 16 != 0 || bytes > SIMT_MAX_THREADGROUP_BYTES)
        broken("setThreadgroupMemoryLength: %lu atIndex: %lu", bytes, index);
    else
        state.threadgroup_bytes[index] = bytes;
}
- (void)useResources:(const id<MTLResource> *)added count:(NSUInteger)count usage:(MTLResourceUsage)usage {
    (void)usage;
    fake_metal_count.declared += count;
    for (NSUInteger i = 0; i < count; i++) {
        const FakeBuffer *b = (FakeBuffer *)added[i];
        resources = grow(resources, n_resources, sizeof *resources);
        untracked |= b->untracked;
        resources[n_resources++] = (simt_binding){b->memory, b->bytes, b->label};
    }
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    if (!pipeline) {
        broken("a dispatch without a pipeline");
        return;
    }
    if (threads.width * threads.height * threads.depth > pipeline->most_threads)
        broken("a dispatch of %s with %lu threads, of %lu", pipeline->kernel->name, threads.width * threads.height * threads.depth,
               pipeline->most_threads);
    if (groups.width == 0 || groups.height == 0 || groups.depth == 0)
        broken("a dispatch of %s without threadgroups", pipeline->kernel->name);
    command *c = [self record];
    c->kind = DISPATCH;
    c->reachable = n_resources;
    c->dispatch = malloc(sizeof *c->dispatch);
    if (!c->dispatch) abort();
    *c->dispatch = state;
    c->dispatch->kernel = pipeline->kernel->name;
    const NSUInteger g[3] = {groups.width, groups.height, groups.depth}, t[3] = {threads.width, threads.height, threads.depth};
    for (int i = 0; i < 3; i++) {
        c->dispatch->threadgroups[i] = (uint32_t)g[i];
        c->dispatch->threads[i] = (uint32_t)t[i];
    }
    if (serial) [self record];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
    if (!(scope & MTLBarrierScopeBuffers)) broken("a barrier whose scope is not buffers");
    if (fake_metal_is.lost_barrier && --fake_metal_is.lost_barrier == 0) return;
    [self record];
}
- (void)waitForFence:(id<MTLFence>)fence {
    *[self record] = (command){.kind = WAIT_FENCE, .fence = [(FakeFence *)fence retain]};
}
- (void)updateFence:(id<MTLFence>)fence {
    *[self record] = (command){.kind = UPDATE_FENCE, .fence = [(FakeFence *)fence retain]};
}
- (void)endEncoding {
    if (ended) broken("endEncoding twice");
    *[self record] = (command){.kind = END};
    ended = true;
}
/* Runs what was recorded, with the queue's residency set.  NULL, or what went wrong. */
- (const char *)runWith:(const FakeResidencySet *)resident {
    fake_metal_count.encoders++;
    /* what the queue's set has in front of what the encoder declared */
    const size_t n_set = resident ? resident->n_now : 0;
    simt_binding *reachable = malloc((n_set + n_resources + 1) * sizeof *reachable);
    if (!reachable) abort();
    for (size_t i = 0; i < n_set; i++)
        reachable[i] = (simt_binding){resident->now[i]->memory, resident->now[i]->bytes, resident->now[i]->label};
    if (n_resources) memcpy(reachable + n_set, resources, n_resources * sizeof *resources);
    const char *wrong = [self runReaching:reachable of:n_set];
    free(reachable);
    return wrong;
}
- (const char *)runReaching:(simt_binding *)reachable of:(size_t)n_set {
    if (!untracked) simt_end_stage(); /* Metal orders it behind others by what they use */
    for (size_t i = 0; i < n; i++) {
        const command *c = &commands[i];
        switch (c->kind) {
        case DISPATCH:
            c->dispatch->reachable = reachable;
            c->dispatch->n_reachable = n_set + c->reachable;
            fake_metal_count.dispatches++;
            if (fake_metal_is.wrong_kernel && !strcmp(fake_metal_is.wrong_kernel, c->dispatch->kernel)) break;
            if (!simt_run_in_stage(c->dispatch)) return simt_error();
            break;
        case BARRIER:
            if (!serial) fake_metal_count.barriers++;
            simt_end_stage();
            break;
        case WAIT_FENCE: /* orders this encoder behind the one before only if that one updated the fence */
            if (c->fence->updated_by && c->fence->updated_by == encoder_that_ran) simt_end_stage();
            break;
        case UPDATE_FENCE:
            fake_metal_count.fences++;
            c->fence->updated_by = number;
            break;
        case END: break;
        }
    }
    encoder_that_ran = number;
    return NULL;
}
- (void)dealloc {
    if (!ended) broken("an encoder was released without endEncoding");
    for (size_t i = 0; i < n; i++) {
        free(commands[i].dispatch);
        [commands[i].fence release];
    }
    free(commands);
    free(resources);
    [super dealloc];
}
@end

static FakeCommandBuffer *first_waiting; /* committed, not yet run; retained */

@interface FakeCommandBuffer : NSObject <MTLCommandBuffer> {
  @public
    FakeEncoder **encoders;
    MTLCommandBufferHandler *handlers;
    size_t n_encoders, n_handlers;
    MTLCommandBufferStatus status;
    NSError *error;
    FakeCommandBuffer *next;
    const FakeResidencySet *resident; /* of the queue, which outlives it */
    pthread_t handler_thread;
    bool handler_runs;
}
@end
@implementation FakeCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
    if (n_encoders && !encoders[n_encoders - 1]->ended) broken("a second encoder before endEncoding of the first");
    if (fails("computeCommandEncoder")) return nil;
    FakeEncoder *e = [[FakeEncoder new] autorelease];
    e->serial = type == MTLDispatchTypeSerial;
    e->number = ++encoders_begun;
    encoders = grow(encoders, n_encoders, sizeof *encoders);
    encoders[n_encoders++] = [e retain];
    return e;
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
    if (status >= MTLCommandBufferStatusCommitted) broken("addCompletedHandler after commit");
    handlers = grow(handlers, n_handlers, sizeof *handlers);
    handlers[n_handlers++] = Block_copy(handler);
}
- (void)callHandlers {
    @autoreleasepool {
        for (size_t i = 0; i < n_handlers; i++) handlers[i](self);
    }
}
static void *call_handlers(void *buffer) {
    [(FakeCommandBuffer *)buffer callHandlers];
    return NULL;
}
- (void)run {
    const char *wrong = NULL;
    const int planted = fake_metal_is.next_buffer_error;
    const bool fault = fails("a command buffer's run") || planted;
    fake_metal_is.next_buffer_error = 0;
    for (size_t i = 0; i < n_encoders && !fault && !wrong; i++) wrong = [encoders[i] runWith:resident];
    fake_metal_count.command_buffers++;
    status = fault || wrong ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    if (wrong) broken("%s", wrong);
    @autoreleasepool {
        if (fault && (!planted || planted == MTLCommandBufferErrorOutOfMemory))
            fake_error(&error, MTLCommandBufferErrorOutOfMemory,
                       "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)");
        else if (fault)
            fake_error(&error, planted,
                       planted == FAKE_METAL_INTERACTIVITY
                           ? "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
                           : "a planted failure");
        if (wrong) fake_error(&error, MTLCommandBufferErrorPageFault, "%s", wrong);
        [error retain];
    }
    if (n_handlers) {
        handler_runs = true;
        if (pthread_create(&handler_thread, NULL, call_handlers, self)) abort();
    }
}
/* Everything that was committed up to this one. */
- (void)runNow {
    while (first_waiting && status == MTLCommandBufferStatusCommitted) {
        FakeCommandBuffer *b = first_waiting;
        first_waiting = b->next;
        [b run];
        [b release];
    }
}
- (void)commit {
    if (status != MTLCommandBufferStatusNotEnqueued) {
        broken("a command buffer was committed twice");
        return;
    }
    for (size_t i = 0; i < n_encoders; i++)
        if (!encoders[i]->ended) broken("commit before endEncoding");
    status = MTLCommandBufferStatusCommitted;
    FakeCommandBuffer **end = &first_waiting;
    while (*end) end = &(*end)->next;
    *end = [self retain];
    if (!fake_metal_is.runs_late) [self runNow];
}
- (void)waitUntilCompleted {
    if (status < MTLCommandBufferStatusCommitted) broken("waitUntilCompleted before commit");
    [self runNow];
    if (handler_runs) pthread_join(handler_thread, NULL);
    handler_runs = false;
}
- (MTLCommandBufferStatus)status {
    return status;
}
- (NSError *)error {
    return error;
}
- (void)dealloc {
    if (handler_runs) pthread_join(handler_thread, NULL);
    for (size_t i = 0; i < n_encoders; i++) [encoders[i] release];
    for (size_t i = 0; i < n_handlers; i++) Block_release(handlers[i]);
    free(encoders);
    free(handlers);
    [error release];
    [super dealloc];
}
@end

@interface FakeQueue : NSObject <MTLCommandQueue> {
    FakeResidencySet *resident;
}
@end
@implementation FakeQueue
- (id<MTLCommandBuffer>)commandBuffer {
    if (fails("commandBuffer")) return nil;
    FakeCommandBuffer *b = [[FakeCommandBuffer new] autorelease];
    b->resident = resident;
    return b;
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
    return [self commandBuffer];
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
    if (resident) broken("a second residency set of a queue, which the fake does not have");
    resident = [(FakeResidencySet *)set retain];
}
- (void)dealloc {
    while (first_waiting) [first_waiting runNow];
    [resident release];
    [super dealloc];
}
@end

/* ---- the device ---- */

@interface FakeData : NSObject {
  @public
    char *copy;
    size_t n;
}
@end
@implementation FakeData
- (void)dealloc {
    free(copy);
    [super dealloc];
}
@end

dispatch_data_t dispatch_data_create(const void *bytes, size_t n, dispatch_queue_t queue, dispatch_block_t destructor) {
    if (queue || destructor) broken("dispatch_data_create: a queue or destructor, which the fake does not have");
    FakeData *d = [FakeData new];
    if (!(d->copy = malloc(n))) abort();
    memcpy(d->copy, bytes, n);
    d->n = n;
    return d;
}

static const char library_mark[] = "fake Metal library\n";

@interface FakeDevice : NSObject <MTLDevice>
@end
@implementation FakeDevice
- (NSString *)name {
    return @"Fake Metal device";
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
    return family <= (fake_metal_is.tensor_units ? 1010 : MTLGPUFamilyApple7) && !fake_metal_is.other_family;
}
- (BOOL)hasUnifiedMemory {
    return YES;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return fake_metal_is.working_set_bytes ? fake_metal_is.working_set_bytes : 96ull << 30;
}
- (NSUInteger)maxBufferLength {
    return fake_metal_is.largest_buffer_bytes ? fake_metal_is.largest_buffer_bytes : 64ull << 30;
}
- (id<MTLCommandQueue>)newCommandQueue {
    return fails("newCommandQueue") ? nil : [FakeQueue new];
}
- (id<MTLFence>)newFence {
    return fails("newFence") ? nil : [FakeFence new];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)bytes options:(MTLResourceOptions)options {
    if (bytes == 0) broken("newBufferWithLength: 0");
    if (bytes > [self maxBufferLength]) broken("newBufferWithLength: %lu, more than maxBufferLength", bytes);
    if (bytes == 0 || fails("newBufferWithLength")) return nil;
    FakeBuffer *b = [[FakeBuffer alloc] initWithBytes:bytes];
    b->untracked = options & MTLResourceHazardTrackingModeUntracked;
    return b;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)bytes
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (deallocator) broken("newBufferWithBytesNoCopy: a deallocator, which the fake does not call");
    if (!pointer || (uintptr_t)pointer % page || bytes == 0 || bytes % page || bytes > [self maxBufferLength])
        broken("newBufferWithBytesNoCopy: %p length: %lu", pointer, bytes);
    if (fails("newBufferWithBytesNoCopy")) return nil;
    FakeBuffer *b = [[FakeBuffer alloc] initAround:pointer bytes:bytes];
    b->untracked = options & MTLResourceHazardTrackingModeUntracked;
    return b;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)d error:(NSError **)e {
    if (!d) broken("a residency set without a descriptor");
    if (!fake_metal_is.no_residency_sets && !fails("newResidencySetWithDescriptor")) return [FakeResidencySet new];
    fake_error(e, 1, "no residency sets");
    return nil;
}
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)e {
    const FakeData *d = (FakeData *)data;
    if (fails("newLibraryWithData") || fake_metal_is.refuses_libraries || d->n != sizeof library_mark - 1 ||
        memcmp(d->copy, library_mark, d->n) != 0) {
        fake_error(e, 1, "Invalid library file");
        return nil;
    }
    fake_metal_count.libraries_taken++;
    return [FakeLibrary new];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)e {
    const bool too_new = fake_metal_is.refuses_language_4 && [(id)options version] > MTLLanguageVersion3_1;
    fake_metal_count.libraries_compiled++;
    if (!fails("newLibraryWithSource") && !too_new && [source UTF8String][0]) return [FakeLibrary new];
    fake_error(e, 3, "program_source:1:1: error: no such luck");
    return nil;
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)d error:(NSError **)e {
    NSURL *url = [(id)d url];
    FakeArchive *a = fails("newBinaryArchiveWithDescriptor") ? nil : [FakeArchive new];
    if (a && url && ![a readFrom:fake_path(url)]) {
        [a release];
        a = nil;
    }
    if (!a) fake_error(e, 1, "no archive");
    return a;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)d
                                                             options:(MTLPipelineOption)options
                                                          reflection:(void *)reflection
                                                               error:(NSError **)e {
    (void)reflection;
    const simt_kernel *k = [(id)d kernel];
    FakeArchive *archive = fake_only([(id)d archives]);
    if (!k) broken("a pipeline without a function");
    const bool missing = options & MTLPipelineOptionFailOnBinaryArchiveMiss && ![archive has:k];
    if (!k || missing || fails("newComputePipelineStateWithDescriptor")) {
        fake_error(e, 1, missing ? "not in the archive" : "no pipeline");
        return nil;
    }
    const NSUInteger asked = [(id)d mostThreads], most = fake_metal_is.most_threads ? fake_metal_is.most_threads : SIMT_MAX_THREADS;
    FakePipeline *p = [FakePipeline new];
    p->kernel = k;
    p->most_threads = k->max_threads ? k->max_threads : asked && asked < most ? asked : most;
    return p;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return fake_metal_is.absent ? nil : [FakeDevice new]; }

/* test_fake_metal.m: the fake Metal runs what a host encodes, in Metal's order, and reports what a host does wrong.  The kernels are those of
 * test/faults.metal, with every access watched. */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_metal.h"
#include "simt.h"
#include "unit.h"

enum { N = 64 };

/* A host: what it makes once, and y = 4 x through z = 2 x by two dispatches. */
typedef struct host {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLFence> fence;
    id<MTLLibrary> library;
    id<MTLBinaryArchive> archive;
    id<MTLComputePipelineState> twice, number;
    id<MTLBuffer> x, z, y;
} host;

static id<MTLComputePipelineState> pipeline_of(host *h, const char *name, MTLPipelineOption option) {
    NSError *e = nil;
    id<MTLFunction> f = [h->library newFunctionWithName:[NSString stringWithUTF8String:name]];
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor alloc] init];
    [d setComputeFunction:f];
    if (h->archive) [d setBinaryArchives:[NSArray arrayWithObject:h->archive]];
    id<MTLComputePipelineState> p = [h->device newComputePipelineStateWithDescriptor:d options:option reflection:NULL error:&e];
    assert_true(p || [[e localizedDescription] UTF8String][0]);
    [d release];
    [f release];
    return p;
}

static MTLResourceOptions tracking = MTLResourceHazardTrackingModeUntracked;

static id<MTLBuffer> buffer_of(host *h, NSString *label) {
    id<MTLBuffer> b = [h->device newBufferWithLength:N * sizeof(float) options:MTLResourceStorageModeShared | tracking];
    [b setLabel:label];
    return b;
}

static bool open_host(host *h) {
    NSError *e = nil;
    *h = (host){.device = MTLCreateSystemDefaultDevice()};
    h->queue = [h->device newCommandQueue];
    h->fence = [h->device newFence];
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    h->library = [h->device newLibraryWithSource:@"kernels" options:options error:&e];
    [options release];
    if (h->library) h->twice = pipeline_of(h, "twice", MTLPipelineOptionNone);
    if (h->library) h->number = pipeline_of(h, "number", MTLPipelineOptionNone);
    h->x = buffer_of(h, @"x");
    h->z = buffer_of(h, @"z");
    h->y = buffer_of(h, @"y");
    if (!h->queue || !h->fence || !h->twice || !h->number || !h->x || !h->y || !h->z) return false;
    for (int i = 0; i < N; i++) {
        ((float *)[h->x contents])[i] = (float)i;
        assert_true(((float *)[h->y contents])[i] == 0); /* new buffers are */
    }
    return true;
}

static void close_host(host *h) {
    [h->x release];
    [h->y release];
    [h->z release];
    [h->twice release];
    [h->number release];
    [h->archive release];
    [h->library release];
    [h->fence release];
    [h->queue release];
    [h->device release];
}

static void nothing_is_left(void) {
    char names[512];
    if (fake_metal_living(names, sizeof names)) fail_msg("still alive: %s", names);
}

static void dispatch_twice(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> from, id<MTLBuffer> to) {
    [encoder setBuffer:from offset:0 atIndex:0];
    [encoder setBuffer:to offset:0 atIndex:1];
    [encoder dispatchThreadgroups:MTLSizeMake(N / 32, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
}

typedef struct mistakes {
    bool no_barrier, two_encoders, no_fence, overwrites;
} mistakes;

/* False: a call or the commands failed. */
static bool quadruple(host *h, const mistakes *m) {
    bool good = false;
    @autoreleasepool {
        id<MTLCommandBuffer> buffer = [h->queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        if (!m->no_fence) [encoder waitForFence:h->fence];
        [encoder setComputePipelineState:h->twice];
        dispatch_twice(encoder, h->x, h->z);
        if (m->two_encoders && encoder) {
            if (!m->no_fence) [encoder updateFence:h->fence];
            [encoder endEncoding];
            encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
            [encoder setComputePipelineState:h->twice];
            if (!m->no_fence) [encoder waitForFence:h->fence];
        } else if (!m->no_barrier) {
            [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        }
        dispatch_twice(encoder, h->z, h->y);
        if (!m->no_fence) [encoder updateFence:h->fence];
        [encoder endEncoding];
        if (encoder) {
            __block pthread_t caller = pthread_self();
            __block MTLCommandBufferStatus seen = 0;
            [buffer addCompletedHandler:^(id<MTLCommandBuffer> b) {
              caller = pthread_self();
              seen = [b status];
            }];
            [buffer commit];
            if (m->overwrites) ((float *)[h->x contents])[0] = 100;
            [buffer waitUntilCompleted];
            good = [buffer status] == MTLCommandBufferStatusCompleted;
            assert_true(good || [[[buffer error] localizedDescription] UTF8String][0]);
            assert_int_equal(seen, [buffer status]);
            assert_false(pthread_equal(caller, pthread_self()));
        }
    }
    return good;
}

static void test_commands_run_in_order(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++) {
        host h;
        fake_metal_is.runs_late = late;
        fake_metal_count = (fake_metal_counts){.dispatches = 0};
        @autoreleasepool {
            assert_true(open_host(&h));
            assert_true(quadruple(&h, &(mistakes){.no_barrier = false}));
            for (int i = 0; i < N; i++) assert_true(((float *)[h.y contents])[i] == (float)(4 * i));
            assert_true(quadruple(&h, &(mistakes){.two_encoders = true}));
            close_host(&h);
        }
        assert_null(fake_metal_broken());
        assert_int_equal(fake_metal_count.command_buffers, 2);
        assert_int_equal(fake_metal_count.encoders, 3);
        assert_int_equal(fake_metal_count.dispatches, 4);
        assert_int_equal(fake_metal_count.barriers, 1);
        nothing_is_left();
    }
    fake_metal_is.runs_late = false;
}

static void expect_broken(const char *rule) {
    const char *broken = fake_metal_broken();
    if (!broken || !strstr(broken, rule)) fail_msg("\"%s\" was expected, but it says: %s", rule, broken ? broken : "nothing");
}

/* Planted faults: dispatches that depend on each other in one stage, by a missing barrier or a missing fence. */
static void test_missing_stage_barrier(void **state) {
    (void)state;
    host h;
    @autoreleasepool {
        assert_true(open_host(&h));
        assert_false(quadruple(&h, &(mistakes){.no_barrier = true}));
        expect_broken("kernel twice: data race between dispatches of one stage: byte 0 of z is read by it and written by kernel twice");
        assert_false(quadruple(&h, &(mistakes){.two_encoders = true, .no_fence = true}));
        expect_broken("data race between dispatches of one stage: byte 0 of z"); /* with the first or the second command buffer */
        close_host(&h);
        tracking = 0; /* Metal then orders encoders by itself */
        assert_true(open_host(&h));
        assert_true(quadruple(&h, &(mistakes){.two_encoders = true, .no_fence = true}));
        tracking = MTLResourceHazardTrackingModeUntracked;
        close_host(&h);
    }
    assert_null(fake_metal_broken());
    nothing_is_left();
}

/* Commands that run late read what the host has overwritten meanwhile. */
static void test_overwritten_too_early(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++) {
        host h;
        fake_metal_is.runs_late = late;
        @autoreleasepool {
            assert_true(open_host(&h));
            assert_true(quadruple(&h, &(mistakes){.overwrites = true}));
            assert_true(((float *)[h.y contents])[0] == (late ? 400.0f : 0.0f));
            close_host(&h);
        }
    }
    fake_metal_is.runs_late = false;
    nothing_is_left();
}

/* A pointer in a structure: the encoder has to declare where it leads. */
enum { NOWHERE, BY_ENCODER, ADDED_TO_SET, BY_SET, WAYS };

/* What no encoder has declared, and no residency set with its addition committed, is out of reach. */
static void test_undeclared_memory(void **state) {
    (void)state;
    host h;
    NSError *e = nil;
    @autoreleasepool {
        assert_true(open_host(&h));
        struct {
            uint64_t values;
            uint32_t n;
        } place = {[h.y gpuAddress], N};
        memcpy([h.x contents], &place, sizeof place);
        MTLResidencySetDescriptor *d = [[MTLResidencySetDescriptor alloc] init];
        id<MTLResidencySet> set = [h.device newResidencySetWithDescriptor:d error:&e];
        [d release];
        [h.queue addResidencySet:set];
        for (int way = NOWHERE; way < WAYS; way++) {
            const bool declared = way == BY_ENCODER || way == BY_SET;
            if (way == ADDED_TO_SET) [set addAllocation:h.y];
            if (way == BY_SET) [set commit];
            memset([h.y contents], 0, N * sizeof(float));
            id<MTLCommandBuffer> buffer = [h.queue commandBufferWithUnretainedReferences];
            id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
            if (way == BY_ENCODER) [encoder useResources:(const id<MTLResource>[]){h.y} count:1 usage:MTLResourceUsageWrite];
            [encoder setComputePipelineState:h.number];
            [encoder setBuffer:h.x offset:0 atIndex:0];
            [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(N, 1, 1)];
            [encoder endEncoding];
            [buffer commit];
            [buffer waitUntilCompleted];
            if (declared) {
                assert_int_equal([buffer status], MTLCommandBufferStatusCompleted);
                assert_true(((float *)[h.y contents])[N - 1] == N - 1);
            } else {
                assert_int_equal([buffer status], MTLCommandBufferStatusError);
                assert_int_equal([[buffer error] code], MTLCommandBufferErrorPageFault);
                expect_broken("kernel number: writes 4 bytes outside all buffers at faults.metal:");
            }
        }
        [set removeAllocation:h.y];
        [set commit];
        [set release];
        close_host(&h);
    }
    assert_null(fake_metal_broken());
    nothing_is_left();
}

static void test_rules_of_encoding(void **state) {
    (void)state;
    host h;
    @autoreleasepool {
        assert_true(open_host(&h));
        id<MTLCommandBuffer> buffer = [h.queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        dispatch_twice(encoder, h.x, h.y);
        expect_broken("a dispatch without a pipeline");
        [encoder setBufferOffset:N * sizeof(float) atIndex:0];
        expect_broken("offset 256 of a buffer of 256 bytes");
        [encoder setBufferOffset:0 atIndex:5];
        expect_broken("nothing is bound to index 5");
        [encoder setThreadgroupMemoryLength:40 atIndex:0];
        expect_broken("setThreadgroupMemoryLength: 40 atIndex: 0");
        [encoder endEncoding];
        [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        expect_broken("a command is encoded after endEncoding");
        [buffer commit];
        [buffer commit];
        expect_broken("a command buffer was committed twice");
        [buffer waitUntilCompleted];
        fake_metal_is.largest_buffer_bytes = 100;
        [buffer_of(&h, @"too large") release];
        expect_broken("newBufferWithLength: 256, more than maxBufferLength");
        fake_metal_is.largest_buffer_bytes = 0;
        close_host(&h);
    }
    assert_null(fake_metal_broken());
    nothing_is_left();
}

/* Whichever call fails: an error that the host sees, and nothing left behind. */
static void test_every_failure(void **state) {
    (void)state;
    uint64_t failures = 0;
    for (uint64_t at = 1;; at++) {
        host h;
        bool good;
        fake_metal_fail(at);
        @autoreleasepool {
            good = open_host(&h) && quadruple(&h, &(mistakes){.no_barrier = false});
            close_host(&h);
        }
        nothing_is_left();
        if (!fake_metal_failed()) {
            assert_true(good);
            break;
        }
        assert_false(good);
        failures++;
    }
    assert_int_equal(failures, fake_metal_fail(0));
    assert_true(failures >= 10);
    assert_null(fake_metal_broken());
}

static void test_leaks_are_counted(void **state) {
    (void)state;
    char names[64];
    @autoreleasepool {
        id<MTLDevice> device = MTLCreateSystemDefaultDevice();
        [[device name] release]; /* a constant string has no count */
        [device retain];
        [device release];
        assert_int_equal(fake_metal_living(names, sizeof names), 2); /* and the pool */
        [device release];
    }
    nothing_is_left();
}

static void test_archives(void **state) {
    (void)state;
    char path[] = "/tmp/calla-archive-XXXXXX";
    close(mkstemp(path));
    @autoreleasepool {
        NSError *e = nil;
        NSURL *url = [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]];
        host h;
        assert_true(open_host(&h));
        MTLBinaryArchiveDescriptor *d = [[MTLBinaryArchiveDescriptor alloc] init];
        [d setUrl:url];
        assert_null([h.device newBinaryArchiveWithDescriptor:d error:&e]); /* an empty file is none */
        [d setUrl:nil];
        h.archive = [h.device newBinaryArchiveWithDescriptor:d error:&e];
        assert_null(pipeline_of(&h, "twice", MTLPipelineOptionFailOnBinaryArchiveMiss));
        id<MTLFunction> f = [h.library newFunctionWithName:@"twice"];
        MTLComputePipelineDescriptor *p = [[MTLComputePipelineDescriptor alloc] init];
        [p setComputeFunction:f];
        assert_true([h.archive addComputePipelineFunctionsWithDescriptor:p error:&e]);
        assert_true([h.archive serializeToURL:url error:&e]);
        [h.archive release];
        [d setUrl:url];
        h.archive = [h.device newBinaryArchiveWithDescriptor:d error:&e];
        [h.twice release];
        h.twice = pipeline_of(&h, "twice", MTLPipelineOptionFailOnBinaryArchiveMiss);
        assert_non_null(h.twice);
        assert_null(pipeline_of(&h, "number", MTLPipelineOptionFailOnBinaryArchiveMiss));
        [p release];
        [f release];
        [d release];
        close_host(&h);
    }
    unlink(path);
    nothing_is_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_run_in_order), cmocka_unit_test(test_missing_stage_barrier),
        cmocka_unit_test(test_overwritten_too_early), cmocka_unit_test(test_undeclared_memory),
        cmocka_unit_test(test_rules_of_encoding),     cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_leaks_are_counted),     cmocka_unit_test(test_archives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

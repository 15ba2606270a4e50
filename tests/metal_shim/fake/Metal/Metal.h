/* Metal.h: the part of Metal that the host uses, with Metal's own names and numbers.  What is not here, the host may not use. */
#ifndef CALLA_FAKE_METAL_METAL_H
#define CALLA_FAKE_METAL_METAL_H

#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>

typedef struct MTLSize {
    NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) { return (MTLSize){width, height, depth}; }

typedef NSInteger MTLGPUFamily;
enum { MTLGPUFamilyApple7 = 1007 };
typedef NSUInteger MTLResourceOptions;
enum { MTLResourceStorageModeShared = 0, MTLResourceHazardTrackingModeUntracked = 1 << 8 };
typedef NSUInteger MTLResourceUsage;
enum { MTLResourceUsageRead = 1, MTLResourceUsageWrite = 2 };
typedef NSUInteger MTLDispatchType;
enum { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent };
typedef NSUInteger MTLBarrierScope;
enum { MTLBarrierScopeBuffers = 1 };
typedef NSUInteger MTLPipelineOption;
enum { MTLPipelineOptionNone = 0, MTLPipelineOptionFailOnBinaryArchiveMiss = 4 };
typedef NSUInteger MTLLanguageVersion;
enum { MTLLanguageVersion3_1 = (3 << 16) + 1 };
typedef NSUInteger MTLCommandBufferStatus;
enum {
    MTLCommandBufferStatusNotEnqueued,
    MTLCommandBufferStatusEnqueued,
    MTLCommandBufferStatusCommitted,
    MTLCommandBufferStatusScheduled,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusError
};
enum {
    MTLCommandBufferErrorTimeout = 2,
    MTLCommandBufferErrorPageFault = 3,
    MTLCommandBufferErrorNotPermitted = 7,
    MTLCommandBufferErrorOutOfMemory = 8
};

#define __MAC_OS_X_VERSION_MAX_ALLOWED 150000 /* of whose headers this is a part */

@protocol MTLAllocation <NSObject>
@end
@protocol MTLResource <MTLAllocation>
- (void)setLabel:(NSString *)label;
@end
@protocol MTLBuffer <MTLResource>
- (void *)contents;
- (NSUInteger)length;
- (uint64_t)gpuAddress;
@end
@protocol MTLFence <NSObject>
@end
@protocol MTLFunction <NSObject>
- (NSString *)name;
@end
@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString *)name;
@end
@protocol MTLComputePipelineState <NSObject>
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
@end

@interface MTLResidencySetDescriptor : NSObject
@end
@protocol MTLResidencySet <NSObject>
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
@end

@interface MTLCompileOptions : NSObject {
    MTLLanguageVersion version;
}
- (void)setFastMathEnabled:(BOOL)on;
- (void)setLanguageVersion:(MTLLanguageVersion)version;
@end
@interface MTLBinaryArchiveDescriptor : NSObject {
    NSURL *url;
}
- (void)setUrl:(NSURL *)u;
@end
@interface MTLComputePipelineDescriptor : NSObject {
    id<MTLFunction> function;
    NSArray *archives;
    NSUInteger most_threads;
}
- (void)setComputeFunction:(id<MTLFunction>)f;
- (void)setLabel:(NSString *)label;
- (void)setBinaryArchives:(NSArray *)a;
- (void)setMaxTotalThreadsPerThreadgroup:(NSUInteger)n;
- (void)setThreadGroupSizeIsMultipleOfThreadExecutionWidth:(BOOL)is;
@end
@protocol MTLBinaryArchive <NSObject>
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)d error:(NSError **)e;
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)e;
@end

@protocol MTLComputeCommandEncoder <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)bytes atIndex:(NSUInteger)index;
- (void)useResources:(const id<MTLResource> *)resources count:(NSUInteger)count usage:(MTLResourceUsage)usage;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)waitForFence:(id<MTLFence>)fence;
- (void)updateFence:(id<MTLFence>)fence;
- (void)endEncoding;
@end
@protocol MTLCommandBuffer;
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);
@protocol MTLCommandBuffer <NSObject>
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler;
- (void)commit;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
@end
@protocol MTLCommandQueue <NSObject>
- (void)addResidencySet:(id<MTLResidencySet>)set;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
@end
@protocol MTLDevice <NSObject>
- (NSString *)name;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (BOOL)hasUnifiedMemory;
- (uint64_t)recommendedMaxWorkingSetSize;
- (NSUInteger)maxBufferLength;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLFence>)newFence;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)bytes options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)bytes
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator;
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)d error:(NSError **)e;
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError **)e;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)e;
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor *)d error:(NSError **)e;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)d
                                                             options:(MTLPipelineOption)options
                                                          reflection:(void *)reflection
                                                               error:(NSError **)e;
@end

extern id<MTLDevice> MTLCreateSystemDefaultDevice(void);

#endif

/* Foundation.h: the few classes of Foundation that the Metal host uses, on GNU's runtime that comes with gcc.  Manual reference counts.
 * What is not here, the host may not use. */
#ifndef CALLA_FAKE_FOUNDATION_H
#define CALLA_FAKE_FOUNDATION_H

#include <objc/objc.h>
#include <objc/runtime.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef double CFTimeInterval;

@class NSString;

@protocol NSObject
- (id)retain;
- (oneway void)release;
- (id)autorelease;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
    Class isa;
}
+ (id)alloc;
+ (id)new;
+ (Class)class;
- (id)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
    id *objects;
    size_t n, room;
    NSAutoreleasePool *outer;
}
- (void)addObject:(id)object;
- (void)drain;
@end

@interface NSString : NSObject { /* the layout of constant strings */
    char *text;
    unsigned length;
}
+ (NSString *)stringWithUTF8String:(const char *)s;
- (const char *)UTF8String;
@end

@interface NSConstantString : NSString
@end

@interface NSError : NSObject {
    NSInteger code;
    NSString *description;
}
- (NSInteger)code;
- (NSString *)localizedDescription;
@end

@interface NSURL : NSObject {
    NSString *path;
}
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end

@interface NSArray : NSObject {
    id object;
}
+ (NSArray *)arrayWithObject:(id)object;
@end

#endif

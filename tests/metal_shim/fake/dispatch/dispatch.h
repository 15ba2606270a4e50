/* dispatch.h: bytes as an object, as the Metal host hands them over. */
#ifndef CALLA_FAKE_DISPATCH_H
#define CALLA_FAKE_DISPATCH_H

#import <Foundation/Foundation.h>

typedef NSObject *dispatch_data_t;
typedef NSObject *dispatch_queue_t;
typedef void (^dispatch_block_t)(void);
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0) /* the bytes are copied */

extern dispatch_data_t dispatch_data_create(const void *bytes, size_t n, dispatch_queue_t queue, dispatch_block_t destructor);
static inline void dispatch_release(NSObject *object) { [object release]; }

#endif

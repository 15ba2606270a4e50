/* foundation.h: what foundation.m offers to metal.m beyond Foundation's own interface. */
#ifndef CALLA_FAKE_FOUNDATION_INSIDE_H
#define CALLA_FAKE_FOUNDATION_INSIDE_H

#import <Foundation/Foundation.h>

/* Puts an autoreleased error in *e, if the caller wants one. */
void fake_error(NSError **e, NSInteger code, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *fake_path(NSURL *url);
id fake_only(NSArray *array); /* its one object; nil of nil */

#endif

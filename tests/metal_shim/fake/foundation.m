/* foundation.m: see Foundation.h.  An object's reference count stands behind its variables, so that constant strings, which the compiler
 * lays out, need none.  All living objects are in a list: tests ask which are left. */
#include "foundation.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_metal.h"

typedef struct header {
    long count;
    id object;
    struct header *next, *previous;
} header;

/* libobjc keeps its tables to the end; objects come from another function of it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:objc_malloc\n"; }

static header living = {.next = &living, .previous = &living};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local NSAutoreleasePool *innermost;

static header *header_of(id o) {
    return (header *)(void *)((char *)o + ((class_getInstanceSize(object_getClass(o)) + sizeof(void *) - 1) & ~(sizeof(void *) - 1)));
}

@implementation NSObject
+ (id)alloc {
    id o = class_createInstance(self, sizeof(header) + sizeof(void *));
    header *h = header_of(o);
    pthread_mutex_lock(&lock);
    *h = (header){.count = 1, .object = o, .next = living.next, .previous = &living};
    h->next->previous = h->previous->next = h;
    pthread_mutex_unlock(&lock);
    return o;
}
+ (id)new {
    return [[self alloc] init];
}
+ (Class)class {
    return self;
}
- (id)init {
    return self;
}
- (id)retain {
    __atomic_add_fetch(&header_of(self)->count, 1, __ATOMIC_RELAXED);
    return self;
}
- (oneway void)release {
    const long left = __atomic_sub_fetch(&header_of(self)->count, 1, __ATOMIC_ACQ_REL);
    if (left == 0) [self dealloc];
    if (left < 0) {
        fprintf(stderr, "fake Metal: a %s was released too often\n", class_getName(object_getClass(self)));
        abort();
    }
}
- (id)autorelease {
    if (!innermost) {
        fprintf(stderr, "fake Metal: a %s was autoreleased outside any pool\n", class_getName(object_getClass(self)));
        abort();
    }
    [innermost addObject:self];
    return self;
}
- (void)dealloc {
    header *h = header_of(self);
    pthread_mutex_lock(&lock);
    h->next->previous = h->previous;
    h->previous->next = h->next;
    pthread_mutex_unlock(&lock);
    object_dispose(self);
}
@end

long fake_metal_living(char *names, size_t bytes) {
    long n = 0;
    size_t at = 0;
    if (bytes) names[0] = '\0';
    pthread_mutex_lock(&lock);
    for (const header *h = living.next; h != &living; h = h->next, n++)
        if (at < bytes) at += (size_t)snprintf(names + at, bytes - at, "%s%s", n ? ", " : "", class_getName(object_getClass(h->object)));
    pthread_mutex_unlock(&lock);
    return n;
}

@implementation NSAutoreleasePool
- (id)init {
    outer = innermost;
    innermost = self;
    return self;
}
- (void)addObject:(id)o {
    if (n == room) {
        room = room ? 2 * room : 16;
        objects = realloc(objects, room * sizeof *objects);
        if (!objects) abort();
    }
    objects[n++] = o;
}
- (void)drain {
    while (n) [objects[--n] release];
    free(objects);
    innermost = outer;
    [super release];
}
- (oneway void)release {
    [self drain];
}
@end

@implementation NSString
+ (NSString *)stringWithUTF8String:(const char *)s {
    NSString *r = [[self new] autorelease];
    r->text = strdup(s);
    r->length = (unsigned)strlen(s);
    return r;
}
- (const char *)UTF8String {
    return text;
}
- (void)dealloc {
    free(text);
    [super dealloc];
}
@end

@implementation NSConstantString
- (id)retain {
    return self;
}
- (oneway void)release {
}
- (id)autorelease {
    return self;
}
@end

@implementation NSError
- (id)initWithCode:(NSInteger)c text:(const char *)s {
    code = c;
    description = [[NSString stringWithUTF8String:s] retain];
    return self;
}
- (NSInteger)code {
    return code;
}
- (NSString *)localizedDescription {
    return description;
}
- (void)dealloc {
    [description release];
    [super dealloc];
}
@end

void fake_error(NSError **e, NSInteger code, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (e) *e = [[[NSError alloc] initWithCode:code text:text] autorelease];
}

@implementation NSURL
+ (NSURL *)fileURLWithPath:(NSString *)path {
    NSURL *u = [[self new] autorelease];
    u->path = [path retain];
    return u;
}
- (NSString *)path {
    return path;
}
- (void)dealloc {
    [path release];
    [super dealloc];
}
@end

const char *fake_path(NSURL *url) { return [[(id)url path] UTF8String]; }

@implementation NSArray
+ (NSArray *)arrayWithObject:(id)object {
    NSArray *a = [[self new] autorelease];
    a->object = [object retain];
    return a;
}
- (id)object {
    return object;
}
- (void)dealloc {
    [object release];
    [super dealloc];
}
@end

id fake_only(NSArray *array) { return [(id)array object]; }

/* entropy.c: see entropy.h. */
#include "server/entropy.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"

uint64_t entropy_u64(void) {
    uint64_t v;
    /* Fails only where the system call is forbidden; ids and seeds are no secrets, so the clock will do then. */
    if (getentropy(&v, sizeof v)) v = random_mix(clock_now_ns() ^ (uint64_t)(uintptr_t)&v ^ (uint64_t)getpid() << 32);
    return v;
}

void entropy_id(const char *prefix, size_t n, char *out) {
    char digits[33];
    snprintf(digits, sizeof digits, "%016llx%016llx", (unsigned long long)entropy_u64(), (unsigned long long)entropy_u64());
    const size_t n_prefix = strlen(prefix);
    memcpy(out, prefix, n_prefix);
    memcpy(out + n_prefix, digits, n);
    out[n_prefix + n] = 0;
}

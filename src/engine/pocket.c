/* pocket.c: where the embedded pocket model lies: told by CALLA_POCKET, beside the installed program, where it was to be installed, or
 * in the source tree that built it. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/error.h"

/* Path of the running program into path [size]; false if the system does not tell. */
static bool program_path(char *path, size_t size) {
#ifdef __APPLE__
    uint32_t n = (uint32_t)size;
    return _NSGetExecutablePath(path, &n) == 0;
#else
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n < 0) return false;
    path[n] = 0;
    return true;
#endif
}

static bool holds_model(const char *dir) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

/* PREFIX/bin/calla → PREFIX/share/calla/models/pocket. */
static bool beside_program(char *dir, size_t size) {
    char program[PATH_MAX];
    if (!program_path(program, sizeof program)) return false;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(program, '/');
        if (!slash) return false;
        *slash = 0;
    }
    int n = snprintf(dir, size, "%s/share/calla/models/pocket", program);
    return n > 0 && (size_t)n < size;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char found[PATH_MAX]; /* under the lock until it is set; never changed after */

static calla_status find(calla_error *err) {
    const char *told = getenv("CALLA_POCKET");
    char beside[PATH_MAX];
    if (told && *told) {
        if (!holds_model(told))
            return error_set(err, CALLA_E_IO, "CALLA_POCKET is %s, which holds no config.json: correct it or unset it", told);
        snprintf(found, sizeof found, "%s", told);
        return CALLA_OK;
    }
    bool has_beside = beside_program(beside, sizeof beside);
    const char *const places[] = {has_beside ? beside : CALLA_DATADIR, CALLA_DATADIR, CALLA_SOURCE_POCKET};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!holds_model(places[i])) continue;
        snprintf(found, sizeof found, "%s", places[i]);
        return CALLA_OK;
    }
    return error_set(err, CALLA_E_IO,
                     "the pocket model was not found; tried %s, %s and %s: name a model folder, or set CALLA_POCKET to pocket's", places[0],
                     places[1], places[2]);
}

const char *calla_pocket_dir(calla_error *err) {
    pthread_mutex_lock(&lock);
    calla_status status = found[0] ? CALLA_OK : find(err);
    pthread_mutex_unlock(&lock);
    return status ? NULL : found;
}

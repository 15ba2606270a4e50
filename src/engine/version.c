/* version.c: what build this is. */
#include <pthread.h>
#include <string.h>

#include "backend/backend.h"
#include "commit.h"

const char *calla_version(void) { return CALLA_VERSION; }

const char *calla_commit(void) { return CALLA_COMMIT; }

static char names[256];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void join_names(void) {
    for (size_t i = 0; backend_list[i]; i++) {
        size_t used = strlen(names), need = strlen(backend_list[i]->name) + (i > 0);
        if (used + need >= sizeof names) return;
        if (i > 0) names[used++] = ',';
        memcpy(names + used, backend_list[i]->name, strlen(backend_list[i]->name) + 1);
    }
}

const calla_optimization *calla_device_optimizations(const char *device) {
    static const calla_optimization none = {0};
    const backend_vtable *vt = backend_find(device);
    return !vt ? NULL : vt->optimizations ? vt->optimizations : &none;
}

const char *calla_backends(void) {
    pthread_once(&names_once, join_names);
    return names;
}

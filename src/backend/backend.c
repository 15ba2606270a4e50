/* backend.c: the list of compiled backends.  The only file that names them all. */
#include "backend/backend.h"

#include <string.h>

#include "backend/vtables.h"

const backend_vtable *const backend_list[] = {&cpu_vtable,
#ifdef CALLA_CUDA
                                              &cuda_vtable, /* after cpu, since a build with it also runs on machines without a card */
#endif
#ifdef CALLA_METAL
                                              &metal_vtable, /* after cpu until it has run on Apple hardware */
#endif
                                              &ref_vtable, NULL};

const backend_vtable *backend_find(const char *name) {
    if (!name) return backend_list[0];
    for (size_t i = 0; backend_list[i]; i++)
        if (!strcmp(backend_list[i]->name, name)) return backend_list[i];
    return NULL;
}

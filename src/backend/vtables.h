/* vtables.h: the tables of the backends, for backend.c; each backend's own header keeps its struct to itself. */
#ifndef CALLA_BACKEND_VTABLES_H
#define CALLA_BACKEND_VTABLES_H

#include "backend/backend.h"

extern const backend_vtable cpu_vtable, ref_vtable;
extern const backend_vtable cuda_vtable;  /* where nvcc was found: CALLA_CUDA */
extern const backend_vtable metal_vtable; /* on macOS, and in tests: CALLA_METAL */

#endif

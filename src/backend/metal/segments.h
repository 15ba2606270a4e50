/* segments.h: for kernels that cut segments into parts of a fixed number of rows: which part a threadgroup has.  Metal's language. */
#ifndef CALLA_BACKEND_METAL_SEGMENTS_H
#define CALLA_BACKEND_METAL_SEGMENTS_H

#include "backend/metal/args.h"

struct segment_part {
    uint segment;
    uint number; /* of the part in its segment */
    uint parts;  /* of that segment */
};

/* Part `index` of all segments with first ≤ rows < beyond, each cut into parts of `size` rows: false where there are fewer. */
static inline bool find_part(constant metal_step &t, uint first, uint beyond, uint size, uint index, thread segment_part &part) {
    for (uint s = 0; s < t.segments; s++) {
        const uint rows = t.segment[s].rows, parts = (rows + size - 1) / size;
        if (rows < first || rows >= beyond) continue;
        if (index < parts) {
            part.segment = s;
            part.number = index;
            part.parts = parts;
            return true;
        }
        index -= parts;
    }
    return false;
}

/* Which rows of an 8 × 8 matrix a lane's two elements are in, asked of the device, which does not promise a layout.
 * shared: 64 floats of this simdgroup; to be written anew after a barrier of the simdgroup. */
static inline uint2 element_rows(threadgroup float *shared, uint lane) {
    shared[lane * 2] = float(lane / 4);
    shared[lane * 2 + 1] = float(lane / 4);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 numbers;
    simdgroup_load(numbers, shared, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    return uint2(uint(numbers.thread_elements()[0]), uint(numbers.thread_elements()[1]));
}

#endif

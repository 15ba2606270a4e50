/* sample.h: the reference sampler.  See sample_request in backend/backend.h for what it computes. */
#ifndef CALLA_BACKEND_REF_SAMPLE_H
#define CALLA_BACKEND_REF_SAMPLE_H

#include "backend/backend.h"

/* Bytes of scratch for logits of `rows` vocabulary rows. */
uint64_t ref_sample_scratch_bytes(uint32_t rows);
/* logits [rows]; scratch aligned to 8. */
void ref_sample(const float *logits, uint32_t rows, const sample_request *request, void *scratch, sample_result *out);

#endif

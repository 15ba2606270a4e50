/* check.c: see check.h.
 *
 * Works on the table of tensors: every bound tensor that is BF16 or F32 holds plain numbers (codes are U32, and any code is fine).
 * A number is finite unless all bits of its exponent are set. */
#include "weights/check.h"

#include <string.h>

#include "base/float.h"
#include "weights/checkpoint.h"

/* Of a large tensor the first and the last numbers: neighbours in the file share pages, so a cold disk has little to seek. */
enum { SAMPLE_NUMBERS = 128 };

static uint32_t number_bytes(const tensor *t) {
    if (!t->bound) return 0;
    return !strcmp(t->info->dtype, "BF16") ? 2 : !strcmp(t->info->dtype, "F32") ? 4 : 0;
}

/* Index of the first number in data [n] that is not finite, or n. */
static uint64_t find_bf16(const uint8_t *data, uint64_t n) {
    for (uint64_t i = 0; i < n;) { /* blocks without branches, so that the compiler can use vectors */
        const uint64_t block = n - i < 256 ? n - i : 256;
        uint32_t bad = 0;
        for (uint64_t j = 0; j < block; j++) bad |= (load_u16(data + 2 * (i + j)) & 0x7F80u) == 0x7F80u;
        if (bad) {
            while ((load_u16(data + 2 * i) & 0x7F80u) != 0x7F80u) i++;
            return i;
        }
        i += block;
    }
    return n;
}

static uint64_t find_f32(const uint8_t *data, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if ((load_u32(data + 4 * i) & 0x7F800000u) == 0x7F800000u) return i;
    }
    return n;
}

static calla_status check_range(const tensor *t, uint32_t size, uint64_t first, uint64_t n, calla_error *err) {
    const uint8_t *data = tensor_data(t) + first * size;
    const uint64_t at = size == 2 ? find_bf16(data, n) : find_f32(data, n);
    if (at == n) return CALLA_OK;
    const unsigned long long number = first + at;
    const float value = size == 2 ? load_bf16(data + at * 2) : load_f32(data + at * 4);
    return error_set(err, CALLA_E_FORMAT, "%s: tensor %s: number %llu is %s: the file is damaged or was converted wrongly", t->file->path,
                     t->info->name, number, value != value ? "NaN" : "infinite");
}

static calla_status check_tensor(const tensor *t, uint32_t size, bool all, calla_error *err) {
    const uint64_t n = t->info->bytes / size;
    if (all || t->info->bytes <= WEIGHTS_CHECK_SMALL) return check_range(t, size, 0, n, err);
    calla_status status = check_range(t, size, 0, SAMPLE_NUMBERS, err);
    return status ? status : check_range(t, size, n - SAMPLE_NUMBERS, SAMPLE_NUMBERS, err);
}

calla_status check_numbers(const weights *w, bool all, calla_error *err) {
    for (size_t i = 0; i < w->files->n; i++) {
        const tensor *t = &w->files->tensors[i];
        const uint32_t size = number_bytes(t);
        calla_status status = size ? check_tensor(t, size, all, err) : CALLA_OK;
        if (status) return status;
    }
    return CALLA_OK;
}

uint64_t check_bytes(const weights *w) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->files->n; i++) bytes += number_bytes(&w->files->tensors[i]) ? w->files->tensors[i].info->bytes : 0;
    return bytes;
}

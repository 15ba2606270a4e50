/* form_walk.c: see form_walk.h. */
#include "form_walk.h"

#include <string.h>

#include "base/random.h"

uint64_t walk_roll(uint64_t *dice, uint64_t n) { return random_mix(*dice += 0x9E3779B97F4A7C15u) % n; }

/* The first token of the mask behind a random one that begins with `with`. */
static int32_t find(const calla_text *text, const uint32_t *mask, uint64_t *dice, const char *with) {
    const uint32_t n_ids = calla_text_vocabulary(text), first = (uint32_t)walk_roll(dice, n_ids);
    const size_t length = strlen(with);
    for (uint32_t k = 0; k < n_ids; k++) {
        const uint32_t id = first + k < n_ids ? first + k : first + k - n_ids;
        if (id % 32 == 0 && !mask[id / 32]) k += n_ids - id > 32 ? 31 : n_ids - id - 1; /* most masks are nearly empty */
        if (!(mask[id / 32] >> id % 32 & 1)) continue;
        size_t n;
        const char *bytes = tokenizer_bytes(text->tokenizer, (int32_t)id, &n);
        if (n >= length && memcmp(bytes, with, length) == 0) return (int32_t)id;
    }
    return -1;
}

int32_t walk_choose(const calla_text *text, const uint32_t *mask, uint64_t *dice, bool hurry) {
    static const char *const closing[] = {"}", "]", "\"", "\n</", "</", ">", "\n", ",", ":", "0", "1", "a", "e"};
    const int32_t ends[] = {tokenizer_stop_id(text->tokenizer), tokenizer_find_added(text->tokenizer, "</tool_call>")};
    for (size_t i = 0; hurry && i < 2; i++)
        if (ends[i] >= 0 && mask[ends[i] / 32] >> ends[i] % 32 & 1) return ends[i];
    for (size_t tries = 0; hurry && tries < 12; tries++) {
        const int32_t id = find(text, mask, dice, closing[walk_roll(dice, sizeof closing / sizeof *closing)]);
        if (id >= 0) return id;
    }
    return find(text, mask, dice, "");
}

/* form.c: see form.h. */
#include "form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "form_walk.h"

static calla_text *pocket; /* one for all runs */

void form_require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

static void open_pocket(void) {
    const char *models = getenv("CALLA_MODELS");
    char *dir = path_join(models ? models : "models", "pocket");
    calla_error err;
    if (!dir || calla_text_open(dir, &pocket, &err)) abort();
    mem_free(dir);
}

bool form_input_read(const uint8_t *data, size_t n, form_input *out) {
    if (n == 0) return false;
    const uint8_t *nul = memchr(data + 1, 0, n - 1), *end = nul ? nul : data + n;
    *out = (form_input){.flags = data[0], .source = (const char *)data + 1, .n_source = (size_t)(end - data) - 1};
    if (nul) out->way = nul + 1;
    if (nul) out->n_way = (size_t)(data + n - out->way);
    return true;
}

static bool allows(const uint32_t *mask, int32_t id) { return !mask || mask[id / 32] >> id % 32 & 1; }

static void take(calla_matcher *m, int32_t id) { form_require(!calla_matcher_took(m, id), "a token that the mask allows is refused"); }

/* A token that the mask forbids, if a random one is. */
static void try_forbidden(calla_matcher *m, const uint32_t *mask, uint64_t *dice) {
    const int32_t id = (int32_t)walk_roll(dice, calla_text_vocabulary(pocket));
    if (!allows(mask, id)) form_require(calla_matcher_took(m, id) == CALLA_E_ARGUMENT, "a token that the mask forbids is taken");
}

/* Steps beyond the input's bytes hurry to the end. */
static bool walk(calla_matcher *m, const form_input *in, buffer *answer) {
    enum { STEPS = 64 };
    const int32_t stop = tokenizer_stop_id(pocket->tokenizer);
    uint64_t dice = 1;
    for (size_t i = 0; i < STEPS; i++) {
        dice = random_mix(dice ^ (i < in->n_way ? in->way[i] : 256));
        const uint32_t *mask = calla_matcher_mask(m);
        int32_t id = stop; /* of free text */
        if (mask) {
            try_forbidden(m, mask, &dice);
            mask = calla_matcher_mask(m);
            form_require(mask != NULL, "a refused token has changed the state");
            id = walk_choose(pocket, mask, &dice, i >= in->n_way || (in->way[i] & 1));
            form_require(id >= 0, "a mask allows nothing");
        }
        take(m, id);
        if (id == stop) {
            mask = calla_matcher_mask(m);
            form_require(mask && allows(mask, stop), "behind the stop token there is no stop token");
            return true;
        }
        size_t n = 0;
        const char *bytes = tokenizer_bytes(pocket->tokenizer, id, &n);
        form_require(bytes != NULL, "the mask allows what is no token");
        buffer_append(answer, bytes, n);
    }
    return false;
}

bool form_walk(const calla_form_options *options, bool thinking, const form_input *in, buffer *answer) {
    if (!pocket) open_pocket();
    calla_form *form = NULL;
    calla_error err = {0};
    const calla_status status = calla_form_compile(pocket, options, &form, &err);
    if (status) {
        form_require(!form && err.message[0], "refused without a message");
        form_require(utf8_valid(err.message, strlen(err.message)) == strlen(err.message), "the message is not UTF-8");
        return false;
    }
    calla_matcher *m;
    form_require(!calla_matcher_open(form, thinking, &m, &err), "no matcher");
    calla_form_release(form);
    if (thinking) take(m, tokenizer_find_added(pocket->tokenizer, "</think>"));
    const bool ended = walk(m, in, answer);
    calla_matcher_close(m);
    return ended;
}

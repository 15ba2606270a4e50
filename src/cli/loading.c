/* loading.c: see loading.h. */
#include "cli/loading.h"

#include "base/clock.h"
#include "cli/progress.h"

#define PATIENCE_NS UINT64_C(1000000000)

typedef struct loading {
    progress bar;
    uint64_t begun_ns;
    const calla_engine_options *options;
} loading;

static void show(void *user, uint64_t done, uint64_t total) {
    loading *l = user;
    if (l->options->progress) l->options->progress(l->options->progress_user, done, total);
    if (clock_now_ns() - l->begun_ns >= PATIENCE_NS) progress_show_bytes(&l->bar, "loading", done, total);
}

calla_status loading_open_engine(const calla_engine_options *options, calla_engine **out, calla_error *err) {
    loading l = {.begun_ns = clock_now_ns(), .options = options};
    calla_engine_options o = *options;
    progress_init(&l.bar);
    o.progress = show;
    o.progress_user = &l;
    calla_status status = calla_engine_open(&o, out, err);
    progress_clear(&l.bar);
    return status;
}

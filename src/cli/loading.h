/* loading.h: opening an engine with a bar on the terminal while its weights are brought in. */
#ifndef CALLA_CLI_LOADING_H
#define CALLA_CLI_LOADING_H

#include "calla.h"

/* As calla_engine_open.  The bar appears once opening has taken a second; options->progress is told as well. */
calla_status loading_open_engine(const calla_engine_options *options, calla_engine **out, calla_error *err);

#endif

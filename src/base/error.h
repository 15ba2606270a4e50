/* error.h: filling in a calla_error.  base/ owns nothing of what the messages say. */
#ifndef CALLA_BASE_ERROR_H
#define CALLA_BASE_ERROR_H

#include "calla.h"

/* Writes status and message (cut to fit, always NUL-terminated and valid UTF-8 if its parts were) and returns status, so that
 * `return error_set(err, CALLA_E_FORMAT, "%s: …", path);` works.  err may be NULL. */
__attribute__((format(printf, 3, 4))) calla_status error_set(calla_error *err, calla_status status, const char *format, ...);

/* CALLA_E_NOMEM, naming what was being allocated. */
calla_status error_nomem(calla_error *err, const char *what);

#endif

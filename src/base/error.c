/* error.c: see error.h; and the names of the public status codes. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *calla_status_name(calla_status status) {
    switch (status) {
    case CALLA_OK: return "ok";
    case CALLA_E_NOMEM: return "out of memory";
    case CALLA_E_IO: return "input/output error";
    case CALLA_E_FORMAT: return "malformed input";
    case CALLA_E_UNSUPPORTED: return "unsupported";
    case CALLA_E_ARGUMENT: return "wrong argument";
    case CALLA_E_LIMIT: return "limit exceeded";
    case CALLA_E_CANCELLED: return "cancelled";
    case CALLA_E_DEVICE: return "device failed";
    case CALLA_E_INTERNAL: return "internal error";
    }
    return "unknown status";
}

calla_status error_set(calla_error *err, calla_status status, const char *format, ...) {
    if (!err) return status;
    err->status = status;
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(err->message, sizeof err->message, format, ap);
    va_end(ap);
    if (n >= (int)sizeof err->message) { /* do not end in half a character */
        size_t end = sizeof err->message - 1, start = end;
        while (start > 0 && ((unsigned char)err->message[start - 1] & 0xC0) == 0x80) start--;
        if (start > 0 && (unsigned char)err->message[start - 1] >= 0xC0) start--;
        err->message[start] = 0;
    }
    return status;
}

calla_status error_nomem(calla_error *err, const char *what) {
    return error_set(err, CALLA_E_NOMEM, "out of memory while allocating %s", what);
}

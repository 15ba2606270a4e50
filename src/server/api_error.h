/* api_error.h: an error as a client of the OpenAI API sees it. */
#ifndef CALLA_SERVER_API_ERROR_H
#define CALLA_SERVER_API_ERROR_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct api_error {
    int status;       /* HTTP; 0: no error */
    const char *type; /* "invalid_request_error" …; a literal */
    const char *code; /* a literal, or NULL */
    char param[96];   /* the field at fault, or "" */
    char message[768];
    unsigned retry_after; /* seconds, for a Retry-After header; 0: none */
} api_error;

/* Fills in e and returns false, so that `return api_error_set(…)` reads well where true means success.  param may be NULL. */
__attribute__((format(printf, 5, 6))) bool api_error_set(api_error *e, int status, const char *code, const char *param, const char *format,
                                                         ...);
/* What the engine or the text side reported.  CALLA_E_ARGUMENT and CALLA_E_FORMAT are the client's fault. */
bool api_error_from(api_error *e, const calla_error *err, const char *param);

/* {"error":{"message":…,"type":…,"param":…,"code":…}} */
void api_error_write(const api_error *e, buffer *out);

const char *http_status_text(int status);

#endif

/* api_error.c: see api_error.h.  Owns the mapping of status codes to OpenAI's error types. */
#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

static const char *type_of(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bool api_error_set(api_error *e, int status, const char *code, const char *param, const char *format, ...) {
    *e = (api_error){.status = status, .type = type_of(status), .code = code};
    if (param) snprintf(e->param, sizeof e->param, "%s", param);
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    /* A client's text may have been cut in the middle of a character. */
    e->param[utf8_valid(e->param, strlen(e->param))] = 0;
    e->message[utf8_valid(e->message, strlen(e->message))] = 0;
    return false;
}

bool api_error_from(api_error *e, const calla_error *err, const char *param) {
    switch (err->status) {
    case CALLA_E_ARGUMENT:
    case CALLA_E_FORMAT:
    case CALLA_E_UNSUPPORTED: return api_error_set(e, 400, NULL, param, "%s", err->message);
    case CALLA_E_LIMIT:
        api_error_set(e, 429, "engine_busy", NULL, "%s", err->message);
        e->retry_after = 1;
        return false;
    case CALLA_E_NOMEM:
        api_error_set(e, 503, "out_of_memory", NULL, "%s", err->message);
        e->retry_after = 1;
        return false;
    case CALLA_E_CANCELLED: return api_error_set(e, 503, "cancelled", NULL, "%s", err->message);
    case CALLA_E_DEVICE: return api_error_set(e, 503, "device_failed", NULL, "%s", err->message);
    default: return api_error_set(e, 500, NULL, NULL, "%s", err->message[0] ? err->message : "the engine failed");
    }
}

void api_error_write(const api_error *e, buffer *out) {
    buffer_append_str(out, "{\"error\":{\"message\":");
    json_append_str(out, e->message);
    buffer_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0])
        json_append_str(out, e->param);
    else
        buffer_append_str(out, "null");
    if (e->code)
        buffer_printf(out, ",\"code\":\"%s\"}}", e->code);
    else
        buffer_append_str(out, ",\"code\":null}}");
}

const char *http_status_text(int status) {
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 421: return "Misdirected Request";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Error";
    }
}

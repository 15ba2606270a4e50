/* log.h: one line per event on stderr, with time and level.  Never prompt text.  Any thread. */
#ifndef CALLA_BASE_LOG_H
#define CALLA_BASE_LOG_H

typedef enum log_level { LOG_QUIET, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

void log_set_level(log_level level); /* lines above it are dropped; LOG_WARN at the start */
__attribute__((format(printf, 2, 3))) void log_line(log_level level, const char *format, ...);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif

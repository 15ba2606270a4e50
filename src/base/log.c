/* log.c: see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int threshold = LOG_WARN;

void log_set_level(log_level level) { atomic_store(&threshold, (int)level); }

void log_line(log_level level, const char *format, ...) {
    if ((int)level > atomic_load(&threshold)) return;
    static const char *const names[] = {"", "error", "warn", "info", "debug"};
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s ", now.tv_nsec / 1000000, names[level]);
    va_list ap;
    va_start(ap, format);
    int m = vsnprintf(line + n, sizeof line - n - 1, format, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m < sizeof line - n - 2 ? (size_t)m : sizeof line - n - 2;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = ' '; /* one event stays one line */
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n); /* one write: lines of threads do not mix; a full disk is not our failure */
    (void)written;
}

/* map.h: files mapped read-only, or read whole. */
#ifndef CALLA_BASE_MAP_H
#define CALLA_BASE_MAP_H

#include "base/error.h"

typedef struct file_map {
    const uint8_t *data; /* [n]; pages come from the file and are shared with the page cache */
    size_t n;
} file_map;

/* Maps a regular file.  An empty file gives n = 0. Errors name the path. */
calla_status file_map_open(const char *path, file_map *out, calla_error *err);
void file_map_close(file_map *map);

/* Reads a whole file of at most max bytes; *out is [*n] and a NUL, the caller's (mem_free). */
calla_status file_read(const char *path, size_t max, char **out, size_t *n, calla_error *err);

/* "dir/name" in a new string (mem_free), or NULL. */
char *path_join(const char *dir, const char *name);

#endif

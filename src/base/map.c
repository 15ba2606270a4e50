/* map.c: see map.h. */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

static calla_status open_regular(const char *path, int *fd, size_t *n, calla_error *err) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return error_set(err, CALLA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(*fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        return error_set(err, CALLA_E_IO, "%s: not a regular file", path);
    }
    if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX) {
        close(*fd);
        return error_set(err, CALLA_E_LIMIT, "%s: larger than the address space", path);
    }
    *n = (size_t)st.st_size;
    return CALLA_OK;
}

calla_status file_map_open(const char *path, file_map *out, calla_error *err) {
    int fd;
    *out = (file_map){0};
    calla_status status = open_regular(path, &fd, &out->n, err);
    if (status) return status;
    if (out->n) {
        void *p = mmap(NULL, out->n, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            status = error_set(err, CALLA_E_IO, "%s: cannot map %zu bytes: %s", path, out->n, strerror(errno));
        else
            out->data = p;
    }
    close(fd);
    return status;
}

void file_map_close(file_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->n);
    *map = (file_map){0};
}

calla_status file_read(const char *path, size_t max, char **out, size_t *n, calla_error *err) {
    int fd;
    size_t size = 0, done = 0;
    calla_status status = open_regular(path, &fd, &size, err);
    if (status) return status;
    char *p = NULL;
    if (size > max) {
        status = error_set(err, CALLA_E_LIMIT, "%s: %zu bytes; at most %zu are accepted", path, size, max);
    } else if (!(p = mem_alloc(size + 1))) {
        status = error_nomem(err, path);
    }
    while (!status && done < size) {
        ssize_t got = read(fd, p + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            status = error_set(err, CALLA_E_IO, "%s: read failed: %s", path, got ? strerror(errno) : "file became shorter");
        else
            done += (size_t)got;
    }
    close(fd);
    if (status) {
        mem_free(p);
        return status;
    }
    p[size] = 0;
    *out = p;
    *n = size;
    return CALLA_OK;
}

char *path_join(const char *dir, const char *name) {
    size_t a = strlen(dir), b = strlen(name);
    while (a > 0 && dir[a - 1] == '/') a--;
    char *p = mem_alloc(a + b + 2);
    if (!p) return NULL;
    memcpy(p, dir, a);
    p[a] = '/';
    memcpy(p + a + 1, name, b + 1);
    return p;
}

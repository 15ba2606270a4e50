/* temp_dir.c: see temp_dir.h. */
#include "support/temp_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what, const char *path) {
    perror(path);
    fprintf(stderr, "cannot %s %s\n", what, path);
    abort();
}

static char *join(const char *dir, const char *name) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) abort();
    return path;
}

char *temp_dir_new(void) {
    const char *base = getenv("TMPDIR");
    char *path = join(base && *base ? base : "/tmp", "calla-test-XXXXXX");
    if (!mkdtemp(path)) die("create", path);
    return path;
}

void temp_dir_clear(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) die("open", dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *path = join(dir, e->d_name);
        if (unlink(path) < 0) die("remove", path);
        free(path);
    }
    closedir(d);
}

void temp_dir_remove(char *dir) {
    temp_dir_clear(dir);
    if (rmdir(dir) < 0) die("remove", dir);
    free(dir);
}

void write_file(const char *dir, const char *name, const void *data, size_t n) {
    char *path = join(dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f)) die("write", path);
    free(path);
}

char *slurp_file(const char *dir, const char *name, size_t *n) {
    char *path = join(dir, name);
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) die("read", path);
    const long size = ftell(f);
    char *data = size < 0 ? NULL : malloc((size_t)size + 1);
    if (!data || fseek(f, 0, SEEK_SET) || fread(data, 1, (size_t)size, f) != (size_t)size) die("read", path);
    fclose(f);
    data[size] = 0;
    if (n) *n = (size_t)size;
    free(path);
    return data;
}

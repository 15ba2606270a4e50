/* shift_checkpoint.c: see shift_checkpoint.h. */
#include "support/shift_checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/temp_dir.h"

static void copy_shifted(const char *from, const char *to, const char *name, unsigned residue) {
    size_t n;
    char *data = slurp_file(from, name, &n);
    uint64_t length;
    if (n < 8) abort();
    memcpy(&length, data, 8);
    if (length > n - 8) abort();
    const uint64_t spaces = (residue + 16 - (8 + length) % 16) % 16, padded = length + spaces;
    char *out = malloc(n + spaces);
    if (!out) abort();
    memcpy(out, &padded, 8);
    memcpy(out + 8, data + 8, length);
    memset(out + 8 + length, ' ', spaces);
    memcpy(out + 8 + padded, data + 8 + length, n - 8 - length);
    write_file(to, name, out, n + spaces);
    free(out);
    free(data);
}

void shift_checkpoint(const char *from, const char *to, unsigned residue) {
    DIR *d = opendir(from);
    if (!d) {
        perror(from);
        abort();
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        const size_t n = strlen(e->d_name);
        if (n > 12 && !strcmp(e->d_name + n - 12, ".safetensors")) {
            copy_shifted(from, to, e->d_name, residue);
        } else {
            size_t size;
            char *data = slurp_file(from, e->d_name, &size);
            write_file(to, e->d_name, data, size);
            free(data);
        }
    }
    closedir(d);
}

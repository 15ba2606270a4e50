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

enum { ALIGN = 256 };

static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* The numbers of the tensor's data_offsets, and where they stand in the header. */
static char *offsets_of(char *at, uint64_t *begin, uint64_t *end, char **behind) {
    char *list = strstr(at, "\"data_offsets\":");
    if (!list) return NULL;
    list = strchr(list, '[') + 1;
    *begin = strtoull(list, behind, 10);
    *end = strtoull(strchr(*behind, ',') + 1, behind, 10);
    return list;
}

/* Gaps are tensors of the part of a model that is not used, since there may be no other bytes between tensors. */
static void copy_aligned(const char *from, const char *to, const char *name, unsigned unused) {
    enum { ENTRY = 160 /* more than the text of a gap */ };
    (void)unused;
    size_t n, at = 0;
    char *data = slurp_file(from, name, &n);
    uint64_t length, placed = 0, begin, end;
    if (n < 8) abort();
    memcpy(&length, data, 8);
    char *text = strndup(data + 8, length), *rest = text, *behind, *header = malloc(length * (1 + ENTRY / 20) + ALIGN),
         *tensors = calloc(1, n + length / 20 * ALIGN);
    if (!text || !header || !tensors) abort();
    for (char *list; (list = offsets_of(rest, &begin, &end, &behind)); rest = behind) {
        const uint64_t placed_end = placed + end - begin;
        memcpy(tensors + placed, data + 8 + length + begin, end - begin);
        memcpy(header + at, rest, (size_t)(list - rest));
        at += (size_t)(list - rest);
        at += (size_t)sprintf(header + at, "%llu,%llu", (unsigned long long)placed, (unsigned long long)placed_end);
        placed = aligned(placed_end);
        if (placed == placed_end) continue;
        at += (size_t)sprintf(header + at, "]},\"vision_tower.gap.%zu\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[%llu,%llu", at,
                              (unsigned)(placed - placed_end), (unsigned long long)placed_end, (unsigned long long)placed);
    }
    at += (size_t)sprintf(header + at, "%s", rest);
    for (; (8 + at) % ALIGN; at++) header[at] = ' ';
    char *out = malloc(8 + at + placed);
    if (!out) abort();
    const uint64_t header_bytes = at;
    memcpy(out, &header_bytes, 8);
    memcpy(out + 8, header, at);
    memcpy(out + 8 + at, tensors, placed);
    write_file(to, name, out, 8 + at + placed);
    free(out), free(tensors), free(header), free(text), free(data);
}

static void copy_checkpoint(const char *from, const char *to, void (*copy)(const char *, const char *, const char *, unsigned),
                            unsigned residue) {
    DIR *d = opendir(from);
    if (!d) {
        perror(from);
        abort();
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || (copy == copy_aligned && !strcmp(e->d_name, "model.safetensors.index.json"))) continue;
        const size_t n = strlen(e->d_name);
        if (n > 12 && !strcmp(e->d_name + n - 12, ".safetensors")) {
            copy(from, to, e->d_name, residue);
        } else {
            size_t size;
            char *data = slurp_file(from, e->d_name, &size);
            write_file(to, e->d_name, data, size);
            free(data);
        }
    }
    closedir(d);
}

void shift_checkpoint(const char *from, const char *to, unsigned residue) { copy_checkpoint(from, to, copy_shifted, residue); }

void align_checkpoint(const char *from, const char *to) { copy_checkpoint(from, to, copy_aligned, 0); }

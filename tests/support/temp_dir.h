/* temp_dir.h: a folder for one test's files.  Failures end the test. */
#ifndef CALLA_TESTS_TEMP_DIR_H
#define CALLA_TESTS_TEMP_DIR_H

#include <stddef.h>
#include <stdint.h>

char *temp_dir_new(void);        /* path of a fresh folder, the caller's (temp_dir_remove) */
void temp_dir_remove(char *dir); /* removes the files in it, the folder, and frees the path; it must hold no folders */
void temp_dir_clear(const char *dir);

void write_file(const char *dir, const char *name, const void *data, size_t n);
/* A whole file, n bytes and a NUL (free); *n may be NULL. */
char *slurp_file(const char *dir, const char *name, size_t *n);

#endif

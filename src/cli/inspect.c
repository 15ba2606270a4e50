/* inspect.c: calla inspect: what calla_inspect says, as JSON or as a table.  The table is laid out from the JSON's own form, so that a
 * figure added there appears here: objects are blocks of "name  value", arrays of objects are tables, names with "bytes" are
 * printed with a unit. */
#include <string.h>

#include "cli/cli.h"

enum { MAX_COLUMNS = 12, CELL = 256 };

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* file_bytes, bytes_per_token */
static bool names_bytes(const char *name) { return strncmp(name, "bytes", 5) == 0 || ends_with(name, "bytes"); }

/* Columns that a UTF-8 text takes. */
static int width_of(const char *s) {
    int n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* "1,234,567" */
static void group_digits(int64_t value, char out[CELL]) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), at = 0;
    for (int i = 0; i < n; i++) {
        out[at++] = digits[i];
        int left = n - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') out[at++] = ',';
    }
    out[at] = 0;
}

static void format_bytes(int64_t bytes, char out[CELL]) {
    static const char *const units[] = {"kB", "MB", "GB", "TB"};
    if (bytes < 1000) {
        snprintf(out, CELL, "%lld bytes", (long long)bytes);
        return;
    }
    double x = (double)bytes / 1000;
    int u = 0;
    while (x >= 999.95 && u < 3) x /= 1000, u++;
    snprintf(out, CELL, "%.*f %s", x < 10 ? 2 : 1, x, units[u]);
}

/* One value as text; arrays of scalars are joined. */
static void format_value(const char *name, json_object *v, char out[CELL]) {
    out[0] = 0;
    if (json_object_is_type(v, json_type_array)) {
        const char *joint = strcmp(name, "shape") == 0 ? " × " : ", ";
        size_t used = 0;
        for (size_t i = 0; i < json_object_array_length(v) && used < CELL - 1; i++) {
            json_object *item = json_object_array_get_idx(v, i);
            used += (size_t)snprintf(out + used, CELL - used, "%s%s", i ? joint : "", json_object_get_string(item));
        }
    } else if (json_object_is_type(v, json_type_int) && names_bytes(name)) {
        format_bytes(json_object_get_int64(v), out);
    } else if (json_object_is_type(v, json_type_int) && ends_with(name, "_id")) {
        snprintf(out, CELL, "%s", json_object_get_string(v));
    } else if (json_object_is_type(v, json_type_int)) {
        group_digits(json_object_get_int64(v), out);
    } else if (json_object_is_type(v, json_type_boolean)) {
        snprintf(out, CELL, "%s", json_object_get_boolean(v) ? "yes" : "no");
    } else if (v) {
        snprintf(out, CELL, "%s", json_object_get_string(v));
    }
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = ' ';
}

static void format_name(const char *name, char out[CELL]) {
    snprintf(out, CELL, "%s", name);
    for (char *p = out; *p; p++)
        if (*p == '_') *p = ' ';
}

static bool is_table(json_object *v) {
    return json_object_is_type(v, json_type_array) && json_object_array_length(v) > 0 &&
           json_object_is_type(json_object_array_get_idx(v, 0), json_type_object);
}

static void pad(FILE *out, const char *text, int width, bool right) {
    int missing = width - width_of(text);
    if (right && missing > 0) fprintf(out, "%*s", missing, "");
    fputs(text, out);
    if (!right && missing > 0) fprintf(out, "%*s", missing, "");
}

/* Rows of the same keys: a heading and one line each; numbers stand to the right. */
static void print_table(FILE *out, json_object *rows) {
    const char *column[MAX_COLUMNS];
    int width[MAX_COLUMNS], n = 0;
    bool right[MAX_COLUMNS];
    char cell[CELL];
    json_object *first = json_object_array_get_idx(rows, 0);
    json_object_object_foreach(first, key, value) {
        if (n == MAX_COLUMNS) break;
        column[n] = key;
        right[n] = json_object_is_type(value, json_type_int);
        format_name(key, cell);
        width[n++] = width_of(cell);
    }
    size_t count = json_object_array_length(rows);
    for (size_t r = 0; r < count; r++)
        for (int c = 0; c < n; c++) {
            format_value(column[c], json_object_object_get(json_object_array_get_idx(rows, r), column[c]), cell);
            if (width_of(cell) > width[c]) width[c] = width_of(cell);
        }
    for (int c = 0; c < n; c++) {
        format_name(column[c], cell);
        fputs("  ", out);
        pad(out, cell, c + 1 < n || right[c] ? width[c] : 0, right[c]);
    }
    fputc('\n', out);
    for (size_t r = 0; r < count; r++) {
        for (int c = 0; c < n; c++) {
            format_value(column[c], json_object_object_get(json_object_array_get_idx(rows, r), column[c]), cell);
            fputs("  ", out);
            pad(out, cell, c + 1 < n || right[c] ? width[c] : 0, right[c]);
        }
        fputc('\n', out);
    }
}

static void print_block(FILE *out, json_object *block, int indent) {
    int width = 0;
    char cell[CELL], name[CELL];
    json_object_object_foreach(block, key, value) {
        format_name(key, name);
        if (!json_object_is_type(value, json_type_object) && !is_table(value) && width_of(name) > width) width = width_of(name);
    }
    json_object_object_foreach(block, key2, value2) {
        if (json_object_is_type(value2, json_type_object) || is_table(value2)) continue;
        format_name(key2, name);
        format_value(key2, value2, cell);
        fprintf(out, "%*s", indent, "");
        pad(out, name, width + 2, false);
        fprintf(out, "%s\n", cell);
    }
    json_object_object_foreach(block, key3, value3) {
        bool nested = json_object_is_type(value3, json_type_object), table = is_table(value3);
        if (!nested && !table) continue;
        format_name(key3, name);
        fprintf(out, "\n%*s%s\n", indent, "", name);
        if (nested)
            print_block(out, value3, indent + 2);
        else
            print_table(out, value3);
    }
}

int command_inspect(const options *o) {
    calla_error err = {0};
    char *json = NULL;
    const char *dir = cli_model_dir(o, &err);
    if (!dir) return cli_fail_error(&err);
    calla_status status = calla_inspect(dir, (uint32_t)o->value[OPTION_CONTEXT].integer, &json, &err);
    if (status == CALLA_OK && o->value[OPTION_JSON].given) {
        puts(json);
    } else if (status == CALLA_OK) {
        json_object *root = NULL;
        status = json_parse(json, strlen(json), "calla_inspect", &root, &err);
        if (status == CALLA_OK) print_block(stdout, root, 0);
        json_object_put(root);
    }
    calla_free(json);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}

/* measure_masks.c: how long the trie of a vocabulary takes, and masks: new to a form, and met before.
 *
 * usage: measure_masks MODEL_DIR FORMS > RESULT.json
 * FORMS has one form a line: {"name": …, and one of "schema": {…}, "regex": "…", "choice": […], "tools": […] (calls are required)}. Ways
 * through a form are random, 20 of at most 400 tokens, the later ones longer.  Each is gone twice: a mask is new where the form's cache
 * did not have it.  Times are the thread's own, call by call, and each has the 0.2 µs in it that asking for the time takes.
 * tests/text/masks_table.py makes docs/speed.md's table of the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "form_walk.h"
#include "text/form/form_impl.h"

enum { WALKS = 20, MOST = 400, MAX_FILE = 64 << 20 };

static calla_text *text;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void fail(const char *message) {
    fprintf(stderr, "measure_masks: %s\n", message);
    exit(1);
}

typedef struct times {
    double *us; /* [n] */
    size_t n, cap;
} times;

static void add(times *t, double s) {
    if (mem_grow(&t->us, &t->cap, t->n + 1, sizeof *t->us, SIZE_MAX / sizeof *t->us)) fail("out of memory");
    t->us[t->n++] = s * 1e6;
}

static int compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void print_times(const char *name, times *t) {
    qsort(t->us, t->n, sizeof *t->us, compare);
    const double none = 0, *us = t->n ? t->us : &none;
    const size_t last = t->n ? t->n - 1 : 0;
    printf("\"%s\": {\"n\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f, \"max_us\": %.2f}", name, t->n, us[last / 2],
           us[(size_t)(0.99 * (double)last)], us[last]);
}

typedef struct figures {
    times fresh, kept, took;
} figures;

/* A random way.  With ids it is only gone again. */
static size_t walk(calla_form *form, int w, int32_t *ids, size_t n, figures *f, figures *all) {
    calla_matcher *m;
    calla_error err;
    uint64_t dice = (uint64_t)w;
    const bool again = n > 0;
    if (calla_matcher_open(form, false, &m, &err)) fail(err.message);
    for (size_t i = 0; i < (again ? n : MOST); i++) {
        const uint64_t misses = form->cache.misses;
        double start = seconds();
        const uint32_t *mask = calla_matcher_mask(m);
        double took = seconds() - start;
        const bool fresh = form->cache.misses > misses;
        add(fresh ? &f->fresh : &f->kept, took);
        add(fresh ? &all->fresh : &all->kept, took);
        if (!again) {
            ids[i] = mask ? walk_choose(text, mask, &dice, i >= (size_t)w * 5) : form->trie->call_id;
            n = i + 1;
        }
        start = seconds();
        if (calla_matcher_took(m, ids[i])) fail("a token that was allowed is not taken");
        took = seconds() - start;
        add(&f->took, took);
        add(&all->took, took);
        if (ids[i] == form->trie->stop_id) break;
    }
    calla_matcher_close(m);
    return n;
}

static void print_figures(figures *f) {
    print_times("new", &f->fresh);
    printf(", ");
    print_times("kept", &f->kept);
    printf(", ");
    print_times("took", &f->took);
    mem_free(f->fresh.us);
    mem_free(f->kept.us);
    mem_free(f->took.us);
}

static void measure(json_object *line, bool first, figures *all) {
    json_object *value = NULL;
    calla_form_options options = {.kind = CALLA_FORM_NONE, .strict_schema = true};
    const char *name = json_object_get_string(json_object_object_get(line, "name"));
    if ((value = json_object_object_get(line, "schema"))) options.kind = CALLA_FORM_JSON_SCHEMA;
    if (!value && (value = json_object_object_get(line, "choice"))) options.kind = CALLA_FORM_CHOICE;
    if (!value && (value = json_object_object_get(line, "regex"))) options.kind = CALLA_FORM_REGEX;
    if (value) {
        options.source = options.kind == CALLA_FORM_REGEX ? json_object_get_string(value)
                                                          : json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
        options.n_source = strlen(options.source);
    } else if ((value = json_object_object_get(line, "tools"))) {
        options.tools_json = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
        options.tool_choice = CALLA_TOOLS_REQUIRED;
    } else {
        options.kind = CALLA_FORM_JSON_OBJECT;
    }
    calla_form *form;
    calla_error err;
    figures f = {0};
    const double start = seconds();
    if (calla_form_compile(text, &options, &form, &err)) {
        fprintf(stderr, "measure_masks: %s: %s\n", name, err.message);
        exit(1);
    }
    const double compiled = seconds() - start;
    for (int w = 0; w < WALKS; w++) {
        int32_t ids[MOST];
        const size_t n = walk(form, w, ids, 0, &f, all);
        walk(form, w, ids, n, &f, all);
    }
    json_object *printed = json_object_new_string(name);
    printf("%s\n  {\"name\": %s, \"bytes\": %zu, \"states\": %u, \"compile_ms\": %.2f, ", first ? "" : ",",
           json_object_to_json_string_ext(printed, JSON_C_TO_STRING_NOSLASHESCAPE),
           options.source       ? options.n_source
           : options.tools_json ? strlen(options.tools_json)
                                : 0,
           form->program->n_states, compiled * 1e3);
    json_object_put(printed);
    print_figures(&f);
    printf("}");
    calla_form_release(form);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: %s MODEL_DIR FORMS\n", argv[0]), 2;
    calla_error err;
    char *lines = NULL;
    size_t n;
    if (calla_text_open(argv[1], &text, &err) || file_read(argv[2], MAX_FILE, &lines, &n, &err)) fail(err.message);
    const form_trie *trie;
    form_locals *commons;
    const double start = seconds();
    if (text_forms(text, &trie, &commons, &err)) fail(err.message);
    printf("{\"tokens\": %u, \"nodes\": %u, \"trie_s\": %.3f, \"forms\": [", calla_text_vocabulary(text), trie->n_nodes, seconds() - start);
    figures all = {0};
    bool first = true;
    for (char *line = lines, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (end > line) {
            json_object *tree;
            if (json_parse(line, (size_t)(end - line), argv[2], &tree, &err)) fail(err.message);
            measure(tree, first, &all);
            json_object_put(tree);
            first = false;
        }
        while (*end == '\n') end++;
    }
    printf("],\n \"all\": {");
    print_figures(&all);
    printf("}}\n");
    mem_free(lines);
    calla_text_close(text);
    return 0;
}

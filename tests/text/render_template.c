/* render_template.c: for template_property.py: one JSON request a line → {"text":…} or {"error":…} a line.  "kind": "3.5" chooses the
 * older template. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "render_request.h"

static void answer(const char *line, size_t n) {
    json_object *root;
    calla_error err = {0};
    template_output out;
    buffer text = {0};
    if (json_parse(line, n, "request", &root, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    const template_request request = render_request(json_object_object_get(root, "messages"), root);
    json_object *kind = json_object_object_get(root, "kind");
    const bool older = kind && !strcmp(json_object_get_string(kind), "3.5");
    if (template_render(older ? TEMPLATE_QWEN35 : TEMPLATE_QWEN36, &request, &out, &err)) {
        buffer_append_str(&text, "{\"error\": ");
        json_append_string(&text, err.message, strlen(err.message));
    } else {
        buffer_append_str(&text, "{\"text\": ");
        json_append_string(&text, out.text.data, out.text.n);
        template_output_free(&out);
    }
    buffer_append_char(&text, '}');
    puts(text.data);
    buffer_free(&text);
    json_object_put(root);
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) answer(line, (size_t)n);
    free(line);
    return 0;
}

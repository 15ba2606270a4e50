/* print_params.c: the tables of paths and of request fields as Markdown, for tools/api/update.py: "## NAME", then of fields a table of those that
 * are honoured, and lists of those that are refused and without effect. */
#include <stdio.h>
#include <string.h>

#include "server/chat.h"
#include "server/messages.h"
#include "server/responses_request.h"
#include "server/routes.h"
#include "server/text_completion.h"
#include "server/text_routes.h"

static void print_type(const param *p) {
    switch (p->kind) {
    case PARAM_BOOL: printf("boolean"); break;
    case PARAM_UINT:
        if (p->max >= UINT32_MAX - 1.0)
            printf("integer from %.0f", p->min);
        else
            printf("integer from %.0f to %.0f", p->min, p->max);
        break;
    case PARAM_FLOAT: printf("number from %g to %g", p->min, p->max); break;
    default: printf("%s", p->type ? p->type : "");
    }
}

/* Neighbours that are told the same share a line. */
static void print_refused(const param_table *table) {
    const char *told = NULL;
    for (size_t i = 0; i < table->n; i++) {
        const param *p = &table->rows[i];
        if (p->kind != PARAM_REFUSED) continue;
        if (!told)
            printf("\n| refused | instead |\n| --- | --- |\n| `%s`", p->name);
        else if (strcmp(told, p->help) != 0)
            printf(" | %s |\n| `%s`", told, p->name);
        else
            printf(", `%s`", p->name);
        told = p->help;
    }
    if (told) printf(" | %s |\n", told);
}

static void print_table(const char *name, const param_table *table) {
    printf("## %s\n| field | type | meaning |\n| --- | --- | --- |\n", name);
    for (size_t i = 0; i < table->n; i++) {
        const param *p = &table->rows[i];
        if (p->kind == PARAM_HARMLESS || p->kind == PARAM_REFUSED) continue;
        printf("| `%s` | ", p->name);
        print_type(p);
        printf(" | %s |\n", p->help ? p->help : "");
    }
    print_refused(table);
    bool any = false;
    for (size_t i = 0; i < table->n; i++)
        if (table->rows[i].kind == PARAM_HARMLESS) {
            printf("%s`%s`", any ? ", " : "\nWithout effect: ", table->rows[i].name);
            any = true;
        }
    printf(any ? ".\n" : "");
}

int main(void) {
    printf("## paths\n");
    routes_print(stdout);
    print_table("common", &conversation_params);
    print_table("foreign", &foreign_params);
    print_table("chat", &chat_params);
    print_table("messages", &messages_params);
    print_table("responses", &responses_params);
    print_table("completions", &text_completion_params);
    print_table("tokenize", &tokenize_params);
    print_table("detokenize", &detokenize_params);
    return ferror(stdout) != 0;
}

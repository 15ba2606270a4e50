/* What requests say of the form of their answers, in each dialect → the options of the form, and the prompts that stay as they were. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "prompts.h"
#include "server/chat.h"
#include "server/messages.h"
#include "server/responses_request.h"

typedef enum dialect { CHAT, MESSAGES, RESPONSES } dialect;

typedef struct request {
    union {
        chat_request chat;
        messages_request messages;
        responses_request responses;
    } u;
    conversation *c;
    dialect d;
} request;

/* {fields "messages" or "input"}. */
static bool read_fields(request *r, dialect d, const char *fields, const char *messages, api_error *e) {
    *r = (request){.d = d, .c = (conversation *)&r->u};
    char body[4096];
    const size_t n =
        (size_t)snprintf(body, sizeof body, "{%s%s\"%s\":%s}", fields, *fields ? "," : "", d == RESPONSES ? "input" : "messages",
                         messages ? messages : "[{\"role\":\"user\",\"content\":\"Hi\"}]");
    assert_true(n < sizeof body);
    conversation_init(r->c, prompts_info());
    *e = (api_error){0};
    if (d == CHAT) return chat_request_read(&r->u.chat, body, n, e);
    if (d == MESSAGES) return messages_request_read(r->c, body, n, e);
    return responses_request_parse(&r->u.responses, body, n, e) && responses_request_read_items(&r->u.responses, NULL, e);
}

static void read_good(request *r, dialect d, const char *fields) {
    api_error e;
    if (!read_fields(r, d, fields, NULL, &e)) fail_msg("%s: %s", fields, e.message);
}

static void free_request(request *r) {
    if (r->d == RESPONSES) responses_request_free(&r->u.responses);
    conversation_free(r->c);
}

/* The options as one line: kind, strictness, source; choice, name, whether one call, tools. */
static char *options_of(const request *r) {
    static const char *const kinds[] = {"none", "object", "schema", "regex", "choice"};
    static const char *const choices[] = {"auto", "required", "named", "no"};
    calla_form_options o;
    api_error e;
    buffer out = {0};
    if (!conversation_form_options(r->c, &o, &e)) fail_msg("%s", e.message);
    buffer_printf(&out, "%s%s ", kinds[o.kind], o.strict_schema ? "" : " loose");
    if (o.n_source) buffer_append(&out, o.source, o.n_source);
    buffer_printf(&out, "; %s %s%s %s", choices[o.tool_choice], o.tool_choice == CALLA_TOOLS_NAMED ? o.tool_name : "",
                  o.one_call ? " one" : "", o.tools_json ? o.tools_json : "");
    return buffer_take(&out);
}

static void expect(dialect d, const char *fields, bool owed, const char *want) {
    request r;
    read_good(&r, d, fields);
    char *got = options_of(&r);
    if (strcmp(got, want) != 0) fail_msg("%s\ngives\n%s\ninstead of\n%s", fields, got, want);
    assert_int_equal(conversation_form_is_owed(r.c), owed);
    mem_free(got);
    free_request(&r);
}

static void expect_refused(dialect d, const char *fields, const char *messages, const char *field, const char *word) {
    request r;
    api_error e;
    if (read_fields(&r, d, fields, messages, &e)) fail_msg("%s is not refused", fields);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, field);
    if (!strstr(e.message, word)) fail_msg("%s is not in: %s", word, e.message);
    free_request(&r);
}

/* ---------------------------------------------------------- content ------------------------------------------------------ */

#define SCHEMA "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}"

static void test_schemas_of_each_dialect(void **state) {
    (void)state;
    static const struct {
        dialect d;
        const char *fields;
    } strict[] = {
        {CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":" SCHEMA "}}"},
        {CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}"},
        {CHAT, "\"response_format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA "}"},
        {CHAT, "\"response_format\":{\"type\":\"json_object\",\"schema\":" SCHEMA "}"},
        {CHAT, "\"guided_json\":" SCHEMA},
        {CHAT, "\"json_schema\":" SCHEMA},
        {CHAT, "\"structured_outputs\":{\"json\":" SCHEMA ",\"disable_any_whitespace\":true}"},
        {CHAT, "\"guided_json\":\"{\\\"type\\\":\\\"object\\\",\\\"properties\\\":{\\\"b\\\":{},\\\"a\\\":{}}}\""},
        {RESPONSES,
         "\"text\":{\"verbosity\":\"low\",\"format\":{\"type\":\"json_schema\",\"name\":\"x\",\"strict\":true,\"schema\":" SCHEMA "}}"},
        {MESSAGES, "\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA "}}"},
        {MESSAGES, "\"output_format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA "}"},
    };
    for (size_t i = 0; i < sizeof strict / sizeof *strict; i++) expect(strict[i].d, strict[i].fields, true, "schema " SCHEMA "; no  ");
    expect(CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":false,\"schema\":{\"not\":{}}}}", true,
           "schema loose {\"not\":{}}; no  ");
    expect(CHAT, "\"response_format\":{\"type\":\"json_object\"}", true, "object ; no  ");
    expect(RESPONSES, "\"text\":{\"format\":{\"type\":\"json_object\"}}", true, "object ; no  ");
    expect(CHAT, "\"structured_outputs\":{\"json_object\":true}", true, "object ; no  ");
    expect(CHAT, "\"response_format\":{\"type\":\"text\"}", false, "none ; no  ");
    expect(CHAT, "\"response_format\":null", false, "none ; no  ");
    expect(RESPONSES, "\"text\":{}", false, "none ; no  ");
}

static void test_expressions_and_choices(void **state) {
    (void)state;
    expect(CHAT, "\"guided_regex\":\"[0-9]{3}\\\\n\"", true, "regex [0-9]{3}\\n; no  ");
    expect(CHAT, "\"structured_outputs\":{\"regex\":\"a\"}", true, "regex a; no  ");
    expect(CHAT, "\"guided_choice\":[\"yes\",\"a/b\"]", true, "choice [\"yes\",\"a/b\"]; no  ");
    expect(CHAT, "\"structured_outputs\":{\"choice\":[\"a\"]}", true, "choice [\"a\"]; no  ");
    expect(MESSAGES, "\"guided_choice\":[\"a\"]", true, "choice [\"a\"]; no  ");
    expect_refused(CHAT, "\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}", NULL, "response_format",
                   "guided_regex and response_format");
}

/* ----------------------------------------------------------- tools ------------------------------------------------------- */

#define P "{\"type\":\"object\"}"
#define F(name, more) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more "}}"
#define CHAT_TOOLS                                                                                                                         \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":" P "}}," F("g", "") "]"
#define RESPONSES_TOOLS                                                                                                                    \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":" P "},{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":"  \
    "\"function\",\"name\":\"g\"}]}]"
#define MESSAGES_TOOLS "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":" P "},{\"name\":\"g\"}]"
#define FORM_TOOLS "[" F("f", ",\"parameters\":" P) "," F("g", "") "]"

static void test_choices_of_tools(void **state) {
    (void)state;
    expect(CHAT, CHAT_TOOLS, false, "none ; auto  " FORM_TOOLS);
    expect(CHAT, CHAT_TOOLS ",\"tool_choice\":\"auto\"", false, "none ; auto  " FORM_TOOLS);
    expect(CHAT, CHAT_TOOLS ",\"tool_choice\":\"none\"", false, "none ; no  ");
    expect(CHAT, "\"tool_choice\":\"required\"," CHAT_TOOLS, true, "none ; required  " FORM_TOOLS);
    expect(CHAT, "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}," CHAT_TOOLS, true, "none ; named g " FORM_TOOLS);
    expect(CHAT, "\"parallel_tool_calls\":false," CHAT_TOOLS, false, "none ; auto  one " FORM_TOOLS);
    expect(MESSAGES, MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}", true,
           "none ; required  one " FORM_TOOLS);
    expect(MESSAGES, MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}", true, "none ; named f " FORM_TOOLS);
    expect(MESSAGES, MESSAGES_TOOLS ",\"tool_choice\":{\"type\":\"none\"}", false, "none ; no  ");
#define RESPONSES_FORM "[" F("f", ",\"parameters\":" P) "," F("n__g", "") "]"
    expect(RESPONSES, RESPONSES_TOOLS ",\"tool_choice\":\"required\"", true, "none ; required  " RESPONSES_FORM);
    expect(RESPONSES, "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}," RESPONSES_TOOLS, true, "none ; named f " RESPONSES_FORM);
    expect(RESPONSES, "\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}," RESPONSES_TOOLS, true, "none ; named n__g " RESPONSES_FORM);
}

/* The prompt has all tools, the form those that are allowed. */
static void test_allowed_tools(void **state) {
    (void)state;
    request all, some;
    const char *chat =
        CHAT_TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[" F("g", "") "]}}";
    expect(CHAT, chat, true, "none ; auto  [" F("g", "") "]");
    expect(RESPONSES,
           RESPONSES_TOOLS
           ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}",
           true, "none ; required  [" F("n__g", "") "]");
    read_good(&all, CHAT, CHAT_TOOLS);
    read_good(&some, CHAT, chat);
    char *want = prompts_render(all.c), *got = prompts_render(some.c);
    assert_string_equal(got, want);
    mem_free(want);
    mem_free(got);
    free_request(&all);
    free_request(&some);
}

/* The model sees nothing of it. */
static void test_strict_tools(void **state) {
    (void)state;
#define STRICT "[" F("f", ",\"parameters\":" P ",\"strict\":true") "]"
    static const struct {
        dialect d;
        const char *strict, *plain;
    } rows[] = {
        {CHAT, "\"tools\":" STRICT, "\"tools\":[" F("f", ",\"parameters\":" P) "]"},
        {RESPONSES, "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true,\"parameters\":" P "}]",
         "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":false,\"parameters\":" P "}]"},
        {MESSAGES, "\"tools\":[{\"name\":\"f\",\"strict\":true,\"input_schema\":" P "}]",
         "\"tools\":[{\"name\":\"f\",\"input_schema\":" P "}]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        request strict, plain;
        expect(rows[i].d, rows[i].strict, true, "none ; auto  " STRICT);
        expect(rows[i].d, rows[i].plain, false, "none ; auto  [" F("f", ",\"parameters\":" P) "]");
        read_good(&strict, rows[i].d, rows[i].strict);
        read_good(&plain, rows[i].d, rows[i].plain);
        assert_string_equal(conversation_tools_json(strict.c), conversation_tools_json(plain.c));
        assert_null(strstr(conversation_tools_json(strict.c), "strict"));
        char *want = prompts_render(plain.c), *got = prompts_render(strict.c);
        assert_string_equal(got, want);
        mem_free(want);
        mem_free(got);
        free_request(&strict);
        free_request(&plain);
    }
}

static void test_a_forced_call_outranks_the_content(void **state) {
    (void)state;
    request r;
    expect(CHAT, "\"response_format\":{\"type\":\"json_object\"}," CHAT_TOOLS, true, "object ; auto  " FORM_TOOLS);
    read_good(&r, CHAT, "\"response_format\":{\"type\":\"json_object\"},\"tool_choice\":\"required\"," CHAT_TOOLS);
    char *got = options_of(&r);
    assert_string_equal(got, "none ; required  " FORM_TOOLS);
    assert_string_equal(r.c->warnings.data, "response_format has no effect: tool_choice asks for a call");
    mem_free(got);
    free_request(&r);
}

static void test_a_continued_answer_has_no_form(void **state) {
    (void)state;
    const char *open = "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"{\\\"a\"}]";
    expect_refused(CHAT, "\"response_format\":{\"type\":\"json_object\"}", open, "response_format", "last message is the assistant's");
    expect_refused(CHAT, "\"tool_choice\":\"required\"," CHAT_TOOLS, open, "tool_choice", "last message is the assistant's");
    expect_refused(MESSAGES, "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}", open, "output_config.format",
                   "begin");
    expect_refused(RESPONSES, "\"text\":{\"format\":{\"type\":\"json_object\"}}", open, "text.format", "begin");
    request r;
    api_error e;
    assert_true(read_fields(&r, CHAT, CHAT_TOOLS, open, &e)); /* text is free */
    assert_true(r.c->continues);
    free_request(&r);
}

/* What the compiler says names the field, and is the client's fault. */
static void test_errors_of_the_compiler(void **state) {
    (void)state;
    static const struct {
        const char *fields, *field, *code;
    } rows[] = {
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}", "response_format", "invalid_json_schema"},
        {"\"guided_regex\":\"(\"", "guided_regex", "unsupported_parameter"},
        {"\"tool_choice\":\"required\"," CHAT_TOOLS, "tools", "invalid_function_parameters"}};
    static const calla_status theirs[] = {CALLA_E_UNSUPPORTED, CALLA_E_LIMIT, CALLA_E_FORMAT, CALLA_E_ARGUMENT};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        request r;
        api_error e;
        read_good(&r, CHAT, rows[i].fields);
        for (size_t k = 0; k < sizeof theirs / sizeof *theirs; k++) {
            const calla_error err = {.status = theirs[k], .message = "/properties/a: not: not supported"};
            assert_false(conversation_form_error(r.c, &err, &e));
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, rows[i].field);
            assert_string_equal(e.code, rows[i].code);
            assert_non_null(strstr(e.message, "/properties/a: not"));
        }
        const calla_error nomem = {.status = CALLA_E_NOMEM, .message = "out of memory"};
        assert_false(conversation_form_error(r.c, &nomem, &e));
        assert_int_equal(e.status, 503);
        free_request(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemas_of_each_dialect),
        cmocka_unit_test(test_expressions_and_choices),
        cmocka_unit_test(test_choices_of_tools),
        cmocka_unit_test(test_allowed_tools),
        cmocka_unit_test(test_strict_tools),
        cmocka_unit_test(test_a_forced_call_outranks_the_content),
        cmocka_unit_test(test_a_continued_answer_has_no_form),
        cmocka_unit_test(test_errors_of_the_compiler),
    };
    return cmocka_run_group_tests(tests, prompts_open, prompts_close);
}

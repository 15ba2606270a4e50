/* test_template.c: the chat template, byte for byte against recorded renderings; where bytes come from; errors and their wording.
 *
 * usage: test_template CHATS GREEDY (the expanded pocket.chats.json and pocket.greedy.json) */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/memory.h"
#include "render_request.h"

static const char *chats_path, *greedy_path;

static json_object *parse(const char *text) {
    json_object *tree = NULL;
    calla_error err;
    if (json_parse(text, strlen(text), "test", &tree, &err)) fail_msg("%s", err.message);
    return tree;
}

static json_object *read_json(const char *path) {
    char *text;
    size_t n;
    json_object *tree = NULL;
    calla_error err;
    if (file_read(path, 64 << 20, &text, &n, &err) || json_parse(text, n, path, &tree, &err)) fail_msg("%s", err.message);
    mem_free(text);
    return tree;
}

static char *data_path(const char *name) {
    const char *data = getenv("CALLA_TEST_DATA");
    assert_non_null(data);
    char *path = path_join(data, name);
    assert_non_null(path);
    return path;
}

/* The runs alternate and cover the text. */
static void check_runs(const template_output *out) {
    size_t sum = 0;
    for (size_t i = 0; i < out->n_runs; i++) sum += out->runs[i];
    assert_int_equal(sum, out->text.n);
}

static void expect_text(const char *name, const template_request *request, json_object *expected) {
    template_output out;
    calla_error err;
    if (template_render(TEMPLATE_QWEN36, request, &out, &err)) fail_msg("%s: %s", name, err.message);
    check_runs(&out);
    if ((size_t)json_object_get_string_len(expected) != out.text.n ||
        memcmp(out.text.data, json_object_get_string(expected), out.text.n) != 0)
        fail_msg("%s: expected\n%s\ngot\n%s", name, json_object_get_string(expected), out.text.data);
    const bool in_think = out.text.n >= 8 && memcmp(out.text.data + out.text.n - 8, "<think>\n", 8) == 0;
    assert_int_equal(out.thinking, in_think);
    template_output_free(&out);
}

/* ------------------------------------------------------------- recorded -------------------------------------------------- */

/* 33 texts and 9 errors of jinja2 with the official file.  One error is a text here: arguments sent as a JSON string. */
static void the_recorded_cases_render_equally(void **state) {
    (void)state;
    char *path = data_path("text/chat_template_cases.json");
    json_object *cases = read_json(path);
    size_t texts = 0, errors = 0;
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        json_object *one = json_object_array_get_idx(cases, i), *expected;
        const char *name = json_object_get_string(json_object_object_get(one, "name"));
        template_request request = render_request(json_object_object_get(one, "messages"), json_object_object_get(one, "kwargs"));
        template_output out;
        calla_error err;
        if (json_object_object_get_ex(one, "rendered", &expected)) {
            expect_text(name, &request, expected);
            texts++;
        } else if (!strcmp(name, "error_arguments_as_json_string")) {
            assert_int_equal(template_render(TEMPLATE_QWEN36, &request, &out, &err), CALLA_OK);
            assert_non_null(strstr(out.text.data, "<tool_call>\n<function=get_weather>\n<parameter="));
            template_output_free(&out);
            errors++;
        } else {
            const char *wording = strstr(json_object_get_string(json_object_object_get(one, "error")), ": ") + 2;
            assert_int_equal(template_render(TEMPLATE_QWEN36, &request, &out, &err), CALLA_E_ARGUMENT);
            if (!strstr(err.message, wording)) fail_msg("%s: \"%s\" does not say \"%s\"", name, err.message, wording);
            errors++;
        }
    }
    assert_int_equal(texts, 33);
    assert_int_equal(errors, 9);
    json_object_put(cases);
    mem_free(path);
}

static void the_recorded_chats_render_equally(void **state) {
    (void)state;
    json_object *chats = read_json(chats_path);
    assert_int_equal(json_object_array_length(chats), 232);
    for (size_t i = 0; i < 232; i++) {
        json_object *chat = json_object_array_get_idx(chats, i);
        char name[32];
        snprintf(name, sizeof name, "chat %zu", i);
        template_request request = render_request(json_object_object_get(chat, "messages"), chat);
        expect_text(name, &request, json_object_object_get(chat, "text"));
    }
    json_object_put(chats);
}

static void the_greedy_prompts_render_equally(void **state) {
    (void)state;
    json_object *chats = read_json(greedy_path);
    assert_int_equal(json_object_array_length(chats), 18);
    for (size_t i = 0; i < 18; i++) {
        json_object *chat = json_object_array_get_idx(chats, i);
        template_request request = render_request(json_object_object_get(chat, "messages"), chat);
        expect_text("greedy", &request, json_object_object_get(chat, "prompt_text"));
    }
    json_object_put(chats);
}

/* ------------------------------------------------------------- origin ---------------------------------------------------- */

static const char greek[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" \xCE\xB1 "
    "\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\xCE\xB2\"},"
    "{\"type\":\"image\"},{\"text\":\"\xCE\xB3\"}]},{\"role\":\"assistant\",\"reasoning_content\":\"\xCE\xB4\",\"content\":\"\xCE\xB5\","
    "\"tool_calls\":[{\"function\":{\"name\":\"\xCE\xB6\",\"arguments\":{\"\xCE\xB7\":\"\xCE\xB8\",\"\xCE\xB9\":[\"\xCE\xBA\"]}}}]},"
    "{\"role\":\"tool\",\"content\":\"\xCE\xBB\"},{\"role\":\"assistant\",\"content\":\"\xCE\xBC</think>\xCE\xBD\"}],"
    "\"tools\":[\"\xCE\xBE\"]}";

/* Content is written in Greek here, so that a byte's origin can be told from the text: content is Greek and the JSON around it. */
static void every_byte_knows_where_it_comes_from(void **state) {
    (void)state;
    json_object *root = parse(greek);
    for (int reference = 0; reference < 2; reference++) {
        template_request request = render_request(json_object_object_get(root, "messages"), root);
        request.reference = reference;
        template_output out;
        calla_error err;
        assert_int_equal(template_render(TEMPLATE_QWEN36, &request, &out, &err), CALLA_OK);
        check_runs(&out);
        size_t at = 0, letters = 0;
        for (size_t run = 0; run < out.n_runs; run++)
            for (size_t end = at + out.runs[run]; at < end; at++) {
                const unsigned char c = (unsigned char)out.text.data[at];
                const bool content = run % 2 == 1;
                if (c == 0xCE) letters++;
                if (reference ? content : content != (c >= 0x80 || (c == '"' && content) || (strchr("[]", c) && content)))
                    fail_msg("byte %zu (%c) of %s", at, c, out.text.data);
            }
        assert_int_equal(letters, 14); /* alpha to xi, each once */
        if (reference) assert_int_equal(out.n_runs, 1);
        template_output_free(&out);
    }
    json_object_put(root);
}

/* ------------------------------------------------------------- values ---------------------------------------------------- */

static void values_print_as_in_python(void **state) {
    (void)state;
    static const struct {
        const char *json, *python;
    } values[] = {
        {"1e5", "100000.0"},
        {"1.0", "1.0"},
        {"-0.0", "-0.0"},
        {"-0", "0"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1e16", "1e+16"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"123456789012345678.0", "1.2345678901234568e+17"},
        {"1e400", "Infinity"},
        {"-1e400", "-Infinity"},
        {"1e-400", "0.0"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"0.1", "0.1"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1e22", "1e+22"},
        {"1.5e300", "1.5e+300"},
        {"9223372036854775807", "9223372036854775807"},
        {"9223372036854775808", "9223372036854775808"},
        {"18446744073709551615", "18446744073709551615"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"[]", "[]"},
        {"{}", "{}"},
        {"[1,[2,{\"b\":null,\"a\":true}],false]", "[1, [2, {\"b\": null, \"a\": true}], false]"},
        {"\"/\\u00e9\\u0001\\u007f\\u2028\\\"\"", "\"/\xC3\xA9\\u0001\x7F\xE2\x80\xA8\\\"\""},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_object *tree = parse(values[i].json);
        buffer out = {0};
        template_tojson(&out, tree);
        assert_string_equal(out.data, values[i].python);
        buffer_free(&out);
        json_object_put(tree);
    }
}

/* What 3.6 changed: arguments that are no strings, and reasoning of earlier turns. */
static void the_older_template_differs_in_two_lines(void **state) {
    (void)state;
    json_object *root =
        parse("{\"preserve_thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":"
              "\"a\",\"reasoning_content\":\"r\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"a\":true,\"b\":null,\"c\":1e400,"
              "\"d\":[true],\"e\":\"s\"}}]},{\"role\":\"user\",\"content\":\"v\"}]}");
    template_request request = render_request(json_object_object_get(root, "messages"), root);
    template_output out;
    calla_error err;
    assert_int_equal(template_render(TEMPLATE_QWEN35, &request, &out, &err), CALLA_OK);
    assert_string_equal(out.text.data,
                        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na\n\n<tool_call>\n<function=f>\n<parameter=a>\nTrue\n"
                        "</parameter>\n<parameter=b>\nNone\n</parameter>\n<parameter=c>\ninf\n</parameter>\n<parameter=d>\n"
                        "[true]\n</parameter>\n<parameter=e>\ns\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
                        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n<think>\n");
    template_output_free(&out);
    assert_int_equal(template_render(TEMPLATE_QWEN36, &request, &out, &err), CALLA_OK);
    assert_non_null(strstr(out.text.data, "assistant\n<think>\nr\n</think>\n\na\n\n<tool_call>\n<function=f>\n<parameter=a>\ntrue\n"));
    template_output_free(&out);
    json_object_put(root);
}

/* ------------------------------------------------------------- errors ---------------------------------------------------- */

static void errors_name_the_place(void **state) {
    (void)state;
#define USER "{\"role\":\"user\",\"content\":\"u\"}"
#define CALL(c) "[" USER ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" c "]}]"
    static const struct {
        const char *messages, *error;
    } cases[] = {
        {"{}", "messages: must be an array"},
        {"[]", "messages: No messages provided."},
        {"[{}," USER "]", "messages[0]: Unexpected message role."},
        {"[1," USER "]", "messages[0]: Unexpected message role."},
        {"[" USER ",{\"role\":\"user\",\"content\":{\"a\":1}}]", "messages[1]: Unexpected content type."},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"audio\"}]}]", "messages[0].content[0]: Unexpected item type in content."},
        {"[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content[0]: must be an object"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":{}}]}]", "messages[0].content[0].text: must be a string"},
        {"[{\"role\":\"system\",\"content\":[{\"type\":\"video\"}]}," USER "]", "messages[0]: System message cannot contain videos."},
        {CALL("{}"), "messages[1].tool_calls[0]: the function's name must be a string"},
        {CALL("{\"function\":null}"), "messages[1].tool_calls[0]: the function's name must be a string"},
        {CALL("{\"name\":\"f\",\"arguments\":null}"), "messages[1].tool_calls[0].arguments: Can only get item pairs from a mapping."},
        {CALL("{\"name\":\"f\",\"arguments\":\"[1]\"}"), "messages[1].tool_calls[0].arguments: Can only get item pairs from a mapping."},
        {CALL("{\"name\":\"f\",\"arguments\":\"{\"}"), "messages[1].tool_calls[0]: arguments (a JSON string): byte 1: "},
        {"[" USER ",{\"role\":\"assistant\",\"tool_calls\":\"x\"}]", "messages[1].tool_calls: must be an array"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_object *messages = parse(cases[i].messages);
        const template_request request = {.messages = messages, .thinking = true};
        template_output out;
        calla_error err = {0};
        if (template_render(TEMPLATE_QWEN36, &request, &out, &err) != CALLA_E_ARGUMENT ||
            strncmp(err.message, cases[i].error, strlen(cases[i].error)))
            fail_msg("%s: \"%s\"", cases[i].messages, err.message);
        json_object_put(messages);
    }
    template_output out;
    calla_error err;
    json_object *messages = parse("[" USER "]"), *tools = parse("{}");
    const template_request request = {.messages = messages, .tools = tools};
    assert_int_equal(template_render(TEMPLATE_QWEN36, &request, &out, &err), CALLA_E_ARGUMENT);
    json_object_put(messages);
    json_object_put(tools);
}

static int fail_at(void *user, uint64_t number) {
    const uint64_t *bad = user;
    return number == *bad;
}

static void survives_failing_allocations(void **state) {
    (void)state;
    json_object *root = parse(greek);
    const template_request request = render_request(json_object_object_get(root, "messages"), root);
    uint64_t failures = 0;
    for (uint64_t i = 0;; i++) {
        uint64_t bad = mem_allocations() + i;
        template_output out;
        calla_error err = {0};
        mem_set_failure(fail_at, &bad);
        const calla_status status = template_render(TEMPLATE_QWEN36, &request, &out, &err);
        mem_set_failure(NULL, NULL);
        if (status == CALLA_OK) {
            template_output_free(&out);
            break;
        }
        assert_int_equal(status, CALLA_E_NOMEM);
        failures++;
    }
    assert_true(failures >= 8);
    json_object_put(root);
}

/* ------------------------------------------------------------- detection ------------------------------------------------- */

static void write_file(const char *dir, const char *name, const char *text, size_t n) {
    char *path = path_join(dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    mem_free(path);
}

static void remove_file(const char *dir, const char *name) {
    char *path = path_join(dir, name);
    unlink(path);
    mem_free(path);
}

static void known_templates_are_told_apart(void **state) {
    (void)state;
    char dir[] = "/tmp/calla-template-XXXXXX", *text, *path = data_path("text/chat_template.qwen3.5.jinja");
    size_t n;
    template_kind kind = TEMPLATE_QWEN35;
    calla_error err;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(template_detect(dir, &kind, &err), CALLA_OK); /* nothing there: a warning */
    assert_int_equal(kind, TEMPLATE_QWEN36);
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &err), CALLA_OK);
    write_file(dir, "chat_template.jinja", text, n);
    assert_int_equal(template_detect(dir, &kind, &err), CALLA_OK);
    assert_int_equal(kind, TEMPLATE_QWEN35);
    text[100] ^= 1;
    write_file(dir, "chat_template.jinja", text, n);
    assert_int_equal(template_detect(dir, &kind, &err), CALLA_OK);
    assert_int_equal(kind, TEMPLATE_QWEN36);
    text[100] ^= 1;
    remove_file(dir, "chat_template.jinja");
    buffer config = {0};
    buffer_append_str(&config, "{\"added\":{\"chat_template\":\"no\"},\"chat_template\":");
    json_append_string(&config, text, n);
    buffer_append_str(&config, ",\"x\":[1]}");
    write_file(dir, "tokenizer_config.json", config.data, config.n);
    assert_int_equal(template_detect(dir, &kind, &err), CALLA_OK);
    assert_int_equal(kind, TEMPLATE_QWEN35);
    write_file(dir, "tokenizer_config.json", config.data, config.n - 1);
    assert_int_equal(template_detect(dir, &kind, &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "tokenizer_config.json"));
    remove_file(dir, "tokenizer_config.json");
    rmdir(dir);
    char *pocket = path_join(getenv("CALLA_MODELS"), "pocket");
    assert_int_equal(template_detect(pocket, &kind, &err), CALLA_OK);
    assert_int_equal(kind, TEMPLATE_QWEN36);
    mem_free(pocket);
    buffer_free(&config);
    mem_free(text);
    mem_free(path);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: %s CHATS GREEDY\n", argv[0]), 2;
    chats_path = argv[1];
    greedy_path = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorded_cases_render_equally),
        cmocka_unit_test(the_recorded_chats_render_equally),
        cmocka_unit_test(the_greedy_prompts_render_equally),
        cmocka_unit_test(every_byte_knows_where_it_comes_from),
        cmocka_unit_test(values_print_as_in_python),
        cmocka_unit_test(the_older_template_differs_in_two_lines),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(known_templates_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_options.c: the option table: its own consistency, what the parser takes, and what it says about the rest. */
#include "../unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

enum { MAX_ARGS = 16 };

/* Splits "a b c" at blanks and parses it as the arguments of a command. */
static calla_status parse(command_id command, const char *line, options *o, calla_error *err) {
    static char text[512]; /* options point into it */
    char *argv[MAX_ARGS];
    int argc = 0;
    strncpy(text, line, sizeof text - 1);
    for (char *word = strtok(text, " "); word && argc < MAX_ARGS; word = strtok(NULL, " ")) argv[argc++] = word;
    memset(err, 0, sizeof *err);
    return options_parse(command, argc, argv, o, err);
}

static void accept(command_id command, const char *line, options *o) {
    calla_error err;
    calla_status status = parse(command, line, o, &err);
    if (status != CALLA_OK) fail_msg("\"%s\" was refused: %s", line, err.message);
}

static void refuse(command_id command, const char *line, const char *message) {
    options o;
    calla_error err;
    calla_status status = parse(command, line, &o, &err);
    if (status != CALLA_E_ARGUMENT || !strstr(err.message, message))
        fail_msg("\"%s\": expected an error with \"%s\", got status %d and \"%s\"", line, message, (int)status, err.message);
}

static void table_is_complete(void **state) {
    (void)state;
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option_spec *s = &option_table[i];
        assert_non_null(s->name);
        assert_non_null(s->help);
        assert_int_not_equal(s->commands, 0);
        assert_int_equal(s->type == OPTION_FLAG, s->value == NULL);
        /* every option with a value says what holds without it, in one way */
        if (s->type != OPTION_FLAG) assert_true((s->preset != NULL) != (s->otherwise != NULL));
        if (s->type == OPTION_INTEGER || s->type == OPTION_NUMBER || s->type == OPTION_LIST) assert_true(s->min < s->max);
        for (int j = 0; j < i; j++) {
            if (s->commands & option_table[j].commands) assert_string_not_equal(s->name, option_table[j].name);
            if (s->env && option_table[j].env) assert_string_not_equal(s->env, option_table[j].env);
        }
        if (!s->env) continue; /* CALLA_TOP_K for --top-k */
        char expected[64] = "CALLA_";
        for (size_t k = 0; k <= strlen(s->name); k++) {
            char c = s->name[k];
            expected[6 + k] = c == '-' ? '_' : (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
        }
        assert_string_equal(s->env, expected);
    }
    for (int c = 0; c < COMMAND_COUNT; c++) {
        assert_int_equal(command_find(command_table[c].name), c);
        options o;
        accept((command_id)c, "", &o); /* all presets are within their ranges */
    }
}

static void presets_hold(void **state) {
    (void)state;
    options o;
    accept(COMMAND_SERVE, "", &o);
    assert_string_equal(o.value[OPTION_HOST].text, "127.0.0.1");
    assert_int_equal(o.value[OPTION_PORT].integer, 8080);
    assert_int_equal(o.value[OPTION_KV].integer, 0);
    assert_false(o.value[OPTION_PORT].given);
    assert_null(o.value[OPTION_MODEL].text);
}

static void values_are_read(void **state) {
    (void)state;
    options o;
    accept(COMMAND_RUN, "--temperature 0.25 --top-k=40 --seed 18446744073709551615 --raw --presence-penalty -1.5 --kv f32 words", &o);
    assert_true(o.value[OPTION_TEMPERATURE].number == 0.25);
    assert_int_equal(o.value[OPTION_TOP_K].integer, 40);
    assert_true(o.value[OPTION_SEED].integer == UINT64_MAX);
    assert_true(o.value[OPTION_RAW].given);
    assert_true(o.value[OPTION_PRESENCE_PENALTY].number == -1.5);
    assert_int_equal(o.value[OPTION_KV].integer, 1);
    assert_string_equal(o.argument, "words");
    accept(COMMAND_RUN, "-- --raw", &o);
    assert_string_equal(o.argument, "--raw");
    assert_false(o.value[OPTION_RAW].given);
    accept(COMMAND_RUN, "-", &o);
    assert_string_equal(o.argument, "-");
    accept(COMMAND_EVAL, "folder --ids - --out=x=y", &o);
    assert_string_equal(o.value[OPTION_MODEL].text, "folder");
    assert_string_equal(o.value[OPTION_OUT].text, "x=y");
}

static void lists_are_read(void **state) {
    (void)state;
    options o;
    accept(COMMAND_BENCH, "folder", &o);
    assert_int_equal(o.value[OPTION_PROMPT].n_list, 1);
    assert_int_equal(o.value[OPTION_PROMPT].list[0], 512);
    assert_int_equal(o.value[OPTION_DEPTH].list[0], 0);
    accept(COMMAND_BENCH, "--prompt 512,7 --depth=0,4096,1048576", &o);
    assert_int_equal(o.value[OPTION_PROMPT].n_list, 2);
    assert_int_equal(o.value[OPTION_PROMPT].list[1], 7);
    assert_int_equal(o.value[OPTION_DEPTH].n_list, 3);
    assert_int_equal(o.value[OPTION_DEPTH].list[2], 1048576);
    accept(COMMAND_BENCH, "--depth 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", &o);
    assert_int_equal(o.value[OPTION_DEPTH].n_list, OPTION_LIST_MAX);
    static const char *const wrong[] = {"0", "1,", ",1", "1,,2", "-1", "+1", "1;2", "x", "1,x", "1048577", "1,99999999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[64];
        snprintf(line, sizeof line, "--prompt=%s", wrong[i]);
        refuse(COMMAND_BENCH, line, "--prompt takes whole numbers from 1 to 1048576, at most 16");
    }
    refuse(COMMAND_BENCH, "--depth 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "--depth takes");
    refuse(COMMAND_BENCH, "--prompt=", "--prompt takes a value");
}

static void a_name_may_mean_two_things(void **state) {
    (void)state;
    options o;
    accept(COMMAND_TOKENIZE, "--decode folder", &o);
    assert_true(o.value[OPTION_DECODE].given && !o.value[OPTION_DECODE_STEPS].given);
    assert_string_equal(o.value[OPTION_MODEL].text, "folder");
    accept(COMMAND_BENCH, "--decode 32", &o);
    assert_true(!o.value[OPTION_DECODE].given && o.value[OPTION_DECODE_STEPS].given);
    assert_int_equal(o.value[OPTION_DECODE_STEPS].integer, 32);
    refuse(COMMAND_TOKENIZE, "--decode=32", "--decode takes no value");
    refuse(COMMAND_BENCH, "--decode", "--decode needs a value");
    refuse(COMMAND_BENCH, "--decode 1 --decode 1", "--decode is given twice");
    refuse(COMMAND_RUN, "--decode", "--decode is an option of tokenize, bench, not of run");
}

static void wrong_values_are_refused(void **state) {
    (void)state;
    refuse(COMMAND_SERVE, "--port 65536", "--port takes a whole number from 0 to 65535, not \"65536\"");
    refuse(COMMAND_SERVE, "--port -1", "--port takes");
    refuse(COMMAND_SERVE, "--port 80x", "--port takes");
    refuse(COMMAND_SERVE, "--port 0x50", "--port takes");
    refuse(COMMAND_SERVE, "--port 99999999999999999999999", "--port takes");
    refuse(COMMAND_SERVE, "--port", "--port needs a value");
    refuse(COMMAND_SERVE, "--port=", "--port takes a value");
    refuse(COMMAND_SERVE, "--host=", "--host takes a value");
    refuse(COMMAND_SERVE, "--port 1 --port 2", "--port is given twice");
    refuse(COMMAND_SERVE, "word", "serve takes no argument");
    refuse(COMMAND_RUN, "--temperature nan", "--temperature takes a number from 0 to 2");
    refuse(COMMAND_RUN, "--temperature inf", "--temperature takes");
    refuse(COMMAND_RUN, "--temperature 1e400", "--temperature takes");
    refuse(COMMAND_RUN, "--temperature 0x1p-1", "--temperature takes");
    refuse(COMMAND_RUN, "--temperature 2.01", "--temperature takes");
    refuse(COMMAND_RUN, "--temperature .", "--temperature takes");
    refuse(COMMAND_RUN, "--top-p 0", "--top-p takes a number above 0 to 1");
    refuse(COMMAND_RUN, "--seed 18446744073709551616", "--seed takes a whole number below 2^64");
    refuse(COMMAND_RUN, "--raw=1", "--raw takes no value");
    refuse(COMMAND_RUN, "--kv f16", "--kv takes one of bf16|f32");
    refuse(COMMAND_RUN, "--kv b", "--kv takes one of");
    refuse(COMMAND_RUN, "two words", "run takes one PROMPT, not \"words\" as well");
    refuse(COMMAND_RUN, "-x", "unknown option -x");
    refuse(COMMAND_TOKENIZE, "--model a b", "give the model once");
}

static void unknown_options_get_a_hint(void **state) {
    (void)state;
    refuse(COMMAND_SERVE, "--prot 80", "unknown option --prot; did you mean --port?");
    refuse(COMMAND_RUN, "--temprature=1", "did you mean --temperature?");
    refuse(COMMAND_RUN, "--no-thinking", "did you mean --no-think?");
    refuse(COMMAND_RUN, "--port 80", "--port is an option of serve, not of run");
    refuse(COMMAND_SERVE, "--qqqqqqqq", "unknown option --qqqqqqqq (calla serve --help lists all)");
    assert_string_equal(command_nearest("sevre"), "serve");
    assert_string_equal(command_nearest("tokenise"), "tokenize");
    assert_null(command_nearest("qqqqqqqq"));
}

static void environment_counts_less_than_the_line(void **state) {
    (void)state;
    options o;
    setenv("CALLA_PORT", "9000", 1);
    setenv("CALLA_HOST", "", 1);
    accept(COMMAND_SERVE, "", &o);
    assert_int_equal(o.value[OPTION_PORT].integer, 9000);
    assert_true(o.value[OPTION_PORT].given);
    assert_string_equal(o.value[OPTION_HOST].text, "127.0.0.1");
    accept(COMMAND_SERVE, "--port 9001", &o);
    assert_int_equal(o.value[OPTION_PORT].integer, 9001);
    accept(COMMAND_RUN, "", &o); /* not an option of run: not looked at */
    setenv("CALLA_PORT", "many", 1);
    accept(COMMAND_RUN, "", &o);
    refuse(COMMAND_SERVE, "", "CALLA_PORT takes a whole number from 0 to 65535, not \"many\"");
    accept(COMMAND_SERVE, "--help", &o);
    unsetenv("CALLA_PORT");
    unsetenv("CALLA_HOST");
    setenv("CALLA_NO_THINK", "1", 1);
    accept(COMMAND_RUN, "", &o);
    assert_true(o.value[OPTION_NO_THINK].given);
    setenv("CALLA_NO_THINK", "0", 1);
    accept(COMMAND_RUN, "", &o);
    assert_false(o.value[OPTION_NO_THINK].given);
    setenv("CALLA_NO_THINK", "yes", 1);
    refuse(COMMAND_RUN, "", "CALLA_NO_THINK takes 0 or 1");
    unsetenv("CALLA_NO_THINK");
    setenv("CALLA_MODEL", "from-environment", 1);
    accept(COMMAND_TOKENIZE, "folder", &o);
    assert_string_equal(o.value[OPTION_MODEL].text, "folder");
    accept(COMMAND_TOKENIZE, "", &o);
    assert_string_equal(o.value[OPTION_MODEL].text, "from-environment");
    unsetenv("CALLA_MODEL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_complete),
        cmocka_unit_test(presets_hold),
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(a_name_may_mean_two_things),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(unknown_options_get_a_hint),
        cmocka_unit_test(environment_counts_less_than_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

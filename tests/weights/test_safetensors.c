/* test_safetensors.c: the header reader against malformed files: each is refused with a message that names file, tensor and rule. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "weights/safetensors.h"

/* A header's text and a claimed length, in a block of exactly that size so that a read past it is seen. */
static calla_status read_bytes(uint64_t length, const char *json, size_t n_json, uint64_t file_bytes, st_header *h, calla_error *err) {
    uint8_t *block = malloc(8 + n_json);
    memcpy(block, &length, 8);
    memcpy(block + 8, json, n_json);
    *err = (calla_error){0};
    const calla_status status = st_header_read(block, 8 + n_json, file_bytes, "f.safetensors", h, err);
    free(block);
    return status;
}

static calla_status read_text(const char *json, uint64_t data_bytes, st_header *h, calla_error *err) {
    const size_t n = strlen(json);
    return read_bytes(n, json, n, 8 + n + data_bytes, h, err);
}

static void refused(const char *json, uint64_t data_bytes, const char *tensor, const char *rule) {
    st_header h;
    calla_error err;
    if (read_text(json, data_bytes, &h, &err) != CALLA_E_FORMAT) fail_msg("accepted or wrong status: %s: %s", json, err.message);
    if (!strstr(err.message, "f.safetensors") || !strstr(err.message, tensor) || !strstr(err.message, rule))
        fail_msg("expected '%s' and '%s' in: %s", tensor, rule, err.message);
    assert_null(h.tensors);
    assert_null(h.names);
}

static const char good[] = "{\"__metadata__\":{\"for\\u006dat\":\"mlx\"},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
                           "\"a\":{\"data_offsets\":[0,12],\"shape\":[3,2],\"dtype\":\"BF16\"}}   ";

static void test_good(void **state) {
    (void)state;
    st_header h;
    calla_error err;
    assert_int_equal(read_text(good, 16, &h, &err), CALLA_OK);
    assert_int_equal(h.n, 2);
    assert_int_equal(h.data_begin, 8 + sizeof good - 1);
    assert_string_equal(h.tensors[0].name, "a"); /* in the order of the data, not of the header */
    assert_string_equal(h.tensors[0].dtype, "BF16");
    assert_int_equal(h.tensors[0].dims, 2);
    assert_int_equal(h.tensors[0].shape[0], 3);
    assert_int_equal(h.tensors[0].shape[1], 2);
    assert_int_equal(h.tensors[0].begin, h.data_begin);
    assert_int_equal(h.tensors[0].bytes, 12);
    assert_string_equal(h.tensors[1].name, "b");
    assert_int_equal(h.tensors[1].dims, 0);
    assert_int_equal(h.tensors[1].begin, h.data_begin + 12);
    assert_int_equal(h.tensors[1].bytes, 4);
    st_header_free(&h);
}

/* Cut anywhere, in the header or in the data, with the length word right: refused, and nothing outside is read. */
static void test_cut_anywhere(void **state) {
    (void)state;
    const size_t n = sizeof good - 1;
    for (size_t keep = 0; keep < 8 + n + 16; keep++) {
        uint8_t *block = malloc(keep ? keep : 1);
        uint8_t whole[8 + sizeof good + 16] = {0};
        const uint64_t length = n;
        memcpy(whole, &length, 8);
        memcpy(whole + 8, good, n);
        memcpy(block, whole, keep);
        st_header h;
        calla_error err;
        assert_int_equal(st_header_read(block, keep, keep, "f.safetensors", &h, &err), CALLA_E_FORMAT);
        assert_non_null(strstr(err.message, "f.safetensors"));
        assert_non_null(strstr(err.message, keep < 8 ? "too few" : keep < 8 + n ? "the file is cut short" : "is it cut short"));
        free(block);
    }
}

/* The JSON itself cut anywhere, with a length word to match. */
static void test_cut_json(void **state) {
    (void)state;
    const size_t n = strlen(good) - 3; /* up to the last brace */
    for (size_t keep = 0; keep < n; keep++) {
        st_header h;
        calla_error err;
        assert_int_equal(read_bytes(keep, good, keep, 8 + keep + 16, &h, &err), CALLA_E_FORMAT);
    }
}

static void test_header_length(void **state) {
    (void)state;
    const uint64_t lengths[] = {0,
                                1,
                                sizeof good + 20,
                                ST_MAX_HEADER + 1ull,
                                UINT32_MAX,
                                (uint64_t)INT64_MAX - 8,
                                (uint64_t)INT64_MAX,
                                (uint64_t)INT64_MAX + 1,
                                UINT64_MAX - 8,
                                UINT64_MAX - 7,
                                UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        st_header h;
        calla_error err;
        assert_int_equal(read_bytes(lengths[i], good, sizeof good - 1, 8 + sizeof good - 1 + 16, &h, &err), CALLA_E_FORMAT);
        assert_non_null(strstr(err.message, "header"));
    }
}

static void test_offsets(void **state) {
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,5]}}", 5, "tensor a", "span 5 bytes, its shape and dtype need 4");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, "tensor a", "begin behind their end");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "tensor a", "past the end of the file");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 6, "f.safetensors", "the last 2 bytes of the file");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5, "tensor a", "1 bytes before its data");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[18446744073709551612,18446744073709551616]}}", 4, "tensor a",
            "outside 64 bits");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[18446744073709551611,18446744073709551615]}}", 4, "tensor a",
            "past the end of the file"); /* with the header added it wraps to the start of the file */
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[9223372036854775807,9223372036854775811]}}", 4, "tensor a",
            "past the end of the file");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]}}", 4, "tensor a", "whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]}}", 4, "tensor a", "more than 2");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]}}", 4, "tensor a", "two numbers");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0.0,4.0]}}", 4, "tensor a", "whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":\"0,4\"}}", 4, "tensor a", "not an array");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
            6, "tensor b", "overlap those of tensor a");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
            4, "tensor", "overlap");
    refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
        10, "tensor b", "2 bytes before its data");
}

static void test_shapes(void **state) {
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "tensor a", "dimension 0 is 0");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4,0],\"data_offsets\":[0,0]}}", 4, "tensor a", "dimension 1 is 0");
    refused("{\"a\":{\"dtype\":\"U32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "tensor a", "2^64");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4]}}", 4, "tensor a", "2^64");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4398046511104],\"data_offsets\":[0,4]}}", 4, "tensor a", "span 4 bytes");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,4]}}", 4, "tensor a", "outside 64 bits");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, "tensor a", "whole number");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]}}", 4, "tensor a", "more than 8");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "tensor a", "not an array");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}}", 4, "tensor a", "whole number");
}

static void test_fields(void **state) {
    (void)state;
    refused("{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "dtype is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "tensor a", "shape is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, "tensor a", "data_offsets is missing");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "dtype is given twice");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "shape is given twice");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"data_offsets\":[0,4]}}", 4, "tensor a", "given twice");
    refused("{\"a\":{\"dtype\":\"Q4\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "unknown dtype Q4");
    refused("{\"a\":{\"dtype\":\"\\u001b[2J\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "unknown dtype");
    refused("{\"a\":{\"dtype\":8,\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "tensor a", "dtype is not a string");
    refused("{\"a\":[1]}", 4, "tensor a", "not an object");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
            4, "tensor a", "twice");
}

static void test_names(void **state) {
    (void)state;
    refused("{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "", "name");
    refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "", "\\u0000");
    refused("{\"a\\u001b[31m\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "", "control character");
    char json[600], name[300];
    memset(name, 'x', sizeof name - 1);
    name[ST_MAX_NAME + 1] = 0;
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", name);
    refused(json, 4, "", "longer than 256");
}

static void test_not_a_header(void **state) {
    (void)state;
    st_header h;
    calla_error err;
    refused("{}", 0, "", "no tensors");
    refused("{\"__metadata__\":{}}", 0, "", "no tensors");
    refused("[]", 0, "", "does not begin with '{'");
    refused(" {}", 0, "", "does not begin with '{'");
    refused("{\"__metadata__\":[]}", 0, "", "wrong kind");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},}", 4, "", "not valid JSON");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}} x", 4, "", "not valid JSON");
    refused("{\"a\":{\"dtype\":'U8',\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "", "not valid JSON");
    refused("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "", "not valid JSON");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    assert_int_equal(st_header_read((const uint8_t *)pointer, sizeof pointer - 1, sizeof pointer - 1, "f", &h, &err), CALLA_E_FORMAT);
    assert_non_null(strstr(err.message, "git lfs pull"));
}

/* A header in which everything is one deep nest or one huge string must neither overflow the stack nor take long. */
static void test_hostile(void **state) {
    (void)state;
    const size_t n = 1 << 20;
    char *json = malloc(n + 1);
    memset(json, '[', n);
    json[n] = 0;
    memcpy(json, "{\"a\":", 5);
    refused(json, 4, "tensor a", "not an object");
    memcpy(json, "{\"a\":{\"x\":", 10);
    refused(json, 4, "", "not valid JSON");
    free(json);
}

static int fail_at(void *user, uint64_t number) { return number >= *(uint64_t *)user; }

static void test_no_memory(void **state) {
    (void)state;
    st_header h;
    calla_error err;
    unsigned failures = 0;
    for (uint64_t i = 0;; i++, failures++) {
        uint64_t from = mem_allocations() + i;
        mem_set_failure(fail_at, &from);
        const calla_status status = read_text(good, 16, &h, &err);
        mem_set_failure(NULL, NULL);
        if (!status) break;
        assert_int_equal(status, CALLA_E_NOMEM);
        assert_null(h.tensors);
    }
    assert_true(failures >= 3);
    st_header_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),          cmocka_unit_test(test_cut_anywhere), cmocka_unit_test(test_cut_json),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_offsets),      cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_fields),        cmocka_unit_test(test_names),        cmocka_unit_test(test_not_a_header),
        cmocka_unit_test(test_hostile),       cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_pocket.c: recorded chats of pocket through the engine on the Metal backend, several at once, so that prompts and tokens mix, one of
 * them cancelled. */
#include <stdlib.h>

#include "backend/metal/metal.h"
#include "backend/vtables.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/transcript.h"
#include "support/arrays.h"
#include "unit.h"

enum { CHATS = 18, MOST_TOKENS = 96 /* the recording stopped there */ };
#ifdef __SANITIZE_ADDRESS__
enum { EACH = CHATS };
#else
enum { EACH = CHATS / 3 };
#endif

static uint32_t steps, ahead; /* submitted, and while the one before was under way */

static calla_status counted_submit(backend *b, calla_error *err) {
    steps++;
    ahead += b->ring.under_way > 0;
    return metal_vtable.submit(b, err);
}

static int32_t *ids_of(json_object *chat, const char *key, size_t *n) {
    json_object *list = json_object_object_get(chat, key);
    *n = json_object_array_length(list);
    int32_t *ids = malloc(*n * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++) ids[i] = json_object_get_int(json_object_array_get_idx(list, i));
    return ids;
}

/* The smallest margin of each chat is above 1e-2, so every backend must say the same, in either precision (and as it is, with K and V in
 * 8 bits).  `n_chats` of them run beside one more, which is cancelled.  The device finds the tokens, and nearly every step is submitted
 * before the host has seen the one before. */
static void check_chats(calla_precision precision, calla_kv kv, size_t n_chats) {
    static transcript t[CHATS / EACH], cancelled;
    calla_session *session[CHATS / EACH], *other;
    char *text;
    size_t n_text, n;
    json_object *chats;
    calla_engine *e;
    calla_error err = {0};
    const calla_engine_options o = {.model_dir = test_models("pocket"),
                                    .device = "metal",
                                    .context_tokens = 2048,
                                    .max_sequences = CHATS / EACH + 1,
                                    .batch_rows = 64,
                                    .precision = precision,
                                    .kv = kv};
    calla_generate_options greedy = greedy_options(MOST_TOKENS);
    backend_vtable counted = metal_vtable;
    counted.submit = counted_submit;
    steps = ahead = 0;
    greedy.logprobs = false;
    greedy.n_top_logprobs = 0;
    assert_int_equal(file_read(test_data("engine/pocket.greedy.json"), 1 << 20, &text, &n_text, NULL), CALLA_OK);
    assert_int_equal(json_parse(text, n_text, "pocket.greedy.json", &chats, NULL), CALLA_OK);
    if (engine_open_on(&o, &counted, 0, &e, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < n_chats; i++) {
        int32_t *ids = ids_of(json_object_array_get_idx(chats, i * EACH), "prompt_ids", &n);
        session[i] = open_session(e, ids, n);
        start(session[i], &greedy, &t[i]);
        free(ids);
    }
    int32_t *ids = ids_of(json_object_array_get_idx(chats, 1), "prompt_ids", &n);
    other = open_session(e, ids, n);
    cancelled.cancel_after = 3;
    start(other, &greedy, &cancelled);
    free(ids);
    calla_session_wait(other);
    calla_session_close(other);
    assert_int_equal(cancelled.finish, CALLA_FINISH_CANCELLED);
    for (size_t i = 0; i < n_chats; i++) {
        int32_t *want = ids_of(json_object_array_get_idx(chats, i * EACH), "greedy_ids", &n);
        calla_session_wait(session[i]);
        calla_session_close(session[i]);
        assert_int_equal(t[i].n, n);
        assert_memory_equal(t[i].ids, want, n * sizeof *want);
        free(want);
    }
    calla_engine_close(e);
    print_message("of %u steps %u ran ahead\n", steps, ahead);
    assert_true(ahead > steps * 9 / 10);
    json_object_put(chats);
    mem_free(text);
}

static void test_exact(void **state) {
    (void)state;
    check_chats(CALLA_PRECISION_EXACT, CALLA_KV_BF16, CHATS / EACH);
}

/* 16-bit tiles, and keys and values in 8 bits. */
static void test_fast_q8(void **state) {
    (void)state;
    check_chats(CALLA_PRECISION_FAST, CALLA_KV_Q8, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_fast_q8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

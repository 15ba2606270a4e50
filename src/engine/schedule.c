/* schedule.c: see schedule.h. */
#include "engine/schedule.h"

#include "backend/backend.h"

static uint32_t pages(uint32_t tokens) { return tokens / KV_PAGE_TOKENS + (tokens % KV_PAGE_TOKENS != 0); }

static uint32_t wish(const schedule_item *item) { return item->pending < item->max_rows ? item->pending : item->max_rows; }

/* Equal parts, again and again, until the rows or the wishes are used up. */
static void share_rows(schedule_item *items, uint32_t n, uint32_t rows) {
    for (uint32_t hungry = n; rows && hungry;) {
        hungry = 0;
        for (uint32_t i = 0; i < n; i++) hungry += items[i].rows < wish(&items[i]);
        uint32_t part = hungry && rows > hungry ? rows / hungry : 1;
        for (uint32_t i = 0; i < n && rows; i++) {
            uint32_t more = wish(&items[i]) - items[i].rows;
            if (more > part) more = part;
            if (more > rows) more = rows;
            items[i].rows += more;
            rows -= more;
        }
    }
}

schedule_result schedule_rows(schedule_item *items, uint32_t n, uint32_t batch_rows, uint32_t free_pages) {
    for (uint32_t i = 0; i < n; i++) items[i].rows = 1; /* decoding needs no more, and a prompt is never left out */
    share_rows(items, n, batch_rows - n);
    schedule_result result = SCHEDULE_FULL;
    for (uint32_t i = 0; i < n; i++) {
        schedule_item *item = &items[i];
        uint32_t held = pages(item->processed), needed = pages(item->processed + item->rows) - held;
        if (needed > free_pages) {
            item->rows = (held + free_pages) * KV_PAGE_TOKENS - item->processed;
            needed = free_pages;
            result = item->rows && result != SCHEDULE_BLOCKED ? SCHEDULE_CUT : SCHEDULE_BLOCKED;
        }
        free_pages -= needed;
    }
    return result;
}

bool schedule_fits(const uint32_t *running_tokens, uint32_t n, uint32_t tokens, uint32_t all_pages) {
    uint64_t needed = pages(tokens);
    for (uint32_t i = 0; i < n; i++) needed += pages(running_tokens[i]);
    return !n || needed <= all_pages;
}

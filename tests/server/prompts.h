/* prompts.h: request bodies → prompts, with the text side of the pocket model: for tests that the same conversation gives the same bytes in
 * each dialect. */
#ifndef CALLA_TESTS_SERVER_PROMPTS_H
#define CALLA_TESTS_SERVER_PROMPTS_H

#include "server/conversation.h"

/* Group fixtures. */
int prompts_open(void **state);
int prompts_close(void **state);

/* Of the engine that there is none of; its vocabulary is the pocket model's. */
const calla_engine_info *prompts_info(void);
/* What the conversation renders to, the caller's. */
char *prompts_render(conversation *c);
/* The same of a body of the chat dialect. */
char *prompts_from_chat(const char *body);
/* A request recorded from an agent (tests/conformance/record.mjs) [n], the caller's. */
char *prompts_recorded(const char *agent, size_t *n);
/* How many turns begin in it, by control tokens, the answer's included. */
size_t prompts_count_turns(conversation *c);

#endif

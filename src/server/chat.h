/* chat.h: what the server as a whole does to the chats at work. */
#ifndef CALLA_SERVER_CHAT_H
#define CALLA_SERVER_CHAT_H

#include "server/server_impl.h"

/* Ends every chat with an error that says so.  The loop still runs. */
void chat_cancel_all(server *s);

/* After the loop: chats whose body is still with the worker need not be read any more; then, once the worker is closed, frees them. */
void chat_abandon_all(server *s);
void chat_free_all(server *s);

#endif

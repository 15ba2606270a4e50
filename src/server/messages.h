/* messages.h: the messages and tools of a chat request, checked before the template sees them. */
#ifndef CALLA_SERVER_MESSAGES_H
#define CALLA_SERVER_MESSAGES_H

#include "base/json.h"
#include "server/api_error.h"

/* Roles and the shape of contents; `developer` becomes `system` in place.  False with e filled in. */
bool messages_check(json_object *messages, api_error *e);
/* An array of {"type":"function","function":{"name":…}}. */
bool messages_check_tools(json_object *tools, api_error *e);

#endif

/* text_routes.h: POST /tokenize, /detokenize and /apply-template: the model's text side as it is, for clients that count, cut or look at
 * prompts. */
#ifndef CALLA_SERVER_TEXT_ROUTES_H
#define CALLA_SERVER_TEXT_ROUTES_H

#include "server/completion.h"

extern const completion_dialect tokenize_dialect, detokenize_dialect, apply_template_dialect;
extern const param_table tokenize_params, detokenize_params;

#endif

/* compiled_forms.h: the forms of the requests of late, compiled: an agent sends the same tools, a program the same schema, with each
 * request.  Bounded in number and bytes.  Any thread. */
#ifndef CALLA_SERVER_COMPILED_FORMS_H
#define CALLA_SERVER_COMPILED_FORMS_H

#include "base/error.h"

typedef struct compiled_forms compiled_forms;

calla_status compiled_forms_open(compiled_forms **out, calla_error *err);
void compiled_forms_close(compiled_forms *f); /* NULL is allowed */

/* The form of these options if it is here; also what the compiler said against it.  False: it has to be compiled. */
bool compiled_forms_find(compiled_forms *f, const calla_form_options *options, calla_form **out, calla_status *status, calla_error *err);
/* The same, compiled if need be.  The reference to *out is the caller's. */
calla_status compiled_forms_get(compiled_forms *f, const calla_text *text, const calla_form_options *options, calla_form **out,
                                calla_error *err);

#endif
